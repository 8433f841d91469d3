"""All packets: which type is read and written by whom, who sends it, and what its fixed header says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.mqtt.codec import acknowledge, connect, control, errors, publish, subscribe
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V3, PacketType, Sender
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, UnsubAck, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.mqtt.codec.fields import Reader

Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)


class Layout(NamedTuple):
    """One type of packet.

    Attributes:
        packet: what it is read into.
        flags: the low four bits of its first byte; those of a PUBLISH say something, and are not in here.
        senders: who may send it.
        read: reads what follows the fixed header.
        write: writes the whole packet.
    """

    packet: type
    flags: int
    senders: frozenset[Sender]
    read: Callable[[Reader], Packet]
    write: Callable[[Any, int], bytes]


_CLIENT: Final = frozenset({Sender.CLIENT})
_SERVER: Final = frozenset({Sender.SERVER})
_BOTH: Final = _CLIENT | _SERVER


def _acknowledgement(packet: type[PubAck | PubRec | PubRel | PubComp], flags: int = 0) -> Layout:
    return Layout(packet, flags, _BOTH, partial(acknowledge.read, packet=packet), acknowledge.write)


#: 5.0 sections 2.1.2 and 2.1.3, without PUBLISH, which `publish` reads with its flags.
LAYOUTS: Final = {
    PacketType.CONNECT: Layout(Connect, 0, _CLIENT, connect.read_connect, connect.write_connect),
    PacketType.CONNACK: Layout(ConnAck, 0, _SERVER, connect.read_connack, connect.write_connack),
    PacketType.PUBACK: _acknowledgement(PubAck),
    PacketType.PUBREC: _acknowledgement(PubRec),
    PacketType.PUBREL: _acknowledgement(PubRel, 0b0010),
    PacketType.PUBCOMP: _acknowledgement(PubComp),
    PacketType.SUBSCRIBE: Layout(
        Subscribe, 0b0010, _CLIENT, subscribe.read_subscribe, subscribe.write_subscribe
    ),
    PacketType.SUBACK: Layout(SubAck, 0, _SERVER, subscribe.read_suback, subscribe.write_suback),
    PacketType.UNSUBSCRIBE: Layout(
        Unsubscribe, 0b0010, _CLIENT, subscribe.read_unsubscribe, subscribe.write_unsubscribe
    ),
    PacketType.UNSUBACK: Layout(UnsubAck, 0, _SERVER, subscribe.read_unsuback, subscribe.write_unsuback),
    PacketType.PINGREQ: Layout(PingReq, 0, _CLIENT, control.read_pingreq, control.write_pingreq),
    PacketType.PINGRESP: Layout(PingResp, 0, _SERVER, control.read_pingresp, control.write_pingresp),
    PacketType.DISCONNECT: Layout(Disconnect, 0, _BOTH, control.read_disconnect, control.write_disconnect),
    PacketType.AUTH: Layout(Auth, 0, _BOTH, control.read_auth, control.write_auth),
}
_WRITERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Publish: publish.write,
    **{layout.packet: layout.write for layout in LAYOUTS.values()},
}


def layout_of(first: int, version: int, sender: Sender) -> Layout | None:
    """Judge the first byte of a packet; None says PUBLISH.

    Raises:
        PacketError: nobody sends such a packet in this version, or not this sender, or its flags are others.
    """
    kind = first >> 4
    if kind == PacketType.PUBLISH:
        return None
    if not kind or (kind == PacketType.AUTH and version == V3):
        raise PacketError(errors.UNKNOWN_TYPE, f"{kind}", version)
    layout = LAYOUTS[PacketType(kind)]
    senders = _CLIENT if kind == PacketType.DISCONNECT and version == V3 else layout.senders
    if sender not in senders:
        raise PacketError(errors.WRONG_SENDER, f"{PacketType(kind).name} of a {sender.value}", version)
    if first & 0x0F != layout.flags:
        raise PacketError(errors.RESERVED_FLAGS, f"0x{first:02x}", version)
    return layout


def read(layout: Layout | None, first: int, reader: Reader, seen: Seen) -> Packet:
    """Read one packet with the layout that `layout_of` gave for its first byte; the reader is behind its fixed header.

    Raises:
        PacketError: it breaks a rule.
    """
    if layout is None:
        return publish.read(reader, first & 0x0F, seen)
    return layout.read(reader)


def write(packet: Packet, version: int) -> bytes:
    """Write one packet.

    Raises:
        PacketError: it would break a rule.
    """
    return _WRITERS[type(packet)](packet, version)
