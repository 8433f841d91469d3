"""The checker objects to every kind of broken promise, and to nothing else.

Histories written by hand break one promise each.
"""

from __future__ import annotations

import pytest

from angarium import errors
from tests.simulation.event_history import FOREVER
from tests.simulation.history_checker import check
from tests.simulation.written_history import DTO, ELIDING, FIRST_AT, WrittenHistory


@pytest.fixture
def written() -> WrittenHistory:
    return WrittenHistory()


def rules(written: WrittenHistory) -> list[str]:
    """Give the rules that object, each once."""
    return list(dict.fromkeys(violation.rule for violation in check(written.history)))


def test_a_history_in_which_all_went_well_is_good(written: WrittenHistory) -> None:
    one, two = written.connect("one"), written.connect("two", vpn="blue")
    written.subscribe(one, "t/>")
    written.subscribe(one, "t/1")
    written.subscribe(two, ">")
    messages = [written.publish("t/1"), written.publish("t/2"), written.publish("x")]
    written.deliver(one, *messages[:2])
    assert check(written.history) == []


# Order and duplicates.


@pytest.mark.requirement("R3")
def test_two_messages_of_one_publisher_swapped_over_topics_are_out_of_order(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    first, second = written.publish("t/1"), written.publish("t/2")
    written.deliver(one, second, first)
    assert rules(written) == ["order"]


def test_different_classes_of_service_and_different_publishers_have_no_order(written: WrittenHistory) -> None:
    one, other = written.connect("one"), written.connect("other")
    written.subscribe(one, "t/>")
    first, second = written.publish("t/1"), written.publish("t/2", flags=0b0100)
    third = written.publish("t/1", publisher=other)
    written.deliver(one, third, second, first)
    assert check(written.history) == []


def test_messages_of_one_share_swapped_are_out_of_order_whatever_their_class(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "#share/g/t/>")
    first, second = written.publish("t/1"), written.publish("t/2", flags=0b0100)
    written.deliver(one, second, first, share="#share/g/t/>")
    assert rules(written) == ["order"]


def test_an_older_value_of_an_elided_topic_after_a_newer_one_is_out_of_order(written: WrittenHistory) -> None:
    one = written.connect("one", is_eliding=True)
    written.subscribe(one, "t/>")
    other, old, new = (written.publish(topic, flags=ELIDING) for topic in ("t/2", "t/1", "t/1"))
    written.deliver(one, new, other, old)
    assert rules(written) == ["order"]


def test_the_same_message_twice_is_a_duplicate(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    message = written.publish("t/1")
    written.deliver(one, message, message)
    assert rules(written) == ["duplicate"]


@pytest.mark.requirement("R86")
def test_a_copy_of_one_s_own_and_another_by_share_are_a_duplicate(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    written.subscribe(one, "#share/g/t/>")
    message = written.publish("t/1")
    written.deliver(one, message)
    written.deliver(one, message, share="#share/g/t/>")
    assert rules(written) == ["duplicate"]


@pytest.mark.requirement("R21")
def test_a_copy_by_each_of_two_shares_is_right(written: WrittenHistory) -> None:
    one = written.connect("one")
    for name in ("g", "h"):
        written.subscribe(one, f"#share/{name}/t/>")
    message = written.publish("t/1")
    for name in ("g", "h"):
        written.deliver(one, message, share=f"#share/{name}/t/>")
    assert check(written.history) == []


# Leaks.


@pytest.mark.requirement("R53")
def test_a_message_of_another_message_vpn_is_a_leak(written: WrittenHistory) -> None:
    one = written.connect("one", vpn="blue")
    written.subscribe(one, ">")
    written.deliver(one, written.publish("t/1"))
    assert rules(written) == ["leak"]


def test_a_message_without_a_matching_subscription_is_a_leak(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/2")
    written.deliver(one, written.publish("t/1"))
    assert rules(written) == ["leak"]


def test_a_message_by_a_share_that_the_client_is_not_in_is_a_leak(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    message = written.publish("t/1")
    written.deliver(one, message, share="#share/g/t/>")
    assert "leak" in rules(written)


def test_a_message_behind_the_unsuback_is_a_leak_for_who_had_credit_all_the_time(
    written: WrittenHistory,
) -> None:
    one = written.connect("one")
    subscription = written.subscribe(one, "t/>")
    message = written.publish("t/1")
    subscription.leaving_at, subscription.gone_at = message.sent_at + 0.01, message.sent_at + 0.03
    written.deliver(one, message)
    assert rules(written) == ["leak"]
    one.is_prompt = False  # it may have waited for credit since before
    written.history.counters.clear()
    assert rules(written) == []


def test_a_message_sent_after_the_unsuback_is_a_leak_for_everybody(written: WrittenHistory) -> None:
    one = written.connect("one", is_prompt=False)
    subscription = written.subscribe(one, "t/>")
    subscription.leaving_at, subscription.gone_at = FIRST_AT - 2, FIRST_AT - 1
    written.deliver(one, written.publish("t/1"))
    assert rules(written) == ["leak"]


@pytest.mark.requirement("R57")
def test_a_message_that_its_publisher_was_denied_is_a_leak(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    written.allow("default", exceptions=("t/1",))
    message = written.publish("t/1")
    written.publisher.refusals[errors.PUBLISH_DENIED] = 1
    assert check(written.history) == []
    written.deliver(one, message)
    assert rules(written) == ["leak"]


@pytest.mark.requirement("R57")
def test_a_subscription_accepted_against_the_acl_is_a_leak(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    rights = written.history.rights["default", "app"]
    denying = rights[0].publish.__class__(["t/2"], default_allow=True)
    rights[0] = rights[0]._replace(subscribe=denying)
    assert rules(written) == ["leak"]


def test_a_message_of_one_s_own_against_no_local_is_a_leak(written: WrittenHistory) -> None:
    written.publisher.no_local = True
    written.subscribe(written.publisher, "t/>")
    message = written.publish("t/1")
    assert check(written.history) == []
    written.deliver(written.publisher, message)
    assert rules(written) == ["leak"]


# Losses.


def test_a_message_that_never_came_to_a_certain_subscriber_is_lost(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    written.publish("t/1")
    assert rules(written) == ["lost"]


@pytest.mark.parametrize("doubt", ["unproven", "unretired", "leaving", "unconfirmed", "slow", "other topic"])
def test_a_message_that_never_came_for_a_good_reason_is_not_lost(written: WrittenHistory, doubt: str) -> None:
    one = written.connect("one")
    subscription = written.subscribe(one, "t/2" if doubt == "other topic" else "t/>")
    message = written.publish("t/1")
    if doubt == "unproven":
        one.proven_until = message.sent_at
    elif doubt == "unretired":
        message.retired_at = FOREVER
    elif doubt == "leaving":
        subscription.leaving_at = message.sent_at + 0.01
    elif doubt == "unconfirmed":
        subscription.confirmed_at = message.sent_at + 0.01
    elif doubt == "slow":
        one.is_prompt = False
        written.history.counters[one.session] = {"discard.transmit-congestion": 1}
        one.dropped = 1
    assert check(written.history) == []


@pytest.mark.requirement("R9")
def test_what_is_lost_with_a_worker_has_to_be_counted(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    written.publish("t/1")
    written.history.lose_worker(0, FIRST_AT - 1)
    written.history.regain_worker(0, FIRST_AT + 1)
    assert rules(written) == ["lost"]
    written.publisher.lost_rows = 1
    assert check(written.history) == []


def test_a_message_that_came_after_the_client_could_know_that_it_was_dispatched_is_late(
    written: WrittenHistory,
) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    message = written.publish("t/1")
    one.answers.append((message.retired_at + 0.1, message.retired_at + 0.2))
    written.deliver(one, message, at=message.retired_at + 0.15)
    assert check(written.history) == []
    one.deliveries.clear()
    written.deliver(one, message, at=message.retired_at + 0.3)
    assert rules(written) == ["late"]


# Shared subscriptions and deliver-to-one.


@pytest.mark.requirement("R19")
def test_one_member_of_a_group_gets_a_message_neither_none_nor_two(written: WrittenHistory) -> None:
    members = [written.connect("one"), written.connect("two")]
    for member in members:
        written.subscribe(member, "#share/g/t/>")
    message = written.publish("t/1")
    assert rules(written) == ["shared"]
    written.deliver(members[0], message, share="#share/g/t/>")
    assert check(written.history) == []
    written.deliver(members[1], message, share="#share/g/t/>")
    assert rules(written) == ["shared"]


@pytest.mark.requirement("R68", "R81")
def test_one_client_gets_a_deliver_to_one_message_beside_those_that_always_do(
    written: WrittenHistory,
) -> None:
    one, two, always = (written.connect(name) for name in ("one", "two", "always"))
    for client in (one, two):
        written.subscribe(client, "t/>")
    written.subscribe(always, "t/>", deliver_always=True)
    message = written.publish("t/1", flags=DTO)
    written.deliver(always, message)
    assert rules(written) == ["deliver-to-one"]
    written.deliver(one, message)
    assert check(written.history) == []
    written.deliver(two, message)
    assert rules(written) == ["deliver-to-one"]


@pytest.mark.requirement("R73")
def test_a_deliver_to_one_message_for_another_than_the_best_priority_is_wrong(
    written: WrittenHistory,
) -> None:
    best, second = written.connect("best", priority=1), written.connect("second", priority=2)
    for client in (best, second):
        written.subscribe(client, "t/>")
    written.deliver(second, written.publish("t/1", flags=DTO))
    assert rules(written) == ["deliver-to-one"]


@pytest.mark.requirement("R74")
def test_turns_that_are_not_taken_in_turn_are_unfair(written: WrittenHistory) -> None:
    clients = [written.connect("one"), written.connect("two")]
    for client in clients:
        written.subscribe(client, "t/>")
    burst = [written.publish("t/1", flags=DTO) for _ in range(6)]
    written.history.burst = burst
    for number, message in enumerate(burst):
        written.deliver(clients[number % 2], message)
    assert check(written.history) == []
    clients[0].deliveries, clients[1].deliveries = [], []
    for number, message in enumerate(burst):
        written.deliver(clients[number // 4], message)
    assert rules(written) == ["deliver-to-one"]


# Credit, ends, refusals and counters.


def test_a_delivery_beyond_the_credit_is_seen(written: WrittenHistory) -> None:
    written.publisher.overdrafts.append("5 messages had come, granted were 5")
    assert rules(written) == ["credit"]


def test_a_client_that_keeps_the_rules_is_closed_only_for_a_cause(written: WrittenHistory) -> None:
    one = written.connect("one")
    one.closed_at, one.close_code = 50.0, errors.INGRESS_CREDIT_EXCEEDED
    assert rules(written) == ["end"]
    one.close_code = errors.KEEPALIVE_TIMEOUT
    assert rules(written) == ["end"]
    written.history.fault(48.0, "one", "pauses")
    assert check(written.history) == []


def test_refusals_are_told_and_only_what_was_refused(written: WrittenHistory) -> None:
    written.allow("default", exceptions=("t/1",))
    written.publish("t/1")
    assert rules(written) == ["refused"]
    written.publisher.refusals[errors.PUBLISH_DENIED] = 1
    assert check(written.history) == []
    written.publisher.refusals[errors.PUBLISH_DENIED] = 2
    assert rules(written) == ["refused"]


@pytest.mark.requirement("R8", "R45")
def test_what_a_slow_client_misses_is_counted_and_told_neither_more_nor_less(written: WrittenHistory) -> None:
    slow = written.connect("slow", is_prompt=False)
    written.subscribe(slow, "t/>")
    messages = [written.publish("t/1") for _ in range(5)]
    written.deliver(slow, *messages[3:])
    counters = written.history.counters[slow.session]
    for counted, told, expected in (
        (3, 3, []),
        (2, 2, ["discards"]),
        (4, 4, ["discards"]),
        (3, 2, ["indication"]),
    ):
        counters["discard.transmit-congestion"], slow.dropped = counted, told
        assert rules(written) == expected


def test_discards_that_are_never_told_although_more_was_delivered_are_seen(written: WrittenHistory) -> None:
    slow = written.connect("slow", is_prompt=False)
    written.subscribe(slow, "t/>")
    messages = [written.publish("t/1") for _ in range(2)]
    written.deliver(slow, messages[1])
    written.history.counters[slow.session]["discard.transmit-congestion"] = 1
    written.history.untold[slow.session] = 1
    assert check(written.history) == []
    written.history.calm_since = FIRST_AT
    written.history.calm_untold[slow.session] = (1, 0)
    assert "indication" in rules(written)


@pytest.mark.requirement("R32", "R51")
def test_the_newest_value_of_an_elided_topic_has_to_arrive(written: WrittenHistory) -> None:
    one = written.connect("one", is_eliding=True)
    written.subscribe(one, "t/>")
    old, new = written.publish("t/1", flags=ELIDING), written.publish("t/1", flags=ELIDING)
    written.history.counters[one.session]["discard.message-elided"] = 1
    written.deliver(one, old)
    assert rules(written) == ["eliding"]
    one.deliveries.clear()
    written.deliver(one, new)
    assert check(written.history) == []


def test_every_row_of_the_calm_is_counted_once(written: WrittenHistory) -> None:
    one = written.connect("one")
    written.subscribe(one, "t/>")
    written.history.calm_since = FIRST_AT
    written.deliver(one, written.publish("t/1"))
    written.publish("unmatched")
    right = {"messages_in": 2, "discards": {"no-subscription-match": 1}}
    written.history.end_stats = right
    assert check(written.history) == []
    for wrong in (
        {**right, "messages_in": 1},
        {**right, "discards": {}},
        {**right, "discards": {"no-subscription-match": 1, "shard-unavailable": 1}},
    ):
        written.history.end_stats = wrong
        assert rules(written) == ["accounts"]


def test_what_broke_inside_a_process_is_reported_as_it_is(written: WrittenHistory) -> None:
    written.history.break_rule("the router process ends with KeyError")
    assert rules(written) == ["broken"]
