"""Gaps, duplicates and restarts in the publishers' numbering, as tables of Spark.

A publisher is told by its `sender_id`, and by the topic as well where it numbers each topic on its own. What counts:

- **Duplicate**: one queue has a message twice: the same publisher, number, topic, sender's time, application id and
  payload. The same message in two queues is none, since both queues attracted it.
- **Order** is that of spooling; within a millisecond that of the numbers. A message that was moved (into a dead message
  queue, say) was spooled late for a reason, so it counts at its sender's time; without one it is left out.
- Runs, gaps and what is out of order are those of `angarium.pipeline.report.numbering`.

Copies are dropped by a hash aggregation first; then each publisher's numbers are sorted and read once, so a task holds
a thousand numbers of one publisher at a time and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

from angarium.pipeline.report.numbering import COUNT_MAX, REORDER, Numbering

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.udtf import UserDefinedTableFunction

    from angarium.pipeline.report.numbering import Run

#: Columns of `numbers`.
NUMBERS: Final = ("client", "topic", "number", "content", "at_ms", "duplicates")
_Publisher: TypeAlias = tuple[str, str | None]
#: Figures of a run.
_COUNTS: Final = (
    "first",
    "last",
    "started_ms",
    "ended_ms",
    "numbered",
    "duplicates",
    "out_of_order",
    "missing",
    "gaps",
)
_GAPS: Final = "largest array<struct<missing:bigint,first:bigint,last:bigint,at_ms:bigint>>"


def columns_of(counts: tuple[str, ...]) -> str:
    """Give the columns of rows that `batch_of` makes, as Spark reads them."""
    return ", ".join(("client string, topic string", *(f"{name} bigint" for name in counts), _GAPS))


def numbers(found: DataFrame, *, by_topic: bool) -> DataFrame:
    """Give the numbered messages without copies: client, topic, number, content, at_ms, duplicates.

    Args:
        found: as `facts.facts` gives them.
        by_topic: whether publishers number each topic on its own; else `topic` is NULL.
    """
    at = F.when(F.col("origin_reason").isNull(), F.col("spooled")).otherwise(F.col("sent"))
    rows = found.where(F.col("client").isNotNull() & F.col("number").isNotNull()).select(
        "client",
        (F.col("topic") if by_topic else F.lit(None).cast("string")).alias("topic"),
        "number",
        "content",
        "queue",
        F.unix_millis(at).alias("at_ms"),
    )
    key = ("client", "topic", "number", "content")
    in_a_queue = (
        rows.where(F.col("at_ms").isNotNull())
        .groupBy(*key, "queue")
        .agg(F.min("at_ms").alias("at_ms"), F.count("*").alias("copies"))
    )
    return in_a_queue.groupBy(*key).agg(
        F.min("at_ms").alias("at_ms"), F.sum(F.col("copies") - 1).alias("duplicates")
    )


def runs(found: DataFrame, *, by_topic: bool = False, reorder: int = REORDER) -> DataFrame:
    """Give a row for each run of each publisher, with the figures of `numbering.Run`."""
    ordered = (
        numbers(found, by_topic=by_topic)
        .repartition("client", "topic")
        .sortWithinPartitions("client", "topic", "at_ms", "number")
    )
    # A class is what Spark ships to its workers, so what it needs to know is part of it.
    reader = type("RunsReaderOfReport", (RunsReader,), {"reorder": reorder})
    read = cast("UserDefinedTableFunction", F.arrow_udtf(reader, returnType=columns_of(_COUNTS)))
    return read(ordered.asTable())


class RunsReader:
    """Reads the sorted numbers of many publishers, batch by batch, and gives their runs.

    `eval` and `terminate` are the names by which Spark calls it. That kind of function, unlike `mapInArrow`, runs
    where pandas is not installed.
    """

    reorder: int = REORDER

    def __init__(self) -> None:
        self._publisher: _Publisher | None = None
        self._numbering = Numbering(self.reorder)

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Read a batch and give the runs that ended."""
        columns = (batch.column(name).to_pylist() for name in NUMBERS)
        done: list[dict[str, Any]] = []
        for client, topic, number, content, at_ms, duplicates in zip(*columns, strict=True):
            if (client, topic) != self._publisher:
                done += self._close()
                self._publisher, self._numbering = (client, topic), Numbering(self.reorder)
            self._numbering.see(number, content, at_ms, duplicates)
        if self._publisher is not None:
            done += _rows(self._publisher, self._numbering.take_closed())
        if done:
            yield batch_of(done, _COUNTS)

    def terminate(self) -> Iterator[pa.RecordBatch]:
        """Give the runs of the last publisher."""
        yield batch_of(self._close(), _COUNTS)

    def _close(self) -> list[dict[str, Any]]:
        return [] if self._publisher is None else _rows(self._publisher, self._numbering.close())


def _rows(publisher: _Publisher, closed: list[Run]) -> list[dict[str, Any]]:
    return [
        {
            "client": publisher[0],
            "topic": publisher[1],
            "first": run.first,
            "last": run.high,
            "started_ms": run.started_ms,
            "ended_ms": run.ended_ms,
            "numbered": run.numbered,
            "duplicates": run.duplicates,
            "out_of_order": run.out_of_order,
            "missing": run.missing,
            "gaps": run.gaps,
            "largest": [gap._asdict() for gap in reversed(run.largest)],
        }
        for run in closed
    ]


def batch_of(rows: list[dict[str, Any]], counts: tuple[str, ...], *more: tuple[str, Any]) -> pa.RecordBatch:
    """Give rows to Spark: client, topic, counts, the largest gaps, and more columns with their Arrow types."""
    import pyarrow as pa

    gap = pa.struct([(name, pa.int64()) for name in ("missing", "first", "last", "at_ms")])
    texts = [(name, pa.string()) for name in ("client", "topic")]
    numbers = [(name, pa.int64()) for name in counts]
    schema = pa.schema([*texts, *numbers, ("largest", pa.list_(gap)), *more])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def publishers(found: DataFrame) -> DataFrame:
    """Give a row for each publisher: its runs together."""
    return found.groupBy("client", "topic").agg(
        F.count("*").alias("runs"),
        (F.count("*") - 1).alias("restarts"),
        *(capped_sum(name) for name in ("numbered", "missing", "gaps", "duplicates", "out_of_order")),
        F.max("last").alias("highest"),
    )


def capped_sum(name: str) -> Column:
    """Sum up counts, but not beyond what a run can count: an overflow would end the job. Without a row it is 0."""
    total = F.coalesce(F.sum(F.col(name).cast("decimal(38,0)")), F.lit(0))
    return F.least(total, F.lit(COUNT_MAX)).cast("long").alias(name)


def largest_gaps(found: DataFrame) -> DataFrame:
    """Give a row for each gap that the runs kept."""
    return found.select("client", "topic", F.explode("largest").alias("gap")).select(
        "client", "topic", "gap.missing", "gap.first", "gap.last", F.timestamp_millis("gap.at_ms").alias("at")
    )
