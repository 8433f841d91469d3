"""The router dies or hangs: clients come back by themselves, with their subscriptions and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.crash.watched_node import all_ready, events, figure, is_replaced, look_until, state_of
from tests.integration.machine import back_within_s
from tests.integration.numbered import Tally, payload
from tests.integration.steady_pair import SteadyPair
from tests.waiting import until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium import ClientEvent

pytestmark = pytest.mark.slow

#: A client tries again after 0.05 to 0.1 s, then 0.1 to 0.2 s, and so on; Python starts a router in half a second.
CLIENTS_BACK_WITHIN_S = 5.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that kill its router once: the wait before the next start grows with every death."""
    with Node(tmp_path_factory.mktemp("router") / "data", workers=2) as node:
        yield node


@pytest.fixture
def fresh(tmp_path: Any) -> Iterator[Node]:
    with Node(tmp_path / "data", workers=2) as node:
        yield node


def hung_of(node: Node) -> list[str]:
    """Give the roles of which an event says that they hung."""
    return sorted(event["role"] for event in events(node) if event["event"] == "SYSTEM_PROCESS_HUNG")


def subscriptions(node: Node) -> list[dict[str, Any]]:
    with Admin(node.data) as admin:
        found: list[dict[str, Any]] = admin.call("subscriptions.list")
        return found


@pytest.mark.requirement("R3", "R54", "R219")
def test_clients_reconnect_and_restore_their_subscriptions_by_themselves(node: Node) -> None:
    async def test() -> None:
        happened: list[ClientEvent] = []
        called: list[str] = []
        async with (
            angarium.connect(node.url, on_event=happened.append, client_name="reader") as reader,
            angarium.connect(node.url) as publisher,
        ):
            plain = await reader.subscribe(["a/>", "b"])
            shared = await reader.subscribe("#share/group/c/*")
            await reader.subscribe(
                "d", deliver_always=True, callback=lambda message: called.append(message.topic)
            )
            gone = await reader.subscribe("gone")
            await gone.close()
            before = list(reader.stats.items())
            inbox = reader.inbox
            node.kill("router")
            killed = time.monotonic()
            await until(lambda: any(event.kind == "reconnected" for event in happened), "the reader is back")
            back_s = time.monotonic() - killed
            figure("reader_back_s", back_s)
            assert back_s < back_within_s(CLIENTS_BACK_WITHIN_S)
            await until(
                lambda: publisher.connected and publisher.stats["reconnects"], "the publisher is back"
            )
            for topic in ("a/x", "b", "gone", "c/x", "d"):
                await publisher.publish(topic, topic.encode())
            await publisher.flush()
            assert [(await plain.receive(LIMIT_S)).topic for _ in range(2)] == ["a/x", "b"]
            assert (await shared.receive(LIMIT_S)).topic == "c/x"
            await until(lambda: called, "the callback was called")
            assert called == ["d"]
            wanted = {"a/>", "b", "#share/group/c/*", "d"}
            await until(lambda: {row["filter"] for row in subscriptions(node)} == wanted, "they are listed")
            assert [event.kind for event in happened] == ["connected", "disconnected", "reconnected"]
            assert (reader.name, reader.stats["reconnects"]) == ("reader", 1)
            assert reader.inbox != inbox
            assert dict(before)["subscriptions"] == reader.stats["subscriptions"]
            reader._validate()
            publisher._validate()

    asyncio.run(asyncio.wait_for(test(), LIMIT_S * 2))


