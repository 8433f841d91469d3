"""A partition that moves to another consumer waits for what an application works on, and not for what waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import angarium
from angarium import blocking, errors
from angarium_server.testing import Node
from tests.waiting import until, wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from angarium import GuaranteedMessage

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R101", "R192")]

LIMIT_S = 20.0
#: Longer than any test waits.
HAND_OFF_S = 600
MESSAGES = 200
KEYS = 10
_names = itertools.count(1)


class Seen(NamedTuple):
    """What an application got."""

    key: str
    number: int
    delivery_count: int


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("handoff") / "data", workers=2) as node:
        yield node


@pytest.fixture
def queue(node: Node) -> str:
    """A queue of two partitions, with messages of several keys."""
    name = f"handoff-{next(_names)}"
    with blocking.connect(node.url) as client:
        attributes: dict[str, Any] = {
            "partition_count": 2,
            "partition_rebalance_delay_s": 0,
            "partition_rebalance_max_handoff_s": HAND_OFF_S,
        }
        client.create_queue(name, **attributes)
        with client.producer() as producer:
            for number in range(MESSAGES):
                producer.send(queue=name, payload=b"%d" % number, partition_key=str(number % KEYS))
            producer.flush()
    return name


def seen_of(message: GuaranteedMessage) -> Seen:
    return Seen(message.partition_key or "", int(message.payload), message.delivery_count)


def check(moved: list[Seen], stayed: list[Seen]) -> None:
    """What the partition that moved brought, to both consumers one after the other, and what came of the other one."""
    assert sorted(one.number for one in moved + stayed) == list(range(MESSAGES))
    assert {one.delivery_count for one in moved + stayed} == {1}
    for key in map(str, range(KEYS)):
        for some in (moved, stayed):
            numbers = [one.number for one in some if one.key == key]
            assert numbers == sorted(numbers), key


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 3))


@pytest.mark.parametrize("window", [255, 20])
def test_it_ends_when_the_message_in_hand_is_settled(node: Node, queue: str, window: int) -> None:
    moved: list[Seen] = []
    stayed: list[Seen] = []

    async def test() -> None:
        async with (
            angarium.connect(node.url) as one,
            angarium.connect(node.url) as other,
            one.consume(queue, window=window, ack="manual") as first,
        ):
            while (in_hand := await first.receive(LIMIT_S)).partition == 0:
                stayed.append(seen_of(in_hand))
                in_hand.accept()
            moved.append(seen_of(in_hand))
            left = MESSAGES - len(stayed) - 1
            await until(lambda: first.buffered >= min(window // 2, left), "a full prefetch")
            async with other.consume(queue) as second:
                with pytest.raises(errors.TimeoutExpiredError):
                    await second.receive(0.3)
                assert list(first.partitions) == [0, 1]
                in_hand.accept()
                began = time.monotonic()
                moved.append(seen_of(await second.receive(LIMIT_S)))
                assert time.monotonic() - began < LIMIT_S
                assert [first.partitions, second.partitions] == [(0,), (1,)]

                async def drain() -> None:
                    async for message in first:
                        stayed.append(seen_of(message))
                        message.accept()

                draining = asyncio.create_task(drain())
                while len(moved) + len(stayed) < MESSAGES:
                    with contextlib.suppress(errors.TimeoutExpiredError):
                        moved.append(seen_of(await second.receive(0.1)))
                draining.cancel()
                assert first.stats["dropped_messages"] == 0
                assert window < MESSAGES or first.stats["released_messages"] > 10

    run(test())
    check(moved, stayed)


def test_it_ends_when_the_callback_that_runs_returns(node: Node, queue: str) -> None:
    moved: list[Seen] = []
    stayed: list[Seen] = []
    is_in_hand, go_on = threading.Event(), threading.Event()

    def slow(message: GuaranteedMessage) -> None:
        if message.partition == 1 and not go_on.is_set():
            is_in_hand.set()
            assert go_on.wait(LIMIT_S)
        (moved if message.partition else stayed).append(seen_of(message))

    with (
        blocking.connect(node.url) as one,
        blocking.connect(node.url) as other,
        one.consume(queue, slow) as first,
    ):
        assert is_in_hand.wait(LIMIT_S)
        wait_until(lambda: len(stayed) + 1 + first.buffered == MESSAGES, "a full prefetch")
        with other.consume(queue, lambda message: moved.append(seen_of(message))) as second:
            wait_until(lambda: first.stats["released_messages"] > 0, "what was not seen is given back")
            assert [first.partitions, second.partitions] == [(0, 1), ()]
            go_on.set()
            wait_until(lambda: len(moved) + len(stayed) == MESSAGES, "all were got")
            assert [first.partitions, second.partitions] == [(0,), (1,)]
            assert first.stats["dropped_messages"] == 0
    check(moved, stayed)
