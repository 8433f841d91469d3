"""ZMTP 3 with the mechanism NULL as the listening side speaks it: bytes in, messages out; messages in, bytes out.

https://rfc.zeromq.org/spec/23/ describes it; `angarium.client.transport.zmtp` is the other side. No socket here: this
is what the native protocol is to a connection (`framing`).

The identity that a peer may announce is not looked at: nobody chooses what he is known by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium.client.transport.zmtp import COMMAND, GREETING, LONG, MORE, pack_command
from angarium_server.connections.framing import MESSAGES_MAX, FramingError

if TYPE_CHECKING:
    from angarium_server.connections.framing import FramingLimits

#: What a peer is sent at once, without waiting for what it says.
START: Final = GREETING + pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06ROUTER")
#: Parts of a message: a round has a batch for each worker, and there are 64 at most.
PARTS_MAX: Final = 300
#: Commands, such as PING, between two messages; a client says more than they, and soon.
COMMANDS_MAX: Final = 1_000
#: What waits for the rest of its frame is kept in pieces of so much at least, but for the last one.
CHUNK_BYTES: Final = 4_096

_VERSION_AT: Final = 10
_VERSION_LEAST: Final = 3
_MECHANISM_AT: Final = 12
_MECHANISM_END: Final = 32
_MECHANISM: Final = GREETING[_MECHANISM_AT:_MECHANISM_END]
#: PING has its time to live in two bytes before what PONG repeats, 16 bytes at most.
_PING_CONTEXT_AT: Final = 2
_PING_CONTEXT_END: Final = 18


class ZmtpFraming:
    """One connection, from its first byte."""

    #: The same for all.
    start: Final = START

    __slots__ = (
        "_chunks",
        "_commands",
        "_held",
        "_is_greeted",
        "_limits",
        "_message_bytes",
        "_parts",
        "_wanted",
        "has_more",
        "is_open",
        "replies",
    )

    def __init__(self, limits: FramingLimits) -> None:
        self._limits = limits
        #: Whether the handshake is over.
        self.is_open = False
        self._is_greeted = False
        #: What came and was not taken, and its size; nothing is looked at before there are `_wanted` bytes.
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = len(GREETING)
        #: The parts of the message that is coming, and their bytes.
        self._parts: list[bytes] = []
        self._message_bytes = 0
        #: Commands since the last message.
        self._commands = 0
        #: Whether `received(b"")` may give more messages, since those before were many.
        self.has_more = False
        #: What the peer is owed; the caller sends and empties it.
        self.replies = b""

    def trust(self, limits: FramingLimits) -> None:
        """Take larger messages from now on: the peer has logged in."""
        self._limits = limits

    def received(self, data: bytes) -> list[list[bytes]]:
        """Take bytes that came; give the messages that are complete, `MESSAGES_MAX` at most.

        Raises:
            FramingError: they cannot be understood, or are too many.
        """
        self._held += len(data)
        if self._held < self._wanted:
            self.has_more = False
            if data:
                self._check_greeting(data)
                self._keep(data)
            return []
        if self._chunks:
            data = b"".join((*self._chunks, data))
            self._chunks.clear()
        messages: list[list[bytes]] = []
        taken = 0 if self._is_greeted else self._greet(data)
        taken = self._take_frames(data, taken, messages)
        self._held = len(data) - taken
        if self._held:
            self._chunks.append(data[taken:] if taken else data)
        return messages

    def _keep(self, data: bytes) -> None:
        """Keep the beginning of something; one who sends it byte by byte does not have an object for each."""
        if self._chunks and len(self._chunks[-1]) < CHUNK_BYTES:
            self._chunks[-1] += data
        else:
            self._chunks.append(data)

    def _check_greeting(self, data: bytes) -> None:
        if not self._is_greeted and not self._chunks and data[0] != GREETING[0]:
            raise FramingError("the peer speaks another protocol")

    def _greet(self, data: bytes) -> int:
        """Take the greeting; give its length."""
        if data[0] != GREETING[0] or data[_VERSION_AT] < _VERSION_LEAST:
            raise FramingError("the peer speaks another protocol")
        if data[_MECHANISM_AT:_MECHANISM_END] != _MECHANISM:
            raise FramingError("one side encrypts and the other does not")
        self._is_greeted = True
        return len(GREETING)

    def _take_frames(self, data: bytes, at: int, messages: list[list[bytes]]) -> int:
        """Take complete frames from a place on; give the place behind them."""
        parts, part_bytes, filled = self._parts, self._message_bytes, len(data)
        frame_bytes, message_bytes = self._limits
        self.has_more, self._wanted = False, 2
        while filled - at >= 2:
            flags, size, start = data[at], data[at + 1], at + 2
            if flags & LONG:
                start = at + 9
                if start > filled:
                    self._wanted = 9
                    break
                size = int.from_bytes(data[at + 1 : start], "big")
            if size > frame_bytes:
                raise FramingError(f"a frame of {size} bytes came, the limit is {frame_bytes}")
            end = start + size
            if end > filled:
                self._wanted = end - at
                break
            content = data[start:end]
            at = end
            if flags & COMMAND:
                self._command(content)
                continue
            parts.append(content)
            part_bytes += size
            if flags & MORE:
                continue
            if part_bytes > message_bytes or len(parts) > PARTS_MAX or not self.is_open:
                raise self._refusal()
            messages.append(parts)
            parts = self._parts = []
            part_bytes = self._commands = 0
            if len(messages) == MESSAGES_MAX:
                self.has_more = at < filled
                break
        self._message_bytes = part_bytes
        if parts and (part_bytes > message_bytes or len(parts) > PARTS_MAX or not self.is_open):
            raise self._refusal()
        return at

    def _refusal(self) -> FramingError:
        """Say what is wrong with the message that came, or has begun to."""
        if not self.is_open:
            return FramingError("a message came before the handshake was over")
        if len(self._parts) > PARTS_MAX:
            return FramingError(f"a message of more than {PARTS_MAX} parts came")
        return FramingError(f"a message of more than {self._limits.message_bytes} bytes came")

    def _command(self, content: bytes) -> None:
        self._commands += 1
        if self._commands > COMMANDS_MAX:
            raise FramingError(f"more than {COMMANDS_MAX} commands came without a message")
        size = content[0] if content else 0
        name, body = content[1 : 1 + size], content[1 + size :]
        if name == b"READY":
            self.is_open = True
        elif name == b"PING":
            self.replies += pack_command(b"PONG", body[_PING_CONTEXT_AT:_PING_CONTEXT_END])
        elif name == b"ERROR":
            raise FramingError("the peer has given up the handshake")

    def wrap(self, data: bytes) -> bytes:
        """Give bytes as they are."""
        return data

    def end(self) -> bytes:
        """Give nothing: the last message is the end."""
        return b""

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._held == sum(map(len, self._chunks))
        assert len(self._parts) <= PARTS_MAX
        assert self._message_bytes == sum(map(len, self._parts)) <= self._limits.message_bytes
        assert self._is_greeted or not self.is_open
