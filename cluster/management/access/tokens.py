"""Operators who show a token (JWT) of an issuer that is trusted: `Authorization: Bearer TOKEN`.

The keys are those that the controller reads, or fetches, for tokens of clients as well.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium.errors import error_for
from angarium_server.http.problems import RefusedError
from angarium_server.tokens.claims import text_claim
from cluster.management.access.outcomes import Login
from cluster.management.access.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import KeyRow
    from cluster.management.access.outcomes import Ask, Caller, Outcomes
    from cluster.management.access.subjects import Subjects

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
