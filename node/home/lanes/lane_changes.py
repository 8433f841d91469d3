"""LANES: lanes come, change, are emptied and go.

What the router says is in force at once, for every frame behind it, and confirmed when it is durable. To
delete or empty a lane is one row on disk: it is gone, or it says up to which position nothing counts any more.
The messages, records and blocks follow in the background, in bounded writes.

A lane is deleted only if its deletion was decided: the router names such endpoints in the complete LANES. What else
the router does not name may belong to a config store that is lost, older, or of another data directory. Such a lane is
kept aside: it stays on disk as it is, with messages, records and moves. Nobody is served from it, nothing in it
expires, and its blocks are not packed again. LANES that names it makes it a lane like any other again; an operator may
also read it, or delete it.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from angarium_server.costs import PARTITION_BYTES
from angarium_server.frames.homes import FlowEvent
from angarium_server.frames.settings import LaneSettings, settings_map
from node.endpoints.resting import FIRST_START
from node.home.spool import layout
from node.home.spool.held_lanes import NO_SEGMENTS, PROVISIONAL, HeldLane
from node.home.spool.writing import Task
from node.selectors import compile_selector
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from angarium_server.frames.homes import LanePut
    from node.backlog.segment import Segment
    from node.home.lanes.adoption import Adoptions
    from node.home.lanes.moves import Moves
    from node.home.lanes.others import Trail
    from node.home.spool.held_lanes import HeldLanes
    from node.home.spool.records import Records
    from node.home.spool.recovery import MakeLane
    from node.home.spool.staging import Staging
    from node.home.spool.writing import Writing
    from storage.spool import Change, Spool

#: Records of deleted lanes that one write deletes, and lanes that are asked for theirs.
RECORDS_PER_WRITE: Final = 2_000
LANES_PER_WRITE: Final = 100


class LaneDeleted(NamedTuple):
    """The row of a lane is off the disk; records and moves of it may still be there."""

    lane_id: int


class LanesCleared(NamedTuple):
    """Some of what lanes left over is off the disk."""


class LaneChanges:
    """Carries out what the router says about lanes."""

    def __init__(
        self,
        spool: Spool,
        lanes: HeldLanes,
        records: Records,
        writing: Writing,
        moves: Moves,
        adoptions: Adoptions,
        staging: Staging,
        make_lane: MakeLane,
    ) -> None:
        self._spool = spool
        self._lanes = lanes
        self._records = records
        self._writing = writing
        self._moves = moves
        self._adoptions = adoptions
        self._staging = staging
        self._others = adoptions.others
        self._make_lane = make_lane
        self.aside = KeptAside(spool, lanes, records, moves, staging)
        #: Deleted lanes whose records are still on disk.
        self.left_over: dict[int, None] = {}
        self._is_clearing = False
        #: What lanes took that are not here any more, since the process started.
        self.freed_bytes = 0
        #: What was told last: the lanes of an endpoint come one after the other, and share them.
        self._settings = LaneSettings()

    def put(self, puts: Sequence[LanePut], now: float, wall_ms: int) -> list[FlowEvent]:
        """Make, change or empty lanes; gives what that means for their flows.

        Raises:
            InvalidRequestError: the selector of a topic endpoint is invalid (40601).
        """
        for put in puts:
            if not self.aside.is_parted(put.lane):
                self.aside.take_back(put.lane)
        missing = [put.lane for put in puts if self._lanes.get(put.lane) is None]
        elsewhere = self._others.search(missing)
        for lane_id in [lane_id for lane_id in missing if self.aside.is_parted(lane_id)]:
            self._take_back_parted(lane_id, elsewhere, now, wall_ms)
        told: list[FlowEvent] = []
        for put in puts:
            if put.settings != self._settings:
                self._settings = put.settings
            held = self._lanes.get(put.lane)
            if held is None:
                self._make(put.lane, put.generation, self._settings, elsewhere.get(put.lane))
            else:
                told += self._change(held, put.generation, self._settings, now, wall_ms)
        return told

    def _take_back_parted(self, lane_id: int, elsewhere: dict[int, Trail], now: float, wall_ms: int) -> None:
        """Be the home again of a lane that was parted with: of what another worker has by now, else of what is here.

        What is here is not deleted for a worker that was still taking it over from here.
        """
        held = self.aside.get(lane_id)
        trail = elsewhere.get(lane_id, [])
        is_complete = bool(trail) and not trail[-1].row.is_unfinished
        if held is not None and is_complete and trail[0].row.handovers > held.handovers:
            self.delete_aside(lane_id, now, wall_ms)
        else:
            elsewhere.pop(lane_id, None)
            self.aside.take_back(lane_id)

    def _make(self, lane_id: int, generation: int, settings: LaneSettings, trail: Trail | None) -> None:
        """Make a lane that is not here; if other spools have it, it is taken over."""
        held = HeldLane(
            self._make_lane(lane_id, generation, settings, FIRST_START), PROVISIONAL if trail else 0
        )
        self._lanes.add(held)
        self._lanes.rows[held] = None
        self._moves.look_at(held)
        if trail:
            held.handovers = trail[0].row.handovers + 1
            held.importing = PROVISIONAL + 1
            self._adoptions.begin(held, trail)

    def _change(
        self, held: HeldLane, generation: int, settings: LaneSettings, now: float, wall_ms: int
    ) -> list[FlowEvent]:
        events: list[FlowEvent] = []
        if held.lane.generation > generation:
            # The router has this of a config store that is older than the spool: nothing of that was wished.
            held.lane.generation = generation
            self._lanes.rows[held] = None
        elif held.lane.generation < generation:
            events += self._end_flows(held, now, wall_ms)
            events += held.lane.leasing.drop(wall_ms)
            # What comes again leaves out what was for the generation before.
            held.give_up_unsure()
            self.empty(held, held.tail, now)
            self._staging.drop_lane(held, now)
            held.lane.generation = generation
            self._lanes.rows[held] = None
        if held.lane.settings != settings:
            events += held.lane.configure(settings, now, wall_ms)
            self._lanes.rows[held] = None
            self._lanes.touched[held] = None
        self._moves.look_at(held)
        return events

    def purge(self, held: HeldLane, now: float) -> int:
        """Remove what a lane has; what is not acknowledged yet is not touched. Gives how many messages."""
        return self.empty(held, held.accepted, now)

    def empty(self, held: HeldLane, upto: int, now: float) -> int:
        """Remove all messages of a lane up to a position, at least what is accepted; gives how many it had."""
        assert upto >= held.accepted
        messages = held.lane.purge()
        held.floor = max(held.floor, upto + 1)  # an operator may purge what was just emptied
        self._lanes.rows[held] = None
        if held.stored < held.tail:
            self._writing.hold_back(held, held.accepted)
        self._writing.abandon(held.lane.take_changed())
        for segment in held.waiting:
            messages += segment.live
            self._writing.discard(segment, now)
        held.waiting = NO_SEGMENTS
        self._lanes.note_losses(held, self._writing.noted, self._writing.durable)
        self._moves.count(held)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        return messages

    def delete(self, held: HeldLane, now: float, wall_ms: int) -> list[FlowEvent]:
        """Delete a lane with everything that belongs to it; tells its flows."""
        if held.lane.messages:
            held.lane.purge()
        self._writing.abandon(held.lane.take_changed())
        self._adoptions.drop(held, now)
        self._staging.drop_lane(held, now)
        events = self.set_aside(held, now, wall_ms)
        lane_id = held.lane_id
        self._writing.add(Task(LaneDeleted(lane_id), late_changes=partial(self._without_rows, lane_id)))
        return events

    def _without_rows(self, lane_id: int) -> list[Change]:
        """Give the changes that take the rows of a lane away; the row of one that is here again stays."""
        row, *others = layout.keys_of_lane(lane_id)
        keys = others if self._lanes.get(lane_id) is not None else (row, *others)
        return [(Table.LANES, key, None) for key in keys]

    def set_aside(self, held: HeldLane, now: float, wall_ms: int) -> list[FlowEvent]:
        """Serve a lane no longer, and leave it on disk for the worker that claims it; tells its flows."""
        for segment in held.lane.take_changed():
            self._writing.note(held, segment, now)
        events = self._end_flows(held, now, wall_ms)
        self._staging.forget(held)
        self._records.drop_lane(held.lane_id)
        self._moves.drop(held)
        self._lanes.drop(held)
        self.freed_bytes += PARTITION_BYTES
        return events

    def orphans(self, named: Iterable[int]) -> list[HeldLane]:
        """Give the lanes that the router does not name in the list of all."""
        known = dict.fromkeys(named)
        return [held for held in self._lanes if held.lane_id not in known and not held.is_parting]

    def sort_out(
        self, orphans: list[HeldLane], deleted: list[int], now: float, wall_ms: int
    ) -> tuple[list[FlowEvent], list[HeldLane]]:
        """Part with lanes that nobody names; tells their flows, and gives those that are kept aside now.

        Args:
            orphans: these lanes.
            deleted: the first lanes of endpoints whose deletion was decided.
            now: the time.
            wall_ms: the same on the wall.
        """
        endpoints = {_endpoint_of(lane_id) for lane_id in deleted}
        told: list[FlowEvent] = []
        kept = []
        for held in orphans:
            if _endpoint_of(held.lane_id) in endpoints:
                told += self.delete(held, now, wall_ms)
            elif held.importing or self._others.is_claimed(held.lane_id):
                self._adoptions.let_go(held)
                told += self.set_aside(held, now, wall_ms)
            else:
                told += self._keep_aside(held, now, wall_ms)
                kept.append(held)
        for lane_id in [held.lane_id for held in self.aside if _endpoint_of(held.lane_id) in endpoints]:
            self.delete_aside(lane_id, now, wall_ms)
        return told, kept

    def _keep_aside(self, held: HeldLane, now: float, wall_ms: int) -> list[FlowEvent]:
        for segment in held.lane.take_changed():
            self._writing.note(held, segment, now)
        events = self._end_flows(held, now, wall_ms)
        self.aside.put(held)
        return events

    def delete_aside(self, lane_id: int, now: float, wall_ms: int) -> int:
        """Delete a lane that is kept aside, because somebody decided that; gives how many messages it had."""
        # What was under way in it is the next home's, or given up: it is not asked for again.
        held = self.aside.take_back(lane_id, with_moves=False)
        assert held is not None
        messages = held.lane.messages
        self.delete(held, now, wall_ms)
        return messages

    def end_flows(self, held: HeldLane, now: float, wall_ms: int) -> list[int]:
        """End the flows of a lane without a word; gives them."""
        flows = list(held.lane.flows)
        for flow in flows:
            self._lanes.flows.pop(flow, None)
        held.lane.end_flows(now, wall_ms)
        return flows

    def _end_flows(self, held: HeldLane, now: float, wall_ms: int) -> list[FlowEvent]:
        flows = self.end_flows(held, now, wall_ms)
        detail = "the endpoint was deleted, or created again"
        return [FlowEvent(flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT, detail) for flow in flows]

    # -- what is left over -----------------------------------------------------------------------------------

    def clear(self, event: LaneDeleted) -> None:
        """Have the records and moves of a lane that does not exist deleted, in the background."""
        if self._lanes.get(event.lane_id) is None:
            self.left_over[event.lane_id] = None

    def work(self) -> None:
        """Delete some more of what lanes left over."""
        if self._is_clearing:
            return
        changes: list[Change] = []
        for lane_id in list(islice(self.left_over, LANES_PER_WRITE)):
            start, end = layout.number_key(lane_id), layout.lane_end(lane_id)
            room = RECORDS_PER_WRITE - len(changes)
            found = self._spool.scan(Table.RECORDS, start, end, room)
            changes += [(Table.RECORDS, key, None) for key, _ in found]
            if len(found) >= room:
                break
            changes.append((Table.MOVES, start, None))
            del self.left_over[lane_id]
        self._is_clearing = True
        self._writing.add(Task(LanesCleared(), changes))

    def cleared(self, _event: LanesCleared) -> None:
        """Take note that some more is off the disk."""
        self._is_clearing = False

    def stats(self) -> dict[str, int]:
        """Give how many deleted lanes are not cleared from the disk yet, and what is kept aside."""
        return {
            "lanes_to_clear": len(self.left_over),
            "lanes_kept_aside": len(self.aside),
            "messages_kept_aside": self.aside.messages,
        }


def _endpoint_of(lane_id: int) -> int:
    return lane_id >> wire.LANE_BITS


def check_settings(settings: LaneSettings) -> None:
    """Return if the selector is valid.

    Raises:
        InvalidRequestError: it is not (40601).
    """
    if settings.selector:
        compile_selector(settings.selector)


class _Aside(NamedTuple):
    """A lane and what is staged for it, by its key on disk."""

    held: HeldLane
    staged: list[tuple[bytes, Segment]]


class KeptAside:
    """The lanes of a home that nobody claims."""

    def __init__(
        self, spool: Spool, lanes: HeldLanes, records: Records, moves: Moves, staging: Staging
    ) -> None:
        self._spool = spool
        self._lanes = lanes
        self._records = records
        self._moves = moves
        self._staging = staging
        #: None of them is in `HeldLanes`, which knows their ids.
        self._aside: dict[int, _Aside] = {}

    def __len__(self) -> int:
        """Give how many nobody claims."""
        return len(self._unclaimed)

    def __iter__(self) -> Iterator[HeldLane]:
        """Give them in the order in which they were put here."""
        return (aside.held for aside in self._aside.values())

    @property
    def _unclaimed(self) -> list[HeldLane]:
        """Give those that no other worker takes over."""
        return [held for held in self if not held.is_parting]

    @property
    def messages(self) -> int:
        """Give how many messages these have."""
        return sum(held.lane.messages for held in self._unclaimed)

    def is_parted(self, lane_id: int) -> bool:
        """Tell whether another worker takes a lane over."""
        held = self.get(lane_id)
        return held is not None and held.is_parting

    def get(self, lane_id: int) -> HeldLane | None:
        """Give a lane that is kept aside."""
        aside = self._aside.get(lane_id)
        return None if aside is None else aside.held

    def put(self, held: HeldLane) -> None:
        """Keep a lane aside; its flows have ended, and what changed in it is noted."""
        staged = self._staging.put_aside(held)
        self._records.drop_lane(held.lane_id)
        self._moves.drop(held)
        self._lanes.put_aside(held)
        self._aside[held.lane_id] = _Aside(held, staged)

    def take_back(self, lane_id: int, *, with_moves: bool = True) -> HeldLane | None:
        """Make a lane one like any other again, perhaps without its moves; None if it is not kept aside.

        Raises:
            UnavailableError: what the spool has of it is damaged (50322).
        """
        aside = self._aside.pop(lane_id, None)
        if aside is None:
            return None
        held = aside.held
        self._lanes.take_back(held)
        for key, segment in aside.staged:
            self._staging.load(held, key, layout.unpack_staged_key(key), segment)
        start, end = layout.number_key(lane_id), layout.lane_end(lane_id)
        for key, value in self._spool.scan(Table.RECORDS, start, end):
            self._records.load(key, value)
        moves = self._spool.get(Table.MOVES, start) if with_moves else None
        if moves is not None:
            self._moves.load(lane_id, moves)
        self._lanes.refresh(held)
        return held

    def describe(self) -> list[dict[str, Any]]:
        """Give a row for each that nobody claims, as operators see it."""
        return [
            {
                "lane_id": held.lane_id,
                "kind": held.lane.settings.kind,
                "vpn": held.lane.settings.vpn,
                "name": held.lane.settings.name,
                "partition": held.partition,
                "generation": held.lane.generation,
                "messages": held.lane.messages,
                "bytes": held.lane.bytes,
                "oldest_stored_ms": held.lane.oldest_stored_ms,
                "settings": settings_map(held.lane.settings),
            }
            for held in self._unclaimed
        ]

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for lane_id, aside in self._aside.items():
            assert aside.held.lane_id == lane_id
            assert not aside.held.is_gone
            assert self._lanes.get(lane_id) is None
            assert self._lanes.is_aside(lane_id)
