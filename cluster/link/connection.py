"""A DEALER socket of a link process: one connection to one router, watched by the loop of the process.

As in `angarium.client.transport` a socket connects once and never again by itself, and its monitor tells when the
connection is gone. Nothing here decides anything.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

import zmq

from angarium import errors, wire
from angarium.client.transport.secure import FRAME_BYTES_MAX, GONE, LINGER_MS, NEVER_MS
from angarium.errors import AngariumError, error_for
from angarium.monitor import next_event

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from angarium_server.process import Process

#: Frames taken before others get their turn.
DRAIN_MAX: Final = 200
DRAIN_S: Final = 0.003


class Connection:
    """One connection of a link."""

    def __init__(
        self,
        process: Process,
        url: str,
        server_key: str,
        on_message: Callable[[list[bytes], float], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[AngariumError, float], None],
    ) -> None:
        """Begin to connect.

        Args:
            process: whose loop watches the socket.
            url: of the router.
            server_key: its public CURVE key, or empty for a plain connection.
            on_message: takes each multipart that came, with the time.
            on_drained: called after some of them.
            on_lost: called once when the connection is gone; nothing is called after it.

        Raises:
            ConnectionLostError: address or key cannot be (60003).
        """
        self._process = process
        self._url = url
        self._on_message = on_message
        self._on_drained = on_drained
        self._on_lost = on_lost
        self.closed = False
        self._socket = process.context.socket(zmq.DEALER)
        try:
            self._configure(server_key)
            self._monitor = self._socket.get_monitor_socket(GONE)
            self._socket.connect(url)
        except (zmq.ZMQError, ValueError) as error:
            self._socket.close(0)
            raise error_for(errors.CONNECT_FAILED, f"{url}: {error}") from None
        process.add(self._socket, self._read)
        process.add(self._monitor, self._read_monitor)

    def _configure(self, server_key: str) -> None:
        socket = self._socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        # Credit in bytes bounds both ways.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        if "[" in self._url:
            socket.setsockopt(zmq.IPV6, 1)
        if server_key:
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.curve_serverkey = server_key.encode()

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued."""
        socket = self._socket
        if outgoing and not self.closed:
            self._process.touch(socket)
        while outgoing and not self.closed:
            try:
                socket.send_multipart(outgoing[0], zmq.NOBLOCK, copy=len(outgoing[0]) < 3)
            except zmq.Again:
                return
            outgoing.popleft()

    def close(self) -> None:
        """Close; what was sent still leaves."""
        if self.closed:
            return
        self.closed = True
        self._process.remove(self._socket)
        self._process.remove(self._monitor)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(LINGER_MS)

    def _read(self) -> bool:
        """Take what came; true if there was something, since answers to it may have used up a signal."""
        receive = self._socket.recv_multipart
        until = time.monotonic() + DRAIN_S
        count = 0
        for _ in range(DRAIN_MAX):
            now = time.monotonic()
            if self.closed or now >= until:
                break
            try:
                frames = receive(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            count += 1
            self._on_message(_opened(frames), now)
        if count:
            self._on_drained()
        return count > 0 and not self.closed

    def _read_monitor(self) -> None:
        """Notice the end of the connection, after everything that came before it."""
        try:
            event = next_event(self._monitor).event
        except zmq.Again:
            return
        while not self.closed and self._read():
            pass
        if not self.closed:
            self._on_lost(self._why(event), time.monotonic())

    def _why(self, event: int) -> AngariumError:
        if event == zmq.EVENT_CLOSED:
            return error_for(errors.CONNECT_FAILED, f"{self._url}: nobody answers")
        if event == zmq.EVENT_DISCONNECTED:
            return error_for(errors.NOT_CONNECTED, f"{self._url}: the connection was closed")
        return error_for(errors.HANDSHAKE_FAILED, f"{self._url}: is it a node, and is the public key right?")


def _opened(frames: list[zmq.Frame]) -> list[bytes]:
    """Give a multipart as bytes, but for the batches of a DELIVER: those leave again as they came, without a copy.

    What is left of them is a length and a buffer, which is all that a relay asks of them.
    """
    operation = frames[0].bytes
    if operation != wire.DELIVER:
        return [operation, *[frame.bytes for frame in frames[1:]]]
    return cast("list[bytes]", [operation, *[frame.bytes for frame in frames[1:2]], *frames[2:]])
