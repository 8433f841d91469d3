"""How many messages a worker matches per second of its own CPU time, on recorded frames.

The frames are what a router sends a worker while a publisher of the SDK runs at full speed: they are
gathered and packed by the SDK's own code and framed as the router does, recorded first and replayed then.
No socket and no other process takes part, so the figure does not depend on what else the machine does.

Run as a process of its own: `python -m benchmarks.frames SUBSCRIPTIONS SECONDS` prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium.slots import Publishable, RowGatherer, slot_table
from angarium_server.frames.matching import FilterEntry, Filters, Match, Start
from benchmarks.brokers.server import ROOT
from benchmarks.clients.task import table_filters, table_topics
from benchmarks.figures import Better, Row
from benchmarks.harness import say
from cluster.commands.bench.process import TOPICS
from node.config import WorkerConfig
from node.matching.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.direct import Settings

#: By which `--rows` chooses these rows, all of them together.
TITLE: Final = "worker on recorded frames"
ROUTER_INCARNATION: Final = 1
VPN: Final = 1
EPOCH: Final = 1
#: Filters in one FILTERS frame.
FILTERS_PER_FRAME: Final = 1_000
PAYLOAD: Final = bytes(128)
#: Rows recorded for few topics; replayed again and again.
RECORDED_ROWS: Final = 20_000
REPLAY_TIMEOUT_S: Final = 300.0

Frames = list[bytes]


def rows(settings: Settings) -> list[Row]:
    """Measure in a process of its own, and give the rows."""
    command = [sys.executable, "-m", "benchmarks.frames", str(settings.table), str(settings.seconds)]
    found: dict[str, list[float]] = {}
    error = ""
    for _ in range(settings.repetitions):
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=False
        )
        if done.returncode:
            say(done.stderr)
            error = done.stderr.strip().splitlines()[-1]
            break
        for title, rate in json.loads(done.stdout).items():
            found.setdefault(title, []).append(rate)
    if error:
        return [Row(name=TITLE, unit="", better=Better.HIGHER, ours=[], error=error)]
    return [
        Row(
            name=f"{TITLE}, {title}",
            unit="messages per CPU-second",
            better=Better.HIGHER,
            ours=rates,
            note="128 B, rounds of the SDK at full speed",
        )
        for title, rates in found.items()
    ]


def replay(subscriptions: int, seconds: float) -> dict[str, float]:
    """Give messages per CPU-second, by what was replayed."""
    few = list(record([f"bench/{number}" for number in range(TOPICS)], RECORDED_ROWS))
    many = list(record(table_topics(subscriptions), subscriptions))
    one_filter = worker_with(["bench/>"])
    matched_per_s(one_filter, few, 0.0)
    table = worker_with(table_filters(subscriptions))
    title = f"{subscriptions:,} filters and topics"
    return {
        "1 filter, 16 topics": matched_per_s(one_filter, few, seconds),
        f"{title}, each topic for the first time": matched_per_s(table, many, 0.0),
        f"{title}, each topic again": matched_per_s(table, many, seconds),
    }


def record(topics: list[str], rows: int) -> Iterator[tuple[int, Frames]]:
    """Give (rows, frames) of the MATCH frames for a publisher that uses the topics in turn."""
    gatherer = RowGatherer()
    gatherer.set_table(EPOCH, slot_table(1))
    messages = iter([(topics[number % len(topics)], PAYLOAD) for number in range(rows)])
    left: Publishable | None = next(messages, None)
    reference = 0
    while left is not None:
        gatherer.fill(iter((left,)))
        left = gatherer.fill(messages)
        a_round = gatherer.take()
        for (_, count), batch in zip(a_round.parts, a_round.batches, strict=True):
            reference += 1
            head = (ROUTER_INCARNATION, reference, VPN, 0, wire.LEARN_NOTHING, count, wire.MATCH_DIRECT, 1)
            yield count, Match(*head).frames(batch)


def worker_with(filters: list[str]) -> Worker:
    """Give a worker that owns all topics and has been told filters."""
    worker = Worker(0, 1, WorkerConfig())
    worker.handle(Start(ROUTER_INCARNATION, EPOCH, slot_table(1)).frames(), 0.0)
    for start in range(0, len(filters), FILTERS_PER_FRAME):
        numbers = range(start, min(start + FILTERS_PER_FRAME, len(filters)))
        added = [FilterEntry(number + 1, VPN, filters[number], wire.KIND_PLAIN) for number in numbers]
        worker.handle(Filters(ROUTER_INCARNATION, start + 1, added, []).frames(), 0.0)
    return worker


def matched_per_s(worker: Worker, recorded: list[tuple[int, Frames]], seconds: float) -> float:
    """Replay a record once, and then until so much CPU time is spent; give rows per CPU-second."""
    unmatched_before = worker.stats()["rows_unmatched"]
    rows = 0
    started = time.process_time()
    while True:
        for count, frames in recorded:
            answers: list[Any] = worker.handle(frames, 0.0)
            answers += worker.work()
            while worker.has_work:
                answers += worker.work()
            assert answers
            rows += count
        spent = time.process_time() - started
        if spent >= seconds:
            break
    assert worker.stats()["rows_unmatched"] == unmatched_before, "every row matches a filter"
    return rows / spent


if __name__ == "__main__":
    print(json.dumps(replay(int(sys.argv[1]), float(sys.argv[2]))))
