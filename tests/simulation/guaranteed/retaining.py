"""What clients of a run do with retained messages, now and then: publish, remove, read, and subscribe with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from tests.simulation.guaranteed.simulated_look import SimulatedLook

if TYPE_CHECKING:
    import random

    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.guaranteed_world import GuaranteedWorld
    from tests.simulation.simulated_network import Loop

#: So few that messages replace each other; queues take some of them, too.
TOPICS: Final = ("r/1", "r/2", "r/a/1", "r/a/2", "t/1/1", "t/2/2")
FILTERS: Final = ("r/>", "r/*", "r/a/*", "r/1", "t/>", ">", "*/1", "r/a*/2")
EMPTY: Final = 0.15
#: How many clients let little come ahead, so that messages wait for them in the router.
SLOW: Final = 0.4
#: Subscriptions of one client that begin with what is retained.
LIVE_MAX: Final = 3


class Retaining:
    """Lets the clients of a scenario act."""

    def __init__(
        self, rng: random.Random, loop: Loop, clients: list[GuaranteedClient], world: GuaranteedWorld
    ) -> None:
        self._rng = rng
        self._loop = loop
        self._clients = clients
        self._world = world
        if "small" in world.features:
            world.vpn_attributes["max_retained_mb"] = rng.choice([1, 2, 100])
        self._pace_s = rng.choice([0.01, 0.03, 0.1])
        self._is_busy = False
        self._last_looks: list[SimulatedLook] = []

        for client in clients:
            if rng.random() < SLOW:
                client.narrow(rng.choice([1, 2, 5]))

    def begin(self) -> None:
        """Let everybody act from now on."""
        self._is_busy = True
        for client in self._clients:
            self._act_later(client)

    def end(self) -> None:
        """Let nobody begin anything."""
        self._is_busy = False

    def _act_later(self, client: GuaranteedClient) -> None:
        self._loop.after(self._rng.expovariate(1 / self._pace_s), lambda: self._act(client))

    def _act(self, client: GuaranteedClient) -> None:
        if not self._is_busy:
            return
        self._act_later(client)
        if client.is_paused or not client.is_open:
            return
        choice = self._rng.random()
        if choice < 0.75:
            self.publish(client)
        elif choice < 0.85:
            self._look(client, is_live=False)
        elif len(client.looks) < LIVE_MAX:
            self._look(client, is_live=True)
        else:
            self._leave(client)

    def publish(self, client: GuaranteedClient) -> None:
        """Publish a message that is to be retained, or one that ends what is."""
        rng = self._rng
        topic, is_empty = rng.choice(TOPICS), rng.random() < EMPTY
        producers = [one for one in client.producers if not one.is_over]
        if producers and rng.random() < 0.6:
            options: dict[str, Any] = {"retain": True, "is_empty": is_empty}
            if "ttl" in self._world.features and rng.random() < 0.3:
                options["ttl_ms"] = rng.choice([50, 500, 2_000])
            client.publish_guaranteed(rng.choice(producers), [(topic, options)])
        elif client.can_publish():
            client.publish([(topic, wire.FLAG_RETAIN)], is_empty=is_empty)

    def _look(self, client: GuaranteedClient, *, is_live: bool) -> SimulatedLook:
        filters = (
            self._rng.sample(FILTERS, self._rng.choice([1, 1, 2])) if is_live else [self._rng.choice(FILTERS)]
        )
        look = SimulatedLook(client, tuple(filters), is_live=is_live)
        client.add_look(look)
        return look

    def _leave(self, client: GuaranteedClient) -> None:
        """End the oldest subscription, so that there is room for one more that begins with what is retained."""
        look = next((one for one in client.looks if one.is_live), None)
        if look is not None:
            look.leave()

    # The end.

    def look(self) -> None:
        """Read everything that every Message VPN retains."""
        for vpn in self._world.vpns:
            client = next((one for one in self._clients if one.plan.vpn == vpn), None)
            if client is not None:
                look = SimulatedLook(client, (">",), is_live=False)
                client.add_look(look)
                self._last_looks.append(look)

    def looking(self) -> list[str]:
        """Say who has not read everything."""
        return [
            f"{one.client.plan.name} reads what is retained" for one in self._last_looks if not one.is_over
        ]
