"""The job archive: what queues hold becomes Parquet, each message once, whenever the job is killed.

Spark's stream reads the queues and says in its checkpoint which range it plans; `BatchWriter` brings each range into
the archive once. What the checkpoint says is done is acknowledged to the node: by the source when the stream begins and
while it runs, and by the job itself when it ends, because a stream acknowledges a batch only when it plans the next. At
a clean end the lease of the queues is given back.

The stream leases each queue for a reader group, and acknowledges a batch when Spark plans the next one. What it did not
come to is done here, from what its checkpoint says.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from angarium import errors
from angarium.pipeline.dataset import compaction
from angarium.pipeline.dataset.batches import BatchWriter
from angarium.pipeline.dataset.checkpoint import Progress, progress_of
from angarium.pipeline.dataset.files import files_of
from angarium.pipeline.dataset.layout import DIRECTORIES_MAX, LEVELS_MAX, PRIVATE, name_of
from angarium.pipeline.dataset.progress import silent
from angarium.pipeline.failures import clear_failure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from threading import Event

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium.blocking.reader_group import ReaderGroup
    from angarium.pipeline.dataset.files import Files
    from angarium.pipeline.dataset.progress import Show
    from angarium.spark.offsets import Offset, Range


class QueueSource:
    """The queues or topic filters of a job, read by one reader group."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read with the options of `format("angarium")`, `group` among them.

        Raises:
            InvalidRequestError: an option is not possible (INVALID_ARGUMENT); the text names it.
        """
        from angarium.spark import options

        self._given = dict(given)
        self._settings = options.settings(options.STREAM, given)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Give the stream."""
        from angarium.spark import register

        register(spark)
        return spark.readStream.format("angarium").options(**self._given).load()

    def acknowledge(self, start: str | None, end: str) -> None:
        """Say that all between two places of the checkpoint is in the archive.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        from angarium.spark import offsets
        from angarium.spark.connecting import blaming, open_client

        first = None if start is None else offsets.parse(json.loads(start))
        last = offsets.parse(json.loads(end))
        if last is None:
            return
        done = offsets.ranges(first, last)
        with blaming(self._settings), open_client(self._settings) as client:
            if (client.node, self._settings["vpn"]) != (last.node, last.vpn):
                return  # Another node counts its queues from 1 as well: the stream will say so.
            for queue in sorted({one.lane.queue for one in done}):
                lease_s = self._settings["leaseSeconds"]
                with client.reader_group(queue, last.group, lease_s=lease_s) as group:
                    _acknowledge(group, last, [one for one in done if one.lane.queue == queue])

    def release(self) -> None:
        """Give back the lease of the queues.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        from angarium.spark.connecting import blaming, open_client, queues_of

        with blaming(self._settings), open_client(self._settings) as client:
            for queue in queues_of(self._settings):
                client.reader_group(queue, self._settings["group"]).release()


def _acknowledge(group: ReaderGroup, last: Offset, done: list[Range]) -> None:
    """Acknowledge ranges of one queue; one that went back to it with an old lease is planned again before."""
    from angarium.spark.offsets import is_anew

    if group.endpoint_id != last.endpoints[group.queue] or is_anew(last, group.node_id):
        # Another queue of that name: the stream will say so, and nobody would use a lease that begins here.
        if not group.continued:
            group.release()
        return
    ends = {one.lane.partition: one.end for one in done if one.lane.partition in group.partitions}
    if not ends:
        return
    starts = {one.lane.partition: one.first for one in done if one.lane.partition in ends}
    lost = {number: one.planned < ends[number] for number, one in group.positions().items() if number in ends}
    again = {number: starts[number] for number, is_lost in lost.items() if is_lost}
    if again:
        group.plan(again, ends={number: ends[number] for number in again})
    group.acknowledge(ends)


AVAILABLE_NOW: Final = "available-now"
ONCE: Final = "once"
CONTINUOUS: Final = "continuous"
TRIGGERS: Final = (AVAILABLE_NOW, ONCE, CONTINUOUS)

