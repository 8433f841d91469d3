"""Direct messaging end to end, through the SDK as applications use it, against a real node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import Message, blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.integration.numbered import Tally, payload
from tests.waiting import expect_value, until, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from angarium import ClientEvent

pytestmark = pytest.mark.slow

LIMIT_S = 20.0

#: Every property of a message that has a meaning for direct messages, at an unusual value.
PROPERTIES: dict[str, Any] = {
    "correlation_id": "c-\u20ac-17",
    "reply_to": "answers/here",
    "sender_id": "sender \U0001f40e",
    "sender_timestamp_ms": 1_700_000_000_123,
    "sequence_number": (1 << 63) - 1,
    "application_message_id": "id\n2",
    "application_message_type": "type/\0",
    "content_type": "application/json; charset=utf-8",
    "content_encoding": "gzip",
    "cos": 3,
    "priority": 255,
    "ttl_ms": 12_345,
    "eliding": True,
    "dmq_eligible": True,
    "properties": {
        "nil": None,
        "yes": True,
        "no": False,
        "int": -(1 << 63),
        "big": (1 << 64) - 1,
        "float": 1e-300,
        "infinite": float("inf"),
        "text": "\u00e9" * 1_000,
        "empty": "",
        "bytes": bytes(range(256)),
        "list": [1, [2, [3, None]], "x", b"y"],
        "map": {"a": {"b": {"c": [True]}}, "": 0},
        "": "nameless",
        "JMSXGroupID": "group",
    },
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("direct") / "data", workers=2) as node:
        yield node


def run(test: Callable[[], Awaitable[None]], limit_s: float = LIMIT_S * 3) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await test()

    asyncio.run(bounded())


def expect_properties(message: Message) -> None:
    assert {name: getattr(message, name) for name in PROPERTIES} == PROPERTIES
    assert (message.mode, message.dto, message.is_reply) == (angarium.DeliveryMode.DIRECT, False, False)
    assert message.properties_intact
    assert not message.discard_indication


# What a message carries.


@pytest.mark.requirement("R1", "R2")
def test_every_property_of_a_message_arrives_as_it_was_sent(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as source, angarium.connect(node.url) as sink:
            subscription = await sink.subscribe(["props/>", "large/>"])
            await source.publish("props/one", b"\x00\xff", **PROPERTIES)
            await source.publish_many([Message("props/many", b"\x00\xff", **PROPERTIES)] * 30)
            await source.publish_many([("large/padding", bytes(100))] * 300)
            await source.publish_many([Message("large/x", b"\x00\xff", **PROPERTIES)] * 300)
            for _ in range(31):
                message = await subscription.receive(LIMIT_S)
                expect_properties(message)
                assert message.payload == b"\x00\xff"
            while (message := await subscription.receive(LIMIT_S)).topic == "large/padding":
                assert (message.properties, message.cos, message.priority) == ({}, 1, None)
            expect_properties(message)

    run(test)


def test_the_blocking_client_sends_and_gets_the_same(node: Node) -> None:
    with blocking.connect(node.url) as source, blocking.connect(node.url) as sink:
        subscription = sink.subscribe("props/>")
        source.publish("props/one", b"x", **PROPERTIES)
        source.publish_many([Message("props/two", b"x", **PROPERTIES)])
        for _ in range(2):
            expect_properties(subscription.receive(LIMIT_S))
        source.publish("props/bare", b"")
        bare = subscription.receive(LIMIT_S)
        assert (bare.payload, bare.properties, bare.correlation_id, bare.priority) == (b"", {}, None, None)
        assert (bare.cos, bare.dto, bare.eliding, bare.ttl_ms) == (1, False, False, 0)


@pytest.mark.requirement("R10")
def test_batches_stay_whole_and_a_lone_message_passes_no_worker(node: Node) -> None:
    """What makes it fast is counted: a clock would measure what else the machine does."""
    with (
        blocking.connect(node.url) as source,
        blocking.connect(node.url) as sink,
        Admin(node.data) as admin,
    ):

        def rounds() -> tuple[int, int, int]:
            router = admin.call("stats", role="router")["router"]
            return router["messages_in"], router["rounds"], router["fast_path_rounds"]

        subscription = sink.subscribe("rate/>")
        start = rounds()
        for _ in range(20):
            source.publish_many([("rate/many", b"x")] * 500)
        source.flush(LIMIT_S)
        messages, batches, _ = (after - before for after, before in zip(rounds(), start, strict=True))
        assert messages == 10_000
        assert batches <= 2 * 20
        for _ in range(10_000):
            subscription.receive(LIMIT_S)
        start = rounds()
        for _ in range(50):
            source.publish("rate/lone", b"x")
            subscription.receive(LIMIT_S)
        messages, _, short = (after - before for after, before in zip(rounds(), start, strict=True))
        assert messages == 50
        assert short >= 40


@pytest.mark.parametrize("dto", [False, True])
@pytest.mark.parametrize("text", ["flags/>", "#share/group/flags/>", ">"])
def test_properties_survive_every_kind_of_subscription(node: Node, text: str, dto: bool) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            subscription = await client.subscribe(text)
            await client.publish("flags/x", b"payload", **PROPERTIES, dto=dto)
            message = await subscription.receive(LIMIT_S)
            assert {name: getattr(message, name) for name in PROPERTIES} == PROPERTIES
            assert message.dto is dto
            assert message.share == (text if text.startswith("#share") else None)

    run(test)


@pytest.mark.parametrize("size", [0, 1, 1_000, 250_000, 5_000_000, 9_999_000])
def test_payloads_of_every_size_arrive_whole(node: Node, size: int) -> None:
    body = bytes(n * 7 % 251 for n in range(min(size, 10_000))) * max(1, size // 10_000)
    with blocking.connect(node.url) as client:
        subscription = client.subscribe("size")
        client.publish_many([("size", body), ("size", b"after")])
        assert subscription.receive(LIMIT_S).payload == body
        assert subscription.receive(LIMIT_S).payload == b"after"


def test_a_message_over_the_limit_is_refused_before_it_is_sent(node: Node) -> None:
    with blocking.connect(node.url) as client:
        with pytest.raises(errors.InvalidRequestError, match="error 40007"):
            client.publish_many([("size", bytes(10_000_001))])
        subscription = client.subscribe("size")
        client.publish("size", b"goes on")
        assert subscription.receive(LIMIT_S).payload == b"goes on"


TOPICS = ["x", "/", "a//b", "\u00fc/\U0001f680", "x" * 250, "/".join("x" * 125)]
TOPICS += ["$SYS", "*", "a/>", "a*b", "!a", "#a", " "]


@pytest.mark.parametrize("topic", TOPICS, ids=range(len(TOPICS)))
def test_every_legal_topic_reaches_its_own_name_and_the_wildcard(node: Node, topic: str) -> None:
    with blocking.connect(node.url) as client:
        exact, everything = client.subscribe(topic), client.subscribe(">")
        client.publish(topic, b"here")
        assert exact.receive(LIMIT_S).topic == topic
        if not topic.startswith("$"):
            assert everything.receive(LIMIT_S).topic == topic


# Subscriptions.


@pytest.mark.requirement("R28")
def test_local_dispatch_only_gets_what_comes_anyway_and_is_refused_for_shares(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client, angarium.connect(node.url) as other:
            with pytest.raises(errors.InvalidRequestError, match="error 40010"):
                await client.subscribe("#share/group/a", local_only=True)
            local = await client.subscribe("a/b", local_only=True)
            with Admin(node.data) as admin:
                assert admin.call("subscriptions.list", client=client.name) == []
            await other.publish("a/b", b"nobody")
            await other.flush()
            known = await client.subscribe("a/>")
            await other.publish("a/b", b"both")
            await other.publish("a/c", b"one")
            assert [(await known.receive(LIMIT_S)).payload for _ in range(2)] == [b"both", b"one"]
            assert (await local.receive(LIMIT_S)).payload == b"both"
            await known.close()
            await other.publish("a/b", b"nobody")
            await other.flush()
            with pytest.raises(errors.TimeoutExpiredError):
                await local.receive(0.1)

    run(test)


@pytest.mark.requirement("R53")
def test_after_unsubscribe_nothing_more_comes_and_before_it_nothing_is_missed(node: Node) -> None:
    """Every message that is published after `subscribe` returned and before `unsubscribe` is called arrives."""

    async def test() -> None:
        async with angarium.connect(node.url) as source, angarium.connect(node.url) as sink:
            for turn in range(20):
                subscription = await sink.subscribe(f"turn/{turn}/>")
                await source.publish_many(
                    [(f"turn/{turn}/{n % 5}", n.to_bytes(2, "big")) for n in range(100)]
                )
                got = [(await subscription.receive(LIMIT_S)).payload for _ in range(100)]
                assert got == [n.to_bytes(2, "big") for n in range(100)]
                await subscription.close()
                await source.publish(f"turn/{turn}/0", b"late")
            await source.flush()
            assert sink.stats["unclaimed_messages"] == 0

    run(test)


# Request and reply.


@pytest.mark.requirement("R103")
def test_requests_find_their_replies_whoever_answers_first(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as asker, angarium.connect(node.url) as server:

            async def answer(message: Message) -> None:
                await asyncio.sleep(0.01 if message.payload[-1] % 2 else 0)
                await server.reply(message, b"re:" + message.payload, content_type="text/plain")

            async def answer_soon(message: Message) -> None:
                tasks.append(asyncio.create_task(answer(message)))

            tasks: list[asyncio.Task[None]] = []
            await server.subscribe("ask/*", callback=answer_soon)
            bodies = [bytes([n]) for n in range(100)]
            replies = await asyncio.gather(
                *(asker.request(f"ask/{n % 7}", body) for n, body in enumerate(bodies))
            )
            assert [reply.payload for reply in replies] == [b"re:" + body for body in bodies]
            assert all(reply.is_reply and reply.content_type == "text/plain" for reply in replies)
            own = await asker.request("ask/own", b"\0", correlation_id="mine", properties={"k": 1})
            assert own.correlation_id == "mine"
            with pytest.raises(errors.NoRespondersError, match="error 50323"):
                await asker.request("nobody/there", b"", timeout_s=LIMIT_S)
            asker._validate()

    run(test)


def test_the_blocking_client_asks_and_answers_from_threads(node: Node) -> None:
    with blocking.connect(node.url) as asker, blocking.connect(node.url) as server:
        subscription = server.subscribe("ask")

        def serve() -> None:
            for message in subscription:
                server.reply(message, message.payload * 2)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        replies: dict[int, bytes] = {}

        def ask(number: int) -> None:
            replies[number] = asker.request("ask", b"%d," % number, timeout_s=LIMIT_S).payload

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(LIMIT_S)
        assert replies == {number: b"%d,%d," % (number, number) for number in range(20)}
        subscription.close()
        serving.join(LIMIT_S)


# Slow applications.


def test_a_slow_application_grows_no_memory_and_is_told_what_it_lost(node: Node) -> None:
    """It holds one window; the router queues to its limit; then the oldest go, and the next message says so."""
    window, size, count = 500, 2_000, 40_000
    happened: list[ClientEvent] = []
    discarded = discards(node)
    with (
        blocking.connect(node.url, window_messages=window, on_event=happened.append) as sink,
        blocking.connect(node.url) as source,
    ):
        subscription = sink.subscribe("slow", on_full="stall")
        filler = bytes(size - 8)
        tracemalloc.start()
        for start in range(0, count, 2_000):
            source.publish_many([("slow", payload(0, n) + filler) for n in range(start, start + 2_000)])
        source.flush(LIMIT_S)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert sink.stats["buffered_messages"] <= window + 2_000
        assert held < 12_000_000, "one window, not what was published"
        tally, indicated = Tally(), []
        while tally.newest.get(0, 0) < count - 1:
            message = subscription.receive(LIMIT_S)
            if message.discard_indication:
                indicated.append(tally.total)
            tally.take([message.payload[:8]])
        assert tally.not_rising == []
        assert indicated, "the message after the gap says that others were discarded before it"
        lost = count - tally.total
        assert lost
        assert sink.stats["discarded_messages"] == lost
        told = "discards that the application heard of"
        expect_value(lambda: sum(one.messages for one in happened if one.kind == "discard"), lost, told)
        expect_value(lambda: discards(node), discarded + lost, "discards")


def discards(node: Node) -> int:
    with Admin(node.data) as admin:
        return int(admin.call("status")["discards"].get("transmit-congestion", 0))


@pytest.mark.requirement("R8")
def test_an_application_that_is_slow_for_a_while_loses_nothing_within_its_queue(node: Node) -> None:
    count = 15_000
    before = discards(node)
    with (
        blocking.connect(node.url, window_messages=100) as sink,
        blocking.connect(node.url) as other,
        blocking.connect(node.url) as source,
    ):
        subscription = sink.subscribe("patient", on_full="stall")
        quick: list[bytes] = []
        other.subscribe("patient", callback=lambda message: quick.append(message.payload))
        source.publish_many([("patient", payload(0, n)) for n in range(count)])
        source.flush(LIMIT_S)
        wait_until(lambda: len(quick) == count, "the quick one has all while the slow one reads nothing")
        tally = Tally()
        tally.take(subscription.receive(LIMIT_S).payload for _ in range(count))
        assert tally.not_rising == []
        assert (tally.total, sink.stats["discarded_messages"]) == (count, 0)
    assert discards(node) == before


# Ends.


def test_close_hands_on_what_was_published_before_it(node: Node) -> None:
    count = 5_000
    with blocking.connect(node.url) as sink:
        tally = Tally()
        sink.subscribe("last/>", callback=lambda message: tally.take([message.payload]))

        async def test() -> None:
            for publisher in range(3):
                client = await angarium.connect(node.url)
                await client.publish_many([(f"last/{n % 9}", payload(publisher, n)) for n in range(count)])
                await client.publish("last/one", payload(publisher, count))
                await client.close()
                with pytest.raises(errors.ConnectionLostError, match="error 60002"):
                    await client.publish("last/one", b"")

        run(test)
        wait_until(lambda: tally.total == 3 * (count + 1), "everything arrived")
        assert tally.not_rising == []
        source = blocking.connect(node.url)
        for n in range(count):
            source.publish(f"last/{n % 9}", payload(9, n))
        source.close()
        wait_until(lambda: tally.received.get(9) == count, "the blocking client's arrived too")
    assert "client-not-connected" not in node.status()["discards"]


def test_close_ends_readers_and_leaves_no_client_behind(node: Node) -> None:
    async def test() -> None:
        client = await angarium.connect(node.url, client_name="leaver")
        subscription = await client.subscribe("a/>")
        reading = asyncio.create_task(_read_all(subscription))
        await client.publish_many([("a/b", b"")] * 50)
        await until(lambda: client.stats["received_messages"] == 50, "they arrived")
        await client.close()
        assert await reading == 50
        with pytest.raises(errors.ConnectionLostError):
            await client.subscribe("b")

    run(test)
    with Admin(node.data) as admin:
        assert "leaver" not in [row["name"] for row in admin.call("clients.list")]


async def _read_all(subscription: angarium.Subscription) -> int:
    return len([message async for message in subscription])


def test_a_client_goes_on_at_the_next_address_and_comes_back(tmp_path: Path) -> None:
    """Three addresses: one where nobody is, and two nodes, of which the first goes away and returns."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    happened: list[ClientEvent] = []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Node(tmp_path / "first", workers=1))
        second = stack.enter_context(Node(tmp_path / "second", workers=1))
        urls = [nowhere, first.url, second.url]
        client = stack.enter_context(blocking.connect(urls, client_name="mover", on_event=happened.append))
        assert client.url == first.url
        subscription = client.subscribe("move/>")
        first.stop()
        wait_until(lambda: any(one.kind == "reconnected" for one in happened), "it moved", LIMIT_S)
        assert client.url == second.url
        client.publish_many([("move/x", b"second")] * 20)
        assert [subscription.receive(LIMIT_S).payload for _ in range(20)] == [b"second"] * 20
        first.start()
        second.stop()
        wait_until(lambda: client.stats["reconnects"] == 2, "it moved back", LIMIT_S)
        assert client.url == first.url
        client.publish("move/x", b"first")
        assert subscription.receive(LIMIT_S).payload == b"first"
        assert client.name == "mover"
        assert [one.kind for one in happened] == [
            "connected",
            "disconnected",
            "reconnected",
            "disconnected",
            "reconnected",
        ]
        with pytest.raises(errors.ConnectionLostError, match="error 60003"):
            blocking.connect([nowhere], timeout_s=0.5)


