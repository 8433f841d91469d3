"""What clients cost the workers: a bucket of work that is allowed, and the account of one client.

`router.matching.effort` decides by it who is held back. No clock; time is a parameter.
"""

from __future__ import annotations

from typing import Final

#: Seconds of work that a client, or a Message VPN, may cost at once.
BURST_S: Final = 2.0


class WorkBucket:
    """Work that is allowed: so much a second on average, and a burst. It may be overdrawn: work is told of late."""

    __slots__ = ("_level", "_stamp", "rate")

    def __init__(self, now: float) -> None:
        #: Work per second, as the attribute says now; 0 is no limit.
        self.rate = 0
        #: What may still be done, in seconds of the rate; at most `BURST_S`.
        self._level = BURST_S
        self._stamp = now

    def allow(self, rate: int, now: float) -> None:
        """Take the attribute of now; what is overdrawn is the same work at another rate, and nothing without one."""
        if rate == self.rate:
            return
        self._level = min(BURST_S, self._level + now - self._stamp)
        self._stamp = now
        if self._level < 0:
            self._level *= self.rate / rate if rate else 0.0
        self.rate = rate

    def take(self, work: int, now: float) -> float:
        """Count work that was done; gives when the bucket is not overdrawn any more."""
        if not self.rate:
            return now
        self._level = min(BURST_S, self._level + now - self._stamp) - work / self.rate
        self._stamp = now
        return now - min(self._level, 0.0)

    def missing(self, now: float) -> float:
        """Give what it lacks, in seconds of the rate."""
        return max(BURST_S - self._level - (now - self._stamp), 0.0) if self.rate else 0.0


class Burden:
    """What a client costs the workers."""

    __slots__ = ("bucket", "free_at", "slow_parts", "told_at", "work")

    def __init__(self, now: float) -> None:
        self.bucket = WorkBucket(now)
        #: When the buckets are not overdrawn any more.
        self.free_at = now
        #: Batches of it that wait for turns at workers.
        self.slow_parts = 0
        #: When operators were last told that it is held back.
        self.told_at = float("-inf")
        #: All that it has cost.
        self.work = 0
