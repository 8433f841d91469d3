"""ZMTP 3 with the mechanism NULL, as a DEALER speaks it: bytes in, messages out; messages in, bytes out.

Clients speak it themselves, because libzmq hands each message over to a thread of its own and back: on
the way of a lone message that is a third of the time. https://rfc.zeromq.org/spec/23/ describes it. No socket here:
`angarium.client.transport.stream` has it, fills `room`, and sends what `start`, `pack` and `take_replies` give.

After a greeting and a command READY on each side a message is a row of frames: a byte of flags, its length in one byte
or in eight, and its content. Between messages the router may ask with PING whether anybody is there.
"""

from __future__ import annotations

from typing import Final

from angarium.errors import TLS_FAILED, error_for

#: Larger frames end the connection; a router's batches are far smaller.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
#: Taken in before the loop gets its turn: half a millisecond of work in large batches, a few in single messages.
READ_BYTES: Final = 256 * 1024
#: A buffer that has grown so far for large frames is kept: to make it anew for each takes longer than to copy them.
KEPT_BYTES: Final = 2 * READ_BYTES
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
_SOCKET_TYPE: Final = b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
#: PING has its time to live in two bytes before what PONG repeats.
_PING_TTL_BYTES: Final = 2


class ZmtpError(Exception):
    """The peer does not speak this protocol, or refuses us; the connection is over."""


class Zmtp:
    """One connection."""

    def __init__(self) -> None:
        """Begin before the greeting."""
        #: Whether both sides said READY, so that messages may be sent.
        self.is_open = False
        self._is_greeted = False
        #: What came and was not taken; the first `_filled` bytes of it.
        self._buffer = bytearray(READ_BYTES)
        #: Less than the size of the buffer, so that there is room.
        self._filled = 0
        #: The frames of the message that is coming.
        self._frames: list[bytes] = []
        #: What the peer is owed.
        self._replies = b""

    def start(self) -> bytes:
        """Give what is sent first."""
        return GREETING

    def room(self) -> memoryview:
        """Give the place for what comes next, to be let go before `received`."""
        return memoryview(self._buffer)[self._filled : self._filled + READ_BYTES]

    def received(self, count: int, messages: list[list[bytes]]) -> None:
        """Take in so many bytes that were put into `room`.

        Args:
            count: how many.
            messages: gets those that are complete; after an error too, since they came before it.

        Raises:
            ZmtpError: they cannot be understood, or are a refusal.
            ConnectionLostError: the other side speaks TLS (TLS_FAILED).
        """
        self._filled += count
        taken = 0 if self._is_greeted else self._greet()
        if self._is_greeted:
            taken = self._take_frames(taken, messages)
        self._keep(taken)

    def at_end(self) -> str:
        """Say what it means that nothing more comes."""
        return CLOSED if self.is_open else HANDSHAKE_FAILED

    def take_replies(self) -> bytes:
        """Give what is to be sent for what came."""
        replies, self._replies = self._replies, b""
        return replies

    def _greet(self) -> int:
        """Take the greeting when it is there; give its length, or 0."""
        buffer = self._buffer
        if self._filled and buffer[0] == _TLS_ALERT:
            raise error_for(TLS_FAILED, "the node encrypts there", "write tls://HOST:PORT")
        if self._filled and buffer[0] != GREETING[0]:
            raise ZmtpError(HANDSHAKE_FAILED)
        if self._filled < _GREETING_BYTES:
            return 0
        mechanism = bytes(buffer[_MECHANISM_AT]).rstrip(b"\0")
        if buffer[_VERSION_AT] < _VERSION_LEAST or mechanism != _MECHANISM:
            raise ZmtpError(HANDSHAKE_FAILED)
        self._is_greeted = True
        self._replies += pack_command(b"READY", _SOCKET_TYPE)
        return _GREETING_BYTES

    def _take_frames(self, at: int, messages: list[list[bytes]]) -> int:
        """Take complete frames from a place on; give the place behind them."""
        buffer, filled = self._buffer, self._filled
        with memoryview(buffer) as view:
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
                    break
                content = bytes(view[start:end])
                at = end
                if flags & COMMAND:
                    self._command(content)
                    continue
                if not self.is_open:
                    raise ZmtpError(HANDSHAKE_FAILED)
                self._frames.append(content)
                if not flags & MORE:
                    messages.append(self._frames)
                    self._frames = []
        return at

    def _command(self, content: bytes) -> None:
        size = content[0] if content else 0
        name, body = content[1 : 1 + size], content[1 + size :]
        if name == b"READY":
            self.is_open = True
        elif name == b"PING":
            self._replies += pack_command(b"PONG", body[_PING_TTL_BYTES:])
        elif name == b"ERROR":
            raise ZmtpError(f"the handshake was refused: {body[1:].decode('ascii', 'replace')}")

    def _keep(self, taken: int) -> None:
        """Forget what was taken, and see to it that there is room."""
        left = self._filled - taken
        buffer = self._buffer
        if left == len(buffer):
            self._buffer = bytearray(2 * left)
            self._buffer[:left] = buffer
        elif not left and len(buffer) > KEPT_BYTES:
            self._buffer = bytearray(READ_BYTES)
        elif left and taken:
            with memoryview(buffer) as view:  # which moves what overlaps, without another copy
                view[:left] = view[taken : self._filled]
        self._filled = left

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._filled < len(self._buffer)
        assert self._is_greeted or not self.is_open


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
