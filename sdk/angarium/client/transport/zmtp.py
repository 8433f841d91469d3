"""ZMTP 3 with the mechanism NULL, as a DEALER speaks it: bytes in, messages out; messages in, bytes out.

Clients speak it themselves, because libzmq hands each message over to a thread of its own and back: on
the way of a lone message that is a third of the time. https://rfc.zeromq.org/spec/23/ describes it. No socket here:
`angarium.client.transport.stream` has it, fills `room`, and sends what `start`, `pack` and `take_replies` give.

After a greeting and a command READY on each side a message is a row of frames: a byte of flags, its length in one byte
or in eight, and its content. Between messages the router may ask with PING whether anybody is there.

With the mechanism NULL nothing in the handshake depends on the other side, so ours leaves as a whole, and where the
other side is known to be the right one messages may follow without waiting for its half: a login takes one round trip.

What comes is put where all connections of a thread put it, and taken from there before another one reads; so a quiet
connection holds no buffer. The rest of a frame that came in part goes straight to where the frame stays.
"""

from __future__ import annotations

import io
import threading
from typing import Final

from angarium.errors import TLS_FAILED, error_for

#: Larger frames end the connection; a router's batches are far smaller.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
#: Taken in before the loop gets its turn: half a millisecond of work in large batches, a few in single messages.
READ_BYTES: Final = 256 * 1024
#: A frame from here on that came in part gets memory of its own; it grows by so much, as it fills.
OWN_BYTES: Final = 8 * 1024
GROWTH_BYTES: Final = 1024 * 1024
#: The glibc keeps the end of its heap up to twice the size of the largest block that it ever gave back as a whole. If
#: that is a batch, its pages are made and cleared anew for each one: a third of the CPU time of a subscriber of 1 KiB
#: messages. This block is given back before it is used, so it takes no memory.
GIVEN_BACK_BYTES: Final = 4 * 1024 * 1024
#: What is known when the other side does not go on, or goes on otherwise: a node that wants a key just closes.
HANDSHAKE_FAILED: Final = "the handshake failed: is it a node, and does it want tls://?"
#: What is known when the other side closes later.
CLOSED: Final = "the connection was closed"

#: With what a peer begins that waits for TLS and gets our greeting.
_TLS_ALERT: Final = 0x15
#: Flags of a frame.
MORE: Final = 0x01
LONG: Final = 0x02
COMMAND: Final = 0x04
#: Lengths from here on take eight bytes.
_LONG_FROM: Final = 256
#: How frames begin, by their length if it takes one byte: the last one of a message, and one before it.
_HEADS: Final = [bytes((0, size)) for size in range(_LONG_FROM)]
_HEADS_MORE: Final = [bytes((MORE, size)) for size in range(_LONG_FROM)]
_LONG_LAST: Final = bytes((LONG,))
_LONG_MORE: Final = bytes((LONG | MORE,))

_MECHANISM: Final = b"NULL"
_GREETING_BYTES: Final = 64
#: Sent first by both sides: signature, version 3.1, mechanism in 20 bytes, not a server, filler.
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + _MECHANISM.ljust(20, b"\0") + bytes(32)
_VERSION_AT: Final = 10
_VERSION_LEAST: Final = 3
_MECHANISM_AT: Final = slice(12, 32)
#: PING has its time to live in two bytes before what PONG repeats.
_PING_TTL_BYTES: Final = 2


class ZmtpError(Exception):
    """The peer does not speak this protocol, or refuses us; the connection is over."""


