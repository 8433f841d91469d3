"""A lease: what a reader group holds of a lane.

A reader group is one consumer that reads by positions and outlives its sessions and ours: it *plans* ranges, reads
them as often as it likes, and acknowledges them. What is planned is OUT, like what a consumer has got, so it neither
expires, moves nor is replaced. Only the ranges are stored: after a restart what is live in them is OUT again.

No I/O, no clock; `node.endpoints.leasing` uses it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from angarium import errors
from node.backlog.backlog import PositionSet

#: Ranges that a group may have planned and not acknowledged; who plans where it stopped has one.
RANGES_MAX: Final = 1_000


class LeaseRow(NamedTuple):
    """What is durable of a lease."""

    group: str
    #: Differs from that of every other lease of the lane.
    epoch: int
    #: It ends when nobody has asked for anything for so long.
    lease_ms: int
    #: The group has acknowledged everything below this position; 0: nothing yet.
    acknowledged: int
    #: Planned messages that somebody else deleted.
    lost: int
    #: What is planned and not acknowledged: (first position, first one behind it), rising, apart.
    ranges: list[tuple[int, int]]


class Lease:
    """A lease that is in force."""

    __slots__ = ("acknowledged", "epoch", "group", "lease_s", "lost", "out", "ranges", "used_at")

    def __init__(self, row: LeaseRow, now: float) -> None:
        self.group: Final = row.group
        self.epoch: Final = row.epoch
        self.lease_s = row.lease_ms / 1000
        self.acknowledged = row.acknowledged
        self.lost = row.lost
        #: Rising, apart from each other, at most `RANGES_MAX`.
        self.ranges = [(first, end) for first, end in row.ranges]
        #: The messages in the ranges that are OUT: all that were there when they were planned, and are there still.
        self.out = PositionSet()
        #: When the group asked for something last, in monotonic s.
        self.used_at = now

    @property
    def planned(self) -> int:
        """The end of what was ever planned: everything from here on is free."""
        return max(self.ranges[-1][1] if self.ranges else 0, self.acknowledged)

    def has_all(self, first: int, last: int) -> bool:
        """Tell whether everything from a position to another one is OUT at the group."""
        return self.out.run_in(first, last) == (first, last)

    def row(self) -> LeaseRow:
        """Give what is to be durable."""
        return LeaseRow(
            self.group,
            self.epoch,
            round(self.lease_s * 1000),
            self.acknowledged,
            self.lost,
            list(self.ranges),
        )

    def extend(self, first: int, end: int) -> None:
        """Add a range to what is planned.

        Raises:
            InvalidRequestError: it would be one range too many (40018).
        """
        if first >= end:
            return
        joined: list[tuple[int, int]] = []
        for one in sorted([*self.ranges, (first, end)]):
            if joined and one[0] <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], one[1]))
            else:
                joined.append(one)
        if len(joined) > RANGES_MAX:
            detail = f"{len(joined)} ranges apart from each other are planned, {RANGES_MAX} are possible"
            raise errors.invalid(detail)
        self.ranges = joined

    def cut(self, end: int) -> None:
        """Take note that everything planned below a position is acknowledged."""
        self.acknowledged = max(self.acknowledged, min(end, self.planned))
        self.ranges = [(max(first, end), stop) for first, stop in self.ranges if stop > end]

    def check_range(self, group: str, first: int, end: int) -> None:
        """Return if a range may be read.

        Raises:
            ConflictError: another group has the lease (40906).
            InvalidRequestError: not all of it is planned, or some of it is acknowledged (40018).
        """
        if group != self.group:
            raise errors.error_for(errors.LEASE_LOST, f"reader group {self.group!r} has it")
        if first == end and self.acknowledged <= first <= self.planned:
            return
        if any(start <= first < end <= stop for start, stop in self.ranges):
            return
        detail = (
            f"positions from {first} to before {end}: acknowledged are those before {self.acknowledged}, "
        )
        raise errors.invalid(f"{detail}planned those before {self.planned}")

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        self.out.validate()
        assert all(first < end for first, end in self.ranges)
        assert all(one[1] < other[0] for one, other in pairwise(self.ranges))
        assert len(self.ranges) <= RANGES_MAX
        assert not self.ranges or self.ranges[0][0] >= self.acknowledged
        for first, last in self.out.runs():
            assert any(start <= first <= last < end for start, end in self.ranges)
