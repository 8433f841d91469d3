"""Rows of Spark published as messages: `df.write.format("angarium")` and `writeStream`.

    df.write.format("angarium").mode("append").option("queue", "orders").save()
    df.writeStream.format("angarium").option("checkpointLocation", path).start()

Spark creates a writer again in each process: in the driver's planner, in every task, and for each commit. So a writer
has the options and no other state; the node keeps what must survive. Tasks publish
(`angarium.spark.sending`); what the options and columns mean is decided here before anything is connected.

The driver commits the stages of a batch in one step, or drops them. A task's commit message names its stage. The node
keeps, per username and *sink*, the last batch that was committed, so that a batch which Spark runs again is recognised
and its new stages are dropped. What identifies a sink must come back after a restart from the checkpoint and belong to
no other query: the id that Spark gives a streaming query is made with its checkpoint and kept there, and tasks are told
it. So it is in the name of the sink, behind what `sinkId` says. Neither a path nor a name that a user gives would do
alone: who starts over with it begins with batch 0 again, which was committed, and would publish nothing.

A data frame that is written as a whole has no batches: its stages are committed together, and a write that is begun
again is another one, unless `sinkId` and `batchId` say which one it is, as in a `foreachBatch`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from angarium import errors, wire
from angarium.spark import options, sending
from angarium.spark.connecting import open_client
from angarium.spark.rows import Place, Target, rows_of
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from angarium.spark.options import Settings

#: What the sinks of streaming queries are called before the id of the query, unless `sinkId` says something else.
QUERY_PREFIX: Final = "spark"
#: Between two tries to reach a node that is starting.
_RETRY_INTERVAL_S: Final = 0.5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    #: Where the rows are until the driver commits them; None if they are out, or there are none.
    stage: str | None = None
    #: The id of the streaming query, if Spark says.
    query: str | None = None


class Commitment(NamedTuple):
    """What is committed in one step."""

    #: In the order of their tasks, which is the order of their rows.
    stages: tuple[str, ...]
    #: Who commits, and which batch; None for a write that is no part of a sequence.
    sink: str | None = None
    batch: int | None = None


def write_commitment(settings: Settings, messages: Sequence[Any]) -> Commitment | None:
    """Give what to commit for a data frame; None if there is nothing.

    Raises:
        InvalidRequestError: one of `sinkId` and `batchId` is given without the other (INVALID_ARGUMENT).
    """
    check_identity(settings)
    stages = stages_of(messages)
    if not stages:
        return None
    if settings["sinkId"] is None:
        return Commitment(stages)
    query = _query_of(messages)
    return Commitment(stages, _sink(settings["sinkId"], query), settings["batchId"])


def stream_commitment(settings: Settings, messages: Sequence[Any], batch: int) -> Commitment | None:
    """Give what to commit for a batch of a streaming query; None if there is nothing.

    Raises:
        InvalidRequestError: there is no `sinkId`, and Spark told the tasks no id of the query (INVALID_ARGUMENT).
    """
    stages = stages_of(messages)
    if not stages:
        return None
    query = _query_of(messages)
    if query is None and settings["sinkId"] is None:
        why = "Spark tells no id of the query here: give a name that no other checkpoint has"
        raise options.invalid("sinkId", why)
    return Commitment(stages, _sink(settings["sinkId"] or QUERY_PREFIX, query), batch)


def _query_of(messages: Sequence[Any]) -> str | None:
    """Give the query that the tasks belong to; None if Spark did not say."""
    queries = {message.query for message in messages if message is not None and message.stage}
    return queries.pop() if len(queries) == 1 else None


def _sink(name: str, query: str | None) -> str:
    return name if query is None else f"{name}/{query}"


def check_identity(settings: Settings) -> None:
    """Check that a data frame that is part of a sequence says of which, and where in it.

    Raises:
        InvalidRequestError: it says only one of the two (INVALID_ARGUMENT).
    """
    if (settings["sinkId"] is None) != (settings["batchId"] is None):
        missing = "sinkId" if settings["sinkId"] is None else "batchId"
        raise options.invalid(missing, "sinkId and batchId of a data frame are given together")


def stages_of(messages: Sequence[Any]) -> tuple[str, ...]:
    """Give the stages that tasks tell of; a task that failed has no message."""
    return tuple(message.stage for message in messages if message is not None and message.stage)


def commit(settings: Settings, commitment: Commitment, connect: Callable[..., Any] = open_client) -> bool:
    """Commit stages, whatever becomes of connections meanwhile; False if the batch was committed before.

    Committing again is harmless, so whatever may pass by itself is tried again for `retrySeconds`.

    Raises:
        AngariumError: the node refuses, or cannot be reached. What became of the stages is unknown in the second case;
            who runs the batch again publishes nothing twice.
    """
    deadline = time.monotonic() + settings["retrySeconds"]
    while True:
        try:
            with connect(settings) as client:
                committed: bool = client.commit_stages(commitment.stages, commitment.sink, commitment.batch)
                return committed
        except errors.AngariumError as error:
            if error.code not in errors.PASSING or time.monotonic() >= deadline:
                raise
            _logger.warning("commit of %d stages is tried again: %s", len(commitment.stages), error)
        time.sleep(_RETRY_INTERVAL_S)


def drop(
    settings: Settings, stages: Sequence[str], connect: Callable[..., Any] = open_client
) -> errors.AngariumError | None:
    """Drop stages that nobody will commit; give what went wrong, which need not be an error: they age out anyhow."""
    if not stages:
        return None
    try:
        with connect(settings) as client:
            client.abort_stages(stages)
    except errors.AngariumError as error:
        _logger.warning("%d stages are left to age out: %s", len(stages), error)
        return error
    return None


#: Rows that are converted and published together: their copies are what a task holds besides Spark's own batch.
PORTION_ROWS: Final = 10_000
PORTION_BYTES: Final = 16 * 1024 * 1024
#: What Spark tells a task of the streaming query it belongs to; kept in the query's checkpoint.
_QUERY_ID: Final = "sql.streaming.queryId"


class _Writing:
    """What both writers do."""

    def __init__(self, use: str, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Check everything that can be checked without the node.

        Raises:
            InvalidRequestError: an option or a column is not possible (INVALID_ARGUMENT); the text names it.
        """
        self.settings = options.settings(use, given)
        if overwrite:
            raise errors.invalid(
                "mode overwrite: nothing is replaced by messages",
                "write with mode append",
            )
        check_types(schema)
        self.target = target_of(self.settings, schema.fieldNames())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task.

        Raises:
            AngariumError: a row is wrong or refused, and named; or the node cannot be reached.
        """
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        return publish(self.settings, self.target, iterator, task, query)


class Writer(_Writing, DataSourceArrowWriter):
    """Publishes a data frame."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options.WRITE, given, schema, overwrite=overwrite)
        check_identity(self.settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the stages of all tasks in one step, in the order of the tasks.

        Raises:
            AngariumError: the node refuses, or cannot be reached.
        """
        commitment = write_commitment(self.settings, messages)
        if commitment is not None:
            commit(self.settings, commitment)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the stages of the tasks that were done when another one failed."""
        drop(self.settings, stages_of(messages))


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options.STREAM_WRITE, given, schema, overwrite=overwrite)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the stages of a batch in one step, or drop them if the batch was committed before.

        Raises:
            AngariumError: the node refuses, or cannot be reached.
        """
        commitment = stream_commitment(self.settings, messages, batchId)
        if commitment is not None:
            commit(self.settings, commitment)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        """Drop the stages of the tasks that were done when the batch failed; what is committed stays."""
        drop(self.settings, stages_of(messages))


def target_of(settings: Settings, columns: Sequence[str]) -> Target:
    """Give where rows go by the options and the columns that there are.

    Raises:
        InvalidRequestError: there is no destination, or more than one (INVALID_ARGUMENT).
    """
    queues, topic = settings["queue"], settings["topic"]
    is_direct = settings["delivery"] == sending.DIRECT
    if queues and topic:
        raise options.invalid("queue", "it is given beside topic; a message goes to one of them")
    if queues:
        if len(queues) > 1:
            raise options.invalid("queue", f"{len(queues)} are given; rows are written to one queue")
        if is_direct:
            raise options.invalid(
                "queue", "what is written to a queue is guaranteed; delivery direct is for topics"
            )
        return Target(wire.QUEUE_TOPIC_PREFIX + queues[0], shown=f"queue {queues[0]!r}")
    if topic is None and "topic" not in columns:
        raise options.invalid("topic", "rows need a column topic, or one of the options topic and queue")
    return Target(topic, is_direct)


def publish(
    settings: Settings, target: Target, batches: Iterator[pa.RecordBatch], task: int, query: str | None = None
) -> Written:
    """Publish the rows of a task, and give what the driver needs; a task without rows connects to nothing.

    Raises:
        AngariumError: a row is wrong or refused, and named; or the node cannot be reached.
    """
    opened: sending.Opened | None = None
    place = Place(target, 1, task)
    try:
        for portion in portions(batches):
            rows = rows_of(portion, place)
            if opened is None:
                opened = sending.open_delivery(settings)
            opened.delivery.send(rows, place)
            place = place._replace(first=place.first + len(rows))
        if opened is None:
            return Written(0)
        opened.delivery.finish(place)
        stage = None if opened.stage is None else opened.stage.id
        return Written(place.first - 1, stage, query)
    except Exception:
        if opened is not None:
            opened.abandon()
        raise
    finally:
        if opened is not None:
            opened.client.close()


def portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut record batches into portions of PORTION_ROWS and about PORTION_BYTES at most; empty ones are left out."""
    for batch in batches:
        if not batch.num_rows:
            continue
        most = PORTION_BYTES * batch.num_rows // max(batch.nbytes, 1)
        step = min(max(most, 1), PORTION_ROWS)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
