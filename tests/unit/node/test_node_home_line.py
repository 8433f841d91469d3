"""Lanes that come and go in hundreds stand in line at a home; what is stored and consumed elsewhere does not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from node.home import home as home_module
from node.home.lanes.serving import LANES_PER_TICK
from tests.unit.node.driven_home import LANE, ROUTER, DrivenHome, rows_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINT = 77
TURNS = 8
LANES = [ENDPOINT << wire.LANE_BITS | partition for partition in range(TURNS * LANES_PER_TICK)]
SETTINGS = settings_of("parted", partitions=len(LANES))
#: What is done in one turn.
PARTS = [LANES[at : at + LANES_PER_TICK] for at in range(0, len(LANES), LANES_PER_TICK)]
FIRST, SECOND, LAST = PARTS[0], PARTS[1], PARTS[-1]


@pytest.fixture
def driven() -> DrivenHome:
    """A home with a small queue."""
    driven = DrivenHome()
    driven.start(ROUTER, {LANE: settings_of("q")})
    driven.settle_down(0.1)
    return driven


def _make(driven: DrivenHome) -> None:
    for lanes in PARTS:
        driven.lanes(dict.fromkeys(lanes, SETTINGS))


def _known(driven: DrivenHome) -> list[int]:
    return [lane for lane in LANES if driven.home.lanes.get(lane) is not None]


def test_lanes_come_and_go_some_in_a_turn(driven: DrivenHome) -> None:
    _make(driven)
    for turns in (1, *range(1, TURNS + 1)):
        assert len(_known(driven)) == turns * LANES_PER_TICK
        driven.tick()
    driven.lanes({}, *FIRST)
    driven.lanes({}, *SECOND)
    assert _known(driven) == LANES[LANES_PER_TICK:]
    driven.settle_down(0.1)
    assert _known(driven) == LANES[2 * LANES_PER_TICK :]


def test_what_is_stored_elsewhere_does_not_wait(driven: DrivenHome) -> None:
    _make(driven)
    number = driven.store(([LANE], rows_of(2)))
    assert driven.home.pending.received == number


def test_stores_keep_their_order_behind_one_that_waits(driven: DrivenHome) -> None:
    _make(driven)
    driven.store(([FIRST[0]], rows_of(1)))
    first = driven.home.pending.received
    waiting = driven.store(([LANE, LAST[0]], rows_of(1)))
    last = driven.store(([LANE], rows_of(1)))
    assert (first, waiting, last) == (1, 2, 3)
    assert driven.home.pending.received == first
    driven.settle_down(0.1)
    assert driven.home.pending.received == last
    assert driven.stored == last
    assert not driven.home.faults
    assert driven.home.lanes.get(LAST[0]).messages == 1  # type: ignore[union-attr]


def test_verdicts_for_a_lane_in_line_wait_too(driven: DrivenHome) -> None:
    _make(driven)
    driven.store(producer=(9, 1), refused=[[LAST[0], [[1, 40310]]]])
    assert not driven.home.pending.received
    driven.settle_down(0.1)
    assert driven.stored == 1


def test_what_is_staged_or_leaves_waits(driven: DrivenHome) -> None:
    """It may be about lanes that it does not name."""
    driven.store(([LANE], rows_of(1)), stage=5)
    driven.settle_down(0.1)
    _make(driven)
    driven.decide(release=(5,))
    assert driven.home.pending.received == 1
    driven.settle_down(0.1)
    assert driven.stored == 2
    assert driven.home.lanes.get(LANE).messages == 1  # type: ignore[union-attr]


def test_consumers_elsewhere_are_bound_and_served_meanwhile(driven: DrivenHome) -> None:
    _make(driven)
    flow = driven.bind(LANE)
    driven.store(([LANE], rows_of(2)))
    for _ in range(3):
        driven.tick()
        driven.write()
    assert _known(driven) != LANES, "some are in line still"
    assert driven.delivered[flow].order == [1, 2]
    following = driven.bind(LAST[-1])
    assert following not in driven.home.lanes.flows
    driven.settle_down(0.1)
    assert following in driven.home.lanes.flows


def test_nothing_goes_before_what_may_be_about_any_lane(driven: DrivenHome) -> None:
    _make(driven)
    driven.send(wire.GATHER, driven.router, 1, 4711, False)
    driven.store(([LANE], rows_of(1)))
    driven.allow(7)
    assert not driven.home.pending.received
    assert driven.home.parts.serving.allowance == 7
    driven.settle_down(0.1)
    assert driven.stored == 1
    assert not driven.home._line.frames


def test_a_router_that_starts_finds_what_the_one_before_said_done(driven: DrivenHome) -> None:
    _make(driven)
    driven.start(ROUTER + 1)
    assert _known(driven) == LANES
    assert not driven.home._line.frames


def test_a_home_that_stops_leaves_the_line(driven: DrivenHome) -> None:
    _make(driven)
    driven.restart()
    assert not driven.home._line.frames


def _steps(seed: int) -> list[Callable[[DrivenHome], Any]]:
    """Give what a router may say of some lanes, one after the other."""
    rng = random.Random(seed)
    steps: list[Callable[[DrivenHome], Any]] = []
    there: set[int] = set()
    for _ in range(60):
        lane = rng.choice(LANES[:6])
        if lane not in there:
            there.add(lane)
            steps.append(lambda driven, lane=lane: driven.lanes({lane: settings_of("one")}))  # type: ignore[misc]
        elif rng.random() < 0.2:
            there.remove(lane)
            steps.append(lambda driven, lane=lane: driven.lanes({}, lane))  # type: ignore[misc]
        lanes = [LANE, *rng.sample(sorted(there), min(len(there), 2))]
        kind = rng.randrange(4)
        if kind < 2:
            some = [lanes[0]] if kind else lanes
            steps.append(lambda driven, some=some: driven.store((some, rows_of(1))))  # type: ignore[misc]
        elif kind == 2:
            steps.append(lambda driven, lane=lanes[-1]: driven.bind(lane))  # type: ignore[misc]
        elif rng.random() < 0.3:
            steps.append(DrivenHome.tick)
    return steps


@pytest.mark.parametrize("seed", range(20))
def test_in_the_end_all_is_as_if_nobody_had_waited(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for lanes_per_tick in (1, 1_000):
        monkeypatch.setattr(home_module, "LANES_PER_TICK", lanes_per_tick)
        driven = DrivenHome()
        driven.start(ROUTER, {LANE: settings_of("q")})
        for step in _steps(seed):
            step(driven)
        driven.settle_down(0.1)
        assert not driven.home.faults
        assert driven.stored == driven.number
        driven.home.validate()
        lanes = {held.lane_id: (held.messages, held.tail) for held in driven.home.lanes}
        bound = {flow: held.lane_id for flow, held in driven.home.lanes.flows.items()}
        found.append((lanes, bound))
    assert found[0] == found[1]
