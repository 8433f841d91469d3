"""The rules for consumers, and for why messages go, object to every kind of broken promise, and to nothing else.

Histories written by hand break one promise each.
"""

from __future__ import annotations

import pytest

from angarium import wire
from tests.simulation.guaranteed.records import Died, FlowDelivery, WasFull, Wrote
from tests.simulation.guaranteed.written import NEVER, WORKER, Written, place_of

FAILED, REJECTED = wire.OUTCOME_FAILED, wire.OUTCOME_REJECTED


@pytest.fixture
def written() -> Written:
    return Written()


# Delivery.


@pytest.mark.requirement("R164")
def test_a_delivery_before_the_commit_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    message, flow = written.send("t/1"), written.bind(one)
    written.deliver(flow, place_of(one, 1), what=f"g{message.number}")
    written.now += 0.1
    written.store(message, one)
    message.acked_at = written.now
    written.settle(flow, place_of(one, 1))
    written.gone(place_of(one, 1))
    assert written.rules() == ["unsynced"]


@pytest.mark.requirement("R190")
def test_a_second_delivery_without_a_mark_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    first, second = written.bind(one), written.bind(one)
    written.deliver(first, place_of(one, 1))
    written.unbind(first)
    written.consume(second, place_of(one, 1), count=1)
    assert written.rules() == []
    second.deliveries[0] = second.deliveries[0]._replace(tries=0)
    assert written.rules() == ["unmarked"]


@pytest.mark.requirement("R165")
def test_what_was_taken_from_disk_and_comes_again_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    flow = written.bind(one)
    written.consume(flow, place_of(one, 1))
    written.deliver(flow, place_of(one, 1), count=1)
    assert written.rules() == ["resurrected"]


def test_a_purged_message_that_comes_back_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    written.operate(one, "purge")
    written.now += 0.2
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == ["resurrected"]


def test_a_purge_that_was_never_answered_may_have_happened_or_not(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    wish = written.operate(one, "purge")
    wish.answered_at, wish.is_done = NEVER, False
    written.now += 0.2
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == []


def test_flows_get_what_is_stored_and_selected_and_nothing_else(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(3):
        written.publish("t/1", one)
    flow = written.bind(one, selector="color = 'green'")
    written.consume(flow, place_of(one, 2))
    rest = written.bind(one)
    written.consume(rest, place_of(one, 1), place_of(one, 3))
    assert written.rules() == []
    flow.selector = "color = 'red'"
    assert written.rules() == ["leak"]


def test_a_flow_with_no_local_that_gets_what_its_own_client_sent_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    flow = written.bind(one)
    flow.no_local = True
    written.consume(flow, place_of(one, 1))
    assert written.rules() == []
    flow.connection.client = written.publisher.client
    assert written.rules() == ["leak"]


@pytest.mark.requirement("R101")
def test_a_flow_that_gets_messages_in_another_order_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", access_type="non-exclusive")
    for _ in range(2):
        written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 2), place_of(one, 1))
    assert written.rules() == ["order"]
    wish = written.operate(one, "move")
    assert written.rules() == [], "an operator's move may have held the first one, and been refused"
    one.operations.remove(wish)
    written.change(one, respect_priority=True)
    assert written.rules() == []


@pytest.mark.requirement("R101")
def test_two_flows_that_are_fed_from_one_exclusive_queue_are_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(2):
        written.publish("t/1", one)
    first, second = written.bind(one), written.bind(one)
    written.deliver(first, place_of(one, 1))
    written.deliver(second, place_of(one, 2))
    written.settle(first, place_of(one, 1))
    written.settle(second, place_of(one, 2))
    written.gone(place_of(one, 1))
    written.gone(place_of(one, 2))
    assert written.rules() == ["owner"]


def test_a_consumer_position_that_jumps_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(3):
        written.publish("t/1", one)
    first, second = written.bind(one), written.bind(one)
    written.consume(first, place_of(one, 1))
    written.unbind(first)
    written.consume(second, place_of(one, 3))
    written.consume(second, place_of(one, 2), count=1)
    assert written.rules() == ["jump"]


def test_a_partition_whose_new_consumer_overtakes_the_old_one_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", access_type="non-exclusive", partition_count=1)
    for _ in range(2):
        written.publish("t/1", one)
    first, second = written.bind(one), written.bind(one)
    written.deliver(first, place_of(one, 1))
    written.deliver(second, place_of(one, 2))
    written.settle(first, place_of(one, 1))
    written.settle(second, place_of(one, 2))
    for position in (1, 2):
        written.gone(place_of(one, position))
    assert written.rules() == ["owner"]


def test_a_failed_message_comes_before_the_next_one(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(2):
        written.publish("t/1", one)
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1))
    written.settle(flow, place_of(one, 1), outcome=FAILED)
    written.consume(flow, place_of(one, 1), count=1)
    written.consume(flow, place_of(one, 2))
    assert written.rules() == []


