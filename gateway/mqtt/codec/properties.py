"""The properties of 5.0 (section 2.2.2): one table says of each what it is, where it may stand, and what it may say.

Reading and writing are walks over the table. All packets share one type, `Properties`, whose fields are None (or
empty) if the property is not there; in 3.1.1, and in a packet without properties, it is `NONE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gateway.mqtt.codec import errors, fields, topics
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.fields import Reader
from gateway.mqtt.codec.kinds import V5, PacketType

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs = tuple[tuple[str, str], ...]


class Properties(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, repr_omit_defaults=True
):
    """The properties of one packet."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: Pairs = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NONE: Final = Properties()


class DataType(NamedTuple):
    """How a value is read, and how it is written."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


def _read_pair(reader: Reader) -> tuple[str, str]:
    """Read the name and the value of a user property [MQTT-1.5.7-1]."""
    return reader.text(), reader.text()


def _write_pair(pair: tuple[str, str]) -> bytes:
    return fields.text(pair[0]) + fields.text(pair[1])


BYTE: Final = DataType(Reader.byte, lambda value: value.to_bytes(1, "big"))
TWO_BYTES: Final = DataType(Reader.two_bytes, fields.two_bytes)
FOUR_BYTES: Final = DataType(Reader.four_bytes, fields.four_bytes)
VARIABLE: Final = DataType(Reader.variable_integer, fields.variable_integer)
TEXT: Final = DataType(Reader.text, fields.text)
BINARY: Final = DataType(Reader.binary, fields.binary)
PAIR: Final = DataType(_read_pair, _write_pair)


def _any(value: Any, version: int) -> None:
    """Take every value of the type."""


def _flag(value: int, version: int) -> None:
    """Take 0 and 1: for each of these properties its section calls another value a protocol error."""
    if value not in (0, 1):
        raise PacketError(errors.PROPERTY_VALUE, f"{value} for a flag", version)


def _not_zero(value: int, version: int) -> None:
    """Refuse 0, as the sections of the limits and of the subscription identifier do."""
    if not value:
        raise PacketError(errors.PROPERTY_VALUE, "0 for a limit or an identifier", version)


def _alias(value: int, version: int) -> None:
    if not value:
        raise PacketError(errors.TOPIC_ALIAS_ZERO, "0", version)


def _response_topic(value: str, version: int) -> None:
    topics.check_name(value, version, errors.RESPONSE_TOPIC)


class Property(NamedTuple):
    """One row of the table.

    Attributes:
        identifier: what stands before its value.
        name: the field of `Properties`.
        data_type: what kind of value it has.
        places: the packets that may have it.
        check: refuses values that it may not have.
        several_in: the packets that may have it several times.
    """

    identifier: int
    name: str
    data_type: DataType
    places: frozenset[PacketType]
    check: Callable[[Any, int], None] = _any
    several_in: frozenset[PacketType] = frozenset()


_P = PacketType
_MESSAGE: Final = frozenset({_P.PUBLISH, _P.WILL})
_CONNECT: Final = frozenset({_P.CONNECT})
_CONNACK: Final = frozenset({_P.CONNACK})
_BOTH: Final = _CONNECT | _CONNACK
_AUTHENTICATION: Final = _BOTH | {_P.AUTH}
_EVERYWHERE: Final = frozenset(_P) - {_P.PINGREQ, _P.PINGRESP}
_ANSWERS: Final = _EVERYWHERE - _MESSAGE - {_P.CONNECT, _P.SUBSCRIBE, _P.UNSUBSCRIBE}

#: Section 2.2.2.2, in the order of the identifiers.
TABLE: Final = (
    Property(0x01, "payload_format_indicator", BYTE, _MESSAGE, _flag),
    Property(0x02, "message_expiry_interval", FOUR_BYTES, _MESSAGE),
    Property(0x03, "content_type", TEXT, _MESSAGE),
    Property(0x08, "response_topic", TEXT, _MESSAGE, _response_topic),
    Property(0x09, "correlation_data", BINARY, _MESSAGE),
    Property(
        0x0B,
        "subscription_identifiers",
        VARIABLE,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        _not_zero,
        frozenset({_P.PUBLISH}),
    ),
    Property(0x11, "session_expiry_interval", FOUR_BYTES, _BOTH | {_P.DISCONNECT}),
    Property(0x12, "assigned_client_identifier", TEXT, _CONNACK),
    Property(0x13, "server_keep_alive", TWO_BYTES, _CONNACK),
    Property(0x15, "authentication_method", TEXT, _AUTHENTICATION),
    Property(0x16, "authentication_data", BINARY, _AUTHENTICATION),
    Property(0x17, "request_problem_information", BYTE, _CONNECT, _flag),
    Property(0x18, "will_delay_interval", FOUR_BYTES, frozenset({_P.WILL})),
    Property(0x19, "request_response_information", BYTE, _CONNECT, _flag),
    Property(0x1A, "response_information", TEXT, _CONNACK),
    Property(0x1C, "server_reference", TEXT, _CONNACK | {_P.DISCONNECT}),
    Property(0x1F, "reason_string", TEXT, _ANSWERS),
    Property(0x21, "receive_maximum", TWO_BYTES, _BOTH, _not_zero),
    Property(0x22, "topic_alias_maximum", TWO_BYTES, _BOTH),
    Property(0x23, "topic_alias", TWO_BYTES, frozenset({_P.PUBLISH}), _alias),
    Property(0x24, "maximum_qos", BYTE, _CONNACK, _flag),
    Property(0x25, "retain_available", BYTE, _CONNACK, _flag),
    Property(0x26, "user_properties", PAIR, _EVERYWHERE, several_in=_EVERYWHERE),
    Property(0x27, "maximum_packet_size", FOUR_BYTES, _BOTH, _not_zero),
    Property(0x28, "wildcard_subscription_available", BYTE, _CONNACK, _flag),
    Property(0x29, "subscription_identifier_available", BYTE, _CONNACK, _flag),
    Property(0x2A, "shared_subscription_available", BYTE, _CONNACK, _flag),
)
_BY_IDENTIFIER: Final = {row.identifier: row for row in TABLE}
#: Their fields are tuples, also where they come once.
#: User properties of one packet; one of 1 MiB could hold 200,000, which take 0.3 s in one step.
SEVERAL_MAX: Final = 1_000
_TUPLES: Final = frozenset({"subscription_identifiers", "user_properties"})


def read(reader: Reader, place: PacketType) -> Properties:
    """Read the properties of a packet, with their length; there are none in 3.1.1.

    Raises:
        PacketError: an unknown property, one that is not for this packet, a second one, or a value it may not have.
    """
    if reader.version != V5:
        return NONE
    size = reader.variable_integer()
    if not size:
        return NONE
    stop, outer = reader.at + size, reader.stop
    if stop > outer:
        raise reader.broken(errors.TRUNCATED, f"{outer - reader.at} bytes for properties of {size}")
    reader.stop = stop
    values: dict[str, Any] = {}
    while reader.at < stop:
        _read_one(reader, place, values)
    reader.stop = outer
    for name in _TUPLES & values.keys():
        values[name] = tuple(values[name])
    return Properties(**values)


def _read_one(reader: Reader, place: PacketType, values: dict[str, Any]) -> None:
    """Read one property into those that were read before it.

    Its identifier is a variable byte integer, of which no second byte was ever needed.
    """
    identifier = reader.byte()
    row = _BY_IDENTIFIER.get(identifier)
    if row is None or place not in row.places:
        raise reader.broken(errors.UNKNOWN_PROPERTY, f"0x{identifier:02x} in {place.name}")
    value = row.data_type.read(reader)
    row.check(value, reader.version)
    if row.name in values and place not in row.several_in:
        raise reader.broken(errors.DUPLICATE_PROPERTY, f"a second {row.name}")
    if row.name in _TUPLES:
        several = values.setdefault(row.name, [])
        if len(several) == SEVERAL_MAX:
            raise reader.broken(errors.TOO_MANY_PROPERTIES, f"more than {SEVERAL_MAX}")
        several.append(value)
    else:
        values[row.name] = value


def check_authentication(properties: Properties, version: int) -> None:
    """Refuse authentication data of no method (5.0 sections 3.1.2.11.10, 3.2.2.3.18 and 3.15.2.2.3)."""
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise PacketError(errors.AUTHENTICATION_METHOD, "data alone", version)


def write(properties: Properties, place: PacketType, version: int) -> bytes:
    """Write the properties of a packet, with their length; nothing in 3.1.1.

    Raises:
        PacketError: what `read` would refuse.
    """
    if version != V5:
        return b""
    section = write_section(properties, place)
    return fields.variable_integer(len(section)) + section


def write_section(properties: Properties, place: PacketType) -> bytes:
    """Write the properties of a packet without their length."""
    if properties is NONE:
        return b""
    return b"".join([_write_one(row, value, place) for row, value in _given(properties, place)])


def _given(properties: Properties, place: PacketType) -> list[tuple[Property, Any]]:
    """List the properties that are there, each one of several by itself."""
    given: list[tuple[Property, Any]] = []
    for row in TABLE:
        value = getattr(properties, row.name)
        if row.name in _TUPLES:
            if len(value) > 1 and place not in row.several_in:
                raise PacketError(errors.DUPLICATE_PROPERTY, f"{len(value)} {row.name}", V5)
            given += [(row, one) for one in value]
        elif value is not None:
            given.append((row, value))
    return given


def _write_one(row: Property, value: Any, place: PacketType) -> bytes:
    if place not in row.places:
        raise PacketError(errors.UNKNOWN_PROPERTY, f"{row.name} in {place.name}", V5)
    row.check(value, V5)
    return bytes([row.identifier]) + row.data_type.write(value)
