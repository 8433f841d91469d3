"""All ways in which operators log in, and who asks.

A request that says who asks (a password, a token) is of nobody else, whatever its connection has shown. Without, it is
of the session of a browser, and then of whoever the certificate of the connection names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from angarium import errors
from cluster.management.access.browsers import Browsers
from cluster.management.access.logins import Logins
from cluster.management.access.outcomes import Caller, Login, Outcomes
from cluster.management.access.subjects import Subjects
from cluster.management.access.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.web import BaseRequest

    from angarium_server.connections.tls import Peer
    from angarium_server.tokens.config import TokenIssuer
    from cluster.management.access.outcomes import Ask


class OidcOffer(msgspec.Struct, frozen=True):
    """A login by OpenID Connect, in the browser."""

    #: Where a browser is sent for it, and what is said there.
    path: str
    label: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Which ways to log in there are, for whoever has not logged in: a page shows a button for each."""

    password: bool
    token: bool
    certificate: Literal["none", "optional", "required"]
    oidc: OidcOffer | None


class Ways:
    """The ways that there are."""

    def __init__(self, ask: Ask, issuers: Sequence[TokenIssuer]) -> None:
        self.outcomes = Outcomes(ask)
        self._logins = Logins(ask, self.outcomes)
        self.subjects = Subjects(ask, self.outcomes)
        self._tokens = Tokens(issuers, ask, self.outcomes, self.subjects)
        self.browsers = Browsers(self._logins, self.subjects)

    async def caller(self, request: BaseRequest, peer: Peer) -> Caller:
        """Give who asks.

        Raises:
            UnauthorizedError: nobody who may come in (40101).
            RefusedError: the same, with how to come in.
            RateLimitError: too many attempts have failed (42901).
            ForbiddenError: a change without the token of its session (40328).
        """
        authorization = request.headers.get("Authorization")
        if authorization is None and (caller := await self.browsers.caller(request, peer)):
            return caller
        if authorization is None and peer.certificate is not None:
            login = Login("certificate", peer.address, subject=peer.certificate.common_name)
            return await self.subjects.log_in("certificate_name", login, login.subject)
        scheme, _, shown = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and self._tokens:
            return await self._tokens.caller(shown.strip(), peer.address)
        return await self._logins.caller(authorization, peer.address)

    async def check(self, request: BaseRequest, peer: Peer, operator: str) -> None:
        """Look whether what a request of an operator came in with counts still, while it is answered.

        A password is none of it: who asks with one is known by name, and compared as such by who answers.

        Raises:
            UnauthorizedError: it does not count any more (40101).
            RefusedError: the same.
        """
        authorization = request.headers.get("Authorization")
        found: str | None = operator
        if authorization is not None:
            if authorization.lower().startswith("bearer "):
                found = (await self.caller(request, peer)).operator
        elif self.browsers.has(request, peer):
            await self.browsers.check(request, peer)
        elif peer.certificate is not None:
            found = await self.subjects.find("certificate_name", peer.certificate.common_name)
        if found != operator:
            detail = f"what it was asked for with is not of operator {operator!r} any more"
            raise errors.error_for(errors.UNAUTHORIZED, detail, "log in again")

    def counts(self) -> dict[str, int]:
        """Give what happened so far, by the names of metrics."""
        names = ("logins", "logins_failed", "logins_put_off")
        counted = {name: self.outcomes.counts[name] for name in names}
        return {**counted, "sessions": len(self.browsers.sessions)}

    def close(self) -> None:
        """Let nobody in any more."""
        self._logins.close()
