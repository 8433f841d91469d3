"""When messages of a lane may be delivered and when they expire.

Three times, one index: a message expires at the smaller of its own time to live and the
endpoint's (R198 to R203); it may not be delivered before the later of its own delay and the endpoint's; after a
failed delivery it may wait for its redelivery delay. The first two are wall times, because they outlive a
restart; the third is not stored and counts on the monotonic clock.

The times of an endpoint are applied here and not stored with the message, so a changed setting also counts for
messages that are spooled. They follow it in steps, and nothing expires, becomes due or goes out meanwhile, by the times
of before (`is_behind`). So they do if the endpoint is to keep the last value alone from then on: all but the newest go.
An expired message that is out stays out: if it comes back it is dead.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

from node.backlog.backlog import NO_POSITIONS, PositionSet, runs_of
from node.backlog.segment import EXPIRED, HELD, POSITION_MAX, READY, TIME_MAX_MS, Segment
from node.backlog.time_index import NO_TIMES, Schedule, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from angarium_server.frames.settings import LaneSettings
    from node.backlog.backlog import Backlog

#: Segments, and runs of delayed messages, that are served in one call of `run`.
SERVED_MAX: Final = 256
#: What it costs to give a segment, and each message of it, other times, in steps of `Effort`; and to let a message
#: expire, or become ready.
SEGMENT_STEPS: Final = 10_000
ROW_STEPS: Final = 250
DUE_STEPS: Final = 1_000
#: Messages of a segment that are served at once.
SERVED_ROWS_MAX: Final = 1_000
#: What settings say of all messages that are there; a redelivery delay begins when it is needed.
_said_of_all: Final = attrgetter("respect_ttl", "max_ttl_s", "delivery_delay_ms", "last_value")


class Effort(Protocol):
    """What is looked at in it; `node.endpoints.effort` has one."""

    left: int

    def toil(self, steps: int) -> None:
        """Take off what something cost."""


class Lifetimes:
    """Expiry and delays of the messages of a backlog."""

    __slots__ = (
        "_backlog",
        "_delayed",
        "_effort",
        "_follow_from",
        "_on_ready",
        "_only_held",
        "_until",
        "delays",
        "filtered_upto",
        "is_behind",
        "is_short",
    )

    def __init__(
        self, backlog: Backlog, on_ready: Callable[[Segment, int, int], None], effort: Effort
    ) -> None:
        """Make the times of a backlog.

        Args:
            backlog: the messages.
            on_ready: is told each run that became ready after it was held.
            effort: pays for what follows a change.
        """
        self._backlog = backlog
        self._on_ready = on_ready
        self._effort = effort
        #: Whether there are messages whose times are still those before a change: at this position or above it, and
        #: perhaps only such that are held.
        self.is_behind = False
        self._follow_from = 0
        self._only_held = True
        #: Whether `run` left something that is due because there was no effort for it.
        self.is_short = False
        #: Messages above this position were not seen by the topic endpoint's selector yet: they stay held.
        self.filtered_upto = POSITION_MAX
        #: HELD messages that wait for their redelivery delay; also some that were removed meanwhile.
        self._delayed = NO_POSITIONS
        #: When redelivery delays end, in monotonic ms; also some of messages that were let go sooner.
        self.delays = NO_TIMES
        #: While there may be such: position -> when the delay of a message ends that began since. None: there is none.
        self._until: dict[int, int] | None = None

    def expires_ms(self, segment: Segment, i: int) -> int:
        """Give the wall ms at which a message expires, 0 for never."""
        settings = self._backlog.settings
        if not settings.respect_ttl:
            return 0
        own = segment.expires[i] if segment.expires is not None else 0
        if not settings.max_ttl_s:
            return own
        longest = min(segment.stored_at_ms(i) + settings.max_ttl_s * 1000, TIME_MAX_MS)
        return min(own, longest) if own else longest

    def due_ms(self, segment: Segment, i: int) -> int:
        """Give the wall ms before which a message may not be delivered, 0 if there is no such time."""
        own = segment.due[i] if segment.due is not None and not self._backlog.in_order else 0
        delay_ms = self._backlog.settings.delivery_delay_ms
        return max(own, segment.stored_at_ms(i) + delay_ms) if delay_ms else own

    def has_expiry(self, segment: Segment) -> bool:
        """Tell whether a message of a segment may expire at all."""
        settings = self._backlog.settings
        return settings.respect_ttl and bool(settings.max_ttl_s or segment.expires is not None)

    def has_delay(self, segment: Segment) -> bool:
        """Tell whether a message of a segment may have a delivery delay."""
        return segment.due is not None or self._backlog.settings.delivery_delay_ms > 0

    def admit(self, segment: Segment, wall_ms: int) -> None:
        """Hold what is not due yet of the ready rows of a segment that came, and watch its times."""
        if self.has_delay(segment):
            self.hold_undue(segment, 0, segment.count, wall_ms)
        self.watch(segment)

    def hold_undue(self, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        """Hold the ready rows from `i` to before `j` that may not be delivered yet."""
        pairs = zip(segment.state[i:j], self._dues(segment)[i:j], strict=True)
        late = bytearray(state == READY and due_ms > wall_ms for state, due_ms in pairs)
        for start, end, held in runs_of(late, 0, j - i):
            if held:
                self._backlog.change(segment, i + start, i + end, READY, HELD)

    def watch(self, segment: Segment) -> None:
        """Put a segment into the time index, with the times that the settings give it now."""
        self._backlog.disarm(segment)
        segment.expiry = segment.delay = None
        if self.has_expiry(segment):
            segment.expiry = Schedule(self._ends(segment))
        if self.has_delay(segment):
            segment.delay = Schedule(self._dues(segment))
        self._arm(segment)

    def _ends(self, segment: Segment) -> Sequence[int]:
        """Give `expires_ms` of every row, for most segments without asking row by row; messages may expire."""
        longest_ms = self._backlog.settings.max_ttl_s * 1000
        if segment.expires is not None:
            return (
                [self.expires_ms(segment, i) for i in range(segment.count)] if longest_ms else segment.expires
            )
        return [min(ms, TIME_MAX_MS) for ms in _since_stored(segment, longest_ms)]

    def _dues(self, segment: Segment) -> Sequence[int]:
        """Give `due_ms` of every row, for most segments without asking row by row."""
        delay_ms = self._backlog.settings.delivery_delay_ms
        if segment.due is None or self._backlog.in_order:
            return _since_stored(segment, delay_ms) if delay_ms else [0] * segment.count
        return [self.due_ms(segment, i) for i in range(segment.count)] if delay_ms else segment.due

    def apply_settings(self, before: LaneSettings, wall_ms: int) -> None:
        """Follow settings; mostly they say of all messages what those before said."""
        if _said_of_all(before) == _said_of_all(self._backlog.settings):
            self.follow_held(wall_ms)
            return
        self._only_held = False
        self._begin_to_follow(wall_ms)

    def follow_held(self, wall_ms: int) -> None:
        """Follow what changes for messages that are held, as `Backlog.in_order` does, and for no others.

        Any client may ask for the order, and of millions of messages few are held.
        """
        if self._backlog.counts[HELD] or self.is_behind:
            self._begin_to_follow(wall_ms)

    def _begin_to_follow(self, wall_ms: int) -> None:
        self.is_behind, self._follow_from = True, 0
        self.follow(wall_ms)

    def follow(self, wall_ms: int) -> None:
        """Go on with what a change means for messages that are there, as far as there is effort."""
        for segment in self._backlog.segments_from(self._follow_from):
            if self._effort.left <= 0:
                return
            self._follow_from = segment.last + 1
            self._effort.toil(SEGMENT_STEPS)
            if not self._only_held or HELD in segment.state:
                self._effort.toil(ROW_STEPS * segment.count)
                self._follow(segment, wall_ms)
        self.is_behind, self._only_held = False, True

    def _follow(self, segment: Segment, wall_ms: int) -> None:
        if self._backlog.settings.last_value:
            self._backlog.replace_in(segment)
            if not segment.live:
                return
        self.watch(segment)
        if HELD in segment.state:
            for i, j in _spans([i for i, due_ms in enumerate(self._dues(segment)) if due_ms <= wall_ms]):
                self._release(segment, i, j)

    def _arm(self, segment: Segment) -> None:
        """Have a segment looked at when the next of its rows expires or is due."""
        at_ms = 0
        if segment.expiry is not None and (row := segment.expiry.next_row()) >= 0:
            at_ms = self.expires_ms(segment, row)
        if segment.delay is not None and (row := segment.delay.next_row()) >= 0:
            due_ms = self.due_ms(segment, row)
            at_ms = min(at_ms, due_ms) if at_ms else due_ms
        if at_ms:
            self._backlog.arm(segment, at_ms)

    def expired(self, segment: Segment, i: int, j: int, wall_ms: int) -> bytearray | None:
        """Tell of each row from `i` to before `j` whether its time is over; None: of none.

        What was passed by while it was out comes back with this, and expires later if the clock was set back since.
        """
        if not self.has_expiry(segment):
            return None
        if segment.expiry is not None and segment.expiry.is_ahead(partial(self.expires_ms, segment), wall_ms):
            self.watch(segment)
        flags = bytearray(0 < self.expires_ms(segment, row) <= wall_ms for row in range(i, j))
        return flags if any(flags) else None

    def delay(self, segment: Segment, i: int, j: int, until_ms: int) -> None:
        """Make a run that is OUT or READY no longer wait there but be held until a monotonic time."""
        if self.delays is NO_TIMES:
            self._delayed, self.delays = PositionSet(), TimeIndex()
        first = segment.first + i
        self._delayed.add(first, first + j - i - 1)
        self.delays.add(until_ms, first, j - i)
        if self._until is not None:
            self._until.update(dict.fromkeys(range(first, first + j - i), until_ms))

    def forget_delay(self, segment: Segment, i: int, j: int) -> None:
        """Take note that a run that was HELD is not any more."""
        if self._delayed.count and self._delayed.remove(segment.first + i, segment.first + j - 1):
            self._until = self._until or {}

    def run(self, now_ms: int, wall_ms: int) -> bool:
        """Expire what expired and make ready what is due; tells whether more is due, or may be, than one call does."""
        if self.is_behind:
            return True
        timers, delays = self._backlog.timers, self.delays
        for first, _ in self._take_due(timers, wall_ms):
            segment = self._backlog.segments.find(first)
            assert segment is not None
            segment.timer = 0
            self._effort.toil(SEGMENT_STEPS + DUE_STEPS * self._serve(segment, wall_ms))
        for first, count in self._take_due(delays, now_ms):
            self._effort.toil(DUE_STEPS * count)
            for i, j in self._over(range(first, first + count), now_ms):
                self._end_delay(i, j - 1)
        if not delays.count:
            self._until = None
        is_more_due = self._is_due(timers, wall_ms) or self._is_due(delays, now_ms)
        self.is_short = is_more_due and self._effort.left <= 0
        return is_more_due

    def _take_due(self, index: TimeIndex, now_ms: int) -> Iterator[tuple[int, int]]:
        """Take runs that are due, as far as there is effort."""
        for _ in range(SERVED_MAX):
            taken = index.take(now_ms, 1) if index.count and self._effort.left > 0 else ()
            if not taken:
                return
            yield taken[0]

    @staticmethod
    def _is_due(index: TimeIndex, now_ms: int) -> bool:
        next_ms = index.next_ms() if index.count else None
        return next_ms is not None and next_ms <= now_ms

    def _serve(self, segment: Segment, wall_ms: int) -> int:
        """Let rows of a segment expire, or go, whose time has come; gives how many were looked at."""
        served = 0
        if segment.expiry is not None:
            rows = segment.expiry.take(partial(self.expires_ms, segment), wall_ms, SERVED_ROWS_MAX)
            served += len(rows)
            for i, j in _spans(rows):
                self._expire(segment, i, j)
        if segment.delay is not None and segment.live:
            rows = segment.delay.take(partial(self.due_ms, segment), wall_ms, SERVED_ROWS_MAX)
            served += len(rows)
            for i, j in _spans(rows):
                self._release(segment, i, j)
        if segment.live:
            self._arm(segment)
        return served

    def _expire(self, segment: Segment, i: int, j: int) -> None:
        for start, end, state in list(runs_of(segment.state, i, j)):
            if state in (READY, HELD):
                self.forget_delay(segment, start, end)
                self._backlog.kill(segment, start, end, state, EXPIRED)

    def _release(self, segment: Segment, i: int, j: int) -> None:
        """Make ready what is held in a range of rows only for a delivery delay that is over."""
        j = min(j, self.filtered_upto - segment.first + 1)
        for start, end, state in list(runs_of(segment.state, i, max(i, j))):
            if state != HELD:
                continue
            waiting = bytearray(end - start)
            if (
                self._backlog.in_order
            ):  # what a consumer before failed waits no longer than what it did not get
                self.forget_delay(segment, start, end)
            elif self._delayed.count:
                waiting[:] = bytes(segment.first + row in self._delayed for row in range(start, end))
            for a, b, waits in runs_of(waiting, 0, end - start):
                if not waits:
                    self._make_ready(segment, start + a, start + b)

    def _over(self, positions: range, now_ms: int) -> list[tuple[int, int]]:
        """Give the runs [i, j) of those whose delay is over: others were let go, and wait anew."""
        if self._until is None:
            return [(positions.start, positions.stop)]
        until = self._until
        over = [position for position in positions if until.get(position, 0) <= now_ms]
        for position in over:
            until.pop(position, None)
        return _spans(over)

    def _end_delay(self, first: int, last: int) -> None:
        for run_first, run_last in self._delayed.remove(first, last):
            for segment, i, j in self._backlog.segments.slices(run_first, run_last):
                for start, end, state in list(runs_of(segment.state, i, j)):
                    if state == HELD:
                        self._make_ready(segment, start, end)

    def _make_ready(self, segment: Segment, i: int, j: int) -> None:
        self._backlog.change(segment, i, j, HELD, READY)
        self._on_ready(segment, i, j)

    def clear(self) -> None:
        """Forget all delays; the backlog was purged."""
        self._delayed, self.delays, self._until = NO_POSITIONS, NO_TIMES, None
        self.is_behind, self._only_held = False, True

    def validate(self) -> None:
        """Check the structures."""
        self._delayed.validate()
        self.delays.validate()
        assert not NO_POSITIONS.count
        assert self._until is None or self.delays.count


def _since_stored(segment: Segment, ms: int) -> list[int]:
    """Give for every row the wall ms so long after it was spooled."""
    at_ms = segment.stored_ms + ms
    return [at_ms] * segment.count if segment.ages is None else [at_ms + age for age in segment.ages]


def _spans(rows: list[int]) -> list[tuple[int, int]]:
    """Give the runs [i, j) of neighbours in a list of rows, in the order of the list."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and spans[-1][1] == row:
            spans[-1] = (spans[-1][0], row + 1)
        else:
            spans.append((row, row + 1))
    return spans
