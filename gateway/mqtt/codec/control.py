"""PINGREQ, PINGRESP, DISCONNECT and AUTH (5.0 sections 3.12 to 3.15): packets about the connection itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.mqtt.codec import errors, fields, properties
from gateway.mqtt.codec.errors import PacketError, ReasonCode
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender, check_reason
from gateway.mqtt.codec.properties import NONE, Properties

if TYPE_CHECKING:
    from gateway.mqtt.codec.fields import Reader


class PingReq(msgspec.Struct, frozen=True, gc=False):
    """Are you there?"""


class PingResp(msgspec.Struct, frozen=True, gc=False):
    """I am."""


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """The connection ends; in 3.1.1 a client says so, without a reason."""

    code: int = 0
    properties: Properties = NONE


class Auth(msgspec.Struct, frozen=True, gc=False):
    """A step of an enhanced authentication; in 5.0 alone."""

    code: int = 0
    properties: Properties = NONE


def read_pingreq(reader: Reader) -> PingReq:
    """Read a PINGREQ, which has nothing but its fixed header."""
    reader.end()
    return PingReq()


def read_pingresp(reader: Reader) -> PingResp:
    """Read a PINGRESP, which has nothing but its fixed header."""
    reader.end()
    return PingResp()


def write_pingreq(_packet: PingReq, _version: int) -> bytes:
    """Write a PINGREQ."""
    return fields.packet(PacketType.PINGREQ, b"")


def write_pingresp(_packet: PingResp, _version: int) -> bytes:
    """Write a PINGRESP."""
    return fields.packet(PacketType.PINGRESP, b"")


def read_disconnect(reader: Reader) -> Disconnect:
    """Read a DISCONNECT; the code 0 and an empty section of properties may be left out."""
    if reader.version == V3 or reader.at == reader.stop:
        reader.end()
        return Disconnect()
    code = reader.byte()
    check_reason(PacketType.DISCONNECT, code, reader.version, reader.sender)
    given = properties.read(reader, PacketType.DISCONNECT) if reader.at < reader.stop else NONE
    reader.end()
    if reader.sender is Sender.SERVER and given.session_expiry_interval is not None:
        raise reader.broken(errors.SESSION_EXPIRY_SENT, f"{given.session_expiry_interval}")
    return Disconnect(code, given)


def write_disconnect(packet: Disconnect, version: int) -> bytes:
    """Write a DISCONNECT, without what may be left out."""
    if version == V3:
        return fields.packet(PacketType.DISCONNECT, b"")
    check_reason(PacketType.DISCONNECT, packet.code, version)
    if packet.properties is NONE:
        return fields.packet(PacketType.DISCONNECT, bytes([packet.code]) if packet.code else b"")
    body = bytes([packet.code]) + properties.write(packet.properties, PacketType.DISCONNECT, version)
    return fields.packet(PacketType.DISCONNECT, body)


def read_auth(reader: Reader) -> Auth:
    """Read an AUTH: an empty one is a success (section 3.15.2.1), any other names its method (3.15.2.2.2)."""
    code, given = 0, NONE
    empty = reader.at == reader.stop
    if not empty:
        code = reader.byte()
        given = properties.read(reader, PacketType.AUTH)
        reader.end()
    check_reason(PacketType.AUTH, code, reader.version, reader.sender)
    if not empty:
        _check_method(given)
    return Auth(code, given)


def write_auth(packet: Auth, version: int) -> bytes:
    """Write an AUTH."""
    check_reason(PacketType.AUTH, packet.code, version)
    if not packet.code and packet.properties is NONE:
        return fields.packet(PacketType.AUTH, b"")
    _check_method(packet.properties)
    body = bytes([packet.code]) + properties.write(packet.properties, PacketType.AUTH, version)
    return fields.packet(PacketType.AUTH, body)


def _check_method(given: Properties) -> None:
    if given.authentication_method is None:
        raise PacketError(errors.AUTHENTICATION_METHOD, "no method", V5)


def farewell(reason: ReasonCode, version: int, given: Properties = NONE) -> bytes:
    """Write the DISCONNECT with which a server ends a connection that it had accepted.

    Nothing is written in 3.1.1, where servers just end it. Before the CONNACK it is `connect.refusal`
    [MQTT-3.14.0-1].
    """
    return write_disconnect(Disconnect(reason, given), V5) if version == V5 else b""