@pytest.mark.requirement("R3", "R6")
def test_a_killed_router_costs_what_was_under_way_and_neither_order_nor_a_second_copy(node: Node) -> None:
    tally = Tally()
    with blocking.connect(node.url) as sink, blocking.connect(node.url) as source:
        subscription = sink.subscribe("flow/>", callback=lambda message: tally.take([message.payload]))
        number = 0

        def publish_for(messages: int) -> None:
            nonlocal number
            for _ in range(messages):
                source.publish(f"flow/{number % 7}", payload(0, number))
                number += 1

        publish_for(2_000)
        wait_until(lambda: tally.total == 2_000, "the first ones arrived")
        pid = node.kill("router")
        publish_for(2_000)
        look_until(node, "the router is back", is_replaced("router", 0, pid))
        wait_until(lambda: sink.stats["reconnects"] == source.stats["reconnects"] == 1, "both are back")
        publish_for(2_000)
        with contextlib.suppress(errors.ConnectionLostError):  # it tells of what was lost
            source.flush(LIMIT_S)
        source.flush(LIMIT_S)
        wait_until(lambda: tally.newest.get(0) == number - 1, "the last one arrived")
        assert tally.not_rising == []
        assert tally.total >= 4_000
        # What left before the subscriber was back matched nothing at the new router, which counts from its start.
        node.wait_for(
            "what did not come is counted",
            lambda status: (
                number - tally.total
                <= source.stats["lost_messages"] + status["discards"].get("no-subscription-match", 0)
            ),
        )
        subscription.close()


def test_flush_tells_that_messages_were_under_way_when_the_router_died(node: Node) -> None:
    with blocking.connect(node.url) as client:
        node.kill("router", number=signal.SIGSTOP)
        client.publish_many([("flow", b"x")] * 500)
        wait_until(lambda: client.stats["published_messages"] == 500, "they left")
        node.kill("router")
        with pytest.raises(errors.ConnectionLostError, match="500 messages were in flight"):
            client.flush(LIMIT_S)


@pytest.mark.requirement("R6")
def test_nothing_is_kept_for_a_client_that_is_not_there(node: Node) -> None:
    """A client that comes back gets what is published from then on, not what was meanwhile."""
    with blocking.connect(node.url, client_name="absent", keepalive_ms=1000) as absent:
        subscription = absent.subscribe("kept/>")
        with blocking.connect(node.url) as publisher:
            publisher.publish("kept/before", b"")
            assert subscription.receive(LIMIT_S).topic == "kept/before"
            with Admin(node.data) as admin:
                admin.call("clients.disconnect", name="absent")
            wait_until(lambda: not absent.connected, "it is disconnected")
            publisher.publish("kept/meanwhile", b"")
            publisher.flush(LIMIT_S)
        assert absent.closed, "a client that an operator ended does not come back by itself"
    with blocking.connect(node.url, client_name="absent") as again, blocking.connect(node.url) as publisher:
        subscription = again.subscribe("kept/>")
        publisher.publish("kept/after", b"")
        assert subscription.receive(LIMIT_S).topic == "kept/after"


def test_a_hung_router_is_replaced_and_its_clients_come_back(fresh: Node) -> None:
    """The controller hangs too; nobody needs it for that."""
    with SteadyPair(fresh.url, [f"steady/{n}" for n in range(8)]) as pair:
        pid = fresh.kill("router", number=signal.SIGSTOP)
        os.kill(state_of(fresh.ready, "controller")["pid"], signal.SIGSTOP)
        hung_s = look_until(fresh, "the router is replaced", is_replaced("router", 0, pid))
        wait_until(lambda: pair.look().reconnects == 2, "both are back")
        wait_until(lambda: pair.look().received > 0, "messages flow again")
        assert pair.look().not_rising == 0
        figure("hung_router_replaced_s", hung_s)
        wait_until(lambda: hung_of(fresh) == ["controller", "router"], "both are told")


def test_workers_of_a_killed_router_serve_the_next_one(fresh: Node) -> None:
    pids = {row["index"]: row["pid"] for row in fresh.ready["processes"] if row["role"] == "worker"}
    for _ in range(2):
        pid = fresh.kill("router")
        back_s = look_until(fresh, "the router is back", is_replaced("router", 0, pid))
        assert back_s < back_within_s()
    status = fresh.wait_for("everything is ready", all_ready)
    assert {row["index"]: row["pid"] for row in status["processes"] if row["role"] == "worker"} == pids
    with blocking.connect(fresh.url) as client:
        subscription = client.subscribe("a/>")
        client.publish_many([(f"a/{n}", b"") for n in range(200)])
        assert [subscription.receive(LIMIT_S).topic for _ in range(200)] == [f"a/{n}" for n in range(200)]
