"""A benchmark client of queues of this broker with its SDK: a named producer's window, and batches of a flow."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import angarium
from benchmarks.clients.process import (
    SINGLY,
    STAMP_BYTES,
    STORE,
    Task,
    read_task,
    ready,
    run_loop,
    wait_for_go,
)
from benchmarks.clients.queueing import Drained, Stored, queue_names

if TYPE_CHECKING:
    from angarium import Client, Flow

#: Messages between two looks at the clock.
CHUNK = 10_000
FLOW_WINDOW = 1_000
FLOW_BYTES = 16 << 20


async def run(task: Task) -> None:
    async with angarium.connect(task.url) as client:
        for name in queue_names(task):
            await client.create_queue(name, ignore_exists=True, subscriptions=[f"{task.prefix}/>"])
        await (store if task.role == STORE else drain)(client, task)


async def store(client: Client, task: Task) -> None:
    stored = Stored(task)
    topic = f"{task.prefix}/m"
    async with client.producer(window=task.window) as producer:
        ready()
        wait_for_go()
        stored.begin()
        if task.rate:
            await store_in_time(producer, topic, task, stored)
        else:
            await store_at_full_speed(producer, topic, task, stored)
        stored.report()


async def store_at_full_speed(producer: Any, topic: str, task: Task, stored: Stored) -> None:
    left = task.count
    while left:
        count = min(CHUNK, left)
        report = await producer.publish_many(messages_of(topic, count, task, stored.payload, left))
        stored.confirmed += report.acknowledged
        stored.refused += len(report.refused)
        left -= count


def messages_of(topic: str, count: int, task: Task, payload: bytes, left: int) -> list[Any]:
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


async def store_in_time(producer: Any, topic: str, task: Task, stored: Stored) -> None:
    """Publish one message at a time; a loop that sleeps in whole milliseconds is exact enough for that."""
    for number in range(task.count):
        while (left_ns := stored.due_ns(number) - time.monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
        began_ns = time.monotonic_ns()
        await producer.publish(topic, stored.payload)
        stored.latencies_ns.append(time.monotonic_ns() - began_ns)
        stored.confirmed += 1


async def drain(client: Client, task: Task) -> None:
    drained = Drained(task)
    ready()
    wait_for_go()
    drained.begin()
    flow = await client.consume(
        queue_names(task)[0], window=FLOW_WINDOW, window_bytes=FLOW_BYTES, ack="manual"
    )
    await (take_messages if task.api == SINGLY else take_batches)(flow, drained)
    await flow.close()
    drained.report()


async def take_batches(flow: Flow, drained: Drained) -> None:
    async for batch in flow.batches():
        done = drained.take([message.payload for message in batch])
        flow.accept(batch)
        if done:
            break


async def take_messages(flow: Flow, drained: Drained) -> None:
    async for message in flow:
        done = drained.take([message.payload])
        message.accept()
        if done:
            break


if __name__ == "__main__":
    its_task = read_task()
    run_loop(run(its_task), its_task)
