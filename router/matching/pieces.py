"""Rounds that cost long to send on leave in pieces, and others have their turn between two of them.

What a round costs does not depend on its rows as long as it goes as a whole to sessions or endpoints. It does where
each row has receivers of its own: a member of each share group, other sets of sessions or endpoints than the row
before, topics that are elided for each session, an endpoint without room for all. A round of which that takes longer
than a step is cut by the indices of its rows; a piece is a round to whoever takes it, with rows between two indices. So
subscribers get the rows in their order, and endpoints take them in it. The publisher hears of the round when the last
piece has left, and is charged for the work as for dear topics (`router.matching.effort`).

A round or a piece of it for more sessions than a step has time for, be it one row, is cut by them besides when it is
sent on: some get all of its rows, then the next ones do (`router.delivery.crowds`). What goes to very many of them is
no reason to cut it by its rows.
"""

from __future__ import annotations

from copy import copy
from heapq import merge
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from angarium import wire
from router.matching.rows import decode_rows, indices, result_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.delivery.crowds import Crowds
    from router.delivery.eliding import Eliding
    from router.sessions.interest import FilterSet, Interest
    from router.sessions.round import ChoiceResult, EndpointResult, Part, PlainResult, Refusal, Round
    from router.sessions.session import Session

#: In us, about: one batch leaves for a session; rows of one of several sets are looked at, and added to what else
#: leaves for a session; a row is given to one of a group, held or passed for a session that elides, counted for an
#: endpoint as part of a batch, and alone; a filter of which nobody is left is passed over.
SEND_WORK: Final = 10
SET_WORK: Final = 1.0
JOIN_WORK: Final = 0.5
CHOICE_WORK: Final = 3.0
ELIDING_WORK: Final = 8.0
COPY_WORK: Final = 1.0
JUDGING_WORK: Final = 2.0
PASSING_WORK: Final = 0.05
#: No row costs more for anybody who subscribed to anything.
MEMBER_WORK_MAX: Final = max(
    JOIN_WORK, COPY_WORK, JUDGING_WORK, CHOICE_WORK + PASSING_WORK, JOIN_WORK + ELIDING_WORK
)
#: And in us: a row is taken out of its batch, of which so many are in one step; a result has rows in a piece.
OPENING_WORK: Final = 2
PLACE_WORK: Final = 4.0
_OPENED_PER_STEP: Final = 500
#: A round goes as a whole to as many sessions as so many steps have time for: more pieces would only cost.
_CROWD_STEPS: Final = 2
#: Of more sets it takes too long to find out whom they have in common.
_CROWD_SETS_MAX: Final = 16
#: A round of hundreds of sets is sent on in less than a step, or it is cut: so many of them tell about what it costs.
_SAMPLED_SETS_MAX: Final = 16
_ONE_ROW: Final = wire.array_head(1)
#: Index, place of its result or part among those of the round, packed.
_Row = tuple[int, int, bytes]
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class FanOut:
    """Tells what it costs to send rounds on, and cuts those that cost too much."""

    #: Tells whether admission has to look at each row of a round. Admission sets it.
    judges_rows: Callable[[Round[Session]], bool]

    def __init__(self, interest: Interest[Session], eliding: Eliding, crowds: Crowds, step_us: float) -> None:
        """Begin; what is done for one publisher before others have their turn takes about `step_us`."""
        self.step_us = float(step_us)
        #: A round for more sessions leaves for some of them at a time.
        self._crowd_min = int(_CROWD_STEPS * step_us / SEND_WORK)
        self.crowds = crowds
        crowds.limit(self._crowd_min)
        crowds.is_for_many, crowds.at_once = self._is_for_many, self._at_once
        self._count = interest.count
        self._eliding = eliding
        self._interest = interest
        #: What a row costs for which some of a set are chosen, known since the newest change of any member: hundreds of
        #: topics may have one set of hundreds of groups.
        self._choice_works: dict[FilterSet[Session], float] = {}
        self._choices_at = -1
        #: Rounds that were cut.
        self.cut_rounds = 0

    def work(self, a_round: Round[Session]) -> float:
        """Give about what a round costs that is not cut."""
        plain = a_round.plain
        every = len(plain) // _SAMPLED_SETS_MAX + 1
        sessions = every * self._sessions(plain[::every])
        work = SEND_WORK * min(sessions, len(self._interest.members)) + a_round.rows / 100
        return work if len(plain) <= 1 else work + SET_WORK * len(plain) + JOIN_WORK * sessions

    def _is_for_many(self, a_round: Round[Session]) -> bool:
        """Tell whether a round goes to more sessions than a step has time for; asked of most rounds, and quick."""
        plain = a_round.plain
        return len(plain) <= _CROWD_SETS_MAX and self._sessions(plain) > self._crowd_min

    def _at_once(self, a_round: Round[Session]) -> int:
        """Give how many sessions get a round for very many in one step."""
        self.cut_rounds += self._is_for_many(a_round)
        return max(int(_CROWD_STEPS * self.step_us / self._send_work(a_round)), 1)

    def _send_work(self, a_round: Round[Session]) -> float:
        """Give what it costs to send a round to one session."""
        elided = sum([self.of_elided(one) * one.rows for one in a_round.plain])
        return SEND_WORK + elided / (self._sessions(a_round.plain) or 1)

    def _sessions(self, plain: Sequence[PlainResult[Session]]) -> int:
        """Give about how many sessions rows go to, those of several sets for each."""
        sessions = 0
        for one in plain:  # there may be hundreds, nearly all of one filter
            filters = one.set.filters
            sessions += len(filters[0].members) if len(filters) == 1 else self._count(one.set)
        return sessions

    def cut(self, a_round: Round[Session]) -> Pieces | None:
        """Cut a round by its rows if these cost more than a step; None for nearly every one."""
        if a_round.broken:
            return None
        self._choice_works.clear()
        cut = self._pieces(a_round)
        self.cut_rounds += cut is not None
        return cut

    def _pieces(self, a_round: Round[Session]) -> Pieces | None:
        plain, taken = a_round.plain, a_round.endpoints
        is_for_many = self._is_cut_by_sessions(a_round)
        if not (a_round.choice or taken) and (is_for_many or self._are_few(plain)):
            return None
        of_plain: Callable[[Any], float] = self.of_joined if len(plain) > 1 else self.of_elided
        if is_for_many:
            of_plain = _of_nobody
        of_endpoints = self.of_judged if taken and self._is_judged(a_round) else self.of_copied
        kinds: list[tuple[str, Sequence[Any], Callable[[Any], float]]] = [
            ("plain", plain, of_plain),
            ("choice", a_round.choice, self.of_choice),
            ("endpoints", taken, of_endpoints),
        ]
        total = 0.0 if is_for_many else self._plain_work(a_round, of_plain)
        total += sum([weigh(one) * one.rows for _, results, weigh in kinds[1:] for one in results])
        if total <= self.step_us:
            return None
        kinds[0] = ("plain", [one.packed() for one in plain], of_plain)
        if taken or a_round.producer is not None:
            kinds.append(("parts", a_round.parts, _of_nobody))
        return Pieces(a_round, kinds, self.step_us)

    def _is_cut_by_sessions(self, a_round: Round[Session]) -> bool:
        """Tell whether what everybody gets of a round costs no step for one of very many."""
        if not self._is_for_many(a_round):
            return False
        return self._send_work(a_round) <= self.step_us or a_round.rows <= self._sessions(a_round.plain)

    def _are_few(self, plain: Sequence[PlainResult[Session]]) -> bool:
        """Tell whether rows that are for everybody cost no step even if all subscribers had all of their sets."""
        if self._eliding.sessions and any(one.classes & wire.CLASS_ELIDING for one in plain):
            return False
        return len(plain) <= 1 or JOIN_WORK * len(plain) * len(self._interest.members) <= self.step_us

    def _plain_work(self, a_round: Round[Session], weigh: Callable[[PlainResult[Session]], float]) -> float:
        """Give what all rows cost that are for everybody; where nobody elides that is known from the sessions alone."""
        plain = a_round.plain
        if self._eliding.sessions:
            return sum([weigh(one) * one.rows for one in plain])
        return JOIN_WORK * self._sessions(plain) if len(plain) > 1 else 0.0

    def of_joined(self, result: PlainResult[Session]) -> float:
        """Give what a row costs of one of several sets of sessions."""
        return JOIN_WORK * self._count(result.set) / result.rows + self.of_elided(result)

    def of_elided(self, result: PlainResult[Session]) -> float:
        """Give what a row costs that is elided; all others are in one batch for each session, and cost nothing."""
        if not self._eliding.sessions or not result.classes & wire.CLASS_ELIDING:
            return 0.0
        members = [session for a_filter in result.set.filters for session in a_filter.members]
        return ELIDING_WORK * sum(session.eliding is not None for session in members)

    def of_choice(self, choice: ChoiceResult[Session]) -> float:
        """Give what a row costs for which some are chosen."""
        filters = choice.set.filters
        if choice.dto:
            return CHOICE_WORK + PASSING_WORK * len(filters)
        if self._choices_at != self._interest.changes:
            self._choices_at = self._interest.changes
            self._choice_works.clear()
        work = self._choice_works.get(choice.set)
        if work is None:
            groups = len([1 for one in filters if one.members])
            work = self._choice_works[choice.set] = CHOICE_WORK * groups + PASSING_WORK * len(filters)
        return work

    def of_copied(self, result: EndpointResult) -> float:
        """Give what a row costs that endpoints take with all others."""
        return COPY_WORK * self._count(result.set) / result.rows

    def of_judged(self, result: EndpointResult) -> float:
        """Give what a row costs that is judged alone."""
        return JUDGING_WORK * self._count(result.set)

    def _is_judged(self, a_round: Round[Session]) -> bool:
        """Tell whether endpoints may not take the rows together; taken for true if even that costs much."""
        taken = a_round.endpoints
        if sum([self.of_judged(one) * one.rows for one in taken]) <= self.step_us:
            return False
        return sum([self.of_copied(one) * one.rows for one in taken]) > self.step_us or self.judges_rows(
            a_round
        )


