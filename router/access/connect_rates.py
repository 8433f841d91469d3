"""How many connections each network may open: asked for each new one, before it costs the router anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.sessions.session import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.ground.config import RouterConfig

#: Connections may come a little faster than logins, so that most refusals can be told with a code by the login.
CONNECT_FACTOR = 2
#: Networks whose rate is remembered.
NETWORKS_MAX = 100_000


class ConnectRates:
    """The connections of all networks."""

    def __init__(self, config: RouterConfig, on_refused: Callable[[], None]) -> None:
        self._config = config
        self._on_refused = on_refused
        #: Network -> its rate.
        self._rates: dict[str, TokenBucket] = {}

    def allows(self, network: str, now: float) -> bool:
        """Tell whether one more may come, and count it."""
        bucket = self._rates.get(network)
        if bucket is None:
            if len(self._rates) >= NETWORKS_MAX:
                self._rates.clear()
            rate = self._config.connects_per_second * CONNECT_FACTOR
            bucket = self._rates[network] = TokenBucket(
                rate, self._config.connect_burst * CONNECT_FACTOR, now
            )
        if bucket.take(now):
            return True
        self._on_refused()
        return False
