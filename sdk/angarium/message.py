"""Messages as applications see them, and rows as the wire has them.

A row is what a batch carries per message: `(index, topic, flags, meta, properties, payload)`. Sending builds
rows, receiving gets them, and a `Message` is a thin view of one: what is not looked at is never decoded. Rows
are packed and unpacked here with msgspec, which is three times as fast as msgpack at the first and checks
every type during the second, so that rows which came through `unpack_rows` need no further check. The bytes
are the same canonical MessagePack.

Properties are packed on their own inside the row, because brokers carry them unopened. They come unchecked
from another publisher; what is unreadable in them reads as absent, and `Message.properties_intact` says so,
because one misbehaving publisher must not break the loops of all its subscribers.

This module does no I/O. SDK, tests and pipelines use it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

import msgspec

from angarium import errors, wire
from angarium.topic import check_topic
from angarium.trail import Route, key_of

#: Time to live and delay in ms (0 for none), priority 0..255, partition key (or trail, `angarium.trail`).
Meta: TypeAlias = tuple[int, int, int | None, Route]
_Natural = Annotated[int, msgspec.Meta(ge=0)]
#: Index in its round, topic, flags (`wire.FLAG_...`), meta, packed properties, payload.
Row: TypeAlias = tuple[_Natural, str, _Natural, Meta | None, bytes | None, bytes]

#: A value in a user property: what JSON has, and bytes.
PropertyValue: TypeAlias = (
    bool | int | float | str | bytes | Sequence["PropertyValue"] | Mapping[str, "PropertyValue"] | None
)
_T = TypeVar("_T")

#: Lists and maps in user properties may be nested so deep; a stack bounds what a recursive value can cost.
MAX_PROPERTY_DEPTH: Final = 16
#: 100 years; beyond is a mistake of units.
MAX_TTL_MS: Final = 100 * 365 * 86_400_000
MAX_PRIORITY: Final = 255

_CORRELATION_ID: Final = 1
_REPLY_TO: Final = 2
_SENDER_ID: Final = 3
_SENDER_TIMESTAMP_MS: Final = 4
_SEQUENCE_NUMBER: Final = 5
_APPLICATION_MESSAGE_ID: Final = 6
_APPLICATION_MESSAGE_TYPE: Final = 7
_CONTENT_TYPE: Final = 8
_CONTENT_ENCODING: Final = 9
_USER_PROPERTIES: Final = 10

_UNREADABLE: Final[dict[Any, Any]] = {}

_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_decode_any = msgspec.msgpack.Decoder().decode


def row_size(row: Row) -> int:
    """Give the bytes that count against the limit of a message: payload, properties, partition key."""
    meta, packed = row[3], row[4]
    size = len(row[5])
    if packed is not None:
        size += len(packed)
    key = None if meta is None else key_of(meta[3])
    if key is not None:
        size += len(key.encode())
    return size


def pack_rows(rows: list[Row]) -> bytes:
    """Pack rows into one canonical batch."""
    return _encode_rows(rows)


def unpack_rows(batch: bytes) -> list[Row]:
    """Unpack a batch that a peer sent; every type of every row is checked.

    Raises:
        InvalidRequestError: it is no MessagePack, or no batch of rows (MALFORMED_FRAME).
    """
    try:
        return _decode_rows(batch)
    except (ValueError, RecursionError) as error:
        raise errors.error_for(errors.MALFORMED_FRAME, f"no batch of rows: {error}") from None


class DeliveryMode(enum.StrEnum):
    """How a message travels: direct ones fast and at most once, the others spooled and acknowledged."""

    DIRECT = "direct"
    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


#: A mode by its member or its name.
Mode: TypeAlias = DeliveryMode | Literal["direct", "persistent", "non-persistent"]
_MODES: Final = (DeliveryMode.DIRECT, DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT)
_MODE_BITS: Final[dict[str, int]] = {mode: bits for bits, mode in enumerate(_MODES)}


class MessageHeaders(TypedDict, total=False):
    """What one application tells another; no broker looks at it."""

    correlation_id: str | None
    reply_to: str | None
    sender_id: str | None
    sender_timestamp_ms: int | None
    sequence_number: int | None
    application_message_id: str | None
    application_message_type: str | None
    content_type: str | None
    content_encoding: str | None


class MessageOptions(MessageHeaders, total=False):
    """What can be said about a message besides its topic and payload; `Message` explains each."""

    mode: Mode
    cos: int
    dto: bool
    eliding: bool
    dmq_eligible: bool
    is_reply: bool
    retain: bool
    priority: int | None
    ttl_ms: int
    delay_ms: int
    partition_key: str | None
    properties: Mapping[str, PropertyValue] | None


class Message:
    """One message, made to be published or received.

    Equality is identity: two messages with the same content are two messages.
    """

    __slots__ = ("_fields", "_row")

    def __init__(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview = b"",
        *,
        mode: Mode = DeliveryMode.DIRECT,
        cos: int = 1,
        dto: bool = False,
        eliding: bool = False,
        dmq_eligible: bool = False,
        is_reply: bool = False,
        retain: bool = False,
        priority: int | None = None,
        ttl_ms: int = 0,
        delay_ms: int = 0,
        partition_key: str | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        **headers: Unpack[MessageHeaders],
    ) -> None:
        """Make a message to publish.

        Args:
            topic: 1 to 250 bytes of UTF-8, at most 128 levels.
            payload: what it carries; the broker never opens it.
            mode: direct, persistent or non-persistent.
            cos: class of service, 1 (lowest) to 3.
            dto: deliver to one: of several clients whose subscriptions match, one gets it.
            eliding: a newer message on the topic may replace this one for slow clients whose profile allows
                it.
            dmq_eligible: when it cannot be delivered it moves to the dead message queue (guaranteed
                messages).
            is_reply: this answers a request.
            retain: the node keeps it for later subscribers, until the next of its topic; without payload it ends that.
            priority: 0..255 inside a queue, or None.
            ttl_ms: time to live in ms, 0 for no end (guaranteed messages).
            delay_ms: time in ms before a queue delivers it.
            partition_key: messages with one key stay in order on one partition of a queue.
            properties: the application's own, text to nil, bool, int, float, str, bytes, list or map.
            **headers: see `MessageHeaders`; texts, and the numbers `sender_timestamp_ms` and
                `sequence_number`.

        Raises:
            InvalidRequestError: the topic is illegal (INVALID_TOPIC), or another value is (INVALID_ARGUMENT).
        """
        if not isinstance(topic, str):
            raise errors.invalid(f"a topic is text, not {type(topic).__name__}")
        check_topic(topic)
        self._fields: dict[Any, Any] | None = None
        flags = (
            _mode_bits(mode)
            | (_checked_int("cos", cos, 1, 3) - 1) << wire.COS_SHIFT
            | (wire.FLAG_DTO if dto else 0)
            | (wire.FLAG_ELIDING if eliding else 0)
            | (wire.FLAG_DMQ_ELIGIBLE if dmq_eligible else 0)
            | (wire.FLAG_REPLY if is_reply else 0)
            | (wire.FLAG_RETAIN if retain else 0)
        )
        meta = _meta(ttl_ms, delay_ms, priority, partition_key)
        packed = _pack_properties(headers, properties)
        self._row: Row = (0, topic, flags, meta, packed, check_payload(payload))

    @property
    def row(self) -> Row:
        """The row, with the index at which it was received, or 0; as it can be published again."""
        row = self._row
        meta = row[3]
        if meta is None or not isinstance(meta[3], tuple):
            return row
        return (*row[:3], (*meta[:3], key_of(meta[3])), *row[4:])

    @property
    def index(self) -> int:
        """The place among the messages that its publisher sent together."""
        return self._row[0]

    @property
    def topic(self) -> str:
        """The topic it is published to."""
        return self._row[1]

    @property
    def payload(self) -> bytes:
        """What it carries."""
        return self._row[5]

    @property
    def mode(self) -> DeliveryMode:
        """How it travels."""
        return _MODES[min(self._row[2] & wire.FLAG_MODE, len(_MODES) - 1)]

    @property
    def cos(self) -> int:
        """Class of service, 1..3."""
        return ((self._row[2] & wire.FLAG_COS) >> wire.COS_SHIFT) + 1

    @property
    def dto(self) -> bool:
        """Whether it is delivered to one client only."""
        return bool(self._row[2] & wire.FLAG_DTO)

    @property
    def eliding(self) -> bool:
        """Whether a newer message on the topic may replace it."""
        return bool(self._row[2] & wire.FLAG_ELIDING)

    @property
    def dmq_eligible(self) -> bool:
        """Whether it may move to the dead message queue."""
        return bool(self._row[2] & wire.FLAG_DMQ_ELIGIBLE)

    @property
    def is_reply(self) -> bool:
        """Whether it answers a request."""
        return bool(self._row[2] & wire.FLAG_REPLY)

    @property
    def retain(self) -> bool:
        """Whether its publisher asked the node to keep it for later subscribers."""
        return bool(self._row[2] & wire.FLAG_RETAIN)

    @property
    def retained(self) -> bool:
        """Whether it was read from what the node keeps, and did not come live."""
        return bool(self._row[2] & wire.FLAG_RETAINED)

    @property
    def ttl_ms(self) -> int:
        """Time to live in ms, 0 for no end; of one that was retained what is left of it."""
        meta = self._row[3]
        return 0 if meta is None else meta[0]

    @property
    def delay_ms(self) -> int:
        """Time in ms before a queue delivers it."""
        meta = self._row[3]
        return 0 if meta is None else meta[1]

    @property
    def priority(self) -> int | None:
        """Priority inside a queue, 0..255."""
        meta = self._row[3]
        return None if meta is None else meta[2]

    @property
    def partition_key(self) -> str | None:
        """The key that chooses a partition."""
        meta = self._row[3]
        return None if meta is None else key_of(meta[3])

    @property
    def correlation_id(self) -> str | None:
        """What ties a reply to its request."""
        return self._field(_CORRELATION_ID, str)

    @property
    def reply_to(self) -> str | None:
        """The topic to which a reply goes."""
        return self._field(_REPLY_TO, str)

    @property
    def sender_id(self) -> str | None:
        """Who sent it, as the sender says."""
        return self._field(_SENDER_ID, str)

    @property
    def sender_timestamp_ms(self) -> int | None:
        """When it was sent, as the sender says, in ms since 1970."""
        return self._field(_SENDER_TIMESTAMP_MS, int)

    @property
    def sequence_number(self) -> int | None:
        """The sender's own number."""
        return self._field(_SEQUENCE_NUMBER, int)

    @property
    def application_message_id(self) -> str | None:
        """The sender's own id."""
        return self._field(_APPLICATION_MESSAGE_ID, str)

    @property
    def application_message_type(self) -> str | None:
        """The sender's own type."""
        return self._field(_APPLICATION_MESSAGE_TYPE, str)

    @property
    def content_type(self) -> str | None:
        """The MIME type of the payload."""
        return self._field(_CONTENT_TYPE, str)

    @property
    def content_encoding(self) -> str | None:
        """The MIME encoding of the payload."""
        return self._field(_CONTENT_ENCODING, str)

    @property
    def properties(self) -> dict[str, Any]:
        """The application's own properties; a change of this dict changes nothing in the message."""
        found = self._field(_USER_PROPERTIES, dict)
        return {} if found is None else dict(found)

    @property
    def properties_intact(self) -> bool:
        """False if the sender packed properties that cannot be read; they are absent then."""
        return self._decoded() is not _UNREADABLE

    @property
    def discard_indication(self) -> bool:
        """Whether the broker discarded messages for this client just before this one."""
        return False

    @property
    def share(self) -> str | None:
        """The shared subscription through which it came, as subscribed, or None."""
        return None

    def __repr__(self) -> str:
        mode = "" if self.mode == DeliveryMode.DIRECT else f", {self.mode}"
        return f"{type(self).__name__}({self.topic!r}, {len(self.payload)} bytes{mode})"

    def _decoded(self) -> dict[Any, Any]:
        fields = self._fields
        if fields is None:
            fields = self._fields = unpack_properties(self._row[4])
        return fields

    def _field(self, key: int, kind: type[_T]) -> _T | None:
        value = self._decoded().get(key)
        return value if isinstance(value, kind) and (kind is not int or type(value) is int) else None


