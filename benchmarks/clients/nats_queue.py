"""A benchmark client of NATS JetStream with nats-py: a file stream, a durable pull consumer, explicit acks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from cluster.commands.bench.process import STORE, Task, ready, run_loop, wait_for_go
from cluster.commands.bench.queueing import Drained, Stored

if TYPE_CHECKING:
    from nats.js import JetStreamContext

FETCH = 1_000
CONSUMER = "bench"


async def run(task: Task) -> None:
    client = await nats.connect(task.url)
    stream = client.jetstream(publish_async_max_pending=task.window)
    await stream.add_stream(StreamConfig(name=task.prefix, subjects=[f"{task.prefix}.>"]))
    await (store if task.role == STORE else drain)(stream, task)
    await client.close()


async def store(stream: JetStreamContext, task: Task) -> None:
    stored = Stored(task)
    room = asyncio.Semaphore(task.window)
    subject = f"{task.prefix}.m"
    ready()
    wait_for_go()
    stored.begin()

    def confirmed(future: asyncio.Future[Any]) -> None:
        room.release()
        if future.exception() is None:
            stored.confirmed += 1
        else:
            stored.refused += 1

    for _ in range(task.count):
        await room.acquire()
        future = await stream.publish_async(subject, stored.payload)
        future.add_done_callback(confirmed)
    for _ in range(task.window):
        await room.acquire()
    stored.report()


async def drain(stream: JetStreamContext, task: Task) -> None:
    drained = Drained(task)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10 * FETCH)
    subscription = await stream.pull_subscribe(f"{task.prefix}.>", CONSUMER, task.prefix, config)
    ready()
    wait_for_go()
    drained.begin()
    done = False
    while not done:
        messages = await subscription.fetch(FETCH, timeout=30)
        done = drained.take([message.data for message in messages])
        for message in messages:
            await message.ack()
    drained.report()


if __name__ == "__main__":
    its_task = Task.read()
    run_loop(run(its_task), its_task)
