"""What is written when: everything that arrived while the last write was out is one write (group commit).

One write is out at a time. The next one takes along, in one transaction: the STOREs that are to be stored
(`node.home.spool.stores`), records of their producers, what lanes lost and tried, reserved positions, and tasks of
other parts: rows of lanes, moves, blocks packed again. What must not wait makes a write at once; what lanes
lost waits for the next group, or `ack_delay`.

Nothing on disk leads to a block but the records of its segments. So a block is deleted in the transaction
that deletes the last of them, and the recovery need not look at blocks at all.

A full disk fails a write as a whole. Then nothing is stored and nothing acknowledged; writes that only free
space go first, and everything is tried again later.

No I/O, no clock; `node.home.home` uses this and its shell carries the writes out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from node.home.spool import layout
from node.home.spool.layout import number_key
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from node.backlog.segment import Segment
    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.layout import Positions
    from node.home.spool.records import Records
    from node.home.spool.stores import PendingStores, Store
    from storage.spool import Change

#: Segments without messages whose records one write deletes; a purge of millions goes on in the next ones.
DEAD_PER_WRITE: Final = 4_000
#: Segments that lost some messages or tried some whose state one write stores, unless all is to be durable at once: of
#: a consumer that goes there may be as many as messages that it has not settled.
STATES_PER_WRITE: Final = 1_000
#: Segments of lanes that were emptied or deleted that are let go in one turn, 1 ms.
SWEPT_PER_TURN: Final = 150
#: After a write found the disk full everything is tried again.
FULL_RETRY_S: Final = 1.0


class Task(NamedTuple):
    """Changes of another part that become durable together."""

    #: What the home does when they are durable (`Home.written`); None: nobody waits.
    event: object = None
    changes: Sequence[Change] = ()
    #: Gives more changes, as things are when the write is put together; called again if that failed.
    late_changes: Callable[[], Sequence[Change]] | None = None
    #: Whether what lanes got and lost so far must become durable in the same transaction, if it is not: what the task
    #: says of messages holds for the next process only if that has just these.
    with_everything: bool = False


class Dead(NamedTuple):
    """A segment on disk whose messages are all gone."""

    key: bytes
    #: The block to delete with it; 0: others have messages in it.
    block_id: int
    #: Number of the loss.
    number: int = 0
    #: Where it lies if it is staged, or was when its record was written last.
    staged: bytes | None = None
    #: Whether its block was not on disk when it died: it may have been merged from segments that still are.
    in_task: bool = False


class Write:
    """A write that is out."""

    __slots__ = (
        "changes",
        "dead",
        "dropped",
        "frees_only",
        "held_back",
        "losses_upto",
        "number",
        "partial",
        "positions",
        "rows",
        "seen",
        "stores",
        "tails",
        "tasks",
        "with_losses",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.changes: list[Change] = []
        self.stores: list[Store] = []
        #: Blocks of STOREs of which nothing is left to write.
        self.dropped: list[int] = []
        self.dead: list[Dead] = []
        self.partial: list[tuple[Segment, int]] = []
        #: The last position that it stores in each lane; of some up to where it is seen then, 0 for not at all.
        self.tails: dict[HeldLane, int] = {}
        self.seen: dict[HeldLane, int] = {}
        self.positions: list[tuple[HeldLane, Positions]] = []
        #: Lanes that go on with it.
        self.held_back: dict[HeldLane, None] = {}
        self.rows: list[HeldLane] = []
        self.tasks: list[Task] = []
        #: Whether it is one of those that go first while the disk is full.
        self.frees_only = False
        #: With it every loss up to this number is durable.
        self.losses_upto = 0
        #: Whether everything that lanes lost must be in it.
        self.with_losses = False


class Writing:
    """Collects what is to be written, and gives it out one write at a time."""

    def __init__(
        self, blocks: Blocks, pending: PendingStores, lanes: HeldLanes, records: Records, ack_delay_s: float
    ) -> None:
        self._blocks = blocks
        self._pending = pending
        self._lanes = lanes
        self._records = records
        self._ack_delay_s = ack_delay_s
        #: Segments on disk without messages, and since when the first of them waits.
        self._dead: deque[Dead] = deque()
        self._dead_due = 0.0
        #: How many such segments there ever were, and how many of them are deleted; the first ones first.
        self.buried = 0
        self.cleared = 0
        #: Segments of lanes that were emptied or deleted, by the number of that loss; what is on disk besides says that
        #: they do not count. And how many had been buried when the last of them was.
        self._abandoned: deque[tuple[int, list[Segment]]] = deque()
        self._swept_upto = 0
        #: Segments on disk that lost some messages or tried some: until when that is to be durable, and the number
        #: of their first loss.
        self._partial: dict[Segment, tuple[float, int]] = {}
        #: Block of a STORE that is not stored -> number of the first loss in it: until then the router sends it again
        #: to the next process, and what was consumed of it is there again.
        self._unwritten: dict[int, int] = {}
        #: Rises with every loss; nothing older waits behind something newer.
        self.noted = 0
        #: Every loss up to this number is durable.
        self.durable = 0
        self._tasks: deque[Task] = deque()
        #: Lanes that show consumers no more before everything that was there is on disk.
        self._held_back: dict[HeldLane, None] = {}
        #: The write that is out; None: none is.
        self.out: Write | None = None
        self._next_number = 1
        #: Whether the next write takes along everything that lanes lost, because a loss must not come before another.
        self._with_losses = False
        #: Whether somebody waits for what the next write makes durable besides STOREs and tasks.
        self.is_urgent = False
        #: While the disk is full: when everything is tried again. None: it is not full.
        self.full_until: float | None = None
        #: While there is room only for what is under way: when a write looks whether there is more. None: there is.
        self.look_at: float | None = None
        #: While the disk is full: when what makes room is tried again; what lets consumers go on is part of it.
        self._frees_at = 0.0
        self._counts = dict.fromkeys(
            ("writes", "write_changes", "stores_written", "stores_not_written", "writes_failed"), 0
        )

    # -- what is to be written -------------------------------------------------------------------------------

    def note(self, held: HeldLane, segment: Segment, now: float) -> None:
        """Take note that rows of a segment are gone, or were tried."""
        block = self._blocks.get(segment.block)
        if block is None:
            return
        if segment.live:
            if not block.is_written:
                self._note_unwritten(block)
            elif segment not in self._partial:
                self.noted += 1
                self._partial[segment] = (now + self._ack_delay_s, self.noted)
            return
        if self.discard(segment, now) and held.keep(segment.last):
            self._lanes.reserving[held] = None

    def collect(self, held: HeldLane, now: float) -> None:
        """Take up what a lane lost or tried, and what changed of its figures."""
        changed = held.lane.take_changed()
        for segment in changed:
            self.note(held, segment, now)
        if changed and held.lane.retained is not None:
            # Else a message that was replaced may be there again after a crash, and the newer one, which has expired
            # meanwhile or ended the topic, may not.
            self._with_losses = True
        self._lanes.note_losses(held, self.noted, self.durable)
        self._lanes.refresh(held)

    def discard(self, segment: Segment, now: float) -> bool:
        """Let go of a segment whose messages are gone, or have no lane any more; True if it is on disk."""
        self._partial.pop(segment, None)
        block = self._blocks.get(segment.block)
        if block is None or segment not in block.segments:
            return False
        staged = self._blocks.staged.get(segment)
        in_task = block.id in self._blocks.fresh
        is_last = self._blocks.release(block, segment)
        if block.is_written:
            self.noted += 1
            self.bury(Dead(segment.key(), block.id if is_last else 0, self.noted, staged, in_task), now)
        else:
            self._note_unwritten(block)
        return block.is_written

    def abandon(self, segments: list[Segment]) -> None:
        """Let go of segments without messages whose lane was emptied or deleted; `sweep` does that."""
        if not segments:
            return
        for segment in segments:
            self._partial.pop(segment, None)
        self.noted += 1
        self._abandoned.append((self.noted, segments))

    @property
    def lost_since(self) -> Iterator[Segment]:
        """Give those of which something is to be written and nothing is left; their lanes have not been asked since."""
        return (segment for segment in self._partial if not segment.live)

    @property
    def may_sweep(self) -> bool:
        """Whether `sweep` has something to do: what it finds is deleted before it goes on."""
        return bool(self._abandoned) and len(self._dead) < DEAD_PER_WRITE

    def sweep(self, now: float) -> None:
        """Let go of some more segments of lanes that were emptied or deleted."""
        for _ in range(SWEPT_PER_TURN):
            if not self._abandoned:
                break
            segments = self._abandoned[0][1]
            self.discard(segments.pop(), now)
            if not segments:
                self._abandoned.popleft()
                self._swept_upto = self.buried

    def is_cleared(self, buried: int) -> bool:
        """Tell whether so many segments are deleted, and all of lanes that were deleted: their keys may come again."""
        return not self._abandoned and self.cleared >= max(buried, self._swept_upto)

    def _note_unwritten(self, block: Block) -> None:
        self.noted += 1
        self._unwritten.setdefault(block.id, self.noted)

    def add(self, task: Task) -> None:
        """Have changes written with the next write."""
        self._tasks.append(task)
        if task.with_everything:
            self._pending.flush()

    def hold_back(self, held: HeldLane, upto: int) -> None:
        """Show consumers nothing above a position of a lane before everything that is there is on disk.

        When the router sends again what was not, messages get their positions again, because the same come in the same
        order. What is left out for a reason that the next process would not know must be on disk before anybody sees
        a position behind it.
        """
        held.limit = upto if held.limit is None else min(held.limit, upto)
        self._held_back[held] = None
        self._pending.flush()

    def unstored(self, held: HeldLane) -> list[Segment]:
        """Give the segments of a lane that are not stored; those that the write under way takes are written."""
        return [segment for lane, segment in self._pending.segments() if lane is held]

    def is_written(self, segment: Segment) -> bool:
        """Tell whether a segment is on disk, or in the write that is being made or is out."""
        block = self._blocks.get(segment.block)
        return block is not None and block.is_written and segment in block.segments

    def rename(self, keys: dict[bytes, bytes]) -> None:
        """Take note that segments have other keys on disk."""
        self._dead = deque(dead._replace(key=keys.get(dead.key, dead.key)) for dead in self._dead)

    def forget(self, segment: Segment) -> None:
        """Forget that the state of a segment is to be written: another record takes its place."""
        self._partial.pop(segment, None)

    def bury(self, dead: Dead, now: float) -> None:
        """Have a segment deleted that was found on disk and belongs to nobody."""
        if not self._dead:
            self._dead_due = now + self._ack_delay_s
        self._dead.append(dead)
        self.buried += 1

    # -- writes ----------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Give when something is to be written that is not yet; None for nothing."""
        dues = []
        if self.full_until is not None:
            dues.append(self.full_until)
        elif self._pending.next_due is not None:
            dues.append(self._pending.next_due)
        if self.look_at is not None:
            dues.append(self.look_at)
        if self._dead:
            dues.append(self._dead_due)
        if self._partial:
            dues.append(next(iter(self._partial.values()))[0])
        return min(dues, default=None)

    def take(self, now: float) -> Write | None:
        """Give the next write if one is due and none is out."""
        if self.out is not None:
            return None
        frees_only = self.full_until is not None and now < self.full_until
        if not self._is_due(now, frees_only=frees_only):
            return None
        write = self.out = Write(self._next_number)
        self._next_number += 1
        write.frees_only = frees_only
        if not frees_only:
            self._add_stores(write, now)
            self._add_tasks(write)
        self._add_losses(write, now)
        self._add_positions(write)
        self._counts["writes"] += 1
        self._counts["write_changes"] += len(write.changes)
        return write

    def _is_due(self, now: float, *, frees_only: bool) -> bool:
        if self._dead and (self._dead_due <= now or len(self._dead) >= DEAD_PER_WRITE):
            return True
        if self._partial and next(iter(self._partial.values()))[0] <= now:
            return True
        if frees_only:
            # Consumers make room, and get nothing before their positions are reserved.
            return bool(self._lanes.reserving) and now >= self._frees_at
        return bool(
            self._tasks
            or self._held_back
            or self._lanes.rows
            or self.is_urgent
            or self.full_until is not None
            or (self.look_at is not None and self.look_at <= now)
            or self._pending.wants_write(now)
        )

    def _add_stores(self, write: Write, now: float) -> None:
        write.stores = self._pending.pick(now)
        changes = write.changes
        for store in write.stores:
            kept = self._add_staged(write, store) if store.stage else self._add_rows(write, store, now)
            self._counts["stores_written" if kept else "stores_not_written"] += 1
            if not kept and store.block is not None:
                write.dropped.append(store.block.id)
            elif store.block is not None:
                store.block.is_written = True
                value = self._blocks.value(store.block, store.wall_ms)
                changes.append((Table.BLOCKS, number_key(store.block.id), value))
        changes.extend(self._records.take_changes())
        if write.stores or self._pending.router:
            row = self._pending.row_with(write.stores, self._blocks.next_id)
            changes.append((Table.META, layout.KEY_STORED, layout.pack_stored(row)))

    def _add_rows(self, write: Write, store: Store, now: float) -> bool:
        """Add what lanes get; tell whether there is anything."""
        kept = False
        for held, segment in store.segments:
            write.tails[held] = segment.last
            if held.is_gone or segment.first < held.floor:
                self.discard(segment, now)
            elif segment.live:
                kept = True
                staged = self._blocks.staged.get(segment)
                if staged is not None:
                    write.changes.append((Table.STAGED, staged, None))
                self._add_segment(write, held, segment, is_synced=not store.is_relaxed)
            else:
                # Nothing else on disk says that its positions were given. Its lane may not have been asked since.
                write.seen.setdefault(held, 0)
                self.discard(segment, now)
        return kept

    def _add_staged(self, write: Write, store: Store) -> bool:
        """Add rows of a stage that was not dropped meanwhile; tell whether there are any."""
        kept = False
        for held, segment in store.segments:
            staged = self._blocks.staged.get(segment)
            if staged is not None:
                kept = True
                value = layout.pack_staged(held.lane.generation, segment.pack())
                write.changes.append((Table.STAGED, staged, value))
        return kept

    def _add_segment(self, write: Write, held: HeldLane, segment: Segment, *, is_synced: bool) -> None:
        key = segment.key()
        write.changes.append((Table.SEGMENTS, key, segment.pack()))
        if segment.has_state:
            write.changes.append((Table.STATES, key, segment.pack_state()))
        if is_synced and held.lane.flows:
            # It is delivered as soon as it is durable, so its positions are reserved in the same transaction.
            write.seen[held] = segment.last

    def _add_tasks(self, write: Write) -> None:
        write.held_back.update(self._held_back)
        self._held_back.clear()
        for held in self._lanes.rows:
            write.changes.append(held.row_change())
            write.rows.append(held)
        self._lanes.rows.clear()
        for task in self._tasks:
            write.changes.extend(task.changes)
            if task.late_changes is not None:
                write.changes.extend(task.late_changes())
            write.tasks.append(task)
        self._tasks.clear()
        self.is_urgent = False

    def _add_losses(self, write: Write, now: float) -> None:
        """Add what lanes lost: all that is dead, and the rest if its time has come or a task needs it."""
        changes = write.changes
        everything = any(task.with_everything for task in write.tasks) or self._with_losses
        write.with_losses, self._with_losses = self._with_losses, False
        waiting_dead: list[Dead] = []
        for _ in range(len(self._dead) if everything else min(len(self._dead), DEAD_PER_WRITE)):
            dead = self._dead.popleft()
            if write.frees_only and dead.in_task:
                waiting_dead.append(dead)  # the task takes what it was merged from
                continue
            write.dead.append(dead)
            changes.append((Table.SEGMENTS, dead.key, None))
            changes.append((Table.STATES, dead.key, None))
            if dead.staged is not None:
                changes.append((Table.STAGED, dead.staged, None))
            if dead.block_id:
                changes.append((Table.BLOCKS, number_key(dead.block_id), None))
        self._dead.extendleft(reversed(waiting_dead))
        self._dead_due = now if self.full_until is None or not waiting_dead else self.full_until
        partial = self._partial
        held_back: dict[Segment, tuple[float, int]] = {}
        while partial:
            segment, (due, number) = next(iter(partial.items()))
            if not everything and (due > now or len(write.partial) >= STATES_PER_WRITE):
                break
            del partial[segment]
            if write.frees_only and self._is_in_task(segment):
                assert self.full_until is not None
                held_back[segment] = (self.full_until, number)
                continue
            write.partial.append((segment, number))
            changes.append((Table.STATES, segment.key(), segment.pack_state()))
        partial.update(held_back)
        stored = dict.fromkeys(store.block.id for store in write.stores if store.block is not None)
        waiting = [number for block_id, number in self._unwritten.items() if block_id not in stored]
        if self._abandoned:
            waiting.append(self._abandoned[0][0])
        if self._dead:
            waiting.append(self._dead[0].number)
        if partial:
            waiting.append(next(iter(partial.values()))[1])
        write.losses_upto = min(waiting, default=self.noted + 1) - 1
        if self._tasks:
            # A task that waits for room may hold losses of segments that were merged.
            write.losses_upto = self.durable

    def _is_in_task(self, segment: Segment) -> bool:
        """Tell whether a segment may be merged from others that are still on disk: its state fits none of them."""
        block = self._blocks.get(segment.block)
        return block is not None and not self._blocks.is_on_disk(block)

    def _add_positions(self, write: Write) -> None:
        for held in {**self._lanes.reserving, **write.seen}:
            if held.is_gone or held.is_provisional:
                continue
            row = held.positions_row(write.tails.get(held, 0), write.seen.get(held, 0))
            if row != (held.given, held.delivered, held.noted_gaps):
                key = layout.positions_key(held.lane_id)
                write.changes.append((Table.LANES, key, layout.pack_positions(row)))
                write.positions.append((held, row))
        self._lanes.reserving.clear()

    def written(self, number: int) -> Write:
        """Take note that the write that is out is durable."""
        write = self.out
        assert write is not None
        assert write.number == number, f"write {number} is done, {write.number} is out"
        self.out = None
        if not write.frees_only:
            self.full_until = None
        self.cleared += len(write.dead)
        for block_id in (*(dead.block_id for dead in write.dead), *write.dropped):
            self._blocks.freed(block_id)
        self.durable = max(self.durable, write.losses_upto)
        self._lanes.losses_durable(self.durable)
        self._pending.note_stored(write.stores)
        for store in write.stores:
            if store.block is not None:
                self._blocks.written(store.block)
                self._unwritten.pop(store.block.id, None)
        for held, tail in write.tails.items():
            held.stored = tail
        for held, row in write.positions:
            held.note_positions(row)
        for held in write.held_back:
            if held not in self._held_back and not held.is_gone:
                held.limit = None
                self._lanes.touched[held] = None
        return write

    def failed(self, number: int, now: float) -> None:
        """Take note that the disk had no room for the write that is out; nothing of it is on disk."""
        write = self.out
        assert write is not None
        assert write.number == number
        self.out = None
        self._counts["writes_failed"] += 1
        self.full_until = now + FULL_RETRY_S
        for store in write.stores:
            if store.block is None:
                continue
            store.block.is_written = False
            for _, segment in store.segments:
                self._partial.pop(segment, None)
            if any(segment.live < segment.count for _, segment in store.segments):
                self._unwritten[store.block.id] = self.durable + 1
        for held, _ in write.positions:
            if not held.is_gone:
                self._lanes.reserving[held] = None
        self._held_back.update(write.held_back)
        for held in write.rows:
            if not held.is_gone:
                self._lanes.rows[held] = None
        self._tasks.extendleft(reversed(write.tasks))
        self._dead.extendleft(reversed(write.dead))
        # What frees space is tried at once, unless it was just that.
        self._dead_due = self._frees_at = self.full_until if write.frees_only else now
        self._with_losses |= write.with_losses
        partial, self._partial = self._partial, {}
        for segment, number in write.partial:
            # It may have died meanwhile, or have been merged into another one.
            block = self._blocks.get(segment.block)
            if segment.live and block is not None and segment in block.segments:
                self._partial[segment] = (self._dead_due, number)
        for segment, entry in partial.items():
            self._partial.setdefault(segment, entry)
        self._restore_records(write)

    def _restore_records(self, write: Write) -> None:
        for table, key, _ in write.changes:
            if table is Table.RECORDS:
                self._records.restore(key)

    def stats(self) -> dict[str, int]:
        """Give counters and sizes."""
        return {
            **self._counts,
            "segments_to_delete": len(self._dead) + sum(len(one) for _, one in self._abandoned),
            "segments_to_update": len(self._partial),
            "spool_full": int(self.full_until is not None or self.look_at is not None),
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        out = 0 if self.out is None else len(self.out.dead)
        assert self.buried == self.cleared + out + len(self._dead)
        for segment in self._partial:
            block = self._blocks.get(segment.block)
            assert block is not None
            assert block.is_written
            assert segment in block.segments
