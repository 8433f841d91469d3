"""What a reader group did: leases, plans, what it read of them, and what it acknowledged."""

from __future__ import annotations

from angarium import wire
from tests.simulation.event_history import FOREVER


class Plan:
    """A range that a group was given."""

    __slots__ = ("acknowledged_at", "end", "got", "lane", "messages", "planned_at", "read_at", "start")

    def __init__(self, lane: int, start: int, end: int, messages: int, at: float) -> None:
        self.lane = lane
        self.start = start
        self.end = end
        #: That are in it, as the node says.
        self.messages = messages
        self.planned_at = at
        #: When all of it was read, once; and (position, what) of each message, in the order in which they came.
        self.read_at: float | None = None
        self.got: list[tuple[int, str]] = []
        #: When it was acknowledged first; the node may have done it from then on.
        self.acknowledged_at = FOREVER

    @property
    def partition(self) -> int:
        """Of the queue."""
        return self.lane & (1 << wire.LANE_BITS) - 1

    def __repr__(self) -> str:
        return f"plan [{self.start}, {self.end}) of lane {self.lane}"


class ReaderRecord:
    """One reader group with one checkpoint."""

    def __init__(self, group: str) -> None:
        self.group = group
        #: Lane -> from when to when it was leased for certain.
        self.leases: dict[int, list[list[float]]] = {}
        #: What it was given, in the order of time.
        self.plans: list[Plan] = []
        #: (time, lane): it was found that the lease had ended by itself.
        self.lost: list[tuple[float, int]] = []
        #: (time, what, code).
        self.refusals: list[tuple[float, str, int]] = []

    def __repr__(self) -> str:
        return f"reader group {self.group!r}"

    def leased(self, lane: int, at: float) -> None:
        """A lane is leased, or still is."""
        spans = self.leases.setdefault(lane, [])
        if not spans or spans[-1][1] < FOREVER:
            spans.append([at, FOREVER])

    def let_go(self, lane: int, at: float) -> None:
        """The lease is about to be released."""
        spans = self.leases.get(lane, [])
        if spans and spans[-1][1] == FOREVER:
            spans[-1][1] = at
