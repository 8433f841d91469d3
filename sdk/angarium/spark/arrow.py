"""Rows of messages as Arrow record batches: one list per column that is asked for, none for the others.

Nothing is made per message but the values of these columns; packed properties are opened only if a column needs them.
What no client of ours lets a message have, and another one has sent, is NULL, or the most that is possible: no message
keeps a queue from being read, or what was read from being written again.
Batches of messages are put together until there are enough for Spark, which has a price per record batch.
"""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from angarium import errors, wire
from angarium.message import HEADER_KEYS, MAX_TTL_MS, USER_PROPERTIES_KEY, unpack_properties
from angarium.spark.schema import texts_of
from angarium.topic import check_topic
from angarium.trail import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from angarium.client.protocol.messages import GuaranteedBatch
    from angarium.message import Row

#: What Spark itself puts into a record batch by default.
BATCH_MESSAGES: Final = 10_000
#: Bytes in the spool after which a record batch is full; what Spark hands over at once stays small.
BATCH_BYTES: Final = 8 << 20
#: Spark's timestamps hold no later times, in ms: the year 9999 is the last.
_TIME_END: Final = 253_402_300_800_000
_INT64_END: Final = 1 << 63

_PERSISTENT: Final = "persistent"
_NON_PERSISTENT: Final = "non-persistent"


class Same(NamedTuple):
    """A column with the same value in all messages, which costs nothing per message."""

    value: Any


#: The values of a column; None is NULL.
Values: TypeAlias = "Sequence[Any] | pa.Array | Same"
_NULL: Final = Same(None)


class Messages:
    """Messages that become one record batch; what several columns need is made once."""

    def __init__(self, queue: str, batches: Sequence[GuaranteedBatch]) -> None:
        self.queue: Final = queue
        self.batches: Final = batches
        self.rows: Final[list[Row]] = list(chain.from_iterable(batch.rows for batch in batches))

    @cached_property
    def _flags(self) -> list[int]:
        return [row[2] for row in self.rows]

    @cached_property
    def _metas(self) -> list[Any] | None:
        """The meta of each message; None if all have none."""
        metas = [row[3] for row in self.rows]
        return metas if any(metas) else None

    @cached_property
    def _properties(self) -> list[dict[Any, Any]]:
        return [unpack_properties(row[4]) for row in self.rows]

    @cached_property
    def _keys(self) -> set[Any]:
        """The keys of properties that some message has."""
        return set().union(*self._properties)

    @cached_property
    def user_properties(self) -> list[tuple[dict[str, str | None], dict[str, str]]] | None:
        """Texts and types of the application's own properties of each message; None if all have none."""
        found = self.properties(USER_PROPERTIES_KEY, dict)
        if found is None:
            return None
        none: tuple[dict[str, str | None], dict[str, str]] = {}, {}
        return [texts_of(one) if one else none for one in found]

    def gather(self, column: Callable[[GuaranteedBatch], Iterable[Any]]) -> Iterator[Any]:
        """Give a column that the batches have."""
        return chain.from_iterable(column(batch) for batch in self.batches)

    def properties(self, key: int, kind: type) -> list[Any] | None:
        """Give a packed property of each message, None where it is absent or of another type; None: all have none."""
        if key not in self._keys:
            return None
        values = [one.get(key) for one in self._properties]
        return [value if type(value) is kind else None for value in values]

    def metas(self, at: int) -> list[Any] | None:
        """Give one field of the meta of each message, None where there is none; None if all have none."""
        metas = self._metas
        return None if metas is None else [None if meta is None else meta[at] for meta in metas]

    def by_flags(self, meaning: Callable[[int], Any]) -> Values:
        """Give what the flags of each message mean."""
        meanings = {flags: meaning(flags) for flags in set(self._flags)}
        if len(meanings) == 1:
            return Same(*meanings.values())
        return [meanings[flags] for flags in self._flags]


