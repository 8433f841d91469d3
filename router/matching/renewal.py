"""Telling publishers which of their rounds have retired: that renews their ingress credit.

One frame renews the credit of many rounds: it is told when half of it is used, when the client asked, and a moment
after a lone round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import wire

if TYPE_CHECKING:
    from router.delivery.egress import Egress
    from router.matching.round import Round
    from router.session import Session

#: How long a lone retired round may wait to be told: a client with credit left does not miss it, and one frame
#: then renews the credit of many rounds.
RETIRED_DELAY_S: Final = 0.1


class Renewal:
    """Ingress credit that is given back."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        #: Sessions with retired rounds that they were not told of; told together at `_tell_at`.
        self._untold: dict[Session, None] = {}
        self._tell_at = 0.0

    def retired(self, session: Session, a_round: Round[Session], now: float) -> None:
        """A round of a session that goes on has retired."""
        session.untold_bytes += a_round.bytes
        half_used = (
            session.retired_round - session.retired_told
        ) * 2 >= session.rounds_max or session.untold_bytes * 2 >= session.bytes_max
        if half_used or a_round.flush:
            self._tell(session)
        elif session not in self._untold:
            if not self._untold:
                self._tell_at = now + RETIRED_DELAY_S
            self._untold[session] = None

    def _tell(self, session: Session) -> None:
        session.retired_told = session.retired_round
        session.untold_bytes = 0
        self._untold.pop(session, None)
        self._egress.answer(session, [wire.RETIRED, wire.pack([session.retired_round])])

    def forget(self, session: Session) -> None:
        """A session is over."""
        self._untold.pop(session, None)

    def tick(self, now: float) -> float:
        """Tell those whose time has come; gives when to call again, infinite if nothing waits."""
        if self._untold and now >= self._tell_at:
            for session in list(self._untold):
                self._tell(session)
        return self._tell_at if self._untold else float("inf")
