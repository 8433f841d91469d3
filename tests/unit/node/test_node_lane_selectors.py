"""Selectors and priorities: which messages a flow gets, and what looking for them costs."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from angarium_server.frames.settings import FlowOptions, LaneSettings
from node.endpoints.effort import Effort
from node.endpoints.lane import Lane, Sources
from node.endpoints.reader import EXAMINED_MAX, SKIPPED_MAX
from tests.unit.node.lane_driver import ACTIVE, CLOSED, FAILED, LANE_ID, Driver, all_of, checked_drivers, row

SPREAD: dict[str, Any] = {"access_type": "non-exclusive"}

make = pytest.fixture(checked_drivers)


@pytest.mark.requirement("R140", "R143")
def test_a_selector_leaves_what_it_does_not_select_to_others(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1, selector="a")
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(6)])
    assert driver.deliver() == {1: [1, 3, 5]}
    assert driver.lane.messages == 6
    driver.bind(2, selector="b")
    driver.bind(3, selector="c")
    assert driver.deliver() == {2: [2, 4, 6]}


@pytest.mark.requirement("R143")
def test_an_exclusive_flow_with_a_selector_does_not_hide_messages_from_its_heir(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, selector="a")
    driver.bind(2)
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(4)])
    assert driver.deliver() == {1: [1, 3]}
    driver.unbind(1)
    assert driver.deliver() == {2: [1, 2, 3, 4]}


@pytest.mark.requirement("R144")
def test_a_message_that_is_not_selected_does_not_block_its_partition(make: type[Driver]) -> None:
    driver = make(partitions=4, **SPREAD)
    driver.bind(1, selector="a")
    driver.put(row(0, tag="b"), row(1, tag="a"))
    assert driver.deliver() == {1: [2]}


def test_an_invalid_selector_closes_the_flow_and_nothing_else(make: type[Driver]) -> None:
    driver = make()
    (event,) = driver.bind(1, selector="!x")
    assert event[:3] == (1, CLOSED, errors.INVALID_SELECTOR)
    assert driver.lane.flows == {}
    assert driver.bind(2, selector="") == [(2, ACTIVE, 0, "")]


def test_the_real_selectors_are_used_if_no_others_are_given() -> None:
    driver = Driver()
    lane = Lane(LANE_ID, 1, LaneSettings(), Sources(driver.read_row, Effort()))
    wish: dict[str, Any] = {"browse": False, "messages": 1, "bytes_": 1, "options": FlowOptions(), "now": 0.0}
    assert [one.event for one in lane.bind(1, selector="JMSPriority > 4", **wish)] == [ACTIVE]
    assert [one.code for one in lane.bind(2, selector="JMSPriority > > 4", **wish)] == [
        errors.INVALID_SELECTOR
    ]


def test_a_selector_looks_at_each_message_once(make: type[Driver]) -> None:
    """The cost of a flow with a selector grows with the new messages, not with the backlog."""
    driver = make(**SPREAD)
    driver.bind(1, selector="a")
    driver.fill(400, tag="b")
    assert driver.deliver() == {}
    for _ in range(20):
        driver.fill(1, tag="b")
        assert driver.deliver() == {}
    assert driver.lane.stats()["selector_examined"] == 420


def test_flows_with_the_same_selector_share_the_work(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for flow in range(1, 11):
        driver.bind(flow, selector="a")
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(100)])
    got = driver.deliver()
    assert len(all_of(got)) == 50
    assert max(len(one) for one in got.values()) <= 10
    assert driver.lane.stats()["selector_examined"] <= 110


def test_a_message_that_comes_back_is_examined_again_by_the_flows_it_may_suit(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(4)])
    assert driver.deliver() == {1: [1, 2, 3, 4]}
    driver.bind(2, selector="b")
    assert driver.deliver() == {}
    driver.unbind(1)
    assert driver.deliver() == {2: [2, 4]}
    driver.bind(3, selector="a")
    driver.settle(2, FAILED, (2, 2))
    assert driver.deliver() == {3: [1, 3], 2: [2]}


def test_what_a_selector_examines_in_one_call_is_bounded(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1, selector="a")
    driver.fill(EXAMINED_MAX + 50, tag="b")
    driver.fill(1, tag="a")
    assert driver.deliver() == {}
    assert driver.lane.more
    assert driver.deliver() == {1: [EXAMINED_MAX + 51]}
    assert not driver.lane.more


def test_segments_that_are_skipped_in_one_call_are_bounded(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    for _ in range(SKIPPED_MAX + 10):
        driver.fill(1, delay=60_000)
    driver.fill(1)
    driver.bind(1)
    assert driver.deliver() == {}
    assert driver.lane.more
    assert driver.deliver() == {1: [SKIPPED_MAX + 11]}


def test_a_message_that_cannot_be_read_stays_and_is_counted(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, selector="a")
    driver.fill(2, tag="a")
    driver.fill(1, tag="a")
    driver.damaged.append(1)
    assert driver.deliver() == {1: [3]}
    assert driver.lane.stats()["unreadable"] == 2
    assert driver.lane.messages == 3


def test_no_local_leaves_out_what_the_client_published_itself(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    ann, bob = 11, 22
    driver.bind(1, no_local=ann)
    driver.put(row(0), row(1), publisher=bob)
    driver.put(row(0), row(1), publisher=ann)
    driver.put(row(0))
    assert driver.deliver() == {1: [1, 2, 5]}
    driver.bind(2, no_local=bob, selector="x")
    assert driver.deliver() == {}
    driver.bind(3, no_local=bob)
    assert driver.deliver() == {3: [3, 4]}


def test_a_browser_with_no_local_does_not_see_what_its_client_published(make: type[Driver]) -> None:
    driver = make()
    driver.put(row(0), row(1), publisher=11)
    driver.put(row(0), publisher=22)
    driver.bind(1, browse=True, no_local=11)
    assert driver.deliver() == {1: [3]}
    assert driver.lane.messages == 3


def test_what_only_its_publisher_would_get_stays_until_somebody_else_comes(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, no_local=11)
    driver.put(row(0), publisher=11)
    assert driver.deliver() == {}
    driver.bind(2)
    driver.unbind(1)
    assert driver.deliver() == {2: [1]}


# --- priorities -----------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_in_one_priority_the_order_stays(make: type[Driver]) -> None:
    driver = make(respect_priority=True)
    driver.put(*[row(i, priority=one) for i, one in enumerate((1, 9, None, 255, 0, 4, 9))])
    driver.bind(1, messages=4)
    assert driver.deliver() == {1: [2, 4, 7, 3]}
    driver.put(row(0, priority=9), row(1))
    driver.lane.credit(1, 100, 1 << 30)
    assert driver.deliver() == {1: [8, 6, 9, 1, 5]}


def test_a_message_that_comes_back_keeps_its_place_in_its_priority(make: type[Driver]) -> None:
    driver = make(respect_priority=True)
    driver.put(*[row(i, priority=i % 2) for i in range(8)])
    driver.bind(1, messages=4)
    assert driver.deliver() == {1: [2, 4, 6, 8]}
    driver.settle(1, FAILED, (6, 6))
    driver.settle(1, FAILED, (2, 2))
    driver.lane.credit(1, 8, 1 << 30)
    assert driver.deliver() == {1: [2, 6, 1, 3]}


@pytest.mark.parametrize("ignoring", [{"partitions": 2}, {"last_value": True}, {"respect_priority": False}])
def test_partitions_and_last_value_queues_ignore_priorities(
    make: type[Driver], ignoring: dict[str, object]
) -> None:
    driver = make(**{"respect_priority": True, **ignoring})  # type: ignore[arg-type]
    driver.bind(1)
    driver.put(row(0, priority=1))
    driver.put(row(0, priority=9))
    expected = [2] if "last_value" in ignoring else [1, 2]
    assert driver.deliver() == {1: expected}


def test_respect_for_priorities_can_be_switched(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, messages=1)
    driver.put(*[row(i, priority=i) for i in range(4)])
    assert driver.deliver() == {1: [1]}
    driver.configure(respect_priority=True)
    driver.lane.credit(1, 4, 1 << 30)
    assert driver.deliver() == {1: [4, 3, 2]}
