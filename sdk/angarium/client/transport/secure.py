"""An encrypted connection: a DEALER socket of libzmq with CURVE, driven by an asyncio event loop.

ZeroMQ signals through one descriptor that is *edge-triggered*: it becomes readable when something may have
changed, and stays silent as long as nobody asked what. So after every send and every drain this class asks
`zmq.EVENTS`, and when there is more to read it comes back in the next step of the loop instead of waiting for
an edge that never comes (http://api.zeromq.org/4-3:zmq-getsockopt, ZMQ_FD). `zmq.asyncio` does the same with
a future per message, which is what a client that lives from batches cannot pay.

A connection is made once: the socket does not reconnect, and a monitor tells when the connection is gone, so
that the next one starts with HELLO on a new socket. `angarium.client.client` uses it; it knows nothing of the
protocol. `angarium.client.transport.stream` is the same without encryption.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import zmq

from angarium import errors
from angarium.monitor import next_event

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable

#: Multiparts taken in before the loop gets its turn; at 100 rows each about a millisecond of work.
MESSAGES_PER_STEP: Final = 32
#: Larger frames are refused by the socket; a router's batches are far smaller.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
#: Messages that wait in the socket; more than any ingress credit.
SEND_MESSAGES_MAX: Final = 10_000
#: Frames that wait in a closed socket leave within this time or are lost.
LINGER_MS: Final = 1_000
#: A lost connection is closed long before this. With -1, which switches reconnecting off, libzmq throws away
#: what came and was not read yet.
NEVER_MS: Final = 3_600_000
#: Sockets of all clients of one process; each client has three.
SOCKETS_MAX: Final = 16_384

#: Events of a monitor after which a connection is no more.
GONE: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_REASONS: Final[dict[int, str]] = {
    zmq.EVENT_DISCONNECTED: "the connection was closed",
    zmq.EVENT_CLOSED: "nobody answers at the address",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: is it a node, and are the CURVE keys right?",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the handshake was refused",
}

#: The context of a process: a forked child gets its own, because sockets and threads do not survive a fork.
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    context = _contexts.get(os.getpid())
    if context is None or context.closed:
        context = _contexts[os.getpid()] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
    return context


class SecureTransport:
    """One connection to one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        server_key: str,
        on_message: Callable[[list[bytes]], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin to connect.

        Args:
            loop: the running loop.
            url: `tcp://host:port` or `ipc://path`.
            server_key: the node's public CURVE key in Z85.
            on_message: takes each multipart that came.
            on_drained: called after a few of them, or when there may be room to send more.
            on_lost: called once with the reason when the connection is gone; nothing is called after it.

        Raises:
            ConnectionLostError: the address or the key cannot be (CONNECT_FAILED).
        """
        self._loop = loop
        self._on_message = on_message
        self._on_drained = on_drained
        self._on_lost = on_lost
        #: Whether `_pump` will run in the next step without an edge. At most one is scheduled.
        self._is_scheduled = False
        self.closed = False
        self._socket = _context().socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            self._configure(url, server_key)
            self._monitor = self._socket.get_monitor_socket(GONE)
            self._socket.connect(url)
        except (zmq.ZMQError, ValueError) as error:
            self._release()
            raise errors.error_for(errors.CONNECT_FAILED, f"{url}: {error}") from None
        #: The loop watches these until `close`.
        self._descriptors = int(self._socket.getsockopt(zmq.FD)), int(self._monitor.getsockopt(zmq.FD))
        loop.add_reader(self._descriptors[0], self._pump)
        loop.add_reader(self._descriptors[1], self._read_monitor)
        self._schedule()
        loop.call_soon(self._read_monitor)

    def _configure(self, url: str, server_key: str) -> None:
        socket = self._socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        # Credit bounds what comes. What leaves is bounded by credit too, but for answers to a router that
        # asks and does not listen.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.SNDHWM, SEND_MESSAGES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        if "[" in url:
            socket.setsockopt(zmq.IPV6, 1)
        public, secret = zmq.curve_keypair()
        socket.curve_publickey = public
        socket.curve_secretkey = secret
        socket.curve_serverkey = server_key.encode()

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued, as far as the socket takes it; the rest stays in the queue."""
        if self.closed or not outgoing:
            return
        socket = self._socket
        try:
            while outgoing:
                socket.send_multipart(outgoing[0], zmq.NOBLOCK)
                outgoing.popleft()
        except zmq.Again:
            pass  # The router does not read, or is gone; the descriptor tells which in a moment.
        self._look_again()

    def close(self) -> None:
        """Close; what was sent still leaves within a second."""
        if self.closed:
            return
        self.closed = True
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._release()

    def abandon(self) -> None:
        """Do nothing more here: sockets of ZeroMQ belong to the process that made them, and know it."""
        self.closed = True

    def _release(self) -> None:
        self.closed = True
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _look_again(self) -> None:
        """Come back in the next step if there is something to read: the edge that said so may be gone."""
        if (
            not self._is_scheduled
            and not self.closed
            and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        ):
            self._schedule()

    def _pump(self) -> None:
        """Take in what came, a bounded number of messages, and come back if there is more."""
        self._is_scheduled = False
        try:
            self._receive(MESSAGES_PER_STEP)
            self._on_drained()
        finally:
            self._look_again()

    def _receive(self, limit: int) -> int:
        """Hand on up to so many messages; give how many there were."""
        count = 0
        receive = self._socket.recv_multipart
        on_message = self._on_message
        try:
            while count < limit and not self.closed:
                frames = receive(zmq.NOBLOCK)
                count += 1
                on_message(frames)
        except zmq.Again:
            pass
        return count

    def _read_monitor(self) -> None:
        """Notice the end of the connection, after everything that came before it."""
        if self.closed or self._monitor is None:
            return
        try:
            event = next_event(self._monitor).event
        except zmq.Again:
            return
        while not self.closed and self._receive(MESSAGES_PER_STEP):
            self._on_drained()
        if not self.closed:
            self.close()
            self._on_lost(_REASONS.get(event, "the connection was closed"))
