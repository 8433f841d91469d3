"""The lease of a lane: taken, planned with, acknowledged, ended.

While a lane is leased its consumers stand by. What they had out they may settle for `GRACE_S`; then it is taken back,
and their settles are refused as for a partition that went to another. The backlog is in order meanwhile: a plan goes
by rising positions, and ends before the first message that may not be delivered yet or that may come back.

A call costs what it plans or acknowledges; `measure` and `find_time` look at segments, never at each row.
No I/O, no clock; `node.endpoints.lane` has one of these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from node.backlog.backlog import runs_of
from node.backlog.segment import GONE, MOVING, OUT, READY, Segment
from node.endpoints.lease import Lease, LeaseRow

if TYPE_CHECKING:
    from angarium_server.frames.homes import FlowEvent
    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.endpoints.consumers import Consumers
    from node.endpoints.flow import Outcomes

#: Consumers may settle what they had out for so long after the lane was leased.
GRACE_S: Final = 5.0


class Planned(NamedTuple):
    """A planned range, and what is in it: messages and their spool bytes."""

    start: int
    end: int
    messages: int
    bytes: int


class Leasing:
    """Zero or one lease of a lane, and what it does to messages and consumers."""

    __slots__ = (
        "_backlog",
        "_consumers",
        "_lifetimes",
        "_look_at",
        "_outcomes",
        "grace_until",
        "is_changed",
        "timed_out",
    )

    def __init__(
        self,
        backlog: Backlog,
        consumers: Consumers,
        lifetimes: Lifetimes,
        outcomes: Outcomes,
    ) -> None:
        self._backlog = backlog
        self._consumers = consumers
        self._lifetimes = lifetimes
        self._outcomes = outcomes
        #: When to look whether the lease was used, in monotonic s; not later than it may end.
        self._look_at = 0.0
        #: When what consumers have out is taken back, in monotonic s; None: it is, or there is no lease.
        self.grace_until: float | None = None
        #: Whether the row on disk is another one, without anybody waiting for that.
        self.is_changed = False
        #: The group whose lease ended because nobody used it, until somebody takes note.
        self.timed_out: str | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease that is in force."""
        return self._consumers.lease

    @property
    def group(self) -> str | None:
        """The reader group that has the lease; None: none has."""
        return self.lease.group if self.lease is not None else None

    def demand(self, group: str, epoch: int, now: float) -> Lease:
        """Give the lease of a group, which uses it.

        Raises:
            ConflictError: it does not have it, or not this one (40906).
        """
        lease = self.lease
        if lease is None or lease.group != group or (epoch and lease.epoch != epoch):
            who = "nobody" if lease is None else f"reader group {lease.group!r}"
            raise errors.error_for(errors.LEASE_LOST, f"{who} has it now")
        lease.used_at = max(lease.used_at, now)
        return lease

    def note_use(self, now: float) -> None:
        """Take note that the group reads."""
        if self.lease is not None and self._consumers.is_read:
            self.lease.used_at = max(self.lease.used_at, now)

    def hold(self, now: float) -> None:
        """Take note that the group cannot use it now, and does not lose it because of that."""
        if self.lease is not None:
            self.lease.used_at = max(self.lease.used_at, now)

    # --- begin and end ----------------------------------------------------------------------------------

    def take(self, group: str, lease_ms: int, now: float, wall_ms: int) -> tuple[bool, list[FlowEvent]]:
        """Give the lane to a group; tells whether it had it before, and what that means for flows.

        Raises:
            ConflictError: another group has it (40905).
        """
        lease = self.lease
        if lease is not None and lease.group != group:
            raise errors.error_for(errors.ENDPOINT_LEASED, f"reader group {lease.group!r} has it")
        if lease is not None:
            lease.lease_s, lease.used_at = lease_ms / 1000, max(lease.used_at, now)
            self._look_at = min(self._look_at, now + lease.lease_s)
            return True, []
        self.timed_out = None
        self.grace_until = now + GRACE_S
        return False, self._begin(Lease(LeaseRow(group, wall_ms, lease_ms, 0, 0, []), now), wall_ms)

    def load(self, row: LeaseRow, now: float) -> list[FlowEvent]:
        """Go on with a lease that was there before; the messages come afterwards, and flows may be here."""
        return self._begin(Lease(row, now), 0)

    def _begin(self, lease: Lease, wall_ms: int) -> list[FlowEvent]:
        self._look_at = lease.used_at + lease.lease_s
        return [*self._consumers.stand_by(lease), *self.follow_consumers(wall_ms)]

    def follow_consumers(self, wall_ms: int) -> list[FlowEvent]:
        """Hand out by position if a consumer or a lease asks for it, else as the settings say."""
        in_order = self._consumers.wants_order() or self.lease is not None
        if in_order == self._backlog.in_order:
            return []
        self._backlog.in_order = in_order
        self._lifetimes.follow_held(wall_ms)
        return self._consumers.apply_settings()

    def claim(self, segment: Segment) -> None:
        """Make OUT what is planned of a segment that was loaded."""
        lease = self.lease
        assert lease is not None
        ranges = lease.ranges
        # From the first one that ends in the segment or behind it.
        for first, end in islice(ranges, bisect_right(ranges, segment.first, key=_end_of), None):
            if first > segment.last:
                break
            start, stop = max(first - segment.first, 0), min(end - segment.first, segment.count)
            self._put_out(lease, segment, start, stop)

    def end(self, wall_ms: int) -> list[FlowEvent]:
        """End the lease: what is planned and not acknowledged is ready again, and counts as tried."""
        lease = self.lease
        if lease is None:
            return []
        events = self._consumers.go_on()
        self.grace_until = None
        self._outcomes.take_back(lease.out, wall_ms)
        return [*events, *self.follow_consumers(wall_ms)]

    def drop(self, wall_ms: int) -> list[FlowEvent]:
        """End the lease of a lane that starts over."""
        self.is_changed |= self.lease is not None
        return self.end(wall_ms)

    # --- plan and acknowledge ---------------------------------------------------------------------------

    def plan(
        self, start: int, upto: int, messages: int, size: int, now_ms: int, wall_ms: int
    ) -> Planned | None:
        """Give the range that the group has from now on: one message at least, if the first one may be had.

        None: some have expired that did not go yet, or are due; it is to be asked again.

        Args:
            start: the first position.
            upto: the range ends before this position, at most that behind the newest message.
            messages: that are in it at most, 1 or more.
            size: spool bytes, 1 or more; the last message may be larger than what is left of them.
            now_ms: monotonic time.
            wall_ms: wall time.

        Raises:
            InvalidRequestError: it would be one range too many (40018).
        """
        lease = self.lease
        assert lease is not None
        if self._lifetimes.run(now_ms, wall_ms):
            return None
        start = max(start, lease.acknowledged)
        end, runs = self._look_ahead(lease, start, upto, messages, size)
        lease.extend(start, end)
        for segment, i, j in runs:
            self._put_out(lease, segment, i, j)
        taken = sum(j - i for _, i, j in runs)
        return Planned(start, end, taken, sum(_size_of(segment, i, j) for segment, i, j in runs))

    def _look_ahead(
        self, lease: Lease, start: int, upto: int, messages: int, size: int
    ) -> tuple[int, list[tuple[Segment, int, int]]]:
        """Give where a plan ends, and the runs that are in it: READY ones, and those that are planned already."""
        segments = self._backlog.segments
        taken: list[tuple[Segment, int, int]] = []
        at = segments.next_from(segments.index(start))
        while at is not None and at[1].first < upto:
            index, segment = at
            first = segment.first
            for i, j, state in runs_of(
                segment.state, max(start - first, 0), min(upto - first, segment.count)
            ):
                if state == GONE or (state == MOVING and _is_dead(segment, i, j)):
                    continue
                if state != READY and not (state == OUT and lease.has_all(first + i, first + j - 1)):
                    return first + i, taken
                rows, cost = _cut(segment, i, j, messages, size)
                taken.append((segment, i, i + rows))
                messages, size = messages - rows, size - cost
                if i + rows < j or messages <= 0 or size <= 0:
                    return first + i + rows, taken
            at = segments.next_from(index + 1)
        return max(start, upto), taken

    def _put_out(self, lease: Lease, segment: Segment, i: int, j: int) -> None:
        for start, stop, state in list(runs_of(segment.state, i, j)):
            if state == READY:
                self._backlog.change(segment, start, stop, READY, OUT)
                lease.out.add(segment.first + start, segment.first + stop - 1)

    def acknowledge(self, end: int) -> int:
        """Delete what is planned below a position; gives how many messages those were."""
        lease = self.lease
        assert lease is not None
        before = lease.out.count
        for first, last in lease.out.remove(0, end - 1):
            for segment, i, j in self._backlog.segments.slices(first, last):
                self._outcomes.accept(segment, i, j, OUT)
        lease.cut(end)
        return before - lease.out.count

    # --- what others do to its messages -----------------------------------------------------------------

    def forget(self, position: int) -> None:
        """Take note that somebody takes a message that is OUT."""
        lease = self.lease
        if lease is not None and lease.out.remove(position, position):
            lease.lost += 1
            self.is_changed = True

    def purge(self) -> None:
        """Take note that everything is deleted."""
        lease = self.lease
        if lease is not None and lease.out.count:
            lease.lost += lease.out.count
            lease.out.clear()
            self.is_changed = True

    # --- figures ----------------------------------------------------------------------------------------

    def positions(self, next_position: int) -> dict[str, int]:
        """Give what the group may want to know: positions, and what is there."""
        lease = self.lease
        segment = self._backlog.segments.oldest()
        oldest = next_position if segment is None else segment.first + _first_live(segment)
        return {
            "oldest": oldest,
            "next": next_position,
            "acknowledged": 0 if lease is None else lease.acknowledged,
            "planned": 0 if lease is None else lease.planned,
            "lost": 0 if lease is None else lease.lost,
            "messages": self._backlog.messages,
            "bytes": self._backlog.bytes,
        }

    def measure(self, start: int) -> tuple[int, int]:
        """Give how many messages there are at a position and above it, and their spool bytes."""
        segments = self._backlog.segments
        if segments.is_in_lower_half(start):
            below = [_live(one, 0, start - one.first) for one in segments.below(start)]
            messages, size = self._backlog.messages, self._backlog.bytes
            return messages - sum(one[0] for one in below), size - sum(one[1] for one in below)
        above = [_live(one, max(start - one.first, 0), one.count) for one in segments.since(start)]
        return sum(one[0] for one in above), sum(one[1] for one in above)

    def find_time(self, wall_ms: int) -> int | None:
        """Give the first position that was spooled at a time or later, as far as messages are here; None: none was."""
        segment = self._backlog.segments.first_since(wall_ms)
        if segment is None:
            return None
        rows = range(segment.count)
        return segment.first + next(i for i in rows if segment.stored_at_ms(i) >= wall_ms)

    # --- time -------------------------------------------------------------------------------------------

    def tick(self, now: float, wall_ms: int) -> list[FlowEvent]:
        """Take back what consumers have out when their time is over; end a lease that nobody uses."""
        lease = self.lease
        if lease is None:
            return []
        if self.grace_until is not None and self.grace_until <= now:
            self.grace_until = None
            for flow in self._consumers.consuming():
                self._outcomes.take_back(flow.out, wall_ms)
                self._consumers.wake(flow)
        if self._look_at > now:
            return []
        self._look_at = lease.used_at + lease.lease_s
        if self._look_at > now:
            return []
        self.timed_out, self.is_changed = lease.group, True
        return self.end(wall_ms)

    def next_due(self) -> float:
        """Give when `tick` has something to do while there is a lease, in monotonic s."""
        return self._look_at if self.grace_until is None else min(self._look_at, self.grace_until)

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        lease = self.lease
        assert lease is not None or self.grace_until is None
        if lease is not None:
            lease.validate()
            assert self._look_at <= lease.used_at + lease.lease_s


