"""Repacking blocks: those that lost most of their messages, and runs of small ones.

A block goes when its last message is gone, so one message could hold megabytes; and a lone message costs a
block and a segment of its own, several hundred bytes of memory. Both are mended in the
background: blocks whose live messages are less than half of them, and small ones that have been there for a
while, are packed into one new block, and neighbouring segments of a lane become one. So the disk holds at most
twice the live bytes plus what arrives, and a backlog of lone messages costs little more than one of batches.

One step is under way at a time, and is bounded in rows and bytes. The change in memory comes first; the
records on disk follow in one transaction, made from what the segments are by then.

No I/O of its own, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from node.backlog.segment import AGES_MAX_MS, GONE, PRIORITY_UNSET, Columns, Segment
from node.home.spool.blocks import SMALL_BYTES, SMALL_ROWS
from node.home.spool.layout import number_key
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing
    from storage.spool import Change

#: Small blocks are left alone so long, because most are consumed by then.
SMALL_AGE_S: Final = 1.0
#: So many small blocks are worth a new one.
SMALL_BLOCKS: Final = 32
#: A sparse block is worth packing if it takes so many bytes; LMDB stores in pages of 4 KiB.
SPARSE_BYTES: Final = 16 << 10
#: What one step takes: rows of lanes, bytes of messages, and blocks, each of which may have to be read. A message that
#: many lanes have is a row of each: blocks of twenty queues took 13 ms when it counted once.
STEP_ROWS: Final = 1_024
STEP_BYTES: Final = 512 << 10
STEP_BLOCKS: Final = 250
#: Small blocks that are gone by then and that one step forgets: a consumer that keeps up leaves one for each message.
GONE_PER_STEP: Final = 1_000
#: After nothing was found to be done: what is missing comes with time, or with the write that is out.
LOOK_INTERVAL_S: Final = 0.1


class Repacked(NamedTuple):
    """A new block is durable, and the old ones (by id) are off the disk."""

    new: Block
    old: list[int]


class Repacking:
    """Which blocks are to be packed again, and the step that is under way."""

    def __init__(self, lanes: HeldLanes, blocks: Blocks, writing: Writing) -> None:
        self._lanes = lanes
        self._blocks = blocks
        self._writing = writing
        #: Blocks that lost most of their messages; some are gone by then.
        self.sparse: dict[int, None] = {}
        self._is_under_way = False
        #: When to look for something to do at the earliest.
        self._look_at = 0.0
        self._counts = dict.fromkeys(("repacked_blocks", "repacked_rows", "merged_segments"), 0)

    # -- candidates ------------------------------------------------------------------------------------------

    def note_found(self, block: Block, now: float) -> None:
        """Take note of a block that was found at the start; its rows are not known."""
        if self._is_untouchable(block):
            return
        if max(segment.count for segment in block.segments) <= SMALL_ROWS and block.size <= SMALL_BYTES:
            self._blocks.small[block.id] = now - SMALL_AGE_S
        else:
            self.note_loss(block)

    def note_loss(self, block: Block | None) -> None:
        """Look at a block that lost messages."""
        if (
            block is None
            or block.size < SPARSE_BYTES
            or block.id in self.sparse
            or self._is_untouchable(block)
        ):
            return
        if sum(segment.live_bytes for segment in block.segments) * 2 < block.size or (
            len(block.segments) > 1 and sum(live_sizes(block).values()) * 2 < block.size
        ):
            self.sparse[block.id] = None

    def _is_untouchable(self, block: Block) -> bool:
        """Tell whether a lane has rows in a block that are not in its hands (yet), or a stage has."""
        if self._blocks.staged and any(segment in self._blocks.staged for segment in block.segments):
            return True
        if any(self._lanes.is_aside(segment.lane_id) for segment in block.segments):
            return True
        held = [self._lanes.get(segment.lane_id) for segment in block.segments]
        return any(one is not None and (one.importing or one.is_parting) for one in held)

    def next_due(self) -> float | None:
        """Give when there may be something to do; None: not as things are."""
        if self._is_under_way or self._writing.full_until is not None:
            return None
        if self.sparse:
            return self._look_at
        small = self._blocks.small
        if len(small) >= SMALL_BLOCKS:
            return max(self._look_at, next(iter(small.values())) + SMALL_AGE_S)
        return None

    # -- steps -----------------------------------------------------------------------------------------------

    def work(self, now: float) -> None:
        """Do one step if there is something to do and none is under way."""
        due = self.next_due()
        if due is None or now < due:
            return
        chosen = self._choose_sparse() or self._choose_small(now)
        if chosen:
            self._pack(chosen, now)
        elif chosen is not None:
            self._look_at = now + LOOK_INTERVAL_S

    def _choose_sparse(self) -> list[Block]:
        chosen: list[Block] = []
        rows = size = 0
        while self.sparse and not _is_step(chosen, rows, size):
            block_id = next(iter(self.sparse))
            block = self._blocks.get(block_id)
            if block is not None and not self._blocks.is_on_disk(block):
                break
            del self.sparse[block_id]
            if block is not None:
                chosen.append(block)
                rows += sum(segment.count for segment in block.segments)
                size += sum(segment.live_bytes for segment in block.segments)
        return chosen

    def _choose_small(self, now: float) -> list[Block] | None:
        """Choose the oldest small blocks, if there are enough; None: there may be, behind those that are gone."""
        chosen: list[Block] = []
        gone: list[int] = []
        rows = size = 0
        small = self._blocks.small
        for block_id, accepted_at in small.items():
            if len(gone) >= GONE_PER_STEP:
                break
            block = self._blocks.get(block_id)
            if block is None or self._is_untouchable(block):
                gone.append(block_id)
            elif accepted_at > now - SMALL_AGE_S or _is_step(chosen, rows, size):
                break
            elif self._blocks.is_on_disk(block):
                chosen.append(block)
                rows += sum(segment.count for segment in block.segments)
                size += block.size
        for block_id in gone:
            del small[block_id]
        if len(chosen) < SMALL_BLOCKS and not (len(chosen) > 1 and _is_step(chosen, rows, size)):
            return [] if len(gone) < GONE_PER_STEP else None
        for block in chosen:
            del small[block.id]
        return chosen

    def _pack(self, chosen: list[Block], now: float) -> None:
        """Put the live rows of some blocks into a new one, and its segments in the place of theirs."""
        lanes = {segment.lane_id: None for block in chosen for segment in block.segments}
        held = [one for one in map(self._lanes.get, lanes) if one is not None]
        for one in held:
            self._writing.collect(one, now)
        for segment in [one for block in chosen for one in block.segments if not one.live]:
            self._writing.discard(segment, now)  # of a lane that was emptied or deleted
        chosen = [
            block
            for block in chosen
            if block.segments and not self._is_untouchable(block) and self._blocks.is_readable(block)
        ]
        rows = {block.id: live_sizes(block) for block in chosen}
        raws: list[msgspec.Raw] = []
        # Old block -> old row -> new row.
        places: dict[int, dict[int, int]] = {}
        for block in chosen:
            numbers = sorted(rows[block.id])
            places[block.id] = {number: len(raws) + at for at, number in enumerate(numbers)}
            raws += self._blocks.pick(block, numbers)
        if not raws:
            return
        new = self._blocks.replace(chosen, raws, sum(sum(sizes.values()) for sizes in rows.values()))
        self._is_under_way = True
        self._counts["repacked_blocks"] += len(chosen)
        self._counts["repacked_rows"] += len(raws)
        deleted: list[bytes] = []
        for block in chosen:
            for segment in block.segments:
                segment.rows = _new_rows(segment, places[block.id])
                segment.block, segment.file = new.id, new.file
            new.segments += block.segments
        for one in held:
            self._merge(one, new, deleted)
        self._blocks.note_new(new, now)
        stored_ms = min(segment.stored_ms for segment in new.segments)
        value = self._blocks.value(new, stored_ms)
        old = [block.id for block in chosen]
        event = Repacked(new, old)
        self._writing.add(Task(event, late_changes=partial(self._changes, event, value, deleted)))

    def _merge(self, held: HeldLane, new: Block, deleted: list[bytes]) -> None:
        """Make one segment of each run of neighbours of a lane in the new block."""
        mine = sorted((one for one in new.segments if one.lane_id == held.lane_id), key=lambda one: one.first)
        for run in _runs(mine):
            if len(run) == 1:
                continue
            merged = merge_segments(run)
            held.lane.replace(run, merged)
            for segment in run:
                new.segments.remove(segment)
                self._writing.forget(segment)
            new.segments.append(merged)
            deleted += [segment.key() for segment in run[1:]]
            self._counts["merged_segments"] += len(run)

    def _changes(self, packed: Repacked, value: bytes, deleted: list[bytes]) -> list[Change]:
        """Give the changes on disk as things are when they are written."""
        new, old = packed
        changes: list[Change] = []
        if self._blocks.get(new.id) is not None:
            changes.append((Table.BLOCKS, number_key(new.id), value))
        for segment in new.segments:
            key = segment.key()
            changes.append((Table.SEGMENTS, key, segment.pack()))
            changes.append((Table.STATES, key, segment.pack_state() if segment.has_state else None))
        for key in deleted:
            changes.append((Table.SEGMENTS, key, None))
            changes.append((Table.STATES, key, None))
        changes += [(Table.BLOCKS, number_key(block_id), None) for block_id in old]
        return changes

    def done(self, packed: Repacked) -> None:
        """Take note that a new block is durable, in the place of others."""
        self._blocks.written(packed.new)
        for block_id in packed.old:
            self._blocks.freed(block_id)
        self._is_under_way = False

    def stats(self) -> dict[str, int]:
        """Give counters, and how many blocks wait."""
        return {**self._counts, "small_blocks": len(self._blocks.small), "sparse_blocks": len(self.sparse)}


def _is_step(chosen: Sequence[Block], rows: int, size: int) -> bool:
    """Tell whether blocks with so many rows of lanes and bytes are enough for a step."""
    return rows >= STEP_ROWS or size >= STEP_BYTES or len(chosen) >= STEP_BLOCKS


def live_sizes(block: Block) -> dict[int, int]:
    """Give the spool size of every row of a block that some lane still has."""
    sizes: dict[int, int] = {}
    for segment in block.segments:
        rows = range(segment.count) if segment.rows is None else segment.rows
        for row, state, size in zip(rows, segment.state, segment.sizes, strict=True):
            if state != GONE:
                sizes[row] = size
    return sizes


def _new_rows(segment: Segment, places: dict[int, int]) -> array[int]:
    """Give where the rows of a segment are now; those that are gone are nowhere, and 0 is as good as any."""
    rows = range(segment.count) if segment.rows is None else segment.rows
    return array("H", [places.get(row, 0) for row in rows])


def _runs(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Cut segments, by position, into runs that one segment can hold."""
    if not segments:
        return []
    runs = [[segments[0]]]
    for before, segment in pairwise(segments):
        base = min(one.stored_ms for one in runs[-1])
        newest = segment.stored_ms + max(segment.ages or (0,))
        fits = base <= segment.stored_ms and newest - base <= AGES_MAX_MS
        if before.last + 1 == segment.first and fits:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def merge_segments(run: Sequence[Segment]) -> Segment:
    """Give one segment with the messages of neighbours, which lie in one block."""
    first = run[0]
    ages = array("I", [one.stored_at_ms(i) - first.stored_ms for one in run for i in range(one.count)])
    columns = Columns(
        block=first.block,
        file=first.file,
        stored_ms=first.stored_ms,
        sizes=array("I", [size for one in run for size in one.sizes]),
        rows=array("H", [one.row_in_block(i) for one in run for i in range(one.count)]),
        ages=ages if any(ages) else None,
        expires=_joined_times([one.expires for one in run], run),
        due=_joined_times([one.due for one in run], run),
        priorities=_joined_priorities(run),
        dmq=_joined_eligible(run),
        origins=_joined_origins(run),
        low_priority=sum(one.low_priority for one in run),
        publishers=_joined_publishers(run),
    )
    merged = Segment(first.lane_id, first.first, columns)
    merged.state = bytearray(b"".join(one.state for one in run))
    merged.tries = _joined_bytes([one.tries for one in run], run)
    merged.dead = _joined_bytes([one.dead for one in run], run)
    merged.live = sum(one.live for one in run)
    merged.live_bytes = sum(one.live_bytes for one in run)
    return merged


