"""Sessions of browsers: who logged in, for as long as the page is used; in memory alone. Time is a parameter.

A session holds a name, and what the login rested on, the hash of the password for instance: what the operator may do
is judged with each request, and a password that was changed ends it. Of its id only a hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cluster.management.access.outcomes import Method

#: A session ends when nothing was asked for so long, and at the latest so long after the login.
IDLE_S: Final = 1_800.0
LIFETIME_S: Final = 43_200.0
#: With more, the one of the operator, or of all, that asked for nothing for longest ends.
PER_OPERATOR_MAX: Final = 20
SESSIONS_MAX: Final = 1_000


class Session(NamedTuple):
    """One browser of one operator."""

    operator: str
    #: What the login rested on, while it stands: the hash of the password, or what a token or certificate said.
    stored: str
    #: Said with each change: a page of another site can have the cookie sent, and does not know this.
    token: str
    began: float
    used: float
    method: Method = "password"

    def is_over(self, now: float) -> bool:
        """Tell whether nobody may use it any more."""
        return now - self.used > IDLE_S or now - self.began > LIFETIME_S

    def allows_change(self, token: str) -> bool:
        """Tell whether a change comes from the page that logged in."""
        return hmac.compare_digest(self.token.encode(), token.encode("utf-8", "surrogateescape"))


class Sessions:
    """Those that there are."""

    def __init__(self) -> None:
        #: Hash of the id -> session, the one that was used last at the end.
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, operator: str, stored: str, now: float, method: Method = "password"
    ) -> tuple[str, Session]:
        """Begin one, and give its id, which only the browser keeps."""
        self._make_room(operator, now)
        name = secrets.token_urlsafe(32)
        session = Session(operator, stored, secrets.token_urlsafe(32), now, now, method)
        self._open[_key(name)] = session
        return name, session

    def use(self, name: str, now: float) -> Session | None:
        """Give the session of an id, and note that it is used; None if there is none, or it is over."""
        session = self._open.pop(_key(name), None)
        if session is None or session.is_over(now):
            return None
        self._open[_key(name)] = session = session._replace(used=now)
        return session

    def look(self, name: str, now: float) -> Session | None:
        """Give the session of an id without using it; None if there is none, or it is over."""
        session = self._open.get(_key(name))
        return None if session is None or session.is_over(now) else session

    def end(self, name: str) -> None:
        """End one."""
        self._open.pop(_key(name), None)

    def _make_room(self, operator: str, now: float) -> None:
        for key in [key for key, session in self._open.items() if session.is_over(now)]:
            del self._open[key]
        own = [key for key, session in self._open.items() if session.operator == operator]
        if len(own) >= PER_OPERATOR_MAX:
            del self._open[own[0]]
        elif len(self._open) >= SESSIONS_MAX:
            self._open.popitem(last=False)


def _key(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=32).digest()
