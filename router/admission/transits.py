"""Messages that move from one endpoint to another: in both for a moment, and counted once.

When a MOVE is admitted it is certain that the source deletes what was not refused. So from then on these rows count
where they go to, and no more where they are; else a node that is full of dead messages could not move them to the dead
message queue, or would show more than its limit.

    asked       nothing is changed
    judged      the target is charged, and as much is taken off the sums that source and target are in: those of the
                node and of the Message VPN; if a partition gives its messages to the others, that of the endpoint too
    told        the source tells with its figures how much of what it asked for is still in them
    over        the figures of the source are without it, and nothing is taken off any more

A source may lose such messages otherwise, by a purge: what is taken off is then what it still has, less all that was
refused, because nobody knows which it has. Rather too much is counted than too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Pool(Protocol):
    """A sum over endpoints; `router.admission.usage.Pool` is one."""

    bytes: int


class Account(Protocol):
    """What one endpoint has; `router.admission.usage.Account` is one."""

    messages: int
    bytes: int


class Amount(NamedTuple):
    """How much of a MOVE."""

    messages: int
    #: Spool bytes.
    bytes: int


NOTHING = Amount(0, 0)


class Transit:
    """The rows of one MOVE."""

    __slots__ = ("_all", "_pools", "_still", "first", "off", "refused", "source", "target")

    def __init__(self, first: int, rows: Amount) -> None:
        #: The first of its sequences, which names it among the moves of its lane.
        self.first = first
        self._all = rows
        #: What of it is in the figures of the source.
        self._still = rows
        self.refused = NOTHING
        #: None until it was judged.
        self.source: Account | None = None
        self.target: Account | None = None
        #: The sums that both are in, and what is taken off each of them now.
        self._pools: Sequence[Pool] = ()
        self.off = NOTHING

    @property
    def is_whole(self) -> bool:
        """Tell whether all of it is at the source, so that the move adds nothing."""
        return self._still == self._all

    def judged(self, source: Account, target: Account, pools: Sequence[Pool], refused: Amount) -> None:
        """The target takes what was not refused."""
        self.end()
        self.source, self.target, self._pools, self.refused = source, target, pools, refused
        self._take_off()

    def told(self, still: Amount) -> None:
        """So much of it is in the figures of the source."""
        self._still = still
        if self.target is not None:
            self._take_off()

    def end(self) -> None:
        """Nothing is taken off any more, before it is judged again."""
        self._still, still = NOTHING, self._still
        self._take_off()
        self._still = still
        self.source = self.target = None
        self._pools = ()

    def _take_off(self) -> None:
        wanted = Amount(
            *[max(still - less, 0) for still, less in zip(self._still, self.refused, strict=True)]
        )
        before, self.off = self.off, wanted
        if self.target is not None and self.source is self.target:
            self.target.messages -= wanted.messages - before.messages
            self.target.bytes -= wanted.bytes - before.bytes
        for pool in self._pools:
            pool.bytes -= wanted.bytes - before.bytes

    def off_pool(self, pool: Pool) -> int:
        """Give the bytes that are taken off a sum."""
        return self.off.bytes if pool in self._pools else 0

    def off_account(self, account: Account) -> Amount:
        """Give what is taken off an endpoint."""
        return self.off if self.source is self.target is account else NOTHING


class Transits:
    """All moves under way, by lane: one of each is under way at a time."""

    def __init__(self) -> None:
        #: Lane -> its move; to look at.
        self.by_lane: dict[int, Transit] = {}

    def __iter__(self) -> Iterator[Transit]:
        return iter(self.by_lane.values())

    def asked(self, lane_id: int, first: int, rows: Amount) -> None:
        """A source asks for a move, perhaps again."""
        known = self.by_lane.get(lane_id)
        if known is not None and known.first == first:
            known.told(rows)
        else:
            self.over(lane_id)
            self.by_lane[lane_id] = Transit(first, rows)

    def find(self, lane_id: int, first: int) -> Transit | None:
        """Give a move that is under way."""
        found = self.by_lane.get(lane_id)
        return found if found is not None and found.first == first else None

    def told(self, lane_id: int, moving: tuple[int, int, int] | None) -> None:
        """A source tells what of a move is in its figures: first sequence, messages, bytes; None: there is none."""
        transit = self.by_lane.get(lane_id)
        if transit is None:
            return
        if moving is None or moving[0] != transit.first:
            self.over(lane_id)
        else:
            transit.told(Amount(*moving[1:]))

    def over(self, lane_id: int) -> None:
        """A lane moves nothing more."""
        transit = self.by_lane.pop(lane_id, None)
        if transit is not None:
            transit.end()

    def forget(self, account: Account) -> None:
        """An endpoint goes, or is in other sums from now on: nothing is taken off for its moves."""
        for transit in self.by_lane.values():
            if account in (transit.source, transit.target):
                transit.end()
