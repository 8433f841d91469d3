"""Simulated time and a network that fails as ZeroMQ does: the clock, the event loop and connections.

A connection is two pipes. A pipe keeps the order of its frames, delays each by its own time, and never
duplicates one. It loses frames in one way only: when it is cut, what is still under way loses a tail. A
partition delays everything until it is healed. Nothing here knows what a frame means.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Frames = list[bytes]

#: Between the end of a connection at one side and its notice at the other, at most.
NOTICE_S = 0.05


class Loop:
    """The clock, and what happens when; things due at the same time happen in the order of their calls."""

    def __init__(self) -> None:
        #: Never goes back.
        self.now = 1000.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = 0
        #: Things that have happened.
        self.steps = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Let something happen at a time, or now if that is past."""
        self._ties += 1
        heapq.heappush(self._queue, (max(time, self.now), self._ties, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Let something happen so many seconds from now."""
        self.at(self.now + delay_s, call)

    def run_until(self, end: float) -> None:
        """Let everything happen that is due by then."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, call = heapq.heappop(queue)
            self.steps += 1
            call()
        self.now = max(self.now, end)


class Pipe:
    """One direction of a connection."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        delay_max_s: float,
        deliver: Callable[[Frames], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._delay_max_s = delay_max_s
        self._deliver = deliver
        self._on_end = on_end
        #: Frames under way with the time of their arrival, which never falls.
        self._flight: deque[tuple[float, Frames]] = deque()
        self._last_due = 0.0
        #: True while a partition holds everything back.
        self.stalled = False
        #: True once nothing can be sent any more; what is under way still arrives.
        self.closed = False
        self._end_due: float | None = None

    @property
    def waiting_bytes(self) -> int:
        """Give the bytes under way."""
        return sum(len(frame) for _, frames in self._flight for frame in frames)

    def send(self, frames: Frames) -> None:
        """Put frames on their way; nothing happens if the pipe is closed."""
        if self.closed:
            return
        loop = self._loop
        due = max(self._last_due, loop.now + self._rng.random() * self._delay_max_s)
        self._last_due = due
        self._flight.append((due, frames))
        loop.at(due, self._arrive)

    def _arrive(self) -> None:
        flight = self._flight
        while flight and not self.stalled and flight[0][0] <= self._loop.now:
            self._deliver(flight.popleft()[1])
        if not flight and self._end_due is not None and not self.stalled and self._end_due <= self._loop.now:
            self._end_due = None
            self._on_end()

    def stall(self) -> None:
        """Begin a partition."""
        self.stalled = True

    def heal(self) -> None:
        """End a partition: what waited arrives now."""
        self.stalled = False
        self._loop.at(self._loop.now, self._arrive)

    def cut(self, *, is_noticed: bool) -> None:
        """Lose a random tail of what is under way, and take nothing more.

        The receiver notices after what is left has arrived, or never: then only its keepalive can tell.
        """
        if self.closed:
            return
        self.closed = True
        kept = self._rng.randint(0, len(self._flight))
        while len(self._flight) > kept:
            self._flight.pop()
        if is_noticed:
            self._end_due = max(self._last_due, self._loop.now) + self._rng.random() * NOTICE_S
            self._loop.at(self._end_due, self._arrive)

    def drop(self) -> None:
        """The receiver is gone: nothing arrives any more."""
        self.closed = True
        self._flight.clear()
        self._end_due = None


class Endpoint:
    """What one side of a connection does with what arrives; filled in by its owner."""

    def __init__(self, on_frames: Callable[[Frames], None], on_end: Callable[[], None]) -> None:
        self.on_frames = on_frames
        self.on_end = on_end


class Connection:
    """Two pipes between the side that connected and the side that listens."""

    def __init__(
        self, loop: Loop, rng: random.Random, delay_max_s: float, near: Endpoint, far: Endpoint
    ) -> None:
        #: From the side that connected.
        self.up = Pipe(loop, rng, delay_max_s, far.on_frames, far.on_end)
        #: To the side that connected.
        self.down = Pipe(loop, rng, delay_max_s, near.on_frames, near.on_end)

    def close_near(self, *, is_noticed: bool) -> None:
        """The side that connected closes or dies; some of what it sent may be lost."""
        self.down.drop()
        self.up.cut(is_noticed=is_noticed)

    def close_far(self) -> None:
        """The side that listens dies; some of what it sent may be lost."""
        self.up.drop()
        self.down.cut(is_noticed=True)

    def sever(self, *, near_notices: bool, far_notices: bool) -> None:
        """The network between them breaks for good."""
        self.up.cut(is_noticed=far_notices)
        self.down.cut(is_noticed=near_notices)

    def stall(self) -> None:
        """Begin a partition."""
        self.up.stall()
        self.down.stall()

    def heal(self) -> None:
        """End a partition."""
        self.up.heal()
        self.down.heal()
