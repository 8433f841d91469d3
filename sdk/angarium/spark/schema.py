"""The columns of a message in Spark: one table for the source, the writers, archives and reports.

Names are those of `angarium.message`; what a message does not have is NULL. Columns in `ARRIVAL` tell how a message
came into the queue it was read from: two passages of one message differ in them, and writers leave them out.

The properties of the application are two maps of texts, so that what was read and is written again is equal. A value is
shown as a person would write it; the second map names the type of each value that is no text:

    {"region": "eu", "amount": 5, "rate": 0.5, "big": True, "raw": bytes(1), "tags": ["a", 1], "none": None}

    user_properties      region=eu  amount=5    rate=0.5    big=true  raw=AA==   tags=["a",1]  none=NULL
    user_property_types             amount=int  rate=float  big=bool  raw=bytes  tags=json

A list or map that JSON cannot hold exactly (bytes inside, numbers that are not finite) is the Base64 of its
MessagePack, type `msgpack`. NULL needs no type. A type that is wrong for its text is an error that names the property.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from angarium import errors
from angarium.errors import documented
from angarium.message import MAX_PROPERTY_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MESSAGE: Final = "message"
_ARRIVAL: Final = "arrival"
_TEXT: Final = StringType()
_TEXTS: Final = MapType(_TEXT, _TEXT)


class Column(NamedTuple):
    """One row of the table."""

    name: str
    type: DataType
    #: `_MESSAGE`, or `_ARRIVAL` for what differs when the same message comes again.
    about: str
    #: For the documentation; `docs/spark.md` repeats it and a test compares.
    what: str


COLUMNS: Final = (
    Column("topic", _TEXT, _MESSAGE, "the topic it was published to"),
    Column("queue", _TEXT, _ARRIVAL, "the queue or topic endpoint it was read from"),
    Column("partition", IntegerType(), _ARRIVAL, "the partition of the queue, 0 if there is one only"),
    Column("position", LongType(), _ARRIVAL, "its number in the partition: from 1, dense, never used twice"),
    Column("payload", BinaryType(), _MESSAGE, "what it carries"),
    Column("sender_timestamp", TimestampType(), _MESSAGE, "when it was sent, as the sender says, or NULL"),
    Column("spooled_timestamp", TimestampType(), _ARRIVAL, "when the node stored it"),
    Column("delivery_mode", _TEXT, _MESSAGE, "`persistent` or `non-persistent`"),
    Column("priority", IntegerType(), _MESSAGE, "0..255, or NULL"),
    Column("class_of_service", IntegerType(), _MESSAGE, "1..3"),
    Column("ttl_ms", LongType(), _MESSAGE, "time to live in ms, or NULL for no end"),
    Column("delay_ms", LongType(), _MESSAGE, "time in ms before a queue delivers it, or NULL"),
    Column("correlation_id", _TEXT, _MESSAGE, "what ties a reply to its request, or NULL"),
    Column("reply_to", _TEXT, _MESSAGE, "the topic to which a reply goes, or NULL"),
    Column("application_message_id", _TEXT, _MESSAGE, "the sender's own id, or NULL"),
    Column("application_message_type", _TEXT, _MESSAGE, "the sender's own type, or NULL"),
    Column("sender_id", _TEXT, _MESSAGE, "who sent it, as the sender says, or NULL"),
    Column("sequence_number", LongType(), _MESSAGE, "the sender's own number, or NULL"),
    Column("content_type", _TEXT, _MESSAGE, "the MIME type of the payload, or NULL"),
    Column("content_encoding", _TEXT, _MESSAGE, "the MIME encoding of the payload, or NULL"),
    Column("partition_key", _TEXT, _MESSAGE, "the key that chooses a partition, or NULL"),
    Column("user_properties", _TEXTS, _MESSAGE, "the application's own properties as readable texts"),
    Column("user_property_types", _TEXTS, _MESSAGE, "the type of each property that is no text"),
    Column("dmq_eligible", BooleanType(), _MESSAGE, "whether it may move to the dead message queue"),
    Column("eliding", BooleanType(), _MESSAGE, "whether a newer one on the topic may replace it"),
    Column("deliver_to_one", BooleanType(), _MESSAGE, "whether one of several matching clients gets it"),
    Column("is_reply", BooleanType(), _MESSAGE, "whether it answers a request"),
    Column("redelivered", BooleanType(), _ARRIVAL, "whether it was delivered before"),
    Column("delivery_count", IntegerType(), _ARRIVAL, "how often it has been delivered, this time included"),
    Column("origin_kind", _TEXT, _ARRIVAL, "`queue` or `topic-endpoint` it was moved from, or NULL"),
    Column("origin_endpoint", _TEXT, _ARRIVAL, "its name, or NULL"),
    Column("origin_reason", _TEXT, _ARRIVAL, "why it was moved, as `expired` or `rejected`, or NULL"),
)

NAMES: Final = tuple(column.name for column in COLUMNS)
#: Columns in which two passages of one message differ.
ARRIVAL: Final = frozenset(column.name for column in COLUMNS if column.about == _ARRIVAL)

_BY_NAME: Final = {column.name: column for column in COLUMNS}


def schema(names: Iterable[str] = NAMES) -> StructType:
    """Give the Spark schema of some columns, in that order; every column may be NULL.

    Raises:
        InvalidRequestError: a column is not known, or named twice (INVALID_ARGUMENT).
    """
    names = list(names)
    check_names(names)
    return StructType([StructField(name, _BY_NAME[name].type) for name in names])


def check_names(names: list[str]) -> None:
    """Check that columns are known and that none is named twice.

    Raises:
        InvalidRequestError: they are not (INVALID_ARGUMENT); the text names them.
    """
    unknown = sorted({name for name in names if name not in _BY_NAME})
    if unknown:
        raise _invalid(f"unknown columns {', '.join(unknown)}; there are {', '.join(NAMES)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _invalid(f"columns that are named twice: {', '.join(twice)}")


def check_types(wanted: StructType) -> None:
    """Check a schema that a user gave or that a table has: each column is known and has its type.

    Raises:
        InvalidRequestError: a column is unknown, named twice or of another type (INVALID_ARGUMENT).
    """
    check_names(wanted.fieldNames())
    for field in wanted.fields:
        right = _BY_NAME[field.name].type
        if field.dataType.simpleString() != right.simpleString():
            has = field.dataType.simpleString()
            raise _invalid(f"column {field.name} is {right.simpleString()}, not {has}")


def _invalid(detail: str) -> errors.AngariumError:
    return errors.invalid(detail, f"the columns and their types: {documented('spark')}")


_TYPES: Final[dict[type, tuple[str, Callable[[Any], str]]]] = {
    bool: ("bool", lambda value: "true" if value else "false"),
    int: ("int", str),
    float: ("float", repr),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_BOOLEANS: Final = {"true": True, "false": False}

_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": lambda text: text,
    "bool": _BOOLEANS.__getitem__,
    "int": int,
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "json": json.loads,
    "msgpack": lambda text: msgspec.msgpack.decode(base64.b64decode(text, validate=True)),
}


def texts_of(properties: Mapping[Any, Any]) -> tuple[dict[str, str | None], dict[str, str]]:
    """Give the texts of properties, and the types of those that are no text.

    What no client of ours makes is left out, so that no message keeps a queue from being read: a name that is no text,
    and a value that is nested hundreds of levels deep.
    """
    texts: dict[str, str | None] = {}
    types: dict[str, str] = {}
    for name, value in properties.items():
        if type(name) is not str:
            continue
        if value is None or type(value) is str:
            texts[name] = value
            continue
        known = _TYPES.get(type(value))
        try:
            types[name], texts[name] = _nested(value) if known is None else (known[0], known[1](value))
        except RecursionError:
            types.pop(name, None)
    return texts, types


def values_of(
    texts: Iterable[tuple[str, str | None]], types: Mapping[str, str | None] | None
) -> dict[str, Any]:
    """Give the properties that texts and types stand for.

    Args:
        texts: name and text, as the two maps of a row come from Arrow.
        types: the type of those that are no text; names without a text are ignored.

    Raises:
        InvalidRequestError: a type is unknown, or not that of its text (INVALID_ARGUMENT).
    """
    types = types or {}
    return {name: _value(name, text, types.get(name)) for name, text in texts}


def _value(name: str, text: str | None, kind: str | None) -> Any:
    if text is None or kind is None:
        return text
    reader = _READERS.get(kind)
    if reader is None:
        raise errors.invalid(
            f"property {name!r} has the type {kind!r}, possible are {', '.join(_READERS)}",
        )
    try:
        return reader(text)
    except (ValueError, KeyError, RecursionError):
        raise errors.invalid(f"property {name!r} is said to be {kind}, which {text[:50]!r} is not") from None


def _nested(value: Any) -> tuple[str, str]:
    if _is_json(value, MAX_PROPERTY_DEPTH):
        return "json", json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "msgpack", base64.b64encode(msgspec.msgpack.encode(value)).decode()


def _is_json(value: Any, depth: int) -> bool:
    if isinstance(value, (list, dict)) and depth == 0:
        return False
    if isinstance(value, list):
        return all(_is_json(one, depth - 1) for one in value)
    if isinstance(value, dict):
        return all(type(name) is str and _is_json(one, depth - 1) for name, one in value.items())
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (str, bool, int)
