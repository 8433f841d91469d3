"""What leaves a home: frames for the router, in order, and what operators should know.

No I/O, no clock; the parts of `node.home.parts` put in, `node.home.home` takes out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from angarium_server.frames.frame import Frame
    from angarium_server.frames.homes import MoveFrame

#: Events that the shell has not taken; the oldest is lost first.
EVENTS_MAX: Final = 100


class Outbox:
    """Frames and events that nobody has taken yet."""

    def __init__(self, incarnation: int) -> None:
        #: Of the worker, which each frame names.
        self.incarnation = incarnation
        #: For the router, in order.
        self.frames: list[list[bytes]] = []
        #: They follow the totals of their turn, by which the router counts what is moved.
        self._moves: list[list[bytes]] = []
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def say(self, frame: Frame) -> None:
        """Send a frame without batches."""
        self.frames.append(frame.frames())

    def move(self, frame: MoveFrame, batch: bytes) -> None:
        """Send rows that are moved, behind everything else of this turn but deliveries."""
        self._moves.append(frame.frames(batch))

    def event(self, severity: str, event: str, text: str, **more: Any) -> None:
        """Tell operators of something."""
        self._events.append({"severity": severity, "scope": "SYSTEM", "event": event, "text": text, **more})

    def clear(self) -> None:
        """Forget what is to be said: its router is gone."""
        self.frames = []

    def take_frames(self) -> list[list[bytes]]:
        """Give the frames, in order."""
        frames, self.frames = self.frames + self._moves, []
        self._moves = []
        return frames

    def take_events(self) -> list[dict[str, Any]]:
        """Give the events, the oldest first."""
        events = list(self._events)
        self._events.clear()
        return events
