"""A connection without encryption: a socket of the system, driven by an asyncio event loop.

A lone message leaves and comes with one system call, and no other thread has a part in it. It is made once: when it is
gone the client makes another one. What is said over it is `angarium.client.transport.zmtp`; it knows nothing of the
protocol above. `angarium.client.connection` uses it.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from angarium import errors
from angarium.client.transport.zmtp import HANDSHAKE_FAILED, Zmtp, ZmtpError, pack

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable

#: Sent with one system call: so many bytes and pieces, unless the last message makes it more. A message has 516
#: pieces at most (256 batches, two more frames, and the head of each), and the system takes 1,024.
SEND_BYTES: Final = 256 * 1024
SEND_PIECES: Final = 400


class PlainTransport:
    """One connection to one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        on_message: Callable[[list[bytes]], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin to connect.

        Args:
            loop: the running loop.
            url: `tcp://host:port` or `ipc://path`.
            on_message: takes each multipart that came.
            on_drained: called after a few of them, or when there is room to send more.
            on_lost: called once with the reason when the connection is gone; nothing is called after it.

        Raises:
            ConnectionLostError: the address cannot be (CONNECT_FAILED).
        """
        self._loop = loop
        self._on_message = on_message
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._zmtp = Zmtp()
        self.closed = False
        #: None until it is connected.
        self._socket: socket.socket | None = None
        #: What the socket did not take; whole messages behind the first byte. The loop tells when it may go on.
        self._unsent = b""
        #: A send failed: nothing more leaves, but what came before the end is still read.
        self._is_broken = False
        self._connecting = loop.create_task(self._connect(_parse(url)))

    async def _connect(self, address: tuple[str, int] | str) -> None:
        try:
            self._socket = await _open_socket(self._loop, address)
        except OSError as error:
            self._lose(f"nobody answers at the address: {error}")
            return
        self._loop.add_reader(self._socket, self._read)
        self._write([self._zmtp.start()])

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued, as far as the socket takes it; the rest stays in the queue."""
        while outgoing and self._zmtp.is_open and not (self._unsent or self._is_broken or self.closed):
            pieces = pack(outgoing.popleft())
            while outgoing and len(pieces) < SEND_PIECES and sum(map(len, pieces)) < SEND_BYTES:
                pieces += pack(outgoing.popleft())
            self._write(pieces)

    def close(self) -> None:
        """Close; what the socket has taken still leaves."""
        if self.closed:
            return
        self.closed = True
        self._connecting.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _lose(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_lost(reason)

    def _write(self, pieces: list[bytes]) -> None:
        """Send, or keep for later what the socket does not take."""
        assert self._socket is not None
        if self._unsent:
            self._unsent = b"".join((self._unsent, *pieces))
            return
        try:
            sent = self._socket.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_broken = True
            return
        if sent < sum(map(len, pieces)):
            self._unsent = b"".join(pieces)[sent:]
            self._loop.add_writer(self._socket, self._write_further)

    def _write_further(self) -> None:
        assert self._socket is not None
        unsent, self._unsent = self._unsent, b""
        self._loop.remove_writer(self._socket)
        self._write([unsent])
        if not self._unsent:
            self._on_drained()

    def _read(self) -> None:
        """Take in what came, a bounded number of bytes; the loop calls again if there is more."""
        assert self._socket is not None
        try:
            count = self._socket.recv_into(self._zmtp.room())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._lose("the connection was closed" if self._zmtp.is_open else HANDSHAKE_FAILED)
            return
        try:
            messages = self._zmtp.received(count)
        except ZmtpError as error:
            self._lose(str(error))
            return
        if replies := self._zmtp.take_replies():
            self._write([replies])
        for frames in messages:
            self._on_message(frames)
            if self.closed:
                return
        self._on_drained()


def _parse(url: str) -> tuple[str, int] | str:
    """Give host and port, or the path.

    Raises:
        ConnectionLostError: it is no address (CONNECT_FAILED).
    """
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return parts.hostname, parts.port
        if parts.scheme == "ipc" and url.partition("//")[2]:
            return url.partition("//")[2]
    raise errors.error_for(
        errors.CONNECT_FAILED, f"{url} is no address: write tcp://HOST:PORT or ipc:///PATH"
    )


async def _open_socket(loop: asyncio.AbstractEventLoop, address: tuple[str, int] | str) -> socket.socket:
    """Give a socket that is connected to an address, or to the first that answers of those that its name has.

    Raises:
        OSError: none answers.
    """
    if isinstance(address, str):
        return await _connected(loop, socket.AF_UNIX, address)
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: finding its addresses may take a while
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for family, _, _, _, place in found:
        try:
            return await _connected(loop, family, place)
        except OSError as error:
            failure = error
    raise failure


async def _connected(loop: asyncio.AbstractEventLoop, family: int, place: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)  # noqa: FBT003 - the form of the library
        if not isinstance(place, str):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made
