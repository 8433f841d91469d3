"""A node of a simulated mesh: it has a name, a clock of its own, and link processes."""

from __future__ import annotations

import random
import traceback
from typing import TYPE_CHECKING, Any

from router.ground.config import Identity
from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode, SpoolSettings
from tests.simulation.mesh.simulated_link import LinkSupervisor

if TYPE_CHECKING:
    from router.router import Router
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.mesh.cable import Cable
    from tests.simulation.mesh.mesh_history import NodeHistory
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import NodeSettings

CLUSTER = "mesh"
SECRET = "one horse, two horses, three"
FIRST_PORT = 5000


class Network:
    """The nodes, where they are, and what lies between them."""

    def __init__(self, cables: list[Cable]) -> None:
        self.nodes: dict[str, MeshNode] = {}
        self.cables = {frozenset(cable.nodes): cable for cable in cables}

    def add(self, node: MeshNode) -> None:
        """Take a node."""
        self.nodes[node.name] = node

    def address_of(self, name: str) -> str:
        """Give the address of a node's clients; it need not be there yet."""
        return f"tcp://127.0.0.1:{FIRST_PORT + ord(name)}"

    def neighbours(self, name: str) -> list[str]:
        """Name the nodes that a node has links to."""
        return sorted(one for pair in self.cables if name in pair for one in pair if one != name)

    def reach(self, node: MeshNode, url: str) -> tuple[MeshNode | None, Cable | None]:
        """Give who listens at an address, and what lies in between."""
        for other in self.nodes.values():
            if self.address_of(other.name) == url:
                return other, self.cables[frozenset((node.name, other.name))]
        return None, None


class MeshNode(GuaranteedNode):
    """One node of a mesh."""

    history: NodeHistory

    def __init__(
        self,
        name: str,
        network: Network,
        loop: Loop,
        rng: random.Random,
        settings: NodeSettings,
        history: NodeHistory,
        guaranteed: GuaranteedHistory,
        spool: SpoolSettings,
    ) -> None:
        self.name = name
        super().__init__(loop, rng, settings, history, guaranteed, spool)
        self.network = network
        network.add(self)
        #: Filled in by who makes them.
        self.clients: list[GuaranteedClient] = []
        self.identity = Identity(
            node_id=f"id-{name}", cluster=CLUSTER, secret=SECRET, local_secret=f"only inside {name}"
        )
        self.link_processes = LinkSupervisor(loop, random.Random(rng.getrandbits(64)), self)
        self.controller.node_name = name
        # Its supervisor tells nothing of links here, which are run all the same.
        self.controller.look_at_node = None
        self.controller.on_processes = self.link_processes.run

    def make_router(self, **more: Any) -> Router:
        """Make the state machine of a new router process, which neighbours know by its identity."""
        return super().make_router(identity=self.identity, **more)

    def join(self, neighbour: str) -> None:
        """Make the link to a neighbour."""
        self.define("link", "", neighbour, addresses=[self.network.address_of(neighbour)])

    def validate(self) -> None:
        """Let every state machine check itself."""
        super().validate()
        try:
            self.link_processes.validate()
        except AssertionError:
            self.history.break_rule(f"at {self.loop.now:.3f} {traceback.format_exc(limit=-3)}")
