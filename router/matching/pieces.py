"""Rounds that cost long to send on leave in pieces, and others have their turn between two of them.

What a round costs does not depend on its rows as long as it goes as a whole to sessions or endpoints. It does where
each row has receivers of its own: a member of each share group, other sets of sessions or endpoints than the row
before, topics that are elided for each session, an endpoint without room for all. A round of which that takes longer
than a step is cut by the indices of its rows; a piece is a round to whoever takes it, with rows between two indices. So
subscribers get the rows in their order, and endpoints take them in it. The publisher hears of the round when the last
piece has left, and is charged for the work as for dear topics (`router.matching.effort`).

A row is never cut: it leaves for all its receivers in one step.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from angarium import wire
from router.matching.rows import decode_rows, indices, result_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.delivery.eliding import Eliding
    from router.sessions.interest import Interest
    from router.sessions.round import ChoiceResult, PlainResult, Refusal, Round
    from router.sessions.session import Session

#: In us, about: one batch leaves for a session; it is added to what else leaves for it; a row is given to one of a
#: group, held or passed for a session that elides, counted for an endpoint as part of a batch, and alone.
SEND_WORK: Final = 10
JOIN_WORK: Final = 0.5
CHOICE_WORK: Final = 1.0
ELIDING_WORK: Final = 2.0
COPY_WORK: Final = 1.0
JUDGING_WORK: Final = 2.0
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class FanOut:
    """Tells what it costs to send rounds on, and cuts those that cost too much."""

    #: Tells whether admission has to look at each row of a round. Admission sets it.
    judges_rows: Callable[[Round[Session]], bool]

    def __init__(self, interest: Interest[Session], eliding: Eliding, step_us: int) -> None:
        """Begin; what is done for one publisher before others have their turn takes about `step_us`."""
        self.step_us = step_us
        self._count = interest.count
        self._eliding = eliding
        #: Rounds that were cut.
        self.cut_rounds = 0

    def work(self, a_round: Round[Session]) -> float:
        """Give about what a round costs that is not cut."""
        sessions = 0
        for result in a_round.plain:
            sessions += self._count(result.set)
        return SEND_WORK * sessions + a_round.rows / 100

    def cuts(self, a_round: Round[Session]) -> bool:
        """Tell whether the rows of a round cost more than a step; nearly no round's do."""
        plain = a_round.plain
        if not (a_round.choice or a_round.endpoints) and (
            not plain or (len(plain) == 1 and not plain[0].classes & wire.CLASS_ELIDING)
        ):
            return False
        results: list[Any] = [*plain, *a_round.choice, *a_round.endpoints]
        weights = self._weights(a_round)
        total = sum([weight * result.rows for weight, result in zip(weights, results, strict=True)])
        return total > self.step_us and not a_round.broken

    def cut(self, a_round: Round[Session]) -> Pieces:
        """Cut a round."""
        self.cut_rounds += 1
        return Pieces(a_round, self._weights(a_round), self.step_us)

    def _weights(self, a_round: Round[Session]) -> list[float]:
        """Give what a row costs of each of the results of a round: plain, choice, endpoints."""
        return [
            *self._of_plain(a_round.plain),
            *map(self._of_choice, a_round.choice),
            *(self._of_endpoints(a_round) if a_round.endpoints else ()),
        ]

    def _of_plain(self, plain: Sequence[PlainResult[Session]]) -> list[float]:
        """Give what each row costs of results that sessions get as they are."""
        if len(plain) == 1:
            return [self._of_elided(plain[0])]
        return [JOIN_WORK * self._count(one.set) / one.rows + self._of_elided(one) for one in plain]

    def _of_elided(self, result: PlainResult[Session]) -> float:
        if not self._eliding.sessions or not result.classes & wire.CLASS_ELIDING:
            return 0.0
        members = [session for a_filter in result.set.filters for session in a_filter.members]
        return ELIDING_WORK * sum(session.eliding is not None for session in members)

    def _of_choice(self, choice: ChoiceResult[Session]) -> float:
        chosen = 1 if choice.dto else len(choice.set.filters)
        return CHOICE_WORK * chosen + JOIN_WORK * self._count(choice.set) / choice.rows

    def _of_endpoints(self, a_round: Round[Session]) -> list[float]:
        taken = a_round.endpoints
        counts = [self._count(one.set) for one in taken]
        alone = sum(JUDGING_WORK * count * one.rows for count, one in zip(counts, taken, strict=True))
        together = COPY_WORK * sum(counts)
        if alone > self.step_us and (together > self.step_us or self.judges_rows(a_round)):
            return [JUDGING_WORK * count for count in counts]
        return [COPY_WORK * count / one.rows for count, one in zip(counts, taken, strict=True)]


