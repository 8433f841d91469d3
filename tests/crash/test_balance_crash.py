"""Workers are added while producers and consumers are busy, and one dies while queues go to them: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium_server.testing import Node
from tests.crash.accounts import Account
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R96", "R163", "R168", "R190")]

QUEUES = ("a", "b")
#: Messages in each queue before it is moved, of so many bytes: what is copied is more than one step of it.
BACKLOG, SIZE = 20_000, 200
#: Consumers leave most of that alone until the queues were moved; what is published meanwhile comes behind.
SLOW_S = 0.005
LIMIT_S = 120.0


class Busy:
    """One queue with a producer and a consumer in a loop of their own."""

    def __init__(self, url: str, queue: str) -> None:
        self.account = Account(queue, redelivers=True)
        self.acknowledged: set[int] = set()
        self.attempted = 0
        self.is_ending = self.is_draining = False
        self._url = url
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"busy-{queue}")
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - told at the end
            self.failures.append(error)

    async def _work(self) -> None:
        async with angarium.connect(self._url, timeout_s=LIMIT_S) as client, asyncio.TaskGroup() as group:
            group.create_task(self._publish(client))
            group.create_task(self._consume(client))

    async def _publish(self, client: Any) -> None:
        async with client.producer(f"busy-{self.account.queue}") as producer:
            while not self.is_ending:
                numbers = range(self.attempted, self.attempted + 100)
                self.attempted += 100
                topic = f"in/{self.account.queue}"
                receipts = [await producer.send(topic, b"%d" % n + b" " * SIZE) for n in numbers]
                for number, receipt in zip(numbers, receipts, strict=True):
                    await receipt
                    self.acknowledged.add(number)

    async def _consume(self, client: Any) -> None:
        flow = await client.consume(self.account.queue, window=50, ack="manual")
        while not (self.is_draining and self.acknowledged <= self.account.got.keys()):
            try:
                message = await flow.receive(0.5)
            except TimeoutError:
                continue
            self.account.take(int(message.payload), redelivered=message.redelivered)
            flow.accept(message)
            if not self.is_draining:
                await asyncio.sleep(SLOW_S)
        await flow.close()

    def end(self) -> None:
        """Publish no more, and take what is left."""
        self.is_ending = self.is_draining = True
        self._thread.join(LIMIT_S)
        if self.failures:
            raise self.failures[0]
        assert not self._thread.is_alive(), f"{len(self.acknowledged - self.account.got.keys())} did not come"
        assert self.account.judge(self.attempted, self.acknowledged) == {}


@contextmanager
def busy_queues(node: Node) -> Iterator[list[Busy]]:
    for queue in QUEUES:
        node.run("queue", "create", queue, "--set", "owner=default", "--set", f"subscriptions=in/{queue}")
    busy = [Busy(node.url, queue) for queue in QUEUES]
    try:
        for one in busy:
            wait_until(lambda one=one: one.failures or len(one.acknowledged) >= BACKLOG, "a backlog", LIMIT_S)  # type: ignore[misc]
            assert not one.failures
        yield busy
    finally:
        for one in busy:
            one.is_ending = one.is_draining = True


def moves(node: Node) -> list[dict[str, Any]]:
    found = node.run("worker", "balance", "--show", "--json")
    return [json.loads(line) for line in found.splitlines()]


@pytest.mark.parametrize(
    "victim",
    [
        "source",
        pytest.param("target", marks=pytest.mark.long),
        pytest.param("router", marks=pytest.mark.long),
        pytest.param("controller", marks=pytest.mark.long),
    ],
)
def test_a_queue_that_goes_to_a_new_worker_keeps_every_message(tmp_path: Path, victim: str) -> None:
    with Node(tmp_path / "data", workers=1) as node, busy_queues(node) as busy:
        node.run("worker", "scale", "3")

        def begun() -> list[dict[str, Any]]:
            return [row for row in moves(node) if row["state"] in ("copying", "switching", "taking over")]

        wait_until(begun, "a queue goes to another worker", LIMIT_S)
        indices = {"source": 0, "target": int((begun() or moves(node))[0]["target"])}
        node.kill("worker", indices[victim]) if victim in indices else node.kill(victim)

        def homes() -> set[int]:
            shown = [json.loads(node.run("queue", "show", queue, "--json")) for queue in QUEUES]
            return {lane["home"] for one in shown for lane in one["lanes"]}

        wait_until(lambda: len(homes()) == 2, "the queues are at two workers", LIMIT_S)
        node.run("worker", "balance", "--stop")
        for one in busy:
            one.end()
        assert "Traceback" not in node.output()
