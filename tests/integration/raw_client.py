"""A client that says what it is told to, right or wrong: frames by hand on a real socket.

Tests use it to break the protocol. It keeps no rule of the protocol and reads only when asked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import zmq

from angarium import errors, wire
from angarium.client.transport import zmtp

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a client sends before its first message.
HANDSHAKE: Final = zmtp.GREETING + zmtp.pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER")
#: A node answers within milliseconds; a machine that others use may stand still for seconds.
RECEIVE_S = 20.0
#: What a polite client may ask for: plenty for every test.
CREDIT = (1_000_000, 16 << 20)
#: A lost connection stays lost; with -1 the library would throw away what was not read yet.
_NEVER_MS = 3_600_000
_ASK_AGAIN_MS = 500

Row = tuple[int, str, int, Any, Any, bytes]


class Frame(NamedTuple):
    """One multipart that came, with its header unpacked."""

    operation: bytes
    header: Any
    batches: list[bytes]


class RawClient:
    """A DEALER socket; a context manager that closes it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        *,
        routing_id: bytes = b"",
        receive_mark: int = 0,
    ) -> None:
        """Connect, and say nothing; `receive_mark` 1 makes a client that takes nothing in unless asked."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, receive_mark)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.connect(url)
        #: Tells of the end of the connection of one who has logged in.
        self._monitor: zmq.Socket[bytes] | None = None
        #: What WELCOME held.
        self.welcome: dict[str, Any] = {}
        self.round = 0

    def hello(self, **fields: Any) -> Self:
        """Log in.

        Raises:
            AssertionError: the answer is no WELCOME.
        """
        self.send(wire.HELLO, hello_header(**fields))
        frame = self.receive()
        assert frame.operation == wire.WELCOME, frame
        self.welcome = frame.header
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        return self

    def send(self, operation: bytes, header: Any, *batches: bytes) -> None:
        """Send an operation; a header in bytes goes as it is."""
        packed = header if isinstance(header, bytes) else wire.pack(header)
        self.socket.send_multipart([operation, packed, *batches])

    def publish_uncut(self, rows: Sequence[Row], *, flush: bool = False) -> None:
        """Publish rows without saying which worker owns them."""
        self.round += 1
        self.send(wire.PUBLISH, [self.round, 0, flush, [[0, len(rows)]]], wire.pack(rows))

    def subscribe(self, *filters: str) -> list[Any]:
        """Subscribe, and give the code and detail of each filter, or None."""
        self.send(wire.SUBSCRIBE, [1, [[text, 0] for text in filters], None])
        answer: list[Any] = self.receive_only(wire.SUBACK).header[1]
        return answer

    def receive(self, timeout_s: float = RECEIVE_S) -> Frame:
        """Give the next multipart.

        Raises:
            AssertionError: none came in time.
        """
        assert self.socket.poll(int(timeout_s * 1000)), "the router said nothing"
        operation, header, *batches = self.socket.recv_multipart()
        return Frame(operation, wire.unpack(header), batches)

    def receive_only(self, operation: bytes, timeout_s: float = RECEIVE_S) -> Frame:
        """Give the next multipart of an operation, and forget those before it."""
        while (frame := self.receive(timeout_s)).operation != operation:
            assert frame.operation != wire.CLOSED, frame
        return frame

    def answer_pings(self, operation: bytes, timeout_s: float = RECEIVE_S) -> Frame:
        """Give the next multipart of an operation, and answer the router's PINGs before it."""
        while (frame := self.receive(timeout_s)).operation != operation:
            assert frame.operation != wire.CLOSED, frame
            if frame.operation == wire.PING:
                self.send(wire.PONG, frame.header)
        return frame

    def closed(self, timeout_s: float = RECEIVE_S) -> int:
        """Wait for the end of the session and give its code."""
        while (frame := self.receive(timeout_s)).operation != wire.CLOSED:
            pass
        return int(frame.header[0])

    def ended(self, timeout_s: float = RECEIVE_S) -> int:
        """Ask until the session has ended, and give the code.

        CLOSED itself may find no room behind what the client did not read yet; then the connection just ends.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.send(wire.PING, [1])
            while self.socket.poll(_ASK_AGAIN_MS):
                frame = self.receive()
                if frame.operation == wire.CLOSED:
                    return int(frame.header[0])
            if self._monitor is not None and self._monitor.poll(0):
                return errors.NOT_CONNECTED
            assert time.monotonic() < deadline, f"the session goes on after {timeout_s:g} s"

    def is_open(self) -> bool:
        """Tell whether the session answers."""
        self.send(wire.PING, [77])
        return self.receive_until_answered() == wire.PONG

    def receive_until_answered(self) -> bytes:
        """Give PONG or CLOSED, whichever comes first."""
        while (operation := self.receive().operation) not in (wire.PONG, wire.CLOSED):
            pass
        return operation

    def close(self) -> None:
        """Let go of the connection, without a word."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close()
            self._monitor = None
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hello_header(**fields: Any) -> dict[str, Any]:
    """Give a good HELLO with some fields changed."""
    return {
        "version": wire.PROTOCOL_VERSION,
        "vpn": "default",
        "username": "default",
        "sdk": "raw",
        "keepalive_ms": 60_000,
        "credit": CREDIT,
        "unroutable": True,
        **fields,
    }


def row(index: int, topic: str, payload: bytes = b"", flags: int = 0) -> Row:
    """Give a plain row."""
    return index, topic, flags, None, None, payload
