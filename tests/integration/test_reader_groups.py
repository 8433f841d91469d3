"""Reader groups against a real node: a leased queue is read by positions, in ranges planned and acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking, errors
from angarium_server.testing import Node
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator
    from pathlib import Path

    from angarium import Client, GuaranteedBatch, ReaderGroup

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


async def is_empty(client: Client, queue: str) -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while (left := (await client.show_queue(queue))["messages"]) != 0:
        assert asyncio.get_running_loop().time() < deadline, f"{queue} has {left} messages"
        await asyncio.sleep(0.01)


async def fill(
    client: Client, queue: str, count: int, *, first: int = 0, keys: int = 0, ttl_ms: int = 0
) -> None:
    """Publish numbers; over so many partition keys, or living so long."""
    async with client.producer() as producer:
        for n in range(first, first + count):
            key = f"key-{n % keys}" if keys else None
            await producer.send(queue=queue, payload=b"%d" % n, partition_key=key, ttl_ms=ttl_ms)
        await producer.flush()


async def rest_of(batches: AsyncIterator[GuaranteedBatch]) -> list[GuaranteedBatch]:
    return [batch async for batch in batches]


async def read(group: ReaderGroup, client: Client, partition: int, start: int, end: int) -> list[int]:
    found = []
    async for batch in client.read_range(group.queue, group.name, partition, start, end):
        found += [int(payload) for payload in batch.payloads]
    return found


def test_a_group_knows_the_data_directory_in_which_its_positions_are(node: Node, queue: str) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue(queue)
        with client.reader_group(queue, "g") as group:
            assert group.node_id == json.loads((node.data / "node.json").read_text())["node_id"]


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


def test_consumers_may_settle_what_they_had_when_the_queue_was_leased(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client, connected(node) as other:
            await client.create_queue(queue)
            flow = await other.consume(queue, ack="manual")
            await fill(client, queue, 10)
            had = [await flow.receive(LIMIT_S) for _ in range(10)]
            leased_at = time.monotonic()
            group = await client.reader_group(queue, "g")
            before = (await group.plan({0: 1}))[0]
            flow.accept(had)
            while (planned := (await group.plan({0: 1}))[0]).end < 11:
                assert time.monotonic() < leased_at + LIMIT_S
            # A machine that is busy beyond measure gives them back first.
            if time.monotonic() < leased_at + 4:
                assert before == (1, 1, 0, 0), "they may come back"
                assert planned.messages == 0
                assert flow.stats["refused_settles"] == 0

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
            left = client.read_range(queue, "g", 0, planned.start, planned.end, window=10)
            assert len(next(left)) > 0
            group.acknowledge({0: planned.end})
            assert group.positions()[0].messages == 0
            assert group.count({0: 1}) == {0: 0}
            group.release()
    del left  # in the middle, and behind the end of the client


# --- partitions -------------------------------------------------------------------------------------------------


def test_a_partitioned_queue_is_leased_whole_and_limits_are_shared_out(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, access_type="non-exclusive", partition_count=3)
            seen: list[bool] = []
            flow = await client.consume(queue, on_active=seen.append)
            group = await client.reader_group(queue, "g")
            await fill(client, queue, 300, keys=40)
            assert group.partitions == [0, 1, 2]
            positions = await group.positions()
            assert sum(one.messages for one in positions.values()) == 300
            starts = {partition: one.oldest for partition, one in positions.items()}
            planned = await group.plan(starts, messages=30)
            assert sum(one.messages for one in planned.values()) == 30
            assert all(5 <= one.messages <= 20 for one in planned.values())
            rest = await group.plan({partition: one.end for partition, one in planned.items()})
            got: list[int] = []
            for plans in (planned, rest):
                for partition, one in plans.items():
                    numbers = await read(group, client, partition, one.start, one.end)
                    assert len(numbers) == one.messages
                    got += numbers
            assert sorted(got) == list(range(300))
            assert flow.buffered == 0
            await group.acknowledge({partition: one.end for partition, one in rest.items()})
            await is_empty(client, queue)
            with pytest.raises(angarium.InvalidRequestError, match="partition"):
                await group.plan({7: 1})
            await group.release()

    run(test())


# --- what breaks ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_is_planned_is_read_whole_whatever_is_killed_in_the_middle(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async with connected(node) as client:
            for role in ("worker", "router", "node"):
                await client.create_queue(role)
                await fill(client, role, 6_000, ttl_ms=600_000)
                group = await client.reader_group(role, "g")
                planned = (await group.plan({0: 1}, messages=4_000))[0]
                got: list[int] = []
                killed = False
                async for batch in client.read_range(role, "g", 0, 1, planned.end, window=500):
                    got += [int(payload) for payload in batch.payloads]
                    if len(got) > 1_000 and not killed:
                        killed = True
                        await asyncio.to_thread(harm, node, role)
                assert got == list(range(4_000)), role
                here = (await group.positions())[0]
                assert (here.planned, here.messages, here.lost) == (4_001, 6_000, 0)
                await group.acknowledge({0: planned.end})
            # The last kill is behind an acknowledgement.
            await asyncio.to_thread(harm, node, "worker")
            for role in ("worker", "router", "node"):
                again = await client.reader_group(role, "g")
                assert again.continued
                rest = (await again.plan({0: 1}))[0]
                assert rest.start == 4_001
                assert await read(again, client, 0, rest.start, rest.end) == list(range(4_000, 6_000))
                await again.acknowledge({0: rest.end})
                await is_empty(client, role)

    with Node(tmp_path / "data", workers=2) as node:
        run(test(node))


def test_a_range_that_is_broken_off_is_not_taken_for_a_whole_one(node: Node, queue: str) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue(queue)
        with client.producer() as producer:
            producer.publish_many((f"#P2P/QUE/{queue}", b"%d" % n) for n in range(2_000))
        planned = client.reader_group(queue, "g").plan({0: 1})[0]
        some = client.read_range(queue, "g", 0, planned.start, planned.end, window=10)
        # All of it has come when the client is closed, and was not handed out.
        all_here = client.read_range(queue, "g", 0, 1, 1_001)
        assert len(next(some)) + len(next(all_here)) > 0
    for batches in (some, all_here):
        with pytest.raises(angarium.ConnectionLostError):
            list(batches)

    async def test() -> None:
        async with connected(node) as client:
            some = client.read_range(queue, "g", 0, 1, 2_001, window=10)
            assert len(await anext(some)) > 0
        with pytest.raises(angarium.ConnectionLostError):
            await rest_of(some)

    run(test())


def test_a_thread_reads_a_range_whole_while_the_router_is_killed(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node, blocking.connect(node.url, timeout_s=LIMIT_S) as client:
        client.create_queue("q")
        with client.producer() as producer:
            producer.publish_many(("#P2P/QUE/q", b"%d" % n) for n in range(6_000))
        group = client.reader_group("q", "g")
        planned = group.plan({0: 1})[0]
        got: list[int] = []
        kills = 0
        for batch in client.read_range("q", "g", 0, planned.start, planned.end, window=300):
            got += [int(payload) for payload in batch.payloads]
            if len(got) > 2_000 and not kills:
                kills += 1
                node.kill("router")
        assert got == list(range(6_000))
        assert kills == 1
        group.release()


def harm(node: Node, role: str) -> None:
    """Kill the home of the queue, the router, or the whole node, and have it back."""
    if role == "node":
        node.kill_all()
        node.start()
    elif role == "router":
        node.kill("router")
    else:
        for index in (0, 1):
            node.kill("worker", index)


def test_a_lease_goes_with_its_queue_when_its_worker_leaves(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async with connected(node) as client:
            names = [f"q{number}" for number in range(4)]
            groups, plans = [], []
            for name in names:
                await client.create_queue(name)
                await fill(client, name, 500)
                groups.append(await client.reader_group(name, "g"))
                plans.append((await groups[-1].plan({0: 1}, messages=300))[0])
            for count in (1, 3):
                await asyncio.to_thread(node.run, "worker", "scale", str(count), "--wait")
                for group, planned in zip(groups, plans, strict=True):
                    assert await read(group, client, 0, 1, planned.end) == list(range(300))
            for group in groups:
                await group.acknowledge({0: 301})
                rest = (await group.plan({0: 301}))[0]
                assert await read(group, client, 0, rest.start, rest.end) == list(range(300, 500))
                assert (await group.positions())[0].lost == 0

    with Node(tmp_path / "data", workers=2) as node:
        run(test(node))


def test_a_group_that_does_nothing_loses_the_queue_to_its_consumers(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 10)
            group = await client.reader_group(queue, "g")
            await group.plan({0: 1}, messages=5)
            await client.reader_group(queue, "g", lease_s=1.0)
            flow = await client.consume(queue)
            got = [await flow.receive(LIMIT_S) for _ in range(10)]
            assert [message.redelivered for message in got] == [True] * 5 + [False] * 5
            with pytest.raises(angarium.ConflictError) as lost:
                await group.plan({0: 6})
            assert lost.value.code == errors.LEASE_LOST

    run(test())


@pytest.mark.requirement("R280")
def test_a_consumer_that_leases_a_queue_and_leaves_keeps_it_no_longer_than_the_queue_allows(
    node: Node, queue: str
) -> None:
    """It asks for 30 days; the consumers of another user get their messages after a second."""
    node.run("username", "create", f"greedy-{queue}")

    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, permission="consume", max_lease_s=1, access_type="non-exclusive")
            await fill(client, queue, 3)
            flow = await client.consume(queue)
            for _ in range(3):
                (await flow.receive(LIMIT_S)).fail()
            async with connected(node, username=f"greedy-{queue}", client_name="gone") as greedy:
                await greedy.reader_group(queue, "mine", lease_s=30 * 86_400.0)
                shown = json.loads(await asyncio.to_thread(node.run, "queue", "show", queue, "--json"))
                assert (shown["reader_group"], shown["reader_client"]) == ("mine", "gone")
                assert (shown["reader_username"], shown["longest_lease_s"]) == (f"greedy-{queue}", 1)
                assert abs(shown["oldest_lease_ms"] / 1000 - time.time()) < LIMIT_S
            assert len([await flow.receive(LIMIT_S) for _ in range(3)]) == 3

    run(test())


def test_what_operators_delete_is_counted_and_times_find_positions(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 10)
            flow = await client.browse(queue)
            between = [await flow.receive(LIMIT_S) for _ in range(10)][-1].stored_ms + 1
            await flow.close()
            while time.time_ns() // 1_000_000 <= between:
                await asyncio.sleep(0.001)
            await fill(client, queue, 10, first=10)
            group = await client.reader_group(queue, "g")
            assert await group.find_time({0: between}) == {0: 11}
            assert await group.find_time({0: 0}) == {0: 1}
            assert await group.find_time({0: between * 2}) == {0: 21}
            await group.plan({0: 1}, messages=8)
            await asyncio.to_thread(node.run, "queue", "purge", queue)
            here = (await group.positions())[0]
            assert (here.lost, here.messages) == (8, 0)
            assert await read(group, client, 0, 1, 9) == []

    run(test())


# --- bad input --------------------------------------------------------------------------------------------------


def test_what_cannot_be_leased_is_refused_by_name(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            flow = await client.consume("", temporary=True)
            wrong: list[tuple[Any, int, str]] = [
                (client.reader_group("no-such", "g"), errors.UNKNOWN_ENDPOINT, "no-such"),
                (client.reader_group("", "g"), errors.UNKNOWN_ENDPOINT, "queue"),
                (client.reader_group(flow.name, "g"), errors.INVALID_DURABILITY, flow.name),
                (client.reader_group(queue, ""), errors.INVALID_ARGUMENT, "reader group"),
                (client.reader_group(queue, "x" * 201), errors.INVALID_ARGUMENT, "200 bytes"),
                (client.reader_group(queue, "a\nb"), errors.INVALID_ARGUMENT, "printed"),
                (client.reader_group(queue, "g", lease_s=0.5), errors.INVALID_ARGUMENT, "lease_s"),
                (client.reader_group(queue, "g", lease_s=float("nan")), errors.INVALID_ARGUMENT, "lease_s"),
                (client.reader_group(queue, "g", lease_s=float("inf")), errors.INVALID_ARGUMENT, "lease_s"),
            ]
            for call, code, text in wrong:
                with pytest.raises(angarium.AngariumError, match=text) as refused:
                    await call
                assert refused.value.code == code
            with pytest.raises(angarium.ConflictError):
                await anext(client.read_range(queue, "g", 0, 1, 2))

    run(test())


def test_odd_names_are_names_and_nonsense_in_a_plan_is_refused(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue)
            await fill(client, queue, 5)
            name = "Ω / 'quoted' \"x\" ; $(rm) % > # * 数据"
            group = await client.reader_group(queue, name)
            planned = (await group.plan({0: 0}, messages=1 << 61, bytes=1 << 61))[0]
            assert planned[:3] == (0, 6, 5)
            assert await read(group, client, 0, 0, 6) == list(range(5))
            assert await group.plan({}) == {}
            assert await group.count({0: 1 << 60}) == {0: 0}
            for call in (
                group.plan({0: -1}),
                group.plan({0: 1 << 70}),
                group.plan({0: 1}, messages=0),
                group.plan({0: 1}, bytes=-5),
                group.count({0: -1}),
                group.acknowledge({0: -1}),
                group.acknowledge({1: 1}),
            ):
                with pytest.raises(angarium.InvalidRequestError) as refused:
                    await call
                assert refused.value.code == errors.INVALID_ARGUMENT
            for first, end in ((3, 2), (-1, 2), (0, 1 << 70)):
                with pytest.raises(angarium.InvalidRequestError):
                    await read(group, client, 0, first, end)
            assert (await group.positions())[0].planned == 6
            await group.release()

    run(test())


def test_a_username_needs_the_permission_to_consume(node: Node, queue: str) -> None:
    node.run("username", "create", f"u-{queue}")

    async def test() -> None:
        async with connected(node) as owner, connected(node, username=f"u-{queue}") as other:
            await owner.create_queue(queue, permission="read-only")
            with pytest.raises(angarium.ForbiddenError) as refused:
                await other.reader_group(queue, "g")
            assert refused.value.code == errors.PERMISSION_DENIED
            await fill(owner, queue, 3)
            group = await owner.reader_group(queue, "g")
            await group.plan({0: 1})
            with pytest.raises(angarium.ForbiddenError):
                await anext(other.read_range(queue, "g", 0, 1, 4))

    run(test())


# --- operators --------------------------------------------------------------------------------------------------


def test_operators_see_who_has_a_queue_and_can_take_it_away(node: Node, queue: str) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.create_queue(queue, access_type="non-exclusive", partition_count=2)
            await fill(client, queue, 10, keys=10)
            group = await client.reader_group(queue, "the archive")
            await group.plan(dict.fromkeys(group.partitions, 1))
            shown = json.loads(await asyncio.to_thread(node.run, "queue", "show", queue, "--json"))
            assert (shown["reader_group"], shown["leased_messages"]) == ("the archive", 10)
            listed = json.loads(await asyncio.to_thread(node.run, "queue", "list", queue, "--json"))
            assert listed["reader_group"] == "the archive"
            drawn = await asyncio.to_thread(node.run, "queue", "show", queue)
            assert "the archive" in drawn
            done = await asyncio.to_thread(node.run, "queue", "release", queue, "--json")
            assert json.loads(done) == {
                "kind": "queue",
                "name": queue,
                "groups": ["the archive"],
                "partitions": 2,
            }
            with pytest.raises(angarium.ConflictError) as lost:
                await group.positions()
            assert lost.value.code == errors.LEASE_LOST
            again = json.loads(await asyncio.to_thread(node.run, "queue", "release", queue, "--json"))
            assert again["groups"] == []
            flow = await client.consume(queue)
            assert len([await flow.receive(LIMIT_S) for _ in range(10)]) == 10

    run(test())
