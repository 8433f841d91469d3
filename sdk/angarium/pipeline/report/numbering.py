"""The numbers that one publisher gave its messages, read in the order of arrival: what is missing, what came twice.

A publisher numbers its messages by ones. A **run** is one such numbering from where it began to its highest number. The
rules, each for a number *n* where *high* is the highest of the run so far:

- *n* is above *high*: the run goes on; the numbers passed over are missing until they come;
- *n* is among the last `reorder` numbers below *high* and is missing: it came **out of order**, and is missing no more;
- *n* is there already, with the same content: a **duplicate**;
- *n* is there already with other content, or it lies `reorder` or more below *high*, or more than a tenth of that below
  the first number of the run: the publisher began to number again, a **restart**, and this is the first of a new run;
- *n* is more than that above *high*, or below it, and nearer to the highest number of the run before, and missing
  there: it is a straggler of that run.

So 1 2 4 3 6 has one out of order (3) and one missing (5); 1 2 3 1 2 with new contents has a restart and nothing
missing; 9 10 1 11 2 has a restart, and nothing is missing in either run. What is still missing in the end is counted as
**missing**, and neighbours of it as one **gap**. Numbers before the first of a run that came are not missing: nobody
knows where it began.

Memory is bounded by `reorder`, whatever the number of messages. No I/O, no Spark; `sequences` brings the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Numbers below the highest that are remembered: partitions of a queue and several queues disorder by less than that
#: at 100,000 messages a second and 10 ms.
REORDER: Final = 1000
#: A count of missing numbers stops here: the largest that every reader of JSON gets exactly. Numbers come from
#: strangers, and two of them can be 2^63 apart.
COUNT_MAX: Final = 1 << 53
#: The largest gaps that are kept of a run, so that a report can name them.
GAPS_KEPT: Final = 10


class Gap(NamedTuple):
    """Numbers that never came, all from the first to the last."""

    missing: int
    first: int
    last: int
    #: When the first number above the gap came, in ms since 1970.
    at_ms: int


def gap_of(first: int, last: int, at_ms: int) -> Gap:
    """Give the gap of the numbers from the first to the last."""
    return Gap(min(COUNT_MAX, last - first + 1), first, last, at_ms)


@dataclass
class Run:
    """One numbering of a publisher."""

    first: int
    #: No number of the run is above it.
    high: int
    started_ms: int
    ended_ms: int
    #: Different numbers that came.
    numbered: int = 1
    duplicates: int = 0
    out_of_order: int = 0
    #: Of gaps that can no longer be filled.
    missing: int = 0
    gaps: int = 0
    #: The largest of those gaps, at most `GAPS_KEPT`, the largest last.
    largest: list[Gap] = field(default_factory=list)
    #: Number to content, of those that came and are above `high - reorder`, and perhaps of some older ones.
    seen: dict[int, int] = field(default_factory=dict)
    #: Missing numbers above `high - reorder` as [first, last, at_ms], disjoint and rising.
    holes: list[tuple[int, int, int]] = field(default_factory=list)

    def fits(self, number: int, content: int, reorder: int) -> bool:
        """Tell whether a number belongs to this run, the newest."""
        if number > self.high:
            return True
        if number <= self.high - reorder or number < self.first - reorder // 10:
            return False
        return self.seen.get(number, content) == content

    def takes_straggler(self, number: int, reorder: int) -> bool:
        """Tell whether a number may belong to this run, after which another one began."""
        return self.first <= number and abs(number - self.high) < reorder and number not in self.seen

    def add(self, number: int, content: int, at_ms: int, reorder: int) -> None:
        """Count a number that fits."""
        if number > self.high:
            if number > self.high + 1:
                self.holes.append((self.high + 1, number - 1, at_ms))
            self.high = number
        elif number in self.seen:
            self.duplicates += 1
            return
        elif number < self.first:
            if number + 1 < self.first:
                self.holes.insert(0, (number + 1, self.first - 1, at_ms))
            self.first = number
            self.out_of_order += 1
        else:
            self._fill(number)
            self.out_of_order += 1
        self.numbered += 1
        self.seen[number] = content
        self.ended_ms = max(self.ended_ms, at_ms)
        if len(self.seen) > 2 * reorder or self.holes:
            self._forget(self.high - reorder)

    def close(self) -> None:
        """Take what is missing now as lost."""
        self._forget(self.high)

    def _fill(self, number: int) -> None:
        place = bisect_left(self.holes, number, key=lambda hole: hole[1])
        first, last, at_ms = self.holes[place]
        assert first <= number <= last, "a number that did not come is in a hole"
        rest = ((first, number - 1, at_ms), (number + 1, last, at_ms))
        self.holes[place : place + 1] = [hole for hole in rest if hole[0] <= hole[1]]

    def _forget(self, upto: int) -> None:
        """Give up holes that end at or below a number, and the contents of numbers there."""
        lost = 0
        while lost < len(self.holes) and self.holes[lost][1] <= upto:
            first, last, at_ms = self.holes[lost]
            self._count_gap(gap_of(first, last, at_ms))
            lost += 1
        del self.holes[:lost]
        if len(self.seen) > 2 * (self.high - upto):
            self.seen = {number: content for number, content in self.seen.items() if number > upto}

    def _count_gap(self, gap: Gap) -> None:
        self.missing = min(COUNT_MAX, self.missing + gap.missing)
        self.gaps += 1
        if len(self.largest) < GAPS_KEPT or gap > self.largest[0]:
            self.largest = sorted([*self.largest, gap])[-GAPS_KEPT:]


class Numbering:
    """All numberings of one publisher, in the order in which they began."""

    def __init__(self, reorder: int = REORDER) -> None:
        self.reorder = reorder
        #: Those that can get no more numbers.
        self.closed: list[Run] = []
        #: The newest run, and the one before it for stragglers.
        self.open: list[Run] = []

    def see(self, number: int, content: int, at_ms: int, duplicates: int = 0) -> None:
        """Count a number that came.

        Args:
            number: the publisher's.
            content: tells messages apart that have the same number.
            at_ms: when it came, in ms since 1970; calls are in this order.
            duplicates: so many more like it came, at any time.
        """
        run = self._run_of(number, content)
        if run is None:
            run = Run(number, number, at_ms, at_ms, seen={number: content})
            self.open.append(run)
            if len(self.open) > 2:
                self._close(self.open.pop(0))
        else:
            run.add(number, content, at_ms, self.reorder)
        run.duplicates += duplicates

    def take_closed(self) -> list[Run]:
        """Give the runs that can get no more numbers, and forget them."""
        closed, self.closed = self.closed, []
        return closed

    def close(self) -> list[Run]:
        """Give all runs that were not taken; nothing more comes."""
        while self.open:
            self._close(self.open.pop(0))
        return self.take_closed()

    def _run_of(self, number: int, content: int) -> Run | None:
        if not self.open:
            return None
        newest = self.open[-1]
        if newest.high < number <= newest.high + max(1, self.reorder // 10):
            return newest
        if len(self.open) == 2:
            before = self.open[0]
            nearer = abs(number - before.high) < abs(number - newest.high)
            if nearer and before.takes_straggler(number, self.reorder):
                return before
        return newest if newest.fits(number, content, self.reorder) else None

    def _close(self, run: Run) -> None:
        run.close()
        run.seen.clear()
        self.closed.append(run)

    def to_state(self) -> list[Any]:
        """Give what `from_state` needs to go on later, as plain lists."""
        return [
            self.reorder,
            *([list(vars(run).values()) for run in runs] for runs in (self.closed, self.open)),
        ]

    @classmethod
    def from_state(cls, state: list[Any]) -> Numbering:
        """Go on where `to_state` was called."""
        numbering = cls(state[0])
        numbering.closed, numbering.open = ([_run_from(one) for one in runs] for runs in state[1:])
        return numbering


def _run_from(values: list[Any]) -> Run:
    run = Run(*values)
    run.largest = [Gap(*gap) for gap in run.largest]
    run.holes = [(hole[0], hole[1], hole[2]) for hole in run.holes]
    return run
