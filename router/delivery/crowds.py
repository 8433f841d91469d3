"""Rounds for more sessions than a step has time for: some get it at a time, and others have their turn in between.

A round comes here when everything else about it is done: what endpoints take of it is on its way to their homes, and
what was refused, or delivered before, is left out. So it does not matter here whether its messages are guaranteed. It
leaves in turns like a round in pieces (`router.matching.pieces`); what its session published after it waits. That is no
more work than it would be at once, so nobody is charged.

Of two messages on one topic that are retained all are to get the one last that is kept, whoever published them. So
rounds with such messages leave one after the other in the order in which they were stored, those of each Message VPN in
a line, and one that is for few waits behind those that are for many. Whose turn it is serves the first of its line.

Where rows are for one of several, those who are chosen get them before all others get theirs, with all else of the
round: so nobody gets a row before one with a lower index.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from angarium import wire
from router.sessions.interest import Filter, FilterSet
from router.sessions.queues import Bundle
from router.sessions.splice import retained_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from router.ground.ground import Counters
    from router.sessions.interest import Interest
    from router.sessions.producer import Producer
    from router.sessions.round import PlainResult, Round
    from router.sessions.session import Session

#: The key of a filter that only says which sessions are meant.
_OF_NOBODY: Final = (0, "", wire.KIND_PLAIN, None)


class Crowds:
    """The rounds of which some sessions have yet to get theirs, one for each session that published it."""

    #: Tells whether a round is, and how many get it in one step then. `FanOut` sets these two, and `limit`.
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
        #: With no more subscriptions no round has to be looked at; that is `_many` while there are no lines.
        self.members_min = self._many = 0
        #: Publisher -> whom its newest round is being given to. It has turns, and nothing newer of it leaves.
        self.of: dict[Session, Crowd] = {}
        #: Message VPN -> what all are to get in the order in which it was stored; no empty lines.
        self.lines: dict[int, deque[Crowd]] = {}

    def limit(self, sessions: int) -> None:
        """Set how many sessions are no more than a step has time for."""
        self.members_min = self._many = sessions

    def has_to_wait(self, a_round: Round[Session]) -> bool:
        """Tell whether a round, for however few, stays behind what is retained and on its way.

        So does what a relay brings while something waits that one brought which is gone: that may be older.
        """
        line = self.lines.get(a_round.session.vpn.id)
        if line is None:
            return False
        return is_retained(a_round) or (
            a_round.session.kind.is_relay
            and any(one.round.session.closed and one.round.session.kind.is_relay for one in line)
        )

    def take(self, a_round: Round[Session]) -> None:
        """Take a round that is for very many, or has to wait."""
        session = a_round.session
        assert session not in self.of
        line: deque[Crowd] | None = None
        if is_retained(a_round) or (self.lines and self.has_to_wait(a_round)):
            line = self.lines.setdefault(session.vpn.id, deque())
        crowd = self.of[session] = a_round.pieces = Crowd(a_round, line, self._resolve)
        if line is not None:
            line.append(crowd)
            self.members_min = -1
        if line is None or line[0] is crowd:
            crowd.begin(self.at_once(a_round))
        self.push(session)

    def serve(self, session: Session, now: float) -> Round[Session] | None:
        """Let some more get what a session published, or what is before it; gives the round when all have its own."""
        crowd = self.of[session]
        a_round, line = crowd.round, crowd.line
        if line is not None:
            if crowd or (line and line[0] is crowd):  # nobody may be left to get it
                self._serve_first(line, now)
        elif session.closed and session.kind.is_relay and a_round.producer is None:
            # It may be back, and newer messages of the same publishers may have been here sooner.
            self._counters.totals["discard.client-not-connected"] += a_round.rows
            crowd.end()
        else:
            self._deliver(crowd.take(), now)
        if crowd:
            return None
        del self.of[session]
        a_round.pieces = None  # or both would wait for the garbage collector
        self.on_end(now)
        return a_round

    def _serve_first(self, line: deque[Crowd], now: float) -> None:
        """Let some more get what is first in a line; its session hears of the end at its own turn."""
        first = line[0]
        if not first.has_begun:
            first.begin(self.at_once(first.round))
        self._deliver(first.take(), now)
        if first:
            return
        line.popleft()
        if not line:
            del self.lines[first.round.session.vpn.id]
            self.members_min = -1 if self.lines else self._many

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

    def topics_for(self, session: Session) -> Iterator[str]:
        """Give the topics of what is retained and on its way to a session; it may have some of it already."""
        for crowd in self.lines.get(session.vpn.id, ()):
            if session.no_local and crowd.round.session is session:
                continue
            for one in crowd.round.plain:
                if one.classes & wire.CLASS_RETAIN and session in self._resolve(one.set):
                    yield from retained_topics(Bundle(one.rows, one.batch, one.classes))

    def validate(self) -> None:
        """Check what the comments promise."""
        assert self.members_min == (-1 if self.lines else self._many)
        for session, crowd in self.of.items():
            assert crowd or crowd.line is not None
            assert crowd.round.session is session
            assert crowd.round.pieces is crowd
            assert session.has_turns
        for vpn_id, line in self.lines.items():
            assert line
            assert all(one.line is line and self.of[one.round.session] is one for one in line)
            assert all(one.round.session.vpn.id == vpn_id for one in line)
            assert not any(one.has_begun for one in line if one is not line[0])


def is_retained(a_round: Round[Session]) -> bool:
    """Tell whether something of a round may be retained that subscribers get."""
    return bool(a_round.endpoints) and any(one.classes & wire.CLASS_RETAIN for one in a_round.plain)


class Crowd:
    """A round for very many sessions, of which some get it at a time; true while some have not got it."""

    def __init__(
        self,
        a_round: Round[Session],
        line: deque[Crowd] | None,
        resolve: Callable[[FilterSet[Session]], Mapping[Session, object]],
    ) -> None:
        """Take a round, which stays as it is; nobody gets it before `begin`."""
        self.round, self._resolve = a_round, resolve
        #: Where it waited for its turn; None: nowhere.
        self.line = line
        #: Who is to get it, and how many of them were served; who comes later subscribed too late. None: it has not
        #: begun, and a list of thousands would only wait.
        self._sessions: list[Session] | None = None
        self._served = self._at_once = 0
        #: Those who got it before, with rows for which they were chosen. None: nobody was chosen yet.
        self._early: dict[Session, None] | None = None if a_round.choice else {}

    def __bool__(self) -> bool:
        return self._sessions is None or self._early is None or self._served < len(self._sessions)

    @property
    def has_begun(self) -> bool:
        """Whether it is known who is to get it."""
        return self._sessions is not None

    def begin(self, at_once: int) -> None:
        """Cut it into pieces for so many sessions each."""
        self._at_once = at_once
        self._sessions = [*{session: None for one in self.round.plain for session in self._resolve(one.set)}]

    def end(self) -> None:
        """Have nobody else get it."""
        self._sessions, self._early = [], {}

    def take(self) -> Round[Session]:
        """Give the round as it is for the next sessions.

        First of all the rows for which some are chosen: `take_early` gives these all else.
        """
        assert self._sessions is not None
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
