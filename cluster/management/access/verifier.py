"""What tokens (JWT) say that an issuer has signed, judged as those of clients are (`angarium_server.tokens`).

A signature by a public key of the issuer, with an algorithm of the configuration; who has issued it, for whom, and from
when until when. Keys are asked for again after a minute, and when a token names one that is not known; whoever gives
them bounds how often an issuer hears of that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.tokens.claims import judged_claims
from router.access.issuers import Issuers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from angarium_server.tokens.claims import Peeked
    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import Key, KeyRow

    #: Gives the keys of an issuer, None if there is no answer; whether a token names one that is not known.
    Fetch = Callable[[TokenIssuer, bool], Awaitable[Sequence[KeyRow] | None]]

#: How long keys are used before they are asked for again.
KEYS_S: Final = 60.0


class Verified(NamedTuple):
    """A token that counts."""

    issuer: TokenIssuer
    claims: dict[str, Any]
    #: Wall time in ms.
    ends_ms: int


class Verifier:
    """Tells what a token says."""

    def __init__(self, issuers: Sequence[TokenIssuer], fetch: Fetch) -> None:
        self._issuers = Issuers(issuers)
        self._fetch = fetch
        #: Name of the issuer -> when its keys came, on the clock of this process.
        self._keys_came: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._issuers)

    def subject_of(self, token: str) -> str:
        """Give whom a token names, without looking whether that is true; empty if that is not clear."""
        try:
            return self._issuers.peek(token)[1].username
        except AngariumError:
            return ""

    async def verified(self, token: str) -> Verified:
        """Give what a token says that counts.

        Raises:
            AngariumError: it does not (40101); nobody gives keys (50321, 50332).
        """
        from angarium_server.tokens.verification import (
            signed_payload,  # a node whose operators show no tokens does without the library
        )

        issuer, peeked = self._issuers.peek(token)
        keys = await self._keys_for(issuer, peeked)
        if not keys:
            detail = f"a token of a key of issuer {issuer.name!r} that is not known"
            raise error_for(errors.UNAUTHORIZED, detail)
        payload = signed_payload(token, peeked.algorithm, keys)
        if payload is None:
            # Of a key without a name, or with that of the one before, nothing else tells that it is another one.
            await self._take(issuer, is_unknown=True)
            others = self._issuers.keys_for(issuer, peeked)
            payload = None if others == keys else signed_payload(token, peeked.algorithm, others)
        if payload is None:
            raise error_for(errors.UNAUTHORIZED, f"a token that issuer {issuer.name!r} has not signed")
        claims, ends_ms = judged_claims(payload, issuer, time.time_ns() // 1_000_000)
        return Verified(issuer, claims, ends_ms)

    async def _keys_for(self, issuer: TokenIssuer, peeked: Peeked) -> tuple[Key, ...]:
        """Give the keys that may have signed a token, after asking for them if need be."""
        came = self._keys_came.get(issuer.name)
        if came is None or time.monotonic() - came >= KEYS_S:
            await self._take(issuer, is_unknown=False)
        if not self._issuers.keys_for(issuer, peeked):
            await self._take(issuer, is_unknown=True)
        return self._issuers.keys_for(issuer, peeked)

    async def _take(self, issuer: TokenIssuer, *, is_unknown: bool) -> None:
        from angarium_server.tokens.keys import load_rows

        rows = await self._fetch(issuer, is_unknown)
        if rows is not None:
            self._issuers.put_keys({issuer.name: load_rows(rows)})
            self._keys_came[issuer.name] = time.monotonic()
