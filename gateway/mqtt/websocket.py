"""MQTT over WebSocket (5.0 section 6): what comes in frames of RFC 6455 is a stream of packets, wherever they are cut.

The library `websockets` reads and writes the frames and judges the request; here is what its user has to bound: the
request before it is there, the work of one turn, and what one frame may have. Messages before an end are given before
the end is told, since a client's DISCONNECT and the end of its WebSocket mostly come together. Before the login a frame
is small, also one that comes right behind the CONNECT.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from angarium_server.connections.framing import MESSAGES_MAX, FramingError, PeerEndedError

if TYPE_CHECKING:
    from angarium_server.connections.framing import Framing, FramingLimits, Speak

#: Of a request with its headers; a browser sends the cookies of its page along.
REQUEST_BYTES_MAX: Final = 16_384
#: Given to the library at once, which takes all frames that are in it; an empty frame has 6 bytes.
PIECE_BYTES: Final = 4_096
#: Taken before others get their turn, or a few more.
FRAMES_MAX: Final = 256
#: Where clients of MQTT knock.
PATHS: Final = ("/", "/mqtt")

_SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-3]
_METHOD: Final = b"GET "
_REQUEST_END: Final = b"\r\n\r\n"

#: The library tells of each connection; only its own faults are worth a line.
_log = logging.getLogger("gateway.mqtt.websocket")
_log.setLevel(logging.ERROR)


class WebSocketFraming:
    """One connection of a client, from its first byte."""

    __slots__ = ("_at", "_end", "_protocol", "_rest", "_within", "has_more", "is_foreign_page", "replies")

    #: A client speaks first.
    start: Final = b""

    def __init__(self, limits: FramingLimits, speak: Speak) -> None:
        """Begin before the request.

        Args:
            limits: a frame of WebSocket may have `frame_bytes`; the rest is for what is spoken within.
            speak: makes the framing of what the frames hold.
        """
        self._within: Framing = speak(limits)
        # No compression, which takes memory and time as the peer likes; all messages are one stream, however long.
        self._protocol = ServerProtocol(
            subprotocols=[_SUBPROTOCOL], max_size=(None, limits.frame_bytes), logger=_log
        )
        #: What came and was not taken is in these bytes from that place on.
        self._rest, self._at = b"", 0
        #: Why nothing more is taken.
        self._end: FramingError | None = None
        #: Whether a page of another site in a browser asks, which may be on a host where others need no password.
        self.is_foreign_page = False
        self.has_more = False
        self.replies = b""

    @property
    def is_open(self) -> bool:
        """Whether the peer has shown that he speaks what the frames are to hold."""
        return self._within.is_open

    def trust(self, limits: FramingLimits) -> None:
        """Take larger frames and packets from now on: the client has logged in."""
        self._protocol.max_fragment_size = limits.frame_bytes
        self._within.trust(limits)

    def received(self, data: bytes) -> list[Any]:
        """Take bytes that came; give the messages that are complete, fewer than two times `MESSAGES_MAX`.

        Raises:
            FramingError: there is no WebSocket, or it does not keep to its rules, or says what is none of ours.
            PeerEndedError: the client has closed it.
        """
        if data:
            self._rest, self._at = self._rest[self._at :] + data, 0
        if self._protocol.state is State.CONNECTING and not self._upgrade():
            return []
        within, frames = self._within, 0
        most = MESSAGES_MAX if within.is_open else 1
        messages = within.received(b"") if within.has_more else []
        while self._has_rest and not within.has_more and len(messages) < most and frames < FRAMES_MAX:
            taken = self._take()
            messages += within.received(self._content(taken))
            frames += len(taken)
        if self._end is not None and not messages:
            raise type(self._end)(str(self._end))  # one that is kept would keep us by its traceback
        self.has_more = within.has_more or self._has_rest or self._end is not None
        return messages

    @property
    def _has_rest(self) -> bool:
        return self._end is None and self._at < len(self._rest)

    def _upgrade(self) -> bool:
        """Answer the request when all of it is there; tell whether it was."""
        if not self._rest.startswith(_METHOD[: len(self._rest)]):
            raise FramingError("the peer does not ask for a WebSocket")
        end = self._rest.find(_REQUEST_END) + len(_REQUEST_END)
        is_there = end >= len(_REQUEST_END)
        if (end if is_there else len(self._rest)) > REQUEST_BYTES_MAX:
            raise FramingError(f"a request of more than {REQUEST_BYTES_MAX} bytes came")
        if not is_there:
            return False
        # No byte more: the library would take frames before it has answered.
        self._protocol.receive_data(self._rest[:end])
        self._at = end
        for request in self._protocol.events_received():
            assert isinstance(request, Request)
            self.is_foreign_page = any(map(is_foreign, request.headers.get_all("Origin")))
            self._answer(request)
        self._reply()
        if self._protocol.state is not State.OPEN:
            raise FramingError("the peer asks for no WebSocket with the subprotocol mqtt")
        return True

    def _answer(self, request: Request) -> None:
        if request.path.partition("?")[0] in PATHS:
            response = self._protocol.accept(request)
        else:
            response = self._protocol.reject(404, f"MQTT is at {' and '.join(PATHS)}.\n")
        self._protocol.send_response(response)

    def _take(self) -> list[Frame]:
        """Give the frames that end in the next piece."""
        piece = self._rest[self._at : self._at + PIECE_BYTES]
        self._at += len(piece)
        self._protocol.receive_data(piece)
        frames: list[Frame] = []
        for event in self._protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.TEXT:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")  # [MQTT-6.0.0-1]
                break
            frames.append(event)
        self._reply()
        if self._protocol.close_expected():
            self._end = self._reason()
        return frames

    def _content(self, frames: list[Frame]) -> bytes:
        return b"".join([frame.data for frame in frames if frame.opcode in (Opcode.BINARY, Opcode.CONT)])

    def _reason(self) -> FramingError:
        said = self._protocol.close_sent
        if self._protocol.close_rcvd is not None:
            return PeerEndedError("the WebSocket was closed")
        return FramingError(f"WebSocket: {said.reason if said else 'it is over'}")

    def _reply(self) -> None:
        self.replies += b"".join(self._protocol.data_to_send())

    def wrap(self, data: bytes) -> bytes:
        """Give a frame with these bytes; nothing when the last one was sent."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_binary(data)
        return b"".join(self._protocol.data_to_send())

    def end(self) -> bytes:
        """Give what the peer is sent last."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return b"".join(self._protocol.data_to_send())

    def __del__(self) -> None:
        """Take the protocol of the library apart: with its parser it is a cycle, which is hardly ever collected."""
        protocol = self._protocol
        protocol.parser.close()
        protocol.parser_exc = protocol.handshake_exc = None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._at <= len(self._rest)
        self._within.validate()


def is_foreign(origin: str) -> bool:
    """Tell whether a page that a browser says to be of this origin is of no server of this host.

    "http://localhost:8000", "https://127.1.2.3" and "http://[::1]:80" are of this host. "null" is of a page that tells
    nobody where it is from, such as a file, or a frame in a page of anybody.
    """
    try:
        parts = urlsplit(origin)
        host = parts.hostname or ""
    except ValueError:
        return True
    if parts.scheme not in ("http", "https"):
        return True
    return host != "localhost" and not _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, such as 127.0.0.1.example
        return False
