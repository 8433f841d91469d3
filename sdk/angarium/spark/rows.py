"""Arrow record batches become rows of the wire, by the column: what `write` of a Spark task sends.

No `Row` of Spark and no `Message` is made. A column that is missing, or NULL throughout, costs nothing; one that is
there is checked as a whole, and looked at value by value only to name the row that is wrong. What cannot be known
without the node (rights, quotas, whether there is such a queue) is said by the node.

A row is named by its number in its task, from 1, as Spark has no other name for it, and by its topic.

This module does no I/O and knows no Spark.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from angarium import errors, wire
from angarium.message import (
    HEADER_KEYS,
    MAX_PRIORITY,
    MAX_TTL_MS,
    USER_PROPERTIES_KEY,
    DeliveryMode,
    Meta,
    Row,
    pack_fields,
    row_size,
)
from angarium.spark.schema import values_of
from angarium.topic import check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

#: The modes a row may ask for. What was a direct message is non-persistent where it is stored, as in a queue.
_MODES: Final = {
    None: wire.MODE_PERSISTENT,
    str(DeliveryMode.DIRECT): wire.MODE_NON_PERSISTENT,
    str(DeliveryMode.PERSISTENT): wire.MODE_PERSISTENT,
    str(DeliveryMode.NON_PERSISTENT): wire.MODE_NON_PERSISTENT,
}
_FLAGS: Final = {
    "dmq_eligible": wire.FLAG_DMQ_ELIGIBLE,
    "eliding": wire.FLAG_ELIDING,
    "deliver_to_one": wire.FLAG_DTO,
    "is_reply": wire.FLAG_REPLY,
}
_NUMBER_MAX: Final = (1 << 63) - 1
#: Column -> least and most that a message can have.
_BOUNDS: Final = {
    "priority": (0, MAX_PRIORITY),
    "class_of_service": (1, 3),
    "ttl_ms": (0, MAX_TTL_MS),
    "delay_ms": (0, MAX_TTL_MS),
    "sequence_number": (0, _NUMBER_MAX),
    "sender_timestamp": (0, _NUMBER_MAX),
}
#: Column of the sender's timestamp -> the header that it becomes, in ms.
_TIMESTAMP: Final = "sender_timestamp"
_HEADERS: Final = {
    _TIMESTAMP if name == "sender_timestamp_ms" else name: key for name, key in HEADER_KEYS.items()
}
_MICROSECONDS: Final = 1000


class Target(NamedTuple):
    """Where rows go, and how."""

    #: The topic of all rows, whatever the column says; None: each row goes to its own.
    topic: str | None
    #: Whether they are direct messages, whatever the column `delivery_mode` says.
    is_direct: bool = False
    #: How errors call the place, as `queue 'billing'`; None: by the topic of the row.
    shown: str | None = None


class Place(NamedTuple):
    """How the rows of one record batch are called in errors."""

    target: Target
    #: The number of the first row in its task, from 1.
    first: int = 1
    #: The partition of Spark that the task writes.
    task: int = 0


class _Batch:
    """A record batch, and how its rows are called."""

    def __init__(self, batch: pa.RecordBatch, place: Place) -> None:
        self.rows = batch.num_rows
        self.place = place
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.topics: list[str] = []

    def column(self, name: str) -> pa.Array | None:
        """Give a column in which there is a value."""
        found = self._columns.get(name)
        return None if found is None or found.null_count == len(found) else found

    def values(self, name: str) -> list[Any] | None:
        """Give the values of a column, NULL as None; None if there are none.

        Raises:
            InvalidRequestError: a text is not UTF-8, which Spark does not check (INVALID_ARGUMENT).
        """
        found = self.column(name)
        if found is None:
            return None
        if pa.types.is_timestamp(found.type):
            found = pc.divide(found.cast(pa.timestamp("us")).cast(pa.int64()), _MICROSECONDS)
        bounds = _BOUNDS.get(name)
        if bounds is not None:
            self._check(name, found, *bounds)
        try:
            return list(found.to_pylist())
        except UnicodeDecodeError as error:
            raise self.error(0, f"column {name}: {error}") from None

    def _check(self, name: str, column: pa.Array, least: int, most: int) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] >= least and found["max"] <= most:
            return
        values = column.to_pylist()
        at = next(at for at, value in enumerate(values) if value is not None and not least <= value <= most)
        raise self.error(at, f"column {name} is {values[at]}, from {least} to {most} is possible")

    def error(self, at: int, detail: str, code: int = errors.INVALID_ARGUMENT) -> errors.AngariumError:
        """Give an error that names the row and where it was to go."""
        topic = self.topics[at] if at < len(self.topics) else None
        return errors.error_for(code, f"{row_name(self.place, at, topic)}: {detail}")


def row_name(place: Place, at: int, topic: str | None) -> str:
    """Name a row for an error: its number in the task, and its destination as far as it is known."""
    name = f"row {place.first + at} of task {place.task}"
    shown = place.target.shown or (topic and f"topic {topic!r:.300}")
    return f"{name} ({shown})" if shown else name


def rows_of(batch: pa.RecordBatch, place: Place) -> list[Row]:
    """Give the rows of a record batch with columns of `angarium.spark.schema`; others are ignored.

    Raises:
        InvalidRequestError: a topic is NULL or illegal (INVALID_TOPIC), or a value is not possible
            (INVALID_ARGUMENT); the text names the row, its topic and the column.
    """
    if not batch.num_rows:
        return []
    view = _Batch(batch, place)
    view.topics = _topics(view)
    payloads = view.values("payload")
    return list(
        zip(
            repeat(0),
            view.topics,
            _flags(view),
            _metas(view),
            _packed(view),
            repeat(b"", view.rows) if payloads is None else [one or b"" for one in payloads],
            strict=False,
        )
    )


def check_sizes(rows: Sequence[Row], limit: int, place: Place) -> None:
    """Check that no row is over the limit of the node for one message.

    Args:
        rows: of one record batch.
        limit: bytes of payload, properties and partition key together.
        place: how the rows are called.

    Raises:
        InvalidRequestError: one is (MESSAGE_TOO_LARGE); the text names the row.
    """
    # Three times a maximum is faster than the size of each row, and mostly enough.
    largest = max(len(row[5]) for row in rows) + max(len(row[4] or b"") for row in rows)
    if largest <= limit and not any(row[3] and row[3][3] for row in rows):
        return
    for at, row in enumerate(rows):
        if (size := row_size(row)) > limit:
            detail = f"{row_name(place, at, row[1])}: {size} bytes, the limit is {limit}"
            raise errors.error_for(errors.MESSAGE_TOO_LARGE, detail)


def _topics(view: _Batch) -> list[str]:
    target = view.place.target
    if target.topic is not None:
        return [target.topic] * view.rows
    topics = view.values("topic") or [None] * view.rows
    if None in topics:
        raise view.error(topics.index(None), "its topic is NULL", errors.INVALID_TOPIC)
    for topic in dict.fromkeys(topics):  # in order: the first one that is wrong is named
        try:
            check_topic(topic)
        except errors.AngariumError as error:
            at = topics.index(topic)
            detail = f"{row_name(view.place, at, topic)}: {error.detail}"
            raise errors.error_for(error.code, detail) from None
    return topics


def _flags(view: _Batch) -> Iterable[int]:
    parts: list[list[int]] = []
    base = 0 if view.place.target.is_direct else wire.MODE_PERSISTENT
    modes = None if view.place.target.is_direct else view.values("delivery_mode")
    if modes is not None:
        base = 0
        parts.append(_looked_up(view, modes, "delivery_mode"))
    classes = view.values("class_of_service")
    if classes is not None:
        parts.append([((one or 1) - 1) << wire.COS_SHIFT for one in classes])
    for name, flag in _FLAGS.items():
        if (values := view.values(name)) is not None:
            parts.append([flag if one else 0 for one in values])
    if not parts:
        return repeat(base, view.rows)
    return [base + sum(row) for row in zip(*parts, strict=True)]


def _looked_up(view: _Batch, values: list[Any], column: str) -> list[int]:
    try:
        return [_MODES[value] for value in values]
    except KeyError:
        at = next(at for at, value in enumerate(values) if value not in _MODES)
        possible = ", ".join(str(mode) for mode in _MODES if mode is not None)
        raise view.error(at, f"column {column} is {values[at]!r:.80}, possible are {possible}") from None


def _metas(view: _Batch) -> Iterable[Meta | None]:
    columns = [view.values(name) for name in ("ttl_ms", "delay_ms", "priority", "partition_key")]
    if columns == [None] * len(columns):
        return repeat(None, view.rows)
    filled = [repeat(None, view.rows) if values is None else values for values in columns]
    return [
        (ttl or 0, delay or 0, priority, key)
        if ttl or delay or priority is not None or key is not None
        else None
        for ttl, delay, priority, key in zip(*filled, strict=True)
    ]


def _packed(view: _Batch) -> Iterable[bytes | None]:
    columns = [(key, values) for name, key in _HEADERS.items() if (values := view.values(name)) is not None]
    if (reply_to := view.values("reply_to")) is not None:
        _check_reply_to(view, reply_to)
    if (properties := view.values("user_properties")) is not None:
        columns.append((USER_PROPERTIES_KEY, _properties(view, properties)))
    if not columns:
        return repeat(None, view.rows)
    fields: list[dict[int, Any]] = [{} for _ in range(view.rows)]
    for key, values in columns:
        for one, value in zip(fields, values, strict=True):
            if value is not None:
                one[key] = value
    return list(_named(view, fields, pack_fields))


def _check_reply_to(view: _Batch, values: list[str | None]) -> None:
    for topic in set(values):
        if topic is not None:
            try:
                check_topic(topic)
            except errors.AngariumError as error:
                detail = f"column reply_to: {error.detail}"
                raise view.error(values.index(topic), detail, error.code) from None


def _properties(view: _Batch, texts: list[Any]) -> list[dict[str, Any] | None]:
    """Give the application's properties; an empty map is none, as in a message."""
    types = view.values("user_property_types")
    if types is None:
        return [dict(one) if one else None for one in texts]
    pairs = zip(texts, types, strict=True)
    return list(
        _named(view, pairs, lambda pair: values_of(pair[0], dict(pair[1] or ())) if pair[0] else None)
    )


def _named(view: _Batch, values: Iterable[Any], work: Callable[[Any], Any]) -> Iterator[Any]:
    """Give the results of work on each row's value; its error names the row."""
    at = 0
    try:
        for value in values:
            yield work(value)
            at += 1
    except errors.AngariumError as error:
        raise view.error(at, error.detail, error.code) from None
