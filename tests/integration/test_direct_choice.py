"""Who gets a message, and what is kept of it, on a real node: direct subscribers, groups, monitors and consumers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors, wire
from tests.integration.attacked_spool import LoneSpool, new_name
from tests.integration.raw_client import row
from tests.integration.raw_guaranteed import RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import expect_value, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.slow

LIMIT_S = 20.0
QUIET_S = 0.5
#: What is relaxed may wait long for its write.
CONFIG = "[spool]\nwrite_delay_ms = 3000\n"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path_factory.mktemp("choice"), CONFIG) as lone:
        yield lone


@pytest.fixture
def client(lone: LoneSpool) -> Iterator[RawGuaranteed]:
    with lone.client() as client:
        yield client
    wait_until(lambda: lone.status()["sessions"] == 0, "everybody is gone")


def payloads(client: RawGuaranteed, count: int) -> list[bytes]:
    """Give at least so many payloads that came as direct messages; nothing is acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        frame = client.next(wire.DELIVER)
        found += [one[5] for batch in frame.batches for one in wire.unpack(batch)]
    return found


def publish(client: RawGuaranteed, topic: str, *bodies: bytes, flags: int = 0) -> None:
    client.publish_uncut([row(at, topic, body, flags) for at, body in enumerate(bodies)], flush=True)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def drain(subscription: blocking.Subscription) -> list[bytes]:
    """Give what a subscription has, until nothing comes any more."""
    found: list[bytes] = []
    while True:
        try:
            found.append(subscription.receive(QUIET_S).payload)
        except errors.TimeoutExpiredError:
            return found


def spooled(lone: LoneSpool) -> tuple[int, int]:
    """Give the messages in the spool and what was ever handed to a home."""
    spool = lone.told()["spool"]
    return spool["messages"], spool["stores"]


# What is kept.


