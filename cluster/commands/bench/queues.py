"""`angarium bench guaranteed` and `backlog`: what the queues of this node do on this machine."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from cluster.commands.bench.bench import BenchClient, bench, bench_size, is_watched, watch
from cluster.commands.bench.queue_client import PARTS
from cluster.commands.bench.task import Task
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.terminal.hints import quiet_option
from cluster.commands.terminal.output import Output, output_option, print_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

_window = click.option(
    "--window",
    type=click.IntRange(1, 255),
    default=255,
    show_default=True,
    help="Messages that may be unacknowledged.",
)


def _messages(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--messages", type=click.IntRange(min=PARTS), default=default, show_default=True, help="Messages."
    )


@bench.command("guaranteed")
@_messages(50_000)
@bench_size
@_window
@click.option(
    "--queues",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Queues that get each message.",
)
@quiet_option
@output_option
@client_options
def guaranteed(
    *, connect: ConnectOptions, messages: int, size: int, window: int, queues: int, quiet: bool, out: Output
) -> None:
    """Publish to queues of its own with acknowledgements, then consume, then do both at once."""
    run = QueueRun(connect, messages=messages, size_bytes=size, window=window, queues=queues, quiet=quiet)
    try:
        stored = run.store()
        drained = run.drain()
        together = run.together()
    finally:
        run.clean()
    figures = {
        "bench": "guaranteed",
        "messages": messages,
        "size_bytes": size,
        "window": window,
        "queues": queues,
        "refused": stored["refused"],
        "published_per_s": round(messages / (stored["parts_ended"][-1] - stored["started"])),
        "consumed_per_s": round(messages / (drained["ended"] - drained["started"])),
        "together_per_s": round(messages / together),
    }
    out.one(figures, print_metrics)


@bench.command("backlog")
@_messages(1_000_000)
@bench_size
@_window
@quiet_option
@output_option
@client_options
def backlog(
    *, connect: ConnectOptions, messages: int, size: int, window: int, quiet: bool, out: Output
) -> None:
    """Fill a queue of its own, compare the publish rate at the end with that at the start, and empty it."""
    run = QueueRun(connect, messages=messages, size_bytes=size, window=window, queues=1, quiet=quiet)
    try:
        stored = run.store()
        drained = run.drain()
    finally:
        run.clean()
    times = [stored["started"], *stored["parts_ended"]]
    rates = [messages / PARTS / (after - before) for before, after in pairwise(times)]
    figures = {
        "bench": "backlog",
        "messages": messages,
        "size_bytes": size,
        "refused": stored["refused"],
        "published_per_s_at_first": round(rates[0]),
        "published_per_s_at_last": round(rates[-1]),
        "last_to_first": round(rates[-1] / rates[0], 3),
        "first_delivery_ms": round((drained["first"] - drained["started"]) * 1_000, 3),
        "consumed_per_s": round(messages / (drained["ended"] - drained["started"])),
    }
    out.one(figures, print_metrics)


class QueueRun:
    """One measurement with queues of its own, which are deleted at its end."""

    def __init__(self, connect: ConnectOptions, *, quiet: bool, **task: Any) -> None:
        shared = {
            "connect": connect.arguments(),
            "topics": 1,
            "batch": 1,
            "publishers": 1,
            "is_watched": is_watched(quiet=quiet),
        }
        self._task = {"prefix": f"bench/{uuid.uuid4().hex[:8]}", **shared, **task}

    def store(self) -> dict[str, Any]:
        """Publish everything; gives when it began and when each part was acknowledged."""
        return self._do("publishing", "store")[0]

    def drain(self) -> dict[str, Any]:
        """Consume everything; gives when it began, when the first came and when it ended."""
        return self._do("consuming", "drain")[0]

    def together(self) -> float:
        """Publish and consume everything at once; gives the seconds from the first to the last."""
        stored, drained = self._do("publishing and consuming", "store", "drain")
        return float(drained["ended"] - stored["started"])

    def clean(self) -> None:
        """Delete the queues."""
        self._do("deleting", "clean")

    def _do(self, doing: str, *roles: str) -> list[dict[str, Any]]:
        clients: list[BenchClient] = []
        try:
            for role in roles:
                clients.append(BenchClient(Task(role=role, **self._task)))
            for client in clients:
                client.answer()
            for client in clients:
                client.go()
            with watch(clients, doing, self._task["messages"] * len(clients)):
                return [client.answer() for client in clients]
        finally:
            for client in clients:
                client.end()
