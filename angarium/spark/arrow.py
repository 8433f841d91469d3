"""Rows of messages as Arrow record batches: one list per column that is asked for, none for the others.

Nothing is made per message but the values of these columns; packed properties are opened only if a column needs them.
Batches of messages are put together until there are enough for Spark, which has a price per record batch.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from angarium import wire
from angarium.message import HEADER_KEYS, USER_PROPERTIES_KEY, unpack_properties
from angarium.spark.properties import texts_of
from angarium.trail import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from angarium.client.consuming.messages import GuaranteedBatch
    from angarium.message import Row

#: What Spark itself puts into a record batch by default.
BATCH_MESSAGES: Final = 10_000
#: Bytes of payloads and properties after which a record batch is full; what Spark hands over at once stays small.
BATCH_BYTES: Final = 8 << 20
#: Times that Spark's timestamps hold, in ms: the years 1 to 9999.
_TIME_MIN: Final = -62_135_596_800_000
_TIME_END: Final = 253_402_300_800_000
_INT64_END: Final = 1 << 63

_PERSISTENT: Final = "persistent"
_NON_PERSISTENT: Final = "non-persistent"


class Messages:
    """Messages that become one record batch."""

    __slots__ = ("_batches", "_properties", "_user", "queue", "rows")

    def __init__(self, queue: str, batches: Sequence[GuaranteedBatch]) -> None:
        """Look at messages of one queue."""
        self.queue: Final = queue
        self._batches: Final = batches
        self.rows: Final[list[Row]] = list(chain.from_iterable(batch.rows for batch in batches))
        self._properties: list[dict[Any, Any]] | None = None
        self._user: list[tuple[dict[str, str | None], dict[str, str]]] | None = None

    def gather(self, column: Callable[[GuaranteedBatch], Iterable[Any]]) -> Iterator[Any]:
        """Give a column that the batches have."""
        return chain.from_iterable(column(batch) for batch in self._batches)

    def properties(self, key: int, kind: type) -> list[Any]:
        """Give a packed property of each message; None where it is absent or of another type."""
        opened = self._properties
        if opened is None:
            opened = self._properties = [unpack_properties(row[4]) for row in self.rows]
        values = [one.get(key) for one in opened]
        return [value if type(value) is kind else None for value in values]

    def user_properties(self) -> list[tuple[dict[str, str | None], dict[str, str]]]:
        """Give texts and types of the application's own properties of each message."""
        if self._user is None:
            none: tuple[dict[str, str | None], dict[str, str]] = {}, {}
            properties = self.properties(USER_PROPERTIES_KEY, dict)
            self._user = [texts_of(one) if one else none for one in properties]
        return self._user

    def metas(self, at: int) -> list[Any]:
        """Give one field of the meta of each message; None where there is none."""
        return [None if row[3] is None else row[3][at] for row in self.rows]

    def flags(self, flag: int) -> list[bool]:
        """Tell of each message whether it has a flag."""
        return [bool(row[2] & flag) for row in self.rows]


