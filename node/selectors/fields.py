"""What a selector can ask of a message: header fields by their JMS names, and user properties by theirs.

A field that is absent, of a type that selectors do not know (bytes, lists, maps), or longer than 2,000 bytes
is NULL. So are all properties of a message that has more than 64 KiB of them: to open them would take longer than
everything that can be asked of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from angarium import wire
from angarium.trail import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.trail import Route

#: A value in a selector; None is NULL.
Value: TypeAlias = bool | int | float | str | None

#: Bytes of a text that a selector looks at; what is longer is NULL.
TEXT_BYTES_MAX: Final = 2_000
#: Bytes of the properties of a message that a selector opens; with more, all are NULL.
PROPERTIES_BYTES_MAX: Final = 65_536
#: Steps of about a nanosecond for each of these bytes: of many small properties; long texts take a tenth.
_STEPS_PER_BYTE: Final = 10
#: Characters of a text that is certainly short enough, whichever they are.
_SURELY_SHORT: Final = TEXT_BYTES_MAX // 4
#: The priority of a message that has none, and the highest that counts.
PRIORITY_DEFAULT: Final = 4
PRIORITY_HIGHEST: Final = 9
#: Keys of the packed properties, see docs/protocol.md.
_CORRELATION_ID: Final = 1
_SENDER_ID: Final = 3
_SENDER_TIMESTAMP: Final = 4
_SEQUENCE_NUMBER: Final = 5
_MESSAGE_ID: Final = 6
_MESSAGE_TYPE: Final = 7
_USER: Final = 10

#: What values are of that are never too long; no other kind of number is ever unpacked.
_SHORT_TYPES: Final = frozenset((bool, int, float))

_decode = msgspec.msgpack.Decoder().decode


class Row(Protocol):
    """What of a row a selector reads."""

    @property
    def flags(self) -> int:
        """Give the flags of the message."""

    @property
    def meta(self) -> tuple[int, int, int | None, Route] | None:
        """Give time to live, delay, priority and partition key."""

    @property
    def properties(self) -> bytes | None:
        """Give the packed properties."""


class Fields:
    """One message as a selector sees it; its properties are unpacked at the first question for one."""

    __slots__ = ("_properties", "_row", "_user", "steps")

    def __init__(self, row: Row) -> None:
        self._row = row
        self._properties: dict[Any, Any] | None = None
        self._user: dict[Any, Any] = {}
        #: What the fields cost that were asked for, in steps of about a nanosecond.
        self.steps = 0

    def property(self, key: int) -> Value:
        """Give a property of the protocol by its number."""
        return _usable(self._unpacked().get(key))

    def user(self, name: str) -> Value:
        """Give a user property."""
        if self._properties is None:
            self._unpacked()
        return _usable(self._user.get(name))

    def delivery_mode(self) -> Value:
        """Give PERSISTENT or NON_PERSISTENT; a promoted direct message is the latter (R159)."""
        mode = self._row.flags & wire.FLAG_MODE
        return "PERSISTENT" if mode == wire.MODE_PERSISTENT else "NON_PERSISTENT"

    def priority(self) -> Value:
        """Give the priority that counts, 0..9."""
        meta = self._row.meta
        priority = None if meta is None else meta[2]
        return PRIORITY_DEFAULT if priority is None else min(priority, PRIORITY_HIGHEST)

    def partition_key(self) -> Value:
        """Give the key that chooses a partition."""
        meta = self._row.meta
        return None if meta is None else _usable(key_of(meta[3]))

    def _unpacked(self) -> dict[Any, Any]:
        if self._properties is None:
            packed = self._row.properties
            if packed is None or len(packed) > PROPERTIES_BYTES_MAX:
                self._properties = {}
                return self._properties
            self.steps += len(packed) * _STEPS_PER_BYTE
            self._properties = _map_of(packed)
            user = self._properties.get(_USER)
            self._user = user if isinstance(user, dict) else {}
        return self._properties


def _map_of(packed: bytes) -> dict[Any, Any]:
    """Unpack properties; those that cannot be read are absent, as for every reader."""
    try:
        unpacked = _decode(packed)
    except (ValueError, RecursionError):
        return {}
    return unpacked if isinstance(unpacked, dict) else {}


def _usable(value: Any) -> Value:
    if type(value) in _SHORT_TYPES:
        plain: Value = value
        return plain
    if not isinstance(value, str) or len(value) > TEXT_BYTES_MAX:
        return None
    is_short = len(value) <= _SURELY_SHORT or len(value.encode(errors="replace")) <= TEXT_BYTES_MAX
    return value if is_short else None


#: Header identifiers; the names after the JMS ones are those of the SDK's message in the same spelling.
HEADERS: Final[dict[str, Callable[[Fields], Value]]] = {
    "JMSDeliveryMode": Fields.delivery_mode,
    "JMSPriority": Fields.priority,
    "JMSMessageID": lambda fields: fields.property(_MESSAGE_ID),
    "JMSTimestamp": lambda fields: fields.property(_SENDER_TIMESTAMP),
    "JMSCorrelationID": lambda fields: fields.property(_CORRELATION_ID),
    "JMSType": lambda fields: fields.property(_MESSAGE_TYPE),
    "JMSXGroupID": Fields.partition_key,
    "SenderId": lambda fields: fields.property(_SENDER_ID),
    "SequenceNumber": lambda fields: fields.property(_SEQUENCE_NUMBER),
}
#: Headers that JMS keeps out of selectors.
FORBIDDEN: Final = ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered")
