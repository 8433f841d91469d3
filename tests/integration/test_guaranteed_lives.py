"""The lives of messages in queues: delays, priorities, last values, expiry, failures, and where dead ones go."""

from __future__ import annotations

import time
from typing import Any

import pytest

from angarium import blocking, errors, wire
from tests.integration.attacked_spool import AttackedSpool, new_name
from tests.integration.raw_guaranteed import Got, RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

QUIET_S = 0.3
#: A payload with which a message takes an MB.
WHOLE = bytes(1_000_000 - wire.SPOOL_OVERHEAD_BYTES)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def ranges(messages: list[Got]) -> list[list[int]]:
    return [[one.partition, one.position, one.position] for one in messages]


def payloads(messages: list[Got]) -> list[bytes]:
    return [one.payload for one in messages]


def run_job(attacked: AttackedSpool, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Begin a job and give what it says at its end."""
    jobs = attacked.ask(operation, name=name, **arguments)["jobs"]
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(attacked.ask("jobs.show", jobs=jobs))
        return bool(found["state"] != "running")

    wait_until(is_over, f"{operation} is over")
    return found


# When messages come, and which.


@pytest.mark.parametrize("by", ["message", "queue"])
def test_a_delayed_message_comes_when_its_time_has_come(
    attacked: AttackedSpool, client: RawGuaranteed, by: str
) -> None:
    queue = attacked.queue(delivery_delay_s=2 if by == "queue" else 0)
    meta = [0, 2_000, None, None] if by == "message" else None
    flow = client.bind(queue)
    started = time.monotonic()
    assert RawProducer(client).fill(queue, b"later", meta=meta) == [0]
    attacked.expect_counters(queue, messages_delayed=1)
    assert payloads(client.messages(flow, 1)) == [b"later"]
    assert time.monotonic() - started >= 2.0 - 0.05


def test_a_queue_with_priorities_gives_the_highest_first_and_those_above_nine_are_equal(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(respect_priority=True)
    given = [None, 0, 9, 255, 4, 5, 9, 0]
    rows = [to_queue(n, queue, b"%d" % n, meta=[0, 0, priority, None]) for n, priority in enumerate(given)]
    assert not any(RawProducer(client).publish(*rows))
    flow = client.bind(queue)
    assert payloads(client.messages(flow, 8)) == [b"2", b"3", b"6", b"5", b"0", b"4", b"1", b"7"]
    assert client.messages(client.bind(queue, browse=True), 8)[0].payload == b"0", (
        "a browser sees the order of arrival"
    )


def test_a_last_value_queue_holds_the_newest_and_what_is_out_but_no_more(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    """It takes no quota, so a consumer that settles nothing must not make it grow."""
    queue = attacked.queue(max_spool_usage_mb=0)
    producer = RawProducer(client)
    producer.fill(queue, b"old")
    flow = client.bind(queue)
    (old,) = client.messages(flow, 1)
    for number in range(20):
        producer.fill(queue, b"%d" % number)
    client.none_within(wire.MESSAGES, QUIET_S)
    attacked.expect_held(queue, 2)
    client.settle(flow, ranges([old]), wire.OUTCOME_FAILED)
    (new,) = client.messages(flow, 1)
    assert (new.payload, new.tries) == (b"19", 0), "the old one does not come again"
    client.settle(flow, ranges([new]))
    attacked.expect_held(queue, 0)
    attacked.expect_counters(queue, last_value_replaced=20)


@pytest.mark.requirement("R136", "R150")
def test_a_browser_sees_what_there_is_and_takes_nothing(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    RawProducer(client).fill(queue, *numbers(250))
    consumer = client.bind(queue, credit=(10, 1 << 20))
    taken = client.messages(consumer, 10)
    browser = client.bind(queue, browse=True)
    seen = client.messages(browser, 250)
    assert payloads(seen) == numbers(250)
    client.settle(browser, ranges(seen[20:30]))
    assert client.indication(browser, wire.FLOW_SETTLE_REFUSED)[0] == errors.NOT_DELIVERED
    attacked.expect_held(queue, 250)
    client.settle(consumer, ranges(taken))
    attacked.expect_held(queue, 240)


# What a message is.


@pytest.mark.requirement("R151", "R152", "R153", "R154", "R159", "R160", "R161")
def test_a_direct_message_in_a_queue_is_a_non_persistent_one_and_its_receiver_acknowledges_it(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["modes/>"])
    client.publish_uncut([(0, "modes/x", wire.MODE_DIRECT, None, None, b"direct")])
    attacked.expect_held(queue, 1)
    producer = RawProducer(client)
    producer.publish(kept(0, "modes/x", b"non-persistent", wire.MODE_NON_PERSISTENT))
    producer.publish(kept(0, "modes/x", b"persistent", wire.MODE_PERSISTENT))
    with blocking.connect(attacked.url) as reader:
        flow = reader.consume(queue, ack="manual")
        got = [flow.receive(10.0) for _ in range(3)]
        assert [(one.payload, one.mode) for one in got] == [
            (b"direct", "non-persistent"),
            (b"non-persistent", "non-persistent"),
            (b"persistent", "persistent"),
        ]
        flow.accept(got[1:])
        attacked.expect_held(queue, 1)
        flow.close()
        again = reader.consume(queue, ack="manual")
        (first,) = [again.receive(10.0)]
        assert (first.payload, first.redelivered) == (b"direct", True), "it stays until it is acknowledged"
        first.accept()
        attacked.expect_held(queue, 0)
    assert not [frame for frame in client.kept if frame.operation == wire.ACKED]


@pytest.mark.requirement("R33", "R35", "R156")
def test_only_the_direct_copies_of_guaranteed_messages_are_elided(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["ticker/>"])
    user = attacked.user(eliding=True, eliding_delay_ms=400)
    elided = attacked.discards("message-elided")
    flags = wire.MODE_PERSISTENT | wire.FLAG_ELIDING
    with attacked.client(username=user) as slow:
        slow.subscribe("ticker/>")
        producer = RawProducer(client)
        for number in range(20):
            assert producer.publish(kept(0, "ticker/x", b"%d" % number, flags)) == [0]
        got: list[bytes] = []
        while not got or got[-1] != b"19":
            got += [row[5] for batch in slow.receive_only(wire.DELIVER).batches for row in wire.unpack(batch)]
        assert got[0] == b"0"
        assert len(got) < 10
        wait_until(
            lambda: attacked.discards("message-elided") == elided + 20 - len(got), "the rest is counted"
        )
    assert payloads(client.messages(client.bind(queue), 20)) == numbers(20)


@pytest.mark.requirement("R145", "R146", "R147", "R148")
def test_what_the_selector_of_a_topic_endpoint_leaves_out_goes_while_nobody_consumes(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    name, topic = attacked.create("topic-endpoint", new_name("choosy")), new_name("graded")
    wish: dict[str, Any] = {"kind": "topic-endpoint", "topic": topic, "selector": "JMSPriority > 4"}
    client.done("flow.unbind", flow=client.bind(name, **wish))
    rows = [
        (n, topic, wire.MODE_PERSISTENT, [0, 0, 9 if n % 2 else 1, None], None, b"%d" % n) for n in range(100)
    ]
    assert RawProducer(client).publish(*rows) == [0] * 100, "all are acknowledged, whatever becomes of them"
    attacked.expect_held(name, 50, kind="topic-endpoint")
    got = client.messages(client.bind(name, **wish), 50)
    assert payloads(got) == [b"%d" % n for n in range(1, 100, 2)]


@pytest.mark.requirement("R179")
def test_a_message_stays_in_its_queue_when_the_subscription_that_brought_it_goes(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["gone/>"])
    producer = RawProducer(client)
    assert producer.publish(kept(0, "gone/1", b"stays")) == [0]
    attacked.ask("objects.subscribe", name=queue, remove=["gone/>"])
    assert producer.publish(kept(0, "gone/1", b"nobody's")) == [0]
    flow = client.bind(queue)
    assert payloads(client.messages(flow, 1)) == [b"stays"]
    client.none_within(wire.MESSAGES, QUIET_S)


# Ends.


@pytest.mark.requirement("R198", "R202", "R203", "R200", "R201")
def test_the_smaller_of_both_lives_counts_and_dead_messages_are_found_in_the_dead_message_queue(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    dead = attacked.queue()
    queue = attacked.queue(dead_message_queue=dead, max_ttl_s=1)
    patient = attacked.queue(dead_message_queue=dead)
    producer = RawProducer(client)
    flow = client.bind(dead)
    started = time.monotonic()
    producer.fill(queue, b"long life", meta=[60_000, 0, None, None])
    producer.fill(queue, b"short life", meta=[300, 0, None, None])
    producer.fill(patient, b"for ever")
    for payload, life_s in ((b"short life", 0.3), (b"long life", 1.0)):
        (got,) = client.messages(flow, 1)
        assert (got.payload, got.origin) == (payload, ["queue", queue, "expired"])
        assert time.monotonic() - started >= life_s - 0.05
    attacked.expect_counters(queue, ttl_expired_to_dmq=2)
    attacked.expect_held(patient, 1)


@pytest.mark.requirement("R199")
def test_a_life_goes_on_when_a_message_is_moved(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    """As it would over a link: what is left of it counts at the next place."""
    first, second = attacked.queue(), attacked.queue(dead_message_queue="")

    def end_of(queue: str) -> int:
        (message,) = attacked.ask("messages.list", name=queue)["messages"]
        return int(message["expires_ms"])

    RawProducer(client).fill(first, b"mortal", meta=[5_000, 0, None, None])
    before = end_of(first)
    time.sleep(0.3)
    assert run_job(attacked, "endpoints.move", first, target=second)["done"] == 1
    attacked.expect_held(first, 0)
    assert abs(end_of(second) - before) < 100
    attacked.expect_held(second, 0)
    attacked.expect_counters(second, ttl_expired_discard=1)


def test_what_is_out_when_its_life_ends_waits_for_its_verdict(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    dead = attacked.queue()
    queue = attacked.queue(dead_message_queue=dead)
    flow = client.bind(queue)
    RawProducer(client).fill(queue, b"taken", b"given up", meta=[1_000, 0, None, None])
    got = client.messages(flow, 2)
    time.sleep(1.2)  # past the end of their lives
    attacked.expect_held(queue, 2)
    client.settle(flow, ranges(got[:1]))
    client.done("flow.unbind", flow=flow)
    attacked.expect_held(queue, 0)
    assert payloads(client.messages(client.bind(dead), 1)) == [b"given up"]


def test_dead_messages_wait_while_their_queue_is_full_and_none_is_lost(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    dead = attacked.queue(max_spool_usage_mb=1)
    queue = attacked.queue(dead_message_queue=dead)
    producer = RawProducer(client)
    assert producer.fill(dead, WHOLE) == [0]
    assert producer.fill(queue, *numbers(5), meta=[200, 0, None, None]) == [0] * 5
    wait_until(
        lambda: attacked.endpoint(queue)["ttl_expired_to_dmq_failures"], "the dead message queue is full"
    )
    flow = client.bind(queue)
    client.none_within(wire.MESSAGES, QUIET_S)
    attacked.expect_held(queue, 5)
    assert producer.fill(queue, b"alive") == [0], "the living go on"
    assert payloads(client.messages(flow, 1)) == [b"alive"]
    attacked.ask("endpoints.purge", name=dead)
    attacked.expect_held(dead, 5)
    assert payloads(client.messages(client.bind(dead), 5)) == numbers(5)
    attacked.expect_held(queue, 1)


@pytest.mark.parametrize("target", ["missing", "none"])
def test_dead_messages_without_a_queue_are_deleted_and_counted(
    attacked: AttackedSpool, client: RawGuaranteed, target: str
) -> None:
    queue = attacked.queue(dead_message_queue=new_name() if target == "missing" else "")
    RawProducer(client).fill(queue, *numbers(3))
    flow = client.bind(queue)
    client.settle(flow, ranges(client.messages(flow, 3)), wire.OUTCOME_REJECTED)
    attacked.expect_held(queue, 0)
    attacked.expect_counters(queue, rejected_discard=3)


def test_where_only_marked_messages_are_kept_the_others_are_deleted(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    dead = attacked.queue()
    queue = attacked.queue(dead_message_queue=dead, respect_dmq_eligible=True)
    producer = RawProducer(client)
    producer.fill(queue, b"marked", flags=wire.MODE_PERSISTENT | wire.FLAG_DMQ_ELIGIBLE)
    producer.fill(queue, b"not marked")
    flow = client.bind(queue)
    client.settle(flow, ranges(client.messages(flow, 2)), wire.OUTCOME_REJECTED)
    assert payloads(client.messages(client.bind(dead), 1)) == [b"marked"]
    attacked.expect_counters(queue, rejected_to_dmq=1, rejected_discard=1)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_message_is_tried_as_often_as_it_may_and_then_is_dead(
    attacked: AttackedSpool, client: RawGuaranteed, limit: int
) -> None:
    dead = attacked.queue()
    queue = attacked.queue(dead_message_queue=dead, max_redelivery_count=limit)
    RawProducer(client).fill(queue, b"bad", b"good")
    flow = client.bind(queue)
    for attempt in range(limit + 1):
        (bad, *good) = sorted(client.messages(flow, 1 if attempt else 2), key=lambda one: one.position)
        assert (bad.payload, bad.tries) == (b"bad", attempt)
        if good:
            client.settle(flow, ranges(good))
        client.settle(flow, ranges([bad]), wire.OUTCOME_FAILED)
    (corpse,) = client.messages(client.bind(dead), 1)
    assert (corpse.payload, corpse.origin) == (b"bad", ["queue", queue, "redeliveries"])
    attacked.expect_counters(queue, max_redelivery_exceeded_to_dmq=1)
    attacked.expect_held(queue, 0)


def test_without_redelivery_one_failure_is_death(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = attacked.queue(redelivery_enabled=False, dead_message_queue="")
    RawProducer(client).fill(queue, *numbers(3))
    flow = client.bind(queue)
    got = client.messages(flow, 3)
    client.settle(flow, ranges(got[:1]), wire.OUTCOME_FAILED)
    attacked.expect_held(queue, 2)
    client.done("flow.unbind", flow=flow)
    attacked.expect_held(queue, 0)


def test_a_redelivery_waits_as_long_as_it_should(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = attacked.queue(
        redelivery_delay_enabled=True,
        redelivery_delay_initial_ms=200,
        redelivery_delay_multiplier_percent=300,
    )
    RawProducer(client).fill(queue, b"again")
    flow = client.bind(queue)
    waits = []
    settled = time.monotonic()
    for count in range(3):
        (got,) = client.messages(flow, 1)
        waits.append(time.monotonic() - settled)
        assert got.tries == count
        settled = time.monotonic()
        client.settle(flow, ranges([got]), wire.OUTCOME_FAILED)
    assert waits[1] >= 0.15
    assert waits[2] >= 0.55


# Operators move messages.


def test_dead_messages_are_sent_back_each_once(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    dead = attacked.queue()
    queues = [attacked.queue(dead_message_queue=dead) for _ in range(2)]
    producer = RawProducer(client)
    for queue in queues:
        producer.fill(queue, *numbers(10))
        flow = client.bind(queue)
        client.settle(flow, ranges(client.messages(flow, 10)), wire.OUTCOME_REJECTED)
        client.done("flow.unbind", flow=flow)
    attacked.expect_held(dead, 20)
    attacked.delete("queue", queues[1])
    job = run_job(attacked, "endpoints.redrive", dead)
    assert (job["done"], job["refused"]) == (10, 10)
    attacked.expect_held(dead, 10)
    back = client.messages(client.bind(queues[0]), 10)
    assert [(one.payload, one.origin[2]) for one in back] == [
        (payload, "redriven") for payload in numbers(10)
    ]
    attacked.queue(queues[1])
    assert run_job(attacked, "endpoints.redrive", dead)["done"] == 10
    assert payloads(client.messages(client.bind(queues[1]), 10)) == numbers(10)
    attacked.expect_held(dead, 0)


def test_a_move_that_finds_the_target_full_leaves_the_rest_where_it_is(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    full, source = attacked.queue(max_spool_usage_mb=1), attacked.queue()
    half = bytes(500_000 - wire.SPOOL_OVERHEAD_BYTES)
    RawProducer(client).fill(source, half, half, half)
    job = run_job(attacked, "endpoints.move", source, target=full)
    assert (job["done"], job["refused"]) == (2, 1)
    attacked.expect_held(source, 1)
    attacked.expect_held(full, 2)
    attacked.expect_counters(full, spool_usage_bytes=1_000_000)
    copied = run_job(attacked, "endpoints.copy", source, target=full)
    assert copied["refused"] == 1
    attacked.expect_held(source, 1)


@pytest.mark.requirement("R23")
def test_what_operators_ask_for_that_cannot_be_is_refused(attacked: AttackedSpool) -> None:
    queue = attacked.queue()
    refused: list[tuple[str, dict[str, Any], int]] = [
        ("endpoints.move", {"name": queue, "target": "nowhere"}, errors.OBJECT_NOT_FOUND),
        ("endpoints.move", {"name": queue, "target": queue}, errors.INVALID_ARGUMENT),
        (
            "endpoints.move",
            {"name": queue, "target": "#DEAD_MSG_QUEUE", "selector": "a ="},
            errors.INVALID_SELECTOR,
        ),
        ("endpoints.purge", {"name": "nowhere"}, errors.OBJECT_NOT_FOUND),
        ("messages.list", {"name": queue, "limit": 1_001}, errors.INVALID_ARGUMENT),
        ("messages.list", {"name": queue, "partition": 1}, errors.INVALID_ARGUMENT),
        ("messages.show", {"name": queue, "position": 1}, errors.OBJECT_NOT_FOUND),
        ("messages.delete", {"name": queue, "positions": []}, errors.INVALID_ARGUMENT),
        ("objects.subscribe", {"name": queue, "add": ["#share/g/a"]}, errors.SHARED_ON_ENDPOINT),
        ("objects.subscribe", {"name": queue, "add": ["#P2P/QUE/x"]}, errors.RESERVED_TOPIC),
        ("jobs.show", {"jobs": [[0, 1 << 60]]}, errors.OBJECT_NOT_FOUND),
    ]
    for operation, arguments, code in refused:
        with pytest.raises(errors.AngariumError) as caught:
            attacked.ask(operation, **arguments)
        assert caught.value.code == code, (operation, arguments, caught.value)
    assert attacked.ask("messages.delete", name=queue, positions=[7]) == {"deleted": 0}