class Builder:
    """Makes record batches of a schema from what flows bring."""

    def __init__(self, schema: StructType, queue: str) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [(_COLUMNS[field.name], field.type) for field in self._schema]
        self._queue = queue

    def record_batches(self, batches: Iterable[GuaranteedBatch]) -> Iterator[pa.RecordBatch]:
        """Give record batches of about `BATCH_MESSAGES` messages or `BATCH_BYTES`, made one ahead.

        While Java reads one of them, which for large payloads takes longer than making it, the next is made.
        """
        making = self._record_batches(batches)
        with ThreadPoolExecutor(1, "angarium-arrow") as executor:
            coming = executor.submit(next, making, None)
            while (batch := coming.result()) is not None:
                coming = executor.submit(next, making, None)
                yield batch

    def _record_batches(self, batches: Iterable[GuaranteedBatch]) -> Iterator[pa.RecordBatch]:
        held: list[GuaranteedBatch] = []
        messages = size = 0
        for batch in batches:
            held.append(batch)
            messages += len(batch)
            size += batch.size_bytes
            if messages >= BATCH_MESSAGES or size >= BATCH_BYTES:
                yield self.record_batch(held)
                held = []
                messages = size = 0
        if held:
            yield self.record_batch(held)

    def record_batch(self, batches: Sequence[GuaranteedBatch]) -> pa.RecordBatch:
        """Give one record batch of all messages."""
        messages = Messages(self._queue, batches)
        arrays = [_array(column(messages), kind, len(messages.rows)) for column, kind in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _array(values: Values, kind: pa.DataType, length: int) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if not isinstance(values, Same):
        return pa.array(values, kind)
    if values.value is None:
        return pa.nulls(length, kind)
    return pa.repeat(pa.scalar(values.value, kind), length)


def _partition(messages: Messages) -> Values:
    if len({batch.partition for batch in messages.batches}) == 1:
        return Same(messages.batches[0].partition)
    return array("i", messages.gather(lambda batch: [batch.partition] * len(batch)))


def _position(messages: Messages) -> Values:
    return array("q", messages.gather(lambda batch: batch.positions))


def _spooled(messages: Messages) -> Values:
    return _times(array("q", messages.gather(lambda batch: batch.stored_ms)))


def _sent(messages: Messages) -> Values:
    values = messages.properties(HEADER_KEYS["sender_timestamp_ms"], int)
    if values is None:
        return _NULL
    return _times([value if value is not None and 0 <= value < _TIME_END else None for value in values])


def _times(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _sequence(messages: Messages) -> Values:
    values = messages.properties(HEADER_KEYS["sequence_number"], int)
    if values is None:
        return _NULL
    return [value if value is not None and 0 <= value < _INT64_END else None for value in values]


def _mode(flags: int) -> str:
    return _PERSISTENT if flags & wire.FLAG_MODE == wire.MODE_PERSISTENT else _NON_PERSISTENT


def _class_of_service(flags: int) -> int:
    return ((flags & wire.FLAG_COS) >> wire.COS_SHIFT) + 1


def _flag(flag: int) -> Callable[[Messages], Values]:
    return lambda messages: messages.by_flags(lambda flags: bool(flags & flag))


def _time_span(at: int) -> Callable[[Messages], Values]:
    """Give a column of times that are 0 for none, and at most what a client of ours lets a message have."""

    def column(messages: Messages) -> Values:
        values = messages.metas(at)
        return _NULL if values is None else [min(value, MAX_TTL_MS) if value else None for value in values]

    return column


def _priority(messages: Messages) -> Values:
    return messages.metas(2) or _NULL


def _partition_key(messages: Messages) -> Values:
    routes = messages.metas(3)
    return _NULL if routes is None else [key_of(route) for route in routes]


def _user_texts(messages: Messages) -> Values:
    found = messages.user_properties
    return _NULL if found is None else _maps([texts or None for texts, _ in found])


def _user_types(messages: Messages) -> Values:
    found = messages.user_properties
    return _NULL if found is None else _maps([types or None for _, types in found])


def _maps(values: Sequence[dict[str, Any] | None]) -> pa.Array:
    """Give an array of maps of texts from what they hold, all after one another."""
    offsets: list[int | None] = []
    keys: list[str] = []
    texts: list[str | None] = []
    for value in values:
        offsets.append(None if value is None else len(keys))
        if value is not None:
            keys.extend(value)
            texts.extend(value.values())
    offsets.append(len(keys))
    kind = pa.string()
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, kind), pa.array(texts, kind))


def _delivery_count(messages: Messages) -> Values:
    if all(batch.delivery_counts is None for batch in messages.batches):
        return Same(1)
    return list(messages.gather(lambda batch: batch.delivery_counts or [1] * len(batch)))


def _redelivered(messages: Messages) -> Values:
    counts = _delivery_count(messages)
    return Same(value=False) if isinstance(counts, Same) else [count > 1 for count in counts]


def _origin(at: int) -> Callable[[Messages], Values]:
    def column(messages: Messages) -> Values:
        if all(batch.origins is None for batch in messages.batches):
            return _NULL
        origins = messages.gather(lambda batch: batch.origins or [None] * len(batch))
        return [None if origin is None else origin[at] for origin in origins]

    return column


def _header(name: str) -> Callable[[Messages], Values]:
    return lambda messages: messages.properties(HEADER_KEYS[name], str) or _NULL


def _reply_to(messages: Messages) -> Values:
    values = messages.properties(HEADER_KEYS["reply_to"], str)
    if values is None:
        return _NULL
    known = {value: value if value is not None and _is_topic(value) else None for value in set(values)}
    return [known[value] for value in values]


def _is_topic(text: str) -> bool:
    try:
        check_topic(text)
    except errors.AngariumError:
        return False
    return True


#: Gives the values of each column.
_COLUMNS: Final[dict[str, Callable[[Messages], Values]]] = {
    "topic": lambda messages: [row[1] for row in messages.rows],
    "queue": lambda messages: Same(messages.queue),
    "partition": _partition,
    "position": _position,
    "payload": lambda messages: [row[5] for row in messages.rows],
    "sender_timestamp": _sent,
    "spooled_timestamp": _spooled,
    "delivery_mode": lambda messages: messages.by_flags(_mode),
    "priority": _priority,
    "class_of_service": lambda messages: messages.by_flags(_class_of_service),
    "ttl_ms": _time_span(0),
    "delay_ms": _time_span(1),
    "correlation_id": _header("correlation_id"),
    "reply_to": _reply_to,
    "application_message_id": _header("application_message_id"),
    "application_message_type": _header("application_message_type"),
    "sender_id": _header("sender_id"),
    "sequence_number": _sequence,
    "content_type": _header("content_type"),
    "content_encoding": _header("content_encoding"),
    "partition_key": _partition_key,
    "user_properties": _user_texts,
    "user_property_types": _user_types,
    "dmq_eligible": _flag(wire.FLAG_DMQ_ELIGIBLE),
    "eliding": _flag(wire.FLAG_ELIDING),
    "deliver_to_one": _flag(wire.FLAG_DTO),
    "is_reply": _flag(wire.FLAG_REPLY),
    "redelivered": _redelivered,
    "delivery_count": _delivery_count,
    "origin_kind": _origin(0),
    "origin_endpoint": _origin(1),
    "origin_reason": _origin(2),
}
