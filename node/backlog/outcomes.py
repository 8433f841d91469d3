"""What becomes of delivered messages: accepted, failed, rejected, or their flow is gone.

A failed message is sent again, after the redelivery delay, unless it has expired, was tried too often, or the
endpoint sends nothing twice; then it is dead. A message whose flow ended without a word counts as tried too, but
is not delayed: the consumer failed, not the message. Order of the questions: replaced by a newer one, expired,
sent too often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from node.backlog.backlog import runs_of
from node.backlog.segment import EXPIRED, HELD, OUT, READY, REDELIVERIES, REJECTED, Segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.backlog.positions import PositionSet

#: Verdicts on a message that comes back, besides EXPIRED and REDELIVERIES.
_AGAIN: Final = 0


class Outcomes:
    """Settles runs of messages. `was` is their state: OUT, or READY and HELD when a flow was resumed."""

    def __init__(
        self, backlog: Backlog, lifetimes: Lifetimes, on_ready: Callable[[Segment, int, int], None]
    ) -> None:
        """Make the outcomes of a backlog; `on_ready` is told each run that became ready again."""
        self._backlog = backlog
        self._lifetimes = lifetimes
        self._on_ready = on_ready

    def accept(self, segment: Segment, i: int, j: int, was: int) -> None:
        """Remove messages that were consumed (R165)."""
        self._backlog.statistics["accepted"] += j - i
        self._backlog.remove(segment, i, j, was)

    def reject(self, segment: Segment, i: int, j: int, was: int) -> None:
        """Never send messages again: they are dead."""
        self._backlog.add_tries(segment, i, j)
        self._backlog.kill(segment, i, j, was, REJECTED)

    def fail(self, segment: Segment, i: int, j: int, now_ms: int, wall_ms: int) -> None:
        """Take back messages that are OUT and that a consumer could not use."""
        self._backlog.statistics["failed"] += j - i
        for start, end in self._take_back(segment, i, j, wall_ms):
            if self._backlog.settings.redelivery_delay is None:
                self._ready(segment, start, end)
            else:
                self._delay(segment, start, end, now_ms)

    def lose(self, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        """Take back messages that are OUT and whose flow is gone (R190)."""
        for start, end in self._take_back(segment, i, j, wall_ms):
            self._ready(segment, start, end)

    def take_back(self, out: PositionSet, wall_ms: int) -> None:
        """Take back all that somebody has out who is gone."""
        runs = list(out.runs())
        out.clear()
        for first, last in runs:
            for segment, i, j in self._backlog.segments.slices(first, last):
                self.lose(segment, i, j, wall_ms)

    def _ready(self, segment: Segment, i: int, j: int) -> None:
        self._backlog.change(segment, i, j, OUT, READY)
        self._on_ready(segment, i, j)

    def _delay(self, segment: Segment, i: int, j: int, now_ms: int) -> None:
        assert segment.tries is not None
        for start, end, tries in list(runs_of(segment.tries, i, j)):
            delay_ms = self._backlog.settings.redelivery_delay_ms(tries)
            self._backlog.change(segment, start, end, OUT, HELD)
            self._lifetimes.delay(segment, start, end, now_ms + delay_ms)

    def _take_back(self, segment: Segment, i: int, j: int, wall_ms: int) -> list[tuple[int, int]]:
        """Count the attempts, let die what is dead, and give the runs, still OUT, that are sent again."""
        backlog = self._backlog
        superseded = min(max(backlog.newest - segment.first, i), j) if backlog.settings.last_value else i
        if superseded > i:
            backlog.statistics["replaced"] += superseded - i
            backlog.remove(segment, i, superseded, OUT)
            i = superseded
        if i == j:
            return []
        verdicts = self._verdicts(segment, i, j, wall_ms)
        backlog.add_tries(segment, i, j)
        if verdicts is None:
            return [(i, j)]
        again: list[tuple[int, int]] = []
        for start, end, verdict in runs_of(verdicts, 0, j - i):
            if verdict == _AGAIN:
                again.append((i + start, i + end))
            else:
                backlog.kill(segment, i + start, i + end, OUT, verdict)
        return again

    def _verdicts(self, segment: Segment, i: int, j: int, wall_ms: int) -> bytearray | None:
        """Give why each message dies or _AGAIN, None if all are sent again; attempts are not counted yet."""
        settings = self._backlog.settings
        limit, tries = settings.max_redeliveries, segment.tries
        verdicts: bytearray | None = None
        if not settings.redelivery_enabled:
            verdicts = bytearray((REDELIVERIES,)) * (j - i)
        elif limit and tries is not None and max(tries[i:j]) >= limit:
            verdicts = bytearray(REDELIVERIES if done >= limit else _AGAIN for done in tries[i:j])
        expired = self._lifetimes.expired(segment, i, j, wall_ms)
        if expired is None:
            return verdicts
        others = verdicts or bytearray(j - i)
        return bytearray(EXPIRED if over else other for over, other in zip(expired, others, strict=True))