#: A batch is what a kill has done again, and what is held back from readers until it is whole.
BATCH_MESSAGES: Final = 250_000
JOBS: Final = f"{PRIVATE}/jobs"
#: The file beside a checkpoint that a run keeps for itself.
RUNNING: Final = "running"
#: Batches after which a stream that does not end compacts what it has written.
COMPACT_EVERY: Final = 100
_POLL_S: Final = 0.2
_DIGEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What is archived, and how."""

    #: Directory of the archive, on any file system that Spark knows and that renames files in one step.
    path: str
    queues: tuple[str, ...] = ()
    #: Topic filters instead, for which the source makes a durable queue of its own.
    topics: tuple[str, ...] = ()
    #: Options of the source: where the node is, and whatever else it takes.
    options: Mapping[str, str] = field(default_factory=dict)
    trigger: str = AVAILABLE_NOW
    #: Between the batches of a continuous stream.
    interval_s: float = 10.0
    levels: int = 1
    directories_max: int = DIRECTORIES_MAX
    batch_messages: int = BATCH_MESSAGES
    batch_bytes: int | None = None
    compact: bool = False
    #: Of the checkpoint inside the archive, one for each set of queues; made from them if it is empty.
    name: str = ""

    def validate(self) -> None:
        """Check that the job can be done.

        Raises:
            InvalidRequestError: it cannot (INVALID_ARGUMENT).
        """
        if bool(self.queues) == bool(self.topics):
            raise errors.invalid("an archive is of queues or of topic filters: name one or the other")
        if self.trigger not in TRIGGERS:
            raise errors.invalid(f"trigger {self.trigger!r}, possible are {', '.join(TRIGGERS)}")
        if not 0 <= self.levels <= LEVELS_MAX:
            raise errors.invalid(f"{self.levels} levels of topics, from 0 to {LEVELS_MAX} are possible")
        if name_of(self.name) != self.name and self.name:
            raise errors.invalid(
                f"the name {self.name!r} of the checkpoint; letters, digits and '._-' are possible"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a run of the job did."""

    archive: str
    name: str
    messages: int
    batches: int
    files_before_compaction: int
    files_after_compaction: int
    #: Whether the queues were given back; they are not while a range has to be read again.
    released: bool


class Source(Protocol):
    """Where the messages come from."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Give the stream."""

    def acknowledge(self, start: str | None, end: str) -> None:
        """Say that all between two places is in the archive; the places are what the checkpoint has."""

    def release(self) -> None:
        """Give back what is held for this job."""


def archive(
    spark: SparkSession,
    job: ArchiveJob,
    show: Show = silent,
    stop: Event | None = None,
    source: Source | None = None,
) -> Archived:
    """Archive what there is, or go on until an event says stop.

    Args:
        spark: a session.
        job: what is archived.
        show: is called with the number of messages.
        stop: set by another thread or a signal's handler; the batch that runs comes to its end.
        source: where messages come from, if not from the queues of the job.

    Raises:
        AngariumError: options, queues or the archive are not as they should be; the node refuses; Spark fails. The
            same job can be run again.
    """
    job.validate()
    try:
        run = _Run(spark, job, source)
        with run.hold() as is_alone:
            run.prepare(is_alone=is_alone)
            run.stream(show, stop)
            return run.end(show)
    except Exception as error:
        raise clear_failure(error) from error


