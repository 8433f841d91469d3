"""What consumers hold of a lane beyond their flows: messages that are theirs until they say that they are over.

A member of a group may be gone while it is in the middle of an exchange with QoS 2. Nobody else may get such a message,
so what a *holder* has taken is its own: OUT, whether a flow of it is bound or not, and after a restart, too. With it
goes a note of the holder, which says what the exchange has come to. The next flow of the holder gets what it holds
before anything new.

A holder takes only what its flow has out at that moment: what was given to another one meanwhile is refused.

No I/O, no clock; `node.endpoints.lane` has one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from node.backlog.backlog import PositionSet
from node.backlog.segment import OUT, READY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from node.backlog.backlog import Backlog
    from node.backlog.segment import Segment
    from node.endpoints.consumers import Consumers
    from node.endpoints.flow import Flow, Outcomes


class HoldingRow(NamedTuple):
    """What is durable of a holding."""

    holder: str
    note: bytes
    #: Rising.
    positions: list[int]


class _Holding:
    """What one of them has."""

    __slots__ = ("flow", "note", "out", "wanted")

    def __init__(self, row: HoldingRow) -> None:
        self.note = row.note
        #: Messages that it holds; all of them are OUT, and no flow has them out.
        self.out = PositionSet()
        #: Those that it held before a restart, until they are loaded.
        self.wanted = frozenset(row.positions)
        #: Its flow that is bound.
        self.flow: Flow | None = None

    def positions(self) -> list[int]:
        """Give what it holds, rising."""
        return [one for first, last in self.out.runs() for one in range(first, last + 1)]


class Holdings:
    """All of a lane."""

    __slots__ = ("_backlog", "_consumers", "_holdings", "_outcomes", "count")

    def __init__(self, backlog: Backlog, consumers: Consumers, outcomes: Outcomes) -> None:
        self._backlog = backlog
        self._consumers = consumers
        self._outcomes = outcomes
        #: By holder; each has a note, a message or a flow.
        self._holdings: dict[str, _Holding] = {}
        #: Messages that are held.
        self.count = 0

    @property
    def is_used(self) -> bool:
        """Whether anybody has something, or may."""
        return bool(self._holdings)

    # --- holders ----------------------------------------------------------------------------------------

    def holders(self) -> list[str]:
        """Give those who have something."""
        return [holder for holder, one in self._holdings.items() if one.note or one.out.count]

    def read(self, holder: str) -> tuple[bytes, list[int]]:
        """Give the note of a holder, and what it holds."""
        one = self._holdings.get(holder)
        return (b"", []) if one is None else (one.note, one.positions())

    def keep(self, holder: str, note: bytes, positions: Sequence[int], wall_ms: int) -> list[int]:
        """Let a holder hold exactly these, and keep its note; gives those that are refused.

        What it held and holds no more is for others again.
        """
        one = self._holdings.setdefault(holder, _Holding(HoldingRow(holder, b"", [])))
        one.note, one.wanted = note, frozenset()
        wanted = frozenset(positions)
        for position in one.positions():
            if position not in wanted:
                self._give_back(one, position, wall_ms)
        refused = [at for at in positions if at not in one.out and not self._take(one, at)]
        self._tidy(holder, one)
        return refused

    def _take(self, one: _Holding, position: int) -> bool:
        """Take a message from the flow of its holder; False if that does not have it out."""
        flow = one.flow
        if flow is None or position not in flow.out:
            return False
        flow.out.remove(position, position)
        one.out.add(position, position)
        self.count += 1
        self._consumers.wake(flow)
        return True

    def _give_back(self, one: _Holding, position: int, wall_ms: int) -> None:
        one.out.remove(position, position)
        self.count -= 1
        for segment, i, j in self._backlog.segments.slices(position, position):
            self._outcomes.lose(segment, i, j, wall_ms)

    def _tidy(self, holder: str, one: _Holding) -> None:
        if not (one.note or one.out.count or one.flow):
            self._holdings.pop(holder, None)

    # --- flows ------------------------------------------------------------------------------------------

    def bound(self, flow: Flow) -> None:
        """Take note of a flow, which gets what its holder has."""
        holder = flow.options.holder
        one = self._holdings.setdefault(holder, _Holding(HoldingRow(holder, b"", [])))
        one.flow = flow
        self._consumers.resume(flow, one.out)

    def unbound(self, flow: Flow) -> None:
        """Take note that a flow ends."""
        one = self._holdings.get(flow.options.holder)
        if one is not None and one.flow is flow:
            one.flow = None
            self._tidy(flow.options.holder, one)

    # --- messages ---------------------------------------------------------------------------------------

    def claim(self, segment: Segment) -> None:
        """Make OUT what is held of a segment that was loaded."""
        for one in self._holdings.values():
            before = one.out.count
            for position in one.wanted:
                i = position - segment.first
                if 0 <= i < segment.count and segment.state[i] == READY:
                    self._backlog.change(segment, i, i + 1, READY, OUT)
                    one.out.add(position, position)
            self.count += one.out.count - before
            if one.flow is not None and one.out.count > before:
                self._consumers.resume(one.flow, one.out)

    def forget(self, position: int) -> None:
        """Take note that somebody takes a message that is OUT."""
        for one in self._holdings.values() if self.count else ():
            if one.out.remove(position, position):
                self.count -= 1
                return

    def purge(self) -> None:
        """Take note that everything is deleted; the notes stay, for the exchanges are not over."""
        for one in self._holdings.values():
            one.out.clear()
            one.wanted = frozenset()
        self.count = 0

    # --- what is durable --------------------------------------------------------------------------------

    def rows(self) -> list[HoldingRow]:
        """Give what is to be durable."""
        return [
            HoldingRow(holder, one.note, one.positions())
            for holder, one in self._holdings.items()
            if one.note or one.out.count
        ]

    def load(self, rows: Iterable[HoldingRow]) -> None:
        """Go on with what was there before a restart, or at another home; the messages come afterwards.

        A flow may be bound already: a lane has consumers while it is taken over.
        """
        bound = [one.flow for one in self._holdings.values() if one.flow is not None]
        self._holdings = {row.holder: _Holding(row) for row in rows}
        for flow in bound:
            self.bound(flow)

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        owners: set[int] = set()
        for one in self._holdings.values():
            assert one.note or one.out.count or one.wanted or one.flow is not None
            for position in one.positions():
                assert position not in owners
                owners.add(position)
                segment = self._backlog.segments.find(position)
                assert segment is not None
                assert segment.state[position - segment.first] == OUT
        assert len(owners) == self.count
