"""One client of this broker, alone in its process: publishes or counts what it gets, direct or by queues.

Started by `client_process` as `python -m cluster.commands.bench.client`; what it reads and prints says `process`.
SINGLY is a call and a callback per message, BATCHED is `publish_many` and `Subscription.batches`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import angarium
from angarium import errors
from cluster.commands.bench.process import (
    BATCHED,
    DRAIN,
    PUBLISH,
    STORE,
    SUBSCRIBE,
    Source,
    Tally,
    Task,
    ready,
    report,
    report_error,
    run_loop,
    wait_for_go,
)
from cluster.commands.bench.queue_client import drain, store

if TYPE_CHECKING:
    from angarium import Client, Message, Subscription

FLUSH_TIMEOUT_S: Final = 60.0
SUBSCRIBE_TIMEOUT_S: Final = 120.0


def main() -> None:
    """Do the task on standard input."""
    task = Task.read()
    try:
        run_loop(_run(task), task)
    except errors.AngariumError as error:
        report_error(error.code, error.detail)


async def _run(task: Task) -> None:
    roles = {PUBLISH: _publish, SUBSCRIBE: _subscribe, STORE: store, DRAIN: drain}
    async with angarium.connect(task.url, **task.options) as client:
        await roles[task.role](client, task)


async def _publish(client: Client, task: Task) -> None:
    source = Source(task)
    ready()
    wait_for_go()
    await publish_all(client, task, source)
    figures = source.figures()
    await publish_end(client, task)
    report(figures)


async def publish_all(client: Client, task: Task, source: Source) -> None:
    """Publish all messages of a run, and wait until the node has them."""
    payload = source.payload
    if task.rate:
        await source.publish_in_time_async(client.publish)
    elif task.api == BATCHED:
        for topics in source.chunks():
            await client.publish_many([(topic, payload) for topic in topics])
    else:
        for topics in source.chunks():
            for topic in topics:
                await client.publish(topic, payload)
    await client.flush(FLUSH_TIMEOUT_S)


async def publish_end(client: Client, task: Task) -> None:
    """Tell all subscribers of a run that this publisher is done."""
    await client.publish(task.end_topic(), b"")
    await client.flush(FLUSH_TIMEOUT_S)


async def _subscribe(client: Client, task: Task) -> None:
    await take_all(client, task, [f"{task.prefix}/>"])


async def take_all(client: Client, task: Task, filters: list[str]) -> None:
    """Subscribe, and count until the last run is over."""
    ended = asyncio.Event()
    tally = Tally(task, ended.set)
    take = tally.clock if task.rate else tally.count

    def on_message(message: Message) -> None:
        take(message.payload)

    callback = None if task.api == BATCHED else on_message
    subscription = await client.subscribe(filters, callback, on_full="stall", timeout_s=SUBSCRIBE_TIMEOUT_S)
    ready()
    if callback is None:
        await _take_batches(subscription, task, tally, ended)
    await ended.wait()


async def _take_batches(subscription: Subscription, task: Task, tally: Tally, ended: asyncio.Event) -> None:
    async for batch in subscription.batches():
        if task.rate:
            for payload in batch.payloads:
                tally.clock(payload)
        else:
            tally.count_many(batch.payloads)
        if ended.is_set():
            return


if __name__ == "__main__":
    main()