@pytest.mark.requirement("R3", "R4", "R5")
def test_direct_messages_are_delivered_without_an_acknowledgement_and_nothing_is_stored(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    before = spooled(lone)
    with lone.client() as reader:
        reader.subscribe("plain/>")
        for first in range(0, 2_000, 100):
            publish(client, "plain/x", *[b"%d" % number for number in range(first, first + 100)])
        assert payloads(reader, 2_000) == numbers(2_000), "it has not said a word since it subscribed"
        assert reader.is_open()
    assert spooled(lone) == before
    assert not [frame for frame in client.kept if frame.operation == wire.ACKED]


@pytest.mark.requirement("R6", "R55", "R56")
def test_subscriptions_go_with_a_connection_that_is_lost_and_nothing_waits_for_the_next(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    reader = lone.client(client_name="reader")
    reader.subscribe("lost/>", "also/lost")
    unmatched = lone.discards("no-subscription-match")
    reader.close()  # without BYE
    expect_value(lambda: lone.ask("subscriptions.list"), [], "subscriptions")
    publish(client, "lost/1", b"missed")
    lone.expect_discards("no-subscription-match", unmatched + 1)
    with lone.client(client_name="reader") as again:
        assert lone.ask("subscriptions.list") == []
        publish(client, "lost/1", b"missed too")
        again.subscribe("marker")
        publish(client, "marker", b"marker")
        assert payloads(again, 1) == [b"marker"]


@pytest.mark.requirement("R7")
def test_what_waits_for_a_client_that_disconnects_is_dropped_and_counted(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    gone = lone.discards("client-not-connected")
    slow = lone.client(credit=(0, 0))
    slow.subscribe("going")
    publish(client, "going", *numbers(30))
    client.next(wire.RETIRED)
    slow.close()
    lone.expect_discards("client-not-connected", gone + 30)


@pytest.mark.requirement("R69")
def test_a_deliver_to_one_message_without_a_client_is_kept_nowhere(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    before, unmatched = spooled(lone), lone.discards("no-subscription-match")
    publish(client, "one/x", *numbers(10), flags=wire.FLAG_DTO)
    lone.expect_discards("no-subscription-match", unmatched + 10)
    client.subscribe("one/x")
    publish(client, "one/x", b"later", flags=wire.FLAG_DTO)
    assert payloads(client, 1) == [b"later"]
    assert spooled(lone) == before


@pytest.mark.requirement("R156", "R158")
def test_who_only_subscribes_to_persistent_messages_has_none_that_wait(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    queue = lone.queue(subscriptions=["kept/>"])
    producer = RawProducer(client)
    with blocking.connect(lone.node.url, client_name="watcher") as watcher:
        subscription = watcher.subscribe("kept/>")
        assert producer.publish(kept(0, "kept/1", b"1")) == [0]
        message = subscription.receive(LIMIT_S)
        assert (message.payload, message.mode) == (b"1", "direct")
    assert producer.publish(kept(0, "kept/1", b"2")) == [0]
    with blocking.connect(lone.node.url, client_name="watcher") as watcher:
        subscription = watcher.subscribe("kept/>")
        with pytest.raises(errors.TimeoutExpiredError):
            subscription.receive(QUIET_S)
        with watcher.consume(queue, ack="manual") as flow:
            got = [flow.receive(LIMIT_S) for _ in range(2)]
            assert [message.mode for message in got] == ["persistent"] * 2
            flow.accept(got)
    lone.expect_held(queue, 0)


@pytest.mark.requirement("R188", "R189", "R191")
def test_a_consumer_tells_what_it_accepted_when_its_threshold_is_reached(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    queue = lone.queue()
    RawProducer(client).fill(queue, *numbers(20))
    with (
        blocking.connect(lone.node.url) as reader,
        reader.consume(
            queue, ack="manual", max_unacked=10, ack_threshold_percent=50, ack_delay_ms=60_000
        ) as flow,
    ):
        messages = [flow.receive(LIMIT_S) for _ in range(10)]
        flow.accept(messages[:4])
        with pytest.raises(errors.TimeoutExpiredError):
            flow.receive(QUIET_S)
        assert lone.held(queue) == 20, "four of ten are below the threshold"
        flow.accept(messages[4:5])
        lone.expect_held(queue, 15)
        assert flow.receive(LIMIT_S).payload == b"10", "and delivery goes on"


# What is written.


def home_metrics(lone: LoneSpool, queue: str) -> dict[str, int]:
    """Give the metrics of the spool of a queue's worker, as soon as it answers."""
    (home,) = lone.endpoint(queue)["homes"]
    found: dict[str, int] = {}

    def has_answered() -> bool:
        found.update(next(one for one in lone.ask("spool.show")["workers"] if one["worker"] == home))
        return "writes" in found

    wait_until(has_answered, "the worker answers")
    return found


@pytest.mark.requirement("R169")
def test_what_was_published_together_is_one_block_and_what_comes_meanwhile_one_write(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    queue = lone.queue()
    before = home_metrics(lone, queue)
    producer = RawProducer(client)
    for _ in range(10):
        assert not any(producer.fill(queue, *[bytes(100)] * 255))
    after = home_metrics(lone, queue)
    assert after["messages_spooled"] - before["messages_spooled"] == 2_550
    assert after["blocks_made"] - before["blocks_made"] == 10
    with lone.stopped("worker", lone.endpoint(queue)["homes"][0]):
        for number in range(200):
            client.publish(producer.handle, producer.last + 1 + number, [to_queue(0, queue, b"alone")])
        client.is_open()
    assert client.acked(producer.handle, producer.last + 200) == {}
    writes = home_metrics(lone, queue)["writes"] - after["writes"]
    assert writes <= 20, "200 rounds of one message are written together"


@pytest.mark.requirement("R170")
def test_what_is_settled_before_it_is_due_is_never_written(lone: LoneSpool, client: RawGuaranteed) -> None:
    queue = lone.queue(durability="relaxed")
    before = home_metrics(lone, queue)["stores_not_written"]
    flow, producer = client.bind(queue), RawProducer(client)
    for number in range(20):
        assert producer.fill(queue, b"quick") == [0]
        (message,) = client.messages(flow, 1)
        client.settle(flow, [[0, message.position, message.position]])
        assert message.position == number + 1
    lone.expect_held(queue, 0)
    expect_value(lambda: home_metrics(lone, queue)["stores_not_written"] - before, 20, "never written")


@pytest.mark.requirement("R117", "R122", "R126")
def test_a_temporary_queue_keeps_exceptions_out_as_a_durable_one_does(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    name, filters = new_name(), ["!news/sport", "news/>"]
    with blocking.connect(lone.node.url) as reader:
        durable = lone.queue(subscriptions=filters)
        with reader.consume(name, temporary=True, subscriptions=filters) as flow:
            rows = [kept(0, "news/today", b"kept"), kept(1, "news/sport", b"left out")]
            assert RawProducer(client).publish(*rows) == [0, 0]
            assert flow.receive(LIMIT_S).payload == b"kept"
            with pytest.raises(errors.TimeoutExpiredError):
                flow.receive(QUIET_S)
        lone.expect_held(durable, 1)


@pytest.mark.requirement("R114")
def test_a_full_queue_stops_what_it_attracts_for_everybody_unless_it_is_told_not_to(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    full = lone.queue(subscriptions=["all/>"], max_spool_usage_mb=1)
    other = lone.queue(subscriptions=["all/>"])
    client.subscribe("all/>")
    producer = RawProducer(client)
    assert producer.fill(full, bytes(999_000)) == [0]
    assert producer.publish(kept(0, "all/1", b"1" * 5_000)) == [errors.SPOOL_OVER_QUOTA]
    lone.update("queue", full, reject_to_sender="never")
    assert producer.publish(kept(0, "all/2", b"2" * 5_000)) == [0]
    assert payloads(client, 1) == [b"2" * 5_000], "not the first one"
    lone.expect_held(other, 1)


# Groups.


@pytest.mark.requirement("R13", "R24")
def test_a_group_shares_direct_messages_only(lone: LoneSpool, client: RawGuaranteed) -> None:
    queue = lone.queue()
    (refused,) = client.done("endpoint.subscribe", name=queue, filters=["#share/g/shared"])
    assert refused[0] == errors.SHARED_ON_ENDPOINT
    topics = lone.create("topic-endpoint", new_name("te"), permission="delete")
    wish = {"kind": "topic-endpoint", "topic": "#share/g/shared", "messages": 1, "bytes": 1}
    assert client.refused("flow.bind", name=topics, **wish) == errors.SHARED_ON_ENDPOINT
    before = spooled(lone)
    with lone.client() as member:
        member.subscribe("#share/g/shared")
        assert RawProducer(client).publish(*[kept(at, "shared", b"%d" % at) for at in range(20)]) == [0] * 20
        assert payloads(member, 20) == numbers(20), "its members get copies as direct messages"
    assert spooled(lone) == before, "and nothing waits for them"


@pytest.mark.requirement("R19", "R20", "R21", "R29")
def test_members_get_about_as_much_each_and_a_name_nobody_guesses_is_a_group_of_one(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    with ExitStack() as stack:
        members = [stack.enter_context(blocking.connect(lone.node.url)) for _ in range(4)]
        shares = [member.subscribe("#share/pool/jobs") for member in members]
        private = [member.subscribe(f"#share/{new_name().replace('/', '-')}/jobs") for member in members[:2]]
        publish(client, "jobs", *numbers(2_000))
        for subscription in private:
            assert [subscription.receive(LIMIT_S).payload for _ in range(2_000)] == numbers(2_000)
        each = [len(drain(share)) for share in shares]
        assert sum(each) == 2_000
        # Binomial with 2,000 and 1/4: a fifth away from 500 is five standard deviations.
        assert all(400 < count < 600 for count in each), each


@pytest.mark.requirement("R86")
def test_a_member_that_watches_the_topic_too_gets_each_message_once_as_a_watcher(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    with blocking.connect(lone.node.url) as both, blocking.connect(lone.node.url) as member:
        plain, shared = both.subscribe("watched"), both.subscribe("#share/g/watched")
        other = member.subscribe("#share/g/watched")
        publish(client, "watched", *numbers(400))
        assert [plain.receive(LIMIT_S).payload for _ in range(400)] == numbers(400)
        with pytest.raises(errors.TimeoutExpiredError):
            shared.receive(QUIET_S)
        # Whoever was chosen has it: the other member gets the rest of the choices and no more.
        assert 100 < len(drain(other)) < 300


@pytest.mark.requirement("R26")
def test_shared_deliveries_use_the_lowest_class_of_service_whatever_the_message_says(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    """With a queue of class 1 that holds little, and one of class 3 that holds all."""
    limits = {"queue_direct_1_max_depth": 2, "queue_direct_1_min_msg_burst": 0}
    user = lone.user(allow_shared_subscriptions=True, **limits)
    highest = 2 << wire.COS_SHIFT
    bodies = [b"%02d" % number + bytes(1_000) for number in range(30)]
    before = lone.discards("transmit-congestion")
    with (
        lone.client(username=user, credit=(0, 0)) as member,
        lone.client(username=user, credit=(0, 0)) as watcher,
    ):
        member.subscribe("#share/g/urgent")
        watcher.subscribe("urgent")
        for body in bodies:
            publish(client, "urgent", body, flags=highest)
        wait_until(lambda: lone.discards("transmit-congestion") > before, "the queue of class 1 overflows")
        for reader in (member, watcher):
            reader.send(wire.CREDIT, [100, 1 << 30])
        assert payloads(watcher, 30) == bodies
        assert payloads(member, 1)[-1] != bodies[0]


@pytest.mark.requirement("R157")
def test_a_direct_subscriber_is_enough_for_an_acknowledgement(lone: LoneSpool, client: RawGuaranteed) -> None:
    """Also for a publisher that wants to hear of messages that match nothing."""
    user = lone.user(reject_no_subscription_match=True)
    with lone.client(username=user) as careful:
        producer = RawProducer(careful)
        assert producer.publish(kept(0, "wanted", b"1")) == [errors.NO_SUBSCRIPTION_MATCH]
        client.subscribe("wanted")
        assert producer.publish(kept(0, "wanted", b"2")) == [0]
    assert payloads(client, 1) == [b"2"]


# Monitors.


@pytest.mark.requirement("R81", "R83", "R85", "R86")
def test_a_monitor_gets_everything_takes_nobodys_turn_and_may_take_turns_itself(
    lone: LoneSpool, client: RawGuaranteed
) -> None:
    always = wire.SUBSCRIBE_DELIVER_ALWAYS
    with lone.client() as monitor, lone.client() as first, lone.client() as second:
        monitor.send(wire.SUBSCRIBE, [1, [["task", always]], None])
        assert monitor.next(wire.SUBACK).header[1] == [None]
        for worker in (first, second):
            worker.subscribe("task")
        publish(client, "task", *numbers(20), flags=wire.FLAG_DTO)
        assert payloads(monitor, 20) == numbers(20)
        assert sorted(payloads(first, 10) + payloads(second, 10), key=int) == numbers(20)
        monitor.subscribe("task")  # beside the other one
        found = [one for one in lone.ask("subscriptions.list") if one["filter"] == "task"]
        assert sorted(one["dto_priority"] for one in found) == ["DA", "P1", "P1", "P1"]
        publish(client, "task", *numbers(30), flags=wire.FLAG_DTO)
        assert payloads(monitor, 30) == numbers(30), "one copy of each, also of those that were its turn"
        assert len(payloads(first, 10)) == len(payloads(second, 10)) == 10
        for reader in (monitor, first, second):
            reader.none_within(wire.DELIVER, QUIET_S)


@pytest.mark.requirement("R84")
def test_a_subscription_to_everything_takes_nobodys_turn(lone: LoneSpool, client: RawGuaranteed) -> None:
    with lone.client(client_name="all") as everything, lone.client() as worker:
        everything.subscribe(">")
        worker.subscribe("turn")
        publish(client, "turn", *numbers(10), flags=wire.FLAG_DTO)
        assert payloads(everything, 10) == payloads(worker, 10) == numbers(10)
        (found,) = [one for one in lone.ask("subscriptions.list") if one["client"] == "all"]
        assert found["dto_priority"] == "DA"
