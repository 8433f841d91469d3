"""Adoption: a lane that another worker has is taken over with everything it has (`worker scale`).

When the number of workers shrinks, the endpoints of the leaving workers get new homes; when it grows, or by load,
some are moved. A home that is told of a lane that it does not have looks into the spools of the other workers. If
one has it, the lane is there at once for consumers and new messages; these wait, under provisional positions above
all true ones. When the old worker has parted with the lane (`node.home.lanes.parting`), or does not run any more,
its messages are counted, so that the figures of the lane are complete. By then it is known which positions it gave,
and what waits gets the next ones, in one transaction: positions stay dense, and nobody has seen a provisional one.
What comes from then on gets its position at once. Then the old messages are copied in steps, with positions, ages,
attempts, spool files, records of producers and moves under way, but for what was copied before
(`node.home.lanes.copies`); the row of the lane says last that all of it is here. Then the old messages are
delivered, and after them the new ones, and the row of the lane in the old spool is deleted as soon as there is room
for that. Until then the row here says that the lane is doubled, so that the next process goes on with it.

An interrupted import begins again: what was copied lies below the position that the mark names, and is deleted like
any segment that belongs to nobody. A lane that was created again meanwhile (another generation) brings its
positions and what producers sent, and no messages. Each hand-over has a number, so that of two spools that have a
lane the right one is chosen. While a home waits it leaves a claim at the old spool, so that a worker that starts
there again keeps the lane instead of purging it.

No clock; other spools are reached through `Others`. `node.home.home` uses this.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from node.backlog.segment import Segment, segment_key
from node.home.spool import layout
from node.home.spool.held_lanes import NO_SEGMENTS, PROVISIONAL
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from node.home.lanes.copies import Copies, EarlyCopies, EarlySegment
    from node.home.lanes.moves import Moves
    from node.home.lanes.others import Old, Others
    from node.home.lanes.outbox import Outbox
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.records import Records
    from node.home.spool.staging import Staging
    from node.home.spool.writing import Writing
    from storage.spool import Change, Spool

_TABLES: Final = (Table.SEGMENTS, Table.STATES)


class Placing:
    """One lane on its way from provisional to true positions.

    Positions of a lane are dense, and stay when the lane moves to another home. The old home may assign more of them
    until it has ended, so what arrives here meanwhile has provisional positions, above all final ones. These messages
    move down behind the last position assigned there, in one transaction with the mark of the import. On disk a
    position is only part of the key of a segment, so no segment is packed again.

    The disk comes first: the changes are computed from what is on disk, or in the same write, and memory follows when
    they are durable. A failed write changes nothing. Messages that arrive during the write get provisional positions
    and are moved in memory. Segments that were emptied or deleted during the write have their new key by then, and are
    deleted under that one.
    """

    def __init__(self, held: HeldLane, writing: Writing, old: layout.Positions, last: int) -> None:
        """Plan it; `last` is the last position in use at the old home, or below which all was purged."""
        self._held = held
        self._writing = writing
        self._old = old
        self._tail = max(old.given, last)
        #: What consumers may have seen, and the old home did not store before it ended, is lost.
        self._lost = max(old.delivered - self._tail, 0)
        self._tail += self._lost
        #: Key on disk -> the one that takes its place.
        self._keys: dict[bytes, bytes] = {}

    def changes(self) -> list[Change]:
        """Give the changes as things are when they are written."""
        held = self._held
        if held.is_gone:
            return []
        written = [one for one in self._segments() if self._writing.is_written(one)]
        self._keys = {one.key(): segment_key(one.lane_id, self._placed(one.first)) for one in written}
        changes: list[Change] = [(table, key, None) for key in self._keys for table in _TABLES]
        for segment, key in zip(written, self._keys.values(), strict=True):
            changes.append((Table.SEGMENTS, key, segment.pack()))
            if segment.has_state:
                changes.append((Table.STATES, key, segment.pack_state()))
        changes.append(held.row_change(importing=self._tail + 1, floor=self._floor()))
        row = layout.pack_positions(self._positions())
        changes.append((Table.LANES, layout.positions_key(held.lane_id), row))
        return changes

    def done(self) -> None:
        """Take note that the changes are durable."""
        held = self._held
        self._writing.rename(self._keys)
        if held.is_gone:
            return
        held.floor = self._floor()
        for segment in self._segments():
            segment.first = self._placed(segment.first)
        held.tail, held.stored = self._placed(held.tail), self._placed(held.stored)
        held.accepted = self._placed(held.accepted)
        if held.lane.retained is not None:
            held.lane.retained.stored_upto = held.stored
        held.importing = self._tail + 1
        row = self._positions()
        held.note_positions(row)
        held.gaps = row.gaps
        held.lane.note_delivered(row.delivered)

    def _segments(self) -> list[Segment]:
        """Give everything that the lane has here, accepted or not."""
        return list(dict.fromkeys([*self._held.waiting, *self._writing.unstored(self._held)]))

    def _placed(self, position: int) -> int:
        return position - PROVISIONAL + self._tail

    def _floor(self) -> int:
        floor = self._held.floor
        return self._placed(floor) if floor > PROVISIONAL else floor

    def _positions(self) -> layout.Positions:
        gaps = self._old.gaps
        if self._lost:
            gaps = (*gaps, (self._tail - self._lost + 1, self._tail))
        return layout.Positions(self._tail, self._old.delivered, gaps)


#: An old worker is looked for again after this time, one that is about to part with the lane sooner.
RETRY_S: Final = 0.25
PARTING_RETRY_S: Final = 0.01
#: Segments, and about so many bytes of blocks, that one write imports.
STEP_SEGMENTS: Final = 200
STEP_BYTES: Final = 4 << 20
#: Records of producers that one write imports.
STEP_RECORDS: Final = 2_000
#: Rows that are counted, or early copies that are deleted, at a time.
SCAN_ROWS: Final = 2_000


class _Import:
    """A lane that is being taken over."""

    def __init__(self, held: HeldLane, name: str, buried: int, early: dict[bytes, EarlySegment]) -> None:
        self.held = held
        self.name = name
        #: What was copied before and not looked at yet, as `EarlyCopy.found`.
        self.early = early
        #: The segments that were buried before: an earlier import, whose keys come again, is among them.
        self.buried = buried
        #: Key behind the last segment that was counted; None: all were. What was counted is in these files.
        self.next_count: bytes | None = layout.number_key(held.lane_id)
        self.counted = (0, 0)
        #: The last position that was found in use.
        self.last = 0
        self.files: dict[int, None] = {}
        #: Key behind the last segment, and behind the last record, that was imported; None: all were.
        self.next_segment: bytes | None = layout.number_key(held.lane_id)
        self.next_record: bytes | None = layout.number_key(held.lane_id)
        #: Key behind the last staged segment that was imported, None: all were; and what was, by its key here.
        self.next_staged: bytes | None = layout.number_key(held.lane_id)
        self.staged: list[tuple[bytes, Segment]] = []
        #: What was imported, in order, and its messages.
        self.segments: list[Segment] = []
        self.copied = 0
        #: Its row in MOVES, its lease and its note.
        self.moves: bytes | None = None
        self.lease: bytes | None = None
        self.note: bytes | None = None
        #: Whether a step is being written.
        self.is_under_way = False
        self.next_try = 0.0


class Sources(NamedTuple):
    """Where lanes come from."""

    others: Others
    copies: Copies
    early: EarlyCopies


class ImportStepped(NamedTuple):
    """A step of an import is durable."""

    one: _Import


class LanePlaced(NamedTuple):
    """What came while a lane was taken over has its true positions on disk."""

    one: _Import
    placing: Placing


class LaneImported(NamedTuple):
    """All of a lane is on our disk."""

    one: _Import


class Adoptions:
    """The lanes that a home takes over from workers that left."""

    def __init__(
        self,
        sources: Sources,
        lanes: HeldLanes,
        blocks: Blocks,
        records: Records,
        writing: Writing,
        moves: Moves,
        staging: Staging,
        outbox: Outbox,
    ) -> None:
        #: Where they come from.
        self.others, self._copies, self._early = sources
        self._lanes = lanes
        self._blocks = blocks
        self._records = records
        self._writing = writing
        self._moves = moves
        self._staging = staging
        self._outbox = outbox
        #: Lane -> its import.
        self.imports: dict[int, _Import] = {}
        #: Lanes that are here with all they have -> the spool where they are to be deleted; and when that is tried.
        self._doubled: dict[HeldLane, str] = {}
        self._next_deletion = 0.0
        self._now = 0.0
        self._wall_ms = 0
        self._counts = dict.fromkeys(("lanes_adopted", "messages_adopted"), 0)

    def __len__(self) -> int:
        """Give the number of lanes that are being taken over."""
        return len(self.imports)

    @property
    def is_busy(self) -> bool:
        """Whether records of producers may be missing, because a lane is not taken over yet."""
        return bool(self.imports)

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do, perhaps not yet."""
        return bool(self.imports or self._doubled)

    # -- begin -----------------------------------------------------------------------------------------------

    def begin(self, held: HeldLane, old: Old) -> None:
        """Take over a lane, which is marked as importing, from a spool; consumers stand by if it is leased."""
        assert held.importing
        if old.lease is not None and old.row.generation == held.lane.generation:
            held.lane.leasing.load(layout.unpack_lease(old.lease), self._now)
        self.others.claim(old.name, held.lane_id)
        early = self._early.take(held.lane_id, old.name, self._now)
        self.imports[held.lane_id] = _Import(held, old.name, self._writing.buried, early)

    def end(self, held: HeldLane, old: Old | None) -> None:
        """Go on with a lane that is here with all it has, and is perhaps still where it was copied from."""
        if old is not None and old.row.handovers + 1 == held.handovers:
            self._doubled[held] = old.name
        else:
            held.is_doubled = False
            self._lanes.rows[held] = None

    def let_go(self, held: HeldLane) -> None:
        """Take a lane over no further; the next start goes on, for the old spool has it and its claim."""
        one = self.imports.pop(held.lane_id, None)
        if one is not None:
            self._drop_early(one)
            self._close_unneeded()

    def drop(self, held: HeldLane, now: float) -> None:
        """Forget a lane that is deleted."""
        one = self.imports.pop(held.lane_id, None)
        if one is None:
            return
        self._drop_early(one)
        for _, segment in one.staged:
            self._writing.discard(segment, now)
        for segment in (*one.segments, *held.waiting):
            self._writing.discard(segment, now)
        self._forget_count(one)
        if not self.others.has_left(one.name):
            self.others.delete(one.name, held.lane_id, held.handovers - 1)
        self.others.unclaim(one.name, held.lane_id)
        self._close_unneeded()
        text = f"lane {held.lane_id} was deleted before it came from spool {one.name}"
        self._outbox.event("warning", "lane_not_adopted", text)

    def _drop_early(self, one: _Import) -> None:
        for early in one.early.values():
            self._writing.discard(early.segment, self._now)
        one.early = {}

    # -- steps -----------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Give when the next step is to be done; None while one is under way, or if nothing is imported."""
        if any(one.is_under_way for one in self.imports.values()):
            return None
        times = [one.next_try for one in self.imports.values()]
        if self._doubled:
            times.append(self._next_deletion)
        return min(times, default=None)

    def work(self, now: float, wall_ms: int) -> None:
        """Do the next step; what is not counted yet comes first, because the router may wait for it."""
        self._now, self._wall_ms = now, wall_ms
        if any(one.is_under_way for one in self.imports.values()):
            return
        if self._doubled and self._next_deletion <= now:
            self._delete_doubled()
        due = [one for one in self.imports.values() if one.next_try <= now]
        one = min(due, key=lambda one: one.next_count is None, default=None)
        if one is None:
            return
        if one.held.lane_id in self._early.ending:
            one.buried = self._writing.buried + 1
        may_begin = one.next_count is not None or self._writing.cleared >= one.buried
        source = self.others.source(one.name, one.held.lane_id) if may_begin else None
        if source is None:
            # The others may be somewhere else.
            one.next_try = now + (RETRY_S if self.others.has_left(one.name) else PARTING_RETRY_S)
            self.imports[one.held.lane_id] = self.imports.pop(one.held.lane_id)
        elif one.next_count is not None:
            self._count(one, source, one.next_count)
        else:
            self._import(one, source)

    def _count(self, one: _Import, source: Spool, start: bytes) -> None:
        """Count some more of what the old spool has of a lane; nothing changes there any more."""
        row = _row_of(source, one.held.lane_id)
        found = source.scan(Table.SEGMENTS, start, layout.lane_end(one.held.lane_id), SCAN_ROWS)
        if start == layout.number_key(one.held.lane_id):
            self._count_staged(one, source)
        messages, size = one.counted
        for key, value in found:
            segment = Segment.unpack(key, value, source.get(Table.STATES, key))
            one.last = max(one.last, segment.last)
            if _is_taken(segment, row, one.held):
                messages += segment.live
                size += segment.live_bytes
                one.files[segment.file] = None
        one.counted = messages, size
        one.next_count = found[-1][0] + b"\x00" if found else None
        if found:
            return
        one.last = max(one.last, row.floor - 1)
        one.held.left = one.counted
        for file in one.files:
            self._blocks.files.join(file)
        self._lanes.changed[one.held] = None

    def _count_staged(self, one: _Import, source: Spool) -> None:
        """Count what the old spool has staged for a lane."""
        for _, segment in _staged_of(source, one.held, layout.number_key(one.held.lane_id)):
            if segment is not None:
                messages, size = one.counted
                one.counted = messages + segment.live, size + segment.live_bytes
                one.files[segment.file] = None

    def _forget_count(self, one: _Import) -> None:
        """The messages of a lane are here, or gone with it: what was counted counts no more."""
        if one.held.left is not None:
            for file in one.files:
                self._blocks.files.leave(file)
        one.held.left = None

    def _import(self, one: _Import, source: Spool) -> None:
        one.is_under_way = True
        changes: list[Change] = []
        if one.held.is_provisional:
            place = Placing(one.held, self._writing, _positions_of(source, one.held.lane_id), one.last)
            self._writing.add(Task(LanePlaced(one, place), late_changes=place.changes))
            return
        if one.next_segment is not None:
            changes = self._copy_segments(one, source, one.next_segment)
            if not changes:
                one.is_under_way = False  # all of it is here: nobody has to wait for the disk
                return
        elif one.next_staged is not None:
            changes = self._copy_staged(one, source, one.next_staged)
        elif one.next_record is not None:
            self._copy_records(one, source, one.next_record)
        elif one.early:
            changes = self._delete_early(one)
        else:
            one.moves = source.get(Table.MOVES, layout.number_key(one.held.lane_id))
            row = _row_of(source, one.held.lane_id)
            if row.generation == one.held.lane.generation:
                keys = layout.lease_key(one.held.lane_id), layout.note_key(one.held.lane_id)
                one.lease, one.note = (source.get(Table.LANES, key) for key in keys)
            self._writing.add(Task(LaneImported(one), late_changes=partial(_last_changes, one)))
            return
        self._writing.add(Task(ImportStepped(one), changes))

    def placed(self, event: LanePlaced) -> None:
        """Take note that the true positions of a lane are durable."""
        event.placing.done()
        event.one.is_under_way = False

    def stepped(self, event: ImportStepped) -> None:
        """Take note that a step is durable; the next one may begin."""
        event.one.is_under_way = False

    def _copy_segments(self, one: _Import, source: Spool, start: bytes) -> list[Change]:
        """Give the changes that import the next segments, with their blocks."""
        lane_id = one.held.lane_id
        row = _row_of(source, lane_id)
        positions = _positions_of(source, lane_id)
        # Whoever parts with a lane, or stops in order, writes down what was tried.
        is_exact = row.importing == layout.PARTED or source.get(Table.META, layout.KEY_CLEAN)
        tried = 0 if is_exact else positions.delivered
        changes: list[Change] = []
        found = source.scan(Table.SEGMENTS, start, layout.lane_end(lane_id), STEP_SEGMENTS)
        for at, (key, value) in enumerate(found):
            if at and sum(len(change[2] or b"") for change in changes) >= STEP_BYTES:
                break
            one.next_segment = key + b"\x00"
            segment = Segment.unpack(key, value, source.get(Table.STATES, key))
            if _is_taken(segment, row, one.held):
                segment.note_unsure(tried)
                changes += self._copy_segment(one, source, segment, value)
        if not found:
            one.next_segment = None
        return changes

    def _copy_staged(self, one: _Import, source: Spool, start: bytes) -> list[Change]:
        """Give the changes that import the next staged segments, with their blocks."""
        changes: list[Change] = []
        found = _staged_of(source, one.held, start, STEP_SEGMENTS)
        for at, (key, segment) in enumerate(found):
            if at and sum(len(change[2] or b"") for change in changes) >= STEP_BYTES:
                break
            one.next_staged = key + b"\x00"
            if segment is None:
                continue
            changes += self._copies.add(one.name, source, segment) or ()
            self._blocks.staged[segment] = key
            one.staged.append((key, segment))
            one.copied += segment.live
            value = layout.pack_staged(one.held.lane.generation, segment.pack())
            changes.append((Table.STAGED, key, value))
        if not found:
            one.next_staged = None
        return changes

    def _copy_segment(self, one: _Import, source: Spool, segment: Segment, value: bytes) -> list[Change]:
        """Give the changes that import a segment, and its block unless it is here."""
        key = segment.key()
        early = one.early.pop(key, None)
        changes: list[Change] = []
        if early is not None and early.there == value:
            self._copies.go_on(early.segment, segment)
        else:
            changes += () if early is None else self._copies.take_out(early.segment)
            changes += self._copies.add(one.name, source, segment) or ()
        one.segments.append(segment)
        one.copied += segment.live
        packed = segment.pack()
        if early is None or early.here != packed:
            changes.append((Table.SEGMENTS, key, packed))
        if early is None or segment.has_state:
            changes.append((Table.STATES, key, segment.pack_state()))
        return changes

    def _delete_early(self, one: _Import) -> list[Change]:
        """Give the changes that delete some of what was copied before and is not in the old spool any more."""
        changes: list[Change] = []
        for key in list(islice(one.early, SCAN_ROWS)):
            deleted = self._copies.take_out(one.early.pop(key).segment)
            changes += [(Table.SEGMENTS, key, None), (Table.STATES, key, None), *deleted]
        return changes

    def _copy_records(self, one: _Import, source: Spool, start: bytes) -> None:
        """Take the next records of producers over; they are written like any record that changed."""
        found = source.scan(Table.RECORDS, start, layout.lane_end(one.held.lane_id), STEP_RECORDS)
        for key, value in found:
            self._records.adopt(key, value)
        one.next_record = found[-1][0] + b"\x00" if found else None

    def finish(self, event: LaneImported) -> None:
        """Let the lane have what was imported, and after that what came meanwhile."""
        one, held = event.one, event.one.held
        if held.is_gone:
            return
        del self.imports[held.lane_id]
        held.importing, held.is_doubled = 0, True
        held.take_note(one.note)
        self._doubled[held] = one.name
        if one.lease is not None:
            # It may have gone on after it was looked at, as long as the old worker ran.
            held.lane.leasing.load(layout.unpack_lease(one.lease), self._now)
        else:
            held.lane.leasing.drop(self._wall_ms)
        for segment in one.segments:
            self._give(held, segment, is_old=True)
        waiting, held.waiting = held.waiting, NO_SEGMENTS
        for segment in waiting:
            self._give(held, segment, is_old=False)
        for key, segment in one.staged:
            self._count_block(segment)
            self._staging.load(held, key, layout.unpack_staged_key(key), segment)
        self._forget_count(one)
        if one.moves is not None:
            self._moves.load(held.lane_id, one.moves)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._lanes.refresh(held)
        self._counts["lanes_adopted"] += 1
        text = f"lane {held.lane_id} came from spool {one.name} and has {held.lane.messages} messages"
        self._outbox.event("info", "SYSTEM_AD_LANE_ADOPTED", text)

    def _give(self, held: HeldLane, segment: Segment, *, is_old: bool) -> None:
        if segment.first < held.floor:
            self._writing.discard(segment, self._now)
            return
        self._count_block(segment)
        held.add(segment.live, segment.live_bytes)
        if is_old:
            self._counts["messages_adopted"] += segment.live
            held.lane.load(segment, self._now, self._wall_ms)
        elif segment.first < held.lane.next_position:
            # It was stored before a restart in the middle of the import.
            held.lane.load(segment, self._now, self._wall_ms)
        else:
            held.lane.append(segment, self._now, self._wall_ms)

    def _count_block(self, segment: Segment) -> None:
        block = self._blocks.get(segment.block)
        assert block is not None
        if not block.is_counted:
            block.size = sum(segment.sizes)
            self._blocks.count(block)

    def _delete_doubled(self) -> None:
        """Delete the next lane that is here in the spool that it came from, and the spool with its last lane."""
        held, name = next(iter(self._doubled.items()))
        del self._doubled[held]
        if not self.others.delete(name, held.lane_id, held.handovers - 1):
            self._doubled[held] = name
            self._next_deletion = self._now + RETRY_S
            return
        self._close_unneeded()
        held.is_doubled = False
        if not held.is_gone:
            self._lanes.rows[held] = None

    def _close_unneeded(self) -> None:
        """Close the spools in which nothing is to be done any more."""
        names = [*self._doubled.values(), *(one.name for one in self.imports.values())]
        names += [one.name for one in self._early.by_lane.values()]
        needed = dict.fromkeys(names)
        self.others.keep_only(needed)
        self._copies.keep_only(needed)

    def stats(self) -> dict[str, int]:
        """Give counters, how many lanes are being taken over, and how many messages of these are still to come."""
        importing = len(self.imports) + len(self._doubled)
        left = sum(one.counted[0] - one.copied for one in self.imports.values())
        return {**self._counts, "lanes_importing": importing, "messages_importing": left}

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for lane_id, one in self.imports.items():
            assert self._lanes.get(lane_id) is one.held
            assert one.held.importing
        assert all(held.is_doubled for held in self._doubled)


