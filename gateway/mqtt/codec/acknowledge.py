"""PUBACK, PUBREC, PUBREL and PUBCOMP (5.0 sections 3.4 to 3.7): four packets of one form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from gateway.mqtt.codec import fields, properties
from gateway.mqtt.codec.kinds import V3, PacketType, check_reason
from gateway.mqtt.codec.properties import NONE, Properties

if TYPE_CHECKING:
    from gateway.mqtt.codec.fields import Reader


class Acknowledgement(msgspec.Struct, frozen=True, gc=False):
    """What the four have: whose turn it was, and how it went; 3.1.1 says the identifier alone."""

    kind: ClassVar[PacketType]

    packet_id: int
    code: int = 0
    properties: Properties = NONE


class PubAck(Acknowledgement, frozen=True, gc=False):
    """The end of a PUBLISH with QoS 1."""

    kind = PacketType.PUBACK


class PubRec(Acknowledgement, frozen=True, gc=False):
    """A PUBLISH with QoS 2 arrived."""

    kind = PacketType.PUBREC


class PubRel(Acknowledgement, frozen=True, gc=False):
    """The sender of a PUBLISH with QoS 2 heard so, and will not send it again."""

    kind = PacketType.PUBREL


class PubComp(Acknowledgement, frozen=True, gc=False):
    """The end of a PUBLISH with QoS 2."""

    kind = PacketType.PUBCOMP


AnAcknowledgement = TypeVar("AnAcknowledgement", bound=Acknowledgement)


def read(reader: Reader, packet: type[AnAcknowledgement]) -> AnAcknowledgement:
    """Read one of the four; the code 0 and an empty section of properties may be left out."""
    packet_id = reader.packet_identifier()
    if reader.version == V3 or reader.at == reader.stop:
        reader.end()
        return packet(packet_id)
    code = reader.byte()
    check_reason(packet.kind, code, reader.version)
    given = properties.read(reader, packet.kind) if reader.at < reader.stop else NONE
    reader.end()
    return packet(packet_id, code, given)


#: The four by their first bytes.
_FIRST: Final = {0x40: PubAck, 0x50: PubRec, 0x62: PubRel, 0x70: PubComp}


def walk(data: bytes, at: int, packets: list[Any], most: int) -> int:
    """Take apart the acknowledgements of the shortest form that stand at a place of a buffer.

    Almost all are of it; as `publish.walk`, this stops before any other packet and judges nothing.
    """
    end = len(data)
    for _ in range(most - len(packets)):
        if at + 4 > end:
            break
        packet = _FIRST.get(data[at])
        packet_id = data[at + 2] << 8 | data[at + 3]
        if packet is None or data[at + 1] != 2 or not packet_id:
            break
        packets.append(packet(packet_id))
        at += 4
    return at


def stored(packet_id: int) -> bytes:
    """Write the PUBACK of a message that was taken, which says no more than that."""
    return b"@\2" + packet_id.to_bytes(2, "big")


def write(packet: Acknowledgement, version: int) -> bytes:
    """Write one of the four, without what may be left out."""
    body = fields.packet_identifier(packet.packet_id, version)
    flags = 0b0010 if packet.kind == PacketType.PUBREL else 0
    if version == V3 or not (packet.code or packet.properties is not NONE):
        return fields.packet(packet.kind, body, flags)
    check_reason(packet.kind, packet.code, version)
    body += bytes([packet.code])
    if packet.properties is not NONE:
        body += properties.write(packet.properties, packet.kind, version)
    return fields.packet(packet.kind, body, flags)