class Delivery(msgspec.Struct, eq=False):
    """Rows that came together, with what they have in common."""

    #: They rise by index. Never changed once it is dispatched: several subscriptions may look at it.
    rows: list[Row]
    #: The shared subscription to which all rows belong, or None for those that the client's own trie dispatches.
    share: str | None
    #: What the rows took on the wire; the egress credit they cost.
    size_bytes: int
    #: The row before which the broker discarded others, one of `rows` or None.
    head: Row | None = None


class ReceivedMessage(Message):
    """A message that came through a direct subscription."""

    __slots__ = ("_delivery",)

    def __init__(self, row: Row, delivery: Delivery) -> None:
        self._row = row
        self._fields = None
        self._delivery = delivery

    @property
    def row(self) -> Row:
        """The row as it can be published again: as a direct message, which is what came."""
        row = super().row
        return (*row[:2], row[2] & ~(wire.FLAG_MODE | wire.FLAG_RETAINED), *row[3:])

    @property
    def mode(self) -> DeliveryMode:
        """Direct, however it was published: a guaranteed message reaches subscribers as a direct one (R156)."""
        return DeliveryMode.DIRECT

    @property
    def discard_indication(self) -> bool:
        """Whether the broker discarded messages for this client just before this one."""
        return self._row is self._delivery.head

    @property
    def share(self) -> str | None:
        """The shared subscription through which it came, as subscribed, or None."""
        return self._delivery.share


