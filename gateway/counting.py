"""Which clients have counters that the router has not heard of, and when it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from angarium_server.frames.gateways import COUNTED_MAX, CountedFrame

if TYPE_CHECKING:
    from angarium_server.frames.gateways import Counts

#: How often the router is told what changed.
INTERVAL_S: Final = 2.0

_NEVER: Final = float("inf")


class Counted(Protocol):
    """A client with counters."""

    def counts(self) -> Counts:
        """Give what was counted."""


class Counting:
    """The clients of a carrier whose counters have changed."""

    def __init__(self) -> None:
        #: Those that changed and wait until it is time.
        self._changed: dict[Counted, None] = {}
        #: Those that are told now, a frame at a time: all at once would be a long step.
        self._telling: dict[Counted, None] = {}
        #: When it is time for more.
        self._due = 0.0
        #: When there is a frame to send.
        self.wake_at = _NEVER

    def changed(self, client: Counted) -> None:
        """Take note that a counter of a client changed."""
        self._changed[client] = None
        self._plan()

    def forget(self, client: Counted) -> bool:
        """Drop a client that leaves; gives whether there is something to tell of it."""
        was_changed = self._changed.pop(client, True) is None
        was_told = self._telling.pop(client, True) is None
        self._plan()
        return was_told or was_changed

    def _plan(self) -> None:
        if self._telling:
            self.wake_at = 0.0
        else:
            self.wake_at = self._due if self._changed else _NEVER

    def frame(self, now: float) -> CountedFrame:
        """Give what is to be told now; `wake_at` has come."""
        if not self._telling:
            self._telling, self._changed = self._changed, {}
            self._due = now + INTERVAL_S
        some = [self._telling.popitem()[0] for _ in range(min(len(self._telling), COUNTED_MAX))]
        self._plan()
        return CountedFrame([client.counts() for client in some])
