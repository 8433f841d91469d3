"""Flows as applications get them wrong: dropped, left by an exception, standing by, one call after the other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking
from angarium.client import producers_and_flows as parties
from angarium_server.testing import Node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from angarium import Client, ClientEvent, GuaranteedMessage

pytestmark = pytest.mark.slow

LIMIT_S = 20.0

_names = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), workers=2) as node:
        yield node


@pytest.fixture
def queue() -> str:
    return f"flows-{next(_names)}"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 3))


async def fill(client: Client, queue: str, count: int, **attributes: Any) -> None:
    """Make a queue with numbered messages; it has one worker's order, as they have one topic."""
    await client.create_queue(queue, **attributes)
    for number in range(count):
        await client.publish(queue=queue, payload=b"%d" % number)


async def is_left(client: Client, queue: str, count: int) -> None:
    """Wait until so many messages are in the queue."""
    async with asyncio.timeout(LIMIT_S):
        while (await client.show_queue(queue))["messages"] != count:
            await asyncio.sleep(0.02)


class PoisonError(Exception):
    """What a body raises."""


def test_flows_that_are_over_are_forgotten(node: Node, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parties, "FORGOTTEN_TOGETHER", 4)

    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 20)
            for number in range(20):
                async with client.consume(queue, max_messages=1) as flow:
                    assert (await flow.receive(LIMIT_S)).payload == b"%d" % number
            assert len(client._guaranteed._in_use) <= 5
            assert client.stats["flows"] == 0
            assert client.stats["accepted_messages"] == 20

    run(test())


# Flows that nobody closes.


def test_a_loop_that_is_left_by_an_exception_does_not_keep_the_queue(
    node: Node, queue: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 3, access_type="exclusive")
            with contextlib.suppress(PoisonError):
                async for message in await client.consume(queue):
                    raise PoisonError(message)
            assert message.payload == b"0", "the application still holds the message, but not the flow"
            async with client.consume(queue) as flow:
                seen = [await flow.receive(LIMIT_S) for _ in range(3)]
            assert [(one.payload, one.redelivered) for one in seen] == [
                (b"0", True),
                (b"1", seen[1].redelivered),
                (b"2", seen[2].redelivered),
            ]
            await is_left(client, queue, 0)
            message.accept()
            assert client.stats["late_settles"] == 1

    with (
        caplog.at_level(logging.WARNING, "angarium.client"),
    ):
        run(test())
    assert f"Flow({queue!r}) was dropped without being closed" in caplog.text


def test_a_loop_that_is_left_by_an_exception_does_not_keep_the_queue_of_threads(
    node: Node, queue: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with (
        caplog.at_level(logging.WARNING, "angarium.client"),
        blocking.connect(node.url) as client,
    ):
        client.create_queue(queue, access_type="exclusive")
        for number in range(3):
            client.publish(queue=queue, payload=b"%d" % number)
        with contextlib.suppress(PoisonError):
            for message in client.consume(queue):
                raise PoisonError(message)
        assert message.payload == b"0"
        with client.consume(queue) as flow:
            assert [flow.receive(LIMIT_S).payload for _ in range(3)] == [b"0", b"1", b"2"]
        wait_until(lambda: client.show_queue(queue)["messages"] == 0, "all is accepted")
    assert "was not closed" in str(recwarn.pop(ResourceWarning).message)
    assert f"Flow({queue!r}) was dropped without being closed" in caplog.text


def test_a_flow_in_a_block_is_closed_by_what_the_body_raises_and_nothing_is_said(
    node: Node, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 2)
            with contextlib.suppress(PoisonError):
                async with client.consume(queue) as flow:
                    async for _ in flow:
                        raise PoisonError
            assert flow.closed
            async with client.consume(queue) as flow:
                assert (await flow.receive(LIMIT_S)).redelivered

    with caplog.at_level(logging.WARNING, "angarium.client"):
        run(test())
    gc.collect()
    assert caplog.records == []


def test_a_flow_with_a_callback_need_not_be_held(node: Node, queue: str) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 0)
            seen: list[bytes] = []
            await client.consume(queue, lambda message: seen.append(message.payload))
            gc.collect()
            await asyncio.sleep(0.05)
            await client.publish(queue=queue, payload=b"later")
            await is_left(client, queue, 0)
            assert seen == [b"later"]

    run(test())


# What is accepted.


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_last_message_of_receive_is_accepted_when_all_went_well(
    node: Node, queue: str, is_closed: bool
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 3)
            flow = await client.consume(queue)
            assert [(await flow.receive(LIMIT_S)).payload for _ in range(3)] == [b"0", b"1", b"2"]
            if is_closed:
                await flow.close()
        async with angarium.connect(node.url) as client:
            await is_left(client, queue, 0)

    run(test())


def test_the_last_message_of_receive_is_accepted_when_all_went_well_in_threads(
    node: Node, queue: str
) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue(queue)
        for number in range(4):
            client.publish(queue=queue, payload=b"%d" % number)
        with client.consume(queue) as flow:
            assert [flow.receive(LIMIT_S).payload for _ in range(2)] == [b"0", b"1"]
        wait_until(lambda: client.show_queue(queue)["messages"] == 2, "two are accepted")
        with contextlib.suppress(PoisonError), client.consume(queue) as flow:
            assert flow.receive(LIMIT_S).payload == b"2"
            raise PoisonError
        with client.consume(queue) as flow:
            again = flow.receive(LIMIT_S)
            assert (again.payload, again.redelivered) == (b"2", True)
            assert flow.receive(LIMIT_S).payload == b"3"


