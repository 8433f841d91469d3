"""The report of messages that come: a stream of Spark whose figures grow batch by batch.

After each batch the state of the report is written again, under the number of the batch: cells, causes, and a ledger of
each publisher. A batch that Spark runs again after a death starts from the state before it, so each message counts
once. The state is on disk before Spark is told that the batch is done, as its messages are deleted at the node then:
Spark passes over a file that a power cut left empty, and says nothing. It is bounded by topics and clients times
`windows_kept` windows, and by publishers, not by messages:

- A window is **open** until the watermark has passed its end. The watermark is the latest spooled time of all batches
  before, less `watermark_s`. A message whose window is not open any more is counted (`behind_watermark`) and belongs to
  the totals, but to no window.
- Windows beyond the newest `windows_kept` are merged into one for each topic and client, which counts in the totals.

In a stream a message that comes again in another batch and another queue is a duplicate; see `sequences` for archives.

What is known of one publisher's numbering while messages still come: the past in sums, the present in a `Numbering`.

It is kept as bytes between the batches.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

from angarium import errors
from angarium.pipeline.dataset.files import files_of, literal, walk
from angarium.pipeline.report.cells import cells, merged, window_start
from angarium.pipeline.report.facts import facts
from angarium.pipeline.report.figures import WINDOWS_SHOWN, Tables, causes_of
from angarium.pipeline.report.numbering import COUNT_MAX, GAPS_KEPT, REORDER, Gap, Numbering, gap_of
from angarium.pipeline.report.sequences import NUMBERS, batch_of, columns_of, largest_gaps, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.udtf import UserDefinedTableFunction

    from angarium.pipeline.report.job import ReportOptions
    from angarium.pipeline.report.numbering import Run

#: Figures of runs that can be added up.
_SUMS: Final = ("numbered", "missing", "gaps", "duplicates", "out_of_order")


class Ledger:
    """The figures of one publisher."""

    def __init__(self, reorder: int) -> None:
        self.numbering = Numbering(reorder)
        #: Of runs that can get no more numbers.
        self._runs = 0
        self._sums = dict.fromkeys(_SUMS, 0)
        self._highest: int | None = None
        self._largest: list[Gap] = []

    def row(self) -> dict[str, Any]:
        """Give the figures; what is awaited still counts as missing."""
        self._fold()
        sums, largest, highest = dict(self._sums), list(self._largest), self._highest
        for run in self.numbering.open:
            _add(sums, largest, run)
            highest = run.high if highest is None else max(highest, run.high)
        runs = self._runs + len(self.numbering.open)
        return {
            "runs": runs,
            "restarts": max(0, runs - 1),
            **sums,
            "highest": highest,
            "largest": [gap._asdict() for gap in sorted(largest, reverse=True)[:GAPS_KEPT]],
        }

    def to_bytes(self) -> bytes:
        """Give what `from_bytes` needs to go on later."""
        self._fold()
        past = [self._runs, self._sums, self._highest, self._largest]
        return msgspec.msgpack.encode([past, self.numbering.to_state()])

    @classmethod
    def from_bytes(cls, state: bytes) -> Ledger:
        """Go on where `to_bytes` was called."""
        past, numbering = msgspec.msgpack.decode(state)
        ledger = cls(numbering[0])
        ledger.numbering = Numbering.from_state(numbering)
        ledger._runs, ledger._sums, ledger._highest = past[:3]
        ledger._largest = [Gap(*gap) for gap in past[3]]
        return ledger

    def _fold(self) -> None:
        """Add what can change no more to the sums, so that a publisher that starts over a million times stays small."""
        for run in self.numbering.take_closed():
            self._runs += 1
            self._highest = run.high if self._highest is None else max(self._highest, run.high)
            _add(self._sums, self._largest, run)
            self._largest = sorted(self._largest)[-GAPS_KEPT:]


def _add(sums: dict[str, int], largest: list[Gap], run: Run) -> None:
    awaited = [gap_of(first, last, at_ms) for first, last, at_ms in run.holes]
    sums["numbered"] += run.numbered
    sums["missing"] = min(COUNT_MAX, sums["missing"] + run.missing + sum(gap.missing for gap in awaited))
    sums["gaps"] += run.gaps + len(awaited)
    sums["duplicates"] += run.duplicates
    sums["out_of_order"] += run.out_of_order
    largest += [*run.largest, *awaited]


#: Long enough to see a change, short enough to see it come.
WINDOW_S: Final = 60
WATERMARK_S: Final = 600.0
_COUNTS: Final = (
    "runs",
    "restarts",
    "numbered",
    "missing",
    "gaps",
    "duplicates",
    "out_of_order",
    "highest",
)
#: How messages are counted, which is NULL where a version of ours wrote that did not keep it.
_RULES: Final = "window_s bigint, late_ms bigint, by_topic boolean, reorder bigint"
_META: Final = f"spooled_max_ms bigint, behind bigint, {_RULES}"
#: By which options of the command they are chosen, for a value of each.
_OPTIONS: Final[tuple[Callable[[Any], str], ...]] = (
    "with --window {}".format,
    lambda late_ms: f"with --late-after {late_ms / 1000:g}",
    lambda by_topic: f"{'with' if by_topic else 'without'} --sequence-per-topic",
    "with --reorder {}".format,
)
_PARTS: Final = ("cells", "causes", "ledgers")
#: The directory of the states, in that of the report.
_STATES: Final = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What a user may choose of a live report, besides `ReportOptions`."""

    #: Where Spark keeps its place and we the state, on a file system that Spark knows.
    checkpoint: str
    #: Seconds between the beginnings of batches; None: read what is there, and end.
    trigger_s: float | None = 10.0
    watermark_s: float = WATERMARK_S
    windows_kept: int = WINDOWS_SHOWN


