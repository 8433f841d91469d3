"""When a stream has something to say although nothing happened, and when its client has stopped to read. Pure."""

from __future__ import annotations

from typing import Final

from angarium_server.http.sse import QUIET_S

#: A client that takes nothing of what waits for it for so long is not there.
STALLED_S: Final = 20.0


class Pace:
    """That of one stream; time is a parameter."""

    def __init__(self, now: float, stalled_s: float = STALLED_S) -> None:
        self._stalled_s = stalled_s
        self._written = 0
        #: Bytes that the client has taken, when that was more than before, or nothing waited.
        self._taken = 0
        self._moved_at = now
        self._said_at = now

    def said(self, size: int, now: float) -> None:
        """Note that so many bytes were written."""
        self._written += size
        self._said_at = now

    def is_quiet(self, now: float) -> bool:
        """Tell whether something is to be said, so that both sides know that the other is there."""
        return now - self._said_at >= QUIET_S

    def is_stalled(self, unsent: int, now: float) -> bool:
        """Tell whether the client has stopped to read, by what has not left."""
        taken = self._written - unsent
        if taken > self._taken or not unsent:
            self._taken, self._moved_at = taken, now
        return now - self._moved_at >= self._stalled_s
