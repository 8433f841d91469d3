"""Consumers of very many partitions at a home: they come in steps, and others do not wait for them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from node.home.lanes import serving
from node.home.lanes.serving import BINDS_PER_TICK, LANES_PER_TICK
from storage.spool import Table
from tests.unit.node.driven_home import LANE, ROUTER, DrivenHome, rows_of, settings_of

if TYPE_CHECKING:
    from node.home.spool.held_lanes import HeldLane

PARTITIONS = 3 * BINDS_PER_TICK
SETTINGS = settings_of("parted", partitions=PARTITIONS)
ENDPOINT = 77
LANES = [ENDPOINT << wire.LANE_BITS | partition for partition in range(PARTITIONS)]


@pytest.fixture
def driven() -> DrivenHome:
    """A home with a queue of very many partitions and a small one."""
    driven = DrivenHome()
    parted = dict.fromkeys(LANES, SETTINGS)
    driven.start(ROUTER, {LANE: settings_of("q"), **parted})
    driven.settle_down(0.1)
    driven.flow_number = PARTITIONS
    return driven


def orders(driven: DrivenHome, *verb: object) -> None:
    """Say something to the flows 1, 2 and so on, one for each lane."""
    driven.send(wire.FLOW, driven.router, [[flow, list(verb)] for flow in range(1, PARTITIONS + 1)])


def bind_all(driven: DrivenHome) -> None:
    told = [[flow, ["bind", lane, False, None, 100, 1 << 40, {}]] for flow, lane in enumerate(LANES, 1)]
    driven.send(wire.FLOW, driven.router, told)


def active(driven: DrivenHome) -> list[int]:
    return [flow for flow, event, _, _ in driven.events if event == wire.FLOW_ACTIVE]


def test_very_many_binds_are_done_in_steps(driven: DrivenHome) -> None:
    bind_all(driven)
    for step in range(4):
        assert len(driven.home.lanes.flows) == step * BINDS_PER_TICK
        driven.tick()
    assert active(driven) == list(range(1, PARTITIONS + 1))


def test_what_a_step_tells_of_flows_is_one_frame(driven: DrivenHome) -> None:
    driven.home.take_frames()
    bind_all(driven)
    driven.home.tick(driven.now, driven.wall_ms)
    frames = [one for one in driven.home.take_frames() if one[0] == wire.FLOW_EVENT]
    assert len(frames) == 1
    assert len(wire.unpack(frames[0][1])[1]) == BINDS_PER_TICK


def test_others_do_not_wait_for_very_many(driven: DrivenHome) -> None:
    bind_all(driven)
    flow = driven.bind(LANE)
    assert flow in driven.home.lanes.flows
    driven.settle_down(0.1)
    assert active(driven)[0] == flow


def test_what_is_said_of_a_flow_that_waits_is_done_in_order(driven: DrivenHome) -> None:
    last = PARTITIONS
    driven.store(([LANES[-1]], rows_of(3)))
    driven.settle_down(0.1)
    bind_all(driven)
    driven.credit(last, 101)
    driven.credit(last, 102)
    assert [type(verb).__name__ for verb in driven.home.parts.flows.waiting[last]] == ["Bind", "Credit"]
    driven.settle_down(0.1)
    assert driven.delivered[last].order == [1, 2, 3]
    assert driven.home.lanes.get(LANES[-1]).lane.flows[last].messages_granted == 102  # type: ignore[union-attr]


def test_the_next_owner_of_a_partition_comes_when_the_one_before_is_gone(driven: DrivenHome) -> None:
    """Else two would have messages of one key at the same time."""
    bind_all(driven)
    driven.settle_down(0.1)
    orders(driven, "unbind", None)
    following = driven.bind(LANES[-1])
    driven.store(([LANES[-1]], rows_of(2)))
    driven.settle_down(0.1)
    assert list(driven.home.lanes.get(LANES[-1]).lane.flows) == [following]  # type: ignore[union-attr]
    assert driven.delivered[following].order == [1, 2]
    assert driven.delivered[following].counts == {1: 0, 2: 0}, "nobody had them before"


def test_very_many_unbinds_are_done_in_steps_and_what_waits_gets_nothing(driven: DrivenHome) -> None:
    bind_all(driven)
    driven.settle_down(0.1)
    orders(driven, "unbind", None)
    driven.store(*[([lane], rows_of(1)) for lane in LANES])
    driven.write()
    for step in range(4):
        assert len(driven.home.lanes.flows) == PARTITIONS - step * BINDS_PER_TICK
        driven.tick()
    driven.settle_down(0.1)
    assert not driven.home.lanes.flows
    assert not any(driven.delivered.values())


def test_a_hand_off_that_waited_ends_when_all_is_settled(driven: DrivenHome) -> None:
    bind_all(driven)
    driven.store(([LANES[-1]], rows_of(2)))
    driven.settle_down(0.1)
    orders(driven, "unbind", 5_000)
    driven.settle(PARTITIONS, (1, 2))
    driven.settle_down(0.1)
    assert not driven.home.lanes.flows
    assert (
        len([event for _, event, code, _ in driven.events if (event, code) == (wire.FLOW_CLOSED, 0)])
        == PARTITIONS
    )
    assert driven.home.lanes.get(LANES[-1]).messages == 0  # type: ignore[union-attr]


def test_what_is_settled_behind_an_unbind_that_waits_counts_at_once(driven: DrivenHome) -> None:
    """The lane may be taken away before it is the turn of the unbind."""
    bind_all(driven)
    driven.store(([LANES[-1]], rows_of(2)))
    driven.settle_down(0.1)
    orders(driven, "unbind", 5_000)
    driven.settle(PARTITIONS, (1, 2))
    assert driven.home.lanes.get(LANES[-1]).lane.unacked == 0  # type: ignore[union-attr]


def test_a_flow_that_goes_while_it_waits_leaves_nothing(driven: DrivenHome) -> None:
    bind_all(driven)
    orders(driven, "unbind", None)
    driven.settle_down(0.1)
    assert not driven.home.lanes.flows
    assert not driven.home.parts.flows.waiting


def test_lanes_that_go_while_flows_wait_close_them(driven: DrivenHome) -> None:
    bind_all(driven)
    driven.lanes({}, *LANES)
    driven.settle_down(0.1)
    closed = {flow: code for flow, event, code, _ in driven.events if event == wire.FLOW_CLOSED}
    assert closed == dict.fromkeys(range(1, PARTITIONS + 1), errors.UNKNOWN_ENDPOINT)
    assert not driven.home.lanes.flows


def test_another_router_ends_what_waits(driven: DrivenHome) -> None:
    bind_all(driven)
    driven.start(ROUTER + 1, {LANE: settings_of("q")})
    driven.settle_down(0.1)
    assert not driven.home.lanes.flows


def served(driven: DrivenHome) -> list[int]:
    """Note the lanes that are served from here on."""
    found: list[int] = []
    collect = driven.home.parts.serving.collect

    def note(held: HeldLane) -> None:
        found.append(held.lane_id)
        collect(held)

    driven.home.parts.serving.collect = note  # type: ignore[method-assign]
    return found


def test_lanes_that_were_touched_are_served_some_at_a_time(driven: DrivenHome) -> None:
    found = served(driven)
    for held in driven.home.lanes:
        driven.home.lanes.touched[held] = None
    driven.tick()
    assert len(found) == LANES_PER_TICK
    for _ in range(5):
        driven.tick()
    assert sorted(found) == sorted([LANE, *LANES])
    assert not driven.home.parts.serving.has_more


def test_an_endpoint_of_many_lanes_has_one_turn_like_the_others(driven: DrivenHome) -> None:
    found = served(driven)
    small = driven.home.lanes.get(LANE)
    assert small is not None
    driven.home.lanes.touched.update({held: None for held in driven.home.lanes if held is not small})
    driven.tick()
    driven.home.lanes.touched[small] = None
    before = len(found)
    driven.tick()
    assert found[before : before + 2].count(LANE) == 1


def test_a_lane_without_end_leaves_the_others_their_turn(
    driven: DrivenHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "ROWS_PER_TICK", 5)
    small = driven.bind(LANE, messages=100)
    orders_of = [[1, ["bind", LANES[0], False, None, 100, 1 << 40, {}]]]
    driven.send(wire.FLOW, driven.router, orders_of)
    driven.settle_down(0.1)
    driven.store(([LANES[0]], rows_of(50)))
    driven.store(([LANE], rows_of(5)))
    driven.write()
    for _ in range(6):
        driven.tick()
    assert small in driven.delivered


def test_a_lane_that_waits_in_line_may_be_deleted(driven: DrivenHome) -> None:
    driven.home.lanes.touched.update(dict.fromkeys(driven.home.lanes))
    driven.tick()
    driven.start(ROUTER, {LANE: settings_of("q")})
    found = served(driven)
    driven.settle_down(0.1)
    assert set(found) <= {LANE}


def served_of_all(driven: DrivenHome) -> int:
    """Have all lanes touched; give how many are served in the next turn."""
    found = served(driven)
    driven.home.lanes.touched.update(dict.fromkeys(driven.home.lanes))
    driven.tick()
    return len(found)


def test_the_more_consumers_came_or_went_in_a_turn_the_fewer_lanes_are_served_in_it(
    driven: DrivenHome,
) -> None:
    assert served_of_all(driven) == LANES_PER_TICK
    bind_all(driven)
    assert served_of_all(driven) == LANES_PER_TICK - BINDS_PER_TICK
    driven.settle_down(0.1)
    orders(driven, "unbind", None)
    assert served_of_all(driven) == LANES_PER_TICK - BINDS_PER_TICK
    driven.settle_down(0.1)
    assert served_of_all(driven) == LANES_PER_TICK


def test_the_more_lanes_came_in_a_turn_the_fewer_are_served_in_it(driven: DrivenHome) -> None:
    driven.lanes({lane + (1 << wire.LANE_BITS): SETTINGS for lane in LANES[:20]})
    assert served_of_all(driven) == LANES_PER_TICK - 20


def test_lanes_that_are_due_at_the_same_time_have_their_turn_some_at_a_time(driven: DrivenHome) -> None:
    lanes = driven.home.lanes
    for held in lanes:
        held.due = 5.0
        heapq.heappush(lanes._due, (5.0, held.lane_id))
    some, others = lanes.take_due(6.0, LANES_PER_TICK), lanes.take_due(6.0, LANES_PER_TICK)
    assert (len(some), len(others)) == (LANES_PER_TICK, len(LANES) + 1 - LANES_PER_TICK)
    assert {*some, *others} == {*lanes}


def test_what_deleted_lanes_leave_over_is_cleared_in_few_writes(driven: DrivenHome) -> None:
    driven.store((LANES, rows_of(2)))
    driven.settle_down(0.1)
    before = driven.disk.commits
    driven.lanes({}, *LANES)
    driven.settle_down(0.1)
    assert driven.disk.commits - before <= 5
    assert not driven.home.stats()["lanes_to_clear"]
    assert driven.disk.count(Table.RECORDS) == 0


def test_a_bind_that_waits_for_a_lane_that_goes_to_another_worker_comes_to_nothing(
    driven: DrivenHome,
) -> None:
    """Else nobody else is served, if the lane comes back before that worker has it: a partition has one consumer."""
    lane_id = LANES[BINDS_PER_TICK]
    driven.store(([lane_id], rows_of(1)))
    driven.settle_down(0.1)
    bind_all(driven)
    driven.store(producer=None, parts=(lane_id,))
    driven.settle_down(1.0)
    gone = [event for event in driven.events if event[1] == wire.FLOW_CLOSED]
    assert [event[:3] for event in gone] == [[BINDS_PER_TICK + 1, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT]]
    driven.lanes({lane_id: SETTINGS})
    flow = driven.bind(lane_id)
    driven.settle_down(1.0)
    assert driven.delivered[flow].order == [1]
