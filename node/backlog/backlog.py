"""The messages of a lane: which there are, in which state, and what of it is not on disk yet.

`SegmentList` finds segments by position, a `PositionSet` has some of the positions. `Backlog` changes the states of
runs of rows and keeps the counts right; it decides nothing about flows or times. A run is always `[i, j)` of one
segment, in one state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from node.backlog.segment import (
    GONE,
    HELD,
    MOVING,
    OUT,
    READY,
    REASONS,
    STATES,
    Segment,
)
from node.backlog.time_index import NO_TIMES, TimeIndex

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from angarium_server.frames.settings import LaneSettings

#: Removed segments that may stay in the list before it is rebuilt.
_HOLES_MAX: Final = 64
#: Rows that are compared at once; it bounds the copying where states alternate.
_STEP_ROWS: Final = 512
#: Of the chunks of a `PositionSet`.
_BITS: Final = 10
_SIZE: Final = 1 << _BITS
_LOW: Final = _SIZE - 1
_FULL: Final = (1 << _SIZE) - 1
#: State or verdict -> one byte of it.
_ONE: Final = tuple(bytes((code,)) for code in range(16))

#: What a lane counts since it was made. `<reason>` counts messages that died of it; those that were not
#: moved to a dead message queue are in `<reason>_discarded` too.
COUNTERS: Final = (
    "spooled",
    "spooled_bytes",
    "delivered",
    "redelivered",
    "browsed",
    "accepted",
    "failed",
    "settles_refused",
    "expired",
    "expired_discarded",
    "redeliveries",
    "redeliveries_discarded",
    "rejected",
    "rejected_discarded",
    "selector_examined",
    "selector_matched",
    "selector_discarded",
    "replaced",
    "purged",
    "deleted",
    "unreadable",
)


def run_end(codes: bytearray, i: int, j: int) -> int:
    """Give the end, at most `j`, of the run of equal codes that starts at `i`."""
    one = _ONE[codes[i]]
    while i < j:
        part = codes[i : min(i + _STEP_ROWS, j)]
        rest = len(part.lstrip(one))
        i += len(part) - rest
        if rest:
            break
    return i


def runs_of(codes: bytearray, i: int, j: int) -> Iterator[tuple[int, int, int]]:
    """Give (start, end, code) of each run of equal codes from `i` to before `j`."""
    while i < j:
        code = codes[i]
        end = run_end(codes, i, j)
        yield i, end, code
        i = end


class SegmentList:
    """The segments of a lane by position. Removing one is cheap wherever it is."""

    __slots__ = ("_firsts", "_head", "_segments", "count")

    def __init__(self) -> None:
        #: First positions, rising; also those of removed segments.
        self._firsts: list[int] = []
        #: The segments, None for removed ones.
        self._segments: list[Segment | None] = []
        #: Everything before this index is removed.
        self._head = 0
        #: Segments that are not removed.
        self.count = 0

    def __iter__(self) -> Iterator[Segment]:
        """Give the segments in the order of their positions."""
        return (segment for segment in self._segments[self._head :] if segment is not None)

    def oldest(self) -> Segment | None:
        """Give the first segment."""
        return self._segments[self._head] if self.count else None

    def append(self, segment: Segment) -> None:
        """Add a segment above all others."""
        self._firsts.append(segment.first)
        self._segments.append(segment)
        self.count += 1

    def index(self, position: int) -> int:
        """Give an index for `next_from`: of the segment that holds a position or the next above it."""
        k = bisect_right(self._firsts, position, self._head) - 1
        if k < self._head:
            return self._head
        segment = self._segments[k]
        return k + 1 if segment is None or segment.first + segment.count <= position else k

    def next_from(self, index: int) -> tuple[int, Segment] | None:
        """Give the first segment at an index or after it, and its index; indices change with `remove`."""
        segments = self._segments
        while index < len(segments):
            segment = segments[index]
            if segment is not None:
                return index, segment
            index += 1
        return None

    def find(self, position: int) -> Segment | None:
        """Give the segment that holds a position, None if there is none (any more)."""
        k = bisect_right(self._firsts, position, self._head) - 1
        segment = self._segments[k] if k >= self._head else None
        return segment if segment is not None and position < segment.first + segment.count else None

    def is_in_lower_half(self, position: int) -> bool:
        """Tell whether fewer segments lie below a position than above it, about."""
        return 2 * (self.index(position) - self._head) <= len(self._segments) - self._head

    def below(self, position: int) -> Iterator[Segment]:
        """Give the segments that begin below a position, in order."""
        return (
            one
            for one in self._segments[self._head : self.index(position) + 1]
            if one and one.first < position
        )

    def since(self, position: int) -> Iterator[Segment]:
        """Give the segment that holds a position, and those above it, in order."""
        return (segment for segment in self._segments[self.index(position) :] if segment is not None)

    def first_since(self, wall_ms: int) -> Segment | None:
        """Give the first segment whose last message was spooled at a time or later: by halving, as times rise."""
        low, high = self._head, len(self._segments)
        found: Segment | None = None
        while low < high:
            middle = (low + high) // 2
            at = self.next_from(middle)
            if at is None or at[0] >= high:
                high = middle
            elif at[1].stored_at_ms(at[1].count - 1) >= wall_ms:
                high, found = middle, at[1]
            else:
                low = at[0] + 1
        return found

    def slices(self, first: int, last: int) -> list[tuple[Segment, int, int]]:
        """Give the rows [i, j) of each segment that lie in a range of positions."""
        found: list[tuple[Segment, int, int]] = []
        at = self.next_from(self.index(first))
        while at is not None and at[1].first <= last:
            segment = at[1]
            start = segment.first
            found.append((segment, max(first - start, 0), min(last - start + 1, segment.count)))
            at = self.next_from(at[0] + 1)
        return found

    def remove(self, segment: Segment) -> None:
        """Remove a segment."""
        k = bisect_left(self._firsts, segment.first, self._head)
        segments = self._segments
        assert segments[k] is segment
        segments[k] = None
        self.count -= 1
        if k == self._head:
            while k < len(segments) and segments[k] is None:
                k += 1
            self._head = k
        if len(segments) > 2 * self.count + _HOLES_MAX:
            alive = list(self)
            self._firsts = [one.first for one in alive]
            self._segments = [*alive]
            self._head = 0

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put one segment in the place of neighbours; it has their positions."""
        k = bisect_left(self._firsts, old[0].first, self._head)
        end = bisect_left(self._firsts, old[-1].first, self._head) + 1
        assert [one for one in self._segments[k:end] if one is not None] == old
        self._segments[k:end] = [new]
        self._firsts[k:end] = [new.first]
        self.count += 1 - len(old)

    def clear(self) -> None:
        """Remove everything."""
        self._firsts.clear()
        self._segments.clear()
        self._head = self.count = 0

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert len(self._firsts) == len(self._segments)
        alive = list(self)
        assert self.count == len(alive)
        assert all(one is None for one in self._segments[: self._head])
        assert all(a.last < b.first for a, b in pairwise(alive))
        assert all(
            one is None or one.first == first for first, one in zip(self._firsts, self._segments, strict=True)
        )
        assert self._firsts == sorted(self._firsts)


