"""The clients of `angarium bench guaranteed` and `backlog`: one publishes with acknowledgements, one consumes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import angarium
from cluster.commands.bench.task import Telling

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.client import Client
    from cluster.commands.bench.task import Task

    Say = Callable[[dict[str, Any]], None]

#: Parts of a run whose rates are told apart: a long backlog may make publishing slower.
PARTS: Final = 10
#: The window of the consumer.
FLOW_MESSAGES: Final = 1_000
FLOW_BYTES: Final = 16 << 20


def queue_names(task: Task) -> list[str]:
    """Give the queues of a run."""
    return [f"{task.prefix}/{number}" for number in range(task.queues)]


async def store(task: Task, say: Say) -> dict[str, Any]:
    """Publish messages with a window unacknowledged; gives when each part of them was acknowledged."""
    async with angarium.connect(**task.connect) as client:
        await _make(client, task)
        async with client.producer(window=task.window) as producer:
            payload = bytes(task.size_bytes)
            tell = Telling(task, say)
            say({"ready": True})
            sys.stdin.readline()
            started = time.monotonic()
            ended, refused = [], 0
            for part in range(PARTS):
                count = task.messages // PARTS + (part < task.messages % PARTS)
                report = await producer.publish_many([(f"{task.prefix}/m", payload)] * count)
                refused += len(report.refused)
                ended.append(time.monotonic())
                tell((part + 1) * task.messages // PARTS, ended[-1])
    return {"started": started, "parts_ended": ended, "refused": refused}


async def drain(task: Task, say: Say) -> dict[str, Any]:
    """Take and accept all messages of the first queue."""
    async with angarium.connect(**task.connect) as client:
        await _make(client, task)
        say({"ready": True})
        sys.stdin.readline()
        started, first, received = time.monotonic(), 0.0, 0
        tell = Telling(task, say)
        flow = await client.consume(
            queue_names(task)[0], window=FLOW_MESSAGES, window_bytes=FLOW_BYTES, ack="manual"
        )
        async for batch in flow.batches():
            first = first or time.monotonic()
            received += len(batch)
            flow.accept(batch)
            tell(received, time.monotonic())
            if received >= task.messages:
                break
        await flow.close()
        return {"started": started, "first": first, "ended": time.monotonic(), "received": received}


async def clean(task: Task, say: Say) -> dict[str, Any]:
    """Delete the queues of a run."""
    async with angarium.connect(**task.connect) as client:
        say({"ready": True})
        sys.stdin.readline()
        for name in queue_names(task):
            await client.delete_queue(name)
    return {}


async def _make(client: Client, task: Task) -> None:
    for name in queue_names(task):
        await client.create_queue(name, ignore_exists=True, subscriptions=[f"{task.prefix}/m"])
