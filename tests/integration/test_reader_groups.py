"""Reader groups against a real node: a leased queue is read by positions, in ranges planned and acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking, errors
from angarium.testing import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from angarium import Client, ReaderGroup

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R221")]

LIMIT_S = 20.0
_names = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("groups") / "data", workers=2) as node:
        yield node


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"queue-{next(_names)}"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 3))


@contextlib.asynccontextmanager
async def connected(node: Node, **options: Any) -> AsyncIterator[Client]:
    async with angarium.connect(node.url, timeout_s=LIMIT_S, **options) as client:
        yield client


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"it never came true: {what}"
        await asyncio.sleep(0.01)


async def is_empty(client: Client, queue: str) -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while (left := (await client.show_queue(queue))["messages"]) != 0:
        assert asyncio.get_running_loop().time() < deadline, f"{queue} has {left} messages"
        await asyncio.sleep(0.01)


async def fill(client: Client, queue: str, count: int, first: int = 0) -> None:
    async with await client.producer() as producer:
        report = await producer.publish_many(
            (f"#P2P/QUE/{queue}", b"%d" % n) for n in range(first, first + count)
        )
        assert report.refused == []


async def read(group: ReaderGroup, client: Client, partition: int, start: int, end: int) -> list[int]:
    found = []
    async for batch in client.read_range(group.queue, group.name, partition, start, end):
        found += [int(payload) for payload in batch.payloads]
    return found


def test_a_group_plans_reads_and_acknowledges_a_queue_by_positions(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 1_000)
            group = await client.reader_group(queue, "archive")
            assert group.partitions == [0]
            assert not group.continued
            here = (await group.positions())[0]
            assert (here.oldest, here.next, here.messages, here.planned) == (1, 1_001, 1_000, 0)
            planned = (await group.plan({0: here.oldest}, messages=600))[0]
            assert (planned.start, planned.end, planned.messages) == (1, 601, 600)
            assert await read(group, client, 0, 1, 601) == list(range(600))
            assert await read(group, client, 0, 300, 500) == list(range(299, 499)), "any part, again"
            await group.acknowledge({0: 601})
            here = (await group.positions())[0]
            assert (here.oldest, here.acknowledged, here.planned, here.messages) == (601, 601, 601, 400)
            assert await group.count({0: 601}) == {0: 400}
            rest = (await group.plan({0: 601}))[0]
            assert (rest.start, rest.end, rest.messages) == (601, 1_001, 400)
            assert await read(group, client, 0, 601, 1_001) == list(range(600, 1_000))
            await group.acknowledge({0: 1_001})
            await is_empty(client, queue)
            await group.release()

    run(test())


def test_consumers_stand_by_while_a_queue_is_leased_and_another_group_is_refused(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with connected(node) as client, connected(node) as other:
            await client.create_queue(queue)
            seen: list[bool] = []
            flow = await other.consume(queue, on_active=seen.append)
            assert seen == [True]
            group = await client.reader_group(queue, "a")
            await until(lambda: seen == [True, False], "the consumer stands by")
            await fill(client, queue, 10)
            with pytest.raises(angarium.ConflictError, match="'a'") as refused:
                await other.reader_group(queue, "b")
            assert refused.value.code == errors.ENDPOINT_LEASED
            assert flow.buffered == 0
            again = await other.reader_group(queue, "a")
            assert again.continued
            await group.plan({0: 1}, messages=4)
            await group.acknowledge({0: 3})
            await group.release()
            await until(lambda: seen == [True, False, True], "the consumer is active again")
            got = [await flow.receive(LIMIT_S) for _ in range(8)]
            assert [int(message.payload) for message in got] == list(range(2, 10))
            assert [message.redelivered for message in got] == [True] * 2 + [False] * 6
            for call in (again.positions(), again.plan({0: 1}), again.acknowledge({0: 5})):
                with pytest.raises(angarium.ConflictError) as lost:
                    await call
                assert lost.value.code == errors.LEASE_LOST
            with pytest.raises(angarium.ConflictError):
                await read(group, client, 0, 1, 3)

    run(test())


def test_a_range_that_is_not_planned_or_was_acknowledged_is_not_read(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 20)
            group = await client.reader_group(queue, "g")
            await group.plan({0: 1}, messages=10)
            await group.acknowledge({0: 4})
            assert await read(group, client, 0, 4, 11) == list(range(3, 10))
            assert await read(group, client, 0, 7, 7) == []
            for start, end in ((1, 5), (4, 12), (30, 40)):
                with pytest.raises(angarium.InvalidRequestError, match="planned"):
                    await read(group, client, 0, start, end)

    run(test())


def test_the_blocking_client_has_the_same_group(node: Node, queue: str) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue(queue)
        with client.producer() as producer:
            producer.publish_many((f"#P2P/QUE/{queue}", b"%d" % n) for n in range(2_000))
        with client.reader_group(queue, "g") as group:
            planned = group.plan({0: 1})[0]
            batches = client.read_range(queue, "g", 0, planned.start, planned.end)
            assert [int(payload) for batch in batches for payload in batch.payloads] == list(range(2_000))
            group.acknowledge({0: planned.end})
            assert group.positions()[0].messages == 0
            assert group.count({0: 1}) == {0: 0}
            group.release()
