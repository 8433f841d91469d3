"""PUBLISH (5.0 section 3.3): one at a time with every check, and many at a time for the path of messages.

Most PUBLISHes look like one that was read before: the topic is known, the properties are none or the same. `walk` takes
those apart with a few indexes and slices each and shares topic and properties with the earlier ones; it stops before
what has new properties, is unusual, broken or not a PUBLISH, which `read` judges. So the walk has no errors to tell.
What was found in order is remembered in `Seen`, which is bounded and starts afresh when it is full.

In the other direction a message is prepared once (`Message`), framed once for all connections that get the same bytes
but for the packet identifier (`frame`), and many frames become one buffer by one join (`pack`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.mqtt.codec import errors, fields, properties, topics
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V5, PacketType, Sender
from gateway.mqtt.codec.properties import NONE, Properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.mqtt.codec.fields import Reader

#: So many topics, and sections of properties, are remembered.
SEEN_MAX: Final = 4096
#: Longer topics are not: none of ours is longer. Sections that are remembered have one byte of length.
SEEN_BYTES_MAX: Final = 250

DUP: Final = 0x08
RETAIN: Final = 0x01


class Publish(msgspec.Struct, gc=False):
    """A message; without a topic it is for that of the topic alias, which its receiver fills in."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    packet_id: int = 0
    dup: bool = False
    retain: bool = False
    properties: Properties = NONE


class Seen:
    """Topics and sections of properties that one kind of sender wrote correctly, by their bytes.

    Parsers of one kind of sender may share one, in both versions: they find the same things legal.
    """

    __slots__ = ("sections", "topics")

    def __init__(self) -> None:
        #: Legal topic names, and the empty one, which needs an alias.
        self.topics: dict[bytes, str] = {b"": ""}
        #: Legal sections of properties of a PUBLISH, without their length.
        self.sections: dict[bytes, Properties] = {b"": NONE}

    def learn(self, topic: bytes, version: int) -> str | None:
        """Give a topic that was not seen yet and remember it; None if it is no legal one."""
        try:
            name = fields.decoded(topic, version)
            topics.check_name(name, version)
        except PacketError:
            return None
        if len(topic) <= SEEN_BYTES_MAX:
            if len(self.topics) >= SEEN_MAX:
                self.topics = {b"": ""}
            self.topics[topic] = name
        return name

    def add(self, section: bytes, given: Properties) -> None:
        """Remember the properties of a PUBLISH that is in order."""
        if len(section) < 0x80:
            if len(self.sections) >= SEEN_MAX:
                self.sections = {b"": NONE}
            self.sections[section] = given


def _flags(first: int) -> tuple[int, bool, bool] | None:
    """Take the first byte of a PUBLISH apart: QoS, DUP, RETAIN; None for any other packet, and for illegal ones."""
    qos = first >> 1 & 3
    if first >> 4 != PacketType.PUBLISH or qos == 3 or (first & DUP and not qos):
        return None
    return qos, bool(first & DUP), bool(first & RETAIN)


_FLAGS: Final = tuple(_flags(first) for first in range(256))


def walk(data: bytes, at: int, version: int, seen: Seen, size_max: int, packets: list[Any], most: int) -> int:
    """Take apart the PUBLISHes that stand at a place of a buffer, as long as they are whole, legal and nothing special.

    It stops when there are so many packets (`most`) in the list.

    Returns:
        The place of the first packet that was not taken.
    """
    names, sections = seen.topics, seen.sections
    end = len(data)
    for _ in range(most - len(packets)):
        if at + 5 > end:  # a PUBLISH has so many bytes, of which the walk looks at all before it compares
            break
        flags = _FLAGS[data[at]]
        if flags is None:
            break
        size = data[at + 1]
        begin = at + 2
        if size > 127:
            high = data[begin]
            if not 0 < high < 128:
                break
            size += (high << 7) - 128
            begin += 1
        stop = begin + size
        if stop > end or stop - at > size_max or size < 3:
            break
        qos, dup, retain = flags
        body = begin + 2 + (data[begin] << 8 | data[begin + 1])
        topic = names.get(data[begin + 2 : body])
        if topic is None:
            topic = seen.learn(data[begin + 2 : body], version) if body <= stop else None
            if topic is None:
                break
            names = seen.topics
        packet_id = 0
        if qos:
            if body + 2 > stop:
                break
            packet_id = data[body] << 8 | data[body + 1]
            if not packet_id:
                break
            body += 2
        given = NONE
        if version == V5:
            if body >= stop:
                break
            section = data[body]
            body += 1
            if section:
                known = sections.get(data[body : body + section])
                if known is None or section > 127:
                    break
                given = known
                body += section
        if body > stop or not (topic or given.topic_alias):
            break
        packets.append(Publish(topic, data[body:stop], qos, packet_id, dup, retain, given))
        at = stop
    return at


