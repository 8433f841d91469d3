"""When something has to happen to messages of a lane: expiry, delivery delay, redelivery delay.

A million timers are not a million objects. The index holds one entry per *run* of
positions, in buckets of 10 ms; a segment is in it once, at the earliest time of its rows. Inside a segment
whose rows have different times a `Schedule` has the rows in the order of their times, two bytes each, so
that a row that is due costs nothing to find. Times are ms of whatever clock the caller uses for an index.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Nothing is early; it may be late by this.
GRANULARITY_MS: Final = 10
#: Empty buckets whose numbers may stay in the heap before it is built again.
_STALE_MAX: Final = 64


class TimeIndex:
    """Runs of positions by the time at which they are due."""

    __slots__ = ("_buckets", "_heap", "count")

    def __init__(self) -> None:
        #: Number of a bucket -> first position of a run -> positions in it; no bucket is empty.
        self._buckets: dict[int, dict[int, int]] = {}
        #: Numbers of buckets, each of `_buckets` at least once; others are stale.
        self._heap: list[int] = []
        #: Runs in the index.
        self.count = 0

    def add(self, at_ms: int, first: int, count: int) -> int:
        """Add a run that is due at a time; gives the bucket, for `discard`.

        A run that is in this bucket already is made longer if need be.
        """
        number = -(-at_ms // GRANULARITY_MS)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heappush(self._heap, number)
        known = bucket.get(first)
        self.count += known is None
        bucket[first] = count if known is None else max(known, count)
        return number

    def discard(self, number: int, first: int) -> None:
        """Remove the run that starts at a position from a bucket, if it is there."""
        bucket = self._buckets.get(number)
        if bucket is not None and bucket.pop(first, None) is not None:
            self.count -= 1
            if not bucket:
                del self._buckets[number]
                # Runs that go before their time must not leave the numbers of their buckets for ever.
                if len(self._heap) > 2 * len(self._buckets) + _STALE_MAX:
                    self._heap = list(self._buckets)
                    heapify(self._heap)

    def take(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Remove and give at most `limit` runs (first position, count) that are due, earliest first."""
        taken: list[tuple[int, int]] = []
        heap = self._heap
        while heap and heap[0] * GRANULARITY_MS <= now_ms and len(taken) < limit:
            bucket = self._buckets.get(heap[0])
            if bucket is None:
                heappop(heap)
                continue
            while bucket and len(taken) < limit:
                taken.append(bucket.popitem())
            if not bucket:
                del self._buckets[heappop(heap)]
        self.count -= len(taken)
        return taken

    def next_ms(self) -> int | None:
        """Give when the earliest run is due, None if there is none."""
        heap = self._heap
        while heap and heap[0] not in self._buckets:
            heappop(heap)
        return heap[0] * GRANULARITY_MS if heap else None

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert all(self._buckets.values())
        assert set(self._buckets) <= set(self._heap)
        assert self.count == sum(map(len, self._buckets.values()))
        assert len(self._heap) <= 2 * len(self._buckets) + _STALE_MAX + 1


#: Of everybody who has no times: most partitions have none. It stays empty.
NO_TIMES: Final = TimeIndex()


class Schedule:
    """The rows of a segment in the order of their times, and how far they have been taken."""

    __slots__ = ("_at", "_order")

    def __init__(self, times: Sequence[int]) -> None:
        """Order the rows by their times; a row with time 0 is left out."""
        if all(times) and all(map(int.__le__, times, times[1:])):
            self._order: range | array[int] = range(len(times))
        else:
            timed = [i for i, time in enumerate(times) if time]
            self._order = array("H", sorted(timed, key=times.__getitem__))
        self._at = 0

    def next_row(self) -> int:
        """Give the row that is due next, -1 if there is none."""
        return self._order[self._at] if self._at < len(self._order) else -1

    def is_ahead(self, time_of: Callable[[int], int], now_ms: int) -> bool:
        """Tell whether a row was passed by whose time is yet to come: somebody set the clock back."""
        return self._at > 0 and time_of(self._order[self._at - 1]) > now_ms

    def take(self, time_of: Callable[[int], int], upto: int, limit: int) -> list[int]:
        """Pass by the rows whose time is `upto` or before, and give them, at most `limit`.

        Args:
            time_of: gives the time of a row; the same times as at the start, or all changed in a way that
                keeps their order.
            upto: ms.
            limit: those behind them are given by the next call.
        """
        start = at = self._at
        order = self._order
        end = min(len(order), start + limit)
        while at < end and time_of(order[at]) <= upto:
            at += 1
        self._at = at
        return list(order[start:at])
