"""A stream of bytes becomes packets, whatever pieces it arrives in, until something in it breaks a rule.

A parser belongs to one connection and one direction. It holds at most one packet that is not whole, which is bounded
before its bytes are there, and looks again at what waits only when enough of it has arrived: pieces of one byte cost a
copy each and no more. Who wants some packets at a time gets the next ones when he feeds nothing. It knows the order of
a stream as far as one direction shows it: the first packet, one CONNECT, nothing behind a DISCONNECT. All else about
a connection is its session's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from gateway.mqtt.codec import acknowledge, errors, packets, publish
from gateway.mqtt.codec.connect import ConnAck, Connect, version_of
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.fields import VARIABLE_INTEGER_MAX, Reader
from gateway.mqtt.codec.kinds import V5, PacketType, Sender
from gateway.mqtt.codec.publish import Seen

if TYPE_CHECKING:
    from gateway.mqtt.codec.packets import Layout, Packet

#: A fixed header with all its bytes, and the largest remaining length: no packet is larger.
PACKET_BYTES_MAX: Final = 5 + VARIABLE_INTEGER_MAX


class Parser:
    """Reads what one side of a connection sends.

    Attributes:
        version: the version that is spoken; 0 before the CONNECT.
        packet_bytes_max: larger packets end the connection. It may change between two feeds.
        fault: what broke a rule; nothing is read after it. Its owner looks at it after each feed.
        has_more: whether `feed(b"")` may give more packets, since those before were as many as were wanted.
    """

    __slots__ = (
        "_at",
        "_is_fresh",
        "_is_over",
        "_rest",
        "_seen",
        "_sender",
        "_waiting",
        "_wanted",
        "fault",
        "has_more",
        "packet_bytes_max",
        "version",
    )

    def __init__(
        self,
        sender: Sender,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        version: int = 0,
        seen: Seen | None = None,
    ) -> None:
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.fault: PacketError | None = None
        self.has_more = False
        self._sender = sender
        self._seen = seen or Seen()
        #: Whether the packet that begins a stream is still to come.
        self._is_fresh = True
        #: Whether nothing more is read: behind a fault or a DISCONNECT.
        self._is_over = False
        #: The beginning of a packet whose end has not arrived; nothing while there is more.
        self._waiting: bytes | bytearray = b""
        #: What was not looked at yet is in these bytes from that place on, while there is more.
        self._rest, self._at = b"", 0
        #: So many bytes have to wait before it is worth looking again.
        self._wanted = 0

    @property
    def waiting_bytes(self) -> int:
        """So many bytes are held."""
        return len(self._waiting) + len(self._rest) - self._at

    def feed(self, data: bytes, most: int = sys.maxsize) -> list[Packet]:
        """Take what arrived and give so many of the packets that are whole; those before a fault are given too."""
        found: list[Packet] = []
        if self._is_over:
            return found
        at = 0
        if self.has_more:
            data, at = (self._rest[self._at :] + data, 0) if data else (self._rest, self._at)
        elif self._waiting:
            self._waiting += data
            if len(self._waiting) < self._wanted:
                return found
            data = bytes(self._waiting)
        elif not self._is_fresh:
            at = publish.walk(data, 0, self.version, self._seen, self.packet_bytes_max, found, most)
            if at == len(data):  # as nearly always
                return found
        try:
            at = self._read_all(data, at, found, most)
        except PacketError as fault:
            # Its traceback holds the parser, and so does that of what it was raised for: a cycle.
            self.fault, fault.__context__ = fault.with_traceback(None), None
            self._is_over = True
        if self._is_over:
            at = len(data)
        if at < len(data) or self._waiting or self.has_more:
            self._hold(data, at, has_more=len(found) == most and at < len(data))
        return found

    def _hold(self, data: bytes, at: int, *, has_more: bool) -> None:
        """Keep what is behind a place: packets that were not wanted yet, or the beginning of one."""
        self.has_more = has_more
        self._rest, self._at = (data, at) if has_more else (b"", 0)
        self._waiting = b"" if has_more or at == len(data) else bytearray(data[at:])

    def _read_all(self, data: bytes, at: int, found: list[Packet], most: int) -> int:
        """Read packets until one is not whole or there are enough, and say where the next one begins."""
        while not self._is_over:
            if not self._is_fresh:
                at = self._walk(data, at, found, most)
            if at == len(data) or len(found) == most:
                self._wanted = 1
                break
            layout = self._judge(data[at])
            begin = self._body(data, at)
            stop = at + self._wanted
            if stop > len(data):
                break
            reader = Reader(data, begin, stop, self.version, self._sender)
            packet = packets.read(layout, data[at], reader, self._seen)
            self._follow(packet, reader.version)
            if self.version == V5 and data[begin - 1] == 0 and begin - at > 2:
                raise PacketError(errors.PADDED_INTEGER, f"a remaining length of {begin - at - 1} bytes", V5)
            found.append(packet)
            at = stop
        return at

    def _walk(self, data: bytes, at: int, found: list[Packet], most: int) -> int:
        """Read the common packets of the path of messages, and say where the first other one begins."""
        while True:
            begin = publish.walk(data, at, self.version, self._seen, self.packet_bytes_max, found, most)
            if begin == len(data):
                return begin
            at = acknowledge.walk(data, begin, found, most)
            if at == begin:
                return at

    def _body(self, data: bytes, at: int) -> int:
        """Read the fixed header at a place, say where it ends, and how many bytes are wanted for more than that.

        A packet that is too large is refused before it is there.
        """
        end = len(data)
        size = 0
        for index in range(4):
            place = at + 1 + index
            if place >= end:
                self._wanted = index + 2
                return place
            byte = data[place]
            size |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self._bound(index + 2 + size, self.version or version_of(data[place + 1 : place + 8]))
                self._wanted = index + 2 + size
                return place + 1
        raise PacketError(errors.LONG_INTEGER, "a remaining length of five bytes", self.version)

    def _judge(self, first: int) -> Layout | None:
        """Refuse a packet by its first byte, before the rest has arrived: one that is not, or not here, or not now."""
        kind = first >> 4
        if self._sender is Sender.CLIENT:
            if self._is_fresh and kind != PacketType.CONNECT:
                raise PacketError(errors.CONNECT_FIRST, f"a first byte of 0x{first:02x}", 0)
            if not self._is_fresh and kind == PacketType.CONNECT:
                raise PacketError(errors.SECOND_CONNECT, "another one", self.version)
        elif self._is_fresh and kind not in (PacketType.CONNACK, PacketType.AUTH):
            raise PacketError(errors.CONNACK_FIRST, f"a first byte of 0x{first:02x}", self.version)
        elif not self._is_fresh and kind == PacketType.CONNACK:
            raise PacketError(errors.SECOND_CONNACK, "another one", self.version)
        return packets.layout_of(first, self.version, self._sender)

    def _bound(self, size: int, version: int) -> None:
        if size > self.packet_bytes_max:
            raise PacketError(errors.TOO_LARGE, f"{size} bytes of {self.packet_bytes_max}", version)

    def _follow(self, packet: Packet, version: int) -> None:
        """Learn from a packet what the next one may be."""
        self.version = version
        if isinstance(packet, (Connect, ConnAck)):
            self._is_fresh = False
        self._is_over = isinstance(packet, Disconnect)