def _last_changes(one: _Import) -> list[Change]:
    """Give the changes that make an import complete."""
    copied = (
        (Table.MOVES, layout.number_key(one.held.lane_id), one.moves),
        (Table.LANES, layout.lease_key(one.held.lane_id), one.lease),
        (Table.LANES, layout.note_key(one.held.lane_id), one.note),
    )
    return [one.held.row_change(importing=layout.COPIED), *[row for row in copied if row[2] is not None]]


def _row_of(source: Spool, lane_id: int) -> layout.LaneRow:
    return layout.unpack_lane(source.get(Table.LANES, layout.number_key(lane_id)) or b"")


def _positions_of(spool: Spool, lane_id: int) -> layout.Positions:
    """Give the positions that a spool notes for a lane."""
    value = spool.get(Table.LANES, layout.positions_key(lane_id))
    return layout.Positions(0, 0) if value is None else layout.unpack_positions(value)


def _staged_of(
    spool: Spool, held: HeldLane, start: bytes, limit: int | None = None
) -> list[tuple[bytes, Segment | None]]:
    """Give what a spool has staged for a lane, from a key on; None for what an earlier generation left over."""
    staged: list[tuple[bytes, Segment | None]] = []
    for key, value in spool.scan(Table.STAGED, start, layout.lane_end(held.lane_id), limit):
        generation, packed = layout.unpack_staged(value)
        is_current = generation == held.lane.generation
        segment = Segment.unpack(segment_key(held.lane_id, 0), packed, None) if is_current else None
        staged.append((key, segment))
    return staged


def _is_taken(segment: Segment, row: layout.LaneRow, held: HeldLane) -> bool:
    """Tell whether messages of a segment in the old spool belong to the lane as it is now."""
    return segment.first >= row.floor and segment.live > 0 and row.generation == held.lane.generation