def _of_nobody(_result: object) -> float:
    """What only admission looks at costs nothing more, nor what is weighed elsewhere."""
    return 0.0


class Pieces:
    """A round in pieces, from its first row to its last; true while some have not left."""

    def __init__(
        self,
        a_round: Round[Session],
        kinds: list[tuple[str, Sequence[Any], Callable[[Any], float]]],
        step_us: float,
    ) -> None:
        """Cut a round.

        Args:
            a_round: stays as it is.
            kinds: what of it has rows: attribute, results or parts, and what a row of one costs when it is sent on.
            step_us: what a piece is to cost.
        """
        self._round, self._step_us = a_round, step_us
        self._places = [(kind, one, weigh) for kind, results, weigh in kinds for one in results]
        #: Rows that are still in their batches.
        self._unopened = chain.from_iterable(
            _opened(place, one.batch, is_choice=kind == "choice")
            for place, (kind, one, _) in enumerate(self._places)
        )
        self._is_open = False
        #: Some in each, by index and place: to sort all of them together would take milliseconds.
        self._runs: list[list[_Row]] = []
        #: Those that have not left, and the first of these.
        self._rows: Iterator[_Row] = iter(())
        self._next: _Row | None = None
        #: What the newest piece costs, and how many rows of the round it has; several results may have one.
        self.work = self._taken = 0

    def __bool__(self) -> bool:
        return not self._is_open or self._next is not None

    def take(self) -> Round[Session] | None:
        """Give the next piece, or None while batches are opened for the first; the round itself if that cannot be done.

        The bytes of the round, and its wish to be told, are in the last piece.
        """
        if not self._is_open:
            try:
                self._open()
            except (ValueError, RecursionError):
                # A neighbour sent what is no batch, and it goes on as it came.
                self._is_open = True
                return self._round
            if not self._is_open:
                return None
        piece = copy(self._round)
        piece.whole = piece.span = piece.pieces = None
        piece.plain, piece.choice, piece.endpoints = [], [], []
        found = self._next_rows()
        piece.rows = self._taken
        parts: list[Part] = []
        for place in sorted(found):
            kind, one, _ = self._places[place]
            some = _with(kind, one, found[place])
            (parts if kind == "parts" else getattr(piece, kind)).append(some)
        if parts:
            piece.parts, piece.rows = parts, sum([part.rows for part in parts])
        piece.refused = self._refused(inf if self._next is None else self._next[0])
        if self:
            piece.bytes, piece.flush = 0, False
        return piece

    def _open(self) -> None:
        """Take some more rows out of their batches."""
        some = [*islice(self._unopened, _OPENED_PER_STEP)]
        some.sort()
        self._runs.append(some)
        if len(some) == _OPENED_PER_STEP:
            self.work = OPENING_WORK * _OPENED_PER_STEP
        else:
            self._is_open = True
            self._rows = merge(*self._runs)
            self._next = next(self._rows, None)

    def _next_rows(self) -> dict[int, list[bytes]]:
        """Take as many rows as a step has time for, one at least; all of one index are in one piece."""
        costs: dict[int, float] = {}
        found: dict[int, list[bytes]] = {}
        work, last = 0.0, -1
        self._taken = 0
        while self._next is not None:
            index, place, row = self._next
            cost = costs.get(place)
            if cost is None:
                _, one, weigh = self._places[place]
                cost = costs[place] = weigh(one)
                work += PLACE_WORK
            if work + cost > self._step_us and index != last and found:
                break
            work += cost
            self._taken += index != last
            last = index
            found.setdefault(place, []).append(row)
            self._next = next(self._rows, None)
        self.work = int(work)
        return found

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


def _with(kind: str, one: Any, rows: list[bytes]) -> Any:
    """Give a result, or a part, with some of its rows."""
    if kind == "endpoints":
        return result_with(one, decode_rows(wire.join_rows(rows)))
    batch = wire.pack(rows) if kind == "choice" else wire.join_rows(rows)
    return replace(one, rows=len(rows), batch=batch)


def _opened(place: int, batch: bytes, *, is_choice: bool) -> Iterator[_Row]:
    """Give the rows of a batch, still packed; those for a choice are packed in it one by one."""
    if is_choice:
        return ((wire.row_index(row), place, row) for row in wire.unpack(batch))
    if batch[:1] == _ONE_ROW:
        row = batch[1:]
        return iter([(wire.row_index(row), place, row)])
    rows = map(bytes, _decode_raw(batch))
    return ((index, place, row) for index, row in zip(indices(batch), rows, strict=True))
