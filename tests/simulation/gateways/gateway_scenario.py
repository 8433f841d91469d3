"""One run from a seed: gateways and a node are disturbed, recover, and then everything counts exactly."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium.topic import parse_filter
from angarium.trie import FilterTrie
from angarium_server.frames.frame import encode
from router.ground.config import Identity, RouterConfig
from tests.simulation.end_state import disagreements, standing_faults, unrest
from tests.simulation.event_history import History
from tests.simulation.fault_injection import Faults
from tests.simulation.gateways.simulated_gateway import (
    PASSWORD,
    SECRET,
    TOPICS,
    USERNAMES,
    SimulatedGateway,
)
from tests.simulation.gateways.will_story import LATE_MAX_S, WillStory
from tests.simulation.simulated_network import Loop
from tests.simulation.simulated_node import NodeSettings, SimulatedNode
from tests.simulation.world import router_config, worker_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.router import Router
    from router.sessions.session import Session

#: Faults of the node, and how often each is drawn.
KINDS: Final = {
    "pause_worker": 2,
    "hang_worker": 1,
    "kill_worker": 3,
    "pause_router": 2,
    "restart_router": 2,
    "stop_router": 1,
    "scale": 2,
}
DISTURBED_S: Final = 4.0
RECOVERY_MAX_S: Final = 120.0
STEP_S: Final = 0.25
#: What was sent before is there by then.
SETTLE_S: Final = 1.0
CALM_MESSAGES: Final = 40
#: Wills have waited by then.
WILLS_S: Final = 5 + LATE_MAX_S + 1


class GatewayNode(SimulatedNode):
    """A node that knows its own processes by a secret."""

    #: Of the wills of all clients.
    story: WillStory

    def make_router(self, **more: Any) -> Router:
        """Make the state machine of a new router process."""
        router = super().make_router(identity=Identity(node_id="n1", local_secret=SECRET), **more)
        self.story.watch(router)
        return router


class NodeFaults(Faults):
    """What happens to the node; gateways see to themselves."""

    def kinds(self) -> dict[str, int]:
        """Give what is drawn here, and how often."""
        return KINDS


class GatewayScenario:
    """A node with some gateways."""

    def __init__(self, seed: str) -> None:
        rng = self._rng = random.Random(seed)
        self.loop, self.history = Loop(), History()
        router = RouterConfig(
            keepalive_ms=500,
            worker_window=rng.choice([1, 2, 8]),
            fast_path_topics_max=rng.choice([0, 2, 20_000]),
        )
        is_small = rng.choice([True, False])
        settings = NodeSettings(
            router=router_config(router, small=is_small),
            worker=worker_config(small=is_small),
            workers=rng.randint(1, 3),
            client_delay_max_s=rng.choice([0.001, 0.01, 0.05]),
            worker_delay_max_s=rng.choice([0.001, 0.01, 0.1]),
            laziness=rng.choice([0.0, 0.3]),
        )
        self.node = GatewayNode(self.loop, random.Random(rng.getrandbits(64)), settings, self.history)
        self.story = self.node.story = WillStory(self.loop)
        self.gateways = [
            SimulatedGateway(self.loop, random.Random(rng.getrandbits(64)), self.node, index, self.story)
            for index in range(rng.randint(1, 3))
        ]
        self._faults = NodeFaults(
            self.loop, random.Random(rng.getrandbits(64)), self.node, self.history, [], ["default"]
        )

    def play(self) -> list[str]:
        """Run from the first to the last moment; gives what broke a rule."""
        loop = self.loop
        self._furnish()
        self.node.start_router()
        self.node.supervisor.start_workers()
        self._await(lambda: [] if self.node.is_healthy else ["the node is not ready"])
        for gateway in self.gateways:
            gateway.run()
            gateway.keep_alive()
        self._faults.schedule(self._rng.choice([0, 1, 3, 6]), loop.now + 0.2, loop.now + DISTURBED_S)
        for _ in range(self._rng.randint(0, 4)):
            loop.after(self._rng.random() * DISTURBED_S, self._change_acl)
        end = loop.now + DISTURBED_S
        while loop.now < end:
            loop.run_until(loop.now + STEP_S)
            self._look()
        for gateway in self.gateways:
            gateway.is_busy = False
        self._change_acl()
        self._await(lambda: [*self._missing(), *unrest(self.node)])
        loop.run_until(loop.now + SETTLE_S)
        self._calm()
        self._judge_wills()
        return self.history.broken + [text for gateway in self.gateways for text in gateway.broken]

    def _furnish(self) -> None:
        node, allow = self.node, {"client_connect_default": "allow", "publish_topic_default": "allow"}
        allow |= {"subscribe_topic_default": "allow", "subscribe_share_name_default": "allow"}
        node.define("vpn", "", "default")
        node.define("profile", "default", "default")
        node.define("acl", "default", "default", **allow)
        node.define("acl", "default", "narrow", **allow, subscribe_topic_exceptions=["u/>"])
        node.define("username", "default", "app")
        node.define("username", "default", "guarded", password=PASSWORD)
        node.define("username", "default", "narrow", acl_profile="narrow")
        # Wills wait for as long as there are sessions to go on with.
        for number, (name, username) in enumerate(USERNAMES.items(), 1):
            node.define("queue", "default", f"#mqtt/{name}", id=number, homes=[0], owner=username)

    def _change_acl(self) -> None:
        exceptions = self._rng.sample(TOPICS, self._rng.randint(0, 2))
        name = self._rng.choice(["default", "narrow"])
        self.node.define("acl", "default", name, publish_topic_exceptions=exceptions)

    def _look(self) -> None:
        self.node.validate()
        if self.node.router is not None:
            for text in standing_faults(self.node.router):
                self.history.break_rule(f"at {self.loop.now:.3f} {text}")

    def _missing(self) -> Iterator[str]:
        router = self.node.router
        if router is None or not self.node.is_healthy:
            yield "the node is not healthy"
            return
        if len(router.sessions) != sum(len(gateway.guests) for gateway in self.gateways):
            yield "the router has other clients than the gateways"
        for gateway in self.gateways:
            if not gateway.is_open:
                yield f"gateway {gateway.index} is not back"
            for number, guest in gateway.guests.items():
                if not guest.is_attached or guest.asked is not None:
                    yield f"client {number} of gateway {gateway.index} waits for an answer"

    def _await(self, missing: Callable[[], Any]) -> None:
        end = self.loop.now + RECOVERY_MAX_S
        while found := list(missing()):
            if self.loop.now >= end:
                self.history.break_rule("; ".join(found))
                return
            self.loop.run_until(self.loop.now + STEP_S)
            self._look()

    # -- at rest ---------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        if self.history.broken:
            return
        for text in disagreements(self.node):
            self.history.break_rule(text)
        for gateway in self.gateways:
            self._compare(gateway)
            gateway.messages.clear()
            for guest in gateway.guests.values():
                guest.messages.clear()
        sent: dict[tuple[int, int], str] = {}
        for _ in range(CALM_MESSAGES):
            gateway, topic = self._rng.choice(self.gateways), self._rng.choice(TOPICS)
            (number,) = gateway.publish([topic])
            sent[gateway.index, number] = topic
            self.loop.run_until(self.loop.now + self._rng.choice([0.0, 0.05]))
        self._await(lambda: [*self._missing(), *unrest(self.node)])
        self.loop.run_until(self.loop.now + SETTLE_S)
        self._judge(sent)

    def _compare(self, gateway: SimulatedGateway) -> None:
        """Compare what a gateway and the router know of its clients."""
        router = self.node.router
        assert router is not None
        carrier = router.sessions.find("default", f"#gateway/test/{gateway.index}")
        assert carrier is not None
        wanted: Counter[tuple[str, bool]] = Counter()
        for number, guest in gateway.guests.items():
            session = self._session(router, carrier, number)
            if session is None or session.client_name != guest.name:
                self.history.break_rule(f"client {number} of gateway {gateway.index} is not {guest.name}")
                continue
            if set(session.subscriptions) != {(text, True) for text in guest.held}:
                self.history.break_rule(
                    f"{guest.name} holds {sorted(guest.held)}, not {list(session.subscriptions)}"
                )
            if encode(session.rights) != wire.pack(guest.rights):
                self.history.break_rule(f"{guest.name} was told {guest.rights}, and may {session.rights}")
            wanted.update((text, True) for text in guest.held if not text.startswith("#share/"))
        if carrier.wanted != wanted:
            self.history.break_rule(
                f"gateway {gateway.index} is to want {wanted}, and wants {carrier.wanted}"
            )

    def _session(self, router: Router, carrier: Session, number: int) -> Session | None:
        return router.sessions.by_routing_id.get(carrier.routing_id + number.to_bytes(8, "big"))

    def _judge_wills(self) -> None:
        """Only a gateway dies: its wills come to others, and all that are due are published."""
        if self.history.broken:
            return
        router = self.node.router
        assert router is not None
        dying, *others = self.gateways
        given = {guest.will for guest in dying.guests.values() if guest.will}
        for gateway in others:
            gateway.wills.clear()
        dying.die()
        self.loop.run_until(self.loop.now + WILLS_S)
        self._look()
        for text in self.story.broken(router.shards.incarnation):
            self.history.break_rule(text)
        for gateway in others:
            wants = any(
                parse_filter(text).pattern == ">" for one in gateway.guests.values() for text in one.held
            )
            came = {payload: count for payload, count in gateway.wills.items() if payload in given}
            if came != dict.fromkeys(given if wants else (), 1):
                self.history.break_rule(f"of the wills {given} gateway {gateway.index} got {came}")

    def _judge(self, sent: dict[tuple[int, int], str]) -> None:
        """Every gateway gets once what its clients want, and of each share one client gets it."""
        for gateway in self.gateways:
            trie: FilterTrie[str] = FilterTrie()
            for text in {text for guest in gateway.guests.values() for text in guest.held}:
                if not text.startswith("#share/"):
                    trie.add(parse_filter(text).pattern, text)
            due = {message: 1 for message, topic in sent.items() if trie.match(topic)}
            if gateway.messages != due:
                self.history.break_rule(
                    f"gateway {gateway.index} is to get {due}, and got {gateway.messages}"
                )
        guests = [guest for gateway in self.gateways for guest in gateway.guests.values()]
        came = Counter((share, message) for guest in guests for share, message in guest.messages)
        trie = FilterTrie()
        for text in {text for guest in guests for text in guest.held if text.startswith("#share/")}:
            trie.add(parse_filter(text).pattern, text)
        due_shares = Counter(
            (text, index << 32 | number)
            for (index, number), topic in sent.items()
            for text in trie.match(topic)
        )
        if came != due_shares:
            self.history.break_rule(f"of shares {due_shares} are due, and {came} came")
        for guest in guests:
            if not {share for share, _ in guest.messages} <= guest.held:
                self.history.break_rule(f"{guest.name} is given what he does not want")
