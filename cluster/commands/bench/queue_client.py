"""The clients of queues: one publishes with a named producer's window, one takes batches of a flow and accepts them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import angarium
from cluster.commands.bench.process import SINGLY, STAMP_BYTES, Task, ready, wait_for_go
from cluster.commands.bench.queueing import Drained, Stored, queue_names

if TYPE_CHECKING:
    from angarium import Client, Flow

#: Messages of a batch, unless the task says another number.
CHUNK_MESSAGES: Final = 10_000
#: The window of the consumer.
FLOW_MESSAGES: Final = 1_000
FLOW_BYTES: Final = 16 << 20


async def store(client: Client, task: Task) -> None:
    """Publish messages with a window unacknowledged."""
    await _make_queues(client, task)
    stored = Stored(task)
    topic = f"{task.prefix}/m"
    async with client.producer(window=task.window) as producer:
        ready()
        wait_for_go()
        stored.begin()
        if task.rate:
            await _store_in_time(producer, topic, task, stored)
        else:
            await _store_at_full_speed(producer, topic, task, stored)
        stored.report()


async def _store_at_full_speed(producer: Any, topic: str, task: Task, stored: Stored) -> None:
    left = task.count
    while left:
        count = min(task.batch or CHUNK_MESSAGES, left)
        report = await producer.publish_many(_messages_of(topic, count, task, stored.payload, left))
        stored.end_part(report.acknowledged, len(report.refused))
        left -= count


def _messages_of(topic: str, count: int, task: Task, payload: bytes, left: int) -> list[Any]:
    filler = payload[STAMP_BYTES:]
    if task.distinct:
        return [(topic, (left - at).to_bytes(STAMP_BYTES, "little") + filler) for at in range(count)]
    if not task.delay_ms:
        return [(topic, payload)] * count
    return [
        angarium.Message(
            topic,
            time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + filler,
            mode="persistent",
            delay_ms=task.delay_ms,
        )
        for _ in range(count)
    ]


async def _store_in_time(producer: Any, topic: str, task: Task, stored: Stored) -> None:
    """Publish one message at a time; a loop that sleeps in whole milliseconds is exact enough for that."""
    for number in range(task.count):
        while (left_ns := stored.due_ns(number) - time.monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
        began_ns = time.monotonic_ns()
        await producer.publish(topic, stored.payload)
        stored.latencies_ns.append(time.monotonic_ns() - began_ns)
        stored.confirmed += 1


async def drain(client: Client, task: Task) -> None:
    """Take and accept all messages of the first queue."""
    await _make_queues(client, task)
    drained = Drained(task)
    ready()
    wait_for_go()
    drained.begin()
    flow = await client.consume(
        queue_names(task)[0], window=FLOW_MESSAGES, window_bytes=FLOW_BYTES, ack="manual"
    )
    await (_take_messages if task.api == SINGLY else _take_batches)(flow, drained)
    await flow.close()
    drained.report()


async def _take_batches(flow: Flow, drained: Drained) -> None:
    async for batch in flow.batches():
        done = drained.take([message.payload for message in batch])
        flow.accept(batch)
        if done:
            break


async def _take_messages(flow: Flow, drained: Drained) -> None:
    async for message in flow:
        done = drained.take([message.payload])
        message.accept()
        if done:
            break


async def _make_queues(client: Client, task: Task) -> None:
    for name in queue_names(task):
        await client.create_queue(name, ignore_exists=True, subscriptions=[f"{task.prefix}/>"])
