"""One client of `angarium bench`, alone in its process: counts what it gets, or publishes.

Started by `bench` as `python -m cluster.commands.bench.client`. The first line on standard input is its task
as JSON (it may hold a password, so it is no argument); it answers with a line when it is ready, a publisher
waits for one more line to start, and the last line it prints is what it measured. Times are
`time.monotonic()`, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

import angarium
from angarium import errors
from cluster.commands.bench import queue_client as bench_queue_client
from cluster.commands.bench.task import STAMP_BYTES, Task, Telling
from cluster.commands.messages.receiving import receive
from cluster.commands.messages.source import Pace

if TYPE_CHECKING:
    from angarium.client.client import Client
    from angarium.message import MessageBatch

#: Longer than a loaded machine pauses, short enough that a lost end does not look like a hang.
IDLE_TIMEOUT_S: Final = 10.0


def main() -> None:
    """Do the task on standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    try:
        _say(asyncio.run(_run(task)))
    except errors.AngariumError as error:
        _say({"error": [error.code, error.detail]})


async def _run(task: Task) -> dict[str, Any]:
    match task.role:
        case "subscribe":
            return await _subscribe(task)
        case "store":
            return await bench_queue_client.store(task, _say)
        case "drain":
            return await bench_queue_client.drain(task, _say)
        case "clean":
            return await bench_queue_client.clean(task, _say)
    return await _publish(task)


def _say(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


async def _nothing() -> None:
    """There is nothing to do while no message is there."""


async def _subscribe(task: Task) -> dict[str, Any]:
    async with await angarium.connect(**task.connect) as client:
        subscription = await client.subscribe(f"{task.prefix}/>", on_full="stall")
        _say({"ready": True})
        tally = Tally(task)
        async for batch in receive(
            subscription.batches(), count=None, idle_timeout_s=IDLE_TIMEOUT_S, on_idle=_nothing
        ):
            if tally.add(batch, time.monotonic()):
                break
        return tally.figures()


class Tally:
    """What a subscriber has seen so far."""

    def __init__(self, task: Task) -> None:
        self._end = f"{task.prefix}/end"
        self._timed = task.rate is not None
        #: Ends that did not come yet; the run is over at 0.
        self._ends_left = task.publishers
        #: Messages besides the ends.
        self._received = 0
        self._first: float | None = None
        self._last = 0.0
        #: Nanoseconds from publish to here, one per message of a latency run.
        self._latencies_ns: list[int] = []

    def add(self, batch: MessageBatch, now: float) -> bool:
        """Count a batch, and tell whether it was the last."""
        if self._first is None:
            self._first = now
        self._last = now
        self._received += len(batch)
        topics = batch.topics
        if topics[-1] == self._end or self._end in topics:
            ends = topics.count(self._end)
            self._received -= ends
            self._ends_left -= ends
        if self._timed:
            arrived = time.monotonic_ns()
            self._latencies_ns.extend(
                arrived - int.from_bytes(payload[:STAMP_BYTES], "big")
                for topic, payload in zip(topics, batch.payloads, strict=True)
                if topic != self._end
            )
        return self._ends_left <= 0

    def figures(self) -> dict[str, Any]:
        """Give what was counted."""
        return {
            "received": self._received,
            "first": self._first,
            "last": self._last,
            "ended": self._ends_left <= 0,
            "latencies_ns": sorted(self._latencies_ns),
        }


async def _publish(task: Task) -> dict[str, Any]:
    async with await angarium.connect(**task.connect) as client:
        topics = [f"{task.prefix}/{number}" for number in range(task.topics)]
        _say({"ready": True})
        sys.stdin.readline()
        started = time.monotonic()
        if task.rate is None:
            await _flood(client, task, topics)
        else:
            await _in_time(client, task, topics, Pace(task.rate, started))
        await client.flush()
        ended = time.monotonic()
        await client.publish(f"{task.prefix}/end")
        await client.flush()
        return {"published": task.messages, "started": started, "ended": ended}


async def _flood(client: Client, task: Task, topics: list[str]) -> None:
    """Publish in batches as fast as the node takes them."""
    payload = bytes(task.size_bytes)
    rows = [(topics[number % len(topics)], payload) for number in range(task.batch)]
    tell = Telling(task, _say)
    for number in range(task.messages // task.batch):
        await client.publish_many(rows)
        tell(number * task.batch, time.monotonic())
    await client.publish_many(rows[: task.messages % task.batch])


async def _in_time(client: Client, task: Task, topics: list[str], pace: Pace) -> None:
    """Publish each message on its own when it is due; one that is late leaves at once."""
    filler = bytes(task.size_bytes - STAMP_BYTES)
    tell = Telling(task, _say)
    for number in range(task.messages):
        while not pace.due(time.monotonic(), number):
            await asyncio.sleep(pace.until_due_s(time.monotonic(), number))
        tell(number, time.monotonic())
        stamp = time.monotonic_ns().to_bytes(STAMP_BYTES, "big")
        await client.publish(topics[number % len(topics)], stamp + filler)


if __name__ == "__main__":
    main()
