"""When the keys of an issuer are fetched from its address: a state machine, without sockets and clocks.

Keys are fetched at the start, then every `refresh_s`, and at once when a token names a key that is not known, but not
more often than every `refresh_min_s`, or unauthenticated peers could have an issuer asked without end. After a failure
it is tried again after `refresh_min_s`, twice as long each time, `refresh_s` at most; the keys that are known stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.tokens.config import TokenIssuer


class _Fetch:
    """What is known of one address."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self.issuer = issuer
        #: When it is asked next, unless something happens before.
        self.due = float("-inf")
        #: When it was asked last; None while that is not yet.
        self.asked_at: float | None = None
        self.is_under_way = False
        #: Failures since the last success.
        self.failures = 0


class Fetches:
    """The addresses of all issuers."""

    def __init__(self, issuers: Sequence[TokenIssuer]) -> None:
        self._of = {one.name: _Fetch(one) for one in issuers if one.jwks_url}

    def take_due(self, now: float) -> list[TokenIssuer]:
        """Give the issuers that are to be asked now; they are under way from here on."""
        due = [fetch for fetch in self._of.values() if fetch.due <= now and not fetch.is_under_way]
        for fetch in due:
            fetch.is_under_way = True
            fetch.asked_at = now
        return [fetch.issuer for fetch in due]

    def want(self, name: str, now: float) -> bool:
        """A token names a key that is not known; tell whether the answer of the address is worth waiting for."""
        fetch = self._of.get(name)
        if fetch is None:
            return False
        if fetch.is_under_way:
            return True
        if fetch.asked_at is not None and now - fetch.asked_at < fetch.issuer.refresh_min_s:
            return False
        fetch.due = now
        return True

    def done(self, name: str, now: float, *, is_good: bool) -> bool:
        """The address has answered, or not; tell whether that is news."""
        fetch = self._of[name]
        fetch.is_under_way = False
        before, issuer = fetch.failures, fetch.issuer
        fetch.failures = 0 if is_good else before + 1
        longest = issuer.refresh_s
        wait_s = longest if is_good else min(longest, issuer.refresh_min_s * 2 ** min(before, 20))
        fetch.due = now + wait_s
        return bool(before) == is_good

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for fetch in self._of.values():
            assert fetch.failures >= 0
            assert fetch.asked_at is not None or not fetch.is_under_way
