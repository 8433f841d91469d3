"""When which client is to be looked at next. A deadline that has moved is found when it comes, and not before."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container

NEVER: Final = float("inf")
#: Of clients that are gone, beside as many as there are; more are taken out at once.
STALE_MAX: Final = 1_000


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
