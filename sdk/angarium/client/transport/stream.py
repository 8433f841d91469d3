"""A connection over a socket of the system, with TLS or without, driven by an asyncio event loop.

A lone message leaves and comes with one system call, and no other thread has a part in it. It is made once: when it is
gone the client makes another one. To an address of this host it is made without the loop, and our handshake and what
follows it leave with one system call. What is said over it is `angarium.client.transport.zmtp`, inside of
`angarium.client.transport.tls` where the address demands it; neither has a socket, so that reading, sending, waiting
and the end are here once for all. It knows nothing of the protocol above. `angarium.client.connection.connection` uses
it.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, Final

from angarium.client.transport.address import is_of_this_host, parse
from angarium.client.transport.tls import Tls
from angarium.client.transport.zmtp import Zmtp, ZmtpError, pack
from angarium.errors import AngariumError

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections import deque
    from collections.abc import Callable

#: Sent with one system call: so many bytes and pieces, unless the last message makes it more. A message has 516
#: pieces at most (256 batches, two more frames, and the head of each), and the system takes 1,024.
SEND_BYTES: Final = 256 * 1024
SEND_PIECES: Final = 400
#: A large message comes in pieces; so many are read in one turn of the loop, which takes longer than a read.
READS_MAX: Final = 8
#: Fewer bytes are joined: for the system to gather their pieces takes longer.
JOINED_BYTES: Final = 4 * 1024
#: Whether the system takes the pieces as they are; Windows wants them in one.
GATHERS: Final = hasattr(socket.socket, "sendmsg")


class StreamTransport:
    """One connection to one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        context: ssl.SSLContext | None,
        on_message: Callable[[list[bytes]], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[str | AngariumError], None],
        *,
        hears_first: bool = False,
    ) -> None:
        """Begin to connect.

        Args:
            loop: the running loop.
            url: `tcp://host:port`, `tls://host:port` or `ipc://path`.
            context: how to check the other side of a `tls://` address; None for the others.
            on_message: takes each multipart that came.
            on_drained: called after a few of them, or when there is room to send more.
            on_lost: called once when the connection is gone, with the reason, or with the error if it says what to do
                before trying again; nothing is called after it.
            hears_first: say nothing but the handshake before the other side has, on this host too.

        Raises:
            InvalidRequestError: it is no address (INVALID_ARGUMENT).
        """
        self._loop = loop
        self._on_message = on_message
        self._on_drained = on_drained
        self._on_lost = on_lost
        address = parse(url)
        self._tls = None if context is None else Tls(context, address[0])
        # Elsewhere a listener of TLS may wait, which is not to hear a password in plain text.
        self._protocol = self._tls or Zmtp(at_once=is_of_this_host(address) and not hears_first)
        self.closed = False
        #: What leaves with the first message.
        self._start = b""
        #: None until it is connected.
        self._socket: socket.socket | None = None
        #: What the socket did not take; whole messages behind the first byte. The loop tells when it may go on.
        self._unsent = b""
        #: A send failed: nothing more leaves, but what came before the end is still read.
        self._is_broken = False
        #: When something came last that is no whole message yet.
        self.part_at = 0.0
        #: Connects where that takes a while.
        self._connecting: asyncio.Task[None] | None = None
        made = _connected_at_once(address)
        if made is not None:
            self._connected(made)
        else:
            self._connecting = loop.create_task(self._connect(address))

    @property
    def is_connected(self) -> bool:
        """Whether the other host has taken the connection; what is said over it may still fail."""
        return self._socket is not None

    async def _connect(self, address: tuple[str, int] | str) -> None:
        try:
            made = await _open_socket(self._loop, address)
        except (OSError, ValueError) as error:  # the latter: there cannot be such a host or path
            self._lose(f"nobody answers at the address: {error}")
            return
        self._connected(made)
        self._on_drained()

    def _connected(self, made: socket.socket) -> None:
        self._socket = made
        # By number: the loop writes out a socket object that it does not find, with two system calls.
        self._loop.add_reader(made.fileno(), self._read)
        self._start = self._protocol.start()
        if self._protocol.may_send:
            self._loop.call_soon(self._send_start)
        else:
            self._send_start()

    def _send_start(self) -> None:
        """Send it, unless a message has taken it along."""
        if self._start and not self.closed:
            start, self._start = self._start, b""
            self._write([start])

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued, as far as the socket takes it; the rest stays in the queue."""
        if self._socket is None:
            return
        while outgoing and self._protocol.may_send and not (self._unsent or self._is_broken or self.closed):
            pieces = pack(outgoing.popleft())
            if self._start:
                pieces.insert(0, self._start)
                self._start = b""
            while outgoing and len(pieces) < SEND_PIECES and sum(map(len, pieces)) < SEND_BYTES:
                pieces += pack(outgoing.popleft())
            if self._tls is not None:
                pieces = self._tls.seal(pieces)
            self._write(pieces)

    def close(self) -> None:
        """Close; what the socket has taken still leaves."""
        if self.closed:
            return
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._socket is not None:
            if self._tls is not None and not (self._unsent or self._is_broken):
                self._write([self._tls.farewell()])
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def abandon(self) -> None:
        """Close this process's copy of the descriptor; what the loop watches is shared with the parent process."""
        self.closed = True
        if self._socket is not None:
            self._socket.close()

    def _lose(self, reason: str | AngariumError) -> None:
        if not self.closed:
            self.close()
            self._on_lost(reason)

    def _write(self, pieces: list[bytes]) -> None:
        """Send, or keep for later what the socket does not take."""
        assert self._socket is not None
        if self._unsent:
            self._unsent = b"".join((self._unsent, *pieces))
            return
        size = sum(map(len, pieces))
        try:
            if size < JOINED_BYTES or not GATHERS:
                sent = self._socket.send(b"".join(pieces))
            else:
                sent = self._socket.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_broken = True
            return
        if sent < size:
            self._unsent = b"".join(pieces)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._write_further)

    def _write_further(self) -> None:
        assert self._socket is not None
        unsent, self._unsent = self._unsent, b""
        self._loop.remove_writer(self._socket.fileno())
        self._write([unsent])
        if not self._unsent:
            self._on_drained()

    def _read(self) -> None:
        """Take in what came, a bounded number of bytes; the loop calls again if there is more."""
        assert self._socket is not None
        if self.closed:
            return
        messages: list[list[bytes]] = []
        end: str | AngariumError | None = None
        for _ in range(READS_MAX):
            try:
                count = self._socket.recv_into(self._protocol.room())
            except BlockingIOError:
                break
            except OSError:
                count = 0
            if not count:
                self._lose(self._protocol.at_end())
                return
            end = self._take_in(count, messages)
            if messages or end is not None:
                break
            self.part_at = self._loop.time()
        for frames in messages:
            self._on_message(frames)
            if self.closed:
                return
        if end is None:
            self._on_drained()
        else:
            self._lose(end)

    def _take_in(self, count: int, messages: list[list[bytes]]) -> str | AngariumError | None:
        """Take in so many bytes; give why it is over, if it is."""
        end: str | AngariumError | None = None
        try:
            self._protocol.received(count, messages)
        except ZmtpError as error:
            end = str(error)
        except AngariumError as error:
            end = error
        if replies := self._protocol.take_replies():
            self._write([replies])
        return end


