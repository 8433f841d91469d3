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

A worker may be given up in the middle of an import, and leave. What there is of the lane is in several spools then, and
the next home takes it over from all of them (`node.home.lanes.importing`). It deletes the lane there, the oldest first,
when all of it is here, so whoever is interrupted finds the others again. If the spool is missing that the oldest of
them was importing from, what there is is taken over, operators are told, and nothing is deleted there: positions go on
above the mark. A lane that went on while it was waited for, because its worker came back, is looked for again.

No clock; other spools are reached through `Others`. `node.home.home` uses this.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from node.backlog.segment import Segment, segment_key
from node.home.lanes.importing import Import, Part, positions_of, staged_of
from node.home.spool import layout
from node.home.spool.held_lanes import NO_SEGMENTS, PROVISIONAL
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from angarium_server.frames.homes import FlowEvent
    from node.home.lanes.copies import Copies, EarlyCopies
    from node.home.lanes.moves import Moves
    from node.home.lanes.others import Others, Trail
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

    def __init__(self, held: HeldLane, writing: Writing, old: layout.Positions) -> None:
        """Plan it behind the positions that the old homes gave, or below which all was purged."""
        self._held = held
        self._writing = writing
        self._old = old
        self._tail = old.given
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
        return self._old._replace(given=self._tail)


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


class Sources(NamedTuple):
    """Where lanes come from."""

    others: Others
    copies: Copies
    early: EarlyCopies


class ImportStepped(NamedTuple):
    """A step of an import is durable."""

    one: Import


class LanePlaced(NamedTuple):
    """What came while a lane was taken over has its true positions on disk."""

    one: Import
    placing: Placing


