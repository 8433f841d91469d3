"""How many connects each network may make in a second, where an operator has set a limit of that kind.

By default there is none: what logins may cost of the router's time is bounded by that time itself, and not by a number
(`angarium_server.connections.turns`). Clients of this host are free in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium_server.access import is_this_host
from router.ground.ground import TokenBucket

if TYPE_CHECKING:
    from router.ground.config import RouterConfig

#: Connections may come a little faster than logins, so that most refusals can be told with a code by the login.
CONNECTION_FACTOR: Final = 2
#: Networks whose rate is remembered.
NETWORKS_MAX: Final = 100_000
#: A network is forgotten when it was quiet for so long: any burst has refilled by then.
MEMORY_S: Final = 60.0


class ConnectRates:
    """The connects of all networks."""

    def __init__(self, config: RouterConfig, factor: int = 1) -> None:
        """Allow `factor` times as many as the configuration says."""
        self._rate = config.connects_per_second * factor
        self._burst = config.connect_burst * factor
        #: Network -> its rate; only those that connected lately.
        self._rates: dict[str, TokenBucket] = {}

    def allows(self, network: str, now: float) -> bool:
        """Tell whether one more may come, and count it."""
        if not self._rate or is_this_host(network):
            return True
        bucket = self._rates.get(network)
        if bucket is None:
            if len(self._rates) >= NETWORKS_MAX:
                self._rates.clear()
            bucket = self._rates[network] = TokenBucket(self._rate, self._burst, now)
        return bucket.take(now)

    def sweep(self, now: float) -> None:
        """Forget networks that were quiet for long."""
        for network in [n for n, bucket in self._rates.items() if now - bucket.stamp > MEMORY_S]:
            del self._rates[network]
