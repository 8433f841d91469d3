"""Producers and flows while processes of the node die and come back: every message once, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking
from angarium.testing import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from angarium import Client, Flow

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
RETRY_S = 40.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S))


@contextlib.asynccontextmanager
async def connected(node: Node) -> AsyncIterator[Client]:
    async with angarium.connect(node.url, retry_for_s=RETRY_S, timeout_s=RETRY_S) as client:
        yield client


async def is_empty(client: Client, queue: str) -> None:
    """Wait until a queue holds nothing: what was accepted is deleted a moment later."""
    while (await client.show_queue(queue))["messages"]:
        await asyncio.sleep(0.05)


async def publish_steadily(client: Client, queue: str, count: int) -> angarium.PublishReport:
    """Publish numbers, a few every few milliseconds."""
    async with await client.producer("steady") as producer:
        receipts = []
        for number in range(count):
            receipts.append(await producer.send(payload=b"%d" % number, queue=queue))
            if number % 10 == 9:
                await asyncio.sleep(0.005)
        return angarium.PublishReport(sum([1 for one in receipts if await one]), [])


async def consume_all(flow: Flow, count: int) -> tuple[list[int], list[int]]:
    """Accept numbers until all came; give them in order, and those that said that they come again."""
    numbers: list[int] = []
    again: list[int] = []
    async for message in flow:
        (again if message.redelivered else numbers).append(int(message.payload))
        if len({*numbers, *again}) == count:
            message.accept()
            return numbers, again
    raise AssertionError("the flow has ended")


@pytest.mark.requirement("R190", "R163", "R168")
@pytest.mark.parametrize("role", ["worker", "router", "controller"])
def test_a_process_that_is_killed_costs_nothing_and_doubles_nothing(tmp_path: Path, role: str) -> None:
    """What was delivered and not settled may come again, and says so."""
    count = 1_500

    async def test(node: Node) -> None:
        async with connected(node) as publisher, connected(node) as consumer:
            await publisher.create_queue("q", permission="consume")
            flow = await consumer.consume("q")
            publishing = asyncio.ensure_future(publish_steadily(publisher, "q", count))
            consuming = asyncio.ensure_future(consume_all(flow, count))
            for index in (0, 1):
                await asyncio.sleep(0.2)
                with contextlib.suppress(AssertionError):
                    await asyncio.to_thread(node.kill, role, index if role == "worker" else 0)
            report = await publishing
            numbers, again = await consuming
            assert report.acknowledged == count
            assert sorted({*numbers, *again}) == list(range(count))
            assert len(numbers) == len(set(numbers)), "twice, and not said so"
            assert [*numbers] == sorted(numbers)
            await flow.close()
            await is_empty(publisher, "q")

    with Node(tmp_path / "data", workers=2) as node:
        run(test(node))


@pytest.mark.requirement("R96", "R190")
def test_a_node_that_is_stopped_and_started_has_everything_and_its_clients_go_on(tmp_path: Path) -> None:
    count = 1_000

    async def test(node: Node) -> None:
        async with connected(node) as client:
            await client.create_queue("q", subscriptions=["orders/>"])
            publishing = asyncio.ensure_future(publish_steadily(client, "q", count))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(node.kill_all)
            await asyncio.to_thread(node.start)
            assert (await publishing).acknowledged == count
            await client.publish("orders/1", b"%d" % count, mode="persistent")
            await asyncio.to_thread(node.restart)
            flow = await client.consume("q")
            numbers, again = await consume_all(flow, count + 1)
            assert [*numbers, *again] == list(range(count + 1)), "nobody had seen them before"

    with Node(tmp_path / "data", workers=2) as node:
        run(test(node))


@pytest.mark.requirement("R96")
def test_messages_and_sequences_survive_a_restart_without_clients(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node:
        with blocking.connect(node.url) as client:
            client.create_queue("q")
            with client.producer("named") as producer:
                report = producer.publish_many([("#P2P/QUE/q", b"%d" % n) for n in range(500)])
                assert report.acknowledged == 500
        url = node.url
        node.restart()
        assert node.url == url, "the port is kept"
        with blocking.connect(node.url) as client:
            with client.producer("named") as producer:
                assert producer.last_sequence == 500
            with client.consume("q") as flow:
                assert [flow.receive(10.0).payload for _ in range(500)] == [b"%d" % n for n in range(500)]


@pytest.mark.requirement("R190")
def test_a_message_in_hand_at_a_reconnect_comes_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async with connected(node) as client:
            await client.create_queue("q")
            for number in range(3):
                await client.publish(payload=b"%d" % number, queue="q")
            flow = await client.consume("q", ack="manual")
            first = await flow.receive(LIMIT_S)
            await asyncio.to_thread(node.kill, "router")
            while flow.active:
                await asyncio.sleep(0.01)
            again = await flow.receive(LIMIT_S)
            assert (again.payload, again.redelivered) == (b"0", True)
            first.accept()
            assert flow.stats["late_settles"] == 1
            again.accept()
            rest = [await flow.receive(LIMIT_S) for _ in range(2)]
            flow.accept(rest)
            assert [one.payload for one in rest] == [b"1", b"2"]

    with Node(tmp_path / "data", workers=1) as node:
        run(test(node))
