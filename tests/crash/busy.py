"""A queue that is used all the time, with what it was promised and what came of it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tests.crash.accounts import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_S = 120.0
#: Bytes of a message: what is copied of a backlog is more than one step of it.
SIZE = 1_500
#: Consumers leave most of a backlog alone until they are to drain it; what is published meanwhile comes behind.
SLOW_S = 0.005
#: Messages that wait at most, however long a slow machine takes for what is to happen meanwhile.
BACKLOG_MAX = 10_000


class Busy:
    """One queue with a producer and a consumer in a loop of their own."""

    def __init__(self, connect: Callable[[], Any], queue: str, pause_s: float = 0.0) -> None:
        """Begin.

        Args:
            connect: gives a client, as `angarium.connect` does.
            queue: gets what is published to in/QUEUE.
            pause_s: between a hundred messages that were acknowledged and the next ones.
        """
        self.account = Account(queue, redelivers=True)
        self.acknowledged: set[int] = set()
        self.attempted = 0
        self.is_ending = self.is_draining = False
        self._connect = connect
        self._pause_s = pause_s
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"busy-{queue}")
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - told at the end
            self.failures.append(error)

    async def _work(self) -> None:
        async with self._connect() as client, asyncio.TaskGroup() as group:
            group.create_task(self._publish(client))
            group.create_task(self._consume(client))

    async def _publish(self, client: Any) -> None:
        async with client.producer(f"busy-{self.account.queue}") as producer:
            while not self.is_ending:
                if self.attempted - len(self.account.got) > BACKLOG_MAX:
                    await asyncio.sleep(SLOW_S)
                    continue
                numbers = range(self.attempted, self.attempted + 100)
                self.attempted += 100
                topic = f"in/{self.account.queue}"
                receipts = [await producer.send(topic, b"%d" % n + b" " * SIZE) for n in numbers]
                for number, receipt in zip(numbers, receipts, strict=True):
                    await receipt
                    self.acknowledged.add(number)
                await asyncio.sleep(self._pause_s)

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

    def stop(self) -> None:
        """Publish no more, and take what is left as it comes."""
        self.is_ending = self.is_draining = True

    def judge(self) -> None:
        """Wait until all is taken, and compare it with what was promised."""
        self._thread.join(LIMIT_S)
        if self.failures:
            raise self.failures[0]
        assert not self._thread.is_alive(), f"{len(self.acknowledged - self.account.got.keys())} did not come"
        assert self.account.judge(self.attempted, self.acknowledged) == {}


def end(busy: Sequence[Busy]) -> None:
    """Have all of them stop, and judge each."""
    for one in busy:
        one.stop()
    for one in busy:
        one.judge()