def read(reader: Reader, flags: int, seen: Seen) -> Publish:
    """Read a PUBLISH that may be anything."""
    qos = flags >> 1 & 3
    if qos == 3:
        raise reader.broken(errors.QOS_3, "3")
    if flags & DUP and not qos:
        raise reader.broken(errors.DUPLICATE_QOS_0, "1")
    name = reader.text()
    packet_id = reader.packet_identifier() if qos else 0
    begin = reader.at
    given = properties.read(reader, PacketType.PUBLISH)
    section = reader.data[begin + 1 : reader.at]
    _check(name, given, reader.version)
    if reader.sender is Sender.CLIENT and given.subscription_identifiers:
        raise reader.broken(errors.SUBSCRIPTION_IDENTIFIER_SENT, f"{given.subscription_identifiers[0]}")
    packet = Publish(name, reader.rest(), qos, packet_id, bool(flags & DUP), bool(flags & RETAIN), given)
    seen.add(section, given)
    return packet


def _check(name: str, given: Properties, version: int) -> None:
    """Refuse what is no topic name; none at all is one where there is an alias (5.0 section 3.3.2.1)."""
    if name or given.topic_alias is None:
        topics.check_name(name, version)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as one version writes it, without what differs by connection.

    Attributes:
        topic: its name, with the length before it.
        section: its properties, without their length; none in 3.1.1.
        payload: its payload.
        version: the version.
    """

    topic: bytes
    section: bytes
    payload: bytes
    version: int


#: A PUBLISH around its packet identifier: what stands before it, its properties, and its payload.
Frame = tuple[bytes, bytes, bytes]

#: How lengths of one byte are written.
_SHORT: Final = tuple(bytes([size]) for size in range(0x80))
#: The first bytes of a PUBLISH, by its flags.
_FIRST: Final = tuple(bytes([PacketType.PUBLISH << 4 | flags]) for flags in range(16))


def frame(message: Message, flags: int, extra: bytes = b"") -> Frame:
    """Frame a message for the connections that get it with the same flags: `qos << 1`, with `DUP` and `RETAIN`.

    In `extra` are properties of these connections, as `alias` and `subscription_identifiers` write them; 5.0 only.
    """
    middle = b""
    if message.version == V5:
        middle = fields.variable_integer(len(extra) + len(message.section)) + extra + message.section
    size = len(message.topic) + (2 if flags & 6 else 0) + len(middle) + len(message.payload)
    return _FIRST[flags] + fields.variable_integer(size) + message.topic, middle, message.payload


def direct(
    topic: bytes, section: bytes, payload: bytes, version: int, flags: int = 0, extra: bytes = b""
) -> bytes:
    """Write a PUBLISH with QoS 0 at once; the arguments are those of `Message` and `frame`."""
    if version == V5:
        payload = fields.variable_integer(len(extra) + len(section)) + extra + section + payload
    size = len(topic) + len(payload)
    return _FIRST[flags] + (_SHORT[size] if size < 0x80 else fields.variable_integer(size)) + topic + payload


def alias(number: int) -> bytes:
    """Write a topic alias for `frame`."""
    return b"\x23" + number.to_bytes(2, "big")


def subscription_identifiers(numbers: Iterable[int]) -> bytes:
    """Write the identifiers of the subscriptions that match, for `frame` [MQTT-3.3.4-4]."""
    return b"".join([b"\x0b" + fields.variable_integer(number) for number in numbers])


def frame_size(one: Frame, packet_id: int) -> int:
    """Say how many bytes a frame has, to compare with what its receiver takes [MQTT-3.1.2-24]."""
    head, middle, payload = one
    return len(head) + (2 if packet_id else 0) + len(middle) + len(payload)


def pack(frames: Iterable[tuple[Frame, int]]) -> bytes:
    """Make one buffer of frames and packet identifiers; the identifier of a frame with QoS 0 is 0."""
    parts: list[bytes] = []
    for (head, middle, payload), packet_id in frames:
        if packet_id:
            parts += (head, packet_id.to_bytes(2, "big"), middle, payload)
        else:
            parts += (head, middle, payload)
    return b"".join(parts)


def write(packet: Publish, version: int) -> bytes:
    """Write a PUBLISH."""
    flags = packet.qos << 1 | (DUP if packet.dup else 0) | (RETAIN if packet.retain else 0)
    if _FLAGS[PacketType.PUBLISH << 4 | flags] is None:
        rule = errors.QOS_3 if packet.qos == 3 else errors.DUPLICATE_QOS_0
        raise PacketError(rule, f"QoS {packet.qos}, DUP {packet.dup:d}", version)
    _check(packet.topic, packet.properties, version)
    if packet.qos:
        fields.packet_identifier(packet.packet_id, version)
    section = properties.write_section(packet.properties, PacketType.PUBLISH) if version == V5 else b""
    message = Message(fields.text(packet.topic), section, packet.payload, version)
    return pack([(frame(message, flags), packet.packet_id if packet.qos else 0)])
