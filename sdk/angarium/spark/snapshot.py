"""Queues as tables: `spark.read.format("angarium")`, by browsing. Nothing is removed, nobody is kept from consuming.

A snapshot has the messages that were there when the query was planned; those that others consume before a task comes
to them are not in it. Each partition of a queue is a Spark partition, or several: ranges of positions.

A filter is taken over from Spark only where both mean exactly the same, with NULLs, types and limits: equality of
texts, and what places in a queue it selects. Numbers are compared at the node too, so that fewer messages travel, but
Spark compares them again: another client may have packed a number in a way that a column cannot hold. All else is
Spark's: a selector sees no text of more than 2,000 bytes, so `LIKE` and `<>` of texts mean something else there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, InputPartition

from angarium.spark import options
from angarium.spark.arrow import Builder
from angarium.spark.connecting import blaming, open_client
from angarium.spark.offsets import Lane, Range, split
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from angarium import blocking

#: Bytes of a selector, docs/selectors.md.
SELECTOR_BYTES_MAX: Final = 2_000

#: Columns that hold what a selector sees under another name.
_TEXTS: Final = {
    "application_message_id": "JMSMessageID",
    "application_message_type": "JMSType",
    "correlation_id": "JMSCorrelationID",
    "partition_key": "JMSXGroupID",
    "sender_id": "SenderId",
}
_MODES: Final = {"persistent": "PERSISTENT", "non-persistent": "NON_PERSISTENT"}
#: Priorities that a selector sees as they are: none reads as 4, and 9 is the highest.
_PRIORITIES: Final = frozenset(range(9)) - {4}
_COMPARISONS: Final[dict[type, str]] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MATCHES: Final[dict[type, Callable[[Any, Any], bool]]] = {
    spark.EqualTo: lambda value, wanted: value == wanted,
    spark.In: lambda value, wanted: value in wanted,
    spark.GreaterThan: lambda value, wanted: value > wanted,
    spark.GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    spark.LessThan: lambda value, wanted: value < wanted,
    spark.LessThanOrEqual: lambda value, wanted: value <= wanted,
}


@dataclass(slots=True)
class Wanted:
    """What is to be read at all: what filters leave of the queues, and the selector for the rest. Pickles."""

    #: The option.
    given: str | None = None
    #: What filters became, to be added to it.
    pushed: str | None = None
    #: Filters on `queue` and `partition`, which hold for a lane as a whole.
    places: list[spark.Filter] = field(default_factory=list)
    #: Positions from `first` to before `end`; None for no end.
    first: int = 1
    end: int | None = None

    @property
    def selector(self) -> str | None:
        """Give the selector for the node; that of the option as it is if nothing is added, so that errors fit it."""
        if self.given is None or self.pushed is None:
            return self.given if self.pushed is None else self.pushed
        return f"({self.given}) AND {self.pushed}"

    def has_queue(self, queue: str) -> bool:
        """Tell whether a message of a queue can pass."""
        return self._has("queue", queue)

    def has_partition(self, partition: int) -> bool:
        """Tell whether a message of a partition can pass."""
        return self._has("partition", partition)

    def clip(self, first: int, end: int) -> tuple[int, int]:
        """Give what is left of a range of positions; it is empty if its end is not above its first."""
        return max(first, self.first), end if self.end is None else min(end, self.end)

    def _has(self, column: str, value: Any) -> bool:
        return all(
            _MATCHES[type(one)](value, one.value)  # type: ignore[attr-defined]
            for one in self.places
            if one.attribute == (column,)  # type: ignore[attr-defined]
        )


def take(wanted: Wanted, filters: Iterable[spark.Filter]) -> list[spark.Filter]:
    """Take over what the node can do; give the filters that Spark must apply."""
    left, not_null = [], {("queue",), ("partition",), ("position",)}
    for one in filters:
        plain = _plain(one)
        if plain is None or not _take(wanted, plain):
            left.append(one)
        else:
            not_null.add(plain.attribute)  # type: ignore[attr-defined]
    return [one for one in left if not isinstance(one, spark.IsNotNull) or one.attribute not in not_null]


def _plain(one: spark.Filter) -> spark.Filter | None:
    """Give a filter on one column with a value that is there, null-safe equality as equality; or None."""
    if isinstance(one, spark.EqualNullSafe):
        one = spark.EqualTo(one.attribute, one.value)
    if type(one) not in _MATCHES or len(one.attribute) != 1:  # type: ignore[attr-defined]
        return None
    if isinstance(one, spark.In):
        one = spark.In(one.attribute, tuple(value for value in one.value if value is not None))
        return one if one.value else None
    return None if one.value is None else one  # type: ignore[attr-defined]


def _take(wanted: Wanted, one: Any) -> bool:
    """Tell whether a filter need not be applied again."""
    (column,) = one.attribute
    if column in ("queue", "partition"):
        return _take_place(wanted, one, str if column == "queue" else int)
    if column == "position":
        return _take_position(wanted, one)
    if column in _TEXTS:
        return _add(wanted, _texts(_TEXTS[column], one))
    if column == "delivery_mode":
        return _add(wanted, _modes(one))
    if column == "priority":
        return _add(wanted, _priority(one))
    if column == "sequence_number":
        _add(wanted, _number("SequenceNumber", one))
    elif column == "sender_timestamp":
        _add(wanted, _time("JMSTimestamp", one))
    return False


def _take_place(wanted: Wanted, one: Any, kind: type) -> bool:
    values = one.value if isinstance(one, spark.In) else (one.value,)
    if not all(type(value) is kind for value in values):
        return False
    wanted.places.append(one)
    return True


def _take_position(wanted: Wanted, one: Any) -> bool:
    if isinstance(one, spark.In) or type(one.value) is not int:
        return False
    above = {spark.EqualTo: 0, spark.GreaterThanOrEqual: 0, spark.GreaterThan: 1}.get(type(one))
    below = {spark.EqualTo: 1, spark.LessThanOrEqual: 1, spark.LessThan: 0}.get(type(one))
    if above is not None:
        wanted.first = max(wanted.first, one.value + above)
    if below is not None:
        end = one.value + below
        wanted.end = end if wanted.end is None else min(wanted.end, end)
    return True


def _add(wanted: Wanted, condition: str | None) -> bool:
    """Add a condition to the selector if there is one and it still fits."""
    if condition is None:
        return False
    before = wanted.pushed
    wanted.pushed = condition if before is None else f"{before} AND {condition}"
    if len((wanted.selector or "").encode()) > SELECTOR_BYTES_MAX:
        wanted.pushed = before
        return False
    return True


def _texts(name: str, one: Any) -> str | None:
    values = one.value if isinstance(one, spark.In) else (one.value,)
    if not isinstance(one, (spark.EqualTo, spark.In)) or not all(type(value) is str for value in values):
        return None
    return f"{name} IN ({', '.join(_quoted(value) for value in values)})"


def _modes(one: Any) -> str | None:
    values = one.value if isinstance(one, spark.In) else (one.value,)
    if not isinstance(one, (spark.EqualTo, spark.In)) or not all(value in _MODES for value in values):
        return None
    return f"JMSDeliveryMode IN ({', '.join(_quoted(_MODES[value]) for value in values)})"


def _priority(one: Any) -> str | None:
    if not isinstance(one, spark.EqualTo) or type(one.value) is not int or one.value not in _PRIORITIES:
        return None
    return f"JMSPriority = {one.value}"


def _number(name: str, one: Any) -> str | None:
    if type(one) not in _COMPARISONS or type(one.value) is not int:
        return None
    return f"{name} {_COMPARISONS[type(one)]} {one.value}"


def _time(name: str, one: Any) -> str | None:
    """Compare ms with a time in µs: what is at or above it is at or above it rounded up."""
    if type(one) not in _COMPARISONS or not isinstance(one.value, datetime):
        return None
    moment = one.value if one.value.tzinfo else one.value.replace(tzinfo=UTC)
    whole, rest = divmod(moment - _EPOCH, _MILLISECOND)
    if rest and isinstance(one, spark.EqualTo):
        return None
    rounds_up = isinstance(one, (spark.GreaterThanOrEqual, spark.LessThan))
    return f"{name} {_COMPARISONS[type(one)]} {whole + bool(rest and rounds_up)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


#: What is not known of a range before it is read.
_UNKNOWN: Final = -1


class BrowsedPartition(InputPartition):
    """What one task reads: a range of positions of a lane; None is nothing."""

    def __init__(self, part: Range | None) -> None:
        self.part = part


class SnapshotReader(DataSourceReader):
    """Reads queues, topic endpoints and dead message queues as they are now."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check everything that can be checked without the node.

        Raises:
            InvalidRequestError: an option or a column is not possible (INVALID_ARGUMENT); the text names it.
        """
        self._settings = options.settings(options.BATCH, given)
        if not self._settings["queue"]:
            raise options.invalid("queue", "it is missing; name one queue or several")
        check_types(schema)
        self._schema = schema
        self._wanted = Wanted(self._settings["selector"])

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """Take filters over; see `_Willing`."""
        return _Willing(lambda filters: take(self._wanted, filters))

    def partitions(self) -> list[InputPartition]:
        """Give what the tasks read: what is in the queues now, as far as filters on places let it be seen.

        Raises:
            AngariumError: what the node says.
        """
        client = open_client(self._settings)
        try:
            found = [part for queue in self._settings["queue"] for part in self._ranges(client, queue)]
        finally:
            client.close()
        parts = split(found, self._settings["maxMessagesPerPartition"], self._settings["minPartitions"])
        return [BrowsedPartition(part) for part in parts] or [BrowsedPartition(None)]

    def _ranges(self, client: blocking.Client, queue: str) -> Iterator[Range]:
        if not self._wanted.has_queue(queue):
            return
        with blaming(self._settings, queue):
            lanes = client.positions(queue, kind=self._settings["kind"]).lanes
        for partition, one in lanes.items():
            first, end = self._wanted.clip(one.oldest, one.next)
            if self._wanted.has_partition(partition) and first < end:
                yield Range(Lane(queue, partition), first, end, _UNKNOWN)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages of a range that are there.

        Raises:
            AngariumError: what the node says.
        """
        assert isinstance(partition, BrowsedPartition)
        part = partition.part
        if part is None:
            return
        client = open_client(self._settings)
        try:
            with blaming(self._settings, part.lane.queue):
                batches = client.browse_range(
                    part.lane.queue,
                    part.lane.partition,
                    part.first,
                    part.end,
                    selector=self._wanted.selector,
                    kind=self._settings["kind"],
                    timeout_s=self._settings["retrySeconds"],
                )
                yield from Builder(self._schema, part.lane.queue).record_batches(batches)
        finally:
            client.close()


class _Willing:
    """A `pushFilters` that may be used or not.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, as it is
    by default, so that no source fails to see filters that it must apply. This one applies what it is given and needs
    none, so it looks like the method of the base class.
    """

    def __init__(self, push: Any) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Give the filters that Spark has to apply."""
        left: Iterable[Filter] = self._push(filters)
        return left
