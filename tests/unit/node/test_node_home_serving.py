"""Who gets what is free at the limit of delivered and unsettled messages of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from node.endpoints.flow import Outcomes
from node.home.lanes.serving import (
    ALONE_ROWS,
    BINDS_PER_TICK,
    LANES_PER_TICK,
    ROWS_PER_TICK,
    RUNS_PER_BIND,
)
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, rows_of, settings_of, started

if TYPE_CHECKING:
    from node.backlog.segment import Segment

LIMIT = 10


@pytest.fixture
def driven() -> DrivenHome:
    """A home at its limit: all of it is with the flow of one queue, and another queue has a message and a consumer."""
    driven = started(allowance=LIMIT)
    driven.store(([LANE], rows_of(5 * LIMIT)))
    driven.settle_down()
    driven.bind(LANE, flow=1)
    driven.settle_down()
    driven.store(([OTHER], rows_of(1)), producer=(7, 1))
    driven.bind(OTHER, flow=2)
    driven.settle_down()
    assert len(driven.delivered[1].order) == LIMIT
    assert 2 not in driven.delivered
    return driven


@pytest.mark.requirement("R196")
def test_a_consumer_that_settles_all_it_has_leaves_room_for_the_others(driven: DrivenHome) -> None:
    driven.settle(1, (1, LIMIT))
    driven.settle_down()
    assert driven.delivered[2].order == [1]
    assert len(driven.delivered[1].order) == 2 * LIMIT - 1, "and nothing stays free"


@pytest.mark.requirement("R196")
def test_a_consumer_that_settles_one_by_one_keeps_nobody_waiting_for_ever(driven: DrivenHome) -> None:
    for position in (1, 2):
        driven.settle(1, (position, position))
        driven.settle_down()
    assert driven.delivered[2].order == [1]
    assert len(driven.delivered[1].order) == LIMIT + 1


@pytest.mark.requirement("R196")
@pytest.mark.parametrize("bound_first", [False, True])
def test_who_waits_for_room_has_its_positions_reserved_meanwhile(bound_first: bool) -> None:
    """Else the write of the reservation is awaited when there is room, and the others take it."""
    driven = started(allowance=LIMIT)
    driven.store(([LANE], rows_of(5 * LIMIT)))
    driven.bind(LANE, flow=1)
    driven.settle_down()
    if bound_first:
        driven.bind(OTHER, flow=2)
        driven.settle_down()
    driven.store(([OTHER], rows_of(1)), producer=(7, 1))
    driven.settle_down()
    if not bound_first:
        driven.bind(OTHER, flow=2)
        driven.settle_down()
    driven.settle(1, (1, LIMIT))
    driven.tick()
    driven.tick()
    assert driven.delivered[2].order == [1]


@pytest.mark.requirement("R195")
def test_a_home_says_at_once_what_it_lacks_and_what_is_in_force(driven: DrivenHome) -> None:
    assert (driven.allowed, driven.wanted) == (LIMIT, 5 * LIMIT + 1), "what both queues have"
    driven.allow(2 * LIMIT)
    driven.tick()
    assert driven.allowed == 2 * LIMIT
    driven.settle_down()
    assert len(driven.delivered[1].order) + len(driven.delivered[2].order) == 2 * LIMIT
    driven.allow(10 * LIMIT)
    driven.settle_down()
    assert (driven.allowed, driven.wanted) == (10 * LIMIT, 0)
    assert driven.home.stats()["delivered_unacked_allowance"] == 10 * LIMIT


@pytest.mark.requirement("R195", "R196")
@pytest.mark.parametrize("more", [1, 2, 3])
def test_a_home_that_uses_up_more_says_in_the_same_turn_what_it_lacks_still(
    driven: DrivenHome, more: int
) -> None:
    """Else the router gives what is free to others meanwhile, and they may keep it for long."""
    driven.allow(LIMIT + more)
    driven.tick()
    assert sum(len(one.order) for one in driven.delivered.values()) == LIMIT + more
    assert (driven.allowed, driven.wanted) == (LIMIT + more, 5 * LIMIT + 1)


@pytest.mark.requirement("R195")
def test_a_smaller_allowance_stops_delivery_until_enough_is_settled(driven: DrivenHome) -> None:
    driven.allow(2)
    driven.tick()
    assert driven.allowed == 2
    driven.settle(1, (1, LIMIT - 2))
    driven.settle_down()
    assert 2 not in driven.delivered
    driven.settle(1, (LIMIT - 1, LIMIT))
    driven.settle_down()
    assert driven.home.stats()["delivered_unacked"] == 2
    assert driven.delivered[2].order == [1]


@pytest.mark.requirement("R195")
def test_a_home_has_no_allowance_of_the_router_before(driven: DrivenHome) -> None:
    driven.allowance = 0
    driven.start(ROUTER + 1, {LANE: settings_of("q"), OTHER: settings_of("other")})
    driven.bind(LANE, flow=9)
    driven.settle_down()
    assert 9 not in driven.delivered
    driven.allow(1)
    driven.settle_down()
    assert driven.delivered[9].order == [1]


def test_messages_that_lie_apart_go_out_some_in_each_turn() -> None:
    """A consumer that came to twenty thousand lone messages kept all others waiting for a third of a second."""
    driven = started()
    count = 2 * ROWS_PER_TICK // ALONE_ROWS
    for _ in range(count):
        driven.store(([LANE], rows_of(1)), producer=None)
        driven.store(([OTHER], rows_of(1)), producer=None)
    driven.settle_down()
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    turns, had = 0, 0
    while had < 2 * count:
        driven.tick()
        driven.write()
        has = sum(len(one.order) for one in driven.delivered.values())
        assert has - had <= ROWS_PER_TICK // ALONE_ROWS + LANES_PER_TICK
        turns, had = turns + 1, has
        assert turns < 20
    assert [driven.delivered[flow].order for flow in flows] == [list(range(1, count + 1))] * 2


@pytest.mark.parametrize("access_type", ["exclusive", "non-exclusive"])
def test_a_flow_that_goes_gives_what_it_has_back_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch, access_type: str
) -> None:
    """One that settled every second of ten thousand messages took 30 ms, and so did each other of its client."""
    driven = DrivenHome()
    driven.start(ROUTER, {LANE: settings_of("q", access_type=access_type), OTHER: settings_of("other")})
    count = 10 * BINDS_PER_TICK * RUNS_PER_BIND
    driven.store(([LANE], rows_of(count)), producer=None)
    driven.settle_down()
    gone = driven.bind(LANE)
    driven.settle_down()
    for first in range(1, count, 200):
        driven.settle(gone, *[(position, position) for position in range(first, first + 200, 2)])
    driven.settle_down()
    heir, other = driven.bind(LANE), driven.bind(OTHER)
    driven.settle_down()
    lost: list[int] = []
    lose = Outcomes.lose

    def noted(outcomes: Outcomes, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        lost.append(segment.first + i)
        lose(outcomes, segment, i, j, wall_ms)

    monkeypatch.setattr(Outcomes, "lose", noted)
    driven.unbind(gone)
    assert not lost
    driven.store(([OTHER], rows_of(1)), producer=None)
    for turn in range(1, 6):
        driven.tick()
        assert len(lost) == min(turn * BINDS_PER_TICK * RUNS_PER_BIND, count // 2)
        driven.write()
        if turn == 3:
            assert driven.delivered[other].order == [1]
            assert (heir in driven.delivered) is (access_type == "non-exclusive"), "first all are ready"
    driven.settle_down(0.1)
    assert driven.delivered[heir].order == list(range(2, count + 1, 2))
    assert driven.home.lanes.unacked == count // 2 + 1


def test_what_a_flow_that_goes_settles_before_that_counts() -> None:
    driven = started()
    driven.store(([LANE], rows_of(1_000)), producer=None)
    driven.settle_down()
    gone = driven.bind(LANE)
    driven.settle_down()
    driven.settle(gone, (1, 600))
    driven.unbind(gone)
    driven.credit(gone, 1 << 40)
    driven.settle_down(0.1)
    assert driven.home.lanes.flows == {}
    heir = driven.bind(LANE)
    driven.settle_down(0.1)
    assert driven.delivered[heir].order == list(range(601, 1_001))


def test_a_lane_that_waits_for_its_turn_may_have_lost_what_is_to_be_written_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)))
    driven.bind(LANE, flow=1)
    driven.settle_down()
    driven.settle(1, (1, 1))
    driven.tick()
    monkeypatch.setattr("node.home.lanes.serving.LANES_PER_TICK_MIN", 0)
    monkeypatch.setattr("node.home.lanes.serving.LANES_PER_TICK", 0)
    driven.settle(1, (2, 2))
    driven.tick()
    (lost,) = driven.home.writing.lost_since
    assert lost.lane_id == LANE
    driven.home.validate()
    monkeypatch.undo()
    driven.settle_down()
    assert not [*driven.home.writing.lost_since]
    driven.restart()
    driven.settle_down()
    assert not driven.home.parts.blocks.in_order()
