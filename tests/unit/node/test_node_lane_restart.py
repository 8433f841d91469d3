"""What outlives a restart, what an operator does to messages, the merging of segments, and what a message costs."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import pytest

from angarium import errors, wire
from node.backlog.segment import make_segment
from tests.unit.node.lane_driver import (
    ACCEPTED,
    FAILED,
    LANE_ID,
    REJECTED,
    Driver,
    all_of,
    checked_drivers,
    merged,
    row,
)

make = pytest.fixture(checked_drivers)


# --- recovery ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R96")
def test_messages_outlive_a_restart_and_settled_ones_do_not_come_back(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(10)
    driver.fill(5)
    driver.deliver()
    driver.settle(1, ACCEPTED, (3, 12))
    driver.store()
    driver.restart(clean=True)
    assert driver.positions() == [1, 2, 13, 14, 15]
    assert driver.lane.bytes == 5 * wire.SPOOL_OVERHEAD_BYTES
    assert driver.lane.unacked == 0
    driver.bind(1)
    assert driver.deliver_counts() == {1: 1, 2: 1, 13: 1, 14: 1, 15: 1}
    assert driver.fill(1).first == 16


@pytest.mark.requirement("R190")
def test_after_an_unclean_stop_what_may_have_been_sent_counts_as_tried(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, messages=4)
    driver.fill(6)
    driver.deliver()
    driver.settle(1, FAILED, (2, 2))
    driver.store()
    driver.settle(1, ACCEPTED, (3, 3))
    driver.restart(clean=False)
    driver.bind(2)
    assert driver.deliver_counts() == {1: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0}


def test_that_a_message_may_have_been_sent_is_not_forgotten_by_a_second_restart(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(2)
    driver.deliver()
    driver.restart(clean=False)
    driver.store()
    driver.restart(clean=True)
    driver.bind(2)
    assert driver.deliver_counts() == {1: 1, 2: 1}


def test_where_nothing_is_sent_twice_an_unclean_stop_leaves_dead_messages(make: type[Driver]) -> None:
    driver = make(redelivery_enabled=False, dead_message_queue="dmq")
    driver.bind(1, messages=2)
    driver.fill(4)
    driver.deliver()
    driver.restart(clean=False)
    assert driver.dead() == [(1, "redeliveries"), (2, "redeliveries")]
    driver.bind(2)
    assert driver.deliver() == {2: [3, 4]}


def test_a_rejected_message_does_not_come_back_after_a_restart(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq")
    driver.bind(1)
    driver.fill(3)
    driver.deliver()
    driver.settle(1, REJECTED, (2, 2))
    assert driver.dead() == [(2, "rejected")]
    driver.store()
    driver.restart(clean=True)
    assert driver.dead() == [(2, "rejected")], "whoever moves it begins again"
    driver.bind(2)
    assert driver.deliver() == {2: [1, 3]}


def test_a_restart_keeps_redelivery_counts_and_ends_delays(make: type[Driver]) -> None:
    driver = make(redelivery_delay=(60_000, 60_000, 100), max_redeliveries=2)
    driver.bind(1)
    driver.fill(1)
    driver.deliver()
    driver.settle(1, FAILED, (1, 1))
    driver.store()
    driver.restart(clean=True)
    driver.bind(1)
    assert driver.deliver_counts() == {1: 1}


def test_each_changed_segment_is_told_once(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    first, second, third = driver.fill(3), driver.fill(3), driver.fill(3)
    driver.deliver()
    assert driver.lane.take_changed() == [], "what is out is not stored"
    driver.settle(1, ACCEPTED, (4, 4))
    driver.settle(1, FAILED, (1, 1))
    driver.settle(1, ACCEPTED, (5, 6))
    assert driver.lane.take_changed() == [second, first]
    assert (second.live, first.live, third.live) == (0, 3, 3)
    assert driver.lane.take_changed() == []


def test_a_gap_of_positions_is_no_fault(make: type[Driver]) -> None:
    """Positions of a relaxed lane that were given out and never written are not used again."""
    driver = make()
    driver.fill(2)
    driver.lane.next_position = 10
    driver.fill(2)
    driver.bind(1)
    driver.bind(2, browse=True)
    assert driver.deliver() == {1: [1, 2, 10, 11], 2: [1, 2, 10, 11]}
    assert driver.lane.find(5) is None
    driver.settle(1, ACCEPTED, (1, 11))
    assert driver.lane.messages == 0
    with pytest.raises(AssertionError):
        driver.lane.append(make_segment(LANE_ID, 3, 1, [row()], None, 1), 1.0, 1)


def test_the_end_of_all_flows_keeps_the_order(make: type[Driver]) -> None:
    driver = make()
    for flow in (1, 2, 3):
        driver.bind(flow)
    driver.fill(3)
    driver.deliver()
    driver.lane.end_flows(driver.now, driver.wall_ms)
    assert driver.lane.flows == {}
    driver.bind(9)
    assert driver.deliver_counts() == {1: 1, 2: 1, 3: 1}


# --- operators --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R180")
def test_a_purge_removes_everything_also_what_is_out(make: type[Driver]) -> None:
    driver = make(redelivery_delay=(100, 100, 100), dead_message_queue="dmq", max_unacked=6)
    driver.bind(1)
    driver.fill(5)
    driver.put(row(0, delay=500, ttl=900), row(1), row(2))
    driver.deliver()
    driver.settle(1, FAILED, (1, 1))
    driver.settle(1, REJECTED, (2, 2))
    assert driver.lane.purge() == 8
    assert (driver.lane.messages, driver.lane.bytes, driver.lane.unacked) == (0, 0, 0)
    assert driver.dead() == []
    assert driver.lane.next_due() is None
    (event,) = driver.settle(1, ACCEPTED, (3, 5))
    assert event.code == errors.NOT_DELIVERED
    driver.pass_ms(2000)
    driver.tick()
    assert driver.fill(2).first == 9
    assert driver.deliver() == {1: [9, 10]}


def test_a_purged_message_does_not_come_back_when_its_queue_is_made_anew(make: type[Driver]) -> None:
    """Elsewhere a queue of the same name got old messages back after a restart."""
    driver = make()
    driver.fill(300)
    driver.fill(10)
    driver.store()
    driver.lane.purge()
    driver.lane.generation += 1
    driver.fill(1)
    driver.store()
    driver.restart(clean=False)
    assert driver.positions() == [311]
    assert list(driver.records) == [next(driver.lane.segments).key()]


def test_a_message_is_deleted_wherever_it_is(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq", max_unacked=2)
    driver.bind(1)
    driver.put(row(0), row(1), row(2, delay=1000), row(3))
    driver.deliver()
    for position in (1, 3, 2):
        driver.gone(position)
    assert driver.lane.find(1) is None
    assert driver.deliver() == {1: [4]}
    assert driver.settle(1, ACCEPTED, (4, 4)) == []
    assert driver.lane.stats()["deleted"] == 3


def test_a_deleted_message_makes_room_for_the_next(make: type[Driver]) -> None:
    driver = make(max_unacked=1)
    driver.bind(1)
    segment = driver.fill(2)
    driver.deliver()
    driver.lane.gone(segment, 0)
    driver.lane.gone(segment, 0)
    assert driver.deliver() == {1: [2]}


def test_a_message_that_is_moved_is_nobodys_until_it_is_gone_or_kept(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq")
    driver.bind(1, messages=1)
    segment = driver.put(row(0), row(1), row(2, delay=50), row(3, ttl=100), row(4))
    driver.deliver()
    assert [driver.lane.take(segment, i) for i in range(5)] == [False, True, True, True, True]
    assert not driver.lane.take(segment, 1)
    driver.lane.credit(1, 100, 1 << 30)
    driver.pass_ms(100)
    assert driver.deliver() == {}
    driver.lane.gone(segment, 4)
    for i in (1, 2, 3):
        driver.lane.kept(segment, i, driver.now, driver.wall_ms)
    driver.lane.kept(segment, 4, driver.now, driver.wall_ms)
    assert driver.deliver() == {1: [2, 3]}
    assert driver.dead() == [(4, "expired")]


def test_a_message_that_is_kept_before_it_is_due_waits_again(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    segment = driver.fill(1, delay=100)
    assert driver.lane.take(segment, 0)
    driver.lane.kept(segment, 0, driver.now, driver.wall_ms)
    assert driver.deliver() == {}
    driver.pass_ms(100)
    assert driver.deliver() == {1: [1]}


def test_what_the_selector_has_not_examined_cannot_be_moved(make: type[Driver]) -> None:
    driver = make(kind="topic-endpoint", selector="a")
    segment = driver.fill(1, tag="a")
    assert not driver.lane.take(segment, 0)
    driver.tick()
    assert driver.lane.take(segment, 0)


def test_a_message_that_cannot_be_read_is_withdrawn_and_not_lost(make: type[Driver]) -> None:
    driver = make(max_unacked=2, redelivery_delay=(100, 100, 100))
    driver.bind(1)
    segment = driver.put(row(0), row(1), row(2), row(3, delay=50))
    driver.deliver()
    for i in (0, 2, 3):
        driver.lane.withdraw(segment, i)
        driver.lane.withdraw(segment, i)
    assert driver.lane.unacked == 1
    driver.pass_ms(1000)
    assert driver.deliver() == {}
    assert driver.lane.take_changed() == []
    (event,) = driver.settle(1, ACCEPTED, (1, 1))
    assert event.code == errors.NOT_DELIVERED
    assert driver.states() == {1: "moving", 2: "unacked", 3: "moving", 4: "moving"}
    driver.lane.kept(segment, 0, driver.now, driver.wall_ms)
    assert driver.deliver_counts() == {1: 0}
    driver.restart(clean=True)
    assert driver.states() == dict.fromkeys(range(1, 5), "ready")


def test_a_withdrawn_message_comes_back_through_the_selector(make: type[Driver]) -> None:
    driver = make(kind="topic-endpoint", selector="a")
    driver.bind(1)
    segment = driver.put(row(0, tag="a"), row(1, tag="b"), row(2, tag="a"))
    for i in range(3):
        driver.lane.withdraw(segment, i)
    driver.lane.kept(segment, 0, driver.now, driver.wall_ms)
    assert driver.states() == {1: "filtering", 2: "moving", 3: "moving"}
    driver.tick()
    for i in range(3):
        driver.lane.kept(segment, i, driver.now, driver.wall_ms)
    assert driver.positions() == [1, 3]
    assert driver.deliver() == {1: [1, 3]}


def test_segments_are_listed_from_a_position_on(make: type[Driver]) -> None:
    driver = make()
    segments = [driver.fill(3) for _ in range(5)]
    driver.gone(7)
    driver.gone(8)
    driver.gone(9)
    del segments[2]
    assert list(driver.lane.segments_from(0)) == segments
    assert list(driver.lane.segments_from(4)) == segments[1:]
    assert list(driver.lane.segments_from(7)) == segments[2:]
    assert list(driver.lane.segments_from(16)) == []
    seen = []
    for segment in driver.lane.segments_from(3):
        seen.append(segment.first)
        driver.gone(segment.last)
    assert seen == [1, 4, 10, 13]


# --- merging ----------------------------------------------------------------------------------------------------


def test_flows_do_not_notice_that_segments_were_merged(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq", redelivery_delay=(500, 500, 100))
    driver.bind(1)
    driver.fill(4)
    driver.put(row(0), row(1), row(2, delay=800), row(3))
    driver.fill(4)
    assert driver.deliver() == {1: [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]}
    driver.settle(1, ACCEPTED, (2, 2))
    driver.settle(1, FAILED, (4, 4))
    driver.settle(1, REJECTED, (9, 9))
    before = driver.states()
    new = merged(driver, list(driver.lane.segments))
    driver.lane.replace(list(driver.lane.segments), new)
    driver.lane.validate()
    assert list(driver.lane.segments) == [new]
    assert driver.states() == before
    assert driver.lane.take_changed() == [new]
    assert driver.dead() == [(9, "rejected")]
    assert driver.settle(1, ACCEPTED, (1, 1), (3, 3), (5, 6), (10, 12)) == []
    driver.pass_ms(500)
    assert driver.deliver() == {1: [4]}
    driver.pass_ms(300)
    assert driver.deliver() == {1: [7]}
    driver.unbind(1)
    assert driver.states() == {4: "ready", 7: "ready", 8: "ready", 9: "moving"}


def test_merged_messages_expire_each_at_its_time(make: type[Driver]) -> None:
    driver = make(max_ttl_s=10)
    driver.fill(1)
    driver.pass_ms(1000)
    driver.put(row(0), row(1, ttl=2000))
    driver.pass_ms(1000)
    driver.fill(1)
    new = merged(driver, list(driver.lane.segments))
    driver.lane.replace(list(driver.lane.segments), new)
    assert [new.stored_at_ms(i) - new.stored_ms for i in range(4)] == [0, 1000, 1000, 2000]
    for passed, left in ((990, [1, 2, 3, 4]), (10, [1, 2, 4]), (7000, [2, 4]), (1000, [4]), (1000, [])):
        driver.pass_ms(passed)
        driver.tick()
        assert driver.positions() == left


def test_ages_of_merged_segments_count_for_the_oldest(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(1)
    driver.pass_ms(700)
    driver.fill(1)
    oldest = driver.lane.oldest_stored_ms
    new = merged(driver, list(driver.lane.segments))
    driver.lane.replace(list(driver.lane.segments), new)
    driver.deliver()
    assert driver.lane.oldest_stored_ms == oldest
    driver.settle(1, ACCEPTED, (1, 1))
    assert driver.lane.oldest_stored_ms == oldest + 700


def test_an_old_segment_still_names_its_rows_after_a_merge(make: type[Driver]) -> None:
    driver = make()
    old = [driver.fill(2), driver.fill(2)]
    assert driver.lane.take(old[1], 0)
    driver.lane.replace(old, merged(driver, old))
    driver.lane.gone(old[1], 0)
    assert driver.positions() == [1, 2, 4]


def test_a_segment_with_other_states_is_no_replacement(make: type[Driver]) -> None:
    driver = make()
    old = [driver.fill(2), driver.fill(2)]
    new = merged(driver, old)
    driver.gone(2)
    with pytest.raises(AssertionError):
        driver.lane.replace(old, new)


# --- cost -------------------------------------------------------------------------------------------------------


def calls_of_a_cycle(rows: int, **settings: Any) -> int:
    """Count the Python calls of append, hand out and settle of a segment with so many rows."""
    driver = Driver(**settings)
    driver.bind(1)
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(rows)], None, driver.wall_ms)
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # others have calls made when garbage is collected, which happens somewhere
    sys.setprofile(profile)
    driver.lane.append(segment, driver.now, driver.wall_ms)
    driver.lane.hand_out(driver.now, driver.wall_ms)
    driver.lane.settle(1, ACCEPTED, [(1, rows)], driver.now, driver.wall_ms)
    sys.setprofile(None)
    gc.enable()
    assert driver.lane.messages == 0
    return count


@pytest.mark.parametrize("settings", [{}, {"respect_priority": True}, {"partitions": 4}])
def test_a_segment_costs_the_same_however_many_rows_it_has(settings: dict[str, Any]) -> None:
    assert calls_of_a_cycle(500, **settings) == calls_of_a_cycle(5, **settings)


@pytest.mark.slow
def test_the_whole_index_of_a_lane_stays_within_64_bytes_per_message(make: type[Driver]) -> None:
    """The limit holds with the time index, the flow's set and the reader: everything that a lane keeps."""
    timed: dict[str, Any] = {"ttl": 60_000, "delay": 5, "priority": 3}
    for fields, limit in (({}, 16), (timed, 48)):
        driver = make(max_unacked=1_000_000, respect_priority=True)
        rows = [row(i, **fields) for i in range(100)]
        driver.bind(1)
        tracemalloc.start()
        for block in range(500):
            segment = make_segment(LANE_ID, driver.lane.next_position, block, rows, None, driver.wall_ms)
            driver.lane.append(segment, driver.now, driver.wall_ms)
        driver.blocks = dict.fromkeys(range(500), rows)
        driver.pass_ms(10)
        while driver.handouts() or driver.lane.more:
            pass
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert driver.lane.unacked == 50_000
        assert size / 50_000 < limit
        driver.settle(1, FAILED, (1, 50_000))
        assert len(all_of(driver.deliver())) == 10_000


