"""A client of this broker without the SDK: frames over a socket, cheap, so that the router is what is measured.

`RawConnection` is all that knows of the transport. What a frame is comes from the SDK: the parser of ZMTP and the
packing of the protocol.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from angarium import wire
from angarium.client.transport.zmtp import Zmtp, pack
from angarium.topic import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 30.0
#: Longer than any run, so that no heartbeat is among what is measured.
KEEPALIVE_MS: Final = 3_600_000
NO_LIMIT: Final = 1 << 60


class RawConnection:
    """One connection: messages in, messages out."""

    def __init__(self, url: str) -> None:
        """Connect and shake hands."""
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._zmtp = Zmtp()
        self._socket.sendall(self._zmtp.start())
        while not self._zmtp.is_open:
            self.receive()

    def fileno(self) -> int:
        """Give the descriptor, to be waited for."""
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send what `packed` gave."""
        self._socket.sendall(message)

    def receive(self) -> list[list[bytes]]:
        """Wait for something; give the messages that are complete, and answer what the transport asks."""
        count = self._socket.recv_into(self._zmtp.room())
        if not count:
            raise ConnectionError("the node closed the connection of a raw client")
        messages: list[list[bytes]] = []
        self._zmtp.received(count, messages)
        if replies := self._zmtp.take_replies():
            self._socket.sendall(replies)
        return messages


def packed(*frames: bytes) -> bytes:
    """Give a message as it is sent."""
    return b"".join(pack(list(frames)))


class RawClient:
    """One session over such a connection."""

    def __init__(self, url: str, *, collects: bool = False) -> None:
        """Log in; one that collects lets the node send as much as it likes."""
        self._connection = RawConnection(url)
        self.fileno = self._connection.fileno
        hello: dict[str, Any] = {"version": wire.PROTOCOL_VERSION, "keepalive_ms": KEEPALIVE_MS}
        if collects:
            hello["credit"] = [NO_LIMIT, NO_LIMIT]
        self._connection.send(packed(wire.HELLO, wire.pack(hello)))
        self._welcome = wire.unpack(self._await(wire.WELCOME)[1])
        self._rounds = 0

    def subscribe(self, subscription: str) -> None:
        """Subscribe, and wait until it is in force."""
        header = wire.pack([1, [[subscription, 0]], None])
        self._connection.send(packed(wire.SUBSCRIBE, header))
        self._await(wire.SUBACK)

    def worker_of(self, topic: str) -> int:
        """Give the worker that owns a topic."""
        worker: int = self._welcome["slots"][slot_of(topic)]
        return worker

    def publish(self, worker: int, row: bytes) -> None:
        """Publish a round of one row, packed, whose topic a worker owns."""
        self._rounds += 1
        header = wire.pack([self._rounds, self._welcome["epoch"], False, [[worker, 1]]])
        self._connection.send(packed(wire.PUBLISH, header, b"\x91" + row))

    def receive(self) -> Iterator[list[bytes]]:
        """Wait for something; give the messages, heartbeats answered.

        Raises:
            ConnectionError: the node has ended the session.
        """
        for frames in self._connection.receive():
            if frames[0] == wire.PING:
                self._connection.send(packed(wire.PONG, frames[1]))
            elif frames[0] == wire.CLOSED:
                raise ConnectionError(f"the node ended the session of a raw client: {wire.unpack(frames[1])}")
            else:
                yield frames

    def _await(self, operation: bytes) -> list[bytes]:
        while True:
            for frames in self.receive():
                if frames[0] == operation:
                    return frames