def _joined_times(columns: list[array[int] | None], run: Sequence[Segment]) -> array[int] | None:
    if not any(columns):
        return None
    joined = array("Q")
    for column, one in zip(columns, run, strict=True):
        joined.extend(array("Q", bytes(8 * one.count)) if column is None else column)
    return joined


def _joined_bytes(columns: list[bytearray | None], run: Sequence[Segment]) -> bytearray | None:
    if not any(columns):
        return None
    return bytearray(b"".join(column or bytes(one.count) for column, one in zip(columns, run, strict=True)))


def _joined_priorities(run: Sequence[Segment]) -> bytes | None:
    if all(one.priorities is None for one in run):
        return None
    return b"".join(one.priorities or bytes((PRIORITY_UNSET,)) * one.count for one in run)


def _joined_eligible(run: Sequence[Segment]) -> bytes | None:
    if all(one.dmq is None for one in run):
        return None
    bits = [one.dmq_eligible(i) for one in run for i in range(one.count)]
    number = sum(1 << i for i, eligible in enumerate(bits) if eligible)
    return number.to_bytes((len(bits) + 7) // 8, "little")


def _joined_publishers(run: Sequence[Segment]) -> int | array[int]:
    first = run[0].publishers
    if isinstance(first, int) and all(one.publishers == first for one in run):
        return first
    return array("Q", [one.publisher(i) for one in run for i in range(one.count)])


def _joined_origins(run: Sequence[Segment]) -> list[tuple[str, str, str] | None] | None:
    if all(one.origins is None for one in run):
        return None
    return [None if one.origins is None else one.origins[i] for one in run for i in range(one.count)]
