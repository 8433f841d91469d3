"""The link process: carries out what its channels decide.

Started by the supervisor as `python -m cluster.link --runtime DIR --index I --incarnation K`; I is the number of the
link object. What it is to do it is told by the controller (`link_config`), again whenever that changes.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium.process import Process, collect_rarely, load_config
from cluster.link.channel import Channel, Connect, Disconnect, Effect, Emit
from cluster.link.config import LinkConfig, LinkRuntime
from cluster.link.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLE: Final = "link"
_log = logging.getLogger(ROLE)


class LinkServer:
    """One link process at work."""

    def __init__(self, process: Process) -> None:
        """Wait to be told what to do."""
        self._process = process
        self._runtime = load_config(process.runtime_dir, ROLE, LinkRuntime)
        self._config: LinkConfig | None = None
        #: By Message VPN.
        self._channels: dict[str, Channel] = {}
        #: The open connections, by channel and side.
        self._connections: dict[tuple[Channel, int], Connection] = {}
        self._outbox: list[Effect] = []
        self._random = random.Random()  # noqa: S311 - jitter is no secret
        process.on_request(self._request)

    def _request(self, operation: str, arguments: Any) -> Any:
        if operation == "link_config":
            try:
                self._configure(msgspec.convert(arguments, LinkConfig), time.monotonic())
            except msgspec.ValidationError as error:
                raise error_for(errors.INVALID_ARGUMENT, str(error)) from None
            return None
        if operation == "stats":
            neighbour = "" if self._config is None else self._config.neighbour
            return {"neighbour": neighbour, "channels": [one.describe() for one in self._channels.values()]}
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _configure(self, config: LinkConfig, now: float) -> None:
        """Take over what changed; channels that the change does not touch go on."""
        before, self._config = self._config, config
        same = before is not None and msgspec.structs.replace(before, vpns=config.vpns) == config
        for vpn, channel in list(self._channels.items()):
            if not same or vpn not in config.vpns:
                channel.leave(now)
                del self._channels[vpn]
        self._carry_out()
        for vpn in config.vpns:
            if vpn not in self._channels:
                self._channels[vpn] = Channel(
                    vpn, self._runtime, config, self._process.incarnation,
                    f"ipc://{self._process.runtime_dir}/links", self._outbox, self._random, now,
                )  # fmt: skip

    # -- effects ---------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry effects out, and send what the sessions have to say."""
        while self._outbox:
            effects, self._outbox[:] = list(self._outbox), []
            for effect in effects:
                if isinstance(effect, Connect):
                    self._connect(effect)
                elif isinstance(effect, Disconnect):
                    self._disconnect(effect.channel, effect.side)
                elif isinstance(effect, Emit):
                    _log.warning("%s", effect.event["text"])
                    self._process.emit_event(effect.event)
                else:
                    raise AssertionError(effect)
        self._flush()

    def _flush(self) -> None:
        for (channel, side), connection in self._connections.items():
            session = channel.sessions[side]
            if session is not None:
                connection.send(session.take_outgoing())

    def _connect(self, effect: Connect) -> None:
        channel, side = effect.channel, effect.side
        assert (channel, side) not in self._connections
        try:
            self._connections[channel, side] = Connection(
                self._process, effect.url, effect.server_key,
                lambda frames, now: channel.received(side, frames, now),
                self._carry_out,
                lambda why, now: self._lost(channel, side, why, now),
            )  # fmt: skip
        except AngariumError as error:
            channel.lost(side, error.detail, time.monotonic())

    def _disconnect(self, channel: Channel, side: int) -> None:
        connection = self._connections.pop((channel, side), None)
        session = channel.sessions[side]
        if connection is not None:
            if session is not None:
                connection.send(session.take_outgoing())
            connection.close()
        channel.forget(side)

    def _lost(self, channel: Channel, side: int, why: str, now: float) -> None:
        channel.lost(side, why, now)
        self._carry_out()

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Let time pass; gives the seconds until the next call is wanted."""
        wake = now + 1.0
        for channel in self._channels.values():
            wake = min(wake, channel.tick(now))
        self._carry_out()
        return max(0.0, wake - now)

    def stopped(self) -> bool:
        """Asked while stopping: say goodbye everywhere."""
        for channel in self._channels.values():
            channel.leave(time.monotonic())
        self._carry_out()
        return True

    def close(self) -> None:
        """Close what is open."""
        for connection in self._connections.values():
            connection.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a link process until it is told to stop."""
    process = Process.from_command_line(ROLE, arguments)
    try:
        server = LinkServer(process)
        process.ready({})
        collect_rarely()
        process.run(server.tick, server.stopped)
        server.close()
    finally:
        process.close()
