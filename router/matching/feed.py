"""What one worker is still to be told of filters: in small frames, of which only a few are under way.

A worker takes a FILTERS frame in one step, and what was sent after it waits. A client may come or leave with a hundred
thousand filters, so what changes is cut into frames that a worker is done with in a few milliseconds, and the next one
is sent when an older one was confirmed. Between two of them the batches of everybody pass. In a frame new filters and
gone ones share the room: somebody waits for the new ones, and the gone ones may not pile up behind them.

Numbers of filters rise, so the newest number up to which all is in force says what a subscriber waits for. No I/O, no
clock; `router.matching.shards` sends the frames.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.sessions.interest import Filter

#: Levels of filters in one frame, 1 to 2 us each for a worker, which takes it whatever else there is in its turn; a
#: filter without wildcards counts as one level.
FRAME_LEVELS_MAX: Final = 400
#: Frames that are not confirmed: one is worked at while the other is under way.
FRAMES_MAX: Final = 2


class Feed:
    """The changes of filters for one worker."""

    __slots__ = ("_added", "_removed", "_sent", "confirmed")

    def __init__(self) -> None:
        #: Number -> filter that it is still to be told of, rising. An `OrderedDict`, because the first key of a dict
        #: that loses its first keys is slow to find.
        self._added: OrderedDict[int, Filter[Any]] = OrderedDict()
        #: Those that it knows, or will, and is to forget.
        self._removed: deque[Filter[Any]] = deque()
        #: Frames that are not confirmed: number of the frame, newest filter up to which all is told with it.
        self._sent: deque[tuple[int, int]] = deque()
        #: All filters up to this number are in force; if the worker is gone, they were.
        self.confirmed = 0

    def put(self, added: Iterable[Filter[Any]], removed: Iterable[Filter[Any]]) -> None:
        """Take note of filters that came and went; of one that did both before anybody was told nobody is."""
        for one in removed:
            if self._added.pop(one.id, None) is None:
                self._removed.append(one)
        for one in added:
            self._added[one.id] = one

    def restart(self, filters: Iterable[Filter[Any]]) -> None:
        """There is a worker that knows nothing: these filters are all that it must know."""
        self.clear()
        self.confirmed = 0
        self._added.update((one.id, one) for one in filters)

    def clear(self) -> None:
        """The worker is gone: its successor is told everything."""
        self._added.clear()
        self._removed.clear()
        self._sent.clear()

    @property
    def first_untold(self) -> int | None:
        """Give the oldest filter that the worker was not told of yet; None if it was told of all."""
        return next(iter(self._added), None)

    @property
    def is_due(self) -> bool:
        """Tell whether a frame may be sent, and there is something to tell."""
        return len(self._sent) < FRAMES_MAX and bool(self._added or self._removed)

    def take(self, number: int, newest: int) -> tuple[list[Filter[Any]], list[int]]:
        """Give what goes into the frame of this number: filters, and numbers of gone ones.

        `newest` is the newest filter that any worker was to be told of.
        """
        added, removed = self._added, self._removed
        levels = 0
        new: list[Filter[Any]] = []
        gone: list[int] = []
        while added and (levels < FRAME_LEVELS_MAX // 2 or (levels < FRAME_LEVELS_MAX and not removed)):
            one = added.popitem(last=False)[1]
            new.append(one)
            levels += one.levels
        while removed and levels < FRAME_LEVELS_MAX:
            one = removed.popleft()
            gone.append(one.id)
            levels += one.levels
        self._sent.append((number, next(iter(added)) - 1 if added else newest))
        return new, gone

    def confirm(self, number: int, newest: int) -> bool:
        """The worker has taken all frames up to this number; false if none of those that were sent since it came."""
        sent = self._sent
        if not sent or sent[0][0] > number:
            return False
        while sent and sent[0][0] <= number:
            self.confirmed = sent.popleft()[1]
        if not sent and not self._added:  # perhaps the last ones went before it was told of them
            self.confirmed = newest
        return True
