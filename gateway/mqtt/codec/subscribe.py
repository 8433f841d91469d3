"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (5.0 sections 3.8 to 3.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gateway.mqtt.codec import errors, fields, properties, topics
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V3, V5, PacketType, check_reason
from gateway.mqtt.codec.properties import NONE, Properties

if TYPE_CHECKING:
    from gateway.mqtt.codec.fields import Reader

#: Filters of one packet; one of 1 MiB could hold 260,000, and each of them costs time.
FILTERS_MAX: Final = 1_000


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """A topic filter, and how the client wants what matches it; 3.1.1 has the QoS alone."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """A client wants messages."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NONE


class SubAck(msgspec.Struct, frozen=True, gc=False):
    """For each subscription the granted QoS or why there is none, in their order [MQTT-3.9.3-1]."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NONE


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """A client wants no more messages."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NONE


class UnsubAck(msgspec.Struct, frozen=True, gc=False):
    """For each filter whether it was there, in their order [MQTT-3.11.3-1]; 3.1.1 has no codes."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = NONE


def read_subscribe(reader: Reader) -> Subscribe:
    """Read a SUBSCRIBE."""
    packet_id = reader.packet_identifier()
    given = properties.read(reader, PacketType.SUBSCRIBE)
    if reader.at == reader.stop:
        raise reader.broken(errors.NO_FILTERS, "none")
    subscriptions = []
    while reader.at < reader.stop:
        subscriptions.append(_subscription(reader.text(), reader.byte(), reader.version))
        _bound(len(subscriptions), reader)
    return Subscribe(packet_id, tuple(subscriptions), given)


def _bound(filters: int, reader: Reader) -> None:
    if filters > FILTERS_MAX:
        raise reader.broken(errors.TOO_MANY_FILTERS, f"more than {FILTERS_MAX}")


def _subscription(text: str, options: int, version: int) -> Subscription:
    """Take the options of a subscription apart (5.0 section 3.8.3.1)."""
    topics.check_filter(text, version)
    check_options(text, options, version)
    return Subscription(text, options & 3, bool(options & 4), bool(options & 8), options >> 4)


def check_options(text: str, options: int, version: int) -> None:
    """Refuse options that mean nothing, or not for this filter."""
    if options & (0xC0 if version == V5 else 0xFC):
        rule = errors.SUBSCRIPTION_RESERVED
    elif options & 3 == 3:
        rule = errors.SUBSCRIPTION_QOS
    elif options & 0x30 == 0x30:
        rule = errors.RETAIN_HANDLING
    elif options & 4 and topics.shared(text):
        rule = errors.NO_LOCAL_SHARED
    else:
        return
    raise PacketError(rule, f"options 0x{options:02x} for {text!r}", version)


def write_subscribe(packet: Subscribe, version: int) -> bytes:
    """Write a SUBSCRIBE."""
    if not packet.subscriptions:
        raise PacketError(errors.NO_FILTERS, "none", version)
    body = fields.packet_identifier(packet.packet_id, version)
    body += properties.write(packet.properties, PacketType.SUBSCRIBE, version)
    body += b"".join([_write_subscription(one, version) for one in packet.subscriptions])
    return fields.packet(PacketType.SUBSCRIBE, body, 0b0010)


def _write_subscription(one: Subscription, version: int) -> bytes:
    options = one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
    topics.check_filter(one.filter, version)
    check_options(one.filter, options, version)
    return fields.text(one.filter) + bytes([options])


def read_unsubscribe(reader: Reader) -> Unsubscribe:
    """Read an UNSUBSCRIBE."""
    packet_id = reader.packet_identifier()
    given = properties.read(reader, PacketType.UNSUBSCRIBE)
    if reader.at == reader.stop:
        raise reader.broken(errors.NO_FILTERS_TO_LEAVE, "none")
    filters = []
    while reader.at < reader.stop:
        filters.append(reader.text())
        topics.check_filter(filters[-1], reader.version)
        _bound(len(filters), reader)
    return Unsubscribe(packet_id, tuple(filters), given)


def write_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Write an UNSUBSCRIBE."""
    if not packet.filters:
        raise PacketError(errors.NO_FILTERS_TO_LEAVE, "none", version)
    for text in packet.filters:
        topics.check_filter(text, version)
    body = fields.packet_identifier(packet.packet_id, version)
    body += properties.write(packet.properties, PacketType.UNSUBSCRIBE, version)
    body += b"".join([fields.text(text) for text in packet.filters])
    return fields.packet(PacketType.UNSUBSCRIBE, body, 0b0010)


def read_suback(reader: Reader) -> SubAck:
    """Read a SUBACK."""
    packet_id = reader.packet_identifier()
    given = properties.read(reader, PacketType.SUBACK)
    packet = SubAck(packet_id, tuple(reader.rest()), given)
    _check_codes(PacketType.SUBACK, packet.codes, reader.version)
    return packet


def write_suback(packet: SubAck, version: int) -> bytes:
    """Write a SUBACK."""
    _check_codes(PacketType.SUBACK, packet.codes, version)
    body = fields.packet_identifier(packet.packet_id, version)
    body += properties.write(packet.properties, PacketType.SUBACK, version)
    return fields.packet(PacketType.SUBACK, body + bytes(packet.codes))


def read_unsuback(reader: Reader) -> UnsubAck:
    """Read an UNSUBACK."""
    packet_id = reader.packet_identifier()
    if reader.version == V3:
        reader.end()
        return UnsubAck(packet_id)
    given = properties.read(reader, PacketType.UNSUBACK)
    packet = UnsubAck(packet_id, tuple(reader.rest()), given)
    _check_codes(PacketType.UNSUBACK, packet.codes, reader.version)
    return packet


def write_unsuback(packet: UnsubAck, version: int) -> bytes:
    """Write an UNSUBACK; its codes and properties are for 5.0 alone."""
    body = fields.packet_identifier(packet.packet_id, version)
    if version == V5:
        _check_codes(PacketType.UNSUBACK, packet.codes, version)
        body += properties.write(packet.properties, PacketType.UNSUBACK, version) + bytes(packet.codes)
    return fields.packet(PacketType.UNSUBACK, body)


def _check_codes(kind: PacketType, codes: tuple[int, ...], version: int) -> None:
    """Refuse an answer to nothing [MQTT-3.8.4-6], or with a code that is another packet's."""
    if not codes:
        raise PacketError(errors.NO_REASONS, "none", version)
    for code in codes:
        check_reason(kind, code, version)
