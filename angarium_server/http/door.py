"""The listeners, and the connections that they take: how many there may be, from where, and which one goes for another.

Connections are counted before the first byte: a handshake of TLS that never ends counts as much as a request that does.
`aiohttp` closes one that does not send a whole head in time; what a request may cost after that is `server`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from angarium import errors
from angarium_server.access import network_of
from angarium_server.connections.descriptors import NO_DESCRIPTORS, REST_S, raise_descriptors
from angarium_server.connections.tls import certificate_in
from angarium_server.http.problems import refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from aiohttp.web import BaseRequest, StreamResponse

    from angarium_server.connections.tls import Certificate

#: Connections that the kernel keeps until they are taken, and those taken in one turn.
BACKLOG: Final = 256
ACCEPTED_PER_TURN: Final = 64
#: Descriptors that are no connections.
OTHER_DESCRIPTORS: Final = 100
#: Of the head of a request: the line, one header, how many.
LINE_BYTES_MAX: Final = 8_190
HEADERS_MAX: Final = 64
#: How long the rest of a request that was refused early is read and dropped.
LINGER_S: Final = 1.0


class Connection(web.RequestHandler):
    """One connection, from when it was taken to its end; `aiohttp` speaks HTTP on it."""

    __slots__ = (
        *("_door", "_handshake", "address", "certificate", "is_encrypted", "network", "socket"),
        "when_lost",
    )

    def __init__(
        self, door: Door, server: web.Server, taken: socket.socket, address: str, timeout_s: float
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=timeout_s,
            lingering_time=LINGER_S,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # none is written: operators have the audit log
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        self._door = door
        self.socket = taken
        self.address = address
        self.network = network_of(address)
        self.is_encrypted = False
        #: What the peer has shown of himself, as an authority of ours says.
        self.certificate: Certificate | None = None
        #: Called when it has ended, for who answers without an end.
        self.when_lost: Callable[[], None] | None = None
        self._handshake: asyncio.Task[None] | None = None

    def begin(self, context: ssl.SSLContext | None, timeout_s: float) -> None:
        """Shake hands, and speak."""
        self.is_encrypted = context is not None
        self._handshake = asyncio.create_task(self._begin(context, timeout_s))

    async def _begin(self, context: ssl.SSLContext | None, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        limit = None if context is None else timeout_s
        try:
            await loop.connect_accepted_socket(
                lambda: self,
                self.socket,
                ssl=context,
                ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=limit,
            )
        except OSError:  # of TLS too
            self._door.forget(self)

    def drop(self) -> None:
        """End at once."""
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # asyncio has it, and closes it when it finds the end
            self.socket.shutdown(socket.SHUT_RDWR)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note who is there, when hands are shaken."""
        with contextlib.suppress(ValueError):  # names that cannot be read are nobody's
            self.certificate = certificate_in(transport.get_extra_info("peercert"))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end, whoever ended it."""
        super().connection_lost(exc)
        self._door.forget(self)
        if self.when_lost is not None:
            self.when_lost()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what is no HTTP, in the form of every refusal."""
        del request, exc
        headers = self._door.headers
        if status >= 500:
            return refusal(errors.error_for(errors.INTERNAL), headers)
        self.keep_alive(False)  # noqa: FBT003 - the form of aiohttp; nobody knows where the next request begins
        lines = (message or "it is no HTTP/1.1").splitlines()
        said = lines[0][:200].rstrip(":")
        return refusal(errors.error_for(errors.INVALID_ARGUMENT, said), {**headers, "Connection": "close"})


class Limits(Protocol):
    """What the clients of a server may cost; a section of the configuration has them."""

    @property
    def max_connections(self) -> int:
        """Give how many may be open; one more closes the one that is idle for longest."""

    @property
    def max_connections_per_address(self) -> int:
        """Give how many of one network may be open; one more is closed at once."""

    @property
    def request_timeout_ms(self) -> int:
        """Give the time for a handshake and for the head of a request."""


class Door:
    """All listeners and connections of the process."""

    def __init__(self, limits: Limits, server: web.Server, headers: Mapping[str, str]) -> None:
        """Listen nowhere yet; each answer has these headers, also one to what is no request."""
        self.headers: Final = headers
        self._limits = limits
        self._server = server
        self._timeout_s = limits.request_timeout_ms / 1_000
        self._listeners: list[socket.socket] = []
        self._open: set[Connection] = set()
        #: Those without a request, the one that is so for longest first; all of them are open.
        self._idle: dict[Connection, None] = {}
        #: Network -> its open connections.
        self._per_network: Counter[str] = Counter()
        self.refused = 0
        raise_descriptors(limits.max_connections + OTHER_DESCRIPTORS)

    @property
    def connections(self) -> int:
        """Give how many are open."""
        return len(self._open)

    def listen(self, host: str, port: int, context_of: Callable[[], ssl.SSLContext] | None) -> None:
        """Take connections at an address, which the supervisor holds for us.

        Args:
            host: of the address.
            port: of the address.
            context_of: gives what encrypts a connection that comes now; None: nothing does.

        Raises:
            OSError: that is not possible.
        """
        found = socket.getaddrinfo(
            None if host in ("", "*") else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(found[0][0], socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.setblocking(False)  # noqa: FBT003 - the form of sockets
        # Accepted sockets have it of their listener; without, those that end here keep the port for a minute more.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(found[0][4])
        listener.listen(BACKLOG)
        self._watch(listener, context_of)

    def _watch(self, listener: socket.socket, context_of: Callable[[], ssl.SSLContext] | None) -> None:
        """Take who comes, as long as nobody has stopped listening."""
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, context_of)

    def _accept(self, listener: socket.socket, context_of: Callable[[], ssl.SSLContext] | None) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                taken, (address, *_) = listener.accept()
            except OSError as error:  # none is left, or it has gone again
                if error.errno in NO_DESCRIPTORS:
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(listener)
                    loop.call_later(REST_S, self._watch, listener, context_of)
                return
            taken.setblocking(False)  # noqa: FBT003 - the form of sockets
            if not self._has_room(network_of(address)):
                self.refused += 1
                taken.close()
                continue
            connection = Connection(self, self._server, taken, address, self._timeout_s)
            self._add(connection)
            connection.begin(context_of() if context_of else None, self._timeout_s)

    def _has_room(self, network: str) -> bool:
        """Tell whether one more may come from there, after sending the one that is idle for longest away for it."""
        if self._per_network[network] >= self._limits.max_connections_per_address:
            return False
        if len(self._open) < self._limits.max_connections:
            return True
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        self.forget(oldest)
        self.refused += 1
        oldest.drop()
        return True

    def _add(self, connection: Connection) -> None:
        self._open.add(connection)
        self._idle[connection] = None
        self._per_network[connection.network] += 1

    def forget(self, connection: Connection) -> None:
        """Count a connection no more; nothing happens if it is not counted."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._per_network[connection.network] -= 1
        if not self._per_network[connection.network]:
            del self._per_network[connection.network]

    def begin_request(self, connection: Connection) -> None:
        """Send a connection not away while it has a request; `end_request` follows."""
        self._idle.pop(connection, None)

    def end_request(self, connection: Connection) -> None:
        """Let it go for another one, if need be."""
        if connection in self._open:
            self._idle[connection] = None

    def stop_listening(self) -> None:
        """Take no more connections."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