def _end_of(planned: tuple[int, int]) -> int:
    return planned[1]


def _is_dead(segment: Segment, i: int, j: int) -> bool:
    return segment.dead is not None and all(segment.dead[i:j])


def _size_of(segment: Segment, i: int, j: int) -> int:
    return segment.live_bytes if j - i == segment.live else segment.size_of(i, j)


def _cut(segment: Segment, i: int, j: int, messages: int, size: int) -> tuple[int, int]:
    """Give how many rows of a run fit, one at least, and their spool bytes."""
    rows = min(j - i, messages)
    cost = _size_of(segment, i, i + rows)
    if cost <= size:
        return rows, cost
    totals = list(accumulate(segment.sizes[i : i + rows]))
    rows = bisect_left(totals, size) + 1
    return rows, totals[rows - 1]


def _first_live(segment: Segment) -> int:
    return next(i for i, state in enumerate(segment.state) if state != GONE)


def _live(segment: Segment, i: int, j: int) -> tuple[int, int]:
    """Give how many messages there are in a range of rows, and their spool bytes."""
    i, j = max(i, 0), min(j, segment.count)
    if j - i == segment.count:
        return segment.live, segment.live_bytes
    rows = range(i, max(i, j))
    sizes = [segment.sizes[row] for row in rows if segment.state[row] != GONE]
    return len(sizes), sum(sizes)
