"""Reports messages that were not sent on: to their publisher, and to operators through counters.

Direct messages are reported by NOTICE, guaranteed ones by nacks (`router.admission`), so those are only noted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import error_for
from router.sessions.round import Refusal, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.matching import RefusedRows
    from router.delivery.egress import Egress
    from router.ground.ground import Counters
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable

_LOST_REASON: Final = "discard.shard-unavailable"
_NO_MATCH: Final = "discard.no-subscription-match"
_REFUSED_NAMES: Final = {
    errors.PUBLISH_DENIED: "discard.publish-topic-acl",
    errors.INVALID_TOPIC: "discard.topic-parse-error",
    errors.RESERVED_TOPIC: "discard.topic-reserved",
    errors.MESSAGE_TOO_LARGE: "discard.msg-too-big",
    errors.UNKNOWN_ENDPOINT: "discard.queue-not-found",
    errors.NO_SUBSCRIPTION_MATCH: _NO_MATCH,
}


def discard_name(code: int) -> str:
    """Give the counter of messages that a worker refused with a code."""
    return _REFUSED_NAMES.get(code, f"discard.refused-{code}")


class Accounting:
    """Notifies publishers and counts."""

    def __init__(self, counters: Counters, egress: Egress, sessions: SessionTable) -> None:
        self._counters = counters
        self._egress = egress
        self._sessions = sessions

    def answered(
        self, a_round: Round[Session], unmatched: int, refused: Sequence[RefusedRows], now: float
    ) -> None:
        """A worker, or the fast path, has judged rows of a round."""
        session = a_round.session
        if unmatched:
            self._counters.totals[_NO_MATCH] += unmatched
            session.count(_NO_MATCH, unmatched)
        for one in refused:
            if one.code == errors.MALFORMED_FRAME:
                a_round.broken = True
                self._sessions.close(session, error_for(one.code, one.first_topic), now)
            elif a_round.producer is not None:
                a_round.refused = [*a_round.refused, Refusal(one.code, one.first_topic, one.indices)]
            else:
                self._refused(session, one.code, one.rows, one.first_topic, a_round.number)

    def _refused(self, session: Session, code: int, rows: int, detail: str, number: int) -> None:
        name = discard_name(code)
        self._counters.totals[name] += rows
        session.count(name, rows)
        self._counters.errors[code] += rows
        self._notice(session, [code, detail, rows, number])

    def lost(self, session: Session, rows: int) -> None:
        """A worker died with direct rows, or is away."""
        self._counters.totals[_LOST_REASON] += rows
        session.count(_LOST_REASON, rows)
        self._notice(session, [errors.SHARD_UNAVAILABLE, "direct messages were lost", rows, 0])

    def _notice(self, session: Session, body: list[Any]) -> None:
        if not session.closed:
            self._egress.answer(session, [wire.NOTICE, wire.pack(body)])
