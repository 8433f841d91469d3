"""What a long backlog costs, whether delayed messages are on time, and latencies beside a loaded home: ours alone.

The figures of the node are compared with its own: an empty queue, an idle node. Memory is what the worker has
of its own, before and after: the index, its caches, and what the allocator does not give back. Pages of the
spool file that the system caches, and takes back when it likes, are told beside it.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.brokers.angarium import AngariumQueues
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Better, Row
from benchmarks.harness import ClientProcess, publisher, say, subscriber, unique_prefix
from cluster.commands.bench.process import BATCHED, DRAIN, STORE, Task, percentile

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.direct import Settings

TITLE: Final = "guaranteed, backlog and pressure"
BACKLOG: Final = 1_000_000
DELAYED: Final = 100_000
DELAY_MS: Final = 5_000
#: Part of a backlog whose publish rate is compared: the first messages with the last ones.
PART: Final = 10
PAYLOAD_BYTES: Final = 128
#: Memory of a spooled message, all in, from the design.
MEMORY_TARGET_BYTES: Final = 100
#: Lone messages per second whose latency is taken, and for how long.
LONE_RATE: Final = 500
LONE_S: Final = 4.0


class Pressure:
    """One node and what is done to it."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Describe the node; nothing is started."""
        self._settings = settings
        self._broker = AngariumQueues(directory, 1, "angarium-backlog")

    def run(self) -> list[Row]:
        """Measure all rows of this page."""
        parts: list[Callable[[], list[Row]]] = [self._latencies, self._delays, self._backlog]
        rows: list[Row] = []
        with contextlib.ExitStack() as stack:
            stack.callback(self._broker.stop)
            self._broker.start()
            for part in parts:
                try:
                    rows += part()
                except BrokerFailedError as error:
                    say(str(error))
                    rows.append(_row(f"{TITLE}: {part.__name__}", "", [], error=error.summary))
        return [row for row in rows if self._settings.rows in row.name]

    # -- latencies -------------------------------------------------------------------------------------------

    def _latencies(self) -> list[Row]:
        quiet, loaded = self._lone_latencies(), None
        load = self._task(STORE, count=400_000)
        with ClientProcess(self._broker, load) as source:
            source.wait_ready().go()
            loaded = self._lone_latencies()
        rows = []
        for what, title in (("commit", "publish to confirmation"), ("direct", "direct latency")):
            for part, name in ((0.5, "p50"), (0.99, "p99")):
                rows.append(
                    _row(
                        f"{title} of {LONE_RATE}/s while the home is under guaranteed load, {name}, "
                        "against an idle node",
                        "us",
                        [percentile(loaded[what], part) / 1e3],
                        peer=[percentile(quiet[what], part) / 1e3],
                        against="an idle node",
                    )
                )
        return rows

    def _lone_latencies(self) -> dict[str, list[int]]:
        """Measure lone persistent publishes and direct messages at once."""
        count = round(LONE_RATE * LONE_S)
        lone = self._task(STORE, count=count, rate=LONE_RATE)
        prefix = unique_prefix()
        common = {"rate": LONE_RATE, "seconds": LONE_S}
        receiving = subscriber(self._broker, prefix, **common)
        sending = publisher(self._broker, prefix, **common)
        with (
            ClientProcess(self._broker, receiving) as sink,
            ClientProcess(self._broker, sending) as source,
            ClientProcess(self._broker, lone) as storing,
        ):
            for client in (sink, source, storing):
                client.wait_ready()
            source.go()
            storing.go()
            commit = storing.result()["latencies_ns"]
            source.result()
            return {"commit": commit, "direct": sink.result()["latencies_ns"]}

    # -- delays ----------------------------------------------------------------------------------------------

    def _delays(self) -> list[Row]:
        """Publish delayed messages and see how late they come; none may be early."""
        prefix = unique_prefix()
        storing = self._task(STORE, prefix=prefix, count=DELAYED, delay_ms=DELAY_MS)
        draining = self._task(DRAIN, prefix=prefix, count=DELAYED, delay_ms=DELAY_MS)
        with ClientProcess(self._broker, draining) as sink, ClientProcess(self._broker, storing) as source:
            sink.wait_ready().go()
            source.wait_ready().go()
            source.result()
            late_ns = sink.result()["latencies_ns"]
        early = sum(late < 0 for late in late_ns)
        note = f"{early:,} of {len(late_ns):,} came early"
        return [
            _row(
                f"{DELAYED:,} messages delayed by {DELAY_MS / 1000:g} s: late by, {name}",
                "ms",
                [percentile(late_ns, part) / 1e6],
                note=note,
            )
            for part, name in ((0.5, "p50"), (0.99, "p99"))
        ]

    # -- backlog ---------------------------------------------------------------------------------------------

    def _backlog(self) -> list[Row]:
        prefix = unique_prefix()
        before = self._memory()
        rates = [self._store(prefix, BACKLOG // PART) for _ in range(PART)]
        after = self._memory()
        grown, cached = ((after[name] - before[name]) / BACKLOG for name in ("RssAnon", "RssFile"))
        title = f"backlog of {BACKLOG:,}, {PAYLOAD_BYTES} B"
        rows = [
            _row(
                f"{title}: publish rate at its end, against its beginning",
                "messages/s",
                [rates[-1], rates[-2]],
                peer=[rates[0], rates[1]],
                against="an empty queue",
                better=Better.HIGHER,
                target=0.8,
            ),
            _row(
                f"{title}: memory of the worker, against {MEMORY_TARGET_BYTES} bytes per message",
                "bytes per message",
                [grown],
                peer=[MEMORY_TARGET_BYTES],
                against="the budget",
                target=1.0,
                note=f"and {cached:.0f} bytes per message of the file in the system's cache",
            ),
        ]
        return rows + self._restart(prefix, title)

    def _memory(self) -> dict[str, int]:
        """Give the resident memory of the worker in bytes: its own, and that of files."""
        (worker,) = self._broker.roles()["worker"]
        lines = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8").splitlines()
        found = (line.split() for line in lines if line.startswith("Rss"))
        return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in found}

    def _store(self, prefix: str, count: int) -> float:
        with ClientProcess(self._broker, self._task(STORE, prefix=prefix, count=count)) as source:
            source.wait_ready().go()
            done = source.result()
        return float(count / (done["last_ns"] - done["first_ns"]) * 1e9)

    def _restart(self, prefix: str, title: str) -> list[Row]:
        self._broker.stop()
        began = time.monotonic()
        self._broker.start()
        ready_s = time.monotonic() - began
        draining = self._task(DRAIN, prefix=prefix, count=BACKLOG)
        with ClientProcess(self._broker, draining) as sink:
            sink.wait_ready().go()
            done = sink.result()
        drained_s = (done["last_ns"] - done["first_ns"]) / 1e9
        first_ms = (done["first_delivery_ns"] - done["first_ns"]) / 1e6
        return [
            _row(f"{title}: restart of the node until clients can connect", "s", [ready_s]),
            _row(f"{title}: from bind to the first delivery after it", "ms", [first_ms]),
            _row(f"{title}: consume rate", "messages/s", [BACKLOG / drained_s], better=Better.HIGHER),
        ]

    def _task(self, role: str, prefix: str = "", **fields: int) -> Task:
        where = {"url": self._broker.url, "prefix": prefix or unique_prefix()}
        return Task(role=role, payload_bytes=PAYLOAD_BYTES, api=BATCHED, **where, **fields)  # type: ignore[arg-type]


def rows(directory: Path, settings: Settings) -> list[Row]:
    """Measure all rows of this page."""
    return Pressure(directory, settings).run()


def _row(
    name: str,
    unit: str,
    ours: list[float],
    *,
    peer: list[float] | None = None,
    against: str = "",
    better: Better = Better.LOWER,
    target: float | None = None,
    note: str = "",
    error: str = "",
) -> Row:
    return Row(
        name=name,
        unit=unit,
        better=better,
        ours=ours,
        peer=peer or [],
        against=against,
        first_target=target,
        note=note,
        error=error,
    )
