"""Clients that are attached to gateways: who they are inside of a gateway's frames, and their end when it is gone.

A client of a gateway is a session like any other. Its routing id is that of the gateway's session, and behind it the
number that the gateway gave it: so its frames find it as those of a connection find theirs.

When the session of a gateway ends, all that are attached to it are *orphans*: nobody hears what is said to them. Ten
thousand are too many for one step, so some end in each. Whoever comes back meanwhile takes the place of his own.

No I/O, no clock.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.frames.frame import decoder
from angarium_server.frames.gateways import AloneFrame, CountedFrame, Counts
from router.sessions.session import SESSION_COUNTERS

if TYPE_CHECKING:
    from router.delivery.egress import Egress
    from router.ground.ground import Counters
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable

#: Orphans that end in one step: 2 ms.
ORPHANS_PER_STEP: Final = 50
#: Others have got nothing of the rounds of a gateway for so long.
ALONE_S: Final = 1.0
_NUMBER: Final = wire.ATTACHED_NUMBER_BYTES
_decode_counted: Final = decoder(CountedFrame)


class _Alone:
    """Whether anybody gets what the clients of a gateway publish, but they."""

    __slots__ = ("is_told", "since")

    def __init__(self, now: float) -> None:
        #: Nobody else has since.
        self.since = now
        #: Whether the gateway was told so.
        self.is_told = False


class AttachedClients:
    """The clients of all gateways."""

    def __init__(self, sessions: SessionTable, counters: Counters, egress: Egress) -> None:
        self._egress = egress
        #: Gateways of which rounds were judged.
        self._alone: dict[Session, _Alone] = {}
        self._sessions = sessions
        self._counters = counters
        #: Clients of gateways that are gone, and why those are; some may have ended in other ways.
        self._orphans: deque[tuple[Session, AngariumError]] = deque()

    def routing_id(self, carrier: Session, frames: list[bytes]) -> bytes:
        """Give who has sent what is inside of a frame of a gateway.

        Raises:
            InvalidRequestError: it names nobody (40001).
        """
        if len(frames[1]) != _NUMBER:
            raise wire.malformed(f"the number of an attached client has {_NUMBER} bytes")
        return carrier.routing_id + frames[1]

    def counted(self, carrier: Session, header: bytes) -> None:
        """A gateway tells what it has counted of clients.

        Raises:
            InvalidRequestError: the frame is malformed (40001).
        """
        for one in wire.decode_header(_decode_counted, header).clients:
            session = self._sessions.by_routing_id.get(
                carrier.routing_id + one.number.to_bytes(_NUMBER, "big")
            )
            if session is not None:
                self._count(session, one)

    def _count(self, session: Session, told: Counts) -> None:
        before = {} if session.counted is None else session.counted.totals
        for name, total in told.totals.items():
            more = max(0, total - before.get(name, 0))
            session.count(name, more)
            if name.startswith("discard.") and name not in SESSION_COUNTERS:  # those are added at its end
                self._counters.totals[name] += more
        totals = {**before, **told.totals}
        session.counted = Counts(told.number, totals, told.queued_messages, told.queued_bytes)

    def judged(self, carrier: Session, now: float, *, is_for_others: bool) -> None:
        """A round that its clients have already showed whether others get it; tell a gateway when that has changed."""
        alone = self._alone.setdefault(carrier, _Alone(now))
        if is_for_others:
            alone.since = now
        is_alone = now - alone.since >= ALONE_S
        if is_alone is not alone.is_told:
            alone.is_told = is_alone
            self._egress.answer(carrier, AloneFrame(is_alone).frames())

    def session_ended(self, session: Session, error: AngariumError | None, _now: float) -> None:
        """If the session of a gateway is over, so are its clients, some in each step."""
        if session.kind.carries_clients:
            self._alone.pop(session, None)
            why = error or error_for(errors.KEEPALIVE_TIMEOUT, "its gateway has left")
            self._orphans.extend((one, why) for one in self._sessions if one.carrier is session)

    def tick(self, now: float) -> float:
        """End some orphans; gives when to come again."""
        for _ in range(min(ORPHANS_PER_STEP, len(self._orphans))):
            session, why = self._orphans.popleft()
            self._sessions.close(session, why, now)
        return now if self._orphans else math.inf

    def validate(self) -> None:
        """Check that who is attached to nobody will end."""
        orphans = {session for session, _ in self._orphans}
        for session in self._sessions:
            carrier = session.carrier
            if carrier is not None:
                assert session.routing_id[:-_NUMBER] == carrier.routing_id
                assert carrier.closed == (session in orphans)
