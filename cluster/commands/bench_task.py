"""What a client of `angarium bench` is told to do: one line of JSON on its standard input."""

from __future__ import annotations

from typing import Any, Final

import msgspec

#: The send time in nanoseconds, at the start of each payload of a latency run.
STAMP_BYTES: Final = 8


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
