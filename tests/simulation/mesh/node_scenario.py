"""One node of a mesh while it lives, with its clients: as a run with guaranteed messages, and direct ones beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from tests.simulation import scenario
from tests.simulation import world as worlds
from tests.simulation.guaranteed.guaranteed_scenario import ROWS_MAX, GuaranteedScenario
from tests.simulation.mesh import mesh_world
from tests.simulation.mesh.mesh_client import MeshClient
from tests.simulation.mesh.mesh_faults import NodeFaults
from tests.simulation.mesh.mesh_history import NodeHistory, NodeRecords
from tests.simulation.mesh.mesh_node import MeshNode

if TYPE_CHECKING:
    import random

    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.guaranteed_faults import GuaranteedFaults
    from tests.simulation.guaranteed.guaranteed_world import GuaranteedWorld
    from tests.simulation.guaranteed.records import Publication
    from tests.simulation.guaranteed.simulated_producer import SimulatedProducer
    from tests.simulation.mesh.mesh_node import Network
    from tests.simulation.simulated_network import Loop

CALM_ROUNDS = 2


class NodeScenario(GuaranteedScenario):
    """One node of a mesh."""

    client_class = MeshClient
    node: MeshNode
    history: NodeHistory

    def __init__(
        self,
        seed: str,
        name: str,
        world: GuaranteedWorld,
        loop: Loop,
        shared: History,
        publications: list[Publication],
        network: Network,
    ) -> None:
        self.name = name
        self._network = network
        super().__init__(f"{seed} {name}", world, loop, NodeHistory(name, shared))
        self.guaranteed.publications = publications
        self.node.clients = self.clients

    def make_node(self, rng: random.Random) -> MeshNode:
        """Make the node that the clients connect to."""
        world = self.world
        return MeshNode(
            self.name,
            self._network,
            self.loop,
            rng,
            world.settings,
            self.history,
            self.guaranteed,
            world.spool,
        )

    def make_faults(self, rng: random.Random) -> GuaranteedFaults:
        """Make what disturbs them."""
        return NodeFaults(self.loop, rng, self.node, self.history, self.clients, self.world)

    @property
    def records(self) -> NodeRecords:
        """Give what this node wrote down."""
        return NodeRecords(self.history, self.guaranteed, tuple(self._network.neighbours(self.name)))

    def start(self) -> None:
        """Start the node, and make its objects."""
        super().start()
        for neighbour in self._network.neighbours(self.name):
            self.node.join(neighbour)

    def admit(self) -> None:
        """Let the clients come, each with some subscriptions."""
        for client in self.clients:
            if self._is_busy:
                client.ask([mesh_world.draw_wish(self._rng) for _ in range(self._rng.randint(0, 4))])
            client.connect()
        self._validate()

    # The disturbed time.

    def _act(self, client: GuaranteedClient) -> None:
        if not self._is_busy:
            return
        self._act_later(client)
        if client.is_paused or not client.is_open:
            return
        rng, choice = self._rng, self._rng.random()
        if choice < 0.35:
            self._publish_direct(client)
        elif choice < 0.42:
            client.ask([mesh_world.draw_wish(rng)])
        elif choice < 0.5 and client.interest.held:
            client.give_back([rng.choice(list(client.interest.held))])
        elif choice < 0.75 and client.producers:
            self._publish(client, rng.choice(client.producers))
        elif choice < 0.92 and client.flows:
            self._consume(rng.choice(client.flows))
        elif choice < 0.95 and client.flows:
            rng.choice(client.flows).unbind()
        elif "churn" in self.world.features:
            self._subscribe(client)

    def _publish_direct(self, client: GuaranteedClient) -> None:
        rng = self._rng
        if client.can_publish():
            client.publish(
                [self._draw_row(client) for _ in range(rng.choice([1, 2, rng.randint(1, ROWS_MAX)]))]
            )

    def _draw_row(self, client: GuaranteedClient) -> tuple[str, int]:
        if self._rng.random() < 0.05:
            others = [one for node in self._network.nodes.values() for one in node.clients]
            other = self._rng.choice(others)
            if other.reply_topic and other.plan.vpn == client.plan.vpn:
                return other.reply_topic, 0
        return mesh_world.draw_row(self._rng)

    def _publish(self, client: GuaranteedClient, producer: SimulatedProducer) -> None:
        rng = self._rng
        contents = [
            mesh_world.draw_guaranteed_row(rng, self.world, client.plan.vpn)
            for _ in range(rng.choice([1, 1, 2, rng.randint(1, ROWS_MAX)]))
        ]
        client.publish_guaranteed(producer, contents, int(rng.random() ** 3 * 200))

    def _subscribe(self, client: GuaranteedClient) -> None:
        """Change what a queue wants; the first one of each Message VPN never changes."""
        queues = [
            one.name
            for one in self.world.endpoints
            if one.vpn == client.plan.vpn and one.kind == "queue" and one.name != STEADY_QUEUE
        ]
        operation = self._rng.choice(["endpoint.subscribe", "endpoint.unsubscribe"])
        filters = [self._rng.choice(worlds.FILTERS[:9])]
        client.request(
            operation, {"name": self._rng.choice(queues), "filters": filters}, lambda value, error: None
        )

    def begin_recovery(self) -> None:
        """Let consumers take everything; what was to fail and did not yet fails no more."""
        super().begin_recovery()
        self.node.controller.is_doomed = False
        for place in self.node.disks.values():
            place.disk.is_failing = False

    # Calm.

    def publish_calmly(self) -> None:
        """Let everybody publish a little."""
        for client in self.clients:
            self._publish_direct(client)
            for producer in client.producers:
                if not producer.is_over:
                    self._publish(client, producer)

    def carrying(self) -> list[str]:
        """Say which queues of links hold messages that are still to go somewhere."""
        router = self.node.router
        if router is None:
            return [f"the router of node {self.name} is down"]
        return [
            f"{one.name} of {one.vpn.name} on node {self.name} holds {one.messages} messages"
            for one in router.endpoints
            if one.messages
            and one.name.startswith(wire.LINK_NAME_PREFIX)
            and not one.name.endswith(wire.LINK_DMQ_SUFFIX)
        ]

    def _not_back(self) -> list[str]:
        return [f"node {self.name}: {text}" for text in super()._not_back()] + self.node.link_processes.unrest

    def rest(self) -> None:
        """Let disks, homes and router agree."""
        self._rest()

    def drain(self, what: str) -> None:
        """Let consumers take everything."""
        self._drain(f"{what} of node {self.name}")

    def look(self) -> None:
        """Look at the disks."""
        self._look()


STEADY_QUEUE = "q0"
SETTLE_S = scenario.SETTLE_S
