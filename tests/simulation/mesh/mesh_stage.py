"""A small mesh on which a test plays one story by hand; at the end everything is drained and judged as any run is.

Each node has a publisher with a producer, and a consumer of a queue `q0` that takes everything. Who consumes also
subscribes directly to half of the topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from node.config import WorkerConfig
from router.ground.config import RouterConfig
from router.router import Router
from tests.simulation.guaranteed.guaranteed_node import SpoolSettings
from tests.simulation.guaranteed.guaranteed_world import (
    FILE_BYTES,
    MB_BYTES,
    USERNAME,
    EndpointPlan,
    GuaranteedPlan,
    GuaranteedWorld,
    ProducerPlan,
)
from tests.simulation.guaranteed.simulated_flow import FlowPlan
from tests.simulation.guaranteed.stage import queue
from tests.simulation.mesh.mesh_scenario import MeshScenario
from tests.simulation.mesh.mesh_world import TOPOLOGIES, MeshWorld
from tests.simulation.simulated_client import ClientPlan
from tests.simulation.simulated_node import NodeSettings

if TYPE_CHECKING:
    from tests.simulation.guaranteed.records import Publication
    from tests.simulation.history_index import Violation
    from tests.simulation.mesh.node_scenario import NodeScenario
    from tests.simulation.mesh.simulated_link import SimulatedLink

VPN = "default"
#: Long enough for anything that nothing disturbs.
SOON_S = 0.3
DELAY_MAX_S = 0.002


class MeshStage:
    """A mesh in the hands of a test."""

    def __init__(
        self,
        seed: str,
        topology: str = "pair",
        *,
        workers: int = 1,
        router_class: type[Router] = Router,
        queues: dict[str, dict[str, Any]] | None = None,
        clocks_ms: dict[str, int] | None = None,
    ) -> None:
        """Start the nodes, join them, and have everybody subscribed; `queues` are more queues of every node."""
        names, pairs = TOPOLOGIES[topology]
        world = MeshWorld(
            topology=topology,
            features=frozenset(),
            vpns=(VPN,),
            nodes={name: _node(name, workers, router_class, queues or {}) for name in names},
            links=[((pair[0], pair[1]), DELAY_MAX_S) for pair in pairs],
            clocks_ms={**dict.fromkeys(names, 0), **(clocks_ms or {})},
            wishes_per_frame=wire.MAX_WISHES_PER_FRAME,
            faults=0,
            duration_s=0.0,
        )
        self.scenario = MeshScenario(seed, world)
        for play in self.scenario.plays.values():
            play.be_calm()
            play.clients[1].ask([("t/1/*", False)])
        self.scenario.begin()

    def __getitem__(self, name: str) -> NodeScenario:
        return self.scenario.plays[name]

    def wait(self, seconds: float = SOON_S) -> None:
        """Let time pass."""
        self.scenario.loop.run_until(self.scenario.loop.now + seconds)

    @property
    def now(self) -> float:
        return self.scenario.loop.now

    def link(self, name: str, index: int = 0) -> SimulatedLink:
        """Give a link process of a node."""
        return self[name].node.link_processes.processes[index]

    def publish(self, name: str, *topics: str, **options: Any) -> list[Publication]:
        """Publish guaranteed messages at a node."""
        client = self[name].clients[0]
        return client.publish_guaranteed(client.producers[0], [(topic, options) for topic in topics])

    def say(self, name: str, *topics: str, flags: int = 0) -> None:
        """Publish direct messages at a node."""
        self[name].clients[0].publish([(topic, flags) for topic in topics])

    def finish(self) -> list[Violation]:
        """Let everybody come back, drain everything, and judge."""
        self.scenario.finish()
        return self.scenario.outcome().violations


def _node(
    name: str, workers: int, router_class: type[Router], queues: dict[str, dict[str, Any]]
) -> GuaranteedWorld:
    return GuaranteedWorld(
        features=frozenset(),
        settings=NodeSettings(
            router=RouterConfig(keepalive_ms=500),
            worker=WorkerConfig(),
            workers=workers,
            client_delay_max_s=0.001,
            worker_delay_max_s=0.001,
            laziness=0.0,
            router_class=router_class,
        ),
        spool=SpoolSettings(write_max_s=0.001),
        vpns=(VPN,),
        vpn_attributes={},
        endpoints=[
            EndpointPlan(VPN, "queue", "q0", queue(subscriptions=["t/>"])),
            *(EndpointPlan(VPN, "queue", one, queue(**attributes)) for one, attributes in queues.items()),
        ],
        plans=[
            GuaranteedPlan(
                ClientPlan(f"{name}-publisher", VPN, USERNAME), [ProducerPlan(f"{name}-p", 255, False)], []
            ),
            GuaranteedPlan(ClientPlan(f"{name}-consumer", VPN, USERNAME), [], [FlowPlan("q0")]),
        ],
        hostile_clients=0,
        faults=0,
        duration_s=0.0,
        pace_s=1.0,
        mb_bytes=MB_BYTES,
        file_bytes=FILE_BYTES,
    )