class _State(NamedTuple):
    """What a batch left."""

    batch: int
    #: As written, by name.
    parts: dict[str, DataFrame]
    spooled_max_ms: int | None
    behind: int


_NOTHING: Final = _State(-1, {}, None, 0)


class LiveReport:
    """The state of a report between batches."""

    def __init__(self, spark: SparkSession, options: ReportOptions, live: LiveOptions) -> None:
        self._spark = spark
        self._options = options
        self._window_s = options.window_s or WINDOW_S
        #: As in `_RULES`.
        self._rules = (self._window_s, options.late_ms, options.by_topic, options.reorder)
        self._live = live
        self._files = files_of(spark, live.checkpoint)
        #: Of the newest batch; after a start it is read.
        self._state = _NOTHING
        #: Whether a batch is being taken in or shown: a query that is stopped then does that batch again.
        self.is_busy = False

    @contextlib.contextmanager
    def step(self, messages: DataFrame, batch: int) -> Iterator[tuple[Tables, int]]:
        """Take in a batch; give the tables of all messages so far, and how many came behind the watermark.

        Args:
            messages: with the columns of `angarium.spark.schema`.
            batch: its number, rising by ones from 0.
        """
        found = facts(messages).persist()
        try:
            self._state = self._write(found, self._before(batch), batch)
        finally:
            found.unpersist()
        self._forget(batch - 2)
        parts = {name: part.persist() for name, part in self._state.parts.items()}
        try:
            yield self._tables(parts), self._state.behind
        finally:
            for part in parts.values():
                part.unpersist()

    def _tables(self, state: dict[str, DataFrame]) -> Tables:
        return Tables(
            cells=state["cells"],
            publishers=state["ledgers"].drop("largest", "state"),
            gaps=largest_gaps(state["ledgers"]),
            causes=state["causes"],
            window_s=self._window_s,
        )

    def _before(self, batch: int) -> _State:
        """Give the state that a batch starts from.

        Raises:
            InvalidRequestError: it was counted by other rules, so that no figure would be right (INVALID_ARGUMENT).
        """
        if batch == 0:
            return _NOTHING
        if self._state.batch == batch - 1:
            return self._state
        meta = self._spark.read.schema(_META).parquet(literal(self._place(batch - 1, "meta"))).first()
        assert meta is not None, "each state has one row of this"
        self._check_rules(meta[2:])
        places = {name: literal(self._place(batch - 1, name)) for name in _PARTS}
        parts = {name: self._spark.read.parquet(place) for name, place in places.items()}
        return _State(batch - 1, parts, meta["spooled_max_ms"], meta["behind"])

    def _check_rules(self, kept: tuple[Any, ...]) -> None:
        for was, now, shown in zip(kept, self._rules, _OPTIONS, strict=True):
            if was not in (None, now):
                raise errors.invalid(
                    f"the report in {self._live.checkpoint} was begun {shown(was)}, not {shown(now)}",
                    f"go on {shown(was)}, or begin another report in another directory",
                )

    def _write(self, found: DataFrame, before: _State, batch: int) -> _State:
        past_ms = before.spooled_max_ms
        counted = found.agg(
            F.unix_millis(F.max("spooled")).alias("latest"), self._behind(past_ms).alias("behind")
        ).first()
        assert counted is not None, "an aggregation without keys has a row"
        latest_ms = max((one for one in (past_ms, counted["latest"]) if one is not None), default=None)
        behind = (counted["behind"] or 0) + before.behind
        parts = {
            "cells": self._cells(found, before.parts.get("cells"), past_ms, latest_ms),
            "causes": _summed(causes_of(found), before.parts.get("causes")),
            "ledgers": ledgers(
                numbers(found, by_topic=self._options.by_topic),
                before.parts.get("ledgers"),
                self._options.reorder,
            ),
        }
        written = {name: self._written(part, batch, name) for name, part in parts.items()}
        meta = self._spark.createDataFrame([(latest_ms, behind, *self._rules)], _META)
        self._written(meta, batch, "meta")
        self._files.sync(entry.path for entry in walk(self._files, f"{_STATES}/{batch}"))
        return _State(batch, written, latest_ms, behind)

    def _written(self, part: DataFrame, batch: int, name: str) -> DataFrame:
        """Write a part, and give it as it is read; Spark, which would look for its columns, is told them."""
        place = self._place(batch, name)
        part.write.mode("overwrite").parquet(place)
        return self._spark.read.schema(part.schema).parquet(literal(place))

    def _behind(self, past_ms: int | None) -> Any:
        """Count the messages that come too late for their window."""
        if past_ms is None:
            return F.lit(0)
        return F.count_if(~self._is_open(window_start("spooled", self._window_s), past_ms))

    def _is_open(self, start: Column, past_ms: int) -> Column:
        """Tell whether the watermark has not passed the end of a window."""
        watermark = F.timestamp_millis(F.lit(past_ms - round(self._live.watermark_s * 1000)))
        return F.timestamp_seconds(F.unix_seconds(start) + self._window_s) > watermark

    def _cells(
        self, found: DataFrame, before: DataFrame | None, past_ms: int | None, latest_ms: int | None
    ) -> DataFrame:
        window_s = self._window_s
        new = cells(found, window_s, self._options.late_ms)
        if past_ms is not None:
            new = new.withColumn("start", F.when(self._is_open(F.col("start"), past_ms), F.col("start")))
        every = new if before is None else before.unionByName(new)
        oldest_s = ((latest_ms or 0) // 1000 // window_s - self._live.windows_kept + 1) * window_s
        start = F.when(F.unix_seconds("start") >= oldest_s, F.col("start")).alias("start")
        return merged(every, start, "topic", "client")

    def _place(self, batch: int, part: str) -> str:
        return f"{self._live.checkpoint.rstrip('/')}/{_STATES}/{batch}/{part}"

    def _forget(self, batch: int) -> None:
        """Remove a state that no batch can start from any more."""
        if batch >= 0:
            self._files.remove(f"{_STATES}/{batch}")


def _summed(new: DataFrame, before: DataFrame | None) -> DataFrame:
    every = new if before is None else before.unionByName(new)
    keys = [name for name in every.columns if name != "messages"]
    return every.groupBy(*keys).agg(F.sum("messages").alias("messages"))


def ledgers(new: DataFrame, before: DataFrame | None, reorder: int) -> DataFrame:
    """Give the ledger of each publisher: the one before, with new numbers entered.

    Args:
        new: as `sequences.numbers` gives them.
        before: as this function gives them, or None.
        reorder: see `numbering`.
    """
    rows = new.withColumn("state", F.lit(None).cast("binary"))
    if before is not None:
        nothing = [
            F.lit(None).cast("long").alias(name) for name in ("number", "content", "at_ms", "duplicates")
        ]
        rows = before.select("client", "topic", *nothing, "state").unionByName(rows)
    # NULL comes first, so a publisher's state is read before its numbers.
    ordered = rows.repartition("client", "topic").sortWithinPartitions("client", "topic", "at_ms", "number")
    reader = type("LedgerReaderOfReport", (LedgerReader,), {"reorder": reorder})
    read = cast(
        "UserDefinedTableFunction", F.arrow_udtf(reader, returnType=f"{columns_of(_COUNTS)}, state binary")
    )
    return read(ordered.asTable())


class LedgerReader:
    """Reads states and new numbers of many publishers, batch by batch, and gives their ledgers; see `RunsReader`."""

    reorder: int = REORDER

    def __init__(self) -> None:
        self._publisher: tuple[str, str | None] | None = None
        self._ledger = Ledger(self.reorder)

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Read a batch and give the ledgers that are complete."""
        columns = (batch.column(name).to_pylist() for name in (*NUMBERS, "state"))
        done: list[dict[str, Any]] = []
        for client, topic, number, content, at_ms, duplicates, state in zip(*columns, strict=True):
            if (client, topic) != self._publisher:
                done += self._close()
                self._publisher, self._ledger = (client, topic), Ledger(self.reorder)
            if state is not None:
                self._ledger = Ledger.from_bytes(state)
            else:
                self._ledger.numbering.see(number, content, at_ms, duplicates)
        if done:
            yield self._batch(done)

    def terminate(self) -> Iterator[pa.RecordBatch]:
        """Give the ledger of the last publisher."""
        yield self._batch(self._close())

    def _close(self) -> list[dict[str, Any]]:
        if self._publisher is None:
            return []
        client, topic = self._publisher
        return [{"client": client, "topic": topic, **self._ledger.row(), "state": self._ledger.to_bytes()}]

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        return batch_of(rows, _COUNTS, ("state", pa.binary()))


def follow(
    stream: DataFrame, report: LiveReport, live: LiveOptions, show: Callable[[Tables, int], None]
) -> StreamingQuery:
    """Start a live report; the caller waits for the query's end, or ends it.

    Args:
        stream: a streaming DataFrame with the columns of `angarium.spark.schema`.
        report: its state.
        live: when it is updated, and where it keeps its place.
        show: is called after each batch with the tables and the number of messages behind the watermark.
    """

    def take(messages: DataFrame, batch: int) -> None:
        report.is_busy = True
        try:
            with report.step(messages, batch) as (tables, behind):
                show(tables, behind)
        finally:
            report.is_busy = False

    writer = stream.writeStream.foreachBatch(take).option(
        "checkpointLocation", f"{live.checkpoint.rstrip('/')}/spark"
    )
    if live.trigger_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(live.trigger_s * 1000)} milliseconds").start()
