"""Telling publishers which of their rounds have retired: that renews their ingress credit.

One frame renews the credit of many rounds: it is told when half of it is used, when the client asks, with the answer to
its heartbeat, and at the end. A client with credit left does not miss it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from router.delivery.egress import Egress
    from router.sessions.round import Round
    from router.sessions.session import Session


class Renewal:
    """Ingress credit that is given back."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    def retired(self, session: Session, a_round: Round[Session]) -> None:
        """A round of a session that goes on has retired."""
        session.untold_bytes += a_round.bytes
        half_used = (
            session.retired_round - session.retired_told
        ) * 2 >= session.rounds_max or session.untold_bytes * 2 >= session.bytes_max
        if half_used or a_round.flush:
            self._tell(session)

    def tell(self, session: Session) -> None:
        """Tell what has retired, if it was not told."""
        if session.retired_told < session.retired_round:
            self._tell(session)

    def _tell(self, session: Session) -> None:
        session.retired_told = session.retired_round
        session.untold_bytes = 0
        self._egress.answer(session, [wire.RETIRED, wire.pack([session.retired_round])])
