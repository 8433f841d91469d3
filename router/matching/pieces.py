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
CHOICE_WORK: Final = 3.0
ELIDING_WORK: Final = 8.0
COPY_WORK: Final = 1.0
JUDGING_WORK: Final = 2.0
_ONE_ROW: Final = wire.array_head(1)
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

    def cut(self, a_round: Round[Session]) -> Pieces | None:
        """Cut a round if its rows cost more than a step; None for nearly every one."""
        plain = a_round.plain
        if not (a_round.choice or a_round.endpoints) and (
            not plain or (len(plain) == 1 and not plain[0].classes & wire.CLASS_ELIDING)
        ):
            return None
        results: list[Any] = [*plain, *a_round.choice, *a_round.endpoints]
        weights = [
            *self._of_plain(plain),
            *map(self._of_choice, a_round.choice),
            *self._of_endpoints(a_round),
        ]
        total = sum([weight * result.rows for weight, result in zip(weights, results, strict=True)])
        if total <= self.step_us or a_round.broken:
            return None
        self.cut_rounds += 1
        return Pieces(a_round, weights, self.step_us)

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
        is_admitted = a_round.producer is not None or a_round.endpoints
        #: What has rows, and where in there those begin that come packed one by one, and those behind them.
        self._places: list[Any] = [*a_round.plain, *a_round.choice, *a_round.endpoints]
        self._choice_at = len(a_round.plain)
        self._endpoints_at = self._choice_at + len(a_round.choice)
        self._parts_at = len(self._places)
        self._places += a_round.parts if is_admitted else []
        #: By index, and where it is in each place: (index, place, row).
        self._rows: list[tuple[int, int, bytes]] = []
        for place, one in enumerate(self._places):
            is_choice = self._choice_at <= place < self._endpoints_at
            self._rows += _opened(place, one.batch, is_choice=is_choice)
        self._rows.sort()
        costs = [*weights, *[0.0] * (len(self._places) - len(weights))]
        #: Where the pieces begin that have not left, the next one last.
        self._begins = _begins(self._rows, costs, step_us)[::-1]

    def __len__(self) -> int:
        return len(self._begins)

    def take(self) -> Round[Session]:
        """Give the next piece. The bytes of the round, and its wish to be told, are in the last."""
        begin = self._begins.pop()
        end = self._begins[-1] if self._begins else len(self._rows)
        found: dict[int, list[bytes]] = {}
        for _, place, row in self._rows[begin:end]:
            found.setdefault(place, []).append(row)
        piece = copy(self._round)
        piece.whole = piece.span = piece.pieces = None
        some = [self._some(place, found[place]) for place in sorted(found)]
        counts = [0, *[sum(place < at for place in found) for at in self._kinds()]]
        piece.plain, piece.choice, piece.endpoints = [
            some[first:last] for first, last in zip(counts, counts[1:], strict=False)
        ]
        if len(some) > counts[-1]:
            piece.parts = some[counts[-1] :]
            piece.rows = sum([part.rows for part in piece.parts])
        piece.refused = self._refused(self._rows[end][0] if self._begins else float("inf"))
        if self._begins:
            piece.bytes, piece.flush = 0, False
        return piece

    def _kinds(self) -> tuple[int, int, int]:
        return self._choice_at, self._endpoints_at, self._parts_at

    def _some(self, place: int, rows: list[bytes]) -> Any:
        """Give a result, or a part, with some of its rows."""
        one = self._places[place]
        if self._endpoints_at <= place < self._parts_at:
            return result_with(one, decode_rows(wire.join_rows(rows)))
        is_choice = self._choice_at <= place < self._endpoints_at
        return replace(one, rows=len(rows), batch=wire.pack(rows) if is_choice else wire.join_rows(rows))

    def _refused(self, below: float) -> list[Refusal]:
        """Take those of the refused rows that are below an index."""
        now: list[Refusal] = []
        later: list[Refusal] = []
        for one in self._round.refused:
            for some, is_wanted in ((now, True), (later, False)):
                found = [index for index in one.indices if (index < below) is is_wanted]
                if found:
                    some.append(one._replace(indices=found))
        self._round.refused = later
        return now


def _opened(place: int, batch: bytes, *, is_choice: bool) -> list[tuple[int, int, bytes]]:
    """Give the rows of a batch, still packed; those for a choice are packed in it one by one."""
    if is_choice:
        return [(wire.row_index(row), place, row) for row in wire.unpack(batch)]
    if batch[:1] == _ONE_ROW:
        row = batch[1:]
        return [(wire.row_index(row), place, row)]
    rows = map(bytes, _decode_raw(batch))
    return [(index, place, row) for index, row in zip(indices(batch), rows, strict=True)]


def _begins(rows: list[tuple[int, int, bytes]], costs: list[float], step_us: int) -> list[int]:
    """Give where the pieces of a round begin: what is between two of them costs a step, and no index is in both."""
    begins, work, last = [0], 0.0, -1
    for at, (index, place, _) in enumerate(rows):
        if work >= step_us and index != last:
            begins.append(at)
            work = 0.0
        work += costs[place]
        last = index
    return begins
