"""What a link process carries: a channel for each Message VPN that the controller names."""

from __future__ import annotations

from typing import Any, ClassVar

from cluster.link.channel import Channel
from cluster.link.config import LinkConfig
from cluster.relay.pairs import Pairs


class Link(Pairs[LinkConfig, Channel]):
    """The channels of one link process, by Message VPN."""

    ROLE: ClassVar[str] = "link"
    CONFIG: ClassVar[type[LinkConfig]] = LinkConfig
    CHANGES: ClassVar[str] = "vpns"

    def _names(self, config: LinkConfig) -> list[str]:
        return config.vpns

    def _make(self, config: LinkConfig, name: str, now: float) -> Channel:
        return Channel(self._around, config, name, now)

    def _stats(self, now: float) -> dict[str, Any]:
        neighbour = "" if self._config is None else self._config.neighbour
        return {"neighbour": neighbour, "channels": [one.describe(now) for one in self.pairs.values()]}
