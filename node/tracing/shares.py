"""How many messages each Message VPN may have traced in a second: one that asks for many leaves the others theirs.

In each second a Message VPN has what it asked for in the second before, or an equal part of what those leave who asked
for less:

    100 a second, asked for in the last one: a 500, b 30, c 10       now: a 60, b 30 or more, c 10 or more
                                             a 500                        a 100
                                             a 500, b 500                 each 50

Whoever asks for the first time has the largest part, as long as not all is taken; a second later it has its own.

No I/O; the clock is given.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECOND_NS: Final = 1_000_000_000


class Shares:
    """What is taken of so many messages per second."""

    def __init__(self, per_s: int, now_ns: int) -> None:
        self._per_s = per_s
        self._began_ns = now_ns
        #: Message VPN -> how much it asked for, and got, in the second that began then.
        self._asked: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        #: Nobody gets more than so much of it.
        self._level = per_s

    def take(self, vpn: str, now_ns: int) -> bool:
        """Tell whether one more message of a Message VPN may be traced, and count it if so."""
        passed_ns = now_ns - self._began_ns
        if not 0 <= passed_ns < _SECOND_NS:
            # A wall clock may be set: then a second begins as well.
            is_next = 0 <= passed_ns < 2 * _SECOND_NS
            self._level = level_of(self._asked.values(), self._per_s) if is_next else self._per_s
            self._began_ns = now_ns
            self._asked.clear()
            self._taken.clear()
        self._asked[vpn] += 1
        if self._taken[vpn] >= self._level or self._taken.total() >= self._per_s:
            return False
        self._taken[vpn] += 1
        return True

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._taken.total() <= self._per_s
        assert all(taken <= min(self._asked[vpn], self._level) for vpn, taken in self._taken.items())


def level_of(asked: Iterable[int], whole: int) -> int:
    """Give the most that one may have if all have at most that and together the whole; 1 at least.

    Example:
        >>> level_of([500, 30, 10], 100)
        60
    """
    left, some = whole, sorted(asked)
    for at, one in enumerate(some):
        part = left // (len(some) - at)
        if one > part:
            return max(part, 1)
        left -= one
    return whole
