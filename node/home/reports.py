"""COMMITTED and HOME: what the router is told of what is accepted, stored and held.

Totals are absolute. They and the figures of the spool cover exactly the accepted STOREs: the router counts
what it sent and what is not accepted as under way, so no limit is ever exceeded, not by one message.

No clock; the size of the spool is asked of the port. `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium import wire

if TYPE_CHECKING:
    from node.home.disk_room import DiskRoom
    from node.home.rooms import Rooms
    from storage.spool import Spool

#: Totals that changed by what consumers settle are told so often at most.
REPORT_INTERVAL_S: Final = 0.02
#: The size of the spool is asked for so often at most.
SIZE_INTERVAL_S: Final = 0.1

_encode = msgspec.msgpack.Encoder().encode


class Reports:
    """What the router knows of a home, and when it is told more."""

    def __init__(self, spool: Spool, rooms: Rooms, room: DiskRoom, incarnation: int) -> None:
        self._spool = spool
        self._lanes = rooms.lanes
        self._blocks = rooms.blocks
        self._stream = rooms.stream
        self._staging = rooms.staging
        self._adoptions = rooms.adoptions
        self._serving = rooms.serving
        self._aside = rooms.changes.aside
        self._room = room
        self._incarnation = incarnation
        #: Whether the router knows our lanes: HOME was sent.
        self.is_known = False
        #: Whether something was accepted or stored that the router does not know.
        self._told = (0, 0)
        #: The allowance that the router knows to be in force, whether it knows that more is wanted, and that there is
        #: no room.
        self._state_told = (0, False, False)
        #: Changed totals are told again then at the earliest.
        self._next_at = 0.0
        #: Bytes of the spool, when they are asked for again, and what the router was told.
        self._size = 0
        self._size_at = 0.0
        self._size_told = 0
        #: Whether something was deleted since the size was told: nothing else may follow that tells it.
        self._is_freed = False

    def reset(self) -> None:
        """Begin with another router: it knows nothing."""
        self.is_known = False
        self._told = (0, 0)
        self._state_told = (0, False, False)

    def note_freed(self) -> None:
        """Note that the spool may have become smaller."""
        self._is_freed = True

    def home(self, router: int, number: int, now: float) -> list[bytes]:
        """Give the HOME that answers a complete LANES."""
        self.is_known = True
        stored = self._stream.stored
        self._told = (stored, stored)
        totals = [held.totals() for held in self._lanes]
        self._lanes.changed.clear()
        used, fill = self._blocks.files.used(), self._blocks.newest_file_bytes()
        spool = (used, (), fill, *self._sums(now), self._staging.stages)
        return [wire.HOME, _encode((self._incarnation, router, number, stored, totals, spool))]

    def committed(self, now: float) -> list[bytes] | None:
        """Give a COMMITTED if there is something to tell now."""
        if not self.is_known:
            return None
        numbers = (self._stream.accepted, self._stream.stored)
        is_changed = self._lanes.changed or self._blocks.files.has_changed
        may_wait = now < self._next_at and not self._lanes.is_urgent
        state = (self._serving.allowance, self._serving.lacks_allowance, self._room.is_full)
        if (
            (numbers, state) == (self._told, self._state_told)
            and (not is_changed or may_wait)
            and not self._is_smaller(now)
        ):
            return None
        self._told, self._state_told = numbers, state
        self._lanes.is_urgent = False
        if is_changed:
            self._next_at = now + REPORT_INTERVAL_S
        totals = [held.totals() for held in self._lanes.changed]
        self._lanes.changed.clear()
        spool = (*self._blocks.files.take_changes(), 0, *self._sums(now))
        return [wire.COMMITTED, _encode((self._incarnation, *numbers, totals, spool))]

    def _sums(self, now: float) -> tuple[int, ...]:
        """Give what is told of the home as a whole, as the router's `HomeUsage` takes it."""
        allowance = self._serving.allowance, self._serving.wanted
        return (
            self.disk_bytes(now),
            self._lanes.unacked,
            len(self._adoptions),
            *self._staging.totals,
            *allowance,
            len(self._aside),
            self._room.bytes,
        )

    def _is_smaller(self, now: float) -> bool:
        """Tell whether the router must learn that the spool became smaller, although nothing else changed."""
        if not self._is_freed or now < self._size_at:
            return False
        self._is_freed = False
        told = self._size_told
        return self.disk_bytes(now) < told

    def next_due(self) -> float | None:
        """Give when changed totals, or the size, are to be told; None: nothing changed."""
        if not self.is_known:
            return None
        dues = [self._size_at] if self._is_freed else []
        if self._lanes.changed or self._blocks.files.has_changed:
            dues.append(self._next_at)
        return min(dues, default=None)

    def disk_bytes(self, now: float) -> int:
        """Give the bytes of the spool on disk."""
        if now >= self._size_at:
            self._size = self._spool.size_bytes()
            self._size_at = now + SIZE_INTERVAL_S
        self._size_told = self._size
        return self._size
