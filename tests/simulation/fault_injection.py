"""What is done to a node and its clients: drawn from the seed, written into the history.

Each method of `Faults` is one kind of disturbance; `KINDS` says how often each is drawn. Every disturbance
ends by itself, so that a run can be judged at rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.simulation.event_history import History
    from tests.simulation.simulated_client import SimulatedClient
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import SimulatedNode

#: Longest of everything that is not a hang.
SHORT_MAX_S = 2.5
#: A pause so long makes the supervisor call a worker hung.
HANG_S = 5.5


class Faults:
    """Disturbs one node and its clients."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        node: SimulatedNode,
        history: History,
        clients: Sequence[SimulatedClient],
        vpns: list[str],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._node = node
        self._history = history
        self._clients = clients
        self._vpns = vpns

    def schedule(self, count: int, start: float, end: float) -> None:
        """Draw so many disturbances between two times."""
        names = [name for name, weight in self.kinds().items() for _ in range(weight)]
        for _ in range(count):
            method: Callable[[], None] = getattr(self, self._rng.choice(names))
            self._loop.at(start + self._rng.random() * (end - start), method)

    def kinds(self) -> dict[str, int]:
        """Give what is drawn here, and how often."""
        return KINDS

    def _note(self, whom: str, what: str) -> None:
        self._history.fault(self._loop.now, whom, what)

    def _some_time(self) -> float:
        return 0.02 + self._rng.random() ** 2 * SHORT_MAX_S

    def _client(self) -> SimulatedClient:
        client: SimulatedClient = self._rng.choice(self._clients)
        return client

    def _worker(self) -> int:
        return self._rng.randrange(self._node.supervisor.target)

    # The node.

    def pause_worker(self) -> None:
        index, duration = self._worker(), self._some_time()
        self._note(f"worker {index}", f"pauses for {duration:.2f} s")
        self._node.supervisor.pause_worker(index, duration)

    def hang_worker(self) -> None:
        index = self._worker()
        self._note(f"worker {index}", "hangs")
        self._node.supervisor.pause_worker(index, HANG_S)

    def kill_worker(self, index: int | None = None) -> None:
        index = self._worker() if index is None else index
        self._note(f"worker {index}", "is killed")
        self._node.supervisor.kill_worker(index)

    def pause_router(self) -> None:
        duration = self._some_time()
        self._note("router", f"pauses for {duration:.2f} s")
        self._node.pause_router(duration)

    def restart_router(self) -> None:
        if self._node.router is not None:
            self._note("router", "is killed")
            self._node.kill_router()

    def stop_router(self) -> None:
        self._note("router", "is stopped in order")
        self._node.stop_router()

    def scale(self) -> None:
        workers = self._rng.randint(1, 4)
        self._note("node", f"scales from {self._node.supervisor.target} to {workers} workers")
        self._node.supervisor.scale(workers)

    # Clients.

    def pause_client(self) -> None:
        client, duration = self._client(), self._some_time()
        self._note(client.plan.name, f"pauses for {duration:.2f} s")
        client.pause(duration)

    def crash_client(self) -> None:
        client, is_noticed = self._client(), self._rng.random() < 0.6
        self._note(client.plan.name, f"crashes, {'noticed' if is_noticed else 'unnoticed'}")
        client.crash(is_noticed=is_noticed)

    def leave(self) -> None:
        client = self._client()
        self._note(client.plan.name, "says BYE")
        client.leave()

    def partition(self) -> None:
        client, duration = self._client(), self._some_time()
        connection = client.connection
        if connection is not None:
            self._note(client.plan.name, f"is partitioned for {duration:.2f} s")
            connection.stall()
            self._loop.after(duration, connection.heal)

    def sever(self) -> None:
        client = self._client()
        near, far = self._rng.random() < 0.6, self._rng.random() < 0.6
        if client.connection is not None:
            self._note(client.plan.name, f"loses its connection; it notices: {near}, the router: {far}")
            client.connection.sever(near_notices=near, far_notices=far)

    # Operators.

    def disconnect(self) -> None:
        client = self._client()
        record, plan = client.record, client.plan
        if record is None:
            return
        self._note(plan.name, "is disconnected by an operator")
        now = self._loop

        def ask(router: Any) -> None:
            if router.sessions.find(plan.vpn, plan.name) is not None:
                router.operators.disconnect(plan.vpn, plan.name, now.now)

        self._node.act(ask)

    def _vpn(self) -> str | None:
        """Give a Message VPN that exists."""
        vpn = self._rng.choice(self._vpns)
        return vpn if ("vpn", "", vpn) in self._node.objects else None

    def change_acl(self) -> None:
        vpn, rng = self._vpn(), self._rng
        if vpn is None:
            return
        publish, subscribe = rng.choice(PUBLISH_LISTS), rng.choice(SUBSCRIBE_LISTS)
        self._note("operator", f"ACL profile narrow of {vpn}: {publish}, {subscribe}")
        self._node.define("acl", vpn, "narrow", **publish, **subscribe)

    def change_profile(self) -> None:
        vpn, rng = self._vpn(), self._rng
        if vpn is None:
            return
        attributes = {
            "eliding": rng.random() < 0.8,
            "eliding_delay_ms": rng.choice([0, 20, 150, 400]),
            "eliding_max_topics": rng.choice([1, 2, 3, 256]),
        }
        self._note("operator", f"client profile elide of {vpn}: {attributes}")
        self._node.define("profile", vpn, "elide", **attributes)

    def change_depths(self) -> None:
        vpn, rng = self._vpn(), self._rng
        if vpn is None:
            return
        attributes = {f"queue_direct_{number}_max_depth": rng.choice([2, 2, 20]) for number in (1, 2, 3)}
        attributes |= {f"queue_direct_{number}_min_msg_burst": rng.choice([0, 1, 4]) for number in (1, 2, 3)}
        self._note("operator", f"client profile small of {vpn}: {attributes}")
        self._node.define("profile", vpn, "small", **attributes)

    def shut_username(self) -> None:
        plan = self._client().plan
        if ("username", plan.vpn, plan.username) not in self._node.objects:
            return
        duration = self._some_time()
        self._note("operator", f"username {plan.username} of {plan.vpn} is shut for {duration:.2f} s")
        self._node.define("username", plan.vpn, plan.username, enabled=False)

        def open_again() -> None:
            if ("username", plan.vpn, plan.username) in self._node.objects:
                self._node.define("username", plan.vpn, plan.username, enabled=True)

        self._loop.after(duration, open_again)

    def shut_vpn(self) -> None:
        vpn, duration = self._vpn(), self._some_time()
        if vpn is None:
            return
        self._note("operator", f"VPN {vpn} is shut for {duration:.2f} s")
        self._node.define("vpn", "", vpn, enabled=False)

        def open_again() -> None:
            if ("vpn", "", vpn) in self._node.objects:
                self._node.define("vpn", "", vpn, enabled=True)

        self._loop.after(duration, open_again)

    def remake_vpn(self) -> None:
        """Delete a Message VPN and make it again: a new one of the same name."""
        vpn = self._vpn()
        if vpn in (None, "default"):
            return
        kept = {
            key: dict(attributes)
            for key, attributes in self._node.objects.items()
            if key[1] == vpn or key == ("vpn", "", vpn)
        }
        self._note("operator", f"VPN {vpn} is deleted and made again")
        self._node.remove("vpn", "", vpn)

        def make_again() -> None:
            order = ["vpn", "profile", "acl", "username"]
            for key in sorted(kept, key=lambda one: order.index(one[0])):
                self._node.define(
                    *key, **{**kept[key], **({"enabled": True} if "enabled" in kept[key] else {})}
                )

        self._loop.after(self._some_time(), make_again)


