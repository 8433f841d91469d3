"""The stream of STOREs from the router: numbers, what is accepted, what is stored, and what is written when.

Numbers start at 1 for each router and rise by 1. A STORE is *accepted* when all before it are and it is on
disk, or at once if it is relaxed; then its lanes get it and the router may acknowledge it. It is *stored*
when a write that has it is durable. Accepting in order keeps the totals exact: they cover the accepted
STOREs, no more and no less. `stored` never runs ahead of the disk.

A relaxed STORE waits for its write up to `write_delay`, and what all its lanes have lost by then is never
written (R170); that it is done is written all the same. A write takes along the relaxed STOREs that
share a lane with what comes after them, so that a lane is never on disk with a hole. Others stay behind: the
row "stored" of META lists their numbers, and a STORE that comes again is taken only if it is not stored.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from node.home.spool.layout import StoredRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from node.backlog.segment import Segment
    from node.home.spool.held_lanes import HeldLane
    from node.home.spool.stores import Store

#: Relaxed STOREs that wait for their write; with more they are written at once. It bounds the row "stored".
RELAXED_MAX: Final = 2_000


class Stream:
    """The numbers of one router at a time, and the STOREs that are not stored."""

    def __init__(self, write_delay_s: float) -> None:
        self._write_delay_s = write_delay_s
        #: The router whose numbers these are; 0 before the first.
        self.router = 0
        #: The highest number that was taken.
        self.received = 0
        #: Numbers below `received` that an earlier process took and did not store, rising.
        self._missing: dict[int, None] = {}
        #: Not accepted, in order; the first of them is not relaxed.
        self._waiting: deque[Store] = deque()
        #: Not stored, by serial, in order.
        self._unstored: dict[int, Store] = {}
        #: Rises with every STORE, over routers.
        self.serial = 0
        #: Bytes of everything that is not stored.
        self.bytes = 0
        #: STOREs up to this serial are to be written now, relaxed or not.
        self._flush_upto = 0
        #: STOREs that are not stored and not relaxed.
        self._synced = 0

    # -- numbers ---------------------------------------------------------------------------------------------

    def start(self, router: int) -> None:
        """Begin with the numbers of another router; what the one before sent is written without a number."""
        self.router = router
        self.received = 0
        self._missing = {}

    def resume(self, row: StoredRow) -> None:
        """Go on where an earlier process stopped."""
        self.router = row.router
        self.received = row.number
        self._missing = dict.fromkeys(row.missing)

    def expects(self, number: int) -> bool:
        """Tell whether a STORE is the next, or one that is missing."""
        return number == self.received + 1 or number in self._missing

    @property
    def accepted(self) -> int:
        """The number up to which everything is accepted."""
        return self._number_before(self._waiting)

    @property
    def stored(self) -> int:
        """The number up to which everything is stored."""
        return self._number_before(self._unstored.values())

    def _number_before(self, stores: Iterable[Store]) -> int:
        """Give the number before the first of some STOREs and of those that are missing."""
        first = self.received + 1
        for store in stores:
            if store.router == self.router:
                first = store.number
                break
        return min(first, next(iter(self._missing), first)) - 1

    def is_stored_upto(self, serial: int) -> bool:
        """Tell whether every STORE up to a serial is stored."""
        return next(iter(self._unstored), self.serial + 1) > serial

    # -- in --------------------------------------------------------------------------------------------------

    def take(self, store: Store, now: float) -> None:
        """Take a STORE that is expected."""
        self.received = max(self.received, store.number)
        self._missing.pop(store.number, None)
        self.serial += 1
        store.serial = self.serial
        store.due = now + self._write_delay_s
        self._unstored[store.serial] = store
        self._waiting.append(store)
        self._synced += not store.is_relaxed
        self.bytes += store.bytes

    def take_accepted(self) -> list[Store]:
        """Give the STOREs that are accepted now, in order."""
        taken = []
        waiting = self._waiting
        while waiting and (waiting[0].is_relaxed or waiting[0].serial not in self._unstored):
            taken.append(waiting.popleft())
        return taken

    # -- out -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Have everything that is here written with the next write."""
        self._flush_upto = self.serial

    def wants_write(self, now: float) -> bool:
        """Tell whether a STORE is to be written now."""
        if self._synced or not self._unstored:
            return self._synced > 0
        first, store = next(iter(self._unstored.items()))
        return first <= self._flush_upto or store.due <= now or len(self._unstored) > RELAXED_MAX

    @property
    def next_due(self) -> float | None:
        """When the oldest relaxed STORE is to be written; None without one."""
        store = next(iter(self._unstored.values()), None)
        return None if store is None else store.due

    def segments(self) -> Iterator[tuple[HeldLane, Segment]]:
        """Give what lanes get of everything that is not stored, in order; they do not get what is staged."""
        for store in self._unstored.values():
            if not store.stage:
                yield from store.segments

    def pick(self, now: float) -> list[Store]:
        """Give what the next write takes, in order."""
        if len(self._unstored) > RELAXED_MAX:
            return list(self._unstored.values())
        picked = []
        lanes: dict[int, None] = {}
        for store in reversed(self._unstored.values()):
            if (
                not store.is_relaxed
                or store.due <= now
                or store.serial <= self._flush_upto
                or any(held.lane_id in lanes for held, _ in store.segments)
            ):
                picked.append(store)
                lanes.update((held.lane_id, None) for held, _ in store.segments)
        picked.reverse()
        return picked

    def row_with(self, picked: Iterable[Store], next_block: int) -> StoredRow:
        """Give the row "stored" as it is when these STOREs are on disk."""
        on_disk = {store.number for store in picked if store.router == self.router}
        mine = [store.number for store in self._unstored.values() if store.router == self.router]
        left = sorted([*self._missing, *(number for number in mine if number not in on_disk)])
        # The highest one on disk: what is left at the end was not there yet.
        highest = self.received
        while left and left[-1] == highest:
            left.pop()
            highest -= 1
        return StoredRow(self.router, highest, tuple(left), next_block)

    def note_stored(self, stores: Iterable[Store]) -> None:
        """Note that a write with these STOREs is durable."""
        for store in stores:
            del self._unstored[store.serial]
            self._synced -= not store.is_relaxed
            self.bytes -= store.bytes

    def stats(self) -> dict[str, int]:
        """Give the numbers and sizes."""
        return {
            "received": self.received,
            "accepted": self.accepted,
            "stored": self.stored,
            "unstored": len(self._unstored),
            "unstored_bytes": self.bytes,
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.stored <= self.accepted <= self.received
        assert list(self._unstored) == sorted(self._unstored)
        assert all(serial == store.serial for serial, store in self._unstored.items())
        assert self.bytes == sum(store.bytes for store in self._unstored.values())
        assert self._synced == sum(not store.is_relaxed for store in self._unstored.values())
        assert not self._waiting or not self._waiting[0].is_relaxed
        assert all(number <= self.received for number in self._missing)
