"""Operators who show a token (JWT) of an issuer that is trusted: `Authorization: Bearer TOKEN`.

Tokens are judged as those of clients are (`router.tokens`): a signature by a public key of the issuer, with an
algorithm of the configuration; who has issued it, for whom, and from when until when. The keys are those that the
controller reads, or fetches. It is asked for them again after a minute, and when a token names one that is not known;
it bounds how often the issuer hears of that.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium.errors import error_for
from angarium_server.http.problems import RefusedError
from cluster.management.access.outcomes import Login
from router.access.issuers import Issuers
from router.tokens.claims import judged_claims, text_claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.management.access.outcomes import Ask, Caller, Outcomes
    from cluster.management.access.subjects import Subjects
    from router.tokens.claims import Peeked
    from router.tokens.config import TokenIssuer
    from router.tokens.keys import Key

#: How long keys are used before the controller is asked again, and how long a token that was good is not verified.
KEYS_S: Final = 60.0
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
        self._issuers = Issuers(issuers)
        self._ask = ask
        self._outcomes = outcomes
        self._subjects = subjects
        #: Name of the issuer -> when its keys came, on the clock of this process.
        self._keys_came: dict[str, float] = {}
        #: Hash of a token -> whose it is, the one that was verified first at the beginning.
        self._good: OrderedDict[bytes, _Good] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._issuers)

    async def caller(self, token: str, address: str) -> Caller:
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
        named = ""
        try:
            issuer, peeked = self._issuers.peek(token)
            named = peeked.username
            subject, ends_ms = await self._verified(token, issuer, peeked)
        except errors.UnauthorizedError as error:
            await self._outcomes.refused(Login("token", address, subject=named), error.detail)
            raise error_for(errors.UNAUTHORIZED, error.detail, _ADVICE) from None
        self._good.pop(mark, None)
        if len(self._good) >= GOOD_MAX:
            self._good.popitem(last=False)
        left_s = (ends_ms - _wall_ms()) / 1_000
        self._good[mark] = _Good(subject, time.monotonic() + min(KEYS_S, left_s))
        return subject

    async def _verified(self, token: str, issuer: TokenIssuer, peeked: Peeked) -> tuple[str, int]:
        """Give the subject of a token, and the wall time in ms at which it ends.

        Raises:
            AngariumError: it does not count (40101); the controller does not answer (50321).
        """
        from router.tokens.verification import (
            signed_payload,  # a node whose operators show no tokens does without the library
        )

        keys = await self._keys_for(issuer, peeked)
        if not keys:
            detail = f"a token of a key of issuer {issuer.name!r} that is not known"
            raise error_for(errors.UNAUTHORIZED, detail)
        payload = signed_payload(token, peeked.algorithm, keys)
        if payload is None:
            raise error_for(errors.UNAUTHORIZED, f"a token that issuer {issuer.name!r} has not signed")
        claims, ends_ms = judged_claims(payload, issuer, _wall_ms())
        return text_claim(claims, issuer.username_claim), ends_ms

    async def _keys_for(self, issuer: TokenIssuer, peeked: Peeked) -> tuple[Key, ...]:
        """Give the keys that may have signed a token, after asking for them if need be."""
        came = self._keys_came.get(issuer.name, -KEYS_S)
        if time.monotonic() - came >= KEYS_S:
            await self._fetch(issuer, is_unknown=False)
        if not self._issuers.keys_for(issuer, peeked):
            await self._fetch(issuer, is_unknown=True)
        return self._issuers.keys_for(issuer, peeked)

    async def _fetch(self, issuer: TokenIssuer, *, is_unknown: bool) -> None:
        from router.tokens.keys import load_rows

        try:
            rows = await self._ask("operators.keys", {"issuer": issuer.name, "is_unknown": is_unknown})
        except errors.TimeoutExpiredError:
            return  # the address of the issuer is slower than we wait; the keys that are known go on
        self._issuers.put_keys({issuer.name: load_rows(rows)})
        self._keys_came[issuer.name] = time.monotonic()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
