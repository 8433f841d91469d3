"""CONNECT and CONNACK (5.0 sections 3.1 and 3.2): how a connection begins, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gateway.mqtt.codec import errors, fields, properties, topics
from gateway.mqtt.codec.errors import RETURN_CODES, PacketError, ReasonCode
from gateway.mqtt.codec.kinds import V3, V5, PacketType, check_reason
from gateway.mqtt.codec.properties import NONE, Properties

if TYPE_CHECKING:
    from gateway.mqtt.codec.fields import Reader

NAME: Final = "MQTT"
#: The name and the version of 3.1, which we understand well enough to refuse it in its own words.
OLD_NAME: Final = "MQIsdp"
#: What a bridge of Mosquitto adds to the version: it wants RETAIN as it was published, and nothing back that it sends.
#: If it is refused with the return code 1, it comes without, and gets its own messages.
BRIDGE: Final = 0x80
_BRIDGE_V3: Final = V3 | BRIDGE

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


class Will(msgspec.Struct, frozen=True, gc=False):
    """The message that the server publishes when the client is gone."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NONE


class Connect(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A client wants a connection."""

    version: int = V5
    client_id: str = ""
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NONE
    #: Whether it is a bridge of 3.1.1, which says by its version what 5.0 has options of subscriptions for.
    is_bridge: bool = False


class ConnAck(msgspec.Struct, frozen=True, gc=False):
    """The server accepts or refuses a connection; `code` is a return code of 3.1.1 in that version."""

    code: int = 0
    session_present: bool = False
    properties: Properties = NONE


def version_of(start: bytes) -> int:
    """Give the version that a CONNECT says in its first seven bytes; 0 if that is none of ours."""
    is_ours = len(start) == 7 and start[:6] == fields.text(NAME) and start[6] in (V3, V5, _BRIDGE_V3)
    return start[6] & ~BRIDGE if is_ours else 0


def read_connect(reader: Reader) -> Connect:
    """Read a CONNECT; the reader knows its version from then on. The fields have one order [MQTT-3.1.3-1]."""
    said = _read_version(reader)
    version = reader.version = said & ~BRIDGE
    flags = reader.byte()
    check_flags(flags, version)
    keep_alive = reader.two_bytes()
    given = properties.read(reader, PacketType.CONNECT)
    properties.check_authentication(given, version)
    client_id = reader.text()
    will = _read_will(reader, flags) if flags & _WILL else None
    username = reader.text() if flags & _USERNAME else None
    password = reader.binary() if flags & _PASSWORD else None
    reader.end()
    connect = Connect(
        version=version,
        client_id=client_id,
        clean_start=bool(flags & _CLEAN_START),
        keep_alive=keep_alive,
        will=will,
        username=username,
        password=password,
        properties=given,
        is_bridge=said == _BRIDGE_V3,
    )
    check_client_id(connect)
    return connect


def _read_version(reader: Reader) -> int:
    """Read name and version [MQTT-3.1.2-1] [MQTT-3.1.2-2]; who says neither name is not answered."""
    name = reader.text()
    version = reader.byte()
    if name not in (NAME, OLD_NAME):
        raise reader.broken(errors.PROTOCOL_NAME, repr(name[:20]))
    if name == OLD_NAME or version not in (V3, V5, _BRIDGE_V3):
        answer = V5 if V5 < version < BRIDGE else V3
        raise PacketError(errors.PROTOCOL_VERSION, f"{name} {version}", answer)
    return version


def check_flags(flags: int, version: int) -> None:
    """Refuse connect flags that contradict each other, or say what nothing is meant by [MQTT-3.1.2-3]."""
    if flags & _RESERVED:
        rule = errors.CONNECT_RESERVED
    elif not flags & _WILL and flags & _WILL_QOS:
        rule = errors.WILL_QOS_WITHOUT_WILL
    elif not flags & _WILL and flags & _WILL_RETAIN:
        rule = errors.WILL_RETAIN_WITHOUT_WILL
    elif flags & _WILL_QOS == _WILL_QOS:
        rule = errors.WILL_QOS
    elif version == V3 and flags & _PASSWORD and not flags & _USERNAME:
        rule = errors.PASSWORD_WITHOUT_USERNAME
    else:
        return
    raise PacketError(rule, f"connect flags 0x{flags:02x}", version)


def check_client_id(connect: Connect) -> None:
    """Refuse a client of 3.1.1 that wants to keep a session but has no name for it; 5.0 gives it one."""
    if connect.version == V3 and not connect.client_id and not connect.clean_start:
        raise PacketError(errors.EMPTY_CLIENT_IDENTIFIER, "no identifier and no clean session", V3)


def _read_will(reader: Reader, flags: int) -> Will:
    """Read what belongs to a will [MQTT-3.1.2-9]."""
    given = properties.read(reader, PacketType.WILL)
    topic = reader.text()
    topics.check_name(topic, reader.version)
    return Will(topic, reader.binary(), (flags & _WILL_QOS) >> 3, bool(flags & _WILL_RETAIN), given)


def write_connect(packet: Connect, version: int) -> bytes:
    """Write a CONNECT; it says its version itself."""
    version = packet.version
    flags = _flags(packet)
    check_flags(flags, version)
    check_client_id(packet)
    properties.check_authentication(packet.properties, version)
    parts = [
        fields.text(NAME),
        bytes([version | BRIDGE if packet.is_bridge else version, flags]),
        fields.two_bytes(packet.keep_alive),
        properties.write(packet.properties, PacketType.CONNECT, version),
        fields.text(packet.client_id),
    ]
    if packet.will:
        parts += _write_will(packet.will, version)
    if packet.username is not None:
        parts.append(fields.text(packet.username))
    if packet.password is not None:
        parts.append(fields.binary(packet.password))
    return fields.packet(PacketType.CONNECT, b"".join(parts))


def _flags(packet: Connect) -> int:
    """Give the connect flags (5.0 section 3.1.2.3)."""
    flags = _CLEAN_START if packet.clean_start else 0
    if packet.will:
        flags |= _WILL | packet.will.qos << 3 | (_WILL_RETAIN if packet.will.retain else 0)
    if packet.username is not None:
        flags |= _USERNAME
    if packet.password is not None:
        flags |= _PASSWORD
    return flags


def _write_will(will: Will, version: int) -> list[bytes]:
    topics.check_name(will.topic, version)
    return [
        properties.write(will.properties, PacketType.WILL, version),
        fields.text(will.topic),
        fields.binary(will.payload),
    ]


def read_connack(reader: Reader) -> ConnAck:
    """Read a CONNACK."""
    flags = reader.byte()
    if flags & 0xFE:
        raise reader.broken(errors.CONNACK_RESERVED, f"0x{flags:02x}")
    code = reader.byte()
    packet = ConnAck(code, bool(flags), properties.read(reader, PacketType.CONNACK))
    reader.end()
    _check_connack(packet, reader.version)
    return packet


def _check_connack(packet: ConnAck, version: int) -> None:
    """Refuse a CONNACK with another packet's code, or with the session of a connection that is refused."""
    check_reason(PacketType.CONNACK, packet.code, version)
    if packet.code and packet.session_present:
        raise PacketError(errors.SESSION_PRESENT, f"one, with the code {packet.code}", version)
    properties.check_authentication(packet.properties, version)


def write_connack(packet: ConnAck, version: int) -> bytes:
    """Write a CONNACK."""
    _check_connack(packet, version)
    body = bytes([packet.session_present, packet.code])
    return fields.packet(
        PacketType.CONNACK, body + properties.write(packet.properties, PacketType.CONNACK, version)
    )


def refusal(reason: ReasonCode, version: int, given: Properties = NONE) -> bytes:
    """Write the CONNACK that refuses a client, before its connection ends.

    Nothing is written to who speaks no version of MQTT, or for a reason that 3.1.1 has no return code for: the end
    says it then [MQTT-3.1.4-1].
    """
    if version == V5:
        return write_connack(ConnAck(reason, properties=given), V5)
    if version == V3 and reason in RETURN_CODES:
        return write_connack(ConnAck(RETURN_CODES[reason]), V3)
    return b""
