"""MQTT as the door of a gateway reads it: packets of clients, some at a time, and the fault that ends them.

What the codec finds wrong is given as the last message, a `PacketError`, because its sender is told the reason; who
never said that he speaks MQTT is not, and has no more of us than any other stranger. Before the login a packet is
small. The CONNECT is given alone: if its connection is paused until the login is over, what came right behind it is not
looked at before it is known what the client may send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium_server.connections.framing import MESSAGES_MAX, FramingError
from gateway.mqtt.codec import Packet, PacketError, Parser, Sender

if TYPE_CHECKING:
    from angarium_server.connections.framing import FramingLimits
    from gateway.mqtt.codec.publish import Seen


class MqttFraming:
    """One connection of a client, from its first byte."""

    __slots__ = ("_is_over", "_parser", "has_more", "is_open", "replies")

    #: A client speaks first.
    start: Final = b""

    def __init__(self, limits: FramingLimits, seen: Seen) -> None:
        """Begin before the CONNECT; what was seen may be of all clients of a process."""
        self._parser = Parser(Sender.CLIENT, limits.message_bytes, seen=seen)
        #: Whether the fault has been given.
        self._is_over = False
        self.has_more = False
        #: Whether the peer has said which version he speaks.
        self.is_open = False
        #: Always nothing: what is answered is decided elsewhere.
        self.replies = b""

    def trust(self, limits: FramingLimits) -> None:
        """Take larger packets from now on: the client has logged in."""
        self._parser.packet_bytes_max = limits.message_bytes

    def received(self, data: bytes) -> list[Packet | PacketError]:
        """Take bytes that came; give the packets that are complete, `MESSAGES_MAX` and a fault at most.

        Raises:
            FramingError: the first packet is none of a client of MQTT.
        """
        parser = self._parser
        packets: list[Any] = parser.feed(data, MESSAGES_MAX if self.is_open else 1)
        self.has_more = parser.has_more
        if parser.fault is not None and not self._is_over:
            self._is_over = True
            if not parser.fault.version:
                raise FramingError(str(parser.fault))
            packets.append(parser.fault)
        if packets:
            self.is_open = True
        return packets

    def wrap(self, data: bytes) -> bytes:
        """Give bytes as they are."""
        return data

    def end(self) -> bytes:
        """Give nothing: the owner has said it."""
        return b""

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        fault = self._parser.fault
        assert self.is_open == bool(self._parser.version or (fault and fault.version))
        assert not self.replies
