"""The other side of a connection, byte by byte: a listener on a socket of the system, with TLS or without.

It speaks as much of ZMTP as a test lets it, and misbehaves on demand. It blocks, so tests call it in a thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import TYPE_CHECKING

from tests.integration.scripted_router import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"


def frame(content: bytes, *, more: bool = False) -> bytes:
    """Give the bytes of a frame, with its length in eight of them."""
    return bytes((0x02 | more,)) + len(content).to_bytes(8, "big") + content


class StreamPeer:
    """Listens for one kind of address: tcp, ipc or tls."""

    def __init__(self, kind: str, folder: Path, context: ssl.SSLContext | None = None) -> None:
        self._context = context if kind == "tls" else None
        if kind == "ipc":
            path = str(folder / "peer")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen()
            self.url = f"ipc://{path}"
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"{kind}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._listener.settimeout(LIMIT_S)
        self._taken: list[socket.socket] = []

    def close(self) -> None:
        """End all, also what a thread waits for."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for one in (*self._taken, self._listener):
            one.close()

    def accept_raw(self) -> socket.socket:
        """Take a connection and say nothing."""
        taken, _ = self._listener.accept()
        taken.settimeout(LIMIT_S)
        self._taken.append(taken)
        return taken

    def accept(self) -> Conversation:
        """Take a connection, through the handshake of TLS."""
        taken = self.accept_raw()
        if self._context is not None:
            taken = self._context.wrap_socket(taken, server_side=True)
            self._taken.append(taken)
        return Conversation(taken)

    def accept_open(self) -> Conversation:
        """Take a connection, until messages may be sent."""
        taken = self.accept()
        taken.greet()
        return taken


class Conversation:
    """One connection, seen from the other side."""

    def __init__(self, taken: socket.socket) -> None:
        self.socket = taken

    def greet(self) -> None:
        assert self.take(64)[10:16] == b"\x03\x01NULL"
        self.give(GREETING + READY)
        assert b"DEALER" in self.take(len(READY))

    def take(self, count: int) -> bytes:
        """Wait for so many bytes."""
        came = bytearray()
        while len(came) < count:
            more = self.socket.recv(count - len(came))
            assert more, f"the end came after {len(came)} bytes of {count}"
            came += more
        return bytes(came)

    def give(self, data: bytes) -> None:
        self.socket.sendall(data)

    def take_message(self) -> list[bytes]:
        """Wait for the frames of a message."""
        frames = []
        flags = 0x01
        while flags & 0x01:
            (flags,) = self.take(1)
            size = int.from_bytes(self.take(8 if flags & 0x02 else 1), "big")
            frames.append(self.take(size))
        return frames

    def close(self) -> None:
        """End it in good order: with the goodbye of TLS, and without waiting for that of the client."""
        if isinstance(self.socket, ssl.SSLSocket):
            self.socket.settimeout(0)
            with contextlib.suppress(OSError):  # the client has yet to say it too
                self.socket.unwrap()
        self.socket.close()

    def vanish(self) -> None:
        """End it without a word, as a process does that is killed; over TCP with a reset."""
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw = socket.socket(fileno=self.socket.detach())
        raw.close()
