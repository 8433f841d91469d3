"""A benchmark client of NATS with nats-py, as it is documented: a call and a callback per message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats

from benchmarks.clients.task import DirectTask
from cluster.commands.bench.process import (
    PUBLISH,
    Source,
    Tally,
    ready,
    report,
    run_loop,
    wait_for_go,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

#: No limit, so that a slow subscriber shows as time and not as loss.
UNLIMITED = 0


async def run(task: DirectTask) -> None:
    client = await nats.connect(task.url)
    if task.role == PUBLISH:
        await publish(client, task)
    else:
        await subscribe(client, task)
    await client.close()


async def publish(client: Client, task: DirectTask) -> None:
    source = Source(task, ".")
    ready()
    wait_for_go()
    if task.rate:
        await source.publish_in_time_async(client.publish)
    else:
        payload = source.payload
        for topics in source.chunks():
            for topic in topics:
                await client.publish(topic, payload)
    await client.publish(task.end_topic("."), b"")
    await client.flush(timeout=60)
    report(source.figures())


async def subscribe(client: Client, task: DirectTask) -> None:
    ended = asyncio.Event()
    tally = Tally(task, ended.set)
    take = tally.clock if task.rate else tally.count

    async def on_message(message: Msg) -> None:
        take(message.data)

    await client.subscribe(
        f"{task.prefix}.>", cb=on_message, pending_msgs_limit=UNLIMITED, pending_bytes_limit=UNLIMITED
    )
    await client.flush()
    ready()
    await ended.wait()


if __name__ == "__main__":
    its_task = DirectTask.read()
    run_loop(run(its_task), its_task)
