"""Which lanes go to which workers, so that all have about the same load.

The load of a lane is the messages that came and went in it each second, and their bytes: 1 KiB counts as much as a
message. A lane without traffic has a little of it, so that such lanes are spread by their number. What a lane holds
is no load, but it is what a move costs: of lanes with the same load the smallest go.

A step takes a lane from the worker with the highest load to that with the lowest, the one that brings these closest
to each other. It stops when the difference is small (`SLACK`), or no lane makes it clearly smaller: a lane that is
the only busy one of its worker stays, and nothing swings between two workers. So a plan after a plan was carried
out is empty.

Where workers leave, only their lanes are moved: the largest load first, each to the worker with the least.

Pure functions; `cluster.controller.workers.balancing` uses this.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

#: What a lane without traffic counts, and how many bytes count as much as a message.
IDLE_LOAD: Final = 0.01
BYTES_PER_MESSAGE: Final = 1024
#: Workers whose loads differ by no more than this share of the mean are left alone.
SLACK: Final = 0.25
#: A move has to make a difference smaller by this share of it at least.
GAIN_MIN: Final = 0.2
#: Moves of one plan; the next plan goes on.
MOVES_MAX: Final = 2_000


class Lane(NamedTuple):
    """One partition of an endpoint, and what goes on in it."""

    lane_id: int
    kind: str
    vpn: str
    name: str
    partition: int
    home: int
    messages: int = 0
    bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def load(self) -> float:
        """Give what it counts."""
        return IDLE_LOAD + self.messages_per_s + self.bytes_per_s / BYTES_PER_MESSAGE


class PlannedMove(NamedTuple):
    """A lane and its next home."""

    lane: Lane
    target: int


class Plan(NamedTuple):
    """What is to be moved, and what comes of it."""

    moves: list[PlannedMove]
    #: Worker -> its load before and after.
    before: list[float]
    after: list[float]


def plan_moves(lanes: Iterable[Lane], workers: int, resting: Container[int] = ()) -> Plan:
    """Give the moves that level the loads of workers 0 .. workers - 1.

    Args:
        lanes: all that there are.
        workers: how many there are.
        resting: ids of lanes that stay where they are.
    """
    loads = [0.0] * workers
    #: Worker -> (load, bytes, lane id, lane), rising.
    movable: list[list[tuple[float, int, int, Lane]]] = [[] for _ in range(workers)]
    for lane in lanes:
        if lane.home < workers:
            loads[lane.home] += lane.load
        if lane.home < workers and lane.lane_id not in resting:
            movable[lane.home].append((lane.load, lane.bytes, lane.lane_id, lane))
    for each in movable:
        each.sort()
    before = list(loads)
    slack = SLACK * sum(loads) / workers
    moves: list[PlannedMove] = []
    while len(moves) < MOVES_MAX:
        hot, cold = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[hot] - loads[cold]
        if gap <= slack:
            break
        at = _closest(movable[hot], gap / 2)
        if at is None or not _is_worth_it(movable[hot][at][0], gap):
            break
        entry = movable[hot].pop(at)
        loads[hot] -= entry[0]
        loads[cold] += entry[0]
        moves.append(PlannedMove(entry[3], cold))
    return Plan(moves, before, loads)


def plan_departures(lanes: Iterable[Lane], workers: int, staying: int) -> Plan:
    """Give the moves after which workers `staying` .. workers - 1 have no lanes; also of lanes that rest."""
    loads = [0.0] * workers
    leaving: list[Lane] = []
    for lane in lanes:
        loads[lane.home] += lane.load
        if lane.home >= staying:
            leaving.append(lane)
    before = list(loads)
    moves: list[PlannedMove] = []
    for lane in sorted(leaving, key=lambda one: (-one.load, one.lane_id))[:MOVES_MAX]:
        target = loads.index(min(loads[:staying]))
        loads[lane.home] -= lane.load
        loads[target] += lane.load
        moves.append(PlannedMove(lane, target))
    return Plan(moves, before, loads)


def _is_worth_it(load: float, gap: float) -> bool:
    """Tell whether moving a load makes a difference clearly smaller; one of many small loads does its part."""
    return load <= gap / 2 or 2 * (gap - load) >= GAIN_MIN * gap


def _closest(lanes: list[tuple[float, int, int, Lane]], wanted: float) -> int | None:
    """Give the place of the lane whose load is closest to the wanted one; of several that with the fewest bytes."""
    if not lanes:
        return None
    above = bisect_left(lanes, (wanted,))
    found = [at for at in (above - 1, above) if 0 <= at < len(lanes)]
    firsts = [bisect_left(lanes, (lanes[at][0],)) for at in found]
    return min(firsts, key=lambda at: (round(abs(lanes[at][0] - wanted), 6), lanes[at][1]))