#: Of everybody who never had messages. It stays empty.
NO_SEGMENTS: Final = SegmentList()


class PositionSet:
    """Positions (0 or more), in rising order; it stays small however scattered they are.

    What a flow has not settled, what became ready again, what waits for its redelivery delay: positions come and
    go in runs, but a consumer may settle every second one, and a range that it names may be absurd. So the set is
    a map from a chunk of 1,024 positions to a bitmap (an int): a run costs one or two operations on ints, and a
    range costs what the set has in it, never its width. A sorted list of runs was rejected: settling every second
    of 1,000,000 messages moves megabytes for each.
    """

    __slots__ = ("_chunks", "_keys", "count")

    def __init__(self) -> None:
        #: Chunk number -> bitmap of the positions in it, never 0.
        self._chunks: dict[int, int] = {}
        #: The chunk numbers, rising.
        self._keys: list[int] = []
        #: Positions in the set.
        self.count = 0

    def __contains__(self, position: int) -> bool:
        """Tell whether a position is in the set."""
        return bool(self._chunks.get(position >> _BITS, 0) >> (position & _LOW) & 1)

    def add(self, first: int, last: int) -> None:
        """Add the positions from `first` to `last`; the work grows with their number."""
        low_chunk, high_chunk = first >> _BITS, last >> _BITS
        if low_chunk == high_chunk:
            self._merge(low_chunk, ((1 << (last - first + 1)) - 1) << (first & _LOW))
            return
        self._merge(low_chunk, _FULL >> (first & _LOW) << (first & _LOW))
        for chunk in range(low_chunk + 1, high_chunk):
            self._merge(chunk, _FULL)
        self._merge(high_chunk, (1 << ((last & _LOW) + 1)) - 1)

    def _merge(self, chunk: int, mask: int) -> None:
        old = self._chunks.get(chunk)
        if old is None:
            keys = self._keys
            if not keys or chunk > keys[-1]:
                keys.append(chunk)
            else:
                insort(keys, chunk)
            self._chunks[chunk] = mask
            self.count += mask.bit_count()
        else:
            self._chunks[chunk] = old | mask
            self.count += (mask & ~old).bit_count()

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove the positions from `first` to `last`; gives the runs of those that were in the set.

        Any range may be given: the work grows with what it removes, not with its width.
        """
        keys = self._keys
        start = bisect_left(keys, first >> _BITS)
        high_chunk = last >> _BITS
        at = start
        removed: list[tuple[int, int]] = []
        kept: list[int] = []
        while at < len(keys) and keys[at] <= high_chunk:
            chunk = keys[at]
            at += 1
            if not self._cut(chunk, first, last, removed):
                kept.append(chunk)
        if at - start > len(kept):
            keys[start:at] = kept
        return removed

    def _cut(self, chunk: int, first: int, last: int, removed: list[tuple[int, int]]) -> bool:
        """Remove a range from one chunk, adding the runs to `removed`; tells whether the chunk is empty now."""
        mask = self._chunks[chunk]
        base = chunk << _BITS
        low = max(first - base, 0)
        high = min(last - base, _LOW)
        hit = mask & ((1 << max(high - low + 1, 0)) - 1) << low
        if not hit:
            return False
        for at, length in _bit_runs(hit):
            run_first, run_last = base + at, base + at + length - 1
            if removed and removed[-1][1] == run_first - 1:
                removed[-1] = (removed[-1][0], run_last)
            else:
                removed.append((run_first, run_last))
        self.count -= hit.bit_count()
        if hit == mask:
            del self._chunks[chunk]
            return True
        self._chunks[chunk] = mask ^ hit
        return False

    def run_in(self, first: int, last: int) -> tuple[int, int] | None:
        """Give the first run of those positions from `first` to `last` that are in the set, whole; None: none is."""
        keys = self._keys
        run: tuple[int, int] | None = None
        for at in range(bisect_left(keys, first >> _BITS), len(keys)):
            base = keys[at] << _BITS
            if base > last or (run is not None and base != run[1] + 1):
                break
            low, high = max(first - base, 0), min(last - base, _LOW)
            mask = self._chunks[keys[at]] & ((1 << (high - low + 1)) - 1) << low
            if not mask:
                if run is not None:
                    break
                continue
            bit, length = next(_bit_runs(mask))
            if run is not None and bit:
                break
            run = (base + bit if run is None else run[0], base + bit + length - 1)
            if bit + length <= _LOW:
                break
        return run

    def first_run(self) -> tuple[int, int] | None:
        """Give the first run of positions, None if the set is empty; a long run may come in pieces."""
        if not self._keys:
            return None
        chunk = self._keys[0]
        at, length = next(_bit_runs(self._chunks[chunk]))
        first = (chunk << _BITS) + at
        return first, first + length - 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Give all runs of positions in rising order; long runs come in pieces."""
        for chunk in self._keys:
            base = chunk << _BITS
            for at, length in _bit_runs(self._chunks[chunk]):
                yield base + at, base + at + length - 1

    def clear(self) -> None:
        """Remove everything."""
        self._chunks.clear()
        self._keys.clear()
        self.count = 0

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert self._keys == sorted(self._chunks)
        assert all(0 < mask <= _FULL for mask in self._chunks.values())
        assert self.count == sum(mask.bit_count() for mask in self._chunks.values())


