"""The shell of link and bridge processes: carries out what their pairs of sessions decide.

What differs is what such a process is told and which pairs it makes of it: `cluster.link.server` and
`cluster.bridge.server`.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium.errors import AngariumError
from angarium_server.memory import collect_rarely
from angarium_server.process import Process, load_config
from cluster.relay.connection import Connection
from cluster.relay.encryption import Encryption
from cluster.relay.names import Names
from cluster.relay.pair import Connect, Disconnect, Emit, Pair, Surroundings
from cluster.relay.runtime import RelayRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.relay.pair import Effect


class Shell:
    """The connections of some pairs of sessions."""

    def __init__(self, process: Process, role: str) -> None:
        """Begin without any."""
        self.process = process
        runtime = load_config(process.runtime_dir, role, RelayRuntime)
        self._outbox: list[Effect] = []
        #: What each pair gets.
        self.around: Final = Surroundings(
            runtime,
            process.incarnation,
            f"ipc://{process.runtime_dir}/links",
            self._outbox,
            random.Random(),  # noqa: S311 - jitter is no secret
        )
        self._log = logging.getLogger(role)
        #: In the order in which they came.
        self._pairs: dict[Pair, None] = {}
        #: The open connections, by pair and side.
        self._connections: dict[tuple[Pair, int], Connection] = {}
        #: Those that are closed, and have yet to say so to the other side.
        self._leaving: list[Connection] = []
        self._encryption = Encryption(runtime.files)
        self._names = Names(process)

    def add(self, pair: Pair) -> None:
        """See to another pair."""
        self._pairs[pair] = None

    def remove(self, pair: Pair, now: float) -> None:
        """Have a pair say goodbye, and forget it."""
        pair.leave(now)
        self.carry_out()
        del self._pairs[pair]

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
        for pair in self._pairs:
            wake = min(wake, pair.tick(now))
        self.carry_out()
        self._leaving = [connection for connection in self._leaving if not connection.is_gone]
        for connection in (*self._connections.values(), *self._leaving):
            wake = min(wake, connection.wake_at)
        return max(0.0, wake - now)

    def stopped(self) -> bool:
        """Asked while stopping: say goodbye everywhere, and tell whether everybody has heard it."""
        for pair in self._pairs:
            pair.leave(time.monotonic())
        self.carry_out()
        return not self._leaving


def run(role: str, make: Callable[[Process], Shell], arguments: Sequence[str] | None) -> None:
    """Run a process of a role until it is told to stop; `make` says what it does."""
    process = Process.from_command_line(role, arguments)
    try:
        shell = make(process)
        process.ready({})
        collect_rarely()
        process.run(shell.tick, shell.stopped)
    finally:
        process.close()