class MessageBatch(Sequence[Message]):
    """Messages that arrived together; each is made when it is looked at.

    `payloads` and `topics` give a column without making any message, the fastest way to read.
    """

    __slots__ = ("_delivery", "_rows")

    def __init__(self, rows: list[Row], delivery: Delivery) -> None:
        self._rows = rows
        self._delivery = delivery

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message."""
        return [row[5] for row in self._rows]

    @property
    def topics(self) -> list[str]:
        """The topic of each message."""
        return [row[1] for row in self._rows]

    @property
    def share(self) -> str | None:
        """The shared subscription through which all of them came, or None."""
        return self._delivery.share

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> Message: ...

    @overload
    def __getitem__(self, position: slice) -> MessageBatch: ...

    def __getitem__(self, position: int | slice) -> Message | MessageBatch:
        if isinstance(position, slice):
            return MessageBatch(self._rows[position], self._delivery)
        return ReceivedMessage(self._rows[position], self._delivery)

    def __iter__(self) -> Iterator[Message]:
        delivery = self._delivery
        for row in self._rows:
            yield ReceivedMessage(row, delivery)

    def __repr__(self) -> str:
        return f"MessageBatch({len(self._rows)} messages)"


def check_payload(payload: object) -> bytes:
    """Give the bytes of a payload.

    Raises:
        InvalidRequestError: it is not bytes, bytearray or memoryview (INVALID_ARGUMENT).
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise errors.invalid(f"a payload is bytes, not {type(payload).__name__}; encode text first")


