"""`angarium bench guaranteed` and `backlog`: what the queues of this node do on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

import click

from cluster.commands.bench.bench import bench, bench_size, start, task_of, watch
from cluster.commands.bench.process import DRAIN, STORE
from cluster.commands.bench.queueing import queue_names
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.terminal.hints import quiet_option
from cluster.commands.terminal.options import options, setting
from cluster.commands.terminal.output import Output, output_option, print_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

#: Parts of a run whose rates are told apart: a long backlog may make publishing slower.
PARTS: Final = 10


def _run(messages: int) -> Callable[..., Any]:
    """Add the options of a measurement with so many messages."""
    return options(
        setting("--messages", "count", type=click.IntRange(min=PARTS), default=messages, help="Messages."),
        bench_size,
        setting(
            "--window", type=click.IntRange(1, 255), default=255, help="Messages that may be unacknowledged."
        ),
    )


@bench.command("guaranteed")
@_run(50_000)
@setting("--queues", type=click.IntRange(1, 100), default=1, help="Queues that get each message.")
@quiet_option
@output_option
@client_options
def guaranteed(*, connect: ConnectOptions, quiet: bool, out: Output, **task: int) -> None:
    """Publish to queues of its own with acknowledgements, then consume, then do both at once."""
    run = QueueRun(connect, quiet=quiet, **task)
    try:
        stored = run.store()
        drained = run.drain()
        together = run.together()
    finally:
        run.clean()
    messages = task["count"]
    figures = {
        "bench": "guaranteed",
        "messages": messages,
        "size_bytes": task["payload_bytes"],
        "window": task["window"],
        "queues": task["queues"],
        "refused": stored["refused"],
        "published_per_s": round(messages / seconds_of(stored)),
        "consumed_per_s": round(messages / seconds_of(drained)),
        "together_per_s": round(messages / together),
    }
    out.one(figures, print_metrics)


@bench.command("backlog")
@_run(1_000_000)
@quiet_option
@output_option
@client_options
def backlog(*, connect: ConnectOptions, quiet: bool, out: Output, **task: int) -> None:
    """Fill a queue of its own, compare the publish rate at the end with that at the start, and empty it."""
    run = QueueRun(connect, quiet=quiet, **task)
    try:
        stored = run.store()
        drained = run.drain()
    finally:
        run.clean()
    rates = part_rates(stored)
    figures = {
        "bench": "backlog",
        "messages": task["count"],
        "size_bytes": task["payload_bytes"],
        "refused": stored["refused"],
        "published_per_s_at_first": round(rates[0]),
        "published_per_s_at_last": round(rates[-1]),
        "last_to_first": round(rates[-1] / rates[0], 3),
        "first_delivery_ms": round((drained["first_delivery_ns"] - drained["first_ns"]) / 1e6, 3),
        "consumed_per_s": round(task["count"] / seconds_of(drained)),
    }
    out.one(figures, print_metrics)


def seconds_of(figures: dict[str, Any]) -> float:
    """Give how long a client took."""
    return float(figures["last_ns"] - figures["first_ns"]) / 1e9


def part_rates(stored: dict[str, Any]) -> list[float]:
    """Give the messages per second of each part that a client published."""
    rates, began_ns = [], stored["first_ns"]
    for messages, ended_ns in stored["parts"]:
        rates.append(messages / (ended_ns - began_ns) * 1e9)
        began_ns = ended_ns
    return rates


class QueueRun:
    """One measurement with queues of its own, which are deleted at its end."""

    def __init__(self, connect: ConnectOptions, *, count: int, **fields: Any) -> None:
        self._connect = connect
        self._task = task_of(connect, count=count, batch=math.ceil(count / PARTS), **fields)

    def store(self) -> dict[str, Any]:
        """Publish everything; gives when it began and when each part was acknowledged."""
        return self._do("publishing", STORE)[0]

    def drain(self) -> dict[str, Any]:
        """Consume everything; gives when it began, when the first came and when it ended."""
        return self._do("consuming", DRAIN)[0]

    def together(self) -> float:
        """Publish and consume everything at once; gives the seconds from the first to the last."""
        stored, drained = self._do("publishing and consuming", STORE, DRAIN)
        return float(drained["last_ns"] - stored["first_ns"]) / 1e9

    def clean(self) -> None:
        """Delete the queues."""
        asyncio.run(self._delete())

    async def _delete(self) -> None:
        async with await self._connect.connect() as client:
            for name in queue_names(self._task):
                await client.delete_queue(name)

    def _do(self, doing: str, *roles: str) -> list[dict[str, Any]]:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(start(self._task, role)) for role in roles]
            for client in clients:
                client.wait_ready()
            for client in clients:
                client.go()
            with watch(clients, doing, self._task.count * len(clients)):
                return [client.result() for client in clients]