def test_a_backlog_with_holes_everywhere_is_walked_once(make: type[Driver]) -> None:
    """Settling in any order leaves no trace of the segments that are gone."""
    driver = make(max_unacked=1_000_000)
    driver.bind(1)
    for _ in range(500):
        driver.fill(2)
    while driver.lane.more or not driver.lane.unacked:
        driver.deliver()
    for first in range(1, 1000, 4):
        assert driver.settle(1, ACCEPTED, (first, first + 1)) == []
    listed = driver.lane._backlog.segments
    assert listed.count == 250
    assert len(listed._segments) <= 2 * 250 + 64
    driver.lane.validate()
    assert driver.settle(1, ACCEPTED, *[(first, first + 1) for first in range(999, 1, -4)]) == []
    assert driver.lane.messages == 0
    assert len(listed._segments) <= 64


def test_stats_name_what_there_is(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1, messages=1)
    driver.bind(2, browse=True)
    driver.fill(3)
    driver.deliver()
    stats = driver.lane.stats()
    told = {
        name: stats[name]
        for name in ("spooled", "messages", "ready", "unacked", "consumers", "browsers", "segments")
    }
    assert told == {
        "spooled": 3,
        "messages": 3,
        "ready": 2,
        "unacked": 1,
        "consumers": 1,
        "browsers": 1,
        "segments": 1,
    }
    assert stats["delivered"] == 1
    flow = driver.lane.flows[1]
    assert (flow.id, flow.active, flow.out.count, flow.room()) == (1, True, 1, 0)
