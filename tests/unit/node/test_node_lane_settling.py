"""What settling does: outcomes, ranges of every kind, counts of attempts, and dead messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.frames.settings import LaneSettings, settings_from, settings_map
from tests.unit.node.lane_driver import (
    ACCEPTED,
    CLOSED,
    FAILED,
    REFUSED,
    REJECTED,
    RELEASED,
    Driver,
    checked_drivers,
    row,
)

if TYPE_CHECKING:
    from angarium_server.frames.homes import FlowEvent

SPREAD: dict[str, Any] = {"access_type": "non-exclusive"}

make = pytest.fixture(checked_drivers)


def delivered(make: type[Driver], count: int = 10, **settings: object) -> Driver:
    """Make a lane whose flow 1 has messages out."""
    driver = make(**settings)  # type: ignore[arg-type]
    driver.bind(1)
    driver.fill(count)
    assert len(driver.deliver()[1]) == count
    return driver


def codes(events: list[FlowEvent]) -> list[tuple[int, int]]:
    return [(event, code) for _, event, code, _ in events]


NOT_DELIVERED = [(REFUSED, errors.NOT_DELIVERED)]


@pytest.mark.requirement("R165", "R166")
def test_an_accepted_message_is_gone(make: type[Driver]) -> None:
    driver = delivered(make, 3)
    assert driver.settle(1, ACCEPTED, (2, 2)) == []
    assert driver.positions() == [1, 3]
    assert driver.lane.bytes == 2 * wire.SPOOL_OVERHEAD_BYTES
    assert driver.lane.unacked == 2
    assert driver.settle(1, ACCEPTED, (3, 3), (1, 1)) == []
    assert (driver.lane.messages, driver.lane.bytes, driver.lane.oldest_stored_ms) == (0, 0, 0)
    assert list(driver.lane.segments) == []


@pytest.mark.requirement("R188", "R191")
def test_ranges_come_in_any_order_and_many_at_once(make: type[Driver]) -> None:
    driver = delivered(make, 20)
    assert driver.settle(1, ACCEPTED, (15, 18), (1, 3), (10, 10), (5, 5)) == []
    assert driver.positions() == [4, 6, 7, 8, 9, 11, 12, 13, 14, 19, 20]


def test_a_range_may_span_segments(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    for _ in range(5):
        driver.fill(4)
    driver.deliver()
    assert driver.settle(1, ACCEPTED, (3, 18)) == []
    assert driver.positions() == [1, 2, 19, 20]
    assert [segment.first for segment in driver.lane.segments] == [1, 17]


def test_a_message_is_settled_once(make: type[Driver]) -> None:
    driver = delivered(make, 3)
    driver.settle(1, ACCEPTED, (1, 1))
    assert codes(driver.settle(1, ACCEPTED, (1, 1))) == NOT_DELIVERED
    driver.settle(1, FAILED, (2, 2))
    assert codes(driver.settle(1, ACCEPTED, (2, 2))) == NOT_DELIVERED
    assert driver.positions() == [2, 3]
    assert driver.lane.stats()["settles_refused"] == 2


def test_a_range_that_covers_gaps_settles_what_is_there_and_tells_about_the_rest(make: type[Driver]) -> None:
    """Elsewhere a range over a gap took the messages of other consumers with it, or nothing at all."""
    driver = make(**SPREAD)
    driver.bind(1, selector="a")
    driver.bind(2, selector="b")
    driver.put(*[row(i, tag="abc"[i % 3]) for i in range(9)])
    assert driver.deliver() == {1: [1, 4, 7], 2: [2, 5, 8]}
    (event,) = driver.settle(1, ACCEPTED, (1, 7))
    assert event[:3] == (1, REFUSED, errors.NOT_DELIVERED)
    assert "1 to 7" in event.detail
    assert driver.positions() == [2, 3, 5, 6, 8, 9]
    assert driver.settle(2, ACCEPTED, (2, 2), (5, 5), (8, 8)) == []


def test_what_nobody_has_seen_comes_back_as_if_it_had_not_been_sent(make: type[Driver]) -> None:
    driver = make(max_redeliveries=1, redelivery_enabled=False)
    driver.bind(1)
    driver.fill(6)
    driver.deliver()
    driver.release(1, (3, 4), (6, 6), (9, 1 << 62))
    driver.release(2, (1, 1))
    driver.unbind(1)
    driver.bind(2)
    assert driver.deliver_counts() == {3: 0, 4: 0, 6: 0}
    assert driver.positions() == [3, 4, 6]


def test_a_released_message_comes_again_uncounted_and_a_late_release_is_not_refused(
    make: type[Driver],
) -> None:
    driver = delivered(make, 3, max_redeliveries=1, redelivery_delay=(1_000, 1_000, 100))
    for _ in range(3):
        assert driver.settle(1, RELEASED, (2, 3)) == []
        assert driver.deliver_counts() == {2: 0, 3: 0}
    driver.settle(1, ACCEPTED, (2, 2))
    assert driver.settle(1, RELEASED, (2, 2), (9, 9)) == []
    assert driver.states() == {1: "unacked", 3: "unacked"}
    assert driver.settle(9, RELEASED, (1, 1)) == []


def test_a_hand_off_ends_when_what_was_seen_is_settled_and_the_rest_released(make: type[Driver]) -> None:
    driver = make(partitions=2)
    driver.bind(1)
    driver.bind(2)
    driver.fill(5)
    driver.deliver()
    driver.unbind(1, hand_off_ms=60_000)
    assert driver.settle(1, RELEASED, (2, 5)) == []
    assert driver.deliver() == {}, "nobody overtakes what is seen"
    assert driver.settle(1, ACCEPTED, (1, 1))[0] == (1, wire.FLOW_CLOSED, 0, "")
    assert driver.deliver_counts() == {2: 0, 3: 0, 4: 0, 5: 0}


def test_what_expired_or_was_replaced_meanwhile_does_not_come_back(make: type[Driver]) -> None:
    driver = make(respect_ttl=True)
    driver.bind(1)
    driver.put(row(0, ttl=1_000), row(1))
    driver.deliver()
    driver.pass_ms(2_000)
    driver.release(1, (1, 2))
    driver.unbind(1)
    driver.bind(2)
    assert driver.deliver_counts() == {2: 0}


@pytest.mark.parametrize(
    "asked", [(0, 1 << 70), (-(1 << 70), 1 << 70), (1 << 62, 1 << 63), (5, 1), (0, 0), (11, 11), (-5, -1)]
)
def test_no_range_harms(make: type[Driver], asked: tuple[int, int]) -> None:
    driver = delivered(make, 10)
    driver.fill(5)
    first, last = asked
    assert codes(driver.settle(1, ACCEPTED, asked)) == NOT_DELIVERED
    kept = [position for position in range(1, 16) if not (first <= position <= last and position <= 10)]
    assert driver.positions() == kept


@pytest.mark.slow
def test_a_hundred_thousand_absurd_ranges_are_bounded_work(make: type[Driver]) -> None:
    """One frame may name as many; each costs a look-up, however wide it is and however long the backlog."""
    driver = make(max_unacked=1_000_000, **SPREAD)
    driver.bind(1, selector="a")
    for k in range(3000):
        driver.fill(10, tag="a" if k in (0, 2999) else "b")
    while driver.deliver() or driver.lane.more:
        pass
    assert driver.lane.unacked == 20
    (event,) = driver.settle(1, ACCEPTED, *[(11, 29_990)] * 100_000)
    assert "99999 more" in event.detail
    assert driver.lane.messages == 30_000


def test_an_unknown_flow_or_outcome_settles_nothing(make: type[Driver]) -> None:
    driver = delivered(make, 3)
    assert codes(driver.settle(9, ACCEPTED, (1, 3))) == NOT_DELIVERED
    assert codes(driver.settle(1, 4, (1, 3))) == NOT_DELIVERED
    partition = delivered(make, 3, partitions=2)
    assert codes(partition.settle(9, ACCEPTED, (1, 3))) == [(REFUSED, errors.PARTITION_LOST)]
    assert codes(partition.settle(1, 7, (1, 3))) == NOT_DELIVERED
    assert driver.lane.messages == partition.lane.messages == 3


def test_one_flow_does_not_settle_what_another_has(make: type[Driver]) -> None:
    driver = make(**SPREAD)
    driver.bind(1)
    driver.bind(2)
    driver.fill(10)
    assert driver.deliver() == {1: [1, 2, 3, 4, 5], 2: [6, 7, 8, 9, 10]}
    assert codes(driver.settle(2, ACCEPTED, (1, 5))) == NOT_DELIVERED
    assert driver.lane.messages == 10


# --- what comes back --------------------------------------------------------------------------------------------


@pytest.mark.requirement("R190")
def test_failed_messages_go_before_new_ones_in_the_order_of_their_positions(make: type[Driver]) -> None:
    driver = delivered(make, 6)
    driver.settle(1, FAILED, (5, 5))
    driver.settle(1, FAILED, (2, 3))
    driver.fill(2)
    assert driver.deliver() == {1: [2, 3, 5, 7, 8]}


def test_counts_of_attempts_rise_with_each_delivery(make: type[Driver]) -> None:
    driver = delivered(make, 2)
    for count in range(1, 5):
        driver.settle(1, FAILED, (1, 1))
        assert driver.deliver_counts() == {1: count}
    driver.unbind(1)
    driver.bind(2)
    assert driver.deliver_counts() == {1: 5, 2: 1}
    assert driver.lane.stats()["redelivered"] == 6


def test_a_count_stops_where_it_cannot_be_stored(make: type[Driver]) -> None:
    driver = delivered(make, 1)
    for _ in range(300):
        driver.settle(1, FAILED, (1, 1))
        driver.deliver()
    driver.settle(1, FAILED, (1, 1))
    assert driver.deliver_counts() == {1: 255}


@pytest.mark.parametrize("limit", [1, 3, 255])
def test_a_message_that_failed_too_often_is_dead(make: type[Driver], limit: int) -> None:
    driver = delivered(make, 2, max_redeliveries=limit, dead_message_queue="dmq")
    for redelivery in range(1, limit + 1):
        driver.settle(1, FAILED, (1, 1))
        assert driver.deliver_counts() == {1: redelivery}
    driver.settle(1, FAILED, (1, 1))
    assert driver.deliver() == {}
    assert driver.states() == {1: "moving", 2: "unacked"}
    assert driver.dead() == [(1, "redeliveries")]
    assert driver.dead() == []
    driver.gone(1)
    assert driver.positions() == [2]
    stats = driver.lane.stats()
    assert (stats["redeliveries"], stats["redeliveries_discarded"]) == (1, 0)


def test_a_lost_flow_counts_as_an_attempt_too(make: type[Driver]) -> None:
    driver = delivered(make, 2, max_redeliveries=1, dead_message_queue="dmq")
    driver.settle(1, FAILED, (2, 2))
    driver.deliver()
    driver.unbind(1)
    assert driver.dead() == [(2, "redeliveries")]
    assert driver.states() == {1: "ready", 2: "moving"}


def test_one_message_that_ends_its_flow_takes_along_what_was_in_its_window_and_nothing_else(
    make: type[Driver],
) -> None:
    """As docs/guarantees.md says: who consumes one at a time loses no others by it."""
    driver = make(max_redeliveries=1, dead_message_queue="dmq")
    driver.fill(4)
    for flow in (1, 2):
        driver.bind(flow, messages=2)
        assert driver.deliver() == {flow: [1, 2]}
        driver.unbind(flow)
    assert driver.dead() == [(1, "redeliveries"), (2, "redeliveries")]
    assert driver.states() == {1: "moving", 2: "moving", 3: "ready", 4: "ready"}


def test_where_nothing_is_sent_twice_a_failed_message_is_dead(make: type[Driver]) -> None:
    driver = delivered(make, 4, redelivery_enabled=False, dead_message_queue="dmq")
    driver.settle(1, FAILED, (1, 1))
    driver.settle(1, ACCEPTED, (2, 2))
    driver.unbind(1)
    assert driver.dead() == [(1, "redeliveries"), (3, "redeliveries"), (4, "redeliveries")]


def test_a_rejected_message_is_never_sent_again(make: type[Driver]) -> None:
    driver = delivered(make, 3, dead_message_queue="dmq")
    driver.settle(1, REJECTED, (2, 2))
    assert driver.dead() == [(2, "rejected")]
    driver.unbind(1)
    driver.bind(2)
    assert driver.deliver() == {2: [1, 3]}


@pytest.mark.requirement("R202")
def test_without_a_dead_message_queue_dead_messages_are_removed(make: type[Driver]) -> None:
    driver = delivered(make, 3)
    driver.settle(1, REJECTED, (1, 2))
    assert driver.positions() == [3]
    assert driver.dead() == []
    assert driver.lane.stats()["rejected_discarded"] == 2


def test_a_dead_message_queue_does_not_move_to_itself(make: type[Driver]) -> None:
    driver = delivered(make, 2, name="#DEAD_MSG_QUEUE", dead_message_queue="#DEAD_MSG_QUEUE")
    driver.settle(1, REJECTED, (1, 1))
    assert driver.positions() == [2]
    topic_endpoint = LaneSettings(kind="topic-endpoint", name="x", dead_message_queue="x")
    assert topic_endpoint.moves_dead


def test_the_publisher_may_decide_what_moves_if_the_endpoint_respects_it(make: type[Driver]) -> None:
    eligible = wire.MODE_PERSISTENT | wire.FLAG_DMQ_ELIGIBLE
    for respect, moved in ((True, [1, 3, 4]), (False, [1, 2, 3, 4, 5])):
        driver = make(respect_dmq_eligible=respect, dead_message_queue="dmq")
        driver.bind(1)
        flags = [eligible, 1, eligible, eligible, 1]
        driver.put(*[row(i, flags=one) for i, one in enumerate(flags)])
        driver.deliver()
        driver.settle(1, REJECTED, (1, 5))
        assert driver.dead() == [(position, "rejected") for position in moved]
        assert driver.positions() == moved


def test_dead_messages_are_told_in_portions(make: type[Driver]) -> None:
    driver = delivered(make, 10, dead_message_queue="dmq")
    driver.settle(1, REJECTED, (1, 10))
    assert [segment.first + i for segment, i, _ in driver.lane.take_dead(4)] == [1, 2, 3, 4]
    assert [segment.first + i for segment, i, _ in driver.lane.take_dead(4)] == [5, 6, 7, 8]
    driver.gone(9)
    assert driver.dead() == [(10, "rejected")]


# --- redelivery delay -------------------------------------------------------------------------------------------


def test_a_failed_message_waits_for_its_redelivery_delay(make: type[Driver]) -> None:
    driver = delivered(make, 3, redelivery_delay=(1000, 3000, 200))
    for delay_ms in (1000, 2000, 3000, 3000):
        driver.settle(1, FAILED, (2, 2))
        assert driver.states()[2] == "delayed"
        assert driver.lane.next_due() == pytest.approx(driver.now + delay_ms / 1000, abs=0.011)
        driver.pass_ms(delay_ms - 10)
        driver.tick()
        assert driver.deliver() == {}
        driver.pass_ms(10)
        driver.tick()
        assert driver.deliver() == {1: [2]}
    assert driver.lane.next_due() is None


def test_a_lost_flow_delays_nothing(make: type[Driver]) -> None:
    driver = delivered(make, 2, redelivery_delay=(1000, 1000, 100))
    driver.unbind(1)
    driver.bind(2)
    assert driver.deliver() == {2: [1, 2]}


def test_delays_of_different_lengths_end_each_at_its_time(make: type[Driver]) -> None:
    driver = delivered(make, 2, redelivery_delay=(100, 10_000, 500))
    driver.settle(1, FAILED, (1, 1))
    driver.pass_ms(100)
    driver.deliver()
    driver.settle(1, FAILED, (1, 2))
    driver.pass_ms(100)
    assert driver.deliver() == {1: [2]}
    driver.pass_ms(400)
    assert driver.deliver() == {1: [1]}


def test_redelivery_delays_multiply_up_to_their_cap() -> None:
    settings = LaneSettings(redelivery_delay=(1000, 64_000, 200))
    assert [settings.redelivery_delay_ms(tries) for tries in (1, 2, 3, 7, 8, 255)] == [
        1000,
        2000,
        4000,
        64_000,
        64_000,
        64_000,
    ]
    assert LaneSettings(redelivery_delay=(1000, 64_000, 150)).redelivery_delay_ms(3) == 2250
    assert LaneSettings(redelivery_delay=(5000, 1000, 100)).redelivery_delay_ms(1) == 1000
    assert LaneSettings().redelivery_delay_ms(3) == 0


def test_neighbours_that_came_one_by_one_are_taken_back_some_at_a_time(make: type[Driver]) -> None:
    """They are one run of positions, and each of them costs as much as a block of many."""
    driver = make()
    for _ in range(2_500):
        driver.fill(1)
    driver.bind(1)
    while driver.deliver():
        pass
    assert driver.lane.unacked == 2_500
    driver.lane.pause(1)
    steps = 0
    while driver.lane.unacked:
        before = driver.lane.unacked
        assert driver.lane.take_back(1, 10, driver.wall_ms)
        assert before - driver.lane.unacked <= 1_024
        steps += 1
    assert steps == 3


# --- last value -------------------------------------------------------------------------------------------------


def test_a_last_value_queue_holds_the_newest_message(make: type[Driver]) -> None:
    driver = make(last_value=True)
    driver.fill(5)
    assert driver.positions() == [5]
    driver.fill(2)
    assert driver.positions() == [7]
    driver.bind(1)
    assert driver.deliver() == {1: [7]}
    assert driver.lane.stats()["replaced"] == 6


def test_a_last_value_that_is_out_is_not_replaced_but_does_not_come_back(make: type[Driver]) -> None:
    driver = make(last_value=True, **SPREAD)
    driver.bind(1, messages=1)
    driver.fill(1)
    driver.deliver()
    driver.fill(1)
    assert driver.positions() == [1, 2]
    driver.settle(1, FAILED, (1, 1))
    assert driver.positions() == [2]
    driver.bind(2)
    assert driver.deliver() == {2: [2]}
    driver.settle(2, FAILED, (2, 2))
    assert driver.deliver() == {2: [2]}, "the newest one comes back"


def test_a_queue_becomes_a_last_value_queue(make: type[Driver]) -> None:
    driver = make()
    driver.fill(5)
    driver.fill(5)
    driver.configure(last_value=True)
    assert driver.positions() == [10]


# --- flows that were resumed ------------------------------------------------------------------------------------


def test_a_resumed_flow_may_accept_what_it_got_before_the_restart(make: type[Driver]) -> None:
    driver = delivered(make, 6)
    driver.fill(2)
    driver.store()
    driver.restart(clean=False)
    driver.bind(2, resume=True, messages=3)
    assert driver.deliver() == {2: [1, 2, 3]}
    assert driver.settle(2, ACCEPTED, (2, 5)) == []
    assert driver.positions() == [1, 6, 7, 8]
    assert codes(driver.settle(2, ACCEPTED, (7, 8))) == NOT_DELIVERED, "it never got these"
    assert driver.settle(2, FAILED, (6, 6)) == []
    assert driver.settle(2, REJECTED, (6, 6)) == []
    assert driver.positions() == [1, 7, 8]
    assert codes(driver.settle(2, ACCEPTED, (2, 6))) == NOT_DELIVERED


def test_a_flow_that_was_not_resumed_may_not(make: type[Driver]) -> None:
    driver = delivered(make, 3)
    driver.restart(clean=False)
    driver.bind(2, messages=0)
    assert codes(driver.settle(2, ACCEPTED, (1, 3))) == NOT_DELIVERED
    assert driver.positions() == [1, 2, 3]


def test_a_resumed_flow_does_not_settle_what_another_flow_has_now(make: type[Driver]) -> None:
    driver = delivered(make, 2, **SPREAD)
    driver.restart(clean=False)
    driver.bind(3)
    assert driver.deliver() == {3: [1, 2]}
    driver.bind(2, resume=True)
    assert codes(driver.settle(2, ACCEPTED, (1, 2))) == NOT_DELIVERED
    assert driver.lane.unacked == 2


# --- settings ---------------------------------------------------------------------------------------------------


def test_settings_come_from_a_map_and_go_back_into_one() -> None:
    value = {
        "kind": "topic-endpoint",
        "name": "t",
        "redelivery_delay": [1, 2, 300],
        "selector": "a = 1",
        "x": 5,
    }
    settings = settings_from(value)
    assert settings.redelivery_delay == (1, 2, 300)
    assert settings_from(settings_map(settings)) == settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "stack"},
        {"max_unacked": 0},
        {"max_redeliveries": 256},
        {"redelivery_delay": [1, 2]},
        {"redelivery_delay": [1, 2, 99]},
        {"last_value": 1},
        {"access_type": "shared"},
        {"max_ttl_s": -1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        settings_from(wrong)
    assert caught.value.code == errors.MALFORMED_FRAME


def test_a_closing_flow_is_over_with_its_last_message_whatever_the_outcome(make: type[Driver]) -> None:
    for outcome in (ACCEPTED, FAILED, REJECTED):
        driver = delivered(make, 2)
        driver.unbind(1, hand_off_ms=1000)
        driver.settle(1, ACCEPTED, (1, 1))
        assert driver.settle(1, outcome, (2, 2)) == [(1, CLOSED, 0, "")]
