"""Sessions that are here by a token: each ends with its token, unless that is renewed before.

The shape of what a client asks for that is here too; `router.access.handshake` has tokens verified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from router.asking.requests import Answer
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable

#: What a client asks for with a fresh token.
RENEW: Final = "token.renew"


class RenewWish(msgspec.Struct):
    """Of `token.renew`."""

    jwt: str


class Renewal(NamedTuple):
    """A session whose token is to be followed by another one, and who waits to hear of it."""

    session: Session
    answer: Answer


class GrantedSessions:
    """All sessions that are here by a token."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        #: In the order of their logins; some may be over.
        self._sessions: dict[int, Session] = {}

    def entered(self, session: Session) -> None:
        """Take a session that has just begun."""
        if session.grant is not None:
            self._sessions[session.number] = session

    def sweep(self, wall_ms: int, now: float) -> None:
        """End those whose token has ended."""
        for number, session in list(self._sessions.items()):
            if session.closed:
                del self._sessions[number]
            elif session.grant is not None and session.grant.ends_ms <= wall_ms:
                del self._sessions[number]
                self._table.close(session, error_for(errors.TOKEN_EXPIRED), now)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(session.grant is not None for session in self._sessions.values())
