"""The selector of a topic endpoint: it examines messages in the background (R145 to R148).

New messages are held until it has seen them; publishers do not wait for it, and the owner of the endpoint pays for
the effort. What it does not select is removed, so the count of the endpoint shrinks; what it selects is ready, or
waits for its delivery delay. After a restart everything is examined again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors
from node.backlog.backlog import runs_of
from node.backlog.segment import HELD, POSITION_MAX, READY, Segment
from node.endpoints.effort import Payer

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.endpoints.consumers import Selector, Sources

#: Messages that are examined in one call; each may have to be read from disk.
EXAMINED_MAX: Final = 500

_REMOVE: Final = 0
_LET_IN: Final = 1
_LEAVE: Final = 2


class TopicSelector:
    """Decides which messages of a topic endpoint come in. Without a selector all do, at once."""

    __slots__ = (
        "_backlog",
        "_effort",
        "_lifetimes",
        "_on_ready",
        "_read_row",
        "resume_at",
        "selector",
    )

    def __init__(
        self,
        backlog: Backlog,
        lifetimes: Lifetimes,
        on_ready: Callable[[Segment, int, int], None],
        sources: Sources,
    ) -> None:
        self._backlog = backlog
        self._lifetimes = lifetimes
        self._on_ready = on_ready
        self._read_row = sources.read_row
        self._effort = sources.effort
        #: When messages are examined again, if the account of the owner is empty; None: it is not.
        self.resume_at: float | None = None
        #: None: all messages come in.
        self.selector: Selector | None = None

    def use(self, selector: Selector | None, upto: int) -> None:
        """Use another selector, or none, for the messages above a position."""
        self.selector = selector
        self._lifetimes.filtered_upto = POSITION_MAX if selector is None else upto

    def hold(self, segment: Segment) -> None:
        """Hold the messages of a segment that came."""
        for i, j, state in list(runs_of(segment.state, 0, segment.count)):
            if state == READY:
                self._backlog.change(segment, i, j, READY, HELD)

    def run(self, next_position: int, wall_ms: int) -> None:
        """Examine the next messages, as far as there is effort."""
        self.resume_at = None
        if self.selector is None or self._lifetimes.filtered_upto >= next_position - 1:
            return
        settings = self._backlog.settings
        self.resume_at = self._effort.begin(Payer(settings.vpn, settings.owner or settings.name))
        if self.resume_at is None:
            self._examine_next(self.selector, next_position, wall_ms)
        self._effort.end()

    def _examine_next(self, selector: Selector, next_position: int, wall_ms: int) -> None:
        lifetimes, segments, effort = self._lifetimes, self._backlog.segments, self._effort
        left = EXAMINED_MAX
        while left > 0 and effort.left > 0:
            at = segments.next_from(segments.index(lifetimes.filtered_upto + 1))
            if at is None:
                lifetimes.filtered_upto = next_position - 1
                return
            segment = at[1]
            i = max(lifetimes.filtered_upto + 1 - segment.first, 0)
            verdicts = bytearray()
            for row in range(i, min(segment.count, i + left)):
                if effort.left <= 0:
                    break
                verdicts.append(self._examine(selector, segment, row))
            left -= len(verdicts)
            lifetimes.filtered_upto = segment.first + i + len(verdicts) - 1
            self._apply(segment, i, verdicts, wall_ms)

    def readmit(self, segment: Segment, i: int, wall_ms: int) -> None:
        """Let in a HELD message that had been taken out, if it is selected."""
        if self.selector is None:
            self._let_in(segment, i, i + 1, wall_ms)
        elif segment.first + i <= self._lifetimes.filtered_upto:
            verdict = self._examine(self.selector, segment, i)
            self._apply(segment, i, bytearray((verdict,)), wall_ms)

    def _examine(self, selector: Selector, segment: Segment, i: int) -> int:
        if segment.state[i] != HELD:
            return _LEAVE
        try:
            row = self._read_row(segment, i)
        except errors.AngariumError:
            # Nobody gets what was not examined, and nothing is deleted because a disk is damaged.
            self._backlog.statistics["unreadable"] += 1
            return _LEAVE
        self._backlog.statistics["selector_examined"] += 1
        is_selected = selector.matches(row)
        self._effort.left -= selector.steps
        return _LET_IN if is_selected else _REMOVE

    def _apply(self, segment: Segment, i: int, verdicts: bytearray, wall_ms: int) -> None:
        """Carry out the verdicts on the rows from `i` on."""
        for start, end, verdict in runs_of(verdicts, 0, len(verdicts)):
            if verdict == _REMOVE:
                self._backlog.statistics["selector_discarded"] += end - start
                self._backlog.remove(segment, i + start, i + end, HELD)
            elif verdict == _LET_IN:
                self._backlog.statistics["selector_matched"] += end - start
                self._let_in(segment, i + start, i + end, wall_ms)

    def _let_in(self, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        self._backlog.change(segment, i, j, HELD, READY)
        if self._lifetimes.has_delay(segment):
            self._lifetimes.hold_undue(segment, i, j, wall_ms)
        for start, end, state in list(runs_of(segment.state, i, j)):
            if state == READY:
                self._on_ready(segment, start, end)
        if self._backlog.settings.last_value:
            self._backlog.replace_older(segment.first + j - 1)
