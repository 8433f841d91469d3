"""Topic aliases for what is sent to a client (5.0 section 3.3.2.3.4): a topic that comes again is a number.

Which packets leave, and in which order, is known only when they go to the connection: what waits may be lost, and what
is retained goes before it. So packets are written as if there were no aliases, the same bytes for many clients, and
this rewrites what leaves for one client. The first topics get an alias at once, all others when they come for the
second time, so that those which never come again do not use them up; and a topic keeps it as long as the connection
lives. No I/O, no clock.
"""

from __future__ import annotations

from typing import Final

from gateway.mqtt.codec import fields, publish
from gateway.mqtt.codec.kinds import PacketType

#: What an alias takes: the property, and in the worst case a byte more for each of two lengths.
ALIAS_BYTES: Final = 5
#: So large a part of the aliases is given at once, and one at least.
AT_ONCE_PART: Final = 4
#: Topics that came once are remembered, so many for each alias that is left.
ONCE_PER_ALIAS: Final = 4


class Aliases:
    """Those of one connection."""

    __slots__ = ("_at_once", "_known", "_left", "_once", "_packet_bytes_max")

    def __init__(self, aliases_max: int, packet_bytes_max: int) -> None:
        """Use so many; packets that are not larger than the client takes do not become so (0: it takes any)."""
        #: Topic -> its alias, as a property; the client knows all of them.
        self._known: dict[bytes, bytes] = {}
        #: As long as there are fewer, a topic gets one when it comes for the first time.
        self._at_once: Final = max(1, aliases_max // AT_ONCE_PART)
        #: How many aliases are left.
        self._left = aliases_max
        #: Topics that came once, ONCE_PER_ALIAS for each alias that is left at most; none if none is left.
        self._once: set[bytes] = set()
        self._packet_bytes_max = packet_bytes_max

    def shorten(self, data: bytes) -> bytes:
        """Give whole PUBLISHes of 5.0 with aliases; they are to leave now, in this order, and none is lost."""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            size, begin = _length(data, at + 1)
            parts.append(self._shortened(data[at : begin + size], begin - at))
            at = begin + size
        return b"".join(parts)

    def _shortened(self, packet: bytes, begin: int) -> bytes:
        """Give one packet, whose topic begins at a place, with its alias or as it is."""
        assert packet[0] >> 4 == PacketType.PUBLISH
        end = begin + 2 + (packet[begin] << 8 | packet[begin + 1])
        topic = packet[begin:end]
        alias = self._known.get(topic)
        if alias is not None:
            return _with_alias(packet, b"\0\0", end, alias)
        if not self._left or end - begin <= ALIAS_BYTES + 2:
            return packet
        if topic not in self._once and len(self._known) >= self._at_once:
            if len(self._once) >= ONCE_PER_ALIAS * self._left:
                self._once.clear()
            self._once.add(topic)
            return packet
        if 0 < self._packet_bytes_max < len(packet) + ALIAS_BYTES:
            return packet
        return _with_alias(packet, topic, end, self._give(topic))

    def _give(self, topic: bytes) -> bytes:
        """Give a topic its alias."""
        self._once.discard(topic)
        alias = self._known[topic] = publish.alias(len(self._known) + 1)
        self._left -= 1
        if not self._left:
            self._once.clear()
        return alias

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert sorted(self._known.values()) == [publish.alias(one) for one in range(1, len(self._known) + 1)]
        assert len(self._once) <= ONCE_PER_ALIAS * self._left
        assert not self._once & self._known.keys()


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable byte integer that is whole; gives it and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _with_alias(packet: bytes, topic: bytes, end: int, alias: bytes) -> bytes:
    """Give a packet with this as its topic, which ends at a place now, and an alias."""
    properties_at = end + 2 if packet[0] & 6 else end
    size, behind = _length(packet, properties_at)
    length = fields.variable_integer(size + len(alias))
    rest = len(packet) - behind
    head = topic + packet[end:properties_at] + length + alias
    return packet[:1] + fields.variable_integer(len(head) + rest) + head + packet[behind:]
