"""The job replay: messages of an archive are published again, in order, at any speed, each once.

First the wanted messages are copied in order, and cut into batches (`angarium.pipeline.replay_plan`). Then one batch
after the other is staged by Spark and released by the node in one step, under a number: who is killed in between sends
the batch again, and the node knows whether it has it. The same job, run again, goes on with the plan that there is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.pipeline import replay_plan
from angarium.pipeline.archives import read_archive
from angarium.pipeline.dataset import layout
from angarium.pipeline.dataset.files import PARQUET, files_of, literal
from angarium.pipeline.dataset.progress import silent
from angarium.pipeline.failures import clear_failure
from angarium.pipeline.replay_plan import MICROSECONDS, ROWS, Batch, Part, Plan
from angarium.pipeline.selection import AT, JOB, Selection, in_order, select
from angarium.topic import check_topic, parse_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from threading import Event

    from pyspark.sql import Column, DataFrame, SparkSession

    from angarium.pipeline.dataset.progress import Show

REPLAYS: Final = f"{layout.PRIVATE}/replays"
#: Messages of a file, which one task stages: some seconds of work.
FILE_MESSAGES: Final = 50_000
#: A replay that keeps time releases the messages of so much of its own time together.
SLICE_S: Final = 1.0
#: A file is read by one task, whatever its size: the order of its rows counts.
_WHOLE_FILES: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 50),
    "spark.sql.files.openCostInBytes": str(1 << 50),
}
#: How long a wait may hold up who wants the job to stop.
_POLL_S: Final = 0.2
_DIGEST: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """What is sent again, where to, and how fast."""

    #: Directory of the archive.
    path: str
    selection: Selection = field(default_factory=Selection)
    #: The queue to send to; None: each message goes to its topic.
    queue: str | None = None
    #: Put before each topic as it stands.
    topic_prefix: str = ""
    #: How much faster than it was: 1 as it was. None: as fast as possible.
    speed: float | None = None
    #: Options of the sink: where the node is, and whatever else it takes.
    options: Mapping[str, str] = field(default_factory=dict)
    file_messages: int = FILE_MESSAGES
    #: Whether a replay that is finished is started again.
    again: bool = False

    def validate(self) -> None:
        """Check that the job can be done.

        Raises:
            InvalidRequestError: it cannot: a filter, the prefix or the speed (INVALID_FILTER, INVALID_TOPIC,
                INVALID_ARGUMENT).
        """
        for text in self.selection.topics:
            parse_filter(text)
        if self.topic_prefix:
            check_topic(self.topic_prefix)
        if self.topic_prefix and self.queue is not None:
            raise errors.invalid("messages go to a queue or to topics with a prefix: name one or the other")
        if self.speed is not None and not self.speed > 0:
            raise errors.invalid(f"speed {self.speed:g}; 1 is as it was, 2 is in half the time")
        since, until = self.selection.since, self.selection.until
        if since is not None and until is not None and since >= until:
            raise errors.invalid(f"nothing is from {since.isoformat()} and before {until.isoformat()}")

    @property
    def name(self) -> str:
        """Tell the same job from others: what it sends, where to and how."""
        since, until, topics, queues = self.selection
        where = {name: value for name, value in self.options.items() if name in ("url", "vpn", "username")}
        what = [str(since), str(until), topics, queues, self.queue, self.topic_prefix, self.speed]
        text = json.dumps([what, self.file_messages, sorted(where.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a run of the job did."""

    archive: str
    #: Messages and batches that this run sent.
    messages: int
    batches: int
    #: Messages that an earlier run had sent.
    messages_before: int
    seconds: float
    #: Whether all is sent; else the same job goes on.
    finished: bool


def replay(spark: SparkSession, job: ReplayJob, show: Show = silent, stop: Event | None = None) -> Replayed:
    """Publish messages of an archive again, or go on with that; nothing if it was finished before.

    Args:
        spark: a session.
        job: what is sent.
        show: is called with the number of messages, those of earlier runs included, and that of all.
        stop: set by another thread or a signal's handler; the batch that runs comes to its end.

    Raises:
        AngariumError: the job or the archive is not as it should be; a message is refused; the node or Spark fails.
            Nothing of a batch is sent that failed, and the same job goes on with it.
    """
    job.validate()
    try:
        run = _Run(spark, job)
        with run.hold():
            return run.go(show, stop)
    except Exception as error:
        raise clear_failure(error) from error