class Builder:
    """Makes record batches of a schema from what flows bring."""

    def __init__(self, schema: StructType, queue: str) -> None:
        """Make batches of messages of one queue."""
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [(_COLUMNS[field.name], field.type) for field in self._schema]
        self._queue = queue

    def record_batches(self, batches: Iterable[GuaranteedBatch]) -> Iterator[pa.RecordBatch]:
        """Give record batches of about `BATCH_MESSAGES` messages or `BATCH_BYTES`."""
        held: list[GuaranteedBatch] = []
        messages = size = 0
        for batch in batches:
            held.append(batch)
            messages += len(batch)
            size += sum([len(row[5]) + len(row[4] or b"") for row in batch.rows])
            if messages >= BATCH_MESSAGES or size >= BATCH_BYTES:
                yield self.record_batch(held)
                held = []
                messages = size = 0
        if held:
            yield self.record_batch(held)

    def record_batch(self, batches: Sequence[GuaranteedBatch]) -> pa.RecordBatch:
        """Give one record batch of all messages."""
        messages = Messages(self._queue, batches)
        arrays = [_array(column(messages), kind) for column, kind in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _queue(messages: Messages) -> pa.Array:
    return pa.repeat(messages.queue, len(messages.rows))


def _partition(messages: Messages) -> array[int]:
    return array("i", messages.gather(lambda batch: [batch.partition] * len(batch)))


def _spooled(messages: Messages) -> pa.Array:
    return _times(array("q", messages.gather(lambda batch: batch.stored_ms)))


def _sent(messages: Messages) -> pa.Array:
    return _times(
        [
            None if value is None or not _TIME_MIN <= value < _TIME_END else value
            for value in messages.properties(HEADER_KEYS["sender_timestamp_ms"], int)
        ]
    )


def _times(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _sequence(messages: Messages) -> list[int | None]:
    return [
        None if value is None or not -_INT64_END <= value < _INT64_END else value
        for value in messages.properties(HEADER_KEYS["sequence_number"], int)
    ]


def _modes(messages: Messages) -> list[str]:
    persistent = wire.MODE_PERSISTENT
    return [
        _PERSISTENT if row[2] & wire.FLAG_MODE == persistent else _NON_PERSISTENT for row in messages.rows
    ]


def _class_of_service(messages: Messages) -> array[int]:
    return array("i", [((row[2] & wire.FLAG_COS) >> wire.COS_SHIFT) + 1 for row in messages.rows])


def _keys(messages: Messages) -> list[str | None]:
    return [key_of(route) for route in messages.metas(3)]


def _user_texts(messages: Messages) -> pa.Array:
    return _maps([texts or None for texts, _ in messages.user_properties()])


def _user_types(messages: Messages) -> pa.Array:
    return _maps([types or None for _, types in messages.user_properties()])


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


def _origin(at: int) -> Callable[[Messages], list[str | None]]:
    def column(messages: Messages) -> list[str | None]:
        origins = messages.gather(lambda batch: batch.origins or [None] * len(batch))
        return [None if origin is None else origin[at] for origin in origins]

    return column


def _property(name: str) -> Callable[[Messages], list[str | None]]:
    return lambda messages: messages.properties(HEADER_KEYS[name], str)


#: Gives the values of each column; NULL is None.
_COLUMNS: Final[dict[str, Callable[[Messages], Any]]] = {
    "topic": lambda messages: [row[1] for row in messages.rows],
    "queue": _queue,
    "partition": _partition,
    "position": lambda messages: array("q", messages.gather(lambda batch: batch.positions)),
    "payload": lambda messages: [row[5] for row in messages.rows],
    "sender_timestamp": _sent,
    "spooled_timestamp": _spooled,
    "delivery_mode": _modes,
    "priority": lambda messages: messages.metas(2),
    "class_of_service": _class_of_service,
    "ttl_ms": lambda messages: [value or None for value in messages.metas(0)],
    "delay_ms": lambda messages: [value or None for value in messages.metas(1)],
    "correlation_id": _property("correlation_id"),
    "reply_to": _property("reply_to"),
    "application_message_id": _property("application_message_id"),
    "application_message_type": _property("application_message_type"),
    "sender_id": _property("sender_id"),
    "sequence_number": _sequence,
    "content_type": _property("content_type"),
    "content_encoding": _property("content_encoding"),
    "partition_key": _keys,
    "user_properties": _user_texts,
    "user_property_types": _user_types,
    "dmq_eligible": lambda messages: messages.flags(wire.FLAG_DMQ_ELIGIBLE),
    "eliding": lambda messages: messages.flags(wire.FLAG_ELIDING),
    "deliver_to_one": lambda messages: messages.flags(wire.FLAG_DTO),
    "is_reply": lambda messages: messages.flags(wire.FLAG_REPLY),
    "redelivered": lambda messages: [count > 1 for count in messages.gather(lambda one: one.delivery_counts)],
    "delivery_count": lambda messages: array("i", messages.gather(lambda batch: batch.delivery_counts)),
    "origin_kind": _origin(0),
    "origin_endpoint": _origin(1),
    "origin_reason": _origin(2),
}
