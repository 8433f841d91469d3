"""Spark beside a node: a queue to Parquet and Parquet to a queue, against plain clients and Spark's own source.

One Spark with two cores runs all jobs; it starts, and runs each kind of job twice on half of the messages, before
anything counts. In every repetition the plain clients, Spark's own rate source and our format handle as many messages
of the same size, one after the other. A plain consumer takes one message after the other, as most programs do; one of
batches is the fastest that the SDK has.

What a stream takes is what its batches took, as Spark tells it: planning, Python processes, files and commits are in
it, the start of the query is not, as that of a plain client is not. What a batch job takes is everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Final, Self

from benchmarks.brokers.angarium import AngariumQueues
from benchmarks.brokers.server import ROOT, BrokerFailedError
from benchmarks.figures import Better, Row
from benchmarks.guaranteed import task_of
from benchmarks.harness import ClientProcess, calibrate, say, unique_prefix
from cluster.commands.bench.client_process import ending_after
from cluster.commands.bench.process import BATCHED, DRAIN, SINGLY, STORE
from cluster.commands.bench.queueing import queue_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from benchmarks.direct import Settings

PAYLOADS: Final = {128: "128 B", 1024: "1 KiB"}
SOURCE, SINK, RATE, CONSUMER, BATCHES, PRODUCER = (
    "queue to Parquet",
    "Parquet to queue",
    "Spark's rate source to Parquet",
    "a plain consumer",
    "a consumer of batches",
    "a plain producer",
)
#: (what, against) -> first target of the ratio.
TARGETS: Final = {(SOURCE, CONSUMER): 0.5}
#: What one message costs may not depend on how many others wait.
BACKLOG_TARGET: Final = 0.9
#: Messages of one second of --seconds; planning and the start of Python processes are to weigh little.
_PER_SECOND: Final = 500_000
#: Java runs code slowly until it has compiled it; a query that goes on for hours has that behind it.
_WARM_UPS: Final = 2
#: A long backlog has so many times the messages of the others.
LONG: Final = 3
_ANSWER_TIMEOUT_S: Final = 900.0


class SparkProcess:
    """A process with a Spark session that runs jobs; a context manager that ends it."""

    def __init__(self, directory: Path) -> None:
        """Start it."""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients.spark_jobs", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def wait_ready(self) -> Self:
        """Wait until Spark runs."""
        self._answer()
        return self

    def run(self, job: str, **fields: Any) -> float:
        """Run a job; gives its rows per second.

        Raises:
            BrokerFailedError: it failed, or did not handle as many rows as it should.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"job": job, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        done = json.loads(self._answer())
        if "error" in done:
            raise BrokerFailedError(f"{job} failed: {done['error']}")
        if done["rows"] != fields["count"]:
            raise BrokerFailedError(f"{job} handled {done['rows']:,} of {fields['count']:,} rows")
        return float(done["rows"] / done["seconds"])

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        with ending_after(_ANSWER_TIMEOUT_S, self._process):
            line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return line

    def _failure(self) -> BrokerFailedError:
        self._process.kill()
        self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4_000))
        return BrokerFailedError(f"Spark ended\n{self._log.read().decode(errors='replace')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with ending_after(30.0, self._process):
            self._process.wait()
        self._log.close()


class Pipeline:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Describe the node; nothing is started."""
        self._settings = settings
        self._directory = directory
        self._broker = AngariumQueues(directory, 1, "angarium-pipeline")
        self._count = max(1_000, round(_PER_SECOND * settings.seconds))
        #: (what, payload bytes, messages) -> messages per second, one for each repetition.
        self._rates: dict[tuple[str, int, int], list[float]] = {}

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        import pyspark

        return {"angarium": self._broker.version(), "spark": f"pyspark {pyspark.__version__}, local[2]"}

    def run(self) -> list[Row]:
        """Measure everything and give the rows."""
        error = ""
        with contextlib.ExitStack() as stack:
            stack.callback(self._broker.stop)
            try:
                self._broker.start()
                spark = stack.enter_context(SparkProcess(self._directory / "spark")).wait_ready()
                for _ in range(_WARM_UPS):
                    self._measure(spark, 128, self._count // 2)
                self._rates.clear()
                for repetition in range(self._settings.repetitions):
                    self._repeat(spark, repetition)
            except BrokerFailedError as failure:
                say(str(failure))
                error = failure.summary
        return [row for row in self._rows(error) if self._settings.rows in row.name]

    def _repeat(self, spark: SparkProcess, repetition: int) -> None:
        for size in PAYLOADS:
            self._measure(spark, size, self._count)
        self._note(SOURCE, 128, LONG * self._count, self._archive(spark, 128, LONG * self._count))
        said = ", ".join(
            f"{what} {PAYLOADS[size]} {rates[-1]:,.0f}/s" for (what, size, _), rates in self._rates.items()
        )
        say(f"{repetition + 1}/{self._settings.repetitions} {said}  calib {calibrate():.1f}")

    def _measure(self, spark: SparkProcess, size: int, count: int) -> None:
        prefix = unique_prefix()
        self._note(PRODUCER, size, count, self._client(STORE, prefix, size, count))
        self._note(BATCHES, size, count, self._client(DRAIN, prefix, size, count))
        prefix = unique_prefix()
        self._client(STORE, prefix, size, count)
        self._note(CONSUMER, size, count, self._client(DRAIN, prefix, size, count, api=SINGLY))
        path = str(self._directory / unique_prefix())
        rate = spark.run("rate-to-parquet", path=path, count=count, payload_bytes=size)
        self._note(RATE, size, count, rate)
        self._note(SOURCE, size, count, self._archive(spark, size, count))
        self._note(SINK, size, count, self._publish(spark, size, count))

    def _archive(self, spark: SparkProcess, size: int, count: int) -> float:
        prefix = unique_prefix()
        self._client(STORE, prefix, size, count)
        path = str(self._directory / prefix)
        return spark.run(
            "queue-to-parquet", url=self._broker.url, queue=self._queue(prefix), path=path, count=count
        )

    def _publish(self, spark: SparkProcess, size: int, count: int) -> float:
        prefix = unique_prefix()
        self._client(STORE, prefix, size, 1)  # makes the queue
        path = str(self._directory / prefix)
        spark.run("make-parquet", path=path, prefix=prefix, count=count, payload_bytes=size)
        rate = spark.run(
            "parquet-to-queue", url=self._broker.url, queue=self._queue(prefix), path=path, count=count
        )
        self._client(DRAIN, prefix, size, count + 1)
        return rate

    def _queue(self, prefix: str) -> str:
        """Give the queue that plain clients make and use."""
        return queue_names(task_of(self._broker, STORE, prefix, 1, 128))[0]

    def _client(self, role: str, prefix: str, size: int, count: int, api: str = BATCHED) -> float:
        task = replace(task_of(self._broker, role, prefix, count, size), api=api, distinct=True)
        with ClientProcess(self._broker, task) as client:
            client.wait_ready().go()
            done = client.result()
        handled = done["published" if role == STORE else "received"]
        if handled < count:
            raise BrokerFailedError(f"a plain client handled {handled:,} of {count:,} messages")
        return float(count / (done["last_ns"] - done["first_ns"]) * 1e9)

    def _note(self, what: str, size: int, count: int, rate: float) -> None:
        self._rates.setdefault((what, size, count), []).append(rate)

    def _rows(self, error: str) -> list[Row]:
        found = [self._row(what, against, size, error) for what, against, size in _compared()]
        long = LONG * self._count
        found.append(
            Row(
                name=f"spark, {SOURCE}, 128 B, {long:,} messages, against {self._count:,}",
                unit="messages/s",
                better=Better.HIGHER,
                ours=self._rates.get((SOURCE, 128, long), []),
                peer=self._rates.get((SOURCE, 128, self._count), []),
                against="a short backlog",
                first_target=BACKLOG_TARGET,
                error=error,
            )
        )
        return found

    def _row(self, what: str, against: str, size: int, error: str) -> Row:
        return Row(
            name=f"spark, {what}, {PAYLOADS[size]}, against {against}",
            unit="messages/s",
            better=Better.HIGHER,
            ours=self._rates.get((what, size, self._count), []),
            peer=self._rates.get((against, size, self._count), []),
            against=against,
            first_target=TARGETS.get((what, against)),
            note=f"{self._count:,} messages",
            error=error,
            details={"payload_bytes": size},
        )


def _compared() -> Iterator[tuple[str, str, int]]:
    """Give what is compared with what."""
    for what, against in ((SOURCE, CONSUMER), (SOURCE, BATCHES), (SOURCE, RATE), (SINK, PRODUCER)):
        for size in PAYLOADS:
            yield what, against, size
