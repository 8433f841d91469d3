"""The state machine of a link process: one channel for each Message VPN that the controller names, and their state.

Pure: time comes in, effects go into an outbox. The shell (`cluster.relay.shell`, or a simulation) carries them out and
passes events of the connections to the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from angarium import errors
from angarium.errors import error_for
from cluster.link.channel import Channel
from cluster.link.config import LinkConfig

if TYPE_CHECKING:
    from cluster.relay.pair import Surroundings


class Link:
    """The channels of one link process."""

    def __init__(self, around: Surroundings) -> None:
        """Wait to be told what to do."""
        self._around = around
        self._config: LinkConfig | None = None
        #: By Message VPN; exactly those of the configuration.
        self.channels: dict[str, Channel] = {}

    def request(self, operation: str, arguments: Any, now: float) -> Any:
        """Answer what the controller asks: `link_config` or `stats`.

        Raises:
            InvalidRequestError: it is neither, or malformed.
        """
        if operation == "link_config":
            try:
                config = msgspec.convert(arguments, LinkConfig)
            except msgspec.ValidationError as error:
                raise error_for(errors.INVALID_ARGUMENT, str(error)) from None
            self._configure(config, now)
            return None
        if operation == "stats":
            neighbour = "" if self._config is None else self._config.neighbour
            return {"neighbour": neighbour, "channels": [one.describe(now) for one in self.channels.values()]}
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _configure(self, config: LinkConfig, now: float) -> None:
        """Take over what changed; channels that the change does not touch go on."""
        before, self._config = self._config, config
        same = before is not None and msgspec.structs.replace(before, vpns=config.vpns) == config
        for vpn, channel in list(self.channels.items()):
            if not same or vpn not in config.vpns:
                channel.leave(now)
                del self.channels[vpn]
        for vpn in config.vpns:
            if vpn not in self.channels:
                self.channels[vpn] = Channel(self._around, config, vpn, now)

    def tick(self, now: float) -> float:
        """Let time pass; gives when the next call is wanted, infinite if never."""
        return min((channel.tick(now) for channel in self.channels.values()), default=float("inf"))

    def leave(self, now: float) -> None:
        """Say goodbye everywhere."""
        for channel in self.channels.values():
            channel.leave(now)

    def validate(self) -> None:
        """Check what the comments promise."""
        wanted = [] if self._config is None else self._config.vpns
        assert sorted(self.channels) == sorted(dict.fromkeys(wanted))
        for channel in self.channels.values():
            channel.validate()
