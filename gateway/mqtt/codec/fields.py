"""The fields that packets are made of: integers, text, binary data (5.0 section 1.5); a reader of them, and writers.

A `Reader` stands at a place in a packet and never leaves it: what would end behind the packet is refused, whatever
lengths inside it claim. Writers give bytes. Both raise `PacketError` and nothing else.
"""

from __future__ import annotations

from typing import Final

from gateway.mqtt.codec import errors
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V5, PacketType, Sender

#: What four bytes with seven bits each can say.
VARIABLE_INTEGER_MAX: Final = 268_435_455
#: What the two bytes before text and binary data can say.
FIELD_BYTES_MAX: Final = 65_535


class Reader:
    """A place in a packet, and what has to be known to read on from there."""

    __slots__ = ("at", "data", "sender", "stop", "version")

    def __init__(self, data: bytes, at: int, stop: int, version: int, sender: Sender) -> None:
        self.data = data
        self.at = at
        self.stop = stop
        self.version = version
        self.sender = sender

    def broken(self, rule: errors.Rule, found: str) -> PacketError:
        """Give the error that says so, in the version that is spoken."""
        return PacketError(rule, found, self.version)

    def _take(self, size: int) -> int:
        """Step over a field and give where it begins."""
        begin = self.at
        if begin + size > self.stop:
            raise self.broken(errors.TRUNCATED, f"{self.stop - begin} bytes for a field of {size}")
        self.at = begin + size
        return begin

    def byte(self) -> int:
        """Read one byte."""
        return self.data[self._take(1)]

    def two_bytes(self) -> int:
        """Read an integer of two bytes."""
        begin = self._take(2)
        return self.data[begin] << 8 | self.data[begin + 1]

    def four_bytes(self) -> int:
        """Read an integer of four bytes."""
        begin = self._take(4)
        return int.from_bytes(self.data[begin : begin + 4], "big")

    def variable_integer(self) -> int:
        """Read a variable byte integer; the shortest form of it [MQTT-1.5.5-1]."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise self.broken(errors.PADDED_INTEGER, f"{value} in {shift // 7 + 1} bytes")
                return value
        raise self.broken(errors.LONG_INTEGER, "a fifth byte")

    def binary(self) -> bytes:
        """Read binary data: two bytes of length, and so many bytes."""
        size = self.two_bytes()
        begin = self._take(size)
        return self.data[begin : begin + size]

    def text(self) -> str:
        """Read text; a byte order mark is part of it [MQTT-1.5.4-3]."""
        return decoded(self.binary(), self.version)

    def packet_identifier(self) -> int:
        """Read a packet identifier, which is not 0 [MQTT-2.2.1-3]."""
        identifier = self.two_bytes()
        if not identifier:
            raise self.broken(errors.PACKET_IDENTIFIER, "0")
        return identifier

    def rest(self) -> bytes:
        """Read all that is left."""
        begin = self.at
        self.at = self.stop
        return self.data[begin : self.stop]

    def end(self) -> None:
        """Refuse what follows the last field."""
        if self.at != self.stop:
            raise self.broken(errors.TRAILING, f"{self.stop - self.at} bytes more")


def decoded(raw: bytes, version: int) -> str:
    """Give the text that bytes stand for.

    Raises:
        PacketError: they are not UTF-8 [MQTT-1.5.4-1], or have a U+0000 [MQTT-1.5.4-2].
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise PacketError(errors.ILL_FORMED_TEXT, f"{error.reason} at byte {error.start}", version) from None
    if "\0" in text:
        raise PacketError(errors.NULL_CHARACTER, f"one at character {text.index(chr(0))}", version)
    return text


def variable_integer(value: int) -> bytes:
    """Write a variable byte integer."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    if len(written) > 4:
        raise PacketError(errors.LONG_INTEGER, f"{len(written)} bytes", V5)
    return bytes(written)


_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))


def two_bytes(value: int) -> bytes:
    """Write an integer of two bytes."""
    return value.to_bytes(2, "big")


def four_bytes(value: int) -> bytes:
    """Write an integer of four bytes."""
    return value.to_bytes(4, "big")


def binary(value: bytes) -> bytes:
    """Write binary data."""
    if len(value) > FIELD_BYTES_MAX:
        raise PacketError(errors.LONG_FIELD, f"{len(value)}", V5)
    return len(value).to_bytes(2, "big") + value


def text(value: str) -> bytes:
    """Write text, of which others may be the authors: it is looked at as when it is read."""
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise PacketError(errors.ILL_FORMED_TEXT, f"a surrogate at character {error.start}", V5) from None
    if b"\0" in raw:
        raise PacketError(errors.NULL_CHARACTER, f"one at byte {raw.index(0)}", V5)
    return binary(raw)


def packet_identifier(value: int, version: int) -> bytes:
    """Write a packet identifier."""
    if not 0 < value <= 0xFFFF:
        raise PacketError(errors.PACKET_IDENTIFIER, f"{value}", version)
    return value.to_bytes(2, "big")


def packet(kind: PacketType, body: bytes, flags: int = 0) -> bytes:
    """Put the fixed header before the rest of a packet (5.0 section 2.1)."""
    return bytes([kind << 4 | flags]) + variable_integer(len(body)) + body
