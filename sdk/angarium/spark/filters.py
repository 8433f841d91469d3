"""Which of Spark's filters the node can apply, and which ranges of positions need no reading at all.

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
