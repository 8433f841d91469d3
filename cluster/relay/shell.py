"""The shell of link and bridge processes: carries out what their pairs of sessions decide.

What differs is what such a process is told and which pairs it makes of it (`cluster.relay.pairs`).
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium.errors import AngariumError
from angarium_server.connections.encryption import Encryption
from angarium_server.connections.names import Names
from angarium_server.connections.outgoing import Connection
from angarium_server.memory.memory import collect_rarely
from angarium_server.process import Process, at_work, load_config
from cluster.relay.pair import Connect, Disconnect, Emit, Pair, Surroundings
from cluster.relay.runtime import RelayRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.relay.pair import Effect
    from cluster.relay.pairs import Pairs


class Shell:
    """The connections of some pairs of sessions."""

    def __init__(self, process: Process, kind: type[Pairs[Any, Any]]) -> None:
        """Begin without any; which there are is told by the controller, again whenever that changes."""
        self.process = process
        runtime = load_config(process.runtime_dir, kind.ROLE, RelayRuntime)
        self._outbox: list[Effect] = []
        around = Surroundings(
            runtime,
            process.incarnation,
            f"ipc://{process.runtime_dir}/links",
            self._outbox,
            random.Random(),  # noqa: S311 - jitter is no secret
        )
        self._log = logging.getLogger(kind.ROLE)
        self._work = kind(around)
        process.on_request(self._request)
        #: The open connections, by pair and side.
        self._connections: dict[tuple[Pair, int], Connection] = {}
        #: Those that are closed, and have yet to say so to the other side.
        self._leaving: list[Connection] = []
        self._encryption = Encryption(runtime.files)
        self._names = Names(process)

    def _request(self, operation: str, arguments: Any) -> Any:
        answer = self._work.request(operation, arguments, time.monotonic())
        self.carry_out()
        return answer

    # -- effects ---------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Carry effects out, and send what the sessions have to say."""
        while self._outbox:
            effects, self._outbox[:] = list(self._outbox), []
            for effect in effects:
                if isinstance(effect, Connect):
                    self._connect(effect)
                elif isinstance(effect, Disconnect):
                    self._disconnect(effect.channel, effect.side)
                elif isinstance(effect, Emit):
                    self._log.warning("%s", effect.event["text"])
                    self.process.emit_event(effect.event)
                else:
                    raise AssertionError(effect)
        self._flush()

    def _flush(self) -> None:
        for (pair, side), connection in self._connections.items():
            session = pair.sessions[side]
            if session is not None:
                connection.send(session.take_outgoing())

    def _connect(self, effect: Connect) -> None:
        pair, side = effect.channel, effect.side
        assert (pair, side) not in self._connections
        try:
            self._connections[pair, side] = Connection(
                self.process,
                self._names,
                effect.url,
                self._encryption.for_address(effect.url, effect.trust),
                lambda frames, now: pair.received(side, frames, now),
                self.carry_out,
                lambda why, now: self._lost(pair, side, why, now),
            )
        except AngariumError as error:
            pair.lost(side, error, time.monotonic())

    def _disconnect(self, pair: Pair, side: int) -> None:
        connection = self._connections.pop((pair, side), None)
        session = pair.sessions[side]
        if connection is not None:
            connection.close(deque() if session is None else session.take_outgoing())
            self._leaving.append(connection)
        pair.forget(side)

    def _lost(self, pair: Pair, side: int, why: AngariumError, now: float) -> None:
        pair.lost(side, why, now)
        self.carry_out()

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Let time pass; gives the seconds until the next call is wanted."""
        wake = now + 1.0
        for connection in (*self._connections.values(), *self._leaving):
            connection.tick(now)
        for (pair, side), connection in self._connections.items():
            pair.heard(side, connection.part_at)
        wake = min(wake, self._work.tick(now))
        self.carry_out()
        self._leaving = [connection for connection in self._leaving if not connection.is_gone]
        for connection in (*self._connections.values(), *self._leaving):
            wake = min(wake, connection.wake_at)
        return max(0.0, wake - now)

    def stopped(self) -> bool:
        """Asked while stopping: say goodbye everywhere, and tell whether everybody has heard it."""
        self._work.leave(time.monotonic())
        self.carry_out()
        return not self._leaving


def run(kind: type[Pairs[Any, Any]], arguments: Sequence[str] | None = None) -> None:
    """Run a process of this kind until it is told to stop."""
    with at_work(kind.ROLE, arguments) as process:
        shell = Shell(process, kind)
        process.ready({})
        collect_rarely()
        process.run(shell.tick, shell.stopped)