class LaneImported(NamedTuple):
    """All of a lane is on our disk."""

    one: Import


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
        self.imports: dict[int, Import] = {}
        #: Lanes that are here with all they have -> the spools where they are to be deleted; and when that is tried.
        self._doubled: dict[HeldLane, Trail] = {}
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

    def begin(self, held: HeldLane, trail: Trail) -> None:
        """Take over a lane, which is marked as importing, from its trail; consumers stand by if it is leased."""
        assert held.importing
        early = self._early.take(held.lane_id, trail[0].name, self._now)
        one = self.imports[held.lane_id] = Import(held, trail, self._writing.buried, early)
        oldest = trail[len(one.parts) - 1]
        if oldest.lease is not None and oldest.row.generation == held.lane.generation:
            self._lease(held, oldest.lease)
        for name in one.names:
            self.others.claim(name, held.lane_id)
        if one.is_cut:
            text = f"no spool has what lane {held.lane_id} had before it came to spool {oldest.name}"
            self._outbox.event(
                "error", "lane_not_adopted", f"{text}; what is there is taken over, and stays there"
            )

    def _begin_again(self, one: Import) -> None:
        """Begin anew with a lane that went on after it was looked for, if that is how it is."""
        lane_id = one.held.lane_id
        trail = self.others.trails_below({lane_id: one.held.handovers}).get(lane_id)
        if trail is None or [(old.name, old.row) for old in trail] == [
            (old.name, old.row) for old in one.trail
        ]:
            return
        self._discard(one, self._now)
        self.begin(one.held, trail)

    def end(self, held: HeldLane, trail: Trail) -> None:
        """Go on with a lane that is here with all it has, and is perhaps still where it was copied from."""
        if trail:
            self._doubled[held] = trail
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
        """Forget a lane that is deleted, and have it deleted where it was to come from."""
        one = self.imports.pop(held.lane_id, None)
        if one is None:
            return
        self._discard(one, now)
        for segment in held.waiting:
            self._writing.discard(segment, now)
        for old in one.trail:
            if not self.others.has_left(old.name):  # its worker is told
                self.others.delete(old.name, held.lane_id, old.row.handovers)
                self.others.unclaim(old.name, held.lane_id)
        held.is_doubled = True
        self._doubled[held] = [old for old in one.trail if self.others.has_left(old.name)]
        text = f"lane {held.lane_id} was deleted before it came from spool {one.name}"
        self._outbox.event("warning", "lane_not_adopted", text)

    def _discard(self, one: Import, now: float) -> None:
        """Let go of what was imported so far."""
        self._drop_early(one)
        for _, segment in one.staged:
            self._writing.discard(segment, now)
        for segment in one.segments:
            self._writing.discard(segment, now)
        self._forget_count(one)

    def _drop_early(self, one: Import) -> None:
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
        one = min(due, key=lambda one: one.counting.key is None, default=None)
        if one is None:
            return
        if one.held.lane_id in self._early.ending:
            one.buried = self._writing.buried + 1
        may_begin = one.counting.key is not None or self._writing.is_cleared(one.buried)
        sources = self.others.sources(one.names, one.held.lane_id) if may_begin else []
        if not sources or not one.is_as_found(sources):
            self._wait(one, is_outdated=bool(sources) or len(one.parts) > 1)
        elif one.counting.key is not None:
            self._count(one, sources, one.counting.key)
        else:
            self._import(one, sources)

    def _wait(self, one: Import, *, is_outdated: bool) -> None:
        """Look again later; the others may be somewhere else."""
        is_late = is_outdated or self.others.has_left(one.name)
        one.next_try = self._now + (RETRY_S if is_late else PARTING_RETRY_S)
        self.imports[one.held.lane_id] = self.imports.pop(one.held.lane_id)
        if is_outdated:
            self._begin_again(one)

    def _count(self, one: Import, sources: list[Spool], start: bytes) -> None:
        """Count some more of what the old spools have of a lane; nothing changes there any more."""
        part, source = one.parts[one.counting.part], sources[one.counting.part]
        found = source.scan(Table.SEGMENTS, start, layout.lane_end(one.held.lane_id), SCAN_ROWS)
        if one.counting.is_at_start:
            self._count_staged(one, part, source)
        messages, size = one.counted
        for key, value in found:
            segment = Segment.unpack(key, value, source.get(Table.STATES, key))
            part.last = max(part.last, segment.last)
            if one.is_taken(part, segment):
                messages += segment.live
                size += segment.live_bytes
                one.files[segment.file] = None
        one.counted = messages, size
        if found:
            one.counting.skip(found[-1][0])
            return
        one.counting.end(len(one.parts))
        if one.counting.key is not None:
            return
        one.lay_out(sources)
        one.held.left = one.counted
        for file in one.files:
            self._blocks.files.join(file)
        self._lanes.changed[one.held] = None

    def _count_staged(self, one: Import, part: Part, source: Spool) -> None:
        """Count what an old spool has staged for a lane."""
        for _, segment in staged_of(source, part.row, one.held, layout.number_key(one.held.lane_id)):
            if segment is not None:
                messages, size = one.counted
                one.counted = messages + segment.live, size + segment.live_bytes
                one.files[segment.file] = None

    def _forget_count(self, one: Import) -> None:
        """The messages of a lane are here, or gone with it: what was counted counts no more."""
        if one.held.left is not None:
            for file in one.files:
                self._blocks.files.leave(file)
        one.held.left = None

    def _import(self, one: Import, sources: list[Spool]) -> None:
        one.is_under_way = True
        changes: list[Change] = []
        if one.held.is_provisional:
            place = Placing(one.held, self._writing, one.positions)
            self._writing.add(Task(LanePlaced(one, place), late_changes=place.changes))
            return
        if one.reading.key is not None:
            changes = self._copy_segments(one, sources[one.reading.part], one.reading.key)
            if not changes:
                one.is_under_way = False  # all of it is here: nobody has to wait for the disk
                return
        elif one.reading_staged.key is not None:
            changes = self._copy_staged(one, sources[one.reading_staged.part], one.reading_staged.key)
        elif one.reading_records.key is not None:
            self._copy_records(one, sources[one.reading_records.part], one.reading_records.key)
        elif one.early:
            changes = self._delete_early(one)
        else:
            oldest, source = one.parts[-1], sources[-1]
            rows = [
                spool.get(Table.MOVES, layout.number_key(one.held.lane_id)) for spool in reversed(sources)
            ]
            one.moves = next((row for row in rows if row is not None), None)
            if oldest.row.generation == one.held.lane.generation:
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

    def _copy_segments(self, one: Import, source: Spool, start: bytes) -> list[Change]:
        """Give the changes that import the next segments, with their blocks."""
        lane_id, part = one.held.lane_id, one.parts[one.reading.part]
        # Whoever parts with a lane, or stops in order, writes down what was tried.
        is_exact = part.row.importing == layout.PARTED or source.get(Table.META, layout.KEY_CLEAN)
        tried = 0 if is_exact else positions_of(source, lane_id).delivered
        changes: list[Change] = []
        found = source.scan(Table.SEGMENTS, start, layout.lane_end(lane_id), STEP_SEGMENTS)
        for at, (key, value) in enumerate(found):
            if at and sum(len(change[2] or b"") for change in changes) >= STEP_BYTES:
                break
            one.reading.skip(key)
            segment = Segment.unpack(key, value, source.get(Table.STATES, key))
            if one.is_taken(part, segment):
                segment.note_unsure(tried)
                segment.first += part.shift
                changes += self._copy_segment(one, part, source, segment, value)
        if not found:
            one.reading.end(len(one.parts))
        return changes

    def _copy_staged(self, one: Import, source: Spool, start: bytes) -> list[Change]:
        """Give the changes that import the next staged segments, with their blocks."""
        part = one.parts[one.reading_staged.part]
        changes: list[Change] = []
        found = staged_of(source, part.row, one.held, start, STEP_SEGMENTS)
        for at, (key, segment) in enumerate(found):
            if at and sum(len(change[2] or b"") for change in changes) >= STEP_BYTES:
                break
            one.reading_staged.skip(key)
            if segment is None:
                continue
            changes += self._copies.add(part.name, source, segment) or ()
            self._blocks.staged[segment] = key
            one.staged.append((key, segment))
            one.copied += segment.live
            value = layout.pack_staged(one.held.lane.generation, segment.pack())
            changes.append((Table.STAGED, key, value))
        if not found:
            one.reading_staged.end(len(one.parts))
        return changes

    def _copy_segment(
        self, one: Import, part: Part, source: Spool, segment: Segment, value: bytes
    ) -> list[Change]:
        """Give the changes that import a segment, and its block unless it is here."""
        key = segment.key()
        early = one.early.pop(key, None)
        changes: list[Change] = []
        if early is not None and part is one.parts[0] and early.there == value:
            self._copies.go_on(early.segment, segment)
        else:
            changes += () if early is None else self._copies.take_out(early.segment)
            changes += self._copies.add(part.name, source, segment) or ()
        one.segments.append(segment)
        one.copied += segment.live
        packed = segment.pack()
        if early is None or early.here != packed:
            changes.append((Table.SEGMENTS, key, packed))
        if early is None or segment.has_state:
            changes.append((Table.STATES, key, segment.pack_state()))
        return changes

    def _delete_early(self, one: Import) -> list[Change]:
        """Give the changes that delete some of what was copied before and is not in the old spool any more."""
        changes: list[Change] = []
        for key in list(islice(one.early, SCAN_ROWS)):
            deleted = self._copies.take_out(one.early.pop(key).segment)
            changes += [(Table.SEGMENTS, key, None), (Table.STATES, key, None), *deleted]
        return changes

    def _copy_records(self, one: Import, source: Spool, start: bytes) -> None:
        """Take the next records of producers over; they are written like any record that changed."""
        found = source.scan(Table.RECORDS, start, layout.lane_end(one.held.lane_id), STEP_RECORDS)
        for key, value in found:
            self._records.adopt(key, value)
        if found:
            one.reading_records.skip(found[-1][0])
        else:
            one.reading_records.end(len(one.parts))

    def finish(self, event: LaneImported) -> None:
        """Let the lane have what was imported, and after that what came meanwhile."""
        one, held = event.one, event.one.held
        if held.is_gone:
            return
        del self.imports[held.lane_id]
        held.importing, held.is_doubled = 0, not one.is_cut
        held.take_note(one.note)
        if one.is_cut:
            self.others.unclaim(one.parts[-1].name, held.lane_id)
        else:
            self._doubled[held] = one.trail
        if one.lease is not None:
            # It may have gone on after it was looked at, as long as the old worker ran.
            self._lease(held, one.lease)
        else:
            self._tell(held.lane.leasing.drop(self._wall_ms))
        self._give_all(one, held)
        self._forget_count(one)
        if one.moves is not None:
            self._moves.load(held.lane_id, one.moves)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._lanes.refresh(held)
        self._counts["lanes_adopted"] += 1
        text = f"lane {held.lane_id} came from spool {one.name} and has {held.lane.messages} messages"
        self._outbox.event("info", "SYSTEM_AD_LANE_ADOPTED", text)

    def _lease(self, held: HeldLane, packed: bytes) -> None:
        """Let a lane be leased as it was; consumers that came before that was known are told."""
        is_known = held.lane.lease is not None
        told = held.lane.leasing.load(layout.unpack_lease(packed), self._now)
        self._tell([] if is_known else told)

    def _tell(self, events: list[FlowEvent]) -> None:
        for event in events:
            self._outbox.tell(event)

    def _give_all(self, one: Import, held: HeldLane) -> None:
        """Give a lane what was imported, and behind that what came meanwhile."""
        before = held.added
        for segment in sorted(one.segments, key=attrgetter("first")):
            self._give(held, segment, is_old=True)
        for key, segment in one.staged:
            self._count_block(segment)
            self._staging.load(held, key, layout.unpack_staged_key(key), segment)
        held.bring(before)
        waiting, held.waiting = held.waiting, NO_SEGMENTS
        for segment in waiting:
            self._give(held, segment, is_old=False)

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
        """Delete the next lane that is here in the spools that it came from, and each with its last lane.

        The oldest is first: whoever goes on finds the others, as long as the latest has it.
        """
        held, trail = next(iter(self._doubled.items()))
        del self._doubled[held]
        while trail and self.others.delete(trail[-1].name, held.lane_id, trail[-1].row.handovers):
            trail = trail[:-1]
        if trail:
            self._doubled[held] = trail
            self._next_deletion = self._now + RETRY_S
            return
        self._close_unneeded()
        held.is_doubled = False
        if not held.is_gone:
            self._lanes.rows[held] = None

    def _close_unneeded(self) -> None:
        """Close the spools in which nothing is to be done any more."""
        names = [old.name for trail in self._doubled.values() for old in trail]
        names += [name for one in self.imports.values() for name in one.names]
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


def _last_changes(one: Import) -> list[Change]:
    """Give the changes that make an import complete."""
    copied = (
        (Table.MOVES, layout.number_key(one.held.lane_id), one.moves),
        (Table.LANES, layout.lease_key(one.held.lane_id), one.lease),
        (Table.LANES, layout.note_key(one.held.lane_id), one.note),
    )
    mark = one.held.row_change(importing=0 if one.is_cut else layout.COPIED)
    return [mark, *[row for row in copied if row[2] is not None]]