class _Run:
    """One run of the job."""

    def __init__(self, spark: SparkSession, job: ArchiveJob, source: Source | None) -> None:
        self._spark = spark
        self._job = job
        self._files = files_of(spark, job.path)
        self._name = job.name or name_for(job)
        self._folder = f"{JOBS}/{self._name}"
        self._checkpoint = f"{self._folder}/checkpoint"
        job_id = open_checkpoint(self._files, self._folder, job)
        self._source = source or QueueSource(source_options(job, f"archive-{self._name}-{job_id}"))
        self._writer = BatchWriter(
            self._files, job_id, self._checkpoint, levels=job.levels, directories_max=job.directories_max
        )
        self._merged = [0, 0]
        #: What a batch failed with; Spark hands on its text only.
        self._failure: Exception | None = None

    def hold(self) -> AbstractContextManager[bool]:
        """Keep the checkpoint for this run: another one would remove what this one is about to put into the archive."""
        return self._files.hold(f"{self._folder}/{RUNNING}")

    def prepare(self, *, is_alone: bool) -> None:
        """Bring the archive to where the checkpoint is; the stream does so with the node, and finds what is lost."""
        self._writer.recover(is_alone=is_alone)

    def stream(self, show: Show, stop: Event | None) -> None:
        """Let the stream run until it has drained its source, or an event says stop."""
        self._follow(self._start(self._job.trigger, stop), show, stop)
        if not progress_of(self._files, self._checkpoint).is_clean:
            # It was stopped between planning a batch and writing it: that one is still done.
            self._follow(self._start(ONCE, None), show, None)
        show(self._writer.messages)

    def _follow(self, query: StreamingQuery, show: Show, stop: Event | None) -> None:
        try:
            while query.isActive:
                show(self._writer.messages)
                if stop is not None and stop.is_set() and not self._writer.is_busy:
                    return
                time.sleep(_POLL_S)
            query.awaitTermination()  # Raises what it failed with.
        except Exception as error:
            if stop is not None and stop.is_set() and self._failure is None:
                return
            raise self._failure or error from error
        finally:
            query.stop()

    def end(self, show: Show) -> Archived:
        """Compact, acknowledge, and give the source back unless it has to be read again."""
        if self._job.compact:
            self._compact(show)
        released = self._acknowledge()
        if released:
            self._source.release()
        return Archived(
            archive=self._job.path,
            name=self._name,
            messages=self._writer.messages,
            batches=self._writer.batches,
            files_before_compaction=self._merged[0],
            files_after_compaction=self._merged[1],
            released=released,
        )

    def _start(self, trigger: str, stop: Event | None) -> StreamingQuery:
        def write(rows: DataFrame, batch: int) -> None:
            if stop is not None and stop.is_set():
                raise errors.error_for(errors.CLIENT_CLOSED, "the job was told to stop")
            self._write(rows, batch)

        writer = self._source.rows(self._spark).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", self._files.url(self._checkpoint))
        if trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif trigger == ONCE:
            writer = writer.trigger(once=True)
        else:
            writer = writer.trigger(processingTime=f"{int(self._job.interval_s * 1000)} milliseconds")
        return writer.start()

    def _write(self, rows: DataFrame, batch: int) -> None:
        try:
            self._writer.write(rows, batch)
            if self._job.compact and batch and batch % COMPACT_EVERY == 0:
                self._compact(silent)
        except Exception as error:
            self._failure = error
            raise

    def _acknowledge(self) -> bool:
        """Acknowledge what is done; tell whether nothing is planned beyond that."""
        progress = progress_of(self._files, self._checkpoint)
        acknowledge_once(self._files, self._folder, progress, self._source)
        return progress.is_clean

    def _compact(self, show: Show) -> None:
        before, after = compaction.compact(self._spark, self._files, show)
        self._merged[0] += before
        self._merged[1] += after


def acknowledge_once(files: Files, folder: str, progress: Progress, source: Source) -> None:
    """Acknowledge what is done, and note that: it must not be done again where a node was made anew.

    A new node of the same name has queues of the same numbers, with other messages at the same positions.
    """
    note = f"{folder}/acknowledged"
    if progress.end is None or (files.exists(note) and files.read(note) == progress.end):
        return
    source.acknowledge(progress.start, progress.end)
    files.remove(note)
    files.create(note, progress.end)


def name_for(job: ArchiveJob) -> str:
    """Give the name of the checkpoint of a job that has none: that of its queue, or a digest of all."""
    if len(job.queues) == 1 and name_of(job.queues[0]) == job.queues[0]:
        return job.queues[0]
    what = json.dumps([sorted(job.queues), sorted(job.topics)])
    kind = "queues" if job.queues else "topics"
    return f"{kind}-{hashlib.sha256(what.encode()).hexdigest()[:_DIGEST]}"


def open_checkpoint(files: Files, folder: str, job: ArchiveJob) -> str:
    """Give the id of a checkpoint, which is made with it: batches of another one are others.

    Raises:
        ConflictError: the checkpoint is that of other queues or topics (OBJECT_EXISTS).
    """
    place = f"{folder}/job.json"
    wanted: dict[str, Any] = {"queues": sorted(job.queues), "topics": sorted(job.topics)}
    if not files.exists(place):
        files.create(place, json.dumps({"id": uuid.uuid4().hex[:_DIGEST], **wanted}))
    found = json.loads(files.read(place))
    if {key: found[key] for key in wanted} != wanted:
        what = ", ".join(found["queues"] or found["topics"])
        detail = f"the checkpoint {files.url(folder)} is that of {what}"
        raise errors.error_for(errors.OBJECT_EXISTS, detail, "name another checkpoint with --name")
    return str(found["id"])


def source_options(job: ArchiveJob, group: str) -> dict[str, str]:
    """Give the options of the source for a job."""
    from angarium.spark.options import list_text

    found = {"group": group, "maxMessagesPerTrigger": str(job.batch_messages)}
    if job.batch_bytes is not None:
        found["maxBytesPerTrigger"] = str(job.batch_bytes)
    if job.queues:
        found["queue"] = list_text(job.queues)
    else:
        found["topics"] = list_text(job.topics)
    return found | dict(job.options)
