"""Rows of Spark published as messages: `df.write.format("angarium")` and `writeStream`.

    df.write.format("angarium").mode("append").option("queue", "orders").save()
    df.writeStream.format("angarium").option("checkpointLocation", path).start()

Spark creates a writer again in each process: in the driver's planner, in every task, and for each commit. So a writer
has the options and no other state; the node keeps what must survive. Tasks publish
(`angarium.spark.sending`); what the options and columns mean is decided here before anything is connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from angarium import errors, wire
from angarium.spark import commits, options, sending
from angarium.spark.commits import Written
from angarium.spark.rows import Place, Target, rows_of
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from angarium.spark.options import Settings

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
            raise errors.error_for(
                errors.INVALID_ARGUMENT,
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
        commits.check_identity(self.settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the stages of all tasks in one step, in the order of the tasks.

        Raises:
            AngariumError: the node refuses, or cannot be reached.
        """
        commitment = commits.write_commitment(self.settings, messages)
        if commitment is not None:
            commits.commit(self.settings, commitment)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the stages of the tasks that were done when another one failed."""
        commits.drop(self.settings, commits.stages_of(messages))


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options.STREAM_WRITE, given, schema, overwrite=overwrite)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the stages of a batch in one step, or drop them if the batch was committed before.

        Raises:
            AngariumError: the node refuses, or cannot be reached.
        """
        commitment = commits.stream_commitment(self.settings, messages, batchId)
        if commitment is not None:
            commits.commit(self.settings, commitment)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        """Drop the stages of the tasks that were done when the batch failed; what is committed stays."""
        commits.drop(self.settings, commits.stages_of(messages))


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
