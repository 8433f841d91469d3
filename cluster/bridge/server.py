"""The bridge process: carries one bridge.

Started by the supervisor as `python -m cluster.bridge --runtime DIR --index I --incarnation K`; I is the number of the
bridge object. What it is to do it is told by the controller (`bridge_config`), again whenever that changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium.errors import error_for
from cluster.bridge.channel import BridgeChannel
from cluster.bridge.config import BridgeConfig
from cluster.configuration.config import read_password_file
from cluster.relay.shell import Shell, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.process import Process

ROLE: Final = "bridge"


class BridgeServer(Shell):
    """One bridge process at work."""

    def __init__(self, process: Process) -> None:
        """Wait to be told what to do."""
        super().__init__(process, ROLE)
        self._config: BridgeConfig | None = None
        self._channel: BridgeChannel | None = None
        process.on_request(self._request)

    def _request(self, operation: str, arguments: Any) -> Any:
        now = time.monotonic()
        if operation == "bridge_config":
            try:
                self._configure(msgspec.convert(arguments, BridgeConfig), now)
            except msgspec.ValidationError as error:
                raise error_for(errors.INVALID_ARGUMENT, str(error)) from None
            return None
        if operation == "stats":
            return {} if self._channel is None else self._channel.describe(now)
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _configure(self, config: BridgeConfig, now: float) -> None:
        """Start over with what changed, but for links of the node."""
        before, self._config = self._config, config
        if self._channel is not None and before is not None:
            if msgspec.structs.replace(before, neighbours=config.neighbours) == config:
                self._channel.join(config.neighbours)
                return
            self.remove(self._channel, now)
        self._channel = BridgeChannel(self.around, config, read_password_file, now)
        self.add(self._channel)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a bridge process until it is told to stop."""
    run(ROLE, BridgeServer, arguments)