class _Run:
    """One run of the job."""

    def __init__(self, spark: SparkSession, job: ReplayJob) -> None:
        self._spark = spark
        self._job = job
        self._files = files_of(spark, job.path)
        self._folder = f"{REPLAYS}/{job.name}"

    def hold(self) -> AbstractContextManager[bool]:
        """Keep the replay for this run: another one would make a plan of its own, and all would be sent twice."""
        return self._files.hold(f"{self._folder}.running")

    def go(self, show: Show, stop: Event | None) -> Replayed:
        """Send what is not sent yet."""
        from angarium.spark import register

        register(self._spark)
        started = time.monotonic()
        plan, first = self._begin()
        with _settings(self._spark, _WHOLE_FILES):
            number = self._send_all(plan, first, show, stop)
        finished = number == len(plan.batches)
        if finished:
            # The plan stays: it says that all is sent to whoever runs the same job again.
            self._files.remove(f"{self._folder}/{ROWS}")
        return Replayed(
            archive=self._job.path,
            messages=plan.done_before(number) - plan.done_before(first),
            batches=number - first,
            messages_before=plan.done_before(first),
            seconds=round(time.monotonic() - started, 3),
            finished=finished,
        )

    def _begin(self) -> tuple[Plan, int]:
        """Give the plan, and the number of the first batch that is not known to be done."""
        plan = replay_plan.load(self._files, self._folder)
        first = replay_plan.next_batch(self._files, self._folder)
        if plan is not None and not (self._job.again and first == len(plan.batches)):
            return plan, first
        return self._prepare(), 0

    def _send_all(self, plan: Plan, first: int, show: Show, stop: Event | None) -> int:
        """Send batches from a number on; give the number of the first that was not sent."""
        started = time.monotonic()
        for number in range(first, len(plan.batches)):
            show(plan.done_before(number), plan.messages)
            if not self._wait(plan, first, number, started, stop):
                return number
            self._send(plan, number)
            replay_plan.mark_done(self._files, self._folder, number)
        show(plan.messages, plan.messages)
        return len(plan.batches)

    def _wait(self, plan: Plan, first: int, number: int, started: float, stop: Event | None) -> bool:
        """Wait until a batch is due; tell whether it is to be sent."""
        while True:
            if stop is not None and stop.is_set():
                return False
            left_s = 0.0
            if self._job.speed is not None:
                elapsed_s = time.monotonic() - started
                batch, begin = plan.batches[number], plan.batches[first]
                left_s = replay_plan.wait_s(batch, begin, elapsed_s, self._job.speed)
            if left_s <= 0:
                return True
            time.sleep(min(left_s, _POLL_S))

    def _send(self, plan: Plan, number: int) -> None:
        batch = plan.batches[number]
        parts = [self._part(plan, batch, file) for file in batch.files]
        rows = reduce(lambda one, two: one.unionAll(two), parts).drop(AT)
        options = sink_options(self._job, plan, number)
        if self._job.topic_prefix:
            from pyspark.sql import functions as F  # noqa: N812 - its usual name

            rows = rows.withColumn("topic", F.concat(F.lit(self._job.topic_prefix), "topic"))
        rows.write.format("angarium").mode("append").options(**options).save()

    def _part(self, plan: Plan, batch: Batch, file: str) -> DataFrame:
        from angarium.spark.schema import NAMES, schema

        columns = schema(NAMES).add(AT, "long")
        place = literal(self._files.url(f"{self._folder}/{ROWS}/{file}"))
        rows = self._spark.read.schema(columns).parquet(place)
        if plan.slice_us is None:
            return rows
        return rows.filter(slice_column(plan.slice_us) == batch.slice)

    def _prepare(self) -> Plan:
        """Copy the wanted messages in order and make the plan."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        rows = select(read_archive(self._spark, self._job.path), self._job.selection)
        rows = rows.withColumn(JOB, F.regexp_extract("_metadata.file_name", layout.JOB, 1))
        place = f"{self._folder}/{ROWS}"
        replay_plan.discard(self._files, self._folder)
        writer = in_order(rows).write.option("maxRecordsPerFile", self._job.file_messages)
        writer.options(**PARQUET).parquet(self._files.url(place))
        slice_us = None if self._job.speed is None else int(SLICE_S * self._job.speed * MICROSECONDS)
        parts = self._parts(place, slice_us)
        if not parts:
            self._files.remove(self._folder)
            raise errors.error_for(
                errors.ARCHIVE_NOT_FOUND,
                f"{self._job.path} has no such messages",
                "check time range, topic filters and queues",
            )
        batches = replay_plan.batches_of(parts, paced=slice_us is not None)
        plan = Plan(f"replay/{uuid.uuid4().hex}", slice_us, batches)
        replay_plan.save(self._files, self._folder, plan)
        return plan

    def _parts(self, place: str, slice_us: int | None) -> list[Part]:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        rows = self._spark.read.parquet(literal(self._files.url(place)))
        keys = (F.col("_metadata.file_name").alias("file"), slice_column(slice_us).alias("slice"))
        found = rows.groupBy(*keys).agg(F.count("*").alias("rows"), F.min(AT).alias("at")).collect()
        return replay_plan.ordered(Part(row.file, row.slice, row.rows, row.at or 0) for row in found)


def sink_options(job: ReplayJob, plan: Plan, number: int) -> dict[str, str]:
    """Give the options of the sink for a batch."""
    from angarium.spark.options import list_text

    found = {"sinkId": plan.sink, "batchId": str(number), **job.options}
    return found if job.queue is None else found | {"queue": list_text([job.queue])}


@contextlib.contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Have a session's settings be other ones while the block runs."""
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, usual in before.items():
            spark.conf.set(name, str(usual))


def slice_column(slice_us: int | None) -> Column:
    """Give the number of the slice of time of a message; 0 where time does not matter."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if slice_us is None:
        return F.lit(0)
    return F.coalesce(F.floor(F.col(AT) / F.lit(slice_us)), F.lit(0))
