"""Producers and consumers that go on while processes die, workers come and go, and operators change their queues.

What was acknowledged comes, in the order of its producer, and what comes twice says so.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import errors
from tests.integration.attacked_spool import LoneSpool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# What tests/crash shows in short.
pytestmark = [pytest.mark.slow, pytest.mark.long]

#: Longer than a node needs to come back, also on a machine that others use.
LIMIT_S = 30.0
#: Of each queue, before and after the disturbance: enough that it has something to disturb.
SOME = 60
#: Between so many messages and the next ones.
PAUSE_S = 0.05


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path) as lone:
        yield lone


def end_in_order(lone: LoneSpool) -> None:
    lone.node.stop()


def end_by_force(lone: LoneSpool) -> None:
    lone.kill_everything()


class Load:
    """Producers and consumers that go on meanwhile, and what must be true of them in the end."""

    def __init__(
        self, client: angarium.Client, consumer: angarium.Client, queues: list[str], consumers: int
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._queues = queues
        self._consumers = consumers
        #: Queue -> numbers that were acknowledged.
        self.acknowledged: dict[str, list[int]] = {queue: [] for queue in queues}
        #: Queue -> (number, redelivered) as they came.
        self.received: dict[str, list[tuple[int, bool]]] = {queue: [] for queue in queues}
        #: Codes of messages that were refused.
        self.refused: dict[int, int] = {}
        self._stopping = asyncio.Event()

    async def run(self, disturb: Callable[[], Any]) -> None:
        """Publish and consume while something happens in a thread, and wait until everything has come."""
        consuming = [
            asyncio.create_task(self._consume(queue))
            for queue in self._queues
            for _ in range(self._consumers)
        ]
        publishing = asyncio.create_task(self._publish())
        await self._some_more()
        await asyncio.to_thread(disturb)
        await self._some_more()
        self._stopping.set()
        await publishing
        deadline = time.monotonic() + LIMIT_S
        while any(self.missing(queue) for queue in self._queues):
            assert time.monotonic() < deadline, {
                queue: sorted(self.missing(queue))[:9] for queue in self._queues
            }
            await asyncio.sleep(0.05)
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)

    async def _some_more(self) -> None:
        """Wait until each queue has got and given some more."""
        wanted = {queue: len(self.acknowledged[queue]) + SOME for queue in self._queues}
        deadline = time.monotonic() + LIMIT_S
        while any(min(self._counts(queue)) < count for queue, count in wanted.items()):
            assert time.monotonic() < deadline, {queue: self._counts(queue) for queue in self._queues}
            await asyncio.sleep(0.02)

    def _counts(self, queue: str) -> tuple[int, int]:
        return len(self.acknowledged[queue]), len(self.received[queue])

    def missing(self, queue: str) -> set[int]:
        """Give what was acknowledged and has not come."""
        return set(self.acknowledged[queue]) - {number for number, _ in self.received[queue]}

    def check(self, *, in_order: bool) -> None:
        """Fail if something came twice without a mark, out of order, or was never acknowledged."""
        for queue in self._queues:
            seen: dict[int, None] = {}
            for number, redelivered in self.received[queue]:
                assert redelivered or number not in seen, (queue, number)
                seen[number] = None
            assert not in_order or list(seen) == sorted(seen), queue
            assert set(self.acknowledged[queue]) == set(seen), queue
            assert len(seen) > 100

    async def _consume(self, queue: str) -> None:
        while not self._stopping.is_set() or self.missing(queue):
            try:
                async with self._consumer.consume(queue, window=50) as flow:
                    async for message in flow:
                        self.received[queue].append((int(message.payload), message.redelivered))
            except angarium.UnavailableError:  # shut down, or too many consumers
                await asyncio.sleep(0.05)

    async def _publish(self) -> None:
        async with self._client.producer("load") as producer:
            number = 0
            while not self._stopping.is_set():
                numbers = range(number, number + SOME)
                number += SOME
                report = await producer.publish_many([self._message(n) for n in numbers])
                refused = {at: error.code for at, error in report.refused}
                for at, n in enumerate(numbers):
                    if at in refused:
                        self.refused[refused[at]] = self.refused.get(refused[at], 0) + 1
                    else:
                        self.acknowledged[self._queues[n % len(self._queues)]].append(n)
                await asyncio.sleep(PAUSE_S)

    def _message(self, number: int) -> angarium.Message:
        queue = self._queues[number % len(self._queues)]
        key = f"key-{number % 23}"
        return angarium.Message(f"#P2P/QUE/{queue}", b"%d" % number, mode="persistent", partition_key=key)


def under_load(
    lone: LoneSpool, queues: list[str], disturb: Callable[[], Any], *, consumers: int = 1
) -> dict[int, int]:
    """Run a load on queues, disturb the node meanwhile, check that nobody lost anything; gives codes of refusals."""

    async def test() -> dict[int, int]:
        async with angarium.connect(lone.node.url) as one, angarium.connect(lone.node.url) as other:
            load = Load(one, other, queues, consumers)
            await load.run(disturb)
            load.check(in_order=consumers == 1)
            return load.refused

    return asyncio.run(asyncio.wait_for(test(), LIMIT_S * 3))


def four_queues(lone: LoneSpool) -> list[str]:
    return [lone.queue(f"load/{number}") for number in range(4)]


@pytest.mark.parametrize("end", [end_in_order, end_by_force], ids=["in-order", "by-force"])
def test_a_node_that_ends_under_load_loses_nothing(lone: LoneSpool, end: Callable[[LoneSpool], None]) -> None:
    def disturb() -> None:
        end(lone)
        lone.node.start()

    assert under_load(lone, four_queues(lone), disturb) == {}


@pytest.mark.parametrize("role", ["worker", "router", "controller"])
def test_a_process_that_dies_under_load_loses_nothing(lone: LoneSpool, role: str) -> None:
    def disturb() -> None:
        lone.node.kill(role)

    assert under_load(lone, four_queues(lone), disturb) == {}


def test_workers_come_and_go_under_load_and_take_the_queues_with_them(lone: LoneSpool) -> None:
    homes = []

    def disturb() -> None:
        for count in (4, 2, 1, 2):
            lone.scale(count)
            homes.append([lone.endpoint(f"load/{number}")["homes"][0] for number in range(4)])

    assert under_load(lone, four_queues(lone), disturb) == {}
    assert all(home < 1 for home in homes[2]), "one worker has all of them"
    lone.node.wait_for("two workers", lambda status: status["workers"] == 2)


def test_a_queue_whose_partitions_change_under_load_loses_nothing(lone: LoneSpool) -> None:
    queue = lone.queue(
        access_type="non-exclusive",
        partition_count=2,
        partition_rebalance_delay_s=0,
        partition_rebalance_max_handoff_s=1,
    )

    def disturb() -> None:
        for count in (5, 2, 0, 3, 1, 4, 0, 2):
            lone.update("queue", queue, partition_count=count)
            time.sleep(0.25)

    assert under_load(lone, [queue], disturb, consumers=3) == {}


def test_a_queue_that_is_changed_in_every_way_under_load_loses_nothing(lone: LoneSpool) -> None:
    queue = lone.queue(access_type="non-exclusive")
    changes: list[dict[str, Any]] = [
        {"egress_enabled": False},
        {"max_delivered_unacked_per_flow": 3},
        {"egress_enabled": True},
        {"access_type": "exclusive"},
        {"ingress_enabled": False},
        {"durability": "relaxed"},
        {"ingress_enabled": True},
        {"respect_priority": True, "max_bind_count": 1},
        {"access_type": "non-exclusive"},
        {"max_bind_count": 100, "respect_priority": False},
        {"durability": "synced", "max_delivered_unacked_per_flow": 10_000},
    ]

    def disturb() -> None:
        for change in changes:
            lone.update("queue", queue, **change)
            time.sleep(0.15)

    assert under_load(lone, [queue], disturb, consumers=3).keys() <= {errors.ENDPOINT_SHUTDOWN}
