"""Finding the next messages for a flow.

A `Reader` knows how far the messages of a lane have been looked at for the flows that read alike: all flows
without a selector share one, so do flows with the same selector. It remembers a cursor, and *behind* it the
positions that became ready again (given back, no longer delayed). What is behind goes first, so redelivered
messages keep their place before new ones. With a selector, a message is examined once for all these flows
(R143): what does not match stays behind the cursor and is not looked at again.

If priorities count, a reader has one such track per priority, highest first: higher priorities overtake, in one
priority the order stays.

No call does unbounded work: `Work` says how much is left in this one, in messages and in effort. Nor does one go
beyond the last position that consumers may see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from node.backlog.backlog import PositionSet, run_end, runs_of
from node.backlog.segment import (
    GONE,
    HELD,
    MOVING,
    POSITION_MAX,
    PRIORITY_MAX,
    PRIORITY_UNSET,
    READY,
    Segment,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.backlog import SegmentList
    from node.endpoints.effort import Effort, Payer

#: A flow; readers do not look at it.
FlowT = TypeVar("FlowT")

#: Messages that a selector examines in one call; each may have to be read from disk.
EXAMINED_MAX: Final = 500
#: Segments that are looked at in vain in one call.
SKIPPED_MAX: Final = 2_000
#: State -> 1 if a browser shows it.
_VISIBLE: Final = bytes(code not in (GONE, MOVING) for code in range(256))

_READY: Final = bytes((READY,))
_HELD: Final = bytes((HELD,))


class Run(NamedTuple):
    """Rows [i, j) of a segment and their spool size in bytes."""

    segment: Segment
    i: int
    j: int
    size: int


class Work:
    """How far one call may go, and how much it may still look at in vain."""

    __slots__ = (
        "_is_paid",
        "barred",
        "effort",
        "examined",
        "exhausted",
        "is_short",
        "more",
        "resume_at",
        "skipped",
        "upto",
    )

    def __init__(self, effort: Effort, upto: int = POSITION_MAX) -> None:
        self.effort = effort
        self.examined = EXAMINED_MAX
        self.skipped = SKIPPED_MAX
        #: The last position that may be handed out; never less than in the calls before.
        self.upto = upto
        #: Whether there are messages above it that somebody would look at.
        self.barred = False
        #: Whether something was left undone: what another call can do, or for want of effort.
        self.exhausted = False
        self.more = False
        self.is_short = False
        #: When the first of those can go on whose accounts are empty; None: there is none of them.
        self.resume_at: float | None = None
        #: Whether what is examined costs effort: without a selector it does not.
        self._is_paid = False

    def leave(self) -> None:
        """Take note that something is left to another call."""
        self.exhausted = self.more = True

    def skip(self) -> bool:
        """Take note of a segment in which there was nothing; False if that was enough for this call."""
        self.skipped -= 1
        if self.skipped <= 0:
            self.leave()
        return not self.exhausted

    def examine(self) -> bool:
        """Ask to examine a message; False if that was enough for this call."""
        self.examined -= 1
        if self.examined < 0:
            self.leave()
            return False
        if self._is_paid and self.effort.left <= 0:
            self.exhausted = self.is_short = True
            return False
        return True

    def may_pay(self, payer: Payer | None) -> bool:
        """Let somebody pay for what is examined from now on, or nobody; False if that has to wait."""
        self._is_paid = payer is not None
        if payer is None:
            return True
        if self.is_short:
            return False
        resume_at = self.effort.begin(payer)
        if resume_at is None:
            return True
        self.resume_at = resume_at if self.resume_at is None else min(self.resume_at, resume_at)
        return False


class Track:
    """How far the messages of one priority, or all of them, were looked at."""

    __slots__ = ("_level", "_matches", "_waits", "behind", "cursor")

    def __init__(
        self, level: int | None, matches: Callable[[Segment, int], bool] | None, *, waits: bool
    ) -> None:
        """Begin at the oldest message of a level, or of all, for which `matches` is true."""
        self._level = level
        self._matches = matches
        #: Whether nothing overtakes a message that is held: an earlier one may be due later, if a clock was set back.
        self._waits = waits
        #: Ready messages below it are in `behind`, or were examined and do not match.
        self.cursor = 0
        #: Positions below the cursor that became ready; some may be taken or gone since.
        self.behind = PositionSet()

    def readied(self, first: int, last: int) -> None:
        """Take note that messages became ready that were not."""
        if first < self.cursor:
            self.behind.add(first, min(last, self.cursor - 1))

    def take(self, segments: SegmentList, rows: int, size: int, work: Work) -> Run | None:
        """Pass by the next ready messages and give a run of them, None if there is none or `work` is done.

        Args:
            segments: of the lane.
            rows: how many at most, 1 or more.
            size: bytes, 1 or more; the last message may be larger than what is left of them.
            work: how much may be looked at.
        """
        if self.behind.count:
            run = self._take_behind(segments, rows, size, work)
            if run is not None or work.exhausted:
                return run
        return self._take_ahead(segments, rows, size, work)

    def _take_behind(self, segments: SegmentList, rows: int, size: int, work: Work) -> Run | None:
        while (positions := self.behind.first_run()) is not None:
            first, last = positions
            at = segments.next_from(segments.index(first))
            if at is None or at[1].first > last:
                self.behind.remove(first, last)
                continue
            segment = at[1]
            start = max(first - segment.first, 0)
            stop = min(last - segment.first + 1, segment.count)
            i, j, upto = self._scan(segment, start, stop, rows, work)
            run = _cut(segment, i, j, size) if i < j else None
            if run is not None and run.j < j:
                upto = run.j
            self.behind.remove(first, segment.first + upto - 1)
            if run is not None or work.exhausted or not work.skip():
                return run
        return None

    def _take_ahead(self, segments: SegmentList, rows: int, size: int, work: Work) -> Run | None:
        at = segments.next_from(segments.index(self.cursor))
        while at is not None:
            index, segment = at
            start = max(self.cursor - segment.first, 0)
            stop = min(segment.count, work.upto - segment.first + 1)
            if start >= stop:
                work.barred = True
                return None
            held = segment.state.find(_HELD, start, stop) if self._waits else -1
            i, j, upto = self._scan(segment, start, stop if held < 0 else held, rows, work)
            run = _cut(segment, i, j, size) if i < j else None
            if run is not None and run.j < j:
                upto = run.j
            self.cursor = segment.first + upto
            if run is not None or work.exhausted or held >= 0 or not work.skip():
                return run
            if stop < segment.count:
                work.barred = True
                return None
            at = segments.next_from(index + 1)
        return None

    def _scan(self, segment: Segment, start: int, stop: int, rows: int, work: Work) -> tuple[int, int, int]:
        """Give (i, j, upto): the rows from i to before j are wanted, the others before `upto` are not.

        If i == j there is none; then `upto` < `stop` only if `work` is done.
        """
        i, j = self._candidates(segment, start, stop, rows)
        if self._matches is None:
            return i, j, j
        while i < j:
            for row in range(i, j):
                if not work.examine():
                    return i, row, row
                if not self._matches(segment, row):
                    if i < row:
                        return i, row, row + 1
                    i = row + 1
            if i < j:
                return i, j, j
            i, j = self._candidates(segment, j, stop, rows)
        return j, j, j

    def _candidates(self, segment: Segment, start: int, stop: int, rows: int) -> tuple[int, int]:
        """Give the first run of rows that are ready and of the right priority, (stop, stop) if there is none."""
        state = segment.state
        level = self._level
        if level is not None:
            if not segment.levels >> level & 1:
                return stop, stop
            if segment.priorities is not None:
                return _level_run(segment, level, start, stop, rows)
        i = state.find(_READY, start, stop)
        if i < 0:
            return stop, stop
        return i, run_end(state, i, min(stop, i + rows))


def _level_run(segment: Segment, level: int, start: int, stop: int, rows: int) -> tuple[int, int]:
    """Give the first run of ready rows of one priority."""
    state, priorities = segment.state, segment.priorities
    assert priorities is not None
    i = priorities.find(level, start, stop)
    while i >= 0 and state[i] != READY:
        i = priorities.find(level, i + 1, stop)
    if i < 0:
        return stop, stop
    j = i + 1
    end = min(stop, i + rows)
    while j < end and priorities[j] == level and state[j] == READY:
        j += 1
    return i, j


def _cut(segment: Segment, i: int, j: int, size: int) -> Run:
    """Give the run of rows [i, j), shorter if it is more than so many bytes; one row is always in it."""
    total = segment.live_bytes if j - i == segment.live else segment.size_of(i, j)
    if total > size:
        totals = list(accumulate(segment.sizes[i:j]))
        rows = bisect_left(totals, size) + 1
        return Run(segment, i, i + rows, totals[rows - 1])
    return Run(segment, i, j, total)


class Reader(Generic[FlowT]):
    """What the flows that read alike have in common."""

    __slots__ = ("_by_level", "flows", "key", "tracks", "willing")

    def __init__(
        self,
        key: object,
        matches: Callable[[Segment, int], bool] | None,
        *,
        by_priority: bool,
        in_order: bool = False,
    ) -> None:
        #: Flows with the same key share the reader.
        self.key = key
        #: How many flows there are.
        self.flows = 0
        #: The flows that may have room, the next one first.
        self.willing: deque[FlowT] = deque()
        levels: list[int | None] = [*range(PRIORITY_MAX, -1, -1)] if by_priority else [None]
        #: In the order in which they are served.
        self.tracks = [Track(level, matches, waits=in_order) for level in levels]
        self._by_level = dict(zip(levels, self.tracks, strict=True))

    def readied(self, segment: Segment, i: int, j: int) -> None:
        """Take note that a run became ready that was not."""
        first = segment.first
        if len(self.tracks) == 1:
            self.tracks[0].readied(first + i, first + j - 1)
        elif segment.priorities is None:
            self._by_level[PRIORITY_UNSET].readied(first + i, first + j - 1)
        else:
            for row in range(i, j):
                self._by_level[segment.priorities[row]].readied(first + row, first + row)

    def take(self, segments: SegmentList, rows: int, size: int, work: Work) -> Run | None:
        """Give the next run of messages, see `Track.take`; nobody overtakes what is above the last position."""
        for track in self.tracks:
            run = track.take(segments, rows, size, work)
            if run is not None or work.exhausted or work.barred:
                return run
        return None

    def validate(self, segments: SegmentList, next_position: int) -> None:
        """Check what the comments on the attributes say."""
        assert self.flows >= len(self.willing)
        for track in self.tracks:
            assert track.cursor <= next_position
            track.behind.validate()
            if track._matches is None:
                self._validate_passed(track, segments)

    def _validate_passed(self, track: Track, segments: SegmentList) -> None:
        for segment in segments:
            for row in range(min(segment.count, max(track.cursor - segment.first, 0))):
                if segment.state[row] == READY and track._level in (None, segment.priority(row)):
                    assert segment.first + row in track.behind


def browse(
    segments: SegmentList,
    cursor: int,
    matches: Callable[[Segment, int], bool] | None,
    rows: int,
    size: int,
    work: Work,
) -> tuple[int, Run | None]:
    """Give the next run of messages for a browser, oldest first, whatever their state, and the new cursor.

    Args:
        segments: of the lane.
        cursor: everything below it was shown or does not match.
        matches: only messages for which it is true; None for all.
        rows: how many at most.
        size: bytes; the last message may be larger than what is left of them.
        work: how far it goes, and how much may be looked at.
    """
    at = segments.next_from(segments.index(cursor))
    while at is not None:
        index, segment = at
        start = max(cursor - segment.first, 0)
        stop = min(segment.count, work.upto - segment.first + 1)
        if start >= stop:
            work.barred = True
            return cursor, None
        visible = bytearray(segment.state.translate(_VISIBLE))
        for i, j, shown in runs_of(visible, start, stop):
            if shown and matches is None:
                run = _cut(segment, i, min(j, i + rows), size)
                return segment.first + run.j, run
            if shown and matches is not None:
                for row in range(i, j):
                    if not work.examine():
                        return segment.first + row, None
                    if matches(segment, row):
                        return segment.first + row + 1, _cut(segment, row, row + 1, size)
        cursor = segment.first + stop
        if stop < segment.count or not work.skip():
            work.barred |= stop < segment.count
            return cursor, None
        at = segments.next_from(index + 1)
    return cursor, None


def read_range(
    segments: SegmentList, out: PositionSet, cursor: int, end: int, rows: int, size: int, work: Work
) -> tuple[int, Run | None]:
    """Give the next run of the messages of a set, and the new cursor; it is at `end` when there is none any more.

    Args:
        segments: of the lane.
        out: the positions that may be shown; all of them are there.
        cursor: everything below it was shown.
        end: nothing is shown from this position on.
        rows: how many at most; with 0, or 0 bytes, it only looks whether there are more.
        size: bytes; the last message may be larger than what is left of them.
        work: how much may be looked at in vain.
    """
    at = segments.next_from(segments.index(cursor))
    while at is not None and at[1].first < end:
        index, segment = at
        found = out.run_in(max(cursor, segment.first), min(end - 1, segment.last))
        if found is not None:
            first, last = found
            if rows <= 0 or size <= 0:
                return first, None
            run = _cut(segment, first - segment.first, min(last + 1, first + rows) - segment.first, size)
            return segment.first + run.j, run
        cursor = segment.first + segment.count
        if not work.skip():
            return min(cursor, end), None
        at = segments.next_from(index + 1)
    return end, None