class _Lines:
    """Packed rows by rising index."""

    __slots__ = ("_at", "indices", "rows")

    def __init__(self, found: Sequence[int], rows: list[bytes]) -> None:
        self.indices, self.rows = found, rows
        #: How many of them were taken.
        self._at = 0

    def take(self, below: float) -> list[bytes]:
        """Take the rows with an index below this one that were not taken."""
        begin, self._at = self._at, bisect_left(self.indices, below, self._at)
        return self.rows[begin : self._at]


def _batch_lines(batch: bytes) -> _Lines:
    return _Lines(indices(batch), list(map(bytes, _decode_raw(batch))))


def _choice_lines(batch: bytes) -> _Lines:
    rows: list[bytes] = wire.unpack(batch)
    return _Lines([wire.row_index(row) for row in rows], rows)


class Pieces:
    """A round in pieces, from its first row to its last; the number of those that have not left is its length."""

    def __init__(self, a_round: Round[Session], weights: list[float], step_us: int) -> None:
        """Cut a round.

        Args:
            a_round: stays as it is.
            weights: what a row costs of each of its results: plain, choice, endpoints.
            step_us: what a piece is to cost.
        """
        self._round = a_round
        a_round.plain = [one.packed() for one in a_round.plain]
        self._plain = [(one, _batch_lines(one.batch)) for one in a_round.plain]
        self._choice = [(one, _choice_lines(one.batch)) for one in a_round.choice]
        self._endpoints = [(one, _batch_lines(one.batch)) for one in a_round.endpoints]
        is_admitted = a_round.producer is not None or a_round.endpoints
        self._parts = [(part, _batch_lines(part.batch)) for part in a_round.parts] if is_admitted else []
        lines = [one for _, one in (*self._plain, *self._choice, *self._endpoints)]
        #: The index below which the rows of each piece are, the next one last.
        self._bounds = _bounds(zip(lines, weights, strict=True), step_us)[::-1]

    def __len__(self) -> int:
        return len(self._bounds)

    def take(self) -> Round[Session]:
        """Give the next piece. The bytes of the round, and its wish to be told, are in the last."""
        whole, below = self._round, self._bounds.pop()
        piece = copy(whole)
        piece.whole = piece.span = piece.pieces = None
        piece.plain = [_with(one, rows) for one, lines in self._plain if (rows := lines.take(below))]
        piece.choice = [
            replace(one, rows=len(rows), batch=wire.pack(rows))
            for one, lines in self._choice
            if (rows := lines.take(below))
        ]
        piece.endpoints = [
            result_with(one, decode_rows(wire.join_rows(rows)))
            for one, lines in self._endpoints
            if (rows := lines.take(below))
        ]
        if self._parts:
            piece.parts = [_with(part, rows) for part, lines in self._parts if (rows := lines.take(below))]
            piece.rows = sum([part.rows for part in piece.parts])
        piece.refused = self._refused(below)
        if self._bounds:
            piece.bytes, piece.flush = 0, False
        return piece

    def _refused(self, below: float) -> list[Refusal]:
        now: list[Refusal] = []
        later: list[Refusal] = []
        for one in self._round.refused:
            for some, is_wanted in ((now, True), (later, False)):
                found = [index for index in one.indices if (index < below) is is_wanted]
                if found:
                    some.append(one._replace(indices=found))
        self._round.refused = later
        return now


def _with(one: Any, rows: list[bytes]) -> Any:
    """Give a result, or a part, with some of its rows."""
    return replace(one, rows=len(rows), batch=wire.join_rows(rows))


def _bounds(results: Iterable[tuple[_Lines, float]], step_us: int) -> list[float]:
    """Give the indices at which a round is cut: what is between two of them costs a step."""
    costs: dict[int, float] = {}
    for lines, weight in results:
        for index in lines.indices:
            costs[index] = costs.get(index, 0.0) + weight
    bounds: list[float] = []
    work = 0.0
    for index in sorted(costs):
        if work >= step_us:
            bounds.append(index)
            work = 0.0
        work += costs[index]
    return [*bounds, float("inf")]
