"""The sockets of the health endpoint, in the loop of the controller: no thread, no wait, and a bound for everything.

A client has five seconds from its connect to the end of its answer, and there are 64 clients at most: one more takes
the place of the one that has been there longest. A probe sends its request at once and is answered in the same round of
the loop, so those who connect and say nothing never keep it out. What does not fit into the socket is tried again with
each tick of the loop, ten times a second.

`http.server` of the standard library has a thread for each client, or waits for each; a framework brings more code than
the node has for one question and one answer. So what is needed of HTTP stands in `http.py`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium_server.connections.descriptors import NO_DESCRIPTORS, REST_S
from cluster.controller.health.http import Answer, Incoming, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.connections.door import Watcher

#: Probes and scrapers of a node are a handful.
CLIENTS_MAX: Final = 64
#: From its connect to the end of its answer.
CLIENT_S: Final = 5.0
#: Taken in one round; the rest waits in the kernel for the next one.
ACCEPTS_PER_ROUND: Final = 32
#: Read in one go, and from one client altogether: several heads, for what it says behind its request is read over.
_READ_BYTES: Final = 4_096
_CLIENT_BYTES_MAX: Final = 64 << 10
_BACKLOG: Final = 64
_ADDRESS: Final = re.compile(r"tcp://(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d+|\*)")

_log = logging.getLogger("controller")


class _Client:
    """One connection; a request comes in until `outgoing` is not None, then what comes is read over."""

    __slots__ = ("bytes_read", "deadline", "incoming", "outgoing", "socket")

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self.deadline = deadline
        self.bytes_read = 0
        self.incoming = Incoming()
        #: What is still to be sent; None before there is an answer.
        self.outgoing: bytes | None = None


class HealthServer:
    """Answers requests at some addresses."""

    def __init__(self, process: Watcher, listen: list[str], answer: Callable[[Request], Answer]) -> None:
        """Bind; `answer` is called once for each request, and does not wait.

        Raises:
            InvalidRequestError: an address cannot be bound (40017).
        """
        self._process = process
        self._answer = answer
        #: By descriptor, the oldest first.
        self._clients: dict[int, _Client] = {}
        self._listeners = [_bind(url) for url in listen]
        #: What was bound, as http://HOST:PORT.
        self.urls = [_url(listener) for listener in self._listeners]
        #: Listeners without a descriptor for who comes, until when.
        self._resting: dict[socket.socket, float] = {}
        for listener in self._listeners:
            self._watch(listener)

    def _watch(self, listener: socket.socket) -> None:
        self._process.add(listener.fileno(), partial(self._accept, listener))

    def tick(self, now: float) -> None:
        """Go on with answers that did not fit, end what took too long, and take who came when nobody could."""
        for client in [one for one in self._clients.values() if one.outgoing]:
            self._send(client)
        for client in [one for one in self._clients.values() if one.deadline <= now]:
            self._drop(client)
        for listener in [one for one, until in self._resting.items() if until <= now]:
            del self._resting[listener]
            self._watch(listener)

    def close(self) -> None:
        """Let go of every socket."""
        for client in list(self._clients.values()):
            self._drop(client)
        for listener in self._listeners:
            if listener not in self._resting:
                self._process.remove(listener.fileno())
            listener.close()
        self._listeners.clear()
        self._resting.clear()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.debug("a client of the health endpoint could not be taken: %s", error)
                if error.errno in NO_DESCRIPTORS:
                    # The listener would signal for ever.
                    self._process.remove(listener.fileno())
                    self._resting[listener] = time.monotonic() + REST_S
                return
            if len(self._clients) >= CLIENTS_MAX:
                self._drop(next(iter(self._clients.values())))
            connection.setblocking(False)  # noqa: FBT003 - its only parameter
            client = _Client(connection, time.monotonic() + CLIENT_S)
            self._clients[connection.fileno()] = client
            self._process.add(connection.fileno(), partial(self._read, client))
            self._read(client)

    def _read(self, client: _Client) -> None:
        while client.bytes_read < _CLIENT_BYTES_MAX:
            try:
                data = client.socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                break
            if not data:
                break
            client.bytes_read += len(data)
            if client.outgoing is None:
                self._take(client, data)
        self._drop(client)

    def _take(self, client: _Client, data: bytes) -> None:
        found = client.incoming.take(data)
        if isinstance(found, Request):
            client.outgoing = self._answer(found).encode(found)
        elif found is not None:
            client.outgoing = found.encode()
        if client.outgoing:
            self._send(client)

    def _send(self, client: _Client) -> None:
        """Send what fits; after the last byte our direction ends, and the client closes when it has read it.

        Closing at once would throw away what is on its way if the client has sent something that nobody read.
        """
        assert client.outgoing is not None
        try:
            sent = client.socket.send(client.outgoing)
        except BlockingIOError:
            return
        except OSError:
            client.deadline = 0.0  # gone; `tick` sees to it, for whoever called may go on with the client
            client.outgoing = b""
            return
        client.outgoing = client.outgoing[sent:]
        if not client.outgoing:
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_WR)

    def _drop(self, client: _Client) -> None:
        descriptor = client.socket.fileno()
        if self._clients.pop(descriptor, None) is not None:
            self._process.remove(descriptor)
            client.socket.close()


def _bind(url: str) -> socket.socket:
    found = _ADDRESS.fullmatch(url)
    assert found is not None, f"{url} was not checked"
    host, port = found["host"].strip("[]"), 0 if found["port"] == "*" else int(found["port"])
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        try:
            # A controller that is started again must not wait for connections of the earlier one to time out.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)  # noqa: FBT003 - its only parameter
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        detail = f"health.listen: {url}: {error.strerror}"
        advice = "end what listens there, or name another address as health.listen"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
