"""The sockets of clients: read at once while few messages come, and by the clock while many do.

A turn that brings one message costs nearly as much as one that brings ten: what is around it, and a send that wakes
somebody. So while the messages of many connections follow each other closely, they are left to gather for a
moment. What the router says is never waited with, and a lone message of a quiet process leaves in the turn that it
begins.

A deadline of a client that has moved is found when it comes, and not before.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from angarium_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from angarium_server.connections.door import Watcher

NEVER: Final = float("inf")
#: Of clients that are gone, beside as many as there are; more are taken out at once.
STALE_MAX: Final = 1_000
#: From so many signals of sockets per second on, at least three are read at once.
PACED_FROM: Final = 3_000
PACE_S: Final = 0.00035
#: How often the rate is looked at.
LOOK_S: Final = 0.05


class Deadlines:
    """Of the clients of a process, by their connections."""

    def __init__(self, here: Container[bytes], count: Callable[[], int]) -> None:
        """Begin without any; `here` holds the connections that there are, `count` how many that is."""
        self._here = here
        self._count = count
        #: (time, connection), the next one first; one for each that has a deadline, and some that are gone.
        self._heap: list[tuple[float, bytes]] = []

    def add(self, connection_id: bytes, due: float) -> None:
        """Have a client, which has none, looked at then."""
        if due == NEVER:
            return
        heapq.heappush(self._heap, (due, connection_id))
        if len(self._heap) > 2 * self._count() + STALE_MAX:
            self._heap = [one for one in self._heap if one[1] in self._here]
            heapq.heapify(self._heap)

    @property
    def next(self) -> float:
        """Give the time of the next one."""
        return self._heap[0][0] if self._heap else NEVER

    def take(self, now: float) -> list[bytes]:
        """Give whose time has come; they have none any more."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        return due


class Pace:
    """When sockets are read."""

    def __init__(self) -> None:
        #: Signals since the rate was looked at, and when that was.
        self._signals = 0
        self._looked_at = 0.0
        #: When that pays again.
        self.look_at = 0.0
        #: Whether they are read by the clock, and when next.
        self.is_paced = False
        self.read_at = 0.0

    def look(self, now: float) -> None:
        """Find out, now and then, whether it pays to wait."""
        passed_s = now - self._looked_at
        if passed_s >= LOOK_S:
            self.is_paced = self._signals >= PACED_FROM * passed_s
            self._signals, self._looked_at, self.look_at = 0, now, now + LOOK_S

    def was_read(self, signals: int, now: float) -> None:
        """Note that so many sockets were read in a turn that began then."""
        self._signals += signals
        self.read_at = now + PACE_S


class Crowd:
    """The sockets of all clients, watched apart from what else the process waits for."""

    def __init__(self, process: Watcher) -> None:
        self.watch: Final = Watch()
        self._process = process
        self._pace = Pace()
        #: Whether a turn begins when a socket signals; else by the clock.
        self._begins_turns = False
        self._begin_turns(wanted=True)

    @property
    def is_paced(self) -> bool:
        """Whether the sockets are read by the clock."""
        return self._pace.is_paced

    def _begin_turns(self, *, wanted: bool) -> None:
        if wanted and not self._begins_turns:
            self._process.add(self.watch.descriptor, self._read)
        elif self._begins_turns and not wanted:
            self._process.remove(self.watch.descriptor)
        self._begins_turns = wanted

    def _read(self) -> None:
        self._pace.was_read(self.watch.wait(0.0), 0.0)

    def tick(self, now: float) -> float:
        """Read what has gathered, if it is time; gives when to call again."""
        pace = self._pace
        if now >= pace.look_at:
            pace.look(now)
        if pace.is_paced is self._begins_turns:
            self._begin_turns(wanted=not pace.is_paced)
        if not pace.is_paced:
            return NEVER
        if now >= pace.read_at:
            pace.was_read(self.watch.wait(0.0), now)
        return pace.read_at

    def close(self) -> None:
        """Watch nothing any more."""
        self._begin_turns(wanted=False)
        self.watch.close()
