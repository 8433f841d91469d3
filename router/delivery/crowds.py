"""Rounds for more sessions than a step has time for: some get it at a time, and others have their turn in between.

A round comes here when everything else about it is done: what endpoints take of it is on its way to their homes, and
what was refused, or delivered before, is left out. So it does not matter here whether its messages are guaranteed. It
leaves in turns like a round in pieces (`router.matching.pieces`); what its session published after it waits. That is no
more work than it would be at once, so nobody is charged.

Where rows are for one of several, those who are chosen get them before all others get theirs, with all else of the
round: so nobody gets a row before one with a lower index.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from angarium import wire
from router.sessions.interest import Filter, FilterSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from router.ground.ground import Counters
    from router.sessions.interest import Interest
    from router.sessions.producer import Producer
    from router.sessions.round import PlainResult, Round
    from router.sessions.session import Session

#: The key of a filter that only says which sessions are meant.
_OF_NOBODY: Final = (0, "", wire.KIND_PLAIN, None)


class Crowds:
    """The rounds of which some sessions have yet to get theirs, one for each session that published it."""

    #: With no more subscriptions no round is for very many. `FanOut` sets these three.
    members_min: int
    #: Tells whether a round is, and how many get it in one step then.
    is_for_many: Callable[[Round[Session]], bool]
    at_once: Callable[[Round[Session]], int]
    #: Lets a session have its turn. `Rounds` sets it.
    push: Callable[[Session], None]
    #: What waited until all had got something may go on. `GuaranteedPublishing` sets it.
    on_end: Callable[[float], None]

    def __init__(
        self,
        interest: Interest[Session],
        counters: Counters,
        deliver: Callable[[Round[Session], float], None],
    ) -> None:
        """Begin with nothing; `deliver` gives a piece of a round to all that it is for."""
        self._resolve = interest.resolve
        self._counters = counters
        self._deliver = deliver
        #: Publisher -> whom its newest round is being given to. It has turns, and nothing newer of it leaves.
        self.of: dict[Session, Crowd] = {}

    def take(self, a_round: Round[Session]) -> None:
        """Take a round for very many."""
        session = a_round.session
        assert session not in self.of
        self.of[session] = a_round.pieces = Crowd(a_round, self.at_once(a_round), self._resolve)
        self.push(session)

    def serve(self, session: Session, now: float) -> Round[Session] | None:
        """Let some more get what a session published; gives the round when all have."""
        crowd = self.of[session]
        a_round = crowd.round
        if session.closed and session.kind.is_relay and a_round.producer is None:
            # It may be back, and newer messages of the same publishers may have been here sooner.
            self._counters.totals["discard.client-not-connected"] += a_round.rows
        else:
            self._deliver(crowd.take(), now)
            if crowd:
                return None
        del self.of[session]
        a_round.pieces = None  # or both would wait for the garbage collector
        self.on_end(now)
        return a_round

    def are_served(self, producer: Producer[Session]) -> bool:
        """Tell whether the next round of a producer has to wait for one of its session, or of its last opening."""
        if producer.session in self.of:
            return True
        earlier = [crowd.round.producer for crowd in self.of.values()] if producer.id else []
        return any(one is not None and one.id == producer.id for one in earlier)

    def is_served(self, session: Session, number: int) -> bool:
        """Tell whether some have yet to get the round of a session with this number."""
        crowd = self.of.get(session)
        return crowd is not None and crowd.round.number == number

    def validate(self) -> None:
        """Check what the comments promise."""
        for session, crowd in self.of.items():
            assert crowd
            assert crowd.round.session is session
            assert crowd.round.pieces is crowd
            assert session.has_turns


class Crowd:
    """A round for very many sessions, of which some get it at a time; true while some have not got it."""

    def __init__(
        self,
        a_round: Round[Session],
        at_once: int,
        resolve: Callable[[FilterSet[Session]], Mapping[Session, object]],
    ) -> None:
        """Cut a round, which stays as it is, into pieces for `at_once` sessions each."""
        self.round, self._at_once, self._resolve = a_round, at_once, resolve
        #: Who is to get it, and how many of them were served; who comes later subscribed too late.
        self._sessions = [*{session: None for one in a_round.plain for session in resolve(one.set)}]
        self._served = 0
        #: Those who got it before, with rows for which they were chosen. None: nobody was chosen yet.
        self._early: dict[Session, None] | None = None if a_round.choice else {}

    def __bool__(self) -> bool:
        return self._early is None or self._served < len(self._sessions)

    def take(self) -> Round[Session]:
        """Give the round as it is for the next sessions.

        First of all the rows for which some are chosen: `take_early` gives these all else.
        """
        piece = copy(self.round)
        if self._early is None:
            piece.plain = []
            return piece
        some = self._sessions[self._served : self._served + self._at_once]
        self._served += len(some)
        piece.choice = ()
        piece.plain = self._plain_of([one for one in some if one not in self._early])
        return piece

    def take_early(self, sessions: Iterable[Session]) -> list[PlainResult[Session]]:
        """Give what is for everybody as it is for some, who get it now."""
        self._early = dict.fromkeys(sessions)
        return self._plain_of([*self._early])

    def _plain_of(self, sessions: Sequence[Session]) -> list[PlainResult[Any]]:
        return [replace(one, set=self._some_of(one.set, sessions)) for one in self.round.plain]

    def _some_of(self, a_set: FilterSet[Session], sessions: Sequence[Session]) -> FilterSet[Session]:
        """Give a set of those of some sessions that are in another: who has left it gets nothing any more."""
        found = self._resolve(a_set)
        return FilterSet((Filter(0, _OF_NOBODY, None, {one: () for one in sessions if one in found}),))