# Several clients.


@pytest.mark.requirement("R11", "R70")
def test_one_message_reaches_a_hundred_subscribers_once_each(node: Node) -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            sinks = [await stack.enter_async_context(angarium.connect(node.url)) for _ in range(100)]
            source = await stack.enter_async_context(angarium.connect(node.url))
            filters = ["fan/out/1", "fan/out/*", "fan/>", "*/out/1"]
            subscriptions = [await sink.subscribe(filters[n % 4]) for n, sink in enumerate(sinks)]
            await source.publish_many([("fan/out/1", n.to_bytes(2, "big")) for n in range(50)])
            await source.flush()
            for subscription in subscriptions:
                got = [(await subscription.receive(LIMIT_S)).payload for _ in range(50)]
                assert got == [n.to_bytes(2, "big") for n in range(50)]
            assert sum(sink.stats["received_messages"] for sink in sinks) == 50 * 100

    run(test)


@pytest.mark.requirement("R27")
def test_no_local_keeps_own_messages_out_but_not_those_of_a_share(node: Node) -> None:
    async def test() -> None:
        async with angarium.connect(node.url, no_local=True) as own, angarium.connect(node.url) as other:
            subscription = await own.subscribe("echo")
            shared = await own.subscribe("#share/group/echo")
            for _ in range(10):
                await own.publish("echo", b"own")
                await other.publish("echo", b"other")
            await own.publish_many([("echo", b"own")] * 10)
            await own.publish("end", b"own")
            assert [(await subscription.receive(LIMIT_S)).payload for _ in range(10)] == [b"other"] * 10
            assert [(await shared.receive(LIMIT_S)).payload for _ in range(20)] == [b"own"] * 20
            assert own.stats["received_messages"] == 30

    run(test)


