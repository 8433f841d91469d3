"""What a protocol is to a connection: bytes in, messages out. `door` and `connection` know no more of the one spoken.

A framing belongs to one connection, from its first byte. What comes may be of unauthenticated peers: what they send
costs a bounded time and memory, or is an error that ends the connection. What a message is, is between a framing and
the owner of the door. `zmtp` is that of our own protocol, `gateway.mqtt.framing` that of MQTT, and
`gateway.mqtt.websocket` goes around another one; all pass one suite of tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

#: Messages taken from what came before others get their turn.
MESSAGES_MAX: Final = 64
#: What a connection may send before its login: HELLO and CONNECT have a few hundred bytes.
STRANGER_BYTES_MAX: Final = 65_536


class FramingError(Exception):
    """The peer does not speak this protocol, or too much; the connection is over."""


class PeerEndedError(FramingError):
    """The peer has closed what carries the protocol, as it should; this is an end like that of the connection."""


class FramingLimits(NamedTuple):
    """What one who has logged in may send."""

    frame_bytes: int
    message_bytes: int


class Framing(Protocol):
    """What a peer says, as messages."""

    #: What the peer is owed, also by who raises an error; the caller sends and empties it.
    replies: bytes

    @property
    def has_more(self) -> bool:
        """Whether `received(b"")` may give more messages, since those before were many."""

    @property
    def is_open(self) -> bool:
        """Whether the peer has shown that he speaks the protocol, so that the owner may have something to tell him."""

    @property
    def start(self) -> bytes:
        """What a peer is sent at once, without waiting for what it says."""

    def trust(self, limits: FramingLimits) -> None:
        """Take larger messages from now on: the peer has logged in."""

    def received(self, data: bytes) -> list[Any]:
        """Take bytes that came; give the messages that are complete, `MESSAGES_MAX` or less than as many again.

        Raises:
            FramingError: they cannot be understood, or are too many.
        """

    def wrap(self, data: bytes) -> bytes:
        """Give bytes of the owner as the peer gets them; nothing if he is sent no more."""

    def end(self) -> bytes:
        """Give what the peer is sent last, when the owner is done with him."""

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""


#: Makes the framing of a new connection, which takes no more than these limits until the peer is trusted.
Speak: TypeAlias = "Callable[[FramingLimits], Framing]"