def _connected_at_once(address: tuple[str, int] | str) -> socket.socket | None:
    """Give a socket that is connected to an address of this host; None if that takes a while, or fails."""
    if not is_of_this_host(address):
        return None
    try:
        made = _socket_for(address)
    except OSError:
        return None
    try:
        state = made.connect_ex(address)
        if state == errno.EINPROGRESS:  # by now it is connected, and says so when it is asked again
            state = made.connect_ex(address)
    except (OSError, ValueError):
        state = errno.EINVAL
    if state in (0, errno.EISCONN):
        return made
    made.close()
    return None


async def _open_socket(loop: asyncio.AbstractEventLoop, address: tuple[str, int] | str) -> socket.socket:
    """Give a socket that is connected to an address, or to the first that answers of those that its name has.

    Raises:
        OSError: none answers.
    """
    if isinstance(address, str):
        return await _connected(loop, address)
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: finding its addresses may take a while
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for _, _, _, _, place in found:
        try:
            return await _connected(loop, place)
        except OSError as error:
            failure = error
    raise failure


async def _connected(loop: asyncio.AbstractEventLoop, place: Any) -> socket.socket:
    made = _socket_for(place)
    try:
        await loop.sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


def _socket_for(place: Any) -> socket.socket:
    """Give a socket for an IP address with its port, or for a path."""
    if isinstance(place, str):
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no sockets in the file system")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        made = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)  # noqa: FBT003 - the form of the library
    return made
