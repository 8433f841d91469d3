"""What the router's state machine asks its shell to do: one effect per frame, never per message.

The decisions append to an `Outbox` (`outbox`); the shell takes them after each event and carries them out in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from angarium_server.tokens.keys import Key


class SendClient(msgspec.Struct, frozen=True):
    """Send frames to a client; `rows` messages are lost, and counted, if it is gone."""

    routing_id: bytes
    frames: list[bytes]
    rows: int


class SendWorker(msgspec.Struct, frozen=True):
    """Send frames to one incarnation of a worker."""

    worker: int
    incarnation: int
    frames: list[bytes]


class VerifyPassword(NamedTuple):
    """Compare a password with a stored hash off the loop; answer with `Handshake.password_verified`."""

    ticket: int
    password: str
    stored: str


class VerifyToken(NamedTuple):
    """Look off the loop whether one of some keys has signed a token; answer with `Handshake.token_verified`."""

    ticket: int
    token: str
    algorithm: str
    keys: tuple[Key, ...]


class EmitEvent(NamedTuple):
    """Tell the operators."""

    event: dict[str, Any]


class AskController(NamedTuple):
    """Ask the controller; answer with `Router.controller_answered`, once."""

    ticket: int
    operation: str
    arguments: dict[str, Any]


class ReplyController(NamedTuple):
    """Answer a request of the controller that had to wait; `deferred` is what the shell gave for it."""

    deferred: Any
    value: Any


Effect = SendClient | SendWorker | VerifyPassword | VerifyToken | EmitEvent | AskController | ReplyController