@pytest.mark.requirement("R68", "R71", "R73", "R74", "R80", "R81")
def test_deliver_to_one_goes_to_the_best_priority_in_turn_and_to_every_monitor(node: Node) -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:

            async def subscriber(priority: int, *, always: bool = False) -> angarium.Subscription:
                client = await stack.enter_async_context(angarium.connect(node.url, local_priority=priority))
                return await client.subscribe("job/>", deliver_always=always)

            best = [await subscriber(2), await subscriber(2)]
            worse = await subscriber(3)
            monitor = await subscriber(1, always=True)
            source = await stack.enter_async_context(angarium.connect(node.url))
            for number in range(20):
                await source.publish(f"job/{number % 2}", bytes([number]), dto=True)
            await source.publish("job/end", b"end")
            received = [await _until_end(one) for one in (*best, worse, monitor)]
            assert sorted(received[0] + received[1]) == [bytes([n]) for n in range(20)]
            assert len(received[0]) == len(received[1]) == 10
            assert received[2] == []
            assert received[3] == [bytes([n]) for n in range(20)]

    run(test)


async def _until_end(subscription: angarium.Subscription) -> list[bytes]:
    got: list[bytes] = []
    while (message := await subscription.receive(LIMIT_S)).payload != b"end":
        got.append(message.payload)
    return got
