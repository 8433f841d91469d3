"""`angarium bench`: what this node does on this machine, measured by clients with processes of their own.

It starts the processes (`bench_client`), lets the publishers go at the same moment, and puts their figures
together. Figures of different machines, or of different loads on one, cannot be compared: use ratios of runs
side by side.
"""

from __future__ import annotations

import contextlib
import functools
import math
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from angarium import errors
from angarium_server import launch
from cluster.commands.bench.task import STAMP_BYTES, Task
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.hints import quiet_option
from cluster.commands.terminal.output import Output, output_option, print_metrics, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: More clients than this on one machine measure its scheduler.
MAX_CLIENTS: Final = 64
#: After the first client ended, all others end within this time, or something is wrong.
END_TIMEOUT_S: Final = 60.0

#: Also for the benchmarks of queues.
bench_size = click.option(
    "--size", type=click.IntRange(min=STAMP_BYTES), default=128, show_default=True, help="Bytes of a payload."
)
_topics = click.option(
    "--topics", type=click.IntRange(min=1), default=16, show_default=True, help="Topics, used in turn."
)


def _messages(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--messages",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Messages of each publisher.",
    )


def _batch(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=1_000,
        show_default=True,
        help="Messages published at a time.",
    )(function)


def _clients(option: str, default: int, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        option, type=click.IntRange(1, MAX_CLIENTS), default=default, show_default=True, help=text
    )


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure a running node with real client processes."""


@bench.command("pub-sub")
@_messages(500_000)
@bench_size
@_topics
@_batch
@_clients("--publishers", 1, "Publishers, each a process.")
@quiet_option
@output_option
@client_options
def pub_sub(
    *,
    connect: ConnectOptions,
    messages: int,
    size: int,
    topics: int,
    batch: int,
    publishers: int,
    quiet: bool,
    out: Output,
) -> None:
    """Publish in batches at full speed to one subscriber."""
    run = Run(
        connect,
        messages=messages,
        size_bytes=size,
        topics=topics,
        batch=batch,
        publishers=publishers,
        quiet=quiet,
    )
    out.one({"bench": "pub-sub", **run.rates(subscribers=1)}, print_metrics)


@bench.command("fan-out")
@_messages(100_000)
@bench_size
@_topics
@_batch
@_clients("--subscribers", 10, "Subscribers, each a process.")
@quiet_option
@output_option
@client_options
def fan_out(
    *,
    connect: ConnectOptions,
    messages: int,
    size: int,
    topics: int,
    batch: int,
    subscribers: int,
    quiet: bool,
    out: Output,
) -> None:
    """Publish in batches at full speed to several subscribers, each of which gets all messages."""
    run = Run(
        connect, messages=messages, size_bytes=size, topics=topics, batch=batch, publishers=1, quiet=quiet
    )
    out.one({"bench": "fan-out", **run.rates(subscribers=subscribers)}, print_metrics)


@bench.command("latency")
@_messages(10_000)
@bench_size
@_topics
@click.option(
    "--rate", type=click.FloatRange(min=1), default=1_000.0, show_default=True, help="Messages per second."
)
@quiet_option
@output_option
@client_options
def latency(
    *, connect: ConnectOptions, messages: int, size: int, topics: int, rate: float, quiet: bool, out: Output
) -> None:
    """Publish single messages at a fixed rate, and show their latency."""
    run = Run(
        connect,
        messages=messages,
        size_bytes=size,
        topics=topics,
        batch=1,
        publishers=1,
        rate=rate,
        quiet=quiet,
    )
    out.one({"bench": "latency", **run.latencies()}, print_metrics)


def is_watched(*, quiet: bool) -> bool:
    """Say whether somebody wants to see how far a measurement is."""
    return sys.stderr.isatty() and not quiet


class Run:
    """One measurement: its clients, and what their figures say together."""

    def __init__(self, connect: ConnectOptions, *, quiet: bool, **task: Any) -> None:
        prefix = f"bench/{uuid.uuid4().hex[:8]}"
        shared = {"connect": connect.arguments(), "prefix": prefix, "is_watched": is_watched(quiet=quiet)}
        self._task = {**shared, **task}
        self._publishers: int = task["publishers"]
        self._timeout_s = connect.timeout_s

    def rates(self, subscribers: int) -> dict[str, Any]:
        """Give rows per second, published and received."""
        published, received = self._measure(subscribers)
        started = min(figures["started"] for figures in published)
        publishing_s = max(figures["ended"] for figures in published) - started
        receiving_s = max(figures["last"] for figures in received) - started
        sent = sum(figures["published"] for figures in published)
        deliveries = sum(figures["received"] for figures in received)
        return {
            "publishers": self._publishers,
            "subscribers": subscribers,
            "size_bytes": self._task["size_bytes"],
            "batch": self._task["batch"],
            "topics": self._task["topics"],
            "published": sent,
            "received": deliveries,
            "lost": sent * subscribers - deliveries,
            "seconds": round(receiving_s, 6),
            "published_rows_per_s": round(sent / publishing_s),
            "rows_per_s": round(deliveries / receiving_s),
            "mib_per_s": round(deliveries * self._task["size_bytes"] / receiving_s / (1 << 20), 3),
        }

    def latencies(self) -> dict[str, Any]:
        """Give percentiles of the time from publish to the subscriber's loop."""
        published, received = self._measure(1)
        sorted_ns = received[0]["latencies_ns"]
        seconds = published[0]["ended"] - published[0]["started"]
        sent = published[0]["published"]
        return {
            "rate": self._task["rate"],
            "size_bytes": self._task["size_bytes"],
            "topics": self._task["topics"],
            "published": sent,
            "received": len(sorted_ns),
            "lost": sent - len(sorted_ns),
            "seconds": round(seconds, 6),
            "rows_per_s": round(sent / seconds),
            **{f"{name}_us": percentile(sorted_ns, part) / 1_000 for name, part in _PERCENTILES.items()},
        }

    def _measure(self, subscribers: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Run all clients and give what publishers and subscribers measured."""
        clients: list[BenchClient] = []
        try:
            for role in ["subscribe"] * subscribers + ["publish"] * self._publishers:
                clients.append(BenchClient(Task(role=role, **self._task)))
            for client in clients:
                client.answer()
            publishers = clients[subscribers:]
            for client in publishers:
                client.go()
            with watch(publishers, "publishing", self._task["messages"] * len(publishers)):
                published = [client.answer() for client in publishers]
            return published, [client.answer() for client in clients[:subscribers]]
        finally:
            for client in clients:
                client.end()


@contextlib.contextmanager
def watch(clients: list[BenchClient], doing: str, total: int) -> Iterator[None]:
    """Show how far some clients are together while the block waits for their answers."""
    with progress(doing, total) as show:
        done = [0] * len(clients)

        def told(index: int, messages: int) -> None:
            done[index] = messages
            show(sum(done))

        for index, client in enumerate(clients):
            client.on_progress = functools.partial(told, index)
        yield


_PERCENTILES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999, "max": 1.0}


def percentile(ordered: list[int], part: float) -> float:
    """Give the value below or at which a part of the ordered values lies, or 0 if there is none."""
    if not ordered:
        return 0.0
    return float(ordered[max(0, math.ceil(len(ordered) * part) - 1)])


class BenchClient:
    """A client process: it gets a task, and answers twice, when it is ready and when it has measured."""

    def __init__(self, task: Task) -> None:
        self._role = task.role
        #: Called with what a client that is watched has done so far.
        self.on_progress: Callable[[int], None] = lambda _: None
        self._process = subprocess.Popen(
            launch.module_command("cluster.commands.bench.client"),
            env=launch.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._write(msgspec.json.encode(task) + b"\n")

    def go(self) -> None:
        """Let a publisher start."""
        self._write(b"go\n")

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            AngariumError: what the client failed with; or it ended instead, and the text is the last line it
                wrote.
        """
        assert self._process.stdout is not None
        answer: dict[str, Any] = {"done": 0}
        while answer.keys() == {"done"}:
            line = self._process.stdout.readline()
            if not line:
                raise self._failure()
            answer = msgspec.json.decode(line)
            self.on_progress(answer.get("done", 0))
        if "error" in answer:
            raise errors.error_for(*answer["error"])
        return answer

    def end(self) -> None:
        """Make sure that the process is gone."""
        self._process.kill()
        self._process.communicate(timeout=END_TIMEOUT_S)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _failure(self) -> errors.AngariumError:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return errors.error_for(
            errors.INTERNAL, f"a bench client ({self._role}) ended: {lines[-1] if lines else ''}"
        )
