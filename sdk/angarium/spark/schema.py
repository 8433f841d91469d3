"""The columns of a message in Spark: one table for the source, the writers, archives and reports.

Names are those of `angarium.message`; what a message does not have is NULL. Columns in `ARRIVAL` tell how a message
came into the queue it was read from: two passages of one message differ in them, and writers leave them out.

The properties of the application are two maps. `user_properties` holds a readable text for each value, and
`user_property_types` the type of those that are no text, so that what was read and written again is equal
(`angarium.spark.properties`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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
from angarium.documentation import documented

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    return errors.error_for(
        errors.INVALID_ARGUMENT, detail, f"the columns and their types: {documented('spark')}"
    )
