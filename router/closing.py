"""The end of a session: by its own BYE, by a fault or silence of its client, or because the node goes down.

What is decided here is when a session may end, and what it is told. What it has somewhere goes with it: every part that
has something of sessions listens. `router` hands BYE and time over; `sessions.close` of the session table is for
whoever finds a reason.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final, Protocol

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from router.sessions.session import SESSION_COUNTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.delivery.egress import Egress
    from router.ground.ground import Counters
    from router.matching.rounds import Rounds
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable

#: Missed keepalive intervals that end a session.
KEEPALIVES_MISSED: Final = 3
#: Sessions that may be over are looked at in this time (seconds), some in each turn: nobody else is served meanwhile.
ROUND_S: Final = 0.5
SESSIONS_PER_TURN: Final = 250
#: A session is looked at in each keepalive interval, and so often at least: who ended is kept no longer.
LOOK_S: Final = 10.0
#: Keepalive intervals after which a PING is late: it waits behind what its client says, on a path that is narrow.
PING_LATE: Final = 1.5
#: A clock that steps by so much was set; by less it is adjusted.
CLOCK_STEP_MS: Final = 1_000
#: A client that said BYE waits so long at most for what is to be stored: a worker that died is back long before.
BYE_WAIT_S: Final = 30.0


class Listener(Protocol):
    """A part of the router that has something of sessions."""

    def session_ended(self, session: Session, error: AngariumError | None, now: float, /) -> None:
        """Let go of a session that is in no table any more; it ended by itself if there is no error."""


class Closing:
    """Ends sessions."""

    def __init__(
        self,
        counters: Counters,
        sessions: SessionTable,
        rounds: Rounds,
        egress: Egress,
        listeners: Sequence[Listener],
    ) -> None:
        """Be what the table of sessions ends them with; `listeners` let go of a session in their order."""
        self._counters = counters
        self._sessions = sessions
        self._rounds = rounds
        self._egress = egress
        self._listeners = listeners
        #: (When it is looked at, its number, it), the next one first, of those that may fall silent; some have ended.
        self._looks: list[tuple[float, int, Session]] = []
        #: Those that said BYE and are still there.
        self._leaving: dict[Session, None] = {}
        #: Sessions that are to be looked at in this round, some of which may have ended; and when.
        self._unswept: list[Session] = []
        self._turn_at = 0.0
        self._turn_s = ROUND_S
        sessions.close, sessions.replace, sessions.go_on_with_bye = (
            self.close,
            self._replace,
            self.go_on_with_bye,
        )

    def close(self, session: Session, error: AngariumError, now: float) -> None:
        """End a session and tell it why."""
        if not session.closed:
            self._counters.errors[error.code] += 1
            self._end(session, error, now, tell=True)

    def unreachable(self, session: Session, error: AngariumError, now: float) -> None:
        """End a session that cannot be told any more."""
        self._counters.errors[error.code] += 1
        self._end(session, error, now, tell=False)

    def _replace(self, session: Session, now: float) -> None:
        """A client resumed on another connection before the loss of this one was noticed, or took its place."""
        code = errors.KEEPALIVE_TIMEOUT if session.carrier is None else errors.TAKEN_OVER
        self._end(session, error_for(code, "resumed on another connection"), now, tell=True)

    def bye(self, session: Session, now: float) -> None:
        """A client wishes to go, when what it sent is where it should be and it has what waits for it."""
        if session.bye_at is None:
            session.bye_at = now
            self._leaving[session] = None
        self.go_on_with_bye(session, now)

    def go_on_with_bye(self, session: Session, now: float) -> None:
        """End a session that said BYE if nothing keeps it any more."""
        if session.bye_at is None or session.closed:
            return
        assert session.egress is not None
        is_done = session.is_sent_on and session.is_stored
        if is_done and (session.egress.congested_at is None or not self._egress.may_send(session)):
            self._end(session, None, now, tell=True)

    def hears(self, routing_id: bytes, now: float) -> None:
        """A message of a client is on its way, for longer than a while: it is not silent, and hears that we are not.

        What it asks meanwhile, to know that we are there, comes behind that message; behind many small ones, too.
        """
        session = self._sessions.by_routing_id.get(routing_id)
        if session is not None:
            session.last_heard = now
            self._assure(session, now)

    def _assure(self, session: Session, now: float) -> None:
        session.assured_at = now
        self._egress.assure(session)

    def clock_was_set(self, by_ms: int, now: float) -> None:
        """Have links and bridges of other hosts come anew if our clock was set.

        By what it showed at their login they count how old a message is, and what is left of its time to live.
        """
        if abs(by_ms) < CLOCK_STEP_MS:
            return
        for session in list(self._sessions):
            if session.address and (session.link is not None or session.carried_for is not None):
                self.close(session, error_for(errors.NOT_CONNECTED, "the clock of the node was set"), now)

    def tick(self, now: float) -> float:
        """End sessions that are silent, or wait in vain after a BYE; gives when to call again (seconds, absolute)."""
        if now < self._turn_at:
            return self._turn_at
        if not self._unswept:
            self._unswept = [*self._leaving, *self._silent(now)]
            self._turn_s = ROUND_S / (len(self._unswept) // SESSIONS_PER_TURN + 1)
        some = self._unswept[-SESSIONS_PER_TURN:]
        del self._unswept[-SESSIONS_PER_TURN:]
        self._sweep(some, now)
        self._turn_at = now + self._turn_s
        return self._turn_at

    def _silent(self, now: float) -> list[Session]:
        """Give those that may have been silent for too long, and plan the next look at all others.

        Who says much and whose PING does not come hears that we are there.
        """
        came, self._sessions.came = self._sessions.came, []
        looks, found = self._looks, []
        while looks and looks[0][0] <= now:
            came.append(heapq.heappop(looks)[2])
        for session in came:
            if session.closed or session.keepalive_s == math.inf:
                continue
            interval_s = session.keepalive_s
            due = session.last_heard + interval_s * KEEPALIVES_MISSED
            if due < now:
                found.append(session)
            elif session.assured_at + interval_s * PING_LATE < now < session.last_heard + interval_s:
                self._assure(session, now)
            look_s = min(interval_s, LOOK_S)
            heapq.heappush(looks, (min(max(due, now), now + look_s), session.number, session))
        return found

    def _sweep(self, sessions: list[Session], now: float) -> None:
        for session in sessions:
            if session.closed:
                continue
            if now - session.last_heard > session.keepalive_s * KEEPALIVES_MISSED:
                self.close(session, error_for(errors.KEEPALIVE_TIMEOUT), now)
            elif session.bye_at is not None:
                # What it waited for may have ended in other ways than by an acknowledgement.
                self.go_on_with_bye(session, now)
                if now - session.bye_at > BYE_WAIT_S and _waits_for_homes(session):
                    self.close(session, error_for(errors.HOME_NOT_READY, "not all is stored"), now)

    def drain(self, now: float) -> bool:
        """End every session of which nothing is under way, as the node goes down; true when there is none left."""
        for session in list(self._sessions):
            if session.is_sent_on and session.is_stored:
                self._end(session, error_for(errors.SHUTTING_DOWN), now, tell=True)
        return not self._sessions

    def _end(self, session: Session, error: AngariumError | None, now: float, *, tell: bool) -> None:
        if session.closed:
            return
        if tell:
            if error is not None:  # what answers BYE says that all has retired
                self._rounds.tell_retired(session)
            why = [0, "bye"] if error is None else [error.code, error.detail]
            self._egress.answer(session, [wire.CLOSED, wire.pack(why)])
        session.closed = True
        self._leaving.pop(session, None)
        self._sessions.remove(session)
        for listener in self._listeners:
            listener.session_ended(session, error, now)
        for name, value in session.counters.items():
            if name in SESSION_COUNTERS:
                self._counters.totals[name] += value
        session.counts_for = self._counters.totals

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        looked_at = {session for _, _, session in self._looks}
        assert len(looked_at) == len(self._looks)
        for session in self._sessions:
            assert session.keepalive_s == math.inf or session in looked_at or session in self._sessions.came
            assert (session.bye_at is None) == (session not in self._leaving)
        assert not any(session.closed for session in self._leaving)


def _waits_for_homes(session: Session) -> bool:
    """Tell whether a client waits for what is to be stored; everything else goes on by itself."""
    rounds = session.open_rounds
    return not session.is_stored or bool(rounds and rounds[0].producer is not None)