def test_after_a_death_of_the_home_its_messages_come_again(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(2):
        written.publish("t/1", one)
    first = written.bind(one)
    written.deliver(first, place_of(one, 1), place_of(one, 2))
    written.settle(first, place_of(one, 1))
    written.history.home_events.append(Died(written.now, WORKER))
    written.now += 0.1
    second = written.bind(one)
    written.consume(second, place_of(one, 1), place_of(one, 2), count=1)
    assert written.rules() == []


def test_what_was_rejected_before_a_death_may_be_dead_on_disk_and_never_come_again(written: Written) -> None:
    one = written.queue("one", "t/>")
    for _ in range(2):
        written.publish("t/1", one)
    first = written.bind(one)
    written.deliver(first, place_of(one, 1), place_of(one, 2))
    written.settle(first, place_of(one, 1), outcome=REJECTED)
    written.history.home_events.append(Died(written.now, WORKER))
    written.now += 0.1
    written.consume(written.bind(one), place_of(one, 2), count=1)
    written.gone(place_of(one, 1))
    assert written.rules() == []


@pytest.mark.parametrize(("was_full", "rules"), [(False, ["forgotten"]), (True, [])])
def test_what_was_accepted_is_written_by_the_next_commit_unless_the_disk_was_full(
    written: Written, rules: list[str], *, was_full: bool
) -> None:
    """What found no room waits for a while, and other commits go first."""
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    first = written.bind(one)
    written.deliver(first, place_of(one, 1))
    written.settle(first, place_of(one, 1))
    if was_full:
        written.history.home_events.append(WasFull(written.now, WORKER))
    written.now += 0.1
    written.history.home_events.append(Wrote(written.now + 0.01, WORKER, written.now))
    written.now += 0.1
    written.history.home_events.append(Died(written.now, WORKER))
    written.now += 0.1
    written.consume(written.bind(one), place_of(one, 1), count=1)
    assert written.rules() == rules


@pytest.mark.requirement("R192")
def test_more_unsettled_messages_than_allowed_are_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", max_delivered_unacked_per_flow=2)
    for _ in range(3):
        written.publish("t/1", one)
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1), place_of(one, 2))
    written.settle(flow, place_of(one, 1))
    written.gone(place_of(one, 1))
    written.deliver(flow, place_of(one, 3))
    written.settle(flow, place_of(one, 2), place_of(one, 3))
    for position in (2, 3):
        written.gone(place_of(one, position))
    assert written.rules() == []
    one.changes[0].attributes["max_delivered_unacked_per_flow"] = 1
    assert written.rules() == ["limit"]


def test_overdrawn_credit_is_found_out(written: Written) -> None:
    flow = written.bind(written.queue("one", "t/>"))
    flow.faults = ["more than was granted"]
    assert written.rules() == ["credit"]


@pytest.mark.requirement("R198", "R200", "R203")
def test_a_message_that_is_sent_after_its_time_to_live_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", respect_ttl=True, max_ttl_s=3)
    written.publish("t/1", one, ttl_ms=2000)
    written.now += 2.0
    flow = written.bind(one)
    written.consume(flow, place_of(one, 1))
    assert written.rules() == []  # clocks are looked at from time to time
    written.publish("t/1", one, ttl_ms=9000)
    written.now += 4.0
    written.consume(flow, place_of(one, 2))
    assert written.rules() == ["expired"]


def test_a_message_that_is_sent_before_its_delay_is_over_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one, delay_ms=5000)
    flow = written.bind(one)
    written.consume(flow, place_of(one, 1))
    assert written.rules() == ["delay"]


@pytest.mark.requirement("R156")
def test_copies_for_direct_subscribers_need_a_subscription(written: Written) -> None:
    message = written.publish("t/1")
    subscriber = written.base.connect("subscriber")
    written.base.subscribe(subscriber, "t/>")
    written.history.demoted.append((subscriber, message.number, None, written.now))
    assert written.rules() == []
    written.history.demoted.append((written.base.connect("other"), message.number, None, written.now))
    assert written.rules() == ["leak"]


@pytest.mark.requirement("R156")
def test_copies_for_direct_subscribers_come_once_and_in_their_order(written: Written) -> None:
    first, second = written.publish("t/1"), written.publish("t/1")
    subscriber = written.base.connect("subscriber")
    written.base.subscribe(subscriber, "t/>")
    for one in (first, second, first, second):
        written.history.demoted.append((subscriber, one.number, None, written.now))
    assert written.rules() == ["order", "duplicate"]


# Why messages go.


@pytest.mark.requirement("R168")
def test_a_message_that_is_gone_without_a_reason_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    written.gone(place_of(one, 1))
    assert written.rules() == ["vanished"]


def test_a_message_that_is_left_in_the_end_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    assert written.rules() == ["left"]
    del written.history.drained[one.id]
    assert written.rules() == []


def test_a_message_that_a_consumer_failed_is_not_gone(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1))
    written.settle(flow, place_of(one, 1), outcome=FAILED)
    written.gone(place_of(one, 1))
    assert written.rules() == ["vanished"]


@pytest.mark.parametrize("kind", ["purge", "delete", "move"])
def test_an_operator_may_take_messages(written: Written, kind: str) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    written.operate(one, kind, [1] if kind == "delete" else None)
    written.now += 0.1
    written.gone(place_of(one, 1), is_purge=kind == "purge")
    assert written.rules() == []


