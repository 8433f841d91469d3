"""Times of messages: expiry, delivery delay, and the selector of a topic endpoint that works in the background."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from node.backlog.lifetimes import DUE_STEPS, SEGMENT_STEPS, SERVED_MAX, SERVED_ROWS_MAX, Lifetimes
from node.endpoints.topic_selector import EXAMINED_MAX
from tests.share import short
from tests.unit.node.lane_driver import ACCEPTED, FAILED, Driver, checked_drivers, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.segment import Segment

make = pytest.fixture(checked_drivers)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Segment]:
    """The segments that got other times, in order."""
    seen: list[Segment] = []
    watch = Lifetimes.watch

    def noted(lifetimes: Lifetimes, segment: Segment) -> None:
        seen.append(segment)
        watch(lifetimes, segment)

    monkeypatch.setattr(Lifetimes, "watch", noted)
    return seen


def later(driver: Driver, ms: int) -> None:
    driver.pass_ms(ms)
    driver.tick()


# --- expiry -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R198", "R202")
def test_a_message_expires_at_the_end_of_its_time_to_live(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq")
    driver.put(row(0, ttl=1000), row(1), row(2, ttl=500))
    assert driver.lane.next_due() == pytest.approx(driver.now + 0.5)
    later(driver, 490)
    assert driver.dead() == []
    later(driver, 10)
    assert driver.dead() == [(3, "expired")]
    later(driver, 500)
    assert driver.dead() == [(1, "expired")]
    assert driver.lane.next_due() is None
    assert driver.states() == {1: "moving", 2: "ready", 3: "moving"}


@pytest.mark.requirement("R200", "R201")
def test_the_endpoint_limits_the_life_of_messages_on_it(make: type[Driver]) -> None:
    driver = make(max_ttl_s=2)
    driver.fill(3)
    later(driver, 1000)
    driver.fill(2)
    later(driver, 1000)
    assert driver.positions() == [4, 5]
    later(driver, 1000)
    assert driver.positions() == []
    assert driver.lane.stats()["expired_discarded"] == 5


@pytest.mark.requirement("R203")
def test_of_two_times_to_live_the_smaller_counts(make: type[Driver]) -> None:
    driver = make(max_ttl_s=2)
    segment = driver.put(row(0, ttl=1000), row(1, ttl=5000), row(2))
    wall = driver.wall_ms
    assert [driver.lane.expires_at_ms(segment, i) - wall for i in range(3)] == [1000, 2000, 2000]
    later(driver, 1000)
    assert driver.positions() == [2, 3]
    later(driver, 1000)
    assert driver.positions() == []


def test_an_endpoint_may_ignore_times_to_live(make: type[Driver]) -> None:
    driver = make(respect_ttl=False, max_ttl_s=1)
    segment = driver.put(row(0, ttl=10))
    later(driver, 60_000)
    assert driver.positions() == [1]
    assert driver.lane.expires_at_ms(segment, 0) == 0
    assert driver.lane.next_due() is None
    driver.configure(respect_ttl=True)
    driver.tick()
    assert driver.positions() == []


def test_a_changed_limit_counts_for_messages_that_are_there(make: type[Driver]) -> None:
    driver = make(max_ttl_s=100)
    driver.fill(2)
    later(driver, 3000)
    driver.configure(max_ttl_s=5)
    later(driver, 1990)
    assert driver.positions() == [1, 2]
    driver.configure(max_ttl_s=0)
    later(driver, 1_000_000)
    assert driver.positions() == [1, 2]


def test_an_expired_message_is_never_handed_out_even_if_nobody_ticked(make: type[Driver]) -> None:
    driver = make()
    driver.put(row(0, ttl=100), row(1))
    driver.pass_ms(100)
    driver.bind(1)
    assert driver.deliver() == {1: [2]}


def test_an_expired_message_that_is_out_waits_for_its_settle(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq", redelivery_delay=(50, 50, 100))
    driver.bind(1)
    driver.fill(3, ttl=100)
    driver.deliver()
    later(driver, 200)
    assert driver.states() == {1: "unacked", 2: "unacked", 3: "unacked"}
    assert driver.settle(1, ACCEPTED, (1, 1)) == []
    driver.settle(1, FAILED, (2, 2))
    driver.unbind(1)
    assert driver.dead() == [(2, "expired"), (3, "expired")]


def test_a_message_that_comes_back_in_time_still_expires(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(1, ttl=100)
    driver.deliver()
    later(driver, 50)
    driver.unbind(1)
    assert driver.states() == {1: "ready"}
    later(driver, 50)
    assert driver.positions() == []


def test_a_message_that_comes_back_when_the_clock_was_set_back_expires_later(make: type[Driver]) -> None:
    driver = make()
    driver.bind(1)
    driver.put(row(0, ttl=100), row(1, ttl=150), row(2))
    driver.deliver()
    later(driver, 200)
    driver.wall_ms -= 180
    driver.unbind(1)
    assert driver.states() == {1: "ready", 2: "ready", 3: "ready"}
    later(driver, 80)
    assert driver.positions() == [2, 3]
    later(driver, 50)
    assert driver.positions() == [3]


def test_a_message_may_expire_while_it_waits_for_its_redelivery(make: type[Driver]) -> None:
    driver = make(redelivery_delay=(1000, 1000, 100))
    driver.bind(1)
    driver.fill(1, ttl=100)
    driver.deliver()
    driver.settle(1, FAILED, (1, 1))
    later(driver, 100)
    assert driver.positions() == []
    later(driver, 1000)
    assert driver.deliver() == {}


def test_timers_of_consumed_messages_are_gone_with_them(make: type[Driver]) -> None:
    driver = make(max_ttl_s=86_400)
    driver.bind(1)
    for _ in range(1000):
        segment = driver.fill(2)
        driver.deliver()
        driver.settle(1, ACCEPTED, (segment.first, segment.last))
    assert driver.lane.next_due() is None
    assert len(driver.lane._backlog.timers._heap) < 200


def test_expiry_works_in_steps_and_nothing_expired_goes_out_between_them(make: type[Driver]) -> None:
    driver = make()
    for _ in range(SERVED_MAX + 5):
        driver.fill(1, ttl=100)
    driver.fill(1)
    driver.bind(1)
    driver.pass_ms(100)
    assert driver.deliver() == {}
    assert driver.lane.more
    assert driver.lane.messages == 6
    due = driver.lane.next_due()
    assert due is not None
    assert due <= driver.now
    assert driver.deliver() == {1: [SERVED_MAX + 6]}


@pytest.mark.parametrize("what", ["the limit of the endpoint", "times of their own", "delay", "redelivery"])
def test_very_many_messages_whose_time_comes_at_once_go_in_steps(make: type[Driver], what: str) -> None:
    """Large segments of a backlog that expired at once took a quarter of a second in a turn."""
    settings: dict[str, dict[str, Any]] = {
        "the limit of the endpoint": {"max_ttl_s": 1},
        "redelivery": {"redelivery_delay": (1000, 1000, 100)},
    }
    driver = make(**settings.get(what, {}))
    fields: dict[str, Any] = {"times of their own": {"ttl": 1_000}, "delay": {"delay": 1_000}}.get(what, {})
    turn = 500 * DUE_STEPS
    for _ in range(4):
        driver.fill(2 * SERVED_ROWS_MAX, **fields)
    driver.bind(1)
    if what == "redelivery":
        driver.deliver()
        for first in range(1, 8 * SERVED_ROWS_MAX, 500):
            driver.settle(1, FAILED, (first, first + 499))
    driver.pass_ms(1_000)
    turns = 0
    while driver.lane.wants_effort or ((due := driver.lane.next_due()) is not None and due <= driver.now):
        before = driver.lane.stats()
        driver.effort.left = turn
        driver.tick()
        after = driver.lane.stats()
        changed = abs(before["messages"] - after["messages"]) + abs(before["held"] - after["held"])
        assert changed <= 500 + SERVED_ROWS_MAX
        turns += 1
        assert turns < 100
    assert turns > 4
    driver.effort.left = 1 << 40
    left = 0 if "time" in what or "limit" in what else 8 * SERVED_ROWS_MAX
    assert len(driver.deliver().get(1, [])) == left


# --- delivery delay ---------------------------------------------------------------------------------------------


def test_a_delayed_message_is_not_delivered_before_its_time_and_does_not_block_others(
    make: type[Driver],
) -> None:
    driver = make()
    driver.bind(1)
    driver.put(row(0, delay=1000), row(1), row(2, delay=500))
    assert driver.deliver() == {1: [2]}
    assert driver.states() == {1: "delayed", 2: "unacked", 3: "delayed"}
    later(driver, 500)
    assert driver.deliver() == {1: [3]}
    driver.pass_ms(490)
    assert driver.deliver() == {}
    driver.pass_ms(10)
    driver.fill(1)
    assert driver.deliver() == {1: [1, 4]}


def test_a_consumer_that_asks_for_order_gets_positions_whatever_delays_and_priorities_say(
    make: type[Driver],
) -> None:
    driver = make(respect_priority=True)
    driver.put(row(0, delay=1000), row(1, priority=1), row(2, priority=9), row(3, delay=500, priority=9))
    driver.bind(1, in_order=True)
    assert driver.deliver() == {1: [1, 2, 3, 4]}
    driver.put(row(0, delay=1000), row(1, priority=9))
    assert driver.deliver() == {1: [5, 6]}
    driver.unbind(1)
    driver.settle(1, ACCEPTED)
    driver.bind(2, in_order=True)
    assert driver.deliver() == {2: [1, 2, 3, 4, 5, 6]}


def test_what_another_consumer_failed_waits_no_longer_than_what_it_did_not_get(make: type[Driver]) -> None:
    driver = make(redelivery_delay=(1000, 1000, 100))
    driver.bind(1)
    driver.fill(4)
    assert driver.deliver() == {1: [1, 2, 3, 4]}
    driver.settle(1, FAILED, (2, 2))
    driver.unbind(1)
    driver.bind(2, in_order=True)
    assert driver.deliver() == {2: [1, 2, 3, 4]}
    later(driver, 1000)
    assert driver.deliver() == {}


@pytest.mark.parametrize("why", ["order", "move"])
def test_a_delay_that_was_cut_short_does_not_end_the_next_one(make: type[Driver], why: str) -> None:
    driver = make(redelivery_delay=(1000, 1000, 100), access_type="non-exclusive")
    driver.bind(1)
    segment = driver.fill(3)
    driver.deliver()
    driver.settle(1, FAILED, (1, 3))
    later(driver, 500)
    if why == "order":
        driver.bind(2, in_order=True)
        driver.unbind(2)
    else:
        for i in range(3):
            assert driver.lane.take(segment, i)
            driver.lane.kept(segment, i, driver.now, driver.wall_ms)
    assert driver.deliver() == {1: [1, 2, 3]}
    driver.settle(1, FAILED, (2, 3))
    later(driver, 990)
    assert driver.deliver() == {}, "the first delay would have ended long ago"
    later(driver, 20)
    assert driver.deliver() == {1: [2, 3]}
    driver.settle(1, ACCEPTED, (1, 3))
    later(driver, 1000)
    assert driver.lane.next_due() is None


def test_what_another_consumer_failed_comes_first_also_for_one_that_stood_by(make: type[Driver]) -> None:
    """A bridge may wait for its turn for long: what came after a higher position it would take for transferred."""
    driver = make(redelivery_delay=(1000, 1000, 100))
    driver.bind(1)
    driver.bind(2, in_order=True)
    driver.fill(4)
    assert driver.deliver() == {1: [1, 2, 3, 4]}
    driver.settle(1, FAILED, (2, 2))
    assert driver.deliver() == {}
    driver.unbind(1)
    assert driver.deliver() == {2: [1, 2, 3, 4]}


def test_without_that_consumer_the_settings_count_again(make: type[Driver]) -> None:
    driver = make(respect_priority=True)
    driver.bind(1, in_order=True)
    driver.unbind(1)
    driver.put(row(0, delay=1000), row(1, priority=1), row(2, priority=9))
    driver.bind(2)
    assert driver.deliver() == {2: [3, 2]}


@pytest.mark.parametrize("what", ["order", "lease", "settings"])
def test_what_changes_the_times_of_few_messages_looks_at_no_others(
    make: type[Driver], watched: list[Segment], what: str
) -> None:
    """A million messages with a time to live took a fifth of a second, each time a client came that asks for order."""
    driver = make()
    for _ in range(20):
        driver.fill(5, ttl=60_000, delay=1)
    driver.pass_ms(10)
    driver.tick()
    held = driver.put(row(0, ttl=60_000, delay=1_000), row(1))
    watched.clear()
    if what == "settings":
        driver.configure(egress_enabled=False, dead_message_queue="other")
        driver.configure(egress_enabled=True)
        assert watched == [held, held]
        return
    if what == "lease":
        driver.lane.leasing.take("g", 60_000, driver.now, driver.wall_ms)
    else:
        driver.bind(1, in_order=True)
    assert watched == [held]
    driver.lane.leasing.end(driver.wall_ms)
    driver.unbind(1)
    assert watched == [held]
    later(driver, 60_000)
    assert driver.states() == {102: "ready"}, "all others have lived"


def changed_in_steps(driver: Driver, watched: list[Segment], change: Callable[[], object]) -> int:
    """Change what all times follow, with effort for a few segments in a turn; gives how many turns that took."""
    turn = 5 * SEGMENT_STEPS
    driver.effort.left = turn
    watched.clear()
    change()
    for turns in range(1, 1_000):
        assert len(watched) <= 5, "one step looks at a few segments"
        if not driver.lane.wants_effort:
            driver.effort.left = 1 << 40
            return turns
        assert not driver.lane.may_rest
        assert driver.deliver() == {}, "by the times of before it might be too late, or too early"
        watched.clear()
        driver.effort.left = turn
        driver.tick()
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    "change",
    [{"max_ttl_s": 1}, {"respect_ttl": False}, {"delivery_delay_ms": 0}, {"delivery_delay_ms": 60_000}],
)
def test_messages_follow_other_times_in_steps_and_nothing_goes_out_between_them(
    make: type[Driver], watched: list[Segment], change: dict[str, int]
) -> None:
    """A million messages took half a second, and nine times as many as long as a worker may hang."""
    driver = make(delivery_delay_ms=5_000, max_ttl_s=100)
    segments = [driver.put(row(0, ttl=20_000), row(1)) for _ in range(100)]
    driver.pass_ms(2_000)
    driver.bind(1)
    assert changed_in_steps(driver, watched, lambda: driver.configure(**change)) > 10
    assert len(driver.deliver().get(1, [])) == (200 if change == {"delivery_delay_ms": 0} else 0)
    assert driver.lane.messages == (0 if "max_ttl_s" in change else 200)
    later(driver, 4_000)
    left = {"max_ttl_s": 0, "respect_ttl": 200, "delivery_delay_ms": 0}[next(iter(change))]
    assert len(driver.deliver().get(1, [])) == left
    assert [one.live for one in segments] == [0 if "max_ttl_s" in change else 2] * 100


def test_a_full_queue_becomes_a_last_value_queue_in_steps_and_nothing_older_goes_out_between_them(
    make: type[Driver],
) -> None:
    """Of 400,000 messages that came one by one it took as long as a worker may hang, and so did every next worker."""
    driver = make(access_type="non-exclusive")
    driver.bind(1, messages=1)
    driver.fill(1)
    assert driver.deliver() == {1: [1]}
    for _ in range(99):
        driver.fill(1)
    driver.effort.left = 5 * SEGMENT_STEPS
    driver.configure(last_value=True)
    assert driver.lane.stats()["replaced"] < 10, "one step looks at a few segments"
    driver.bind(2)
    while driver.lane.wants_effort:
        assert not driver.lane.may_rest
        driver.fill(1)
        assert driver.deliver() == {}
        driver.effort.left = 5 * SEGMENT_STEPS
        driver.tick()
    driver.effort.left = 1 << 40
    newest = driver.lane.next_position - 1
    assert newest > 110, "it went on in more than ten steps"
    assert driver.deliver() == {2: [newest]}
    assert driver.positions() == [1, newest]
    driver.settle(1, FAILED, (1, 1))
    assert driver.positions() == [newest]


@pytest.mark.parametrize("who", ["consumer", "lease"])
def test_held_messages_are_let_go_in_steps_for_who_asks_for_the_order(
    make: type[Driver], watched: list[Segment], who: str
) -> None:
    driver = make()
    for _ in range(100):
        driver.fill(2, delay=60_000)
    if who == "lease":
        take = partial(driver.lane.leasing.take, "g", 60_000)
        assert changed_in_steps(driver, watched, lambda: take(driver.now, driver.wall_ms)) > 10
        assert set(driver.states().values()) == {"ready"}
        return
    assert changed_in_steps(driver, watched, lambda: driver.bind(1, in_order=True)) > 10
    assert driver.deliver() == {1: list(range(1, 201))}


def test_a_change_while_messages_follow_another_one_counts_for_all_of_them(
    make: type[Driver], watched: list[Segment]
) -> None:
    driver = make(delivery_delay_ms=60_000)
    for _ in range(20):
        driver.fill(2)
    driver.effort.left = 1
    driver.configure(max_ttl_s=2)
    assert changed_in_steps(driver, watched, lambda: driver.bind(1, in_order=True)) > 2
    driver.effort.left = 1
    driver.configure(delivery_delay_ms=0)
    assert driver.lane.purge() == 40
    assert not driver.lane.wants_effort
    driver.effort.left = 1 << 40
    driver.fill(1)
    assert driver.deliver() == {1: [41]}
    later(driver, 2_000)
    assert driver.unbind(1) == []
    assert driver.lane.messages == 0


def test_the_delay_of_the_endpoint_counts_in_order_too(make: type[Driver]) -> None:
    driver = make(delivery_delay_ms=300)
    driver.bind(1, in_order=True)
    driver.put(row(0, delay=1000), row(1))
    assert driver.deliver() == {}
    later(driver, 300)
    assert driver.deliver() == {1: [1, 2]}


def test_in_order_nothing_overtakes_what_waits_longer_because_the_clock_was_set_back(
    make: type[Driver],
) -> None:
    """Whoever publishes with positions as sequences would have it taken for stored."""
    driver = make(delivery_delay_ms=300)
    driver.bind(1, in_order=True)
    driver.fill(2)
    driver.wall_ms -= 200
    driver.fill(2)
    later(driver, 300)
    assert driver.deliver() == {}
    later(driver, 200)
    assert driver.deliver() == {1: [1, 2, 3, 4]}


def test_the_later_of_the_delays_of_message_and_endpoint_counts(make: type[Driver]) -> None:
    driver = make(delivery_delay_ms=300)
    driver.bind(1)
    driver.put(row(0, delay=100), row(1, delay=600), row(2))
    later(driver, 290)
    assert driver.deliver() == {}
    later(driver, 10)
    assert driver.deliver() == {1: [1, 3]}
    later(driver, 300)
    assert driver.deliver() == {1: [2]}


def test_a_delay_that_is_switched_off_ends_at_once(make: type[Driver]) -> None:
    driver = make(delivery_delay_ms=60_000)
    driver.bind(1)
    driver.put(row(0), row(1, delay=120_000))
    driver.fill(2)
    driver.configure(delivery_delay_ms=0)
    assert driver.deliver() == {1: [1, 3, 4]}
    driver.configure(delivery_delay_ms=30_000)
    driver.fill(1)
    assert driver.deliver() == {}
    later(driver, 30_000)
    assert driver.deliver() == {1: [5]}


def test_a_message_that_is_not_due_may_expire(make: type[Driver]) -> None:
    driver = make()
    driver.put(row(0, delay=1000, ttl=500))
    later(driver, 500)
    assert driver.positions() == []


def test_delayed_messages_keep_their_delay_over_a_restart(make: type[Driver]) -> None:
    driver = make()
    driver.put(row(0, delay=1000), row(1))
    driver.pass_ms(400)
    driver.restart(clean=True)
    driver.bind(1)
    assert driver.deliver() == {1: [2]}
    driver.pass_ms(600)
    assert driver.deliver() == {1: [1]}


@pytest.mark.slow
def test_very_many_messages_with_delays_of_their_own(make: type[Driver]) -> None:
    """Each call costs what is due then, and every message comes once, not before its time."""
    driver = make(max_unacked=1_000_000)
    due: dict[int, int] = {}
    blocks = short(100, long=1_000)
    for block in range(blocks):
        delays = [10 + (block * 100 + i) * 7919 % 60_000 for i in range(100)]
        first = driver.put(*[row(i, delay=delay) for i, delay in enumerate(delays)]).first
        due |= {first + i: driver.wall_ms + delay for i, delay in enumerate(delays)}
    driver.bind(1)
    seen = 0
    for _ in range(61):
        driver.pass_ms(1000)
        while (got := driver.deliver()) or driver.lane.more:
            seen += len(got.get(1, []))
            assert all(due[position] <= driver.wall_ms for position in got.get(1, []))
        assert seen == sum(one <= driver.wall_ms for one in due.values())
    assert seen == 100 * blocks


# --- selector of a topic endpoint -------------------------------------------------------------------------------

TOPIC_ENDPOINT: dict[str, Any] = {"kind": "topic-endpoint", "selector": "a"}


@pytest.mark.requirement("R145", "R146", "R147", "R148")
def test_a_topic_endpoint_removes_in_the_background_what_its_selector_does_not_select(
    make: type[Driver],
) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.bind(1)
    driver.bind(2, browse=True)
    driver.put(*[row(i, tag="ab"[i % 2]) for i in range(100)])
    assert driver.lane.messages == 100, "publishers do not wait for the selector"
    assert driver.deliver() == {}, "nobody gets what was not examined"
    assert set(driver.states().values()) == {"filtering"}
    assert driver.lane.wants_effort
    driver.tick()
    assert driver.lane.messages == 50, "the count shrinks"
    odd = list(range(1, 100, 2))
    assert driver.deliver() == {1: odd, 2: odd}
    assert not driver.lane.wants_effort
    assert driver.lane.next_due() is None
    assert driver.lane.stats()["selector_discarded"] == 50


@pytest.mark.requirement("R146")
def test_the_selector_examines_a_bounded_number_at_a_time(make: type[Driver]) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.fill(EXAMINED_MAX, tag="b")
    driver.fill(10, tag="b")
    driver.tick()
    assert driver.lane.messages == 10
    assert driver.lane.wants_effort
    driver.tick()
    assert driver.lane.messages == 0
    driver.tick()
    assert driver.lane.next_due() is None


@pytest.mark.requirement("R145")
def test_what_the_selector_removes_is_not_dead(make: type[Driver]) -> None:
    driver = make(dead_message_queue="dmq", **TOPIC_ENDPOINT)
    driver.fill(3, tag="b")
    driver.tick()
    assert (driver.positions(), driver.dead()) == ([], [])


@pytest.mark.requirement("R148")
def test_a_delay_does_not_let_messages_past_the_selector(make: type[Driver]) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.bind(1)
    for _ in range(EXAMINED_MAX):
        driver.fill(1, tag="b")
    driver.put(row(0, tag="b", delay=10), row(1, tag="a", delay=10), row(2, tag="a", delay=50))
    driver.pass_ms(20)
    driver.tick()
    assert driver.deliver() == {}
    driver.tick()
    assert driver.deliver() == {1: [EXAMINED_MAX + 2]}
    driver.pass_ms(30)
    assert driver.deliver() == {1: [EXAMINED_MAX + 3]}


def test_what_the_selector_cannot_read_is_neither_delivered_nor_removed(make: type[Driver]) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.bind(1)
    driver.fill(2, tag="a")
    driver.damaged.append(1)
    driver.tick()
    assert driver.lane.next_due() is None
    assert driver.deliver() == {}
    assert driver.positions() == [1, 2]
    assert driver.lane.stats()["unreadable"] == 2


@pytest.mark.requirement("R149")
def test_a_changed_selector_finds_the_endpoint_empty(make: type[Driver]) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.bind(1)
    driver.fill(3, tag="a")
    driver.tick()
    driver.deliver()
    with pytest.raises(AssertionError):
        driver.configure(selector="b")
    assert driver.lane.purge() == 3
    driver.configure(selector="b")
    driver.put(row(0, tag="a"), row(1, tag="b"))
    driver.tick()
    assert driver.deliver() == {1: [5]}
    driver.lane.purge()
    driver.configure(selector=None)
    driver.fill(1, tag="c")
    assert driver.deliver() == {1: [6]}


def test_a_purge_while_the_selector_is_behind_leaves_nothing(make: type[Driver]) -> None:
    driver = make(**TOPIC_ENDPOINT)
    driver.bind(1)
    driver.fill(EXAMINED_MAX + 100, tag="a")
    driver.tick()
    assert driver.lane.purge() == EXAMINED_MAX + 100
    assert driver.lane.next_due() is None
    assert driver.deliver() == {}
    driver.fill(1, tag="a")
    driver.tick()
    assert driver.deliver() == {1: [EXAMINED_MAX + 101]}
