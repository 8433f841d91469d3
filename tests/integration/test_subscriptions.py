"""Subscriptions against a real node: what is not read, how they are closed, and callbacks at once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

import angarium
from angarium import blocking
from angarium_server.testing import Node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium import Client, ClientEvent, Message

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
FLOOD = 30_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), workers=1) as node:
        yield node


async def serve(client: Client, message: Message) -> None:
    await client.reply(message, message.payload.upper())


@pytest.mark.requirement("R276")
@pytest.mark.parametrize("window", [20_000, 500])
def test_a_subscription_that_nobody_reads_harms_no_other(node: Node, window: int) -> None:
    async def test() -> None:
        async with (
            angarium.connect(node.url, window_messages=window) as client,
            angarium.connect(node.url) as source,
        ):
            unread = await client.subscribe("unread/>")
            read = await client.subscribe("read/>")
            await source.subscribe("ping", lambda message: asyncio.ensure_future(serve(source, message)))
            await source.publish_many([("unread/a", b"x")] * FLOOD)
            await source.publish("read/a", b"here")
            assert (await read.receive(LIMIT_S)).payload == b"here"
            assert (await client.request("ping", b"a", timeout_s=LIMIT_S)).payload == b"A"
            while unread.stats["received_messages"] < FLOOD:
                await asyncio.sleep(0.01)
            assert unread.buffered == FLOOD

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.requirement("R276")
def test_a_full_subscription_drops_the_oldest_and_says_so(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    happened: list[ClientEvent] = []
    with (
        caplog.at_level(logging.WARNING, "angarium.client"),
        blocking.connect(node.url, on_event=happened.append) as client,
    ):
        with client.subscribe("latest", buffer_messages=100) as latest:
            client.publish_many([("latest", b"%d" % number) for number in range(10_000)])
            client.publish("latest", b"last")
            wait_until(lambda: latest.stats["received_messages"] == 10_001, "all came")
            first = latest.receive(LIMIT_S)
            assert (int(first.payload), first.discard_indication) == (9_901, True)
            assert latest.stats["dropped_messages"] == client.stats["overrun_messages"] == 9_901
            assert client.stats["discarded_messages"] == 0, "the node had room for all"
        assert list(latest) == []
        assert client.stats["overrun_messages"] == 9_901
    (slow,) = [event for event in happened if event.kind == "slow"]
    assert "Subscription('latest')" in slow.detail
    assert "100 messages" in slow.detail
    assert [record.levelname for record in caplog.records if "latest" in record.getMessage()] == ["WARNING"]


@pytest.mark.requirement("R276")
def test_a_subscription_that_stalls_is_named_where_people_look(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    happened: list[ClientEvent] = []
    with (
        caplog.at_level(logging.WARNING, "angarium.client"),
        blocking.connect(node.url, window_messages=200, on_event=happened.append) as client,
        blocking.connect(node.url) as source,
    ):
        source.subscribe("ping", lambda message: source.reply(message, b"pong"))
        with client.subscribe("all", on_full="stall") as everything:
            source.publish_many([("all", b"")] * 5_000)
            wait_until(lambda: any(event.kind == "stalled" for event in happened), "it is told")
            with pytest.raises(angarium.TimeoutExpiredError, match=r"Subscription\('all'\) holds the window"):
                client.request("ping", timeout_s=0.5)
            assert len([everything.receive(LIMIT_S) for _ in range(5_000)]) == 5_000
            assert client.request("ping", timeout_s=LIMIT_S).payload == b"pong"
    assert len([event for event in happened if event.kind == "stalled"]) == 1
    assert "Subscription('all') holds the window" in caplog.text


def test_a_subscription_ends_with_its_block(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            async with client.subscribe("block/>") as subscription:
                await client.publish("block/a", b"1")
                async for message in subscription:
                    assert message.payload == b"1"
                    break
                assert client.stats["subscriptions"] == 1
            assert client.stats["subscriptions"] == 0
            with pytest.raises(RuntimeError, match="mine"):
                async with client.subscribe("block/>"):
                    raise RuntimeError("mine")
            assert client.stats["subscriptions"] == 0
            task = asyncio.create_task(client.subscribe("block/>"))
            await (await task).close()
            with pytest.raises(angarium.InvalidRequestError):
                async with client.subscribe(""):
                    raise AssertionError("it is no filter")

    asyncio.run(asyncio.wait_for(test(), 30))
    with blocking.connect(node.url) as client, client.subscribe("block/>") as subscription:
        client.publish("block/a", b"2")
        assert subscription.receive(LIMIT_S).payload == b"2"


def test_one_slow_request_does_not_delay_the_others(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            release = asyncio.Event()

            async def slowly(message: Message) -> None:
                if message.payload == b"slow":
                    await release.wait()
                await client.reply(message, message.payload)

            async with client.subscribe("work", slowly, concurrency=3):
                slow = [
                    asyncio.create_task(client.request("work", b"slow", timeout_s=LIMIT_S)) for _ in range(2)
                ]
                await asyncio.sleep(0)
                for number in range(20):
                    quick = await client.request("work", b"%d" % number, timeout_s=LIMIT_S)
                    assert quick.payload == b"%d" % number
                assert not any(one.done() for one in slow)
                release.set()
                assert [(await one).payload for one in slow] == [b"slow"] * 2

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.requirement("R276")
def test_messages_that_came_together_are_handled_at_once(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            together = asyncio.Barrier(4)
            handled = 0

            async def meet(_: Message) -> None:
                nonlocal handled
                await together.wait()
                handled += 1

            async with client.subscribe("crowd", meet, concurrency=4):
                await client.publish_many([("crowd", b"")] * 40)
                while handled < 40:
                    await asyncio.sleep(0.01)

            async with client.subscribe("readers") as subscription:
                counts = [0] * 4

                async def read(number: int) -> None:
                    async for _ in subscription:
                        counts[number] += 1
                        await together.wait()

                readers = [asyncio.create_task(read(number)) for number in range(4)]
                await asyncio.sleep(0)
                await client.publish_many([("readers", b"")] * 40)
                while sum(counts) < 40:
                    await asyncio.sleep(0.01)
            await asyncio.gather(*readers)
            assert counts == [10] * 4

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_one_slow_request_does_not_delay_the_others_in_threads(node: Node) -> None:
    release = threading.Event()
    with blocking.connect(node.url) as client, blocking.connect(node.url) as caller:

        def slowly(message: Message) -> None:
            if message.payload == b"slow":
                assert release.wait(LIMIT_S)
            client.reply(message, message.payload)

        with client.subscribe("threads", slowly, concurrency=3):
            slow = threading.Thread(
                target=caller.request, args=("threads", b"slow"), kwargs={"timeout_s": LIMIT_S}
            )
            slow.start()
            started = time.monotonic()
            for number in range(20):
                assert caller.request("threads", b"%d" % number, timeout_s=LIMIT_S).payload == b"%d" % number
            assert time.monotonic() - started < LIMIT_S
            release.set()
            slow.join(LIMIT_S)
            assert not slow.is_alive()
        with pytest.raises(angarium.InvalidRequestError, match="give one"):
            client.subscribe("threads", concurrency=2)


# Requests that nobody answers.


def test_a_request_to_a_topic_that_nobody_takes_fails_at_once(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client, angarium.connect(node.url) as service:
            started = time.monotonic()
            for _ in range(3):
                with pytest.raises(
                    angarium.NoRespondersError, match="error 50323: No Responders: 'nobody/here'"
                ):
                    await client.request("nobody/here", timeout_s=LIMIT_S)
            assert time.monotonic() - started < LIMIT_S / 4
            assert client.stats["requests_without_responder"] == 3
            assert client.stats["refused_messages"] == 0

            async def answer(message: Message) -> None:
                await service.reply(message, message.topic.encode())

            async with service.subscribe("some/*", answer):
                topics = [f"some/{n}" if n % 2 else f"none/{n % 7}" for n in range(300)]
                found = await asyncio.gather(
                    *(client.request(topic, timeout_s=LIMIT_S) for topic in topics), return_exceptions=True
                )
                for topic, one in zip(topics, found, strict=True):
                    if topic.startswith("some"):
                        assert isinstance(one, angarium.Message), topic
                        assert one.payload == topic.encode()
                    else:
                        assert isinstance(one, angarium.NoRespondersError), topic
            client._validate()
            with pytest.raises(angarium.NoRespondersError):
                await client.request("some/1", timeout_s=LIMIT_S)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_what_others_publish_beside_a_request_is_not_reported(node: Node) -> None:
    happened: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(node.url, on_event=happened.append) as client:
            requests = [asyncio.create_task(client.request("nobody/a", timeout_s=LIMIT_S)) for _ in range(5)]
            await client.publish_many([("nobody/a", b""), ("nobody/b", b"")] * 10)
            for one in requests:
                with pytest.raises(angarium.NoRespondersError):
                    await one
            await client.flush()
            assert client.stats["refused_messages"] == 0

    asyncio.run(asyncio.wait_for(test(), 60))
    assert [event.kind for event in happened] == ["connected"]


def test_a_queue_that_takes_the_request_is_a_responder(node: Node) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue("jobs", subscriptions=["jobs/>"])
        for options in ({}, {"mode": "persistent"}):
            with pytest.raises(angarium.TimeoutExpiredError, match="no reply"):
                client.request("jobs/a", timeout_s=0.2, **options)  # type: ignore[arg-type]
        with client.consume("jobs") as flow:
            assert flow.receive(LIMIT_S).reply_to is not None
        client.delete_queue("jobs")
        with pytest.raises(angarium.NoRespondersError):
            client.request("jobs/a", timeout_s=LIMIT_S)
