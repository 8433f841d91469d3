"""What a bridge process carries: one bridge."""

from __future__ import annotations

from typing import Any, ClassVar

from cluster.bridge.channel import BridgeChannel
from cluster.bridge.config import BridgeConfig
from cluster.configuration.config import read_password_file
from cluster.relay.pairs import Pairs


class Bridge(Pairs[BridgeConfig, BridgeChannel]):
    """The only channel of one bridge process."""

    ROLE: ClassVar[str] = "bridge"
    CONFIG: ClassVar[type[BridgeConfig]] = BridgeConfig
    CHANGES: ClassVar[str] = "neighbours"

    def _names(self, config: BridgeConfig) -> list[str]:
        return [config.name]

    def _make(self, config: BridgeConfig, _name: str, now: float) -> BridgeChannel:
        return BridgeChannel(self._around, config, read_password_file, now)

    def _configure(self, config: BridgeConfig, now: float) -> None:
        super()._configure(config, now)
        self.pairs[config.name].join(config.neighbours)

    def _stats(self, now: float) -> dict[str, Any]:
        return next((channel.describe(now) for channel in self.pairs.values()), {})
