"""A door with a loop of its own, and peers that are sockets moved by hand: for tests of connections."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from angarium.client.transport import zmtp
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.zmtp import START
from angarium_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.connections.connection import Connection

READY = zmtp.pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER")
HANDSHAKE = zmtp.GREETING + READY
LONG_S = 10.0
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class House:
    """A door in a loop of its own; it keeps what the owner of a door is told."""

    def __init__(self, **changed: object) -> None:
        limits = DoorLimits(
            framing=FramingLimits(1 << 20, 2 << 20),
            unsent_bytes=8 << 20,
            login_s=0.5,
            unauthenticated=20,
            unauthenticated_per_network=10,
        )
        self.watch = Watch()
        self.admits = self.takes = True
        #: Whether who says something that is not taken, or not admitted, is paused.
        self.pauses = False
        #: What is said to each message at once.
        self.answer: list[bytes] | None = None
        #: CPU time that each message takes.
        self.costs_s = 0.0
        self.messages: list[tuple[bytes, Any]] = []
        self.lost: list[tuple[bytes, str]] = []
        self.faults: list[tuple[bytes, str]] = []
        self.refused: list[str] = []
        #: For whom all has left that had to wait.
        self.rooms: list[bytes] = []
        self.door = Door(
            self.watch,
            limits._replace(**changed),  # type: ignore[arg-type]
            self._message,
            lambda identity, reason, _: self.lost.append((identity, reason)),
            self._fault,
            lambda reason, _: self.refused.append(reason),
            lambda _network, _now: True,
            lambda identity, _: self.rooms.append(identity),
        )

    def _message(self, connection: Connection, message: Any, _now: float) -> bool:
        busy(self.costs_s)
        if self.takes:
            self.messages.append((connection.id, message))
            if self.admits:
                self.door.admit(connection.id)
            if self.answer is not None:
                self.door.send(connection.id, self.answer)
        if self.pauses and not (self.takes and self.admits):
            self.door.pause(connection.id)
        return self.takes

    def _fault(self, identity: bytes, reason: str, now: float) -> None:
        self.faults.append((identity, reason))
        self.door.finish(identity, now)

    def turn(self, seconds: float = 0.01) -> None:
        self.watch.wait(0.0 if self.door.read_rest() else seconds)
        self.door.tick(time.monotonic())
        self.door.flush()
        self.door.validate()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            self.turn()

    def close(self) -> None:
        self.door.close(0.1)
        self.watch.close()


class Peer:
    """The other side, by hand."""

    def __init__(self, house: House, url: str, context: ssl.SSLContext | None = None) -> None:
        self.house = house
        scheme, _, place = url.partition("://")
        self.socket = socket.socket(socket.AF_UNIX if scheme == "ipc" else socket.AF_INET)
        host, _, port = place.rpartition(":")
        self.socket.connect(place if scheme == "ipc" else (host, int(port)))
        self.socket.setblocking(False)
        if context is not None:
            self.socket = context.wrap_socket(
                self.socket, server_hostname=host, do_handshake_on_connect=False
            )
        self.received = b""
        self.is_ended = False

    def send(self, data: bytes) -> None:
        """Send all, while the house does its work."""
        while data:
            with contextlib.suppress(*_LATER):
                data = data[self.socket.send(data) :]
            self.house.turn(0.0)

    def read(self) -> bytes:
        with contextlib.suppress(*_LATER):
            try:
                while data := self.socket.recv(1 << 20):
                    self.received += data
                self.is_ended = True
            except ConnectionResetError:
                self.is_ended = True
        return self.received

    def greet(self) -> None:
        self.send(HANDSHAKE)
        self.house.until(lambda: self.read().startswith(START), "the greeting")
        self.received = b""

    def login(self) -> bytes:
        """Say something, and give by what the house knows this peer."""
        self.greet()
        count = len(self.house.messages)
        self.send(packed([b"hello"]))
        self.house.until(lambda: len(self.house.messages) > count, "the message")
        return self.house.messages[-1][0]

    def closed(self) -> bool:
        self.read()
        return self.is_ended

    def close(self) -> None:
        self.socket.close()


def packed(*messages: list[bytes]) -> bytes:
    return b"".join(piece for message in messages for piece in zmtp.pack(message))


def busy(seconds: float) -> None:
    """Use CPU time, as a login does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