def _meta(ttl_ms: int, delay_ms: int, priority: int | None, partition_key: str | None) -> Meta | None:
    if priority is not None:
        _checked_int("priority", priority, 0, MAX_PRIORITY)
    if partition_key is not None:
        _checked_text("partition_key", partition_key)
    if not ttl_ms and not delay_ms and priority is None and partition_key is None:
        return None
    ttl_ms = _checked_int("ttl_ms", ttl_ms, 0, MAX_TTL_MS)
    return ttl_ms, _checked_int("delay_ms", delay_ms, 0, MAX_TTL_MS), priority, partition_key


def _mode_bits(mode: str) -> int:
    bits = _MODE_BITS.get(mode)
    if bits is None:
        raise errors.invalid(f"mode {mode!r}, possible are {', '.join(_MODES)}")
    return bits


def _checked_int(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise errors.invalid(f"{name} is {value!r}, from {least} to {most} is possible")
    return value


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise errors.invalid(f"{name} is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise errors.invalid(f"{name} {value!r} is no text that UTF-8 can hold") from None
    return value


def _checked_reply_to(name: str, value: object) -> str:
    topic = _checked_text(name, value)
    check_topic(topic)
    return topic


def _checked_number(name: str, value: object) -> int:
    return _checked_int(name, value, 0, (1 << 63) - 1)


_HEADERS: Final = {
    "correlation_id": (_CORRELATION_ID, _checked_text),
    "reply_to": (_REPLY_TO, _checked_reply_to),
    "sender_id": (_SENDER_ID, _checked_text),
    "sender_timestamp_ms": (_SENDER_TIMESTAMP_MS, _checked_number),
    "sequence_number": (_SEQUENCE_NUMBER, _checked_number),
    "application_message_id": (_APPLICATION_MESSAGE_ID, _checked_text),
    "application_message_type": (_APPLICATION_MESSAGE_TYPE, _checked_text),
    "content_type": (_CONTENT_TYPE, _checked_text),
    "content_encoding": (_CONTENT_ENCODING, _checked_text),
}

#: The key of each header among the packed properties of a row, for who makes rows by the column.
HEADER_KEYS: Final = {name: key for name, (key, _) in _HEADERS.items()}
#: The key of the application's own properties.
USER_PROPERTIES_KEY: Final = _USER_PROPERTIES
#: The key of what only MQTT says of a message: a map that the gateway for it writes and reads, and nobody else.
MQTT_KEY: Final = 11


#: What others call options of a message.
_OTHER_WORDS: Final = {
    "delivery_mode": "mode",
    "durable": "mode",
    "expiration": "ttl_ms",
    "headers": "properties",
    "key": "partition_key",
    "persistent": "mode",
}


def pack_fields(fields: dict[int, Any]) -> bytes | None:
    """Pack properties by their keys, which the caller has checked; None if there are none.

    Raises:
        InvalidRequestError: a value cannot be packed (INVALID_ARGUMENT).
    """
    if not fields:
        return None
    try:
        return _encode_rows(fields)
    except (ValueError, OverflowError, RecursionError) as error:
        raise errors.invalid(f"a property cannot be packed: {error}") from None


def _pack_properties(headers: MessageHeaders, properties: Mapping[str, PropertyValue] | None) -> bytes | None:
    fields: dict[int, Any] = {}
    for name, value in headers.items():
        known = _HEADERS.get(name)
        if known is None:
            options = MessageHeaders.__annotations__ | MessageOptions.__annotations__
            raise errors.unexpected("Message", name, options, _OTHER_WORDS)
        if value is not None:
            key, check = known
            fields[key] = check(name, value)
    if properties:
        fields[_USER_PROPERTIES] = _plain_value(properties, MAX_PROPERTY_DEPTH)
    return pack_fields(fields)


def _plain_value(value: object, depth: int) -> Any:
    """Give a user property without surprises: only the types that every client reads."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if depth == 0:
        raise errors.invalid(f"properties are nested deeper than {MAX_PROPERTY_DEPTH}")
    if isinstance(value, Mapping):
        names = [_checked_text("the name of a property", name) for name in value]
        return dict(zip(names, (_plain_value(one, depth - 1) for one in value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return [_plain_value(one, depth - 1) for one in value]
    raise errors.invalid(f"a property cannot be a {type(value).__name__}")


def message_of(row: Row) -> Message:
    """Give the message that a row is, to be published; the caller has checked the row."""
    message = Message.__new__(Message)
    message._row = row
    message._fields = None
    return message


def with_properties(row: Row, more: Mapping[str, str]) -> Row:
    """Give a row with more user properties; those of the same names are replaced, what is unreadable is dropped."""
    fields = unpack_properties(row[4])
    properties = fields.get(_USER_PROPERTIES)
    user = {**properties, **more} if isinstance(properties, dict) else dict(more)
    return (*row[:4], pack_fields({**fields, _USER_PROPERTIES: user}), row[5])


def user_properties_of(row: Row) -> dict[Any, Any]:
    """Give the user properties of a row, unchecked; nothing if there are none."""
    found = unpack_properties(row[4]).get(_USER_PROPERTIES)
    return found if isinstance(found, dict) else {}


def unpack_properties(packed: bytes | None) -> dict[Any, Any]:
    """Give the properties of a row by their keys; nothing if there are none or they are unreadable.

    They are as another publisher packed them: whoever reads one checks its type.
    """
    if packed is None:
        return {}
    try:
        fields = _decode_any(packed)
    except (ValueError, TypeError, RecursionError):
        return _UNREADABLE
    return fields if isinstance(fields, dict) else _UNREADABLE
