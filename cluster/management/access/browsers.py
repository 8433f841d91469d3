"""Browsers over HTTP: logging in and out, the cookie of a session, and the token that a change has to bring.

The cookie goes to no page of another site (SameSite) and to no script (HttpOnly). Cookies do not tell ports apart, so
its name does: several nodes of one host each have their own.

Sessions are in memory alone. A session holds a name, and what the login rested on, the hash of the password for
instance: what the operator may do is judged with each request, and a password that was changed ends it. Of its id only
a hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from angarium import errors
from angarium_server.http import bodies
from angarium_server.http.problems import RefusedError
from cluster.management.access.logins import NAME_MAX, Given
from cluster.management.access.outcomes import Login, Method

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.web import BaseRequest

    from angarium_server.connections.tls import Peer
    from cluster.management.access.logins import Logins
    from cluster.management.access.outcomes import Method, Operator
    from cluster.management.access.subjects import Attribute, Subjects

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


#: Of a change by a page: the token that its login was answered with.
SAID_WITH_CHANGES: Final = "Angarium-Token"
#: A challenge that browsers do not know: with Basic they would ask for the password in a window of their own.
CHALLENGE: Final = {"WWW-Authenticate": 'Session realm="angarium"'}

#: How a login was made -> what of an operator it rests on, where that is no password.
_ATTRIBUTES: Final[dict[Method, Attribute]] = {"oidc": "token_subject", "certificate": "certificate_name"}
_NO_CERTIFICATE: Final = "choose one in the browser; management.tls_client_certificates has it asked for"


class Browsers:
    """Tells who asks, if it is a page with a session."""

    def __init__(self, logins: Logins, subjects: Subjects) -> None:
        self._logins = logins
        self._subjects = subjects
        self.sessions = Sessions()

    async def log_in(self, request: BaseRequest, body: dict[str, Any], peer: Peer) -> web.Response:
        """Begin a session with name and password, and end the one that the browser had.

        Raises:
            InvalidRequestError: the body has no name and password (40018).
            RefusedError: they do not belong together (40101).
            RateLimitError: too many attempts have failed (42901).
        """
        given = _given(body)
        try:
            stored = await self._logins.log_in(given, peer.address)
        except errors.UnauthorizedError as error:
            raise RefusedError(error, CHALLENGE) from None
        return self._answered(request, self.sessions.begin(given.name, stored, time.monotonic()), peer)

    async def log_in_by_certificate(self, request: BaseRequest, peer: Peer) -> web.Response:
        """Begin a session of the operator whose certificate the connection has shown.

        Raises:
            RefusedError: it has shown none, or that of nobody who may come in (40101).
        """
        if peer.certificate is None:
            detail = "this connection has shown no certificate"
            raise RefusedError(errors.error_for(errors.UNAUTHORIZED, detail, _NO_CERTIFICATE), CHALLENGE)
        login = Login("certificate", peer.address, subject=peer.certificate.common_name)
        try:
            operator = await self._subjects.log_in("certificate_name", login)
        except errors.UnauthorizedError as error:
            raise RefusedError(error, CHALLENGE) from None
        session = self.sessions.begin(operator.name, login.subject, time.monotonic(), "certificate")
        return self._answered(request, session, peer)

    def _answered(self, request: BaseRequest, session: tuple[str, Session], peer: Peer) -> web.Response:
        response = bodies.answer(request, _shown(session[1]))
        self.keep(request, response, session, peer)
        return response

    def keep(
        self, request: BaseRequest, response: web.Response, session: tuple[str, Session], peer: Peer
    ) -> None:
        """Have a browser keep a session that has begun, with its id; the one that it had ends."""
        cookie = cookie_name(request, peer)
        self.sessions.end(request.cookies.get(cookie, ""))
        set_cookie(response, cookie, session[0], peer)

    async def caller(self, request: BaseRequest, peer: Peer) -> Operator | None:
        """Give the operator whose page asks; None if the request has no session.

        Raises:
            RefusedError: the session is over (40101).
            ForbiddenError: a change without the token of the session (40328).
        """
        if not self.has(request, peer):
            return None
        session, operator = await self._session(request, peer)
        if request.method not in ("GET", "HEAD") and not session.allows_change(
            request.headers.get(SAID_WITH_CHANGES, "")
        ):
            detail = f"a change by a session needs its token in the header {SAID_WITH_CHANGES}"
            raise errors.error_for(errors.CROSS_ORIGIN, detail)
        return operator

    async def _session(self, request: BaseRequest, peer: Peer) -> tuple[Session, Operator]:
        """Give the session of a request, and whose it is.

        Raises:
            RefusedError: there is none, or it is over (40101).
        """
        name = request.cookies.get(cookie_name(request, peer), "")
        session = self.sessions.use(name, time.monotonic())
        if session is None:
            raise _over()
        operator = await self._operator(session)
        if operator is None:
            self.sessions.end(name)
            raise _over()
        return session, operator

    def has(self, request: BaseRequest, peer: Peer) -> bool:
        """Tell whether a request says that it is of a session."""
        return cookie_name(request, peer) in request.cookies

    async def check(self, request: BaseRequest, peer: Peer) -> None:
        """Look whether the session of a request that is answered for long is there still; that is no use of it.

        Raises:
            RefusedError: it is over (40101).
        """
        session = self.sessions.look(request.cookies[cookie_name(request, peer)], time.monotonic())
        if session is None or await self._operator(session) is None:
            raise _over()

    async def _operator(self, session: Session) -> Operator | None:
        """Give the operator, if what the login rested on is so still."""
        if attribute := _ATTRIBUTES.get(session.method):
            found = await self._subjects.find(attribute, session.stored)
            return found if found is not None and found.name == session.operator else None
        return await self._logins.find(session.operator, session.stored)

    async def show(self, request: BaseRequest, peer: Peer) -> web.Response:
        """Give the session, so that a page that was loaded again knows its token."""
        session, _ = await self._session(request, peer)
        return bodies.answer(request, _shown(session))

    def log_out(self, request: BaseRequest, peer: Peer) -> web.Response:
        """End the session."""
        cookie = cookie_name(request, peer)
        self.sessions.end(request.cookies.get(cookie, ""))
        response = bodies.answer(request, None)
        set_cookie(response, cookie, "", peer, max_age=0)
        return response


class LoginArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends to log in."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    password: str


class ShownSession(msgspec.Struct, frozen=True):
    """What a page is told of its session."""

    operator: str
    #: Said with each change, in the header Angarium-Token.
    token: str
    #: It ends after so long without a request, and so long after the login.
    idle_s: int
    lifetime_s: int
    #: How the operator has logged in.
    method: Method


def _given(body: dict[str, Any]) -> Given:
    try:
        asked = msgspec.convert(body, LoginArguments)
    except msgspec.ValidationError:
        advice = 'send {"name": "anna", "password": "..."}'
        raise errors.invalid("a login is name and password", advice) from None
    return Given(asked.name, asked.password)


def _shown(session: Session) -> dict[str, Any]:
    shown = ShownSession(session.operator, session.token, int(IDLE_S), int(LIFETIME_S), session.method)
    return msgspec.structs.asdict(shown)


def _over() -> RefusedError:
    error = errors.error_for(errors.UNAUTHORIZED, "there is no session, or it is over", "log in again")
    return RefusedError(error, CHALLENGE)


def cookie_name(request: BaseRequest, peer: Peer) -> str:
    """Give the name of the cookie of a session."""
    port = request.headers["Host"].rpartition(":")[2]
    # Digits of other scripts are digits too, and no cookie can have them in its name.
    name = f"angarium-{port}" if port.isascii() and port.isdecimal() else "angarium"
    return f"__Host-{name}" if peer.is_encrypted else name


def set_cookie(
    response: web.Response,
    cookie: str,
    value: str,
    peer: Peer,
    max_age: int | None = None,
    samesite: Literal["Strict", "Lax"] = "Strict",
) -> None:
    """Have a browser keep a cookie, for no script, and for TLS alone where there is TLS."""
    response.set_cookie(
        cookie,
        value,
        max_age=max_age,
        path="/",
        secure=peer.is_encrypted,
        httponly=True,
        samesite=samesite,
    )
