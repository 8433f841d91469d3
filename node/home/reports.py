"""COMMITTED, HOME and RECORDS: what the router is told of what is accepted, stored and held, and of producers.

Totals are absolute. They and the figures of the spool cover exactly the accepted STOREs: the router counts
what it sent and what is not accepted as under way, so no limit is ever exceeded, not by one message.

No clock; the size of the spool is asked of the port. `node.home.home` uses this.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors, wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import CommittedFrame, HomeFrame, RecordsFrame, SpoolFigures
from node.home.spool.writing import FULL_RETRY_S, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.homes import GatherFrame, Run
    from node.home.lanes.outbox import Outbox
    from node.home.parts import HomeParts
    from node.home.spool.writing import Writing
    from storage.spool import Spool

#: Totals that changed by what consumers settle are told so often at most.
REPORT_INTERVAL_S: Final = 0.02
#: The size of the spool is asked for so often at most.
SIZE_INTERVAL_S: Final = 0.1


class Reports:
    """What the router knows of a home, and when it is told more."""

    def __init__(self, spool: Spool, parts: HomeParts, space: DiskSpace, incarnation: int) -> None:
        self._spool = spool
        self._lanes = parts.lanes
        self._blocks = parts.blocks
        self._pending = parts.pending
        self._staging = parts.staging
        self._adoptions = parts.adoptions
        self._serving = parts.serving
        self._space = space
        self._incarnation = incarnation
        #: Whether the router knows our lanes: HOME was sent.
        self.is_known = False
        #: What the router knows: the numbers up to which everything is accepted, and stored; the allowance in force,
        #: whether more is wanted, and whether there is no room.
        self._told = [0, 0, 0, False, False]
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
        self._told[:] = (0, 0, 0, False, False)

    def note_freed(self) -> None:
        """Note that the spool may have become smaller."""
        self._is_freed = True

    def home(self, router: int, number: int, now: float) -> list[bytes]:
        """Give the HOME that answers a complete LANES."""
        self.is_known = True
        stored = self._pending.stored
        self._told[:2] = (stored, stored)
        totals = [held.totals() for held in self._lanes]
        self._lanes.changed.clear()
        used, fill = self._blocks.files.used(), self._blocks.newest_file_bytes()
        spool = self._figures(now, used, (), fill, self._staging.stages)
        return HomeFrame(self._incarnation, router, number, stored, totals, spool).frames()

    def committed(self, now: float) -> list[bytes] | None:
        """Give a COMMITTED if there is something to tell now."""
        if not self.is_known:
            return None
        told = [
            *(self._pending.accepted, self._pending.stored, self._serving.allowance),
            *(self._serving.lacks_allowance, self._space.is_full),
        ]
        is_changed = self._lanes.changed or self._blocks.files.has_changed
        may_wait = now < self._next_at and not self._lanes.is_urgent
        if told == self._told and (not is_changed or may_wait) and not self._is_smaller(now):
            return None
        self._told[:] = told
        self._lanes.is_urgent = False
        if is_changed:
            self._next_at = now + REPORT_INTERVAL_S
        totals = [held.totals() for held in self._lanes.changed]
        self._lanes.changed.clear()
        spool = self._figures(now, *self._blocks.files.take_changes())
        return [wire.COMMITTED, encode(CommittedFrame(self._incarnation, told[0], told[1], totals, spool))]

    def _figures(
        self,
        now: float,
        used: Sequence[Run],
        freed: Sequence[Run],
        newest_bytes: int = 0,
        stages: Sequence[int] = (),
    ) -> SpoolFigures:
        return SpoolFigures(
            used,
            freed,
            newest_bytes,
            self.disk_bytes(now),
            self._lanes.unacked,
            len(self._adoptions.imports),
            *self._staging.totals,
            self._serving.allowance,
            self._serving.wanted,
            self._lanes.aside_count,
            self._space.bytes,
            stages,
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


class DiskSpace:
    """Whether the disk has room for anything new, as the router and operators are told.

    It is *full* from the commit on that leaves room only for what is under way (`storage.headroom`), or from one that
    found none, until a commit leaves more. While it is full and nothing else is written, `Writing` looks again and
    again.
    """

    def __init__(self, spool: Spool, writing: Writing, outbox: Outbox) -> None:
        self._spool = spool
        self._writing = writing
        self._outbox = outbox
        #: Whether the router is to admit nothing new.
        self.is_full = False
        #: It stays so until then, however fast consumers make room and publishers take it.
        self._until = 0.0

    @property
    def bytes(self) -> int:
        """How many bytes of messages the router may have under way; 0 if it is to admit nothing new."""
        return 0 if self.is_full else max(self._spool.room_bytes, 1)

    def written(self, now: float) -> None:
        """A commit that was not only to free space is durable."""
        if not self._spool.room_bytes:
            self.lacks("there is room only for what is under way", now)
        if self.is_full and now < self._until:
            self._writing.look_at = self._until
            return
        self._writing.look_at = None
        if self.is_full:
            self.is_full = False
            self._outbox.event("info", "SYSTEM_AD_DISK_FULL_CLEAR", "the disk takes messages again")

    def lacks(self, detail: str, now: float) -> None:
        """There is no room."""
        self._until = now + FULL_RETRY_S
        if not self.is_full:
            self.is_full = True
            text = f"new messages are refused ({errors.DISK_FULL}) until there is room: {detail}"
            self._outbox.event("error", "SYSTEM_AD_DISK_FULL", text)


class RecordsForgotten(NamedTuple):
    """The records of a producer whose name is given up are off the disk."""

    answer: RecordsFrame


class ProducerLookups:
    """GATHER: what all lanes here know of a producer, told when everything that came before is stored."""

    def __init__(self, parts: HomeParts) -> None:
        self._pending = parts.pending
        self._records = parts.records
        self._writing = parts.writing
        self._adoptions = parts.adoptions
        self._outbox = parts.outbox
        #: With the serial of the STORE before each, in order.
        self.waiting: deque[tuple[int, GatherFrame]] = deque()

    def clear(self) -> None:
        """Forget them: their router is gone."""
        self.waiting.clear()

    def take(self, header: GatherFrame) -> None:
        """Take a GATHER; everything before it is written now."""
        self._pending.flush()
        self.waiting.append((self._pending.serial, header))
        self.answer()

    def answer(self) -> None:
        """Answer those for which everything before them is stored, and every lane is here with its records."""
        while (
            self.waiting and not self._adoptions.is_busy and self._pending.is_stored_upto(self.waiting[0][0])
        ):
            _, header = self.waiting.popleft()
            known = self._records.gather(header.producer)
            answer = RecordsFrame(self._outbox.incarnation, header.reference, known)
            if header.forget:
                self._records.forget(header.producer)
                self._writing.add(Task(RecordsForgotten(answer)))
            else:
                self._outbox.say(answer)

    def forgotten(self, event: RecordsForgotten) -> None:
        """Answer with what was known of a producer."""
        self._outbox.say(event.answer)
