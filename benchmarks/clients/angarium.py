"""A benchmark client of this broker with its SDK: `angarium bench` with tables, bursts and churn.

A subscriber without bounds lets the node send as much as it likes, as the peers are set up; one with bounds has the
default window.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import angarium
from benchmarks.clients.task import CHURN, DirectTask, table_filters
from cluster.commands.bench.client import (
    FLUSH_TIMEOUT_S,
    SUBSCRIBE_TIMEOUT_S,
    publish_all,
    publish_end,
    take_all,
)
from cluster.commands.bench.process import PUBLISH, Source, ready, report, run_loop, wait_for_go

if TYPE_CHECKING:
    from angarium import Client

#: More than any run publishes.
NO_LIMIT: Final = 1 << 40
#: Longer than any run, so that a frozen client stays a client.
FROZEN_KEEPALIVE_MS: Final = 60_000
#: A work unit, in which the depth of an egress queue is counted.
BURST_BYTES: Final = 2_048
#: Ticks per second of a client that changes its subscriptions.
CHURN_TICKS_PER_S: Final = 100
#: Before the end of a run with a bounded subscriber, so that the end finds room and is not lost itself.
SETTLE_S: Final = 1.0


async def run(task: DirectTask) -> None:
    options: dict[str, Any] = {}
    if task.unbounded:
        options = {"window_messages": NO_LIMIT, "window_bytes": NO_LIMIT}
    if task.frozen:
        options["keepalive_ms"] = FROZEN_KEEPALIVE_MS
    roles = {PUBLISH: publish, CHURN: churn}
    async with angarium.connect(task.url, **options) as client:
        await roles.get(task.role, subscribe)(client, task)


async def publish(client: Client, task: DirectTask) -> None:
    source = Source(task)
    ready()
    wait_for_go()
    if task.burst:
        await client.publish_many([(task.burst_topic, bytes(BURST_BYTES))] * task.burst)
        await client.flush(FLUSH_TIMEOUT_S)
    rounds_before = client.stats["published_rounds"]
    await publish_all(client, task, source)
    rounds = client.stats["published_rounds"] - rounds_before
    if not task.unbounded:
        await asyncio.sleep(SETTLE_S)
    await publish_end(client, task)
    report(source.figures(rounds=rounds))


async def subscribe(client: Client, task: DirectTask) -> None:
    await take_all(client, task, filters_of(task))


def filters_of(task: DirectTask) -> list[str]:
    if task.table:
        return [*table_filters(task.table)[task.holder :: task.holders], task.end_topic()]
    return [f"{task.prefix}/>", *([task.burst_topic] if task.frozen else [])]


async def churn(client: Client, task: DirectTask) -> None:
    """Add as many subscriptions per tick as are taken away; half of them have a wildcard, none matches.

    A tick does not wait for the one before: a node under load answers later than the next tick is due.
    """
    per_tick = max(1, round(task.rate / CHURN_TICKS_PER_S / 2))
    ready()
    wait_for_go()
    started = time.monotonic()
    ticks = round(task.seconds * CHURN_TICKS_PER_S)
    settle_ns: list[int] = []
    async with asyncio.TaskGroup() as group:
        for tick in range(ticks):
            await asyncio.sleep(max(0.0, started + tick / CHURN_TICKS_PER_S - time.monotonic()))
            numbers = range(tick * per_tick, (tick + 1) * per_tick)
            filters = [f"a/{number}/x" if number % 2 else f"a/*/x{number}" for number in numbers]
            group.create_task(change(client, filters, settle_ns))
    changes = 2 * per_tick * ticks
    report({"changes": changes, "seconds": time.monotonic() - started, "latencies_ns": settle_ns})


async def change(client: Client, filters: list[str], settle_ns: list[int]) -> None:
    """Subscribe and unsubscribe again, and note how long it took to take effect."""
    asked_ns = time.monotonic_ns()
    subscription = await client.subscribe(filters, timeout_s=SUBSCRIBE_TIMEOUT_S)
    settle_ns.append(time.monotonic_ns() - asked_ns)
    await subscription.close()


if __name__ == "__main__":
    its_task = DirectTask.read()
    run_loop(run(its_task), its_task)
