"""All ways in which operators log in, and who asks.

A request that says who asks (a password, a token) is of nobody else, whatever its connection has shown. Without, it is
of the session of a browser, and then of whoever the certificate of the connection names.

A token (`Authorization: Bearer TOKEN`, JWT) is of an issuer that is trusted, by the keys that the controller reads, or
fetches, for tokens of clients as well.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from angarium import errors
from angarium.errors import error_for
from angarium_server.http.problems import RefusedError
from angarium_server.tokens.claims import text_claim
from cluster.management.access.browsers import Browsers
from cluster.management.access.logins import Logins
from cluster.management.access.outcomes import Login, Outcomes
from cluster.management.access.subjects import Subjects
from cluster.management.access.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.web import BaseRequest

    from angarium_server.connections.tls import Peer
    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import KeyRow
    from cluster.management.access.outcomes import Ask, Operator

#: How long a token that was good is not verified again.
GOOD_S: Final = 60.0
#: Tokens that are known to be good; with more, the one that was shown first is verified again.
GOOD_MAX: Final = 1_000
#: What a refusal says to programs (RFC 6750).
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="angarium", error="invalid_token"'}
_ADVICE: Final = "ask the issuer for a fresh one; 'angarium events' on the node's host tells of each refusal"


class _Good(NamedTuple):
    """What is known of a token that was verified."""

    subject: str
    #: On the clock of this process: until when it counts unseen.
    until: float


class Tokens:
    """Tells whose a token is."""

    def __init__(
        self, issuers: Sequence[TokenIssuer], ask: Ask, outcomes: Outcomes, subjects: Subjects
    ) -> None:
        """Trust these issuers; their `username_claim` is the claim that names an operator."""
        self._verifier = Verifier(issuers, self._keys)
        self._ask = ask
        self._outcomes = outcomes
        self._subjects = subjects
        #: Hash of a token -> whose it is, the one that was verified first at the beginning.
        self._good: OrderedDict[bytes, _Good] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._verifier)

    async def caller(self, token: str, address: str) -> Operator:
        """Give the operator who shows a token.

        Raises:
            RefusedError: it does not count, or is of nobody who may come in (40101).
        """
        mark = hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()
        try:
            subject = await self._subject(mark, token, address)
            login = Login("token", address, subject=subject)
            return await self._subjects.log_in("token_subject", login, mark.hex())
        except errors.UnauthorizedError as error:
            raise RefusedError(error, CHALLENGE) from None

    async def _subject(self, mark: bytes, token: str, address: str) -> str:
        known = self._good.get(mark)
        if known is not None and known.until > time.monotonic():
            return known.subject
        try:
            found = await self._verifier.verified(token)
            subject = text_claim(found.claims, found.issuer.username_claim)
        except errors.UnauthorizedError as error:
            login = Login("token", address, subject=self._verifier.subject_of(token))
            await self._outcomes.refused(login, error.detail)
            raise error_for(errors.UNAUTHORIZED, error.detail, _ADVICE) from None
        self._good.pop(mark, None)
        if len(self._good) >= GOOD_MAX:
            self._good.popitem(last=False)
        left_s = found.ends_ms / 1_000 - time.time()
        self._good[mark] = _Good(subject, time.monotonic() + min(GOOD_S, left_s))
        return subject

    async def _keys(self, issuer: TokenIssuer, is_unknown: bool) -> Sequence[KeyRow] | None:  # noqa: FBT001 - the form of Fetch
        """Give the keys of an issuer; None if its address is slower than we wait: those that are known go on."""
        try:
            rows: list[KeyRow] = await self._ask(
                "operators.keys", {"issuer": issuer.name, "is_unknown": is_unknown}
            )
        except errors.TimeoutExpiredError:
            return None
        return rows


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

    async def caller(self, request: BaseRequest, peer: Peer) -> Operator:
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
                found = (await self.caller(request, peer)).name
        elif self.browsers.has(request, peer):
            await self.browsers.check(request, peer)
        elif peer.certificate is not None:
            shown = await self.subjects.find("certificate_name", peer.certificate.common_name)
            found = None if shown is None else shown.name
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
