"""Guaranteed messages through the SDK against a real node: what is acknowledged is there, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import Message, errors
from angarium_server.testing import Node
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from angarium import Acknowledgement, Client, Flow, GuaranteedMessage

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
_names = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("guaranteed") / "data", workers=2) as node:
        yield node


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"queue-{next(_names)}"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 3))


@contextlib.asynccontextmanager
async def connected(node: Node, **options: Any) -> AsyncIterator[Client]:
    async with angarium.connect(node.url, **options) as client:
        yield client


async def take(flow: Flow, count: int) -> list[GuaranteedMessage]:
    return [await flow.receive(LIMIT_S) for _ in range(count)]


async def is_empty(client: Client, queue: str) -> None:
    """Wait until a queue holds nothing."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while (shown := await client.show_queue(queue))["messages"]:
        assert asyncio.get_running_loop().time() < deadline, shown
        await asyncio.sleep(0.02)


def numbered(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [(f"orders/{number % 7}", b"%d" % number) for number in range(start, start + count)]


# Who gets what.


def test_no_local_keeps_own_messages_from_a_flow_and_leaves_them_to_others(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as own, connected(node) as other:
            await own.create_queue(queue, subscriptions=[f"{queue}/>"], access_type="non-exclusive")
            flow = await own.consume(queue, no_local=True)
            async with own.producer() as mine, other.producer() as theirs:
                await mine.publish(f"{queue}/1", b"own")
                await theirs.publish(f"{queue}/1", b"other")
                await own.publish(f"{queue}/1", b"own, direct")
                await mine.publish(f"{queue}/1", b"own, the last")
                await theirs.publish(f"{queue}/1", b"other, the last")
            received = await take(flow, 2)
            assert [message.payload for message in received] == [b"other", b"other, the last"]
            for message in received:
                message.accept()
            async with other.consume(queue) as rest:
                left = await take(rest, 3)
            assert {message.payload for message in left} == {b"own", b"own, direct", b"own, the last"}

    run(test())


# Publishing.


@pytest.mark.requirement("R155", "R162", "R163", "R165", "R166")
def test_what_was_acknowledged_is_consumed_in_order_and_gone_when_it_was_accepted(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, subscriptions=[f"{queue}/>"])
            async with client.producer() as producer:
                topics = [(f"{queue}/{topic}", payload) for topic, payload in numbered(3_000)]
                report = await producer.publish_many(topics)
                assert report == (3_000, [], 0)
                assert producer.last_sequence == 3_000
            flow = await client.consume(queue)
            received = []
            async for message in flow:
                received.append(message.payload)
                if len(received) == 3_000:
                    message.accept()
                    break
            assert received == [payload for _, payload in numbered(3_000)]
            await flow.close()
            await is_empty(client, queue)

    run(test())


def test_what_is_printed_names_the_thing_and_its_state_and_no_secret(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node, client_name=f"till-{queue}", password="hunter2") as client:
            await client.create_queue(queue)
            producer = await client.producer(f"p-{queue}")
            receipt = await producer.send(queue=queue, payload=b"payload")
            assert repr(receipt) == "<Receipt of sequence 1, pending>"
            await receipt
            flow = await client.consume(queue, ack="manual")
            message = await flow.receive(LIMIT_S)
            shown = [repr(one) for one in (client, producer, receipt, flow, message)]
            assert shown == [
                f"<Client 'till-{queue}' of Message VPN 'default' at {node.url}, connected>",
                f"<Producer 'p-{queue}', open, 0 unacknowledged>",
                "<Receipt of sequence 1, stored>",
                f"<Flow of queue '{queue}', active, 0 buffered>",
                f"GuaranteedMessage('#P2P/QUE/{queue}', 7 bytes, persistent, position 1, unsettled)",
            ]
            message.accept()
            await flow.close()
            await producer.close()
            await producer.close()
            assert repr(message).endswith(", settled)")
            assert repr(flow) == f"<Flow of queue '{queue}', closed, 0 buffered>"
            assert repr(producer) == f"<Producer 'p-{queue}', closed, 0 unacknowledged>"
        await client.close()
        assert repr(client).endswith(", closed>")

    run(test())


@pytest.mark.requirement("R277")
def test_an_acknowledgement_tells_what_no_queue_took(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client, connected(node) as other:
            await client.create_queue(queue, subscriptions=[f"{queue}/taken"])
            await other.subscribe(f"{queue}/direct")
            async with client.producer() as producer:
                receipts = [
                    await producer.send(f"{queue}/{topic}") for topic in ("taken", "direct", "nobody")
                ]
                assert [await receipt for receipt in receipts] == [1, 2, 3]
                assert [receipt.unroutable for receipt in receipts] == [False, True, True]
                topics = [f"{queue}/taken", f"{queue}/nobody"] * 1_000
                report = await producer.publish_many((topic, b"") for topic in topics)
                assert report == (2_000, [], 1_000)
            await client.publish(f"{queue}/nobody", b"", mode="persistent")
            assert client.stats["unroutable_messages"] == 1_003

    run(test())


def test_publish_waits_for_the_acknowledgement_and_raises_the_refusal(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await client.publish(payload=b"one", queue=queue)
            await client.publish(
                f"#P2P/QUE/{queue}", b"two", mode="non-persistent", cos=3, properties={"a": 1}
            )
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await client.publish(payload=b"", queue="there is none")
            await client.publish(f"{queue}/nobody/asked", b"", mode="persistent")
            flow = await client.consume(queue)
            first, second = await take(flow, 2)
            assert (first.payload, first.mode) == (b"one", "persistent")
            assert (second.payload, second.mode, second.cos) == (b"two", "non-persistent", 3)
            assert second.properties == {"a": 1}

    run(test())


def test_publish_many_takes_both_kinds_of_messages(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            subscription = await client.subscribe(f"{queue}/direct")
            address = f"#P2P/QUE/{queue}"
            mixed: list[Any] = []
            for number in range(600):
                mixed.append((f"{queue}/direct", b"%d" % number))
                mixed.append(Message(address, b"%d" % number, mode="persistent"))
            await client.publish_many(mixed)
            flow = await client.consume(queue)
            assert [one.payload for one in await take(flow, 600)] == [b"%d" % n for n in range(600)]
            direct = [(await subscription.receive(LIMIT_S)).payload for _ in range(600)]
            assert direct == [b"%d" % n for n in range(600)]
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await client.publish_many([Message("#P2P/QUE/none of these", b"", mode="persistent")])

    run(test())


def test_publish_many_that_raises_half_way_has_waited_for_what_was_before(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            first = Message(f"#P2P/QUE/{queue}", b"first", mode="persistent")
            with pytest.raises(angarium.InvalidRequestError, match="neither a message nor a pair"):
                await client.publish_many([first, 1])  # type: ignore[list-item]
            assert client.stats["acknowledged_messages"] == 1

            def numbers() -> Iterator[Message]:
                yield Message("#P2P/QUE/none of these", b"", mode="persistent")
                raise LookupError("the file has ended")

            with pytest.raises(LookupError, match="the file has ended") as caught:
                await client.publish_many(numbers())
            assert "40404" in caught.value.__notes__[0]

    run(test())


@pytest.mark.requirement("R171", "R173", "R177")
def test_a_queue_that_is_full_refuses_and_the_receipts_tell(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, max_spool_usage_mb=1)
            seen: list[Acknowledgement] = []
            async with client.producer(on_ack=seen.append) as producer:
                address = f"#P2P/QUE/{queue}"
                report = await producer.publish_many([(address, bytes(20_000))] * 100)
                assert report.acknowledged + len(report.refused) == 100
                assert {error.code for _, error in report.refused} == {errors.SPOOL_OVER_QUOTA}
                assert 40 < report.acknowledged < 60, "1 MB holds 49 of them"
                assert [place for place, _ in report.refused] == list(range(report.acknowledged, 100))
                await until(lambda: seen[-1].upto == 100, "the last acknowledgement is told")
                assert sum(len(one.refused) for one in seen) == len(report.refused)
                receipt = await producer.send(address, bytes(20_000))
                with pytest.raises(angarium.UnavailableError, match="50310"):
                    await receipt

    run(test())


@pytest.mark.requirement("R186", "R187")
def test_a_named_producer_goes_on_where_it_was_and_an_old_sequence_keeps_its_verdict(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            async with client.producer(f"import-{queue}", window=10) as producer:
                for number in range(5):
                    await producer.publish(payload=b"%d" % number, queue=queue)
                assert producer.last_sequence == 5
            async with client.producer(f"import-{queue}") as producer:
                assert producer.last_sequence == 5
                for sequence in range(1, 8):
                    again = await producer.publish(
                        payload=b"%d" % (sequence - 1), queue=queue, sequence=sequence
                    )
                    assert again == sequence
            flow = await client.consume(queue)
            assert [one.payload for one in await take(flow, 7)] == [b"%d" % n for n in range(7)]
            with pytest.raises(angarium.TimeoutExpiredError):
                await flow.receive(0.2)

    run(test())


def test_the_second_session_of_a_name_ends_the_first(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as one, connected(node) as other:
            await one.create_queue(queue)
            first = await one.producer(f"shared-{queue}")
            await first.publish(payload=b"1", queue=queue)
            second = await other.producer(f"shared-{queue}")
            assert second.last_sequence == 1
            await until(lambda: first.closed, "the first one is over")
            with pytest.raises(angarium.ConflictError, match="40903"):
                await first.publish(payload=b"2", queue=queue)
            await second.publish(payload=b"2", queue=queue)

    run(test())


def test_a_producer_that_is_forgotten_begins_anew(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            producer = await client.producer(f"gone-{queue}")
            await producer.publish(payload=b"1", queue=queue)
            await producer.close(forget=True)
            again = await client.producer(f"gone-{queue}")
            assert again.last_sequence == 0

    run(test())


# Consuming.


@pytest.mark.requirement("R188", "R191", "R190")
def test_what_is_not_settled_comes_again_and_says_so(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 10)
            async with client.consume(queue, ack="manual") as flow:
                messages = await take(flow, 10)
                assert [one.position for one in messages] == list(range(1, 11))
                assert not any(one.redelivered for one in messages)
                flow.accept(messages[::2])
            async with client.consume(queue) as flow:
                again = await take(flow, 5)
                assert [one.position for one in again] == [2, 4, 6, 8, 10]
                assert [(one.redelivered, one.delivery_count) for one in again] == [(True, 2)] * 5

    run(test())


@pytest.mark.requirement("R202")
def test_a_loop_over_a_flow_with_max_messages_ends_with_the_last_of_them(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            for number in range(9):
                await client.publish(queue=queue, payload=b"%d" % number)
            async with client.browse(queue, max_messages=2) as flow:
                assert [message.payload async for message in flow] == [b"0", b"1"]
            async with client.consume(queue, max_messages=3) as flow:
                assert [message.payload async for message in flow] == [b"0", b"1", b"2"]
                with pytest.raises(angarium.TimeoutExpiredError, match="has given all 3 messages"):
                    await flow.receive()
            async with client.consume(queue, max_messages=4) as flow:
                assert sum([len(batch) async for batch in flow.batches()]) == 4
            async with client.consume(queue) as flow:
                assert [message.payload for message in await take(flow, 2)] == [b"7", b"8"]

    run(test())


@pytest.mark.parametrize("ends", ["flow", "client"])
def test_what_a_consumer_that_ends_has_not_seen_was_not_tried(node: Node, queue: str, ends: str) -> None:
    """Consumers that come and go must not wear out messages that wait behind the first."""

    async def come_and_go(seen: int) -> None:
        async with connected(node) as consumer:
            flow = await consumer.consume(queue)
            await flow.receive(LIMIT_S)
            await until(lambda: flow.buffered == 20 - seen)
            if ends == "flow":
                await flow.close()

    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, max_redelivery_count=1, partition_count=2)
            async with client.producer() as producer:
                for number in range(20):
                    await producer.send(queue=queue, payload=b"%d" % number, partition_key=str(number % 5))
            for seen in range(1, 5):
                await come_and_go(seen)
            async with client.consume(queue) as flow:
                rest = await take(flow, 16)
            assert [message.payload for message in rest if message.redelivered] == []

    run(test())


def test_a_failed_message_comes_again_and_a_rejected_one_goes_to_the_dead_message_queue(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with connected(node) as client:
            dead = f"dead-{queue}"
            await client.create_queue(dead)
            await client.create_queue(queue, dead_message_queue=dead)
            await fill(client, queue, 3)
            async with client.consume(queue, ack="manual") as flow:
                first, second, third = await take(flow, 3)
                first.accept()
                second.fail()
                third.reject()
                (again,) = await take(flow, 1)
                assert (again.payload, again.delivery_count) == (b"1", 2)
                again.accept()
            async with client.consume(dead) as flow:
                (corpse,) = await take(flow, 1)
                assert corpse.payload == b"2"
                assert corpse.origin == ("queue", queue, "rejected")

    run(test())


@pytest.mark.requirement("R192", "R193", "R194")
def test_no_more_than_the_limit_is_out_unsettled(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, max_delivered_unacked_per_flow=5)
            await fill(client, queue, 20)
            flow = await client.consume(queue, ack="manual")
            messages = await take(flow, 5)
            with pytest.raises(angarium.TimeoutExpiredError):
                await flow.receive(0.3)
            flow.accept(messages)
            assert [one.position for one in await take(flow, 5)] == [6, 7, 8, 9, 10]
            await flow.close()

    run(test())


@pytest.mark.requirement("R140", "R143")
def test_a_selector_lets_others_stay(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, access_type="non-exclusive")
            for number in range(6):
                await client.publish(payload=b"%d" % number, queue=queue, properties={"odd": number % 2})
            odd = await client.consume(queue, selector="odd = 1")
            assert [one.payload for one in await take(odd, 3)] == [b"1", b"3", b"5"]
            even = await client.consume(queue)
            assert [one.payload for one in await take(even, 3)] == [b"0", b"2", b"4"]
            with pytest.raises(angarium.InvalidRequestError, match="40601"):
                await client.consume(queue, selector="odd = = 1")

    run(test())


@pytest.mark.requirement("R136", "R150")
def test_a_browser_sees_everything_and_takes_nothing(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 300)
            for selector, expected in ((None, range(300)), ("n >= 290", range(290, 300))):
                async with client.browse(queue, selector, window=50) as browser:
                    seen = await take(browser, len(expected))
                    assert [one.payload for one in seen] == [b"%d" % n for n in expected]
            assert (await client.show_queue(queue))["messages"] == 300

    run(test())


@pytest.mark.requirement("R101")
def test_an_exclusive_queue_has_one_active_consumer_and_the_next_one_takes_over(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with connected(node) as one, connected(node) as other:
            await one.create_queue(queue, permission="consume", access_type="exclusive")
            first = await one.consume(queue, ack="manual")
            states: list[bool] = []
            second = await other.consume(queue, on_active=states.append)
            assert (first.active, second.active) == (True, False)
            await fill(one, queue, 3)
            await take(first, 2)
            await first.close()
            await until(lambda: second.active, "the second one is active")
            assert states == [True]
            assert [message.redelivered for message in await take(second, 1)] == [True]

    run(test())


def test_several_consumers_of_a_non_exclusive_queue_share_the_messages(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, access_type="non-exclusive")
            seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
            flows = [
                await client.consume(
                    queue, window=5, callback=lambda message, at=at: seen[at].append(message.payload)
                )
                for at in range(3)
            ]
            await fill(client, queue, 300)
            await until(lambda: sum(map(len, seen.values())) == 300, "all messages came")
            assert sorted(int(one) for some in seen.values() for one in some) == list(range(300))
            assert all(seen.values())
            for flow in flows:
                await flow.close()

    run(test())


@pytest.mark.requirement("R102", "R103", "R104", "R105", "R106", "R107", "R117")
def test_a_temporary_queue_lives_with_its_client_and_takes_replies(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as asker, connected(node) as replier:
            replies = await asker.consume(queue, temporary=True, subscriptions=[f"{queue}/news"])
            assert replies.name == queue
            requests = await replier.subscribe(f"{queue}/ask")
            await asker.publish(f"{queue}/ask", b"why", reply_to=replies.topic, correlation_id="c")
            request = await requests.receive(LIMIT_S)
            await replier.reply(request, b"because", mode="persistent")
            (reply,) = await take(replies, 1)
            assert (reply.payload, reply.correlation_id, reply.is_reply) == (b"because", "c", True)
            await replier.publish(f"{queue}/news", b"new", mode="persistent")
            assert (await take(replies, 1))[0].payload == b"new"
            with pytest.raises(angarium.AngariumError):
                await replier.consume(queue, temporary=True)
            await replies.close()
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await publish_until_refused(replier, queue)

    run(test())


@pytest.mark.requirement("R112", "R113", "R116", "R121", "R156")
def test_one_message_reaches_queues_topic_endpoints_and_subscribers(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, subscriptions=[f"{queue}/a/>", f"!{queue}/a/not"])
            await client.create_topic_endpoint(f"{queue}-te")
            endpoint = await client.consume(f"{queue}-te", kind="topic-endpoint", topic=f"{queue}/*/x")
            subscription = await client.subscribe(f"{queue}/>")
            await client.publish(f"{queue}/a/x", b"1", mode="persistent")
            await client.publish(f"{queue}/a/not", b"2", mode="persistent")
            flow = await client.consume(queue)
            assert (await take(flow, 1))[0].payload == b"1"
            assert (await take(endpoint, 1))[0].payload == b"1"
            assert [(await subscription.receive(LIMIT_S)).mode for _ in range(2)] == ["direct"] * 2
            with pytest.raises(angarium.TimeoutExpiredError):
                await flow.receive(0.2)

    run(test())


@pytest.mark.requirement("R24", "R100", "R108", "R118", "R120")
def test_endpoints_are_created_shown_changed_and_deleted(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            assert await client.create_queue(queue, max_ttl_s=60, permission="consume") is True
            assert await client.create_queue(queue, ignore_exists=True, max_ttl_s=60) is False
            with pytest.raises(angarium.ConflictError, match="40901"):
                await client.create_queue(queue)
            with pytest.raises(angarium.UnauthorizedError, match="40102"):
                await client.create_queue(queue, ignore_exists=True, max_ttl_s=61)
            with pytest.raises(angarium.InvalidRequestError, match="40015"):
                await client.create_queue(f"{queue}-b", max_ttl_hours=1)  # type: ignore[call-arg]
            shown = await client.show_queue(queue)
            assert (shown["attributes"]["max_ttl_s"], shown["attributes"]["permission"]) == (60, "consume")
            await client.add_queue_subscription(queue, f"{queue}/a", f"{queue}/b/>")
            await client.add_queue_subscription(queue, f"{queue}/a")
            with pytest.raises(angarium.ForbiddenError, match="40316"):
                await client.add_queue_subscription(queue, "#share/x/y")
            await client.publish(f"{queue}/a", b"", mode="persistent")
            assert (await client.show_queue(queue))["messages"] == 1
            await client.remove_queue_subscription(queue, f"{queue}/a")
            await client.publish(f"{queue}/a", b"", mode="persistent")
            assert (await client.show_queue(queue))["messages"] == 1
            with pytest.raises(angarium.NotFoundError, match="40402"):
                await client.remove_queue_subscription(queue, f"{queue}/a")
            await client.delete_queue(queue)
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await client.show_queue(queue)
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await client.consume(queue)

    run(test())


@pytest.mark.requirement("R180")
def test_a_deleted_queue_ends_its_flows(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            flow = await client.consume(queue)
            await client.delete_queue(queue)
            with pytest.raises(angarium.NotFoundError, match="40404"):
                await flow.receive(LIMIT_S)

    run(test())


async def publish_until_refused(client: Client, queue: str) -> None:
    """What is published while a temporary queue goes may still be taken."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while asyncio.get_running_loop().time() < deadline:
        await client.publish(payload=b"", queue=queue)


async def fill(client: Client, queue: str, count: int) -> None:
    """Let a queue have numbered messages."""
    async with client.producer() as producer:
        messages = [
            Message(f"#P2P/QUE/{queue}", b"%d" % n, mode="persistent", properties={"n": n})
            for n in range(count)
        ]
        report = await producer.publish_many(messages)
        assert report.acknowledged == count, report
