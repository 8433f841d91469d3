"""Parting: a lane that gets another home goes from a worker that runs.

The router names it in a STORE, behind everything that the lane is to have. From then on nothing happens in it: its
flows end, nothing expires, moves or is packed again. What it got and lost so far is made durable, with the standby if
there is one; and then, in one transaction, its positions as after an orderly stop and the mark that the lane is parted
with. Others read it from then on, from this disk: what they make of it may be at the standby sooner than the mark, but
never sooner than what they have read. Here the lane is kept aside, and deleted when the new home has all of it on its
disk and says so. A process that dies in between finds the mark, or the router sends the STORE again, or another one if
that is on disk without the mark, or names the lane as one that is elsewhere; so there is one home that serves it,
whoever dies when.

A lane that is itself being taken over, or is still in the spool that it came from, is parted with after that.

No clock; `node.home.home` uses this.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from node.home.spool import layout
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from node.home.lanes.lane_changes import LaneChanges
    from node.home.lanes.moves import Moves
    from node.home.lanes.others import Others
    from node.home.lanes.serving import Serving
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing
    from storage.spool import Change, Spool

#: So often is looked whether the new home of a lane has it, and whether a lane that comes is here.
LOOK_S: Final = 0.1


class LaneAtRest(NamedTuple):
    """All that a lane has got and lost is durable: it may be marked."""

    held: HeldLane


class LaneParted(NamedTuple):
    """The mark of a lane is durable."""

    held: HeldLane


class Parting:
    """The lanes of a home that others take over."""

    def __init__(
        self,
        spool: Spool,
        others: Others,
        lanes: HeldLanes,
        writing: Writing,
        moves: Moves,
        serving: Serving,
        changes: LaneChanges,
    ) -> None:
        self._spool = spool
        self._others = others
        self._lanes = lanes
        self._writing = writing
        self._moves = moves
        self._serving = serving
        self._changes = changes
        #: Lanes that are to be parted with when they are here with all they have.
        self._wanted: dict[int, None] = {}
        #: Lanes that are to be marked.
        self._resting: dict[int, None] = {}
        #: Lanes that are parted with, on disk; each is kept aside.
        self._parted: dict[int, HeldLane] = {}
        #: Those of them of which the process found at its start that another worker has all.
        self._had: dict[int, None] = {}
        #: Lanes that are elsewhere and perhaps still on disk here, so that their new home goes on saying so.
        self._going: dict[int, None] = {}
        self._next_look = 0.0
        self._counts = {"lanes_parted": 0}

    def begin(self, lane_ids: Iterable[int], now: float, wall_ms: int) -> None:
        """Part with lanes; those that are not here, or are under way already, are left out."""
        for lane_id in lane_ids:
            held = self._lanes.get(lane_id)
            if held is None or held.is_parting:
                continue
            if held.importing or held.is_doubled:
                self._wanted[lane_id] = None
                continue
            held.is_parting = True
            self._changes.end_flows(held, now, wall_ms)
            self._serving.forget(held)
            self._serving.collect(held)
            self._moves.part(held)
            self._resting[lane_id] = None
            self._writing.add(Task(LaneAtRest(held), with_everything=True))

    def rests(self, event: LaneAtRest) -> None:
        """Mark a lane of which nothing is missing on disk."""
        held = event.held
        if held.is_gone or not held.is_parting:
            self._resting.pop(held.lane_id, None)
            return
        held.is_parted = True
        self._writing.add(Task(LaneParted(held), late_changes=partial(_marks, held), with_everything=True))

    def parted(self, event: LaneParted) -> None:
        """Keep a lane aside that others may read now."""
        held = event.held
        self._resting.pop(held.lane_id, None)
        if not held.is_gone:
            self._counts["lanes_parted"] += 1
            self._put_aside(held)

    def found(self) -> None:
        """Go on with the lanes that the process before had parted with.

        Their new homes may have said that they have all, and say so no more: after a fail-over the deletion of a lane
        may be missing here, which its new home has seen.
        """
        parting = [held for held in self._lanes if held.is_parting]
        elsewhere = self._others.search([held.lane_id for held in parting])
        for held in parting:
            self._put_aside(held)
            trail = elsewhere.get(held.lane_id)
            if trail and trail[0].row.handovers > held.handovers and not trail[0].row.importing:
                self._had[held.lane_id] = None

    def _put_aside(self, held: HeldLane) -> None:
        self._changes.aside.put(held)
        self._parted[held.lane_id] = held

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do, perhaps not yet."""
        return bool(self._parted or self._wanted or self._going)

    def next_due(self) -> float:
        """Give when to look again."""
        return self._next_look

    def work(self, now: float, wall_ms: int) -> None:
        """Delete what is elsewhere by now, and part with what is here by now."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for lane_id, held in list(self._parted.items()):
            if self._changes.aside.get(lane_id) is not held:
                del self._parted[lane_id]  # it was deleted, or this is its home again
                self._had.pop(lane_id, None)
            elif lane_id in self._had or self._others.is_taken(lane_id, held.handovers):
                del self._parted[lane_id]
                self._had.pop(lane_id, None)
                self._changes.delete_aside(lane_id, now, wall_ms)
                self._going[lane_id] = None
        for lane_id in list(self._going):
            if self._spool.get(Table.LANES, layout.number_key(lane_id)) is None:
                del self._going[lane_id]
                self._others.forget_taken(lane_id)
        wanted, self._wanted = self._wanted, {}
        self.begin(wanted, now, wall_ms)

    def cancel(self, lane_ids: Iterable[int]) -> None:
        """Keep lanes that are to have their home here."""
        for lane_id in lane_ids:
            self._wanted.pop(lane_id, None)

    def stats(self) -> dict[str, int]:
        """Give a counter, and how many lanes others take over."""
        parting = len(self._wanted) + len(self._resting) + len(self._parted) + len(self._going)
        return {**self._counts, "lanes_parting": parting}

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(held.is_parting or held.is_gone or not held.importing for held in self._parted.values())


def _marks(held: HeldLane) -> list[Change]:
    """Give the rows that a new home relies on: exact positions, and the mark itself."""
    if held.is_gone:
        return []
    row = layout.Positions(held.tail, held.lane.delivered_upto, held.gaps)
    return [
        held.row_change(),
        (Table.LANES, layout.positions_key(held.lane_id), layout.pack_positions(row)),
        held.lease_change(),
        held.note_change(),
    ]
