"""One accepted connection: a socket of the system, read and written without waiting, by plain text or TLS.

It reads what came, a bounded number of bytes at a time, and gives the messages; it keeps what the socket does not take.
It decides nothing: `door` says when it is read, what may wait in it, and when it is over.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from angarium.client.transport.zmtp import pack
from angarium_server.connections.framing import FramingError
from angarium_server.connections.tls import Peer, certificate_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.connections.framing import Framing

#: Addresses of which connections that come share what is known; many clients come from few.
ADDRESSES_MAX: Final = 1_024
_peer_at: Final = lru_cache(ADDRESSES_MAX)(Peer)
#: Read at once, and so much of one connection before others get their turn.
READ_BYTES: Final = 128 * 1024
#: Sent with one system call: so many bytes, and of larger pieces so many; the system takes 1,024.
JOIN_BYTES: Final = 64 * 1024
#: A message whose batch is below this size is one piece: to handle its pieces would cost more than to join them.
SMALL_BYTES: Final = 4 * 1024
#: Frames of a message that has one batch at most: the operation and its header are before it.
LONE_BATCH_FRAMES: Final = 3
SEND_PIECES: Final = 500

_LATER: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ConnectionOverError(Exception):
    """The other side has closed, or the system has given it up; the text says which."""


class Connection:
    """One peer."""

    __slots__ = (
        "_out",
        "_socket",
        "address",
        "came_to",
        "descriptor",
        "framing",
        "id",
        "is_deaf",
        "is_encrypting",
        "is_finished",
        "is_paused",
        "is_read_later",
        "is_secure",
        "is_waiting",
        "part_at",
        "part_from",
        "peer",
        "unsent_bytes",
        "untaken",
    )

    def __init__(self, sock: socket.socket, connection_id: bytes, address: str, framing: Framing) -> None:
        """Greet the peer; a TLS handshake comes first if the socket is one of TLS."""
        #: By what it is known as long as the process lives.
        self.id = connection_id
        #: The address of the peer with what he has shown in the handshake of TLS.
        self.peer = _peer_at(address)
        #: IP address of the peer; empty for a socket of this host.
        self.address = self.peer.address
        #: The address of ours to which he came; the door says it.
        self.came_to = ""
        self.framing = framing
        self._socket = sock
        #: Whether TLS is around all.
        self.is_secure = isinstance(sock, ssl.SSLSocket)
        self.descriptor = sock.fileno()
        #: Whether the handshake of TLS is under way.
        self.is_encrypting = self.is_secure
        #: Whether nothing more is taken of the peer but its end.
        self.is_deaf = False
        #: Whether the connection ends when what is in here has left.
        self.is_finished = False
        #: Whether room in the socket is watched for: it takes no more, or the owner wants to hear when all has left.
        self.is_waiting = False
        #: Whether nothing is read of the peer until the owner says so.
        self.is_paused = False
        #: Whether a signal is no reason to read: it is paused, or has its turn anyway.
        self.is_read_later = False
        #: When something came last that is no whole message yet; and when that began, or the owner heard of it last: 0
        #: if it was a message that came last.
        self.part_at = self.part_from = 0.0
        #: Messages that came and that nobody has taken; no more are read before these.
        self.untaken: Sequence[Any] = ()
        #: Pieces that the socket has not taken, and their bytes. No deque: an empty one takes 700 bytes.
        self._out: list[bytes | memoryview] = [framing.start] if framing.start else []
        self.unsent_bytes = len(framing.start)

    def queue(self, frames: list[bytes]) -> None:
        """Have a message of ZMTP leave with the next `flush`."""
        pieces = pack(frames)
        if len(frames) <= LONE_BATCH_FRAMES and len(frames[-1]) < SMALL_BYTES:
            data = b"".join(pieces)
            self._out.append(data)
            self.unsent_bytes += len(data)
        else:
            self._out.extend(filter(None, pieces))  # an empty one would never be sent
            self.unsent_bytes += sum(map(len, pieces))

    def queue_bytes(self, data: bytes) -> None:
        """Have bytes of any protocol leave with the next `flush`."""
        data = self.framing.wrap(data)
        if data:
            self._out.append(data)
            self.unsent_bytes += len(data)

    def queue_end(self) -> None:
        """Have leave what the protocol says last."""
        self._append(self.framing.end())

    def _append(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self.unsent_bytes += len(data)

    def read(self) -> list[Any]:
        """Give the messages that are complete now.

        Raises:
            ConnectionOverError: there will be no more.
            FramingError: the peer does not speak the protocol.
        """
        if self.is_encrypting and not self._encrypt():
            return []
        try:
            data = self._socket.recv(READ_BYTES)
        except _LATER:
            return []
        except OSError as error:
            raise _gone(error) from None
        if not data:
            raise ConnectionOverError("the connection was closed")
        if self.is_deaf:
            return []
        framing = self.framing
        try:
            messages = framing.received(data)
        finally:
            if framing.replies:
                self._take_replies()
        if messages:
            self.part_from = 0.0
        else:
            self.part_at = time.monotonic()
            self.part_from = self.part_from or self.part_at
        return messages

    def _take_replies(self) -> None:
        self._append(self.framing.replies)
        self.framing.replies = b""

    def has_more(self) -> bool:
        """Tell whether more can be read although the socket may not signal it."""
        if self.untaken or self.framing.has_more:
            return True
        return self.is_secure and not self.is_encrypting and self._pending()

    def read_rest(self) -> Sequence[Any]:
        """Give more of the messages that came before: `read`, when nothing new has come."""
        if self.untaken:
            untaken, self.untaken = self.untaken, ()
            return untaken
        if not self.framing.has_more:
            return self.read()
        try:
            return self.framing.received(b"")
        finally:
            if self.framing.replies:
                self._take_replies()

    def _pending(self) -> bool:
        assert isinstance(self._socket, ssl.SSLSocket)
        return self._socket.pending() > 0

    def certificate(self) -> dict[str, Any] | None:
        """Give the certificate that the peer has shown, as `ssl` describes it; None if it has shown none."""
        return (self._socket.getpeercert() or None) if isinstance(self._socket, ssl.SSLSocket) else None

    def _encrypt(self) -> bool:
        """Go on with the handshake of TLS; true when it is over."""
        assert isinstance(self._socket, ssl.SSLSocket)
        try:
            self._socket.do_handshake()
            self.peer = Peer(self.address, certificate_of(self._socket), is_encrypted=True)
        except _LATER:
            return False
        except (OSError, ValueError) as error:
            self._read_away()
            raise FramingError(f"TLS: {getattr(error, 'reason', None) or error}") from None
        self.is_encrypting = False
        return True

    def _read_away(self) -> None:
        """Take what the peer says that is no TLS: unread, it has him be reset, and he loses the alert that says why."""
        with contextlib.suppress(OSError):
            socket.socket.recv(self._socket, READ_BYTES)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it.

        Raises:
            ConnectionOverError: the connection is gone.
        """
        if self.is_encrypting:
            return
        while self._out:
            data = self._out[0] if len(self._out) == 1 else self._next()
            try:
                sent = self._socket.sendmsg(data) if isinstance(data, list) else self._socket.send(data)
            except _LATER:
                return
            except OSError as error:
                raise _gone(error) from None
            self.unsent_bytes -= sent
            if not self.unsent_bytes:
                self._out.clear()
                return
            self._drop(sent)
            if sent < (sum(map(len, data)) if isinstance(data, list) else len(data)):
                return

    def _next(self) -> bytes | list[bytes | memoryview]:
        """Give what one call sends of several pieces: them, or all in one."""
        pieces: list[bytes | memoryview] = []
        size = 0
        for piece in self._out:
            if size >= JOIN_BYTES or len(pieces) == SEND_PIECES:
                break
            pieces.append(piece)
            size += len(piece)
        if self.is_secure or len(pieces[0]) + len(pieces[-1]) < JOIN_BYTES:
            return b"".join(pieces)
        return pieces

    def _drop(self, sent: int) -> None:
        """Forget so many bytes of what waits, which has more."""
        out = self._out
        gone = 0
        while sent >= len(out[gone]):
            sent -= len(out[gone])
            gone += 1
        del out[:gone]
        if sent:
            out[0] = memoryview(out[0])[sent:]

    def cut_off(self) -> None:
        """Forget what waits, and say nothing more: a part of it may have left, and what follows would be garbage."""
        self._out.clear()
        self.unsent_bytes = 0
        with contextlib.suppress(OSError):  # not that of `ssl`, which reads no more behind it
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def finish(self) -> None:
        """Say that nothing more comes from us; what the peer sends is read until its end, or the answer is lost."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket."""
        self._out.clear()
        self._socket.close()

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.unsent_bytes == sum(map(len, self._out))
        if not self.is_deaf:
            self.framing.validate()


def _gone(error: OSError) -> ConnectionOverError:
    return ConnectionOverError(f"the connection is gone: {error.strerror or error}")
