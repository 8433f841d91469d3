"""The link process: has a channel for each Message VPN that its link joins.

Started by the supervisor as `python -m cluster.link --runtime DIR --index I --incarnation K`; I is the number of the
link object. What it is to do it is told by the controller (`link_config`), again whenever that changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium.errors import error_for
from angarium.process import Process, load_config
from cluster.link.channel import Channel
from cluster.link.config import LinkConfig, LinkRuntime
from cluster.link.shell import Shell, run

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLE: Final = "link"


class LinkServer(Shell):
    """One link process at work."""

    def __init__(self, process: Process) -> None:
        """Wait to be told what to do."""
        super().__init__(process, ROLE)
        self._runtime = load_config(process.runtime_dir, ROLE, LinkRuntime)
        self._config: LinkConfig | None = None
        #: By Message VPN.
        self._channels: dict[str, Channel] = {}
        process.on_request(self._request)

    def _request(self, operation: str, arguments: Any) -> Any:
        now = time.monotonic()
        if operation == "link_config":
            try:
                self._configure(msgspec.convert(arguments, LinkConfig), now)
            except msgspec.ValidationError as error:
                raise error_for(errors.INVALID_ARGUMENT, str(error)) from None
            return None
        if operation == "stats":
            neighbour = "" if self._config is None else self._config.neighbour
            return {
                "neighbour": neighbour,
                "channels": [one.describe(now) for one in self._channels.values()],
            }
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _configure(self, config: LinkConfig, now: float) -> None:
        """Take over what changed; channels that the change does not touch go on."""
        before, self._config = self._config, config
        same = before is not None and msgspec.structs.replace(before, vpns=config.vpns) == config
        for vpn, channel in list(self._channels.items()):
            if not same or vpn not in config.vpns:
                self.remove(channel, now)
                del self._channels[vpn]
        for vpn in config.vpns:
            if vpn not in self._channels:
                channel = Channel(
                    vpn, self._runtime, config, self.process.incarnation, self.own_url,
                    self.outbox, self.random, now,
                )  # fmt: skip
                self._channels[vpn] = channel
                self.add(channel)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a link process until it is told to stop."""
    run(ROLE, LinkServer, arguments)
