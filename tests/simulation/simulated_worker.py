"""A worker process of the simulation: the real state machine, and what `node.server` does around it.

It announces itself until the router starts it, answers frames, and may be paused or killed. Who restarts it
and who tells the router of its death is in `simulated_node`. With a `Side` it is a home too: that takes the
frames that concern lanes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from angarium import wire
from node.home.home import OPERATIONS
from node.matching.inbox import Inbox
from node.matching.worker import Worker
from tests.simulation.simulated_network import Connection, Endpoint, Frames, Loop

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from node.config import WorkerConfig

#: As in `node.server`.
READY_INTERVAL_S = 0.2
#: Between the end of one router and the connection to the next.
RECONNECT_S = 0.05
#: Between two steps of matching, and between a frame and its turn, if it does not have it at once.
STEP_S = 0.002
#: The share of the frames for matching that wait for their turn.
LATER = 0.2


class Side(Protocol):
    """What else lives in a worker process."""

    def handle(self, frames: Frames) -> None:
        """Take a frame of the router that concerns it."""

    def resumed(self) -> None:
        """The process runs again."""

    def killed(self) -> None:
        """The process died."""

    def stop(self) -> bool:
        """Put everything where it survives; True when it is there."""


class SimulatedWorker:
    """One process of one index."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        place: tuple[int, int],
        config: WorkerConfig,
        delay_max_s: float,
    ) -> None:
        index, incarnation = place
        self.loop = loop
        self._rng = rng
        self._delay_max_s = delay_max_s
        self.index = index
        self.incarnation = incarnation
        self.worker = Worker(index, incarnation, config)
        #: The home in the same process, or None.
        self.side: Side | None = None
        self.identity = b"w%d.%d" % (index, incarnation)
        #: The connection to the router, or None.
        self.connection: Connection | None = None
        #: True once it is dead.
        self.is_dead = False
        #: When it stopped running, None while it runs, and until when.
        self._paused_at: float | None = None
        self._paused_until = 0.0
        self._inbox: deque[Frames] = deque()
        #: What waits for matching.
        self._unmatched = Inbox()
        #: Whether a step of matching is due.
        self._steps = False

    def connect(self, on_frames: Callable[[Frames], None], on_end: Callable[[], None]) -> Connection:
        """Connect to a router, whose side of the connection is given."""
        connection: Connection | None = None

        def ended() -> None:
            if self.connection is connection:
                self.connection = None

        near = Endpoint(self._receive, ended)
        far = Endpoint(on_frames, on_end)
        connection = self.connection = Connection(self.loop, self._rng, self._delay_max_s, near, far)
        self.worker.connected()
        self._inbox.clear()
        self._unmatched = Inbox()
        self._announce(connection)
        return connection

    def _announce(self, connection: Connection) -> None:
        if self.is_dead or connection is not self.connection or self.worker.started:
            return
        if not self.is_paused:
            connection.up.send(self.worker.ready_frames())
        self.loop.after(READY_INTERVAL_S, lambda: self._announce(connection))

    def _receive(self, frames: Frames) -> None:
        if self.is_paused:
            self._inbox.append(frames)
        else:
            self._handle(frames)

    def _handle(self, frames: Frames) -> None:
        """Take a frame: what is for the home at once, some of the others a moment later, in their order."""
        if frames[0] in OPERATIONS:
            if self.side is not None:
                self.side.handle(frames)
            return
        self._unmatched.put(frames)
        if frames[0] == wire.START:
            self._match()
            if self.side is not None:
                self.side.handle(frames)
        elif self._rng.random() < LATER:
            self.loop.after(self._rng.uniform(0, STEP_S), self._match)
        else:
            self._match()

    def _match(self) -> None:
        """Handle the frames for matching that came, unless they were meanwhile."""
        while self._unmatched and not (self.is_dead or self.is_paused):
            self.worker.share(self._rng.randint(1, len(self._unmatched)))
            answers = self.worker.handle(self._unmatched.take(), self.loop.now)
            self._answer(self.connection, answers + self.worker.tidy(self.loop.now))

    def _answer(self, connection: Connection | None, answers: list[Frames]) -> None:
        """Send what the worker has to say, and let it take its next step a moment later."""
        for answer in answers:
            if connection is not None:
                connection.up.send(answer)
        if not self._steps:
            self._steps = True
            self.loop.after(STEP_S, self._step)

    def _step(self) -> None:
        """Take one step of matching, and another one later if there is more."""
        self._steps = False
        if self.is_dead or self.is_paused:
            return
        answers = self.worker.work()
        if answers or self.worker.has_work:
            self._answer(self.connection, answers)

    @property
    def is_paused(self) -> bool:
        """Tell whether it does not run."""
        return self._paused_at is not None

    def pause(self, until: float) -> None:
        """Stop running until then; frames queue."""
        if self._paused_at is None:
            self._paused_at = self.loop.now
        self._paused_until = max(self._paused_until, until)

    def hangs_for(self, seconds: float) -> bool:
        """Tell whether it has not run for so long."""
        return self._paused_at is not None and self.loop.now - self._paused_at >= seconds * 0.999

    def resume(self) -> None:
        """Run again, if it is alive and nobody paused it for longer."""
        if self.is_dead or self.loop.now < self._paused_until:
            return
        self._paused_at = None
        self._match()
        self._step()
        while self._inbox:
            self._handle(self._inbox.popleft())
        if self.side is not None:
            self.side.resumed()

    def kill(self) -> None:
        """Die."""
        self.is_dead = True
        self._inbox.clear()
        if self.side is not None:
            self.side.killed()
        if self.connection is not None:
            self.connection.close_near(is_noticed=True)
            self.connection = None
