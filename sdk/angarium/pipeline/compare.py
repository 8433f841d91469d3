"""Whether two archives hold the same messages: each row as often on the left as on the right, whatever the order.

Rows of both sides are counted by one hash aggregation over all compared columns, so the cost is that of one shuffle
and no pair of rows is ever looked at. What differs stays in Spark; only counts, the topics and days with most of them,
and a few samples come to the driver.

Compared are all columns but those that tell of the arrival in a queue (`angarium.spark.schema.ARRIVAL`) and those that
the caller leaves out. NULL equals NULL and nothing else; a map equals another with the same entries in any order, and
no map is not an empty one; of a long binary value its length, its beginning and its SHA-256 are compared. A column
that one side lacks, or has in another type, is a difference of its own, and the rows are compared by the rest.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from angarium import errors
from angarium.spark.schema import ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import Column, DataFrame

#: Rows shown of each kind, and topics with their days.
SAMPLES: Final = 10
GROUPS: Final = 20
#: Binary values up to this length travel whole, longer ones as their digest.
BINARY_WHOLE_BYTES: Final = 64

_LEFT: Final = "__left"
_RIGHT: Final = "__right"
_DAY: Final = "__day"
_TOPIC: Final = "topic"
#: What tells the day of a row, the first that both sides have.
_DAY_COLUMNS: Final = ("spooled_timestamp", "sender_timestamp")


@dataclass(frozen=True)
class Columns:
    """Which columns two schemas share, and how they differ in the others."""

    #: In both with the same type, by name.
    compared: tuple[str, ...]
    #: In one of them, or not compared because somebody said so.
    ignored: tuple[str, ...]
    only_left: tuple[str, ...] = ()
    only_right: tuple[str, ...] = ()
    #: Name, type on the left, type on the right.
    retyped: tuple[tuple[str, str, str], ...] = ()

    @property
    def differ(self) -> bool:
        """Whether a column is missing on one side, or has another type there."""
        return bool(self.only_left or self.only_right or self.retyped)


@dataclass(frozen=True)
class Comparison:
    """What two archives have in common, in numbers of rows."""

    columns: Columns
    left_rows: int
    right_rows: int
    #: Rows that are there more often than on the other side, counted as often as they are too many.
    only_left: int = 0
    only_right: int = 0
    #: Distinct rows that both sides have, but not as often.
    counted_differently: int = 0
    #: Topic, day, rows only left, rows only right; those with most of them.
    groups: list[dict[str, Any]] = field(default_factory=list)
    #: Rows of which one side has more, each with the counts `left` and `right`.
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.columns.differ or self.only_left or self.only_right)

    def to_dict(self) -> dict[str, Any]:
        """Give the result as JSON has it."""
        columns = self.columns
        return {
            "verdict": "equal" if self.equal else "differs",
            "equal": self.equal,
            "left_rows": self.left_rows,
            "right_rows": self.right_rows,
            "only_left": self.only_left,
            "only_right": self.only_right,
            "counted_differently": self.counted_differently,
            "columns_only_left": list(columns.only_left),
            "columns_only_right": list(columns.only_right),
            "columns_retyped": [
                {"column": name, "left": left, "right": right} for name, left, right in columns.retyped
            ],
            "compared": list(columns.compared),
            "ignored": list(columns.ignored),
            "groups": self.groups,
            "samples": self.samples,
        }


def match_columns(left: StructType, right: StructType, ignored: Collection[str]) -> Columns:
    """Tell which columns can be compared.

    Types are the same if values are: whether a column may be NULL makes no difference.

    Raises:
        InvalidRequestError: no column is left to compare (INVALID_ARGUMENT).
    """
    types = [{one.name: one.dataType.simpleString() for one in side.fields} for side in (left, right)]
    shared = [name for name in types[0] if name in types[1] and name not in ignored]
    columns = Columns(
        compared=tuple(name for name in shared if types[0][name] == types[1][name]),
        ignored=tuple(sorted(name for name in ignored if name in types[0] or name in types[1])),
        only_left=_missing(types[0], types[1], ignored),
        only_right=_missing(types[1], types[0], ignored),
        retyped=tuple(
            (name, types[0][name], types[1][name]) for name in shared if types[0][name] != types[1][name]
        ),
    )
    if not columns.compared:
        raise errors.invalid(
            f"no column to compare: left has {', '.join(types[0]) or 'none'}, right {', '.join(types[1]) or 'none'}, "
            f"left out are {', '.join(columns.ignored) or 'none'}",
        )
    return columns


def _missing(there: dict[str, str], here: dict[str, str], ignored: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in there if name not in here and name not in ignored)


def check_ignored(names: Collection[str], left: StructType, right: StructType) -> None:
    """Check that the columns that somebody wants to leave out are there, on one side at least.

    Raises:
        InvalidRequestError: one is not (INVALID_ARGUMENT).
    """
    known = sorted({*left.fieldNames(), *right.fieldNames()})
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise errors.invalid(
            f"no column {', '.join(unknown)} to leave out; there are {', '.join(known)}",
        )


def fill_missing(frame: DataFrame, other: StructType) -> DataFrame:
    """Add columns that only the other side has, as NULL."""
    missing = [one for one in other.fields if one.name not in frame.columns]
    return frame.select("*", *(F.lit(None).cast(one.dataType).alias(one.name) for one in missing))


def compare(
    left: DataFrame,
    right: DataFrame,
    *,
    ignored: Iterable[str] = ARRIVAL,
    samples: int = SAMPLES,
    groups: int = GROUPS,
) -> Comparison:
    """Compare two sets of messages row for row, as multisets.

    Args:
        left: the one.
        right: the other.
        ignored: columns that are left out.
        samples: so many rows that differ are given.
        groups: so many pairs of topic and day are given.

    Raises:
        InvalidRequestError: no column is left to compare (INVALID_ARGUMENT).
    """
    columns = match_columns(left.schema, right.schema, frozenset(ignored))
    left_rows, right_rows = left.count(), right.count()
    differing = _differing(left, right, columns).persist()
    try:
        total = _totals(differing)
        if not total["only_left"] and not total["only_right"]:
            return Comparison(columns, left_rows, right_rows)
        return Comparison(
            columns,
            left_rows,
            right_rows,
            total["only_left"],
            total["only_right"],
            total["counted_differently"],
            groups=_groups(differing, columns, groups),
            samples=_samples(differing, columns, samples),
        )
    finally:
        differing.unpersist()


def _differing(left: DataFrame, right: DataFrame, columns: Columns) -> DataFrame:
    """Give the distinct rows that one side has more often, with their counts on both."""
    day = next((name for name in _DAY_COLUMNS if name in left.columns and name in right.columns), None)
    types = {one.name: one.dataType for one in left.schema.fields}

    def side(frame: DataFrame, is_left: int) -> DataFrame:
        values = [canonical(F.col(f"`{name}`"), types[name]).alias(name) for name in columns.compared]
        return frame.select(
            *values,
            F.lit(is_left).cast("long").alias(_LEFT),
            F.lit(1 - is_left).cast("long").alias(_RIGHT),
            (F.to_date(day) if day else F.lit(None).cast("date")).alias(_DAY),
        )

    rows = side(left, 1).unionByName(side(right, 0))
    counted = rows.groupBy(*(F.col(f"`{name}`") for name in columns.compared)).agg(
        F.sum(_LEFT).alias(_LEFT), F.sum(_RIGHT).alias(_RIGHT), F.min(_DAY).alias(_DAY)
    )
    return counted.where(F.col(_LEFT) != F.col(_RIGHT))


def canonical(value: Column, kind: DataType) -> Column:
    """Give a form of a value that Spark can group by, equal for equal values only."""
    if isinstance(kind, BinaryType):
        return F.when(
            value.isNotNull(),
            F.struct(
                F.length(value).alias("bytes"),
                F.substring(value, 1, BINARY_WHOLE_BYTES).alias("start"),
                F.when(F.length(value) > BINARY_WHOLE_BYTES, F.sha2(value, 256)).alias("sha256"),
            ),
        )
    if isinstance(kind, MapType):
        pair = F.transform(
            F.map_entries(value),
            lambda one: F.struct(
                canonical(one["key"], kind.keyType).alias("key"),
                canonical(one["value"], kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(pair)
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: canonical(one, kind.elementType))
    if isinstance(kind, StructType):
        parts = [canonical(value[one.name], one.dataType).alias(one.name) for one in kind.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    return value


def _surplus(more: str, less: str) -> Column:
    return F.greatest(F.col(more) - F.col(less), F.lit(0))


def _totals(differing: DataFrame) -> dict[str, int]:
    found = differing.agg(
        F.sum(_surplus(_LEFT, _RIGHT)).alias("only_left"),
        F.sum(_surplus(_RIGHT, _LEFT)).alias("only_right"),
        F.sum(F.when((F.col(_LEFT) > 0) & (F.col(_RIGHT) > 0), 1).otherwise(0)).alias("counted_differently"),
    ).first()
    assert found is not None
    return {name: value or 0 for name, value in found.asDict().items()}


def _groups(differing: DataFrame, columns: Columns, limit: int) -> list[dict[str, Any]]:
    topic = F.col(_TOPIC) if _TOPIC in columns.compared else F.lit(None).cast("string")
    counted = (
        differing.groupBy(topic.alias("topic"), F.col(_DAY).alias("day"))
        .agg(
            F.sum(_surplus(_LEFT, _RIGHT)).alias("only_left"),
            F.sum(_surplus(_RIGHT, _LEFT)).alias("only_right"),
        )
        .orderBy((F.col("only_left") + F.col("only_right")).desc(), "topic", "day")
    )
    return [_plain(row.asDict()) for row in counted.limit(limit).collect()]


def _samples(differing: DataFrame, columns: Columns, limit: int) -> list[dict[str, Any]]:
    """Give samples of both sides, so that two forms of one message stand next to each other if they can."""
    half = -(-limit // 2)
    sides = [
        differing.where(where).orderBy(*_orderable(differing, columns)).limit(half)
        for where in (F.col(_LEFT) > F.col(_RIGHT), F.col(_LEFT) < F.col(_RIGHT))
    ]
    rows = reduce(lambda one, other: one.unionByName(other), sides).collect()
    return [
        _plain(
            {
                "left": row[_LEFT],
                "right": row[_RIGHT],
                **{name: row[name] for name in columns.compared if row[name] is not None},
            }
        )
        for row in rows[:limit]
    ]


def _orderable(differing: DataFrame, columns: Columns) -> list[Column]:
    wanted = ("topic", "sender_id", "sequence_number", "sender_timestamp")
    return [F.col(name) for name in wanted if name in columns.compared and name in differing.columns]


def _plain(value: Any) -> Any:
    """Give what JSON can hold: bytes as hexadecimal digits, times as ISO 8601, rows as objects, entries as a map."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        pairs = [_plain(one) for one in value]
        if pairs and all(isinstance(one, dict) and one.keys() == {"key", "value"} for one in pairs):
            return {str(one["key"]): one["value"] for one in pairs}
        return pairs
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dt.datetime):
        # Spark gives times without a zone, in that of this machine.
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, dt.date) else value
