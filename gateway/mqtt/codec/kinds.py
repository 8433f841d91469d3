"""Which packets there are: their types, who sends them, and the reason codes that each may carry.

The sets are the tables of 5.0: 3.2.2.2 [MQTT-3.2.2-8], 3.4.2.1 [MQTT-3.4.2-1], 3.5.2.1 [MQTT-3.5.2-1], 3.6.2.1
[MQTT-3.6.2-1], 3.7.2.1 [MQTT-3.7.2-1], 3.9.3 [MQTT-3.9.3-2], 3.11.3 [MQTT-3.11.3-2], 3.14.2.1 [MQTT-3.14.2-1] and
3.15.2.1 [MQTT-3.15.2-1].
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from gateway.mqtt.codec import errors

#: Protocol versions, as a CONNECT writes them.
V3: Final = 4
V5: Final = 5


class PacketType(IntEnum):
    """The types of packets, as the fixed header writes them (5.0 section 2.1.2).

    WILL is none: it is where the properties of a will stand, inside a CONNECT.
    """

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15
    WILL = 16


class Sender(Enum):
    """Who sends a packet."""

    CLIENT = "client"
    SERVER = "server"


_ACKNOWLEDGED: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})
#: 0x00 is what a client says; servers say it too, and no harm is in it.
_DISCONNECT_BOTH: Final = frozenset(
    {0x00, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)

#: The reason codes of 5.0, by the type of the packet.
_REASONS: Final = {
    PacketType.CONNACK: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
    ),
    PacketType.PUBACK: _ACKNOWLEDGED,
    PacketType.PUBREC: _ACKNOWLEDGED,
    PacketType.PUBREL: _RELEASED,
    PacketType.PUBCOMP: _RELEASED,
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
}
#: Those that depend on who sends.
_REASONS_OF_SENDER: Final = {
    (PacketType.DISCONNECT, Sender.CLIENT): _DISCONNECT_BOTH | {0x04},
    (PacketType.DISCONNECT, Sender.SERVER): _DISCONNECT_BOTH
    | {0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)},
    (PacketType.AUTH, Sender.CLIENT): frozenset({0x18, 0x19}),
    (PacketType.AUTH, Sender.SERVER): frozenset({0x00, 0x18}),
}
#: 3.1.1 has codes in two packets (its sections 3.2.2.3 and 3.9.3).
_RETURN_CODES: Final = {
    PacketType.CONNACK: frozenset(range(6)),
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80}),
}


def reasons_of(kind: PacketType, version: int, sender: Sender | None = None) -> frozenset[int]:
    """Give the reason codes of a type of packets; without a sender, those of both."""
    if version == V3:
        return _RETURN_CODES.get(kind, frozenset())
    if kind in _REASONS:
        return _REASONS[kind]
    senders = [sender] if sender else list(Sender)
    return frozenset().union(*(_REASONS_OF_SENDER[kind, one] for one in senders))


def check_reason(kind: PacketType, code: int, version: int, sender: Sender | None = None) -> None:
    """Refuse a reason code that a packet of this type does not have; without a sender, that none of them may send.

    Raises:
        PacketError: it is another packet's, or nobody's.
    """
    if code not in reasons_of(kind, version, sender):
        raise errors.PacketError(errors.REASON, f"0x{code:02x} in {kind.name}", version)