PUBLISH_LISTS: Final[tuple[dict[str, Any], ...]] = (
    {"publish_topic_default": "allow", "publish_topic_exceptions": []},
    {"publish_topic_default": "allow", "publish_topic_exceptions": ["t/3/>"]},
    {"publish_topic_default": "allow", "publish_topic_exceptions": ["t/*/1", "t/2/2"]},
    {
        "publish_topic_default": "disallow",
        "publish_topic_exceptions": ["t/1/>", "e/>", "t/u/$client-username"],
    },
)
SUBSCRIBE_LISTS: Final[tuple[dict[str, Any], ...]] = (
    {"subscribe_topic_default": "allow", "subscribe_topic_exceptions": []},
    {"subscribe_topic_default": "allow", "subscribe_topic_exceptions": ["t/2/>"]},
    {"subscribe_topic_default": "disallow", "subscribe_topic_exceptions": ["t/*/*", "e/>"]},
)

#: Method of `Faults` -> how often it is drawn, relative to the others.
KINDS: Final[dict[str, int]] = {
    "pause_worker": 8,
    "hang_worker": 1,
    "kill_worker": 8,
    "pause_router": 2,
    "restart_router": 3,
    "stop_router": 2,
    "scale": 7,
    "pause_client": 5,
    "crash_client": 5,
    "leave": 4,
    "partition": 5,
    "sever": 4,
    "disconnect": 3,
    "change_acl": 5,
    "change_profile": 5,
    "change_depths": 2,
    "shut_username": 3,
    "shut_vpn": 2,
    "remake_vpn": 2,
}
