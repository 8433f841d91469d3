"""How often somebody may try to use the admin API from other hosts, and who hears of it: no sockets here.

A certificate that no authority of ours has signed does not get here: the handshake refuses it. Here is told of it, as
of those who are no operators; somebody who tries without end costs an event a minute.
"""

from __future__ import annotations

from typing import Any, Final

from router.ground.ground import TokenBucket

#: Connections of one network: a shell that runs many commands is far below it, and a handshake takes a millisecond.
CONNECTS_PER_SECOND: Final = 20
CONNECT_BURST: Final = 100
#: Networks whose rate is remembered.
NETWORKS_MAX: Final = 10_000
#: Between two events about refusals.
EVENT_INTERVAL_S: Final = 60.0


class Operators:
    """Judges how often somebody connects, and tells of those who may not come in."""

    def __init__(self) -> None:
        #: Network -> its rate.
        self._rates: dict[str, TokenBucket] = {}
        #: Connections that were refused since the start, and of those how many no event has told of.
        self.refused_total = 0
        self._untold = 0
        self._told_at = float("-inf")

    def may_come(self, network: str, now: float) -> bool:
        """Tell whether one more connection of a network is taken, and count it."""
        bucket = self._rates.get(network)
        if bucket is None:
            if len(self._rates) >= NETWORKS_MAX:
                self._rates.clear()
            bucket = self._rates[network] = TokenBucket(CONNECTS_PER_SECOND, CONNECT_BURST, now)
        return bucket.take(now)

    def refused(self, reason: str, now: float) -> dict[str, Any] | None:
        """Count somebody who was refused; give the event, if one is due."""
        self.refused_total += 1
        self._untold += 1
        if now - self._told_at < EVENT_INTERVAL_S:
            return None
        self._told_at = now
        what = "a connection" if self._untold == 1 else f"{self._untold} connections"
        text = f"{what} to the admin API of this node failed, the last one: {reason}"
        origin = {"severity": "warning", "scope": "SYSTEM", "event": "SYSTEM_OPERATOR_REFUSED"}
        event = {**origin, "text": text, "count": self._untold}
        self._untold = 0
        return event

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert 0 <= self._untold <= self.refused_total
        assert len(self._rates) <= NETWORKS_MAX
