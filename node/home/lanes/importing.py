"""What is known of a lane that is being taken over: what each spool has of it, and how far that was read.

A lane comes from one spool, or from several, its trail (`node.home.lanes.others`), if a worker was given up in the
middle of an import and left. The next home takes over what that worker would have had:

- from the last of the trail, which has all: messages, positions, records, moves, the lease and the note (moves of a
  later one if it has none);
- from each one before it, whose import is unfinished: what came to it, so segments from the mark of the import on,
  what was staged under its own number of hand-overs, and records. What it had copied is in the older ones, too, and
  counts there. Consumers had nothing of such a lane, so nothing in it was settled. Provisional positions there move
  behind the last one of the older spools; a floor that is not below the mark says that all of these was purged;
- records are merged from the latest on, each in front of those that are here, and messages given in their order.

No I/O but to read these spools, no clock; `node.home.lanes.adoption` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.backlog.segment import Segment, segment_key
from node.home.lanes.others import look
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL
from storage.spool import Table

if TYPE_CHECKING:
    from node.home.lanes.copies import EarlySegment
    from node.home.lanes.others import Old, Trail
    from node.home.spool.held_lanes import HeldLane
    from storage.spool import Spool


class Part:
    """What one spool has of a lane that is being taken over."""

    def __init__(self, old: Old) -> None:
        self.name = old.name
        #: Of the lane there; it changes no more when the import begins.
        self.row = old.row
        #: The last position that was found in use, and how far its positions are from the true ones.
        self.last = 0
        self.shift = 0

    def is_as_found(self, row: layout.LaneRow | None) -> bool:
        """Tell whether a row has still the same of the lane, and take it."""
        if row is None or row.handovers != self.row.handovers:
            return False
        is_same = row.importing == self.row.importing or max(row.importing, self.row.importing) <= 0
        self.row = row if is_same else self.row
        return is_same


class Cursor:
    """How far the spools of a lane were read, the latest first."""

    def __init__(self, lane_id: int) -> None:
        self._start = layout.number_key(lane_id)
        #: Which of them is read, and from which key on; None: all were.
        self.part = 0
        self.key: bytes | None = self._start

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of this spool was read."""
        return self.key == self._start

    def skip(self, key: bytes) -> None:
        """Go on behind a key."""
        self.key = key + b"\x00"

    def end(self, parts: int) -> None:
        """Go on with the next of so many spools."""
        self.part += 1
        self.key = self._start if self.part < parts else None


class Import:
    """A lane that is being taken over."""

    def __init__(self, held: HeldLane, trail: Trail, buried: int, early: dict[bytes, EarlySegment]) -> None:
        self.held = held
        #: Where the lane is to be deleted when all of it is here; and what has something of it, the latest first.
        self.trail = trail
        self.parts = [
            Part(old) for at, old in enumerate(trail) if all(one.row.is_unfinished for one in trail[:at])
        ]
        #: What was copied before and not looked at yet, as `EarlyCopy.found`.
        self.early = early
        #: The segments that were buried before: an earlier import, whose keys come again, is among them.
        self.buried = buried
        #: What was counted is in these files.
        self.counting = Cursor(held.lane_id)
        self.counted = (0, 0)
        self.files: dict[int, None] = {}
        #: The positions that were given there; known when all was counted.
        self.positions = layout.Positions(0, 0)
        #: How far segments, what is staged, and records were imported.
        self.reading = Cursor(held.lane_id)
        self.reading_staged = Cursor(held.lane_id)
        self.reading_records = Cursor(held.lane_id)
        #: What was imported, staged by its key here, and its messages.
        self.segments: list[Segment] = []
        self.staged: list[tuple[bytes, Segment]] = []
        self.copied = 0
        #: Its row in MOVES, its lease and its note.
        self.moves: bytes | None = None
        self.lease: bytes | None = None
        self.note: bytes | None = None
        #: Whether a step is being written.
        self.is_under_way = False
        self.next_try = 0.0

    @property
    def name(self) -> str:
        """The spool that had the lane last."""
        return self.parts[0].name

    @property
    def names(self) -> list[str]:
        """All spools that have something of it."""
        return [part.name for part in self.parts]

    @property
    def is_cut(self) -> bool:
        """Whether no spool has what the oldest of these was taking over."""
        return self.parts[-1].row.is_unfinished

    def is_as_found(self, sources: list[Spool]) -> bool:
        """Tell whether each of its spools has still the same of it."""
        rows = [look(source, "", self.held.lane_id) for source in sources]
        return all(
            part.is_as_found(None if old is None else old.row)
            for part, old in zip(self.parts, rows, strict=True)
        )

    def is_taken(self, part: Part, segment: Segment) -> bool:
        """Tell whether messages of a segment in an old spool belong to the lane as it is now."""
        row, newer = part.row, self.parts[: self.parts.index(part)]
        return (
            segment.first >= max(row.floor, row.importing)
            and segment.live > 0
            and row.generation == self.held.lane.generation
            # Who empties a lane that it takes over empties what is still to come.
            and not any(one.row.floor >= one.row.importing for one in newer)
        )

    def lay_out(self, sources: list[Spool]) -> None:
        """Learn which positions were given in all spools together, from the oldest on."""
        laid = layout.Positions(0, 0)
        for part, source in reversed(list(zip(self.parts, sources, strict=True))):
            given = positions_of(source, self.held.lane_id)
            tail = max(given.given, part.last, part.row.floor - 1, part.row.importing - 1)
            if part.row.importing == PROVISIONAL + 1 and part is not self.parts[-1]:
                part.shift = laid.given - PROVISIONAL
                laid = laid._replace(given=tail + part.shift)
                continue
            if self.is_cut and part is self.parts[-1]:
                tail = max(
                    tail, part.row.importing
                )  # what is there stays where it is, and is not provisional
            # What consumers may have seen, and that home did not store before it ended, is lost.
            lost = max(given.delivered - tail, 0)
            gaps = (*given.gaps, (tail + 1, tail + lost)) if lost else given.gaps
            laid = layout.Positions(tail + lost, given.delivered, gaps)
        self.positions = laid


def positions_of(spool: Spool, lane_id: int) -> layout.Positions:
    """Give the positions that a spool notes for a lane."""
    value = spool.get(Table.LANES, layout.positions_key(lane_id))
    return layout.Positions(0, 0) if value is None else layout.unpack_positions(value)


def staged_of(
    spool: Spool, row: layout.LaneRow, held: HeldLane, start: bytes, limit: int | None = None
) -> list[tuple[bytes, Segment | None]]:
    """Give what a spool has staged for a lane, from a key on; None for what nobody takes.

    That is what an earlier generation left over, and what an unfinished import has copied.
    """
    staged: list[tuple[bytes, Segment | None]] = []
    for key, value in spool.scan(Table.STAGED, start, layout.lane_end(held.lane_id), limit):
        generation, packed = layout.unpack_staged(value)
        is_its_own = not row.is_unfinished or layout.unpack_staged_key(key).handovers == row.handovers
        is_taken = is_its_own and generation == held.lane.generation
        segment = Segment.unpack(segment_key(held.lane_id, 0), packed, None) if is_taken else None
        staged.append((key, segment))
    return staged
