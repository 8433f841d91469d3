"""What a client of `angarium bench` is told to do: one line of JSON on its standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

#: The send time in nanoseconds, at the start of each payload of a latency run.
STAMP_BYTES: Final = 8
#: Between two words on how far a client is: often enough for a bar, too seldom to be measured.
TELL_INTERVAL_S: Final = 0.2


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one client does."""

    role: str
    #: Arguments of `angarium.connect`.
    connect: dict[str, Any]
    #: Topics are `<prefix>/<number>`; a publisher says `<prefix>/end` at its end.
    prefix: str
    #: How many messages this publisher sends, or all publishers together send to this subscriber.
    messages: int
    size_bytes: int
    topics: int
    batch: int
    #: How many ends a subscriber waits for.
    publishers: int
    #: Messages per second, each on its own, or None for batches at full speed.
    rate: float | None = None
    #: Queues that get each message, and messages that may be unacknowledged.
    queues: int = 1
    window: int = 255
    #: Whether somebody watches: the client says now and then how far it is.
    is_watched: bool = False


class Telling:
    """Says now and then how many messages a client has done, if somebody watches."""

    def __init__(self, task: Task, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        #: When it is due again; never if nobody watches.
        self._next_at = 0.0 if task.is_watched else float("inf")

    def __call__(self, done: int, now: float) -> None:
        """Take how many are done by now."""
        if now >= self._next_at:
            self._next_at = now + TELL_INTERVAL_S
            self._say({"done": done})
