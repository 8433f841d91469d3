"""What the router's state machine asks its shell to do: one effect per frame, never per message.

The decisions append to an `Outbox`; the shell takes them after each event and carries them out in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SendClient(NamedTuple):
    """Send frames to a client; `rows` messages are lost, and counted, if it is gone."""

    routing_id: bytes
    frames: list[bytes]
    rows: int


class SendWorker(NamedTuple):
    """Send frames to one incarnation of a worker."""

    worker: int
    incarnation: int
    frames: list[bytes]


class VerifyPassword(NamedTuple):
    """Compare a password with a stored hash off the loop; answer with `Router.password_verified`."""

    ticket: int
    password: str
    stored: str


class EmitEvent(NamedTuple):
    """Tell the operators."""

    event: dict[str, Any]


class AskController(NamedTuple):
    """Ask the controller; answer with `Router.controller_answered`, once."""

    ticket: int
    operation: str
    arguments: dict[str, Any]


class ReplyController(NamedTuple):
    """Answer a request of the controller that had to wait; `later` is what the shell gave for it."""

    later: Any
    value: Any


Effect = SendClient | SendWorker | VerifyPassword | EmitEvent | AskController | ReplyController


class Outbox:
    """Collects effects in the order in which they were decided."""

    def __init__(self) -> None:
        #: What is still to be carried out, oldest first.
        self.effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Hand over everything decided so far."""
        effects, self.effects = self.effects, []
        return effects

    def event(
        self, name: str, text: str, *, severity: str = "info", scope: str = "SYSTEM", **fields: Any
    ) -> None:
        """Emit an event for the operators."""
        self.effects.append(
            EmitEvent({"event": name, "text": text, "severity": severity, "scope": scope, **fields})
        )