def test_what_another_position_was_deleted_for_stays(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    written.operate(one, "delete", [2])
    written.now += 0.1
    written.gone(place_of(one, 1))
    assert written.rules() == ["vanished"]


@pytest.mark.requirement("R149")
def test_a_topic_endpoint_is_emptied_when_its_topic_changes(written: Written) -> None:
    one = written.queue("one", kind="topic-endpoint", topic="t/>", generation=1)
    written.publish("t/1", one)
    written.change(one, topic="u/>", generation=2)
    written.gone(place_of(one, 1), is_purge=True)
    assert written.rules() == []


@pytest.mark.requirement("R145")
def test_a_topic_endpoint_leaves_out_what_its_selector_does_not_select(written: Written) -> None:
    one = written.queue("one", kind="topic-endpoint", topic="t/>", selector="color = 'green'")
    written.publish("t/1", one)
    written.gone(place_of(one, 1))
    assert written.rules() == []
    written.publish("t/1", one)
    written.gone(place_of(one, 2))
    assert written.rules() == ["vanished"]


def test_a_last_value_queue_keeps_the_newest(written: Written) -> None:
    one = written.queue("one", "t/>", max_spool_usage_mb=0)
    written.publish("t/1", one)
    written.publish("t/1", one)
    written.gone(place_of(one, 1))
    written.consume(written.bind(one), place_of(one, 2))
    assert written.rules() == []
    written.publish("t/1", one)
    written.gone(place_of(one, 3))
    assert written.rules() == ["vanished"]


@pytest.mark.requirement("R202")
@pytest.mark.parametrize("cause", ["rejected", "expired", "redeliveries"])
def test_the_dead_go_to_the_dead_message_queue(written: Written, cause: str) -> None:
    one = written.queue("one", "t/>", dead_message_queue="dmq", max_redelivery_count=1, respect_ttl=True)
    dmq = written.queue("dmq", dead_message_queue="")
    message = written.publish("t/1", one, ttl_ms=1500 if cause == "expired" else 0)
    flow = written.bind(one)
    if cause == "rejected":
        written.deliver(flow, place_of(one, 1))
        written.settle(flow, place_of(one, 1), outcome=REJECTED)
    elif cause == "redeliveries":
        for count in (0, 1):
            written.deliver(flow, place_of(one, 1), count=count)
            written.settle(flow, place_of(one, 1), outcome=FAILED)
    else:
        written.now += 2.0
    written.store(message, dmq, origin=("queue", "one", cause))
    written.gone(place_of(one, 1))
    written.consume(written.bind(dmq), place_of(dmq, 1))
    assert written.rules() == []
    written.history.home_events = [
        event
        for event in written.history.home_events
        if getattr(event, "place", getattr(event, "lane", None))
        not in (place_of(dmq, 1), place_of(dmq, 1)[0])
    ]
    for flow in written.history.flows:
        flow.deliveries = [one for one in flow.deliveries if one.place != place_of(dmq, 1)]
    assert written.rules() == ["dmq"]


def test_the_dead_that_are_not_eligible_need_not_go_anywhere(written: Written) -> None:
    one = written.queue("one", "t/>", dead_message_queue="dmq", respect_dmq_eligible=True)
    written.queue("dmq")
    message = written.publish("t/1", one)
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1))
    written.settle(flow, place_of(one, 1), outcome=REJECTED)
    written.gone(place_of(one, 1))
    assert written.rules() == []
    message.flags |= wire.FLAG_DMQ_ELIGIBLE
    assert written.rules() == ["dmq"]


def test_a_dead_message_that_comes_twice_is_a_duplicate(written: Written) -> None:
    one, dmq = written.queue("one", "t/>", dead_message_queue="dmq"), written.queue("dmq")
    message = written.publish("t/1", one)
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1))
    written.settle(flow, place_of(one, 1), outcome=REJECTED)
    for _ in range(2):
        written.store(message, dmq, origin=("queue", "one", "rejected"))
    written.gone(place_of(one, 1))
    written.consume(written.bind(dmq), place_of(dmq, 1), place_of(dmq, 2))
    assert written.rules() == ["duplicate"]


def test_a_message_from_an_endpoint_that_never_had_it_is_a_leak(written: Written) -> None:
    one, dmq = written.queue("one", "x"), written.queue("dmq")
    message = written.publish("t/1")
    written.store(message, dmq, origin=("queue", "one", "moved"))
    written.consume(written.bind(dmq), place_of(dmq, 1))
    assert one.name == "one"
    assert "leak" in written.rules()


def test_a_flow_that_gets_messages_of_another_endpoint_is_found_out(written: Written) -> None:
    one, two = written.queue("one", "t/>"), written.queue("two", "t/>")
    message = written.publish("t/1", one, two)
    written.consume(written.bind(one), place_of(one, 1))
    flow = written.bind(two)
    written.consume(flow, place_of(two, 1))
    flow.deliveries.append(FlowDelivery(place_of(one, 1), f"g{message.number}", 1, written.now, None))
    assert written.rules() == ["leak"]