def test_a_message_that_was_being_processed_when_something_was_raised_comes_again(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 2)
            flow = await client.consume(queue)
            try:
                await flow.receive(LIMIT_S)
                raise PoisonError
            except PoisonError:
                await flow.close()
            await is_left(client, queue, 2)
            async with client.consume(queue) as flow:
                assert [(await flow.receive(LIMIT_S)).payload for _ in range(2)] == [b"0", b"1"]
            await is_left(client, queue, 0)

    run(test())


def test_a_message_is_a_context_that_accepts_or_fails_it(node: Node, queue: str) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 2)
            async with client.consume(queue, ack="manual", window=1) as flow:
                first = await flow.receive(LIMIT_S)
                with contextlib.suppress(PoisonError):
                    async with first:
                        raise PoisonError
                counts = []
                async for message in flow:
                    with message:
                        counts.append((message.payload, message.delivery_count))
                        if len(counts) == 2:
                            break
                assert sorted(counts) == [(b"0", 2), (b"1", 1)]
                async with await _rejected(client, queue, flow) as other:
                    other.reject()
                assert flow.stats["rejected_messages"] == 1
                assert flow.stats["failed_messages"] == 1
            await is_left(client, queue, 0)

    run(test())


async def _rejected(client: Client, queue: str, flow: angarium.Flow) -> GuaranteedMessage:
    await client.publish(queue=queue, payload=b"x")
    return await flow.receive(LIMIT_S)


# Standing by.


@pytest.mark.requirement("R277")
def test_a_consumer_that_stands_by_says_so_and_what_to_do(
    node: Node, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    happened: list[ClientEvent] = []

    async def test() -> None:
        async with (
            angarium.connect(node.url) as one,
            angarium.connect(node.url, on_event=happened.append) as other,
        ):
            await fill(one, queue, 1, access_type="exclusive", permission="consume")
            first = await one.consume(queue)
            async with other.consume(queue) as second:
                assert (first.active, second.active) == (True, False)
                (standby,) = [event for event in happened if event.kind == "standby"]
                assert "another consumer" in standby.detail
                assert "access_type=non-exclusive" in standby.detail
                await first.close()
                assert (await second.receive(LIMIT_S)).payload == b"0"
                assert second.active

    with caplog.at_level(logging.INFO, "angarium.client"):
        run(test())
    told = [(one.levelname, one.getMessage()) for one in caplog.records if queue in one.getMessage()]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert "stands by" in told[0][1]
    assert "is active now" in told[1][1]


@pytest.mark.requirement("R277")
def test_a_consumer_without_a_partition_says_so(node: Node, queue: str) -> None:
    happened: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(node.url, on_event=happened.append) as client:
            await client.create_queue(queue, partition_count=1)
            async with client.consume(queue), client.consume(queue):
                async with asyncio.timeout(LIMIT_S):
                    while not (standby := [event for event in happened if event.kind == "standby"]):
                        await asyncio.sleep(0.02)
            assert "partitions" in standby[0].detail

    run(test())


# Queues that consumers share.


def test_a_queue_that_a_client_creates_is_shared_by_its_consumers_unless_it_says_otherwise(
    node: Node, queue: str
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await client.create_queue(queue)
            await client.create_queue(f"{queue}-alone", access_type="exclusive")
            assert not await client.create_queue(f"{queue}-alone", ignore_exists=True)
            async with client.consume(queue) as one, client.consume(queue) as other:
                assert (one.active, other.active, one.access_type) == (True, True, "non-exclusive")
            async with client.consume(f"{queue}-alone") as one:
                assert one.access_type == "exclusive"
            async with client.consume("", temporary=True) as one:
                assert one.access_type == "exclusive"

    run(test())


# Callbacks at once.


def test_callbacks_of_a_flow_run_at_once(node: Node, queue: str) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            await fill(client, queue, 9)
            running: set[bytes] = set()
            most = 0

            async def callback(message: GuaranteedMessage) -> None:
                nonlocal most
                running.add(message.payload)
                most = max(most, len(running))
                await asyncio.sleep(0.05)
                running.remove(message.payload)

            async with client.consume(queue, callback, concurrency=3):
                await is_left(client, queue, 0)
            assert most == 3
            with pytest.raises(angarium.InvalidRequestError, match="async def"):
                client.consume(queue, lambda message: None, concurrency=2)

    run(test())


def test_callbacks_of_a_flow_run_at_once_in_threads(node: Node, queue: str) -> None:
    together = threading.Barrier(3)

    def meet(_message: object) -> None:
        together.wait(LIMIT_S)

    with blocking.connect(node.url) as client:
        client.create_queue(queue)
        with client.consume(queue, meet, concurrency=3) as flow:
            for number in range(6):
                client.publish(queue=queue, payload=b"%d" % number)
            wait_until(lambda: client.show_queue(queue)["messages"] == 0, "three at a time")
            assert flow.stats["callback_errors"] == 0
