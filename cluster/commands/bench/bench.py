"""`angarium bench`: what this node does on this machine, measured by clients with processes of their own.

It starts the processes (`client`), lets the publishers go at the same moment, and puts their figures
together. Figures of different machines, or of different loads on one, cannot be compared: use ratios of runs
side by side.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from angarium_server import launch
from cluster.commands.bench.client_process import ClientProcess
from cluster.commands.bench.process import BATCHED, PUBLISH, STAMP_BYTES, SUBSCRIBE, Task, percentile
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.hints import quiet_option
from cluster.commands.terminal.options import AT_LEAST_1, options, setting
from cluster.commands.terminal.output import Output, output_option, print_metrics, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: More clients than this on one machine measure its scheduler.
MAX_CLIENTS: Final = 64
_PERCENTILES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999, "max": 1.0}

#: Also for the benchmarks of queues.
bench_size = setting(
    "--size", "payload_bytes", type=click.IntRange(min=STAMP_BYTES), default=128, help="Bytes of a payload."
)
_topics = setting("--topics", "topic_count", type=AT_LEAST_1, default=16, help="Topics, used in turn.")


def _full_speed(messages: int, option: str, clients: int, text: str) -> Callable[..., Any]:
    """Add the options of a measurement at full speed, with so many clients of one sort."""
    return options(
        setting("--messages", "count", type=AT_LEAST_1, default=messages, help="Messages of each publisher."),
        bench_size,
        _topics,
        setting("--batch", type=AT_LEAST_1, default=1_000, help="Messages published at a time."),
        setting(option, "clients", type=click.IntRange(1, MAX_CLIENTS), default=clients, help=text),
        quiet_option,
        output_option,
        client_options,
    )


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure a running node with real client processes."""


@bench.command("pub-sub")
@_full_speed(500_000, "--publishers", 1, "Publishers, each a process.")
def pub_sub(*, connect: ConnectOptions, quiet: bool, out: Output, clients: int, **task: int) -> None:
    """Publish in batches at full speed to one subscriber."""
    run = Run(connect, quiet=quiet, publishers=clients, **task)
    out.one({"bench": "pub-sub", **run.rates(subscribers=1)}, print_metrics)


@bench.command("fan-out")
@_full_speed(100_000, "--subscribers", 10, "Subscribers, each a process.")
def fan_out(*, connect: ConnectOptions, quiet: bool, out: Output, clients: int, **task: int) -> None:
    """Publish in batches at full speed to several subscribers, each of which gets all messages."""
    run = Run(connect, quiet=quiet, **task)
    out.one({"bench": "fan-out", **run.rates(subscribers=clients)}, print_metrics)


@bench.command("latency")
@setting("--messages", "count", type=AT_LEAST_1, default=10_000, help="Messages of each publisher.")
@bench_size
@_topics
@setting("--rate", type=click.FloatRange(min=1), default=1_000.0, help="Messages per second.")
@quiet_option
@output_option
@client_options
def latency(*, connect: ConnectOptions, quiet: bool, out: Output, **task: Any) -> None:
    """Publish single messages at a fixed rate, and show their latency."""
    out.one({"bench": "latency", **Run(connect, quiet=quiet, **task).latencies()}, print_metrics)


def task_of(connect: ConnectOptions, *, quiet: bool, **fields: Any) -> Task:
    """Give what the clients of a run have in common; each gets its role with `replace`."""
    arguments = connect.arguments()
    url = arguments.pop("url")
    return Task(
        role="",
        url=url,
        options=arguments,
        prefix=f"bench/{uuid.uuid4().hex[:8]}",
        api=BATCHED,
        is_watched=sys.stderr.isatty() and not quiet,
        **fields,
    )


def start(task: Task, role: str) -> ClientProcess:
    """Start a client."""
    return ClientProcess(
        f"a bench client ({role})",
        launch.module_command("cluster.commands.bench.client"),
        replace(task, role=role).pack(),
        env=launch.environment(),
    )


class Run:
    """One measurement: its clients, and what their figures say together."""

    def __init__(self, connect: ConnectOptions, **fields: Any) -> None:
        self._task = task_of(connect, **fields)

    def rates(self, subscribers: int) -> dict[str, Any]:
        """Give rows per second, published and received."""
        published, received = self._measure(subscribers)
        first_ns = min(figures["first_ns"] for figures in published)
        publishing_s = (max(figures["last_ns"] for figures in published) - first_ns) / 1e9
        receiving_s = (max(figures["last_ns"] for figures in received) - first_ns) / 1e9
        sent = sum(figures["published"] for figures in published)
        deliveries = sum(figures["received"] for figures in received)
        return {
            "publishers": self._task.publishers,
            "subscribers": subscribers,
            "size_bytes": self._task.payload_bytes,
            "batch": self._task.batch,
            "topics": self._task.topic_count,
            "published": sent,
            "received": deliveries,
            "lost": sent * subscribers - deliveries,
            "seconds": round(receiving_s, 6),
            "published_rows_per_s": round(sent / publishing_s),
            "rows_per_s": round(deliveries / receiving_s),
            "mib_per_s": round(deliveries * self._task.payload_bytes / receiving_s / (1 << 20), 3),
        }

    def latencies(self) -> dict[str, Any]:
        """Give percentiles of the time from publish to the subscriber's loop."""
        published, received = self._measure(1)
        sorted_ns = sorted(received[0]["latencies_ns"])
        seconds = (published[0]["last_ns"] - published[0]["first_ns"]) / 1e9
        sent = published[0]["published"]
        return {
            "rate": self._task.rate,
            "size_bytes": self._task.payload_bytes,
            "topics": self._task.topic_count,
            "published": sent,
            "received": len(sorted_ns),
            "lost": sent - len(sorted_ns),
            "seconds": round(seconds, 6),
            "rows_per_s": round(sent / seconds),
            **{f"{name}_us": percentile(sorted_ns, part) / 1_000 for name, part in _PERCENTILES.items()},
        }

    def _measure(self, subscribers: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Run all clients and give what publishers and subscribers measured."""
        with contextlib.ExitStack() as stack:
            roles = [SUBSCRIBE] * subscribers + [PUBLISH] * self._task.publishers
            clients = [stack.enter_context(start(self._task, role)) for role in roles]
            for client in clients:
                client.wait_ready()
            receivers, publishers = clients[:subscribers], clients[subscribers:]
            for client in publishers:
                client.go()
            with watch(publishers, "publishing", self._task.count * len(publishers)):
                published = [client.result() for client in publishers]
            return published, [client.result() for client in receivers]


@contextlib.contextmanager
def watch(clients: list[ClientProcess], doing: str, total: int) -> Iterator[None]:
    """Show how far some clients are together while the block waits for their answers."""
    with progress(doing, total) as show:
        done = [0] * len(clients)

        def told(index: int, messages: int) -> None:
            done[index] = messages
            show(sum(done))

        for index, client in enumerate(clients):
            client.on_progress = functools.partial(told, index)
        yield
