"""Who gets which message: access types, turns, credit, limits, selectors, priorities, browsers, hand-off."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from angarium import errors, wire
from angarium_server.frames.settings import LaneSettings
from node.endpoints.consumers import BROWSED_MAX, RUNS_MAX, TURN_MAX
from node.endpoints.lane import HAND_OUT_MAX
from node.endpoints.reader import EXAMINED_MAX
from tests.unit.node.lane_driver import (
    ACCEPTED,
    ACTIVE,
    CLOSED,
    FAILED,
    INACTIVE,
    KINDS,
    REFUSED,
    Driver,
    all_of,
    checked_drivers,
    row,
)

SPREAD: dict[str, Any] = {"access_type": "non-exclusive"}


make = pytest.fixture(checked_drivers)


def positions(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.mark.requirement("R101")
def test_of_an_exclusive_endpoint_the_first_flow_gets_everything(make: type[Driver]) -> None:
    driver = make()
    assert driver.bind(1) == [(1, ACTIVE, 0, "")]
    assert driver.bind(2) == [(2, INACTIVE, 0, "")]
    driver.fill(10)
    driver.fill(10)
    assert driver.deliver() == {1: positions(1, 20)}


@pytest.mark.requirement("R101", "R190")
def test_when_the_active_flow_goes_the_next_in_bind_order_takes_over(make: type[Driver]) -> None:
    driver = make()
    for flow in (5, 3, 4):
        driver.bind(flow)
    driver.fill(4)
    driver.deliver()
    assert driver.unbind(4) == []
    assert driver.unbind(5) == [(3, ACTIVE, 0, "")]
    driver.fill(2)
    assert driver.deliver_counts() == {1: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0}
    assert driver.lane.flows[3].out.count == 6
    assert driver.unbind(9) == []


def test_a_second_bind_of_a_flow_changes_nothing(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, messages=2)
    driver.fill(5)
    driver.deliver()
    assert driver.bind(1, messages=1) == [(1, ACTIVE, 0, "")]
    assert driver.lane.flows[1].out.count == 2


@pytest.mark.requirement("R168")
def test_messages_wait_until_somebody_binds(make: type[Driver]) -> None:
    driver = make()
    driver.fill(3)
    assert driver.deliver() == {}
    driver.bind(1)
    assert driver.deliver() == {1: [1, 2, 3]}


@pytest.mark.requirement("R101")
def test_flows_of_a_non_exclusive_endpoint_take_turns(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for flow in (1, 2, 3):
        assert driver.bind(flow) == [(flow, ACTIVE, 0, "")]
    driver.fill(300)
    got = driver.deliver()
    assert sorted(all_of(got)) == positions(1, 300)
    assert [len(got[flow]) for flow in (1, 2, 3)] == [100, 100, 100]


def test_few_messages_spread_over_all_flows(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for flow in range(1, 5):
        driver.bind(flow)
    driver.fill(40)
    assert {flow: len(got) for flow, got in driver.deliver().items()} == {1: 10, 2: 10, 3: 10, 4: 10}


def test_messages_that_come_one_by_one_go_round(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for flow in (1, 2, 3):
        driver.bind(flow)
    order = []
    for _ in range(7):
        driver.fill(1)
        order += list(driver.deliver())
    assert order == [1, 2, 3, 1, 2, 3, 1]


def test_a_turn_is_a_run_of_neighbours(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.bind(2)
    driver.fill(4 * TURN_MAX)
    for handout in driver.handouts():
        assert isinstance(handout.indices, range)
        assert len(handout.indices) <= TURN_MAX


def test_a_flow_has_at_most_64_messages_of_many_in_a_turn(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.bind(2)
    driver.fill(400)
    got = driver.deliver()
    assert sorted(all_of(got)) == positions(1, 400)
    firsts = {flow: [one for one in got[flow] if one <= 256] for flow in got}
    one, two = sorted(firsts.values())
    assert one == [*positions(1, 64), *positions(129, 192)]
    assert two == [*positions(65, 128), *positions(193, 256)]


def test_a_flow_that_is_alone_or_the_only_one_with_room_gets_all_in_one_piece(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1, messages=200)
    driver.fill(100)
    assert [handout.indices for handout in driver.handouts()] == [range(100)]
    driver.bind(2, messages=0)
    driver.fill(300)
    assert [(handout.flow, handout.indices) for handout in driver.handouts()] == [(1, range(100))]


def test_turns_are_fair_between_flows_with_and_without_a_selector(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.bind(2, selector="a")
    driver.bind(3)
    for _ in range(30):
        driver.fill(10, tag="a")
        driver.deliver()
    sent = [driver.lane.flows[flow].messages_sent for flow in (1, 2, 3)]
    assert sum(sent) == 300
    assert max(sent) - min(sent) <= 40


def test_a_flow_without_room_costs_the_others_nothing(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for flow in range(1, 4):
        driver.bind(flow, messages=0 if flow == 2 else 1 << 30)
    driver.fill(20)
    got = driver.deliver()
    assert sorted(got) == [1, 3]
    driver.lane.credit(2, 5, 1 << 30)
    driver.fill(20)
    assert len(driver.deliver()[2]) == 5


# --- credit and limits ----------------------------------------------------------------------------------------


@pytest.mark.requirement("R186", "R187")
def test_a_flow_never_gets_more_messages_than_it_has_credit_for(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, messages=3)
    driver.fill(10)
    assert driver.deliver() == {1: [1, 2, 3]}
    assert driver.deliver() == {}
    driver.settle(1, ACCEPTED, (1, 3))
    assert driver.deliver() == {}, "a settle is no credit"
    driver.lane.credit(1, 5, 1 << 30)
    assert driver.deliver() == {1: [4, 5]}
    driver.lane.credit(1, 2, 1)
    driver.lane.credit(1, 6, 0)
    assert driver.deliver() == {1: [6]}, "totals never fall"
    driver.lane.credit(77, 6, 0)


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (74, 1), (75, 2), (148, 2), (149, 3), (10_000, 10)])
def test_byte_credit_is_overdrawn_by_one_message_at_most(
    make: type[Driver], size: int, expected: int
) -> None:
    driver = make()
    driver.bind(1, bytes_=size)
    driver.fill(10, payload=b"0123456789")
    assert len(driver.deliver()[1]) == expected
    assert driver.lane.flows[1].bytes_sent == expected * 74


def test_a_message_larger_than_the_whole_byte_credit_is_not_stuck(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, bytes_=100)
    driver.fill(2, payload=b"x" * 5000)
    assert driver.deliver() == {1: [1]}
    driver.lane.credit(1, 1 << 30, 5064)
    assert driver.deliver() == {}, "bytes are a total: what was overdrawn is paid first"
    driver.lane.credit(1, 1 << 30, 5065)
    assert driver.deliver() == {1: [2]}


@pytest.mark.requirement("R192", "R193", "R194")
def test_delivery_stops_at_the_limit_of_unsettled_messages_and_resumes(make: type[Driver]) -> None:
    driver = make(max_unacked=4)
    driver.bind(1)
    driver.fill(10)
    assert driver.deliver() == {1: [1, 2, 3, 4]}
    assert driver.deliver() == {}
    driver.settle(1, ACCEPTED, (2, 3))
    assert driver.deliver() == {1: [5, 6]}
    driver.settle(1, FAILED, (1, 1))
    assert driver.deliver() == {1: [1]}


@pytest.mark.requirement("R192")
def test_a_flow_may_lower_the_limit_of_its_endpoint_and_not_raise_it(make: type[Driver]) -> None:
    driver = make(max_unacked=4, **SPREAD)
    driver.bind(1, max_unacked=2)
    driver.bind(2, max_unacked=9)
    driver.fill(20)
    got = driver.deliver()
    assert (len(got[1]), len(got[2])) == (2, 4)


@pytest.mark.requirement("R194")
def test_a_changed_limit_counts_at_once(make: type[Driver]) -> None:
    driver = make(max_unacked=4)
    driver.bind(1)
    driver.fill(10)
    driver.deliver()
    assert driver.configure(max_unacked=6) == []
    assert driver.deliver() == {1: [5, 6]}
    driver.configure(max_unacked=1)
    driver.settle(1, ACCEPTED, (1, 5))
    assert driver.deliver() == {}
    driver.settle(1, ACCEPTED, (6, 6))
    assert driver.deliver() == {1: [7]}


@pytest.mark.requirement("R195", "R196")
def test_the_share_of_the_node_limits_a_call_and_tells_that_more_is_left(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.bind(2)
    driver.fill(100)
    assert sum(map(len, driver.deliver(limit=7).values())) == 7
    assert driver.lane.more
    assert driver.deliver(limit=0) == {}
    assert driver.lane.more
    assert sum(map(len, driver.deliver(limit=93).values())) == 93
    assert not driver.lane.more
    assert driver.lane.unacked == 100


def test_one_call_hands_out_a_bounded_number(make: type[Driver]) -> None:
    driver = make(max_unacked=1_000_000)
    driver.bind(1)
    driver.fill(HAND_OUT_MAX)
    driver.fill(10)
    assert len(driver.deliver(limit=1 << 40)[1]) == HAND_OUT_MAX
    assert driver.lane.more
    assert len(driver.deliver()[1]) == 10


@pytest.mark.parametrize("access_type", ["exclusive", "non-exclusive"])
def test_one_call_hands_out_a_bounded_number_of_runs(make: type[Driver], access_type: str) -> None:
    driver = make(access_type=access_type)
    for flow in range(3):
        driver.bind(flow)
    for _ in range(2 * RUNS_MAX + 5):
        driver.fill(1)
    for count in (RUNS_MAX, RUNS_MAX, 5):
        assert len(all_of(driver.deliver())) == count
        assert driver.lane.more is (count == RUNS_MAX)
    flows = range(3) if access_type == "non-exclusive" else [0]
    taken = [driver.lane.flows[flow].out.count for flow in flows]
    assert sum(taken) == 2 * RUNS_MAX + 5
    assert max(taken) - min(taken) <= TURN_MAX


@pytest.mark.parametrize("ends", [0, 2 * RUNS_MAX + 5])
def test_what_browsers_get_in_one_call_is_bounded_in_runs_too(make: type[Driver], ends: int) -> None:
    driver = make()
    wish: dict[str, Any] = {"first": 1, "end": ends} if ends else {}
    driver.bind(1, browse=True, **wish)
    for _ in range(2 * RUNS_MAX + 4):
        driver.fill(1)
    for count in (RUNS_MAX, RUNS_MAX, 4):
        assert len(driver.deliver()[1]) == count
        assert driver.lane.more is (count == RUNS_MAX)


def test_nothing_goes_out_while_egress_is_off(make: type[Driver]) -> None:
    driver = make(egress_enabled=False)
    driver.bind(1)
    driver.bind(2, browse=True)
    driver.fill(3)
    assert driver.deliver() == {}
    driver.configure(egress_enabled=True)
    assert driver.deliver() == {1: [1, 2, 3], 2: [1, 2, 3]}


# --- browsers -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R136")
def test_a_browser_sees_all_messages_oldest_first_and_takes_none(make: type[Driver]) -> None:
    driver = make(respect_priority=True)
    driver.put(*[row(i, priority=i) for i in range(3)])
    driver.fill(1, delay=1000)
    driver.bind(1, messages=2)
    driver.deliver()
    assert driver.bind(2, browse=True) == [(2, ACTIVE, 0, "")]
    assert driver.deliver() == {2: [1, 2, 3, 4]}
    assert driver.deliver() == {}
    driver.fill(1)
    assert driver.deliver() == {2: [5]}
    assert (driver.lane.messages, driver.lane.unacked) == (5, 2)
    (event,) = driver.settle(2, ACCEPTED, (1, 4))
    assert event[1:3] == (REFUSED, errors.NOT_DELIVERED)
    assert driver.lane.messages == 5
    driver.unbind(2)
    assert driver.lane.stats()["browsed"] == 5


@pytest.mark.requirement("R150")
def test_a_browser_may_have_a_selector(make: type[Driver]) -> None:
    driver = make()
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(6)])
    driver.bind(1, browse=True, selector="b")
    assert driver.deliver() == {1: [2, 4, 6]}


def test_a_browser_has_credit_too(make: type[Driver]) -> None:
    driver = make()
    driver.fill(5)
    driver.bind(1, browse=True, messages=2)
    assert driver.deliver() == {1: [1, 2]}
    driver.lane.credit(1, 100, 1)
    assert driver.deliver() == {1: [3, 4, 5]}
    driver.bind(2, browse=True, bytes_=65)
    assert driver.deliver() == {2: [1, 2]}


def test_a_browser_is_told_how_often_a_message_was_tried(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(2)
    driver.deliver()
    driver.settle(1, FAILED, (2, 2))
    driver.lane.flows[1].messages_granted = driver.lane.flows[1].messages_sent
    driver.bind(2, browse=True)
    assert driver.deliver_counts() == {1: 0, 2: 1}


def test_what_browsers_get_in_one_call_is_bounded(make: type[Driver]) -> None:
    driver = make()
    driver.fill(BROWSED_MAX + 5)
    driver.bind(1, browse=True)
    assert len(driver.deliver()[1]) == BROWSED_MAX
    assert driver.lane.more
    assert len(driver.deliver()[1]) == 5
    driver.fill(EXAMINED_MAX + 1, tag="b")
    driver.bind(2, browse=True, selector="b", messages=1)
    while driver.deliver() == {} or driver.lane.more:
        pass
    assert driver.lane.flows[2].messages_sent == 1


def test_a_browser_neither_is_nor_delays_the_active_flow(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, browse=True)
    assert driver.bind(2) == [(2, ACTIVE, 0, "")]
    assert driver.bind(3) == [(3, INACTIVE, 0, "")]
    assert driver.unbind(1) == []
    assert driver.unbind(2) == [(3, ACTIVE, 0, "")]


# --- hand-off -------------------------------------------------------------------------------------------------


def test_a_flow_that_is_handed_off_settles_first_and_nobody_overtakes_it(make: type[Driver]) -> None:
    driver = make(partitions=2, **SPREAD)
    driver.bind(1)
    driver.bind(2)
    driver.fill(4)
    driver.deliver()
    driver.fill(2)
    assert driver.unbind(1, hand_off_ms=3000) == []
    assert driver.deliver() == {}
    assert driver.lane.next_due() == driver.now + 3
    assert driver.settle(1, ACCEPTED, (1, 3)) == []
    assert driver.settle(1, ACCEPTED, (4, 4)) == [(1, CLOSED, 0, ""), (2, ACTIVE, 0, "")]
    assert driver.deliver() == {2: [5, 6]}
    assert driver.lane.next_due() is None


def test_a_hand_off_whose_time_is_over_takes_the_messages_back(make: type[Driver]) -> None:
    driver = make(partitions=2)
    driver.bind(1)
    driver.bind(2)
    driver.fill(3)
    driver.deliver()
    driver.unbind(1, hand_off_ms=1000)
    driver.settle(1, ACCEPTED, (2, 2))
    driver.pass_ms(990)
    assert driver.tick() == []
    driver.pass_ms(10)
    assert driver.tick() == [(1, CLOSED, errors.PARTITION_LOST, ""), (2, ACTIVE, 0, "")]
    assert driver.deliver_counts() == {1: 1, 3: 1}
    (late,) = driver.settle(1, ACCEPTED, (1, 1))
    assert late[:3] == (1, wire.FLOW_SETTLE_REFUSED, errors.PARTITION_LOST)
    assert driver.lane.messages == 2


def test_a_flow_with_nothing_to_settle_is_handed_off_at_once(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.bind(2)
    assert driver.unbind(1, hand_off_ms=3000) == [(1, CLOSED, 0, ""), (2, ACTIVE, 0, "")]


def test_a_purge_ends_a_hand_off(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(3)
    driver.deliver()
    driver.unbind(1, hand_off_ms=60_000)
    driver.lane.purge()
    due = driver.lane.next_due()
    assert due is not None
    assert due <= driver.now
    assert driver.tick() == [(1, CLOSED, 0, "")]


def test_a_changed_access_type_changes_whose_turn_it_is(make: type[Driver]) -> None:
    driver = make()
    for flow in (1, 2, 3):
        driver.bind(flow)
    assert driver.configure(access_type="non-exclusive") == [(2, ACTIVE, 0, ""), (3, ACTIVE, 0, "")]
    driver.fill(30)
    held = driver.deliver()
    assert sorted(held) == [1, 2, 3]
    assert driver.configure(access_type="exclusive") == [(2, INACTIVE, 0, ""), (3, INACTIVE, 0, "")]
    driver.fill(30)
    assert list(driver.deliver()) == [1]
    assert driver.settle(2, ACCEPTED, (held[2][0], held[2][-1])) == []
    assert driver.lane.messages == 50
    driver.settle(3, FAILED, (held[3][0], held[3][-1]))
    assert driver.deliver() == {1: held[3]}


def test_the_position_of_one_consumer_does_not_move_that_of_another(make: type[Driver]) -> None:
    """Elsewhere a consumer that came or went made others skip messages or get them again."""
    driver = make(**SPREAD)
    driver.bind(1, messages=5)
    driver.bind(2, selector="a", messages=2)
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(20)])
    seen = all_of(driver.deliver())
    for flow in range(3, 9):
        driver.bind(flow, selector="ab"[flow % 2], messages=1)
        seen += all_of(driver.deliver())
        driver.settle(flow, ACCEPTED, (1, 20))
        driver.unbind(flow)
    driver.bind(9)
    seen += all_of(driver.deliver())
    assert sorted(seen) == positions(1, 20)


@pytest.mark.requirement("R279")
@pytest.mark.parametrize("settings", KINDS)
def test_a_lane_that_went_leaves_nothing_for_the_collector(settings: dict[str, Any]) -> None:
    # Collections are rare, so what is in a circle stays in memory for hours.
    driver = Driver(**settings)
    driver.fill(3)
    driver.bind(1)
    driver.deliver()
    driver.unbind(1)
    driver.lane.purge()
    lane, driver.lane = weakref.ref(driver.lane), driver.make_lane(LaneSettings(), 1, 0)

    assert lane() is None
