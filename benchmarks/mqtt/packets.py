"""The packets of MQTT 3.1.1 that the client of this benchmark sends and takes; pure functions."""

from __future__ import annotations

import struct
from typing import Final

PUBLISH: Final = 3
PUBACK: Final = 4
SUBACK: Final = 9
CONNACK: Final = 2
#: A SUBACK with this grants nothing.
REFUSED: Final = 0x80
#: All packet identifiers, in their order.
IDENTIFIERS: Final = tuple(struct.pack(">H", number) for number in range(1, 0x10000))
_CLEAN: Final = 2


def packet(first: int, body: bytes) -> bytes:
    """Give a packet with its length."""
    return bytes((first,)) + _length(len(body)) + body


def connect(name: str, *, clean: bool) -> bytes:
    """Give a CONNECT without a keep alive."""
    flags = _CLEAN if clean else 0
    return packet(0x10, _text("MQTT") + bytes((4, flags, 0, 0)) + _text(name))


def subscribe(topic_filter: str, qos: int) -> bytes:
    """Give a SUBSCRIBE with one filter."""
    return packet(0x82, IDENTIFIERS[0] + _text(topic_filter) + bytes((qos,)))


def publish_head(topic: str, payload_bytes: int, qos: int, *, retain: bool) -> bytes:
    """Give what comes before the packet identifier of a PUBLISH, or before its payload with QoS 0."""
    identifier_bytes = 2 if qos else 0
    name = _text(topic)
    first = PUBLISH << 4 | qos << 1 | retain
    return bytes((first,)) + _length(len(name) + identifier_bytes + payload_bytes) + name


def pubacks(bodies: list[bytes]) -> bytes:
    """Give the PUBACKs for PUBLISH packets with QoS 1."""
    found = []
    for body in bodies:
        end = 2 + (body[0] << 8 | body[1])
        found.append(b"\x40\x02" + body[end : end + 2])
    return b"".join(found)


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Give the packets that are whole, each with its first byte and its body, and the rest.

    Example:
        >>> split(b"@\\x02\\x00\\x07@\\x02")
        ([(64, b'\\x00\\x07')], b'@\\x02')
    """
    found: list[tuple[int, bytes]] = []
    at, end = 0, len(data)
    while True:
        body, size, shift = at + 1, 0, 0
        while body < end and data[body] & 0x80:
            size |= (data[body] & 0x7F) << shift
            shift += 7
            body += 1
        if body >= end:
            return found, data[at:]
        size |= data[body] << shift
        body += 1
        if body + size > end:
            return found, data[at:]
        found.append((data[at], data[body : body + size]))
        at = body + size


def _length(size: int) -> bytes:
    found = bytearray()
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    found.append(size)
    return bytes(found)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