#: Of everybody who has none of the kind. It stays empty.
NO_POSITIONS: Final = PositionSet()


def _bit_runs(mask: int) -> Iterator[tuple[int, int]]:
    """Give (first bit, length) of each run of set bits of a mask, lowest first."""
    offset = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        offset += skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield offset, length
        mask >>= length
        offset += length


#: Of every lane in which nothing died. It stays empty.
_NONE_DEAD: Final[defaultdict[int, PositionSet]] = defaultdict(PositionSet)


class Backlog:
    """The messages of a lane and their states."""

    __slots__ = (
        "_dead",
        "bytes",
        "changed",
        "counts",
        "discards",
        "in_order",
        "newest",
        "segments",
        "settings",
        "statistics",
        "timers",
    )

    def __init__(self, settings: LaneSettings) -> None:
        self.settings = settings
        #: True while a consumer asks for the order of positions: then neither the priorities nor the delays of messages
        #: count, but the delay of the endpoint, which is the same for all.
        self.in_order = False
        #: All of them have live rows.
        self.segments = NO_SEGMENTS
        #: State -> rows in it; GONE is not counted.
        self.counts = [0] * len(STATES)
        #: Spool size of all rows.
        self.bytes = 0
        #: Segments whose durable state changed, in the order of the first change.
        self.changed: dict[Segment, None] = {}
        #: Reason -> positions of dead rows that `take_dead` has not given yet; made when the first of them die.
        self._dead = _NONE_DEAD
        #: When a segment has to be looked at (wall ms); each is in it at most once, at `Segment.timer`.
        self.timers = NO_TIMES
        #: Of a last-value lane: position of the newest message that was let in; older ones are replaced.
        self.newest = 0
        #: Name -> count, see `COUNTERS`; what never happened is not in it: nothing ever does in most partitions.
        self.statistics: defaultdict[str, int] = defaultdict(int)
        #: Of all lanes of the home: reason -> dead messages that were deleted; None: nobody counts them.
        self.discards: Counter[str] | None = None

    @property
    def messages(self) -> int:
        """Messages that are not gone."""
        return sum(self.counts)

    @property
    def by_priority(self) -> bool:
        """Whether higher priorities go first."""
        return self.settings.by_priority and not self.in_order

    def is_timed(self, segment: Segment) -> bool:
        """Tell whether messages of a segment may expire, or have a delivery delay."""
        settings = self.settings
        if segment.due is not None or settings.delivery_delay_ms > 0:
            return True
        return settings.respect_ttl and bool(settings.max_ttl_s or segment.expires is not None)

    def add(self, segment: Segment) -> None:
        """Take a segment whose positions are above all others."""
        if self.segments is NO_SEGMENTS:
            self.segments = SegmentList()
        self.segments.append(segment)
        self.bytes += segment.live_bytes
        if segment.live == segment.count and segment.dead is None:
            self.counts[READY] += segment.count
            return
        for state in (READY, MOVING):
            self.counts[state] += segment.state.count(state)
        for i, code in enumerate(segment.dead or b""):
            if code and segment.state[i] == MOVING:
                self._dead_of(code).add(segment.first + i, segment.first + i)

    def _dead_of(self, reason: int) -> PositionSet:
        if self._dead is _NONE_DEAD:
            self._dead = defaultdict(PositionSet)
        return self._dead[reason]

    # --- what is there ----------------------------------------------------------------------------------

    @property
    def oldest_stored_ms(self) -> int:
        """Wall ms when the oldest message was spooled, 0 if there is none."""
        segment = self.segments.oldest()
        if segment is None:
            return 0
        if segment.ages is None:
            return segment.stored_ms
        return next(segment.stored_at_ms(i) for i, state in enumerate(segment.state) if state != GONE)

    def segments_from(self, position: int) -> Iterator[Segment]:
        """Give the segments with messages at or above a position, in order; what changes meanwhile is no harm."""
        segments = self.segments
        at = segments.next_from(segments.index(position))
        while at is not None:
            yield at[1]
            at = segments.next_from(segments.index(at[1].first + at[1].count))

    def find(self, position: int) -> tuple[Segment, int] | None:
        """Give the segment and row of a message, None if it is gone or never was."""
        segment = self.segments.find(position)
        if segment is None or segment.state[position - segment.first] == GONE:
            return None
        return segment, position - segment.first

    def stats(self) -> dict[str, int]:
        """Give counts since it was made (`COUNTERS`), and what there is now."""
        counts = self.counts
        return {
            **dict.fromkeys(COUNTERS, 0),
            **self.statistics,
            "messages": self.messages,
            "bytes": self.bytes,
            "ready": counts[READY],
            "unacked": counts[OUT],
            "held": counts[HELD],
            "moving": counts[MOVING],
            "segments": self.segments.count,
            "oldest_stored_ms": self.oldest_stored_ms,
        }

    # --- what changes -----------------------------------------------------------------------------------

    def change(self, segment: Segment, i: int, j: int, was: int, to: int) -> None:
        """Change the state of a run; neither is GONE."""
        rows = j - i
        segment.state[i:j] = _ONE[to] * rows
        self.counts[was] -= rows
        self.counts[to] += rows

    def remove(self, segment: Segment, i: int, j: int, was: int) -> None:
        """Remove a run for good."""
        rows = j - i
        self.counts[was] -= rows
        segment.state[i:j] = bytes(rows)
        size = segment.live_bytes if rows == segment.live else segment.size_of(i, j)
        segment.live -= rows
        segment.live_bytes -= size
        self.bytes -= size
        if was == MOVING and segment.dead is not None:
            self._forget_dead(segment, i, j)
        self.changed[segment] = None
        if not segment.live:
            self.segments.remove(segment)
            self.disarm(segment)

    def arm(self, segment: Segment, at_ms: int) -> None:
        """Have a segment looked at at a time."""
        if self.timers is NO_TIMES:
            self.timers = TimeIndex()
        segment.timer = self.timers.add(at_ms, segment.first, segment.count)

    def disarm(self, segment: Segment) -> None:
        """Take a segment out of the time index."""
        if segment.timer:
            self.timers.discard(segment.timer, segment.first)
            segment.timer = 0

    def _forget_dead(self, segment: Segment, i: int, j: int) -> None:
        """Make dead rows no longer dead, whatever becomes of them."""
        if segment.dead is not None:
            segment.dead[i:j] = bytes(j - i)
            for positions in self._dead.values():
                positions.remove(segment.first + i, segment.first + j - 1)

    def add_tries(self, segment: Segment, i: int, j: int) -> None:
        """Count one more delivery attempt of each row of a run."""
        if segment.tries is None:
            segment.tries = bytearray(segment.count)
        segment.tries[i:j] = segment.tries[i:j].translate(_ONE_MORE)
        self.changed[segment] = None

    def kill(self, segment: Segment, i: int, j: int, was: int, reason: int) -> None:
        """Let a run die: it moves to the dead message queue, or it is removed (R202)."""
        self.statistics[REASONS[reason]] += j - i
        if self.settings.moves_dead and not self.settings.respect_dmq_eligible:
            self._bury(segment, i, j, was, reason)
            return
        eligible = bytearray(j - i)
        if self.settings.moves_dead:
            eligible[:] = bytes(segment.dmq_eligible(row) for row in range(i, j))
        for start, end, moves in list(runs_of(eligible, 0, j - i)):
            if moves:
                self._bury(segment, i + start, i + end, was, reason)
            else:
                self.statistics[f"{REASONS[reason]}_discarded"] += end - start
                if self.discards is not None:
                    self.discards[REASONS[reason]] += end - start
                self.remove(segment, i + start, i + end, was)

    def _bury(self, segment: Segment, i: int, j: int, was: int, reason: int) -> None:
        if segment.dead is None:
            segment.dead = bytearray(segment.count)
        segment.dead[i:j] = _ONE[reason] * (j - i)
        self.change(segment, i, j, was, MOVING)
        self._dead_of(reason).add(segment.first + i, segment.first + j - 1)
        self.changed[segment] = None

    def revive(self, segment: Segment, i: int) -> None:
        """Make a MOVING row HELD, and not dead."""
        if segment.dead is not None and segment.dead[i]:
            self._forget_dead(segment, i, i + 1)
            self.changed[segment] = None
        self.change(segment, i, i + 1, MOVING, HELD)

    def take_dead(self, limit: int) -> list[tuple[Segment, int, str]]:
        """Give dead rows and why they are dead, each once, at most `limit`, in position order per reason."""
        taken: list[tuple[Segment, int, str]] = []
        for reason, positions in self._dead.items():
            while len(taken) < limit and (run := positions.first_run()) is not None:
                first, last = run[0], min(run[1], run[0] + limit - len(taken) - 1)
                positions.remove(first, last)
                for segment, i, j in self.segments.slices(first, last):
                    taken.extend((segment, row, REASONS[reason]) for row in range(i, j))
        return taken

    def has_dead(self) -> bool:
        """Tell whether `take_dead` would give something."""
        return bool(self._dead) and any(positions.count for positions in self._dead.values())

    def replace_older(self, newest: int) -> None:
        """Of a last-value lane: remove what is older than a message that came; what is delivered waits."""
        if newest <= self.newest:
            return
        first, self.newest = self.newest, newest
        # What is older than the one before is out, or was removed when that one came, or `Lifetimes.follow` removes it.
        for segment, start, stop in self.segments.slices(first, newest - 1):
            self._replace(segment, start, stop)

    def replace_in(self, segment: Segment) -> None:
        """Of a last-value lane: remove what of a segment is older than the newest message, as `replace_older` does."""
        self._replace(segment, 0, min(max(self.newest - segment.first, 0), segment.count))

    def _replace(self, segment: Segment, start: int, stop: int) -> None:
        for i, j, state in list(runs_of(segment.state, start, stop)):
            if state in (READY, HELD):
                self.statistics["replaced"] += j - i
                self.remove(segment, i, j, state)

    def purge(self) -> int:
        """Remove everything; gives how many messages that were."""
        messages = self.messages
        for segment in self.segments:
            segment.state[:] = bytes(segment.count)
            segment.live = segment.live_bytes = segment.timer = 0
            self.changed[segment] = None
        self.segments.clear()
        self.timers = NO_TIMES
        self._dead = _NONE_DEAD
        self.counts = [0] * len(STATES)
        self.bytes = 0
        self.statistics["purged"] += messages
        return messages

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put a segment in the place of neighbours with the same messages in the same states."""
        assert new.live == sum(one.live for one in old)
        assert new.live_bytes == sum(one.live_bytes for one in old)
        if any(one in self.changed for one in old):
            self.changed[new] = None
        for one in old:
            assert new.state[one.first - new.first : one.first - new.first + one.count] == one.state
            self.disarm(one)
            self.changed.pop(one, None)
        self.segments.replace(old, new)

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        self.segments.validate()
        self.timers.validate()
        assert not NO_TIMES.count
        assert not NO_SEGMENTS.count
        assert not _NONE_DEAD
        counts = [0] * len(STATES)
        timers = 0
        for segment in self.segments:
            segment.validate()
            assert segment.live
            timers += segment.timer != 0
            for state in (READY, OUT, HELD, MOVING):
                counts[state] += segment.state.count(state)
        assert counts[GONE] == 0
        assert self.counts == counts
        assert self.timers.count == timers
        assert self.bytes == sum(segment.live_bytes for segment in self.segments)
        for reason, positions in self._dead.items():
            positions.validate()
            for first, last in positions.runs():
                for position in range(first, last + 1):
                    segment_of = self.segments.find(position)
                    assert segment_of is not None
                    assert segment_of.dead is not None
                    assert segment_of.dead[position - segment_of.first] == reason


#: A count of attempts -> one more, up to the most that is stored.
_ONE_MORE: Final = bytes(min(tries + 1, 255) for tries in range(256))
