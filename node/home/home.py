"""The home as a state machine: frames of the router and finished writes in, frames and writes out.

A home holds lanes (partitions of endpoints) with their messages, and is the only one that writes them. The
router admits and numbers; the home stores, reports what is durable, and delivers. `docs/node-protocol.md`
describes the frames, `node.home.spool.layout` the disk.

Use: `recover` once, step by step. Then hand every frame of `OPERATIONS`, and START, to `handle`; call `tick`
after each round of the loop and when it asked for it; send what `take_frames` gives; if `take_write` gives a
write, have it carried out beside the loop and call `written` or `failed`. At the end `stop`, until `is_stopped`.

The path of a message: `StoreMaker.make` assigns its place, `Writing.take` adds it to a group, `written` accepts it,
`Serving.serve` lets its lane choose a flow, `Delivery` packs the frame.

No clock, no thread, no socket. The disk is read through the port `Spool`; the shell writes it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors, wire
from angarium_server.black_box import DELIVER, BlackBox
from angarium_server.frames.frame import takes
from angarium_server.frames.homes import (
    AllowanceFrame,
    FlowFrame,
    GatherFrame,
    LanesConfirmFrame,
    LanesFrame,
    LeaseFrame,
    MovedFrame,
    ReadRetained,
    StoreFrame,
)
from angarium_server.frames.matching import Start
from node.home.lanes.adoption import ImportStepped, LaneImported, LanePlaced
from node.home.lanes.copies import EarlyStepped
from node.home.lanes.lane_changes import LaneDeleted, LanesCleared, check_settings
from node.home.lanes.leases import LeaseAnswer
from node.home.lanes.moves import MoveChosen, MoveEnded
from node.home.lanes.parting import LaneAtRest, LaneParted
from node.home.lanes.serving import BINDS_PER_TICK, LANES_PER_TICK
from node.home.line import Line
from node.home.operations import AnswerDurable, Operations
from node.home.parts import HomeLimits, HomeParts
from node.home.reports import DiskSpace, ProducerLookups, RecordsForgotten, Reports
from node.home.spool import layout
from node.home.spool.held_lanes import NO_SEGMENTS
from node.home.spool.recovery import ROWS_PER_STEP, Recovery
from node.home.spool.repacking import SMALL_BLOCKS, Repacked
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from node.home.lanes.others import Neighbours
    from node.home.spool.held_lanes import HeldLane
    from node.home.spool.stores import Store
    from node.tracing.watch import Watch
    from storage.spool import Change, Spool

__all__ = ["OPERATIONS", "Home", "HomeLimits"]

#: Operations of the router that are for the home; START is for worker and home.
OPERATIONS: Final = (wire.LANES, wire.STORE, wire.FLOW, wire.GATHER, wire.MOVED, wire.LEASE, wire.ALLOWANCE)
#: Frames that wait for the recovery; the oldest is lost first, and the router sends all again to a new process.
EARLY_MAX: Final = 10_000
_COUNTERS: Final = ("stale_frames", "stores_resent", "stores_out_of_order", "rows_promoted_dropped")


class LanesDurable(NamedTuple):
    """What a LANES says is on disk."""

    header: LanesFrame


class EverythingDurable(NamedTuple):
    """Everything is on disk, with the mark of an orderly stop."""


class Home:
    """All lanes of one worker."""

    def __init__(
        self,
        spool: Spool,
        incarnation: int,
        limits: HomeLimits | None = None,
        neighbours: Neighbours | None = None,
        box: BlackBox | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Make a home that knows nothing yet; `recover` reads the spool.

        Args:
            spool: its own.
            incarnation: of the worker.
            limits: what it may use.
            neighbours: the spools of the other workers; without them no lane is taken over.
            box: takes which lane is served; None: nobody reads it.
            watch: makes spans of sampled messages; None: nobody wants them.
        """
        self._box = box = box or BlackBox()
        self._limits = limits or HomeLimits()
        self._spool = spool
        self.incarnation = incarnation
        parts = self.parts = HomeParts(spool, incarnation, self._limits, neighbours, box)
        #: Those that are used most.
        self.lanes, self.pending, self.writing = parts.lanes, parts.pending, parts.writing
        self.lanes.watch = watch
        self._flows, self._outbox, self._line = parts.flows, parts.outbox, Line()
        self._lookups = ProducerLookups(parts)
        self._space = DiskSpace(spool, parts.writing, parts.outbox)
        self._reports = Reports(spool, parts, self._space, incarnation)
        #: What operators ask: `request` hands it on, and the shell takes what comes of it.
        self.operations: Final = Operations(parts, self.stats)
        #: Frames that came before the spool was read; the router sends few before HOME.
        self._early: deque[list[bytes]] = deque(maxlen=EARLY_MAX)
        self._is_recovered = False
        #: Whether a router has started us since the process began.
        self._is_started = False
        self._now = 0.0
        self._wall_ms = 0
        #: Lanes that LANES named since the last tick.
        self._lanes_named = 0
        self._is_stopping = False
        #: Whether everything is on disk, with the mark of an orderly stop.
        self.is_stopped = False
        #: Frames that no router of ours sends.
        self.faults = 0
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._handlers = self._frame_handlers()
        #: What follows when something is durable, by what it is.
        self._when_durable = self._durable_handlers()

    def _frame_handlers(
        self,
    ) -> dict[bytes, tuple[Callable[[bytes], Any], Callable[[Any, list[bytes]], None]]]:
        """Give how the header of each operation is decoded, and who takes it."""
        return dict(
            [
                takes(Start, self._start),
                takes(LanesFrame, self._change_lanes),
                takes(StoreFrame, self._store),
                takes(FlowFrame, self._flow),
                takes(GatherFrame, self._gather),
                takes(MovedFrame, self._moved),
                takes(LeaseFrame, self._lease),
                takes(AllowanceFrame, self._allow),
            ]
        )

    def _durable_handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        """Give who goes on when something is durable (`Task.event`)."""
        parts = self.parts
        return {
            LanesDurable: self._confirm,
            EverythingDurable: self._stopped,
            RecordsForgotten: self._lookups.forgotten,
            AnswerDurable: self.operations.durable,
            LeaseAnswer: parts.leases.answer,
            MoveChosen: parts.moves.chosen,
            MoveEnded: parts.moves.ended,
            Repacked: parts.repacking.done,
            LaneDeleted: parts.changes.clear,
            LanesCleared: parts.changes.cleared,
            ImportStepped: parts.adoptions.stepped,
            LanePlaced: parts.adoptions.placed,
            LaneImported: parts.adoptions.finish,
            EarlyStepped: parts.early.stepped,
            LaneAtRest: parts.parting.rests,
            LaneParted: parts.parting.parted,
        }

    # -- start and end ---------------------------------------------------------------------------------------

    def recover(self, now: float, wall_ms: int) -> Iterator[str]:
        """Read the spool, without bodies; gives what it is at, each time something else.

        Raises:
            UnavailableError: the spool is damaged (50322).
        """
        self._now, self._wall_ms = now, wall_ms
        parts = self.parts
        parts.renew_efforts()
        recovery = Recovery(
            self._spool, self.lanes, parts.blocks, parts.records, parts.staging, parts.make_lane
        )
        yield from recovery.run(now, wall_ms)
        self.pending.resume(recovery.stored)
        for dead in recovery.left_over:
            self.writing.bury(dead, now)
        for lane_id in recovery.lost_lanes:
            self.parts.changes.clear(LaneDeleted(lane_id))
        for lane_id, row in recovery.moves.items():
            self.parts.moves.load(lane_id, row)
        parts.parting.found()
        for number, block in enumerate(self.parts.blocks.in_order(), 1):
            if number % ROWS_PER_STEP == 0:
                yield f"looking at what may be packed again: {number:,} blocks"
            self.parts.repacking.note_found(block, now)
        self._go_on_importing()
        for held in self.lanes:
            self.parts.moves.look_at(held)
            self.lanes.refresh(held)
        if recovery.was_clean:
            # Before anything is delivered: the next stop may not be an orderly one.
            self.writing.add(Task(changes=[(Table.META, layout.KEY_CLEAN, None)]))
        self._is_recovered = True
        while self._early:
            self.handle(self._early.popleft(), now, wall_ms)

    def _go_on_importing(self) -> None:
        """Begin imports again that were not complete when the process before ended, or end them."""
        unfinished = [held for held in self.lanes if held.importing or held.is_doubled]
        trails = self.parts.others.trails_below({held.lane_id: held.handovers for held in unfinished})
        for held in unfinished:
            trail = trails.get(held.lane_id, [])
            if held.is_doubled:
                self.parts.adoptions.end(held, trail)
                continue
            if trail:
                self.parts.adoptions.begin(held, trail)
                continue
            self._outbox.event(
                "error", "lane_not_adopted", f"no spool has lane {held.lane_id}, which was to be taken over"
            )
            held.importing = 0
            self.lanes.rows[held] = None
            for segment in held.waiting:
                held.add(segment.live, segment.live_bytes)
                held.lane.load(segment, self._now, self._wall_ms)
            held.waiting = NO_SEGMENTS

    def stop(self, now: float, wall_ms: int) -> None:
        """Put everything on disk, and the mark of an orderly stop; no frame is to come any more."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._now, self._wall_ms = now, wall_ms
        self._line.clear()
        self._flows.end_all(now, wall_ms)
        for held in self.lanes:
            self.parts.serving.collect(held)
        self.pending.flush()
        self.writing.add(Task(EverythingDurable(), late_changes=self._last_changes, with_everything=True))

    def _last_changes(self) -> list[Change]:
        """Give what a start after an orderly stop relies on: exact positions, and the mark itself."""
        changes: list[Change] = [(Table.META, layout.KEY_CLEAN, b"\x01")]
        for held in self.lanes:
            if held.is_provisional:
                continue
            row = layout.Positions(held.tail, held.lane.delivered_upto, held.gaps)
            changes.append((Table.LANES, layout.positions_key(held.lane_id), layout.pack_positions(row)))
        self.lanes.reserving.clear()
        return changes

    def _stopped(self, _event: EverythingDurable) -> None:
        self.is_stopped = True

    # -- in --------------------------------------------------------------------------------------------------

    def handle(self, frames: list[bytes], now: float, wall_ms: int) -> None:
        """Take a frame of the router; what follows from it comes with the next `tick`."""
        if not self._is_recovered:
            self._early.append(frames)
            return
        self._now, self._wall_ms = now, wall_ms
        known = self._handlers.get(frames[0]) if len(frames) > 1 else None
        if known is None or self._is_stopping:
            self.faults += known is None
            return
        decode, handler = known
        try:
            header = decode(frames[1])
        except (ValueError, RecursionError) as error:
            self._fault(f"operation {frames[0]!r}: {error}")
            return
        if frames[0] != wire.START and (header.router != self.pending.router or not self._is_started):
            self._counts["stale_frames"] += 1
        elif self._line.frames and self._line.is_before(header):
            self._line.put(header, frames)
        else:
            handler(header, frames)

    def _go_on_in_line(self) -> None:
        """Carry out frames that wait, as long as there is time for their lanes in this turn."""
        for _ in range(LANES_PER_TICK):
            if not self._line.frames or self._lanes_named >= LANES_PER_TICK:
                break
            header, frames = self._line.take()
            _, handler = self._handlers[frames[0]]
            handler(header, frames)

    def _start(self, header: Start, _frames: list[bytes]) -> None:
        """Follow a router: a new one ends all flows and numbers again; the same one may start us any time."""
        self.parts.others.workers = max(header.slots) + 1
        router = header.router
        is_first, self._is_started = not self._is_started, True
        if router == self.pending.router or (router < self.pending.router and not is_first):
            self._counts["stale_frames"] += router < self.pending.router
            return
        while self._line.frames:
            self._lanes_named = 0
            self._go_on_in_line()
        self._flows.end_all(self._now, self._wall_ms)
        self._outbox.clear()
        self._lookups.clear()
        self.parts.leases.clear()
        self.parts.retained_reads.clear()
        self._reports.reset()
        self.parts.serving.allowance = 0
        self.parts.moves.is_open = False
        self.pending.start(router)
        # Nobody sends again what the router before sent: it is on disk with the first word of this one, or lost.
        self.pending.flush()
        self._give_up_unsure()

    def _give_up_unsure(self) -> None:
        """Leave gaps where consumers may have seen messages that are lost with the router that sent them."""
        for held in self.lanes:
            lost = held.give_up_unsure()
            if lost:
                self.lanes.reserving[held] = None
                settings = held.lane.settings
                text = (
                    f"{lost} positions of {settings.kind} {settings.name!r} are left out, up to {held.tail}"
                )
                self._outbox.event("warning", "SYSTEM_AD_POSITIONS_LOST", text)

    def _change_lanes(self, header: LanesFrame, frames: list[bytes]) -> None:
        if self._lanes_named >= LANES_PER_TICK:
            self._line.put(header, frames)
            return
        try:
            for put in header.puts:
                check_settings(put.settings)
        except errors.AngariumError as error:
            self._fault(f"LANES: {error.detail}")
            return
        self.parts.parting.cancel(put.lane for put in header.puts)
        self._flows.tell(self.parts.changes.put(header.puts, self._now, self._wall_ms))
        if header.complete:
            named = [put.lane for put in header.puts]
            self.parts.parting.begin(header.elsewhere, self._now, self._wall_ms)
            self._sort_out([*named, *header.leaving, *header.elsewhere], header.deletes)
            self.pending.flush()
        else:
            for held in [held for held in map(self.lanes.get, header.deletes) if held is not None]:
                self.parts.serving.forget(held)
                self._flows.tell(self.parts.changes.delete(held, self._now, self._wall_ms))
        self._lanes_named += len(header.puts) + len(header.deletes)
        self.writing.add(Task(LanesDurable(header)))

    def _sort_out(self, named: list[int], deleted: list[int]) -> None:
        """Part with the lanes that are not among all that there are, and tell operators which are kept aside."""
        orphans = self.parts.changes.orphans(named)
        for held in orphans:
            self.parts.serving.forget(held)
        told, kept = self.parts.changes.sort_out(orphans, deleted, self._now, self._wall_ms)
        self._flows.tell(told)
        if kept:
            fullest = max(kept, key=lambda held: held.lane.messages).lane.settings
            messages = sum(held.lane.messages for held in kept)
            text = (
                f"{len(kept)} lanes with {messages} messages, most of {fullest.kind} {fullest.name!r}, are kept aside: "
                "no object claims them; see 'angarium spool aside list'"
            )
            newest = max(held.lane_id for held in kept) >> wire.LANE_BITS
            self._outbox.event("error", "SYSTEM_AD_LANES_KEPT_ASIDE", text, newest_endpoint=newest)

    def _confirm(self, event: LanesDurable) -> None:
        """Answer LANES that is durable."""
        header = event.header
        if header.router != self.pending.router:
            return
        if header.complete:
            self._outbox.frames.append(self._reports.home(header.router, header.number, self._now))
            self.parts.moves.open()
        else:
            self._outbox.say(LanesConfirmFrame(self.incarnation, header.number))

    def _store(self, header: StoreFrame, frames: list[bytes]) -> None:
        pending = self.pending
        if not pending.expects(header.number):
            resent = header.number <= pending.received
            self._counts["stores_resent" if resent else "stores_out_of_order"] += 1
            if not resent:
                self._fault(f"STORE {header.number} came after {pending.received}")
            return
        is_promoted = header.producer is None and header.relaxed
        if is_promoted and pending.bytes > self._limits.unwritten_bytes_max:
            header = self._drop_promoted(header)
            frames = frames[: 2 + len(header.groups)]
        try:
            store = self.parts.stores.make(header, frames[2:])
        except errors.AngariumError as error:
            # It is neither stored nor acknowledged, and nothing behind it is: loud, and nothing is lost.
            self._fault(f"STORE {header.number}: {error}")
            return
        if store.stage:
            self.parts.staging.add(store)
        if header.release or header.drop:
            self.parts.staging.decide(store, header, self._now)
        if store.is_relaxed:
            store.is_relaxed = self._may_wait(store, header)
        pending.take(store, self._now)
        if header.parts:
            self.parts.parting.begin(header.parts, self._now, self._wall_ms)
        self._accept()

    def _drop_promoted(self, header: StoreFrame) -> StoreFrame:
        """Give a STORE without its rows; with them while consumers may have seen some of it before a restart."""
        lane_ids = dict.fromkeys(lane_id for group in header.groups for lane_id in group.lanes)
        lanes = [held for held in map(self.lanes.get, lane_ids) if held is not None]
        if any(held.tail < held.unsure for held in lanes):
            return header
        self._counts["rows_promoted_dropped"] += sum(group.rows for group in header.groups)
        for held in lanes:
            self.writing.hold_back(held, held.tail)
        return msgspec.structs.replace(header, groups=[])

    def _may_wait(self, store: Store, header: StoreFrame) -> bool:
        """Tell whether a relaxed STORE may really be written later."""
        # What a last value replaces may be durable, and must not go from the disk before the new one is there.
        if any(held.lane.settings.last_value for held, _ in store.segments):
            return False
        # Beyond the limit a producer waits for the disk, like any other.
        return header.producer is None or self.pending.bytes <= self._limits.unwritten_bytes_max

    def _flow(self, header: FlowFrame, _frames: list[bytes]) -> None:
        self._flows.take(header, self._now, self._wall_ms)

    def _gather(self, header: GatherFrame, _frames: list[bytes]) -> None:
        self._lookups.take(header)

    def _lease(self, header: LeaseFrame, _frames: list[bytes]) -> None:
        if type(header.verb) is ReadRetained:
            self.parts.retained_reads.take(header, header.verb, self._wall_ms)
        else:
            self.parts.leases.take(header, self._now, self._wall_ms)

    def _allow(self, header: AllowanceFrame, _frames: list[bytes]) -> None:
        self.parts.serving.allowance = header.messages

    def _moved(self, header: MovedFrame, _frames: list[bytes]) -> None:
        self.parts.moves.moved(header.lane, header.first, header.upto, header.refused)

    def _fault(self, text: str) -> None:
        """Count a frame that no router of ours sends, and tell operators."""
        self.faults += 1
        self._outbox.event("error", "SYSTEM_AD_FRAME_REFUSED", text)

    def request(self, operation: str, arguments: Any, now: float, wall_ms: int) -> Any:
        """Answer an operator: a value, or an `Answer` that `take_answers` gives when it is known.

        Raises:
            AngariumError: as `Operations.request`.
        """
        self._now, self._wall_ms = now, wall_ms
        return self.operations.request(operation, arguments, now, wall_ms)

    @property
    def is_spent(self) -> bool:
        """Whether the frames since the last tick have cost what one turn may."""
        return self.parts.effort.left <= 0

    # -- writes ----------------------------------------------------------------------------------------------

    def take_write(self) -> tuple[int, Sequence[Change]] | None:
        """Give the next group to be written, if there is one and none is out."""
        write = self.writing.take(self._now)
        return None if write is None else (write.number, write.changes)

    def written(self, number: int, now: float, wall_ms: int) -> None:
        """Take note that a group is durable."""
        self._now, self._wall_ms = now, wall_ms
        write = self.writing.written(number)
        if not write.frees_only:
            self._space.written(now)
        self._accept()
        for held in write.tails:
            if held.lane.retained is not None and not held.is_gone:
                self.lanes.short[held] = None  # what was replaced may go
        for held, _ in write.positions:
            if held.lane.barred and not held.is_gone:
                self.lanes.touched[held] = None
        if write.dead:
            self._reports.note_freed()
        for segment, _ in write.partial:
            self.parts.repacking.note_loss(self.parts.blocks.get(segment.block))
        for task in write.tasks:
            if task.event is not None:
                self._when_durable[type(task.event)](task.event)
        if self._lookups.waiting:
            self._lookups.answer()

    def failed(self, number: int, detail: str, now: float) -> None:
        """Take note that there was no room for a group; it is tried again."""
        self._now = now
        self.writing.failed(number, now)
        self._space.lacks(detail, now)

    def _accept(self) -> None:
        """Give lanes what is accepted now."""
        for store in self.pending.take_accepted():
            if store.block is None:
                self._accept_released(store)
            elif self.parts.blocks.get(store.block.id) is store.block:
                self.parts.blocks.count(store.block)
                self.parts.staging.accept(store) if store.stage else self._accept_rows(store)

    def _accept_rows(self, store: Store) -> None:
        block = store.block
        assert block is not None
        lanes = self.lanes
        for held, segment in store.segments:
            if held.is_gone or segment.first < held.floor:
                self.writing.discard(segment, self._now)
                continue
            held.accepted = segment.last
            lanes.changed[held] = None
            if held.importing:
                held.wait(segment)
                continue
            held.add(segment.count, segment.live_bytes)
            held.lane.append(segment, self._now, self._wall_ms)
            if lanes.watch is not None and held.lane_id in lanes.watch.lanes:
                lanes.watch.stored(held.lane, segment)
            lanes.touched[held] = None
            lanes.changed[held] = None
            if not block.is_written and held.lane.flows and held.reserve_ahead():
                lanes.reserving[held] = None
        self.parts.blocks.note_new(block, self._now)

    def _accept_released(self, store: Store) -> None:
        """Give lanes what was staged for them; nothing of it is theirs before it is durable."""
        lanes, blocks = self.lanes, self.parts.blocks
        for held, segment in store.segments:
            if self.parts.staging.accept_released(held, segment, self._now):
                held.accepted = segment.last
                held.lane.append(segment, self._now, self._wall_ms)
                lanes.touched[held] = lanes.changed[held] = None
                block = blocks.get(segment.block)
                assert block is not None
                blocks.note_new(block, self._now)

    # -- out -------------------------------------------------------------------------------------------------

    def tick(self, now: float, wall_ms: int) -> float | None:
        """Do what is due; gives when to be called again at the latest (monotonic s), None for no need."""
        self._now, self._wall_ms = now, wall_ms
        if self._is_stopping:
            return None
        self.parts.effort.now = now
        for held in self.lanes.take_due(now, LANES_PER_TICK):
            self._tick_lane(held)
            self.lanes.touched[held] = None
        if self.lanes.short:
            self._serve_short()
        self._work(now, wall_ms)
        self.parts.serving.serve(now, wall_ms, self._lanes_named + BINDS_PER_TICK - self._flows.left)
        if self.lanes.quiet or self.lanes.rest_at is not None:
            self.lanes.rest(now, self.parts.rouse)
        report = self._reports.committed(now)
        if report is not None:
            self._outbox.frames.append(report)
        # What frames cost until the next tick is taken off its turn.
        self.parts.renew_efforts()
        self._flows.left = BINDS_PER_TICK
        self._lanes_named = 0
        return self._next_due(now)

    def _work(self, now: float, wall_ms: int) -> None:
        """Let those go on that have something to do beside the messages of clients."""
        parts = self.parts
        if self._line.frames:
            self._go_on_in_line()
        if self._flows.waiting:
            self._flows.work(now, wall_ms)
        if parts.moves.busy:
            parts.moves.work(now, wall_ms)
        if parts.adoptions.has_work:
            parts.adoptions.work(now, wall_ms)
        if parts.early.by_lane:
            parts.early.work(now)
        if parts.parting.has_work:
            parts.parting.work(now, wall_ms)
        if parts.leases.waiting:
            parts.leases.work(now, wall_ms)
        if parts.retained_reads.is_busy:
            parts.retained_reads.work(wall_ms)
        if self._may_repack:
            parts.repacking.work(now)
        if parts.changes.left_over:
            parts.changes.work()
        if self.writing.may_sweep:
            self.writing.sweep(now)
        if self.operations.is_busy:
            self.operations.work()

    @property
    def _may_repack(self) -> bool:
        """Whether there are blocks that are worth packing anew, perhaps not yet."""
        return bool(self.parts.repacking.sparse) or len(self.parts.blocks.small) >= SMALL_BLOCKS

    def _serve_short(self) -> None:
        for held in self.lanes.take_short(self.parts.effort):
            self._tick_lane(held)
            self.parts.serving.serve_short(held, self._now, self._wall_ms)

    def _tick_lane(self, held: HeldLane) -> None:
        if held.is_parting:
            return
        if held.lane.retained is not None:
            held.lane.retained.stored_upto = held.stored
        if held.importing:
            held.lane.leasing.hold(self._now)
        self._box.begin(DELIVER, held.lane_id, 0)
        events = held.lane.tick(self._now, self._wall_ms)
        self._box.end()
        self._flows.tell(events)

    def _next_due(self, now: float) -> float | None:
        parts = self.parts
        if (
            parts.serving.has_more
            or self.lanes.short
            or self._flows.waiting
            or self._line.frames
            or self.operations.is_busy
            or self.writing.may_sweep
            or parts.retained_reads.is_short
        ):
            return now
        dues = (
            self.lanes.next_due,
            self.lanes.rest_at,
            parts.moves.next_due() if parts.moves.busy else None,
            self._reports.next_due(),
            self.writing.next_due() if self.writing.out is None else None,
            parts.repacking.next_due() if self._may_repack else None,
            parts.adoptions.next_due() if parts.adoptions.has_work else None,
            parts.early.next_due() if parts.early.by_lane else None,
            parts.parting.next_due() if parts.parting.has_work else None,
        )
        return min((due for due in dues if due is not None), default=None)

    def take_frames(self) -> list[list[bytes]]:
        """Give the frames for the router, in order."""
        return self._outbox.take_frames()

    def take_events(self) -> list[dict[str, Any]]:
        """Give what operators should know."""
        return self._outbox.take_events()

    def stats(self) -> dict[str, Any]:
        """Give counters and sizes of the home."""
        return {
            **self.parts.stats(),
            "disk_bytes": self._reports.disk_bytes(self._now),
            "home_faults": self.faults,
            **{f"home_{name}": number for name, number in self._counts.items()},
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self.parts.validate()
        assert not self.is_stopped or self._is_stopping
