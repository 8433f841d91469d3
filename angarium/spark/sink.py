"""Rows of Spark published as messages: `df.write.format("angarium")` and `writeStream`.

    df.write.format("angarium").mode("append").option("queue", "orders").save()
    df.writeStream.format("angarium").option("checkpointLocation", path).start()

A writer is made anew in each process that Spark asks: in the driver's planner, in every task, and for each commit. It
carries the options and nothing else, and what is to survive is kept by the node. Tasks publish
(`angarium.spark.sending`); what the options and columns mean is decided here before anything is connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from angarium import errors, wire
from angarium.spark import options, sending
from angarium.spark.rows import Place, Target, rows_of
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from angarium.spark.options import Settings

#: Rows that are converted and published together: their copies are what a task holds besides Spark's own batch.
PORTION_ROWS: Final = 5_000
#: What Spark tells a task of the streaming query it belongs to; kept in the query's checkpoint.
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    #: The id of the streaming query, if Spark says.
    query: str | None = None


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
        return Written(publish(self.settings, self.target, iterator, task), query)


class Writer(_Writing, DataSourceArrowWriter):
    """Publishes a data frame."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options.WRITE, given, schema, overwrite=overwrite)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options.STREAM_WRITE, given, schema, overwrite=overwrite)


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


def publish(settings: Settings, target: Target, batches: Iterator[pa.RecordBatch], task: int) -> int:
    """Publish the rows of a task, and give how many; a task without rows connects to nothing.

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
        if opened is not None:
            opened.delivery.finish(place)
    finally:
        if opened is not None:
            opened.client.close()
    return place.first - 1


def portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut record batches into portions of at most PORTION_ROWS rows; empty ones are left out."""
    for batch in batches:
        for start in range(0, batch.num_rows, PORTION_ROWS):
            yield batch.slice(start, PORTION_ROWS)
