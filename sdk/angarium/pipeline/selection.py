"""Which messages of an archive a job takes, and in which order: by time and topic filter.

Order. Messages of one queue partition have positions, and that order is kept whatever the clocks said. Messages of
several are merged by the time at which they were stored; a time that is earlier than one before it in its partition
counts as that one. So what one publisher sent through one queue keeps its order, and what came through several is as
the node stored it, to the millisecond.

A queue that was deleted and made again begins with position 1, and needs a checkpoint of its own. So a checkpoint whose
positions begin below the end of the one before is of another **life** of the queue, and each life is merged by time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium.topic import parse_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

#: The column of the time by which messages are merged, in microseconds since 1970.
AT: Final = "_at"
#: Positions that one task walks through to find the latest time so far; a partition is walked by many at once.
_BUCKET: Final = 10_000
_LANE: Final = ("_lane_queue", "_lane_partition", "_lane_bucket")
#: The column of the checkpoint that archived a message; empty if that is not known.
JOB: Final = "_job"
_LIFE: Final = "_lane_life"
#: Absolute ends: `$` of the engines also matches before a line feed.
_START, _END = "^", "(?![\\s\\S])"


class Selection(NamedTuple):
    """Which messages."""

    since: datetime | None = None
    #: Exclusive.
    until: datetime | None = None
    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


def select(rows: DataFrame, selection: Selection) -> DataFrame:
    """Give the messages of an archive that are wanted.

    Raises:
        InvalidRequestError: a topic filter is none (INVALID_FILTER).
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if selection.since is not None:
        rows = rows.filter(F.col("spooled_timestamp") >= F.lit(selection.since))
    if selection.until is not None:
        rows = rows.filter(F.col("spooled_timestamp") < F.lit(selection.until))
    if selection.topics:
        rows = rows.filter(_matches_any(selection.topics))
    if selection.queues:
        rows = rows.filter(F.col("queue").isin(*selection.queues))
    return rows


def in_order(rows: DataFrame) -> DataFrame:
    """Sort messages, which have the column JOB, as they are to be sent again, with the column AT in its place."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    bucket = F.floor(F.coalesce("position", F.lit(0)) / F.lit(_BUCKET))
    keys = (F.coalesce("queue", F.lit("")), F.coalesce("partition", F.lit(0)), bucket)
    rows = rows.withColumns(dict(zip(_LANE, keys, strict=True)))
    at = F.unix_micros("spooled_timestamp")
    lives = _with_lives(
        rows.groupBy(*_LANE, JOB).agg(
            F.max(at).alias("_latest"),
            F.min(at).alias("_earliest"),
            F.min("position").alias("_lowest"),
            F.max("position").alias("_highest"),
        )
    )
    before = Window.partitionBy(*_LANE[:2], _LIFE).orderBy(_LANE[2])
    latest = F.max("_latest").over(before.rangeBetween(Window.unboundedPreceding, -1)).alias("_before")
    so_far = Window.partitionBy(*_LANE, _LIFE).orderBy("position").rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.join(F.broadcast(lives.select(*_LANE, JOB, _LIFE, latest)), [*_LANE, JOB])
    rows = rows.withColumn(AT, F.greatest("_before", F.max(at).over(so_far)))
    rows = rows.orderBy(AT, "queue", "partition", _LIFE, "position")
    return rows.drop(*_LANE, JOB, _LIFE, "_before")


def _with_lives(found: DataFrame) -> DataFrame:
    """Number the lives of each queue: one begins with a checkpoint that begins below the end of the one before."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    lane, job = Window.partitionBy(*_LANE[:2]), Window.partitionBy(*_LANE[:2], JOB)
    found = found.withColumn("_since", F.min("_earliest").over(job))
    found = found.withColumn("_place", F.dense_rank().over(lane.orderBy("_since", JOB)))
    until = lane.orderBy("_place")
    highest = F.max("_highest").over(until.rangeBetween(-1, -1))
    is_first = F.row_number().over(job.orderBy(_LANE[2])) == F.lit(1)
    begins = F.coalesce(is_first & (F.min("_lowest").over(job) <= highest), F.expr("false"))
    found = found.withColumn("_begins", begins.cast("int"))
    return found.withColumn(_LIFE, F.sum("_begins").over(until.rangeBetween(Window.unboundedPreceding, 0)))


def _matches_any(filters: Sequence[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.col("topic").rlike("|".join(expression_of(text) for text in filters))


def expression_of(text: str) -> str:
    """Give the regular expression of a topic filter, for Java and Python alike.

    Raises:
        InvalidRequestError: it is no filter (INVALID_FILTER).
    """
    levels = parse_filter(text).levels
    first = "*" if levels[0] == ">" else levels[0]
    shy = "(?!#P2P)" if first.endswith("*") else ""
    shy += "(?!\\$)" if first == "*" else ""
    is_open = levels[-1] == ">"
    parts = [_level(level) for level in (levels[:-1] if is_open else levels)]
    if is_open:
        parts.append("[^/]*(?:/[^/]*)*")
    return f"(?:{_START}{shy}{'/'.join(parts)}{_END})"


def _level(level: str) -> str:
    if level.endswith("*"):
        return f"{_literal(level[:-1])}[^/]*"
    return _literal(level)


def _literal(text: str) -> str:
    return "".join(one if one.isalnum() or not one.isascii() else f"\\{one}" for one in text)


def moment(text: str) -> datetime:
    """Read a time, in UTC if it does not say: 2026-03-01, 2026-03-01T12:00, 2026-03-01T13:00:00+01:00.

    Raises:
        InvalidRequestError: it is no time (INVALID_ARGUMENT).
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise errors.invalid(f"{text!r} is no time; write 2026-03-01T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
