"""Tokens (JWT) whose signature is to be looked at: in which order, and how many may wait.

To look at one takes some tenths of a millisecond, to compare a password a hundred times as much. So tokens wait in
lines of their own, which are bounded in bytes: after a restart of the router a crowd comes back from one address, each
client with its token. One is looked at at a time. Networks of which tokens or passwords were wrong of late stand in the
second line, of which one is looked at every `FAILED_PAUSE_S`: whoever makes tokens up gets little of the processor.

A state machine without a clock: when it is the turn of the second line is found by `next` at `wake` or later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from router.access.password_checks import Check

#: Of all tokens that wait, and of those of one network: some thousands, as issuers make them.
WAITING_BYTES_MAX: Final = 16 << 20
NETWORK_BYTES_MAX: Final = 8 << 20
#: What is kept of a login beside its token.
LOGIN_BYTES: Final = 1_024
#: Between two of the second line: two hundred a second are a twentieth of a core.
FAILED_PAUSE_S: Final = 0.005


def _size(check: Check) -> int:
    """Give what a login takes while it waits."""
    return len(check.password) + LOGIN_BYTES


class TokenChecks:
    """All logins and renewals whose token is looked at, or waits for it."""

    def __init__(self, wait_max_s: float) -> None:
        """Begin with nobody; who has waited for `wait_max_s` is told so."""
        self._wait_max_s = wait_max_s
        #: Those that wait, in the order in which they came: of networks without failures, and of the others.
        self._lines: tuple[dict[int, Check], dict[int, Check]] = {}, {}
        #: Network -> bytes of its tokens that wait; none has 0.
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._under_way: int | None = None
        #: When it is the turn of the second line.
        self._second_due = float("-inf")

    def add(self, check: Check, *, has_failed: bool) -> None:
        """Have a token looked at, of a network that failed of late or not.

        Raises:
            RateLimitError: there is no place (42901).
        """
        size = _size(check)
        if self._bytes[check.network] + size > NETWORK_BYTES_MAX:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once from one address")
        if self._total_bytes + size > WAITING_BYTES_MAX:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
        self._bytes[check.network] += size
        self._total_bytes += size
        self._lines[has_failed][check.number] = check

    def next(self, now: float) -> Check | None:
        """Give what is to be looked at now, if anything."""
        line, second = self._lines
        if self._under_way is not None:
            return None
        if second and self._second_due <= now:
            line, self._second_due = second, now + FAILED_PAUSE_S
        if not line:
            return None
        check = next(iter(line.values()))
        self._take(line, check)
        self._under_way = check.number
        return check

    def done(self) -> None:
        """The one that was under way was looked at."""
        self._under_way = None

    def late(self, now: float) -> list[int]:
        """Give the numbers of those that have waited too long; they wait no more."""
        late = []
        for line in self._lines:
            while line and (check := next(iter(line.values()))).since + self._wait_max_s <= now:
                self._take(line, check)
                late.append(check.number)
        return late

    def wake(self) -> float:
        """Give when it is the turn of somebody, or somebody is late, if nothing comes or is done before."""
        oldest = [next(iter(line.values())).since for line in self._lines if line]
        late = min(oldest) + self._wait_max_s if oldest else float("inf")
        return min(late, self._second_due) if self._lines[1] and self._under_way is None else late

    def _take(self, line: dict[int, Check], check: Check) -> None:
        del line[check.number]
        size = _size(check)
        self._total_bytes -= size
        self._bytes[check.network] -= size
        if not self._bytes[check.network]:
            del self._bytes[check.network]

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        sizes: Counter[str] = Counter()
        for check in (*self._lines[0].values(), *self._lines[1].values()):
            sizes[check.network] += _size(check)
        assert +self._bytes == sizes
        assert self._total_bytes == sizes.total() <= WAITING_BYTES_MAX