class _Shared(threading.local):
    """Where bytes come in; each thread has its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)


_shared: Final = _Shared()
bytes(GIVEN_BACK_BYTES)


def shared_room() -> memoryview:
    """Give the place for bytes that are taken from there before anybody else of this thread reads."""
    return _shared.view[:]  # which may be released


class _Frame:
    """A large frame that is coming, in memory of its own, which `io.BytesIO` gives away without a copy."""

    __slots__ = ("_content", "_filled", "_ready", "_size", "flags")

    def __init__(self, flags: int, size: int, begun: memoryview) -> None:
        self.flags = flags
        self._size = size
        self._content = io.BytesIO()
        #: There is memory for so many bytes, and so many came; fewer, unless all have come.
        self._ready = 0
        self._filled = len(begun)
        self._grow()
        self._content.seek(0)
        self._content.write(begun)

    def _grow(self) -> None:
        self._ready = min(self._size, self._ready + GROWTH_BYTES)
        self._content.seek(self._ready - 1)
        self._content.write(b"\0")

    def room(self) -> memoryview:
        return self._content.getbuffer()[self._filled : self._ready]

    def received(self, count: int) -> bool:
        """Take note of so many bytes in `room`; tell whether all have come."""
        self._filled += count
        if self._filled == self._ready < self._size:
            self._grow()
        return self._filled == self._size

    def content(self) -> bytes:
        return self._content.getvalue()

    def validate(self) -> None:
        assert self._filled < self._ready <= self._size
        assert self._ready <= self._filled + GROWTH_BYTES


class Zmtp:
    """One connection."""

    def __init__(self, *, at_once: bool = False) -> None:
        """Begin before the greeting; with `at_once` messages may follow ours without waiting for the other one."""
        #: Whether the other side said READY too.
        self.is_open = False
        #: Whether messages may be sent.
        self.may_send = at_once
        self._is_greeted = False
        #: What came and was not taken: a part of the greeting, or of a frame that is not large.
        self._rest = b""
        #: The large frame that is coming, if one is; there is no rest then.
        self._large: _Frame | None = None
        #: The frames of the message that is coming.
        self._frames: list[bytes] = []
        #: What the peer is owed.
        self._replies = b""

    def start(self) -> bytes:
        """Give what is sent first."""
        return _START

    def room(self) -> memoryview:
        """Give the place for what comes next, let go before `received`; no other of this thread reads between."""
        return _shared.view[len(self._rest) :] if self._large is None else self._large.room()

    def received(self, count: int, messages: list[list[bytes]]) -> None:
        """Take in so many bytes that were put into `room`.

        Args:
            count: how many.
            messages: gets those that are complete; after an error too, since they came before it.

        Raises:
            ZmtpError: they cannot be understood, or are a refusal.
            ConnectionLostError: the other side speaks TLS (TLS_FAILED).
        """
        if self._large is not None:
            if self._large.received(count):
                large, self._large = self._large, None
                self._take(large.flags, large.content(), messages)
            return
        rest = self._rest
        view = _shared.view
        view[: len(rest)] = rest
        filled = len(rest) + count
        taken = 0 if self._is_greeted else self._greet(filled)
        if self._is_greeted:
            taken = self._take_frames(taken, filled, messages)
        self._rest = view[taken:filled].tobytes()

    def at_end(self) -> str:
        """Say what it means that nothing more comes."""
        return CLOSED if self.is_open else HANDSHAKE_FAILED

    def take_replies(self) -> bytes:
        """Give what is to be sent for what came."""
        replies, self._replies = self._replies, b""
        return replies

    def _greet(self, filled: int) -> int:
        """Take the greeting when it is there; give its length, or 0."""
        buffer = _shared.buffer
        if filled and buffer[0] == _TLS_ALERT:
            raise error_for(TLS_FAILED, "the node encrypts there", "write tls://HOST:PORT")
        if filled and buffer[0] != GREETING[0]:
            raise ZmtpError(HANDSHAKE_FAILED)
        if filled < _GREETING_BYTES:
            return 0
        mechanism = bytes(buffer[_MECHANISM_AT]).rstrip(b"\0")
        if buffer[_VERSION_AT] < _VERSION_LEAST or mechanism != _MECHANISM:
            raise ZmtpError(HANDSHAKE_FAILED)
        self._is_greeted = True
        return _GREETING_BYTES

    def _take_frames(self, at: int, filled: int, messages: list[list[bytes]]) -> int:
        """Take the frames from a place on; give the place behind those that are complete, or begun and large."""
        buffer, view = _shared.buffer, _shared.view
        while filled - at >= 2:
            flags, size, start = buffer[at], buffer[at + 1], at + 2
            if flags & LONG:
                start = at + 9
                if start > filled:
                    break
                size = int.from_bytes(view[at + 1 : start], "big")
            if size > FRAME_BYTES_MAX:
                raise ZmtpError(f"a frame of {size} bytes came, the limit is {FRAME_BYTES_MAX}")
            end = start + size
            if end > filled:
                if size < OWN_BYTES:
                    break
                if not (self.is_open or flags & COMMAND):
                    raise ZmtpError(HANDSHAKE_FAILED)
                self._large = _Frame(flags, size, view[start:filled])
                return filled
            content = view[start:end].tobytes()
            at = end
            if flags > MORE or not self.is_open:
                self._take(flags, content, messages)
                continue
            self._frames.append(content)  # as nearly all frames are, without a call for each
            if not flags:
                messages.append(self._frames)
                self._frames = []
        return at

    def _take(self, flags: int, content: bytes, messages: list[list[bytes]]) -> None:
        """Take a frame."""
        if flags & COMMAND:
            self._command(content)
            return
        if not self.is_open:
            raise ZmtpError(HANDSHAKE_FAILED)
        self._frames.append(content)
        if not flags & MORE:
            messages.append(self._frames)
            self._frames = []

    def _command(self, content: bytes) -> None:
        size = content[0] if content else 0
        name, body = content[1 : 1 + size], content[1 + size :]
        if name == b"READY":
            self.is_open = self.may_send = True
        elif name == b"PING":
            self._replies += pack_command(b"PONG", body[_PING_TTL_BYTES:])
        elif name == b"ERROR":
            raise ZmtpError(f"the handshake was refused: {body[1:].decode('ascii', 'replace')}")

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._rest) < OWN_BYTES + 9
        assert self._is_greeted or not self.is_open
        if self._large is not None:
            assert not self._rest
            self._large.validate()


def pack(frames: list[bytes]) -> list[bytes]:
    """Give the pieces that are sent for a message."""
    pieces = []
    for frame in frames:
        size = len(frame)
        pieces.append(_HEADS_MORE[size] if size < _LONG_FROM else _LONG_MORE + size.to_bytes(8, "big"))
        pieces.append(frame)
    size = len(frames[-1])
    pieces[-2] = _HEADS[size] if size < _LONG_FROM else _LONG_LAST + size.to_bytes(8, "big")
    return pieces


def pack_command(name: bytes, body: bytes) -> bytes:
    """Give the frame of a command."""
    content = bytes((len(name),)) + name + body
    return bytes((COMMAND, len(content))) + content


_START: Final = GREETING + pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0")
