"""A node with guaranteed messages on which a test plays one story by hand, step by step.

Nothing happens by chance but the delays of the network; at the end everything is drained and judged as any run is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from node.config import WorkerConfig
from node.home.home import Home, HomeLimits
from router.ground.config import RouterConfig
from router.router import Router
from tests.simulation import history_checker
from tests.simulation.guaranteed import checker
from tests.simulation.guaranteed.guaranteed_node import SpoolSettings
from tests.simulation.guaranteed.guaranteed_scenario import LEFT_OUT, GuaranteedScenario
from tests.simulation.guaranteed.guaranteed_world import (
    FILE_BYTES,
    MB_BYTES,
    USERNAME,
    EndpointPlan,
    GuaranteedPlan,
    GuaranteedWorld,
)
from tests.simulation.guaranteed.records import Operation, Stored
from tests.simulation.guaranteed.simulated_flow import FlowPlan, SimulatedFlow
from tests.simulation.simulated_client import ClientPlan
from tests.simulation.simulated_node import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.records import EndpointRecord, Publication
    from tests.simulation.guaranteed.simulated_producer import SimulatedProducer
    from tests.simulation.history_index import Violation

VPN = "default"
#: Long enough for anything that nothing disturbs.
SOON_S = 0.3


class Stage:
    """One worker or more, one publisher and as many consumers as a test asks for."""

    def __init__(
        self,
        seed: str,
        *,
        workers: int = 1,
        write_max_s: float = 0.001,
        home_class: type[Home] = Home,
        limits: HomeLimits | None = None,
        **queues: dict[str, Any],
    ) -> None:
        endpoints = [
            EndpointPlan(VPN, "queue", name, queue(**attributes)) for name, attributes in queues.items()
        ]
        plans = [
            GuaranteedPlan(ClientPlan(name=name, vpn=VPN, username=USERNAME), [], [])
            for name in ("publisher", "one", "two")
        ]
        world = GuaranteedWorld(
            features=frozenset(),
            settings=NodeSettings(
                router=RouterConfig(keepalive_ms=500),
                worker=WorkerConfig(),
                workers=workers,
                client_delay_max_s=0.001,
                worker_delay_max_s=0.001,
                laziness=0.0,
                router_class=Router,
            ),
            spool=SpoolSettings(home=limits, home_class=home_class, write_max_s=write_max_s),
            vpns=(VPN,),
            vpn_attributes={"max_retained_mb": 0},  # its queue would have a home of its own
            endpoints=endpoints,
            plans=plans,
            hostile_clients=0,
            faults=0,
            duration_s=0.0,
            pace_s=1.0,
            mb_bytes=MB_BYTES,
            file_bytes=FILE_BYTES,
        )
        self.scenario = play = GuaranteedScenario(seed, world)
        play._is_busy = False
        play.begin()
        self.publisher, *self.consumers = play.clients
        self.wait()

    # Time.

    def wait(self, seconds: float = SOON_S) -> None:
        """Let time pass."""
        self.scenario.loop.run_until(self.scenario.loop.now + seconds)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until something is so, ten seconds at most."""
        end = self.now + 10.0
        while not is_so():
            assert self.now < end
            self.wait(0.002)

    @property
    def now(self) -> float:
        return self.scenario.loop.now

    # Publishing.

    def producer(self, name: str = "p", window: int = 255, *, has_journal: bool = False) -> SimulatedProducer:
        made = self.publisher.add_producer(name, window, has_journal=has_journal)
        self.wait()
        return made

    def publish(
        self, producer: SimulatedProducer, *topics: str, padding: int = 0, **options: Any
    ) -> list[Publication]:
        """Hand messages in, together; they leave in this moment."""
        contents = [(topic, options) for topic in topics]
        return self.publisher.publish_guaranteed(producer, contents, padding)

    # Consumers.

    def flow(self, name: str, *, number: int = 0, **traits: Any) -> SimulatedFlow:
        """Bind a consumer; unless it is prompt, it holds what it gets."""
        client: GuaranteedClient = self.consumers[number]
        made = client.add_flow(FlowPlan(name, **{"is_prompt": False, **traits}))
        self.wait()
        return made

    # Faults and operators.

    def kill_worker(self, index: int = 0) -> None:
        """A worker dies; what it was writing is lost or not, as the seed says."""
        self.scenario.history.fault(self.now, f"worker {index}", "is killed")
        self.scenario.node.supervisor.kill_worker(index)

    def give_up_worker(self, index: int) -> None:
        """A worker dies as often as the supervisor starts it."""
        self.scenario.history.fault(self.now, f"worker {index}", "is given up")
        self.scenario.node.supervisor.give_up_worker(index)

    def kill_router(self) -> None:
        self.scenario.history.fault(self.now, "router", "is killed")
        self.scenario.node.kill_router()

    def cut(self, client: GuaranteedClient) -> None:
        """A client loses its connection, and both sides notice it."""
        assert client.connection is not None
        self.scenario.history.fault(self.now, client.plan.name, "loses its connection")
        client.connection.sever(near_notices=True, far_notices=True)

    def slow_disk(self, seconds: float, index: int = 0) -> None:
        self.scenario.node.disks[index].slow_until = self.now + seconds

    def fail_sync(self, index: int = 0) -> None:
        self.scenario.history.fault(self.now, f"worker {index}", "will find that a sync fails")
        self.scenario.node.disks[index].disk.is_failing = True

    def scale(self, workers: int) -> None:
        """Ask for another number of workers; time has to pass until there are so many."""
        self.scenario.history.fault(self.now, "operator", f"wants {workers} workers")
        self.scenario.node.controller.admin("workers.scale", {"workers": workers})

    def homes(self, name: str) -> list[int]:
        """Give the workers that have the partitions of a queue, as its last change says."""
        homes: list[int] = self.endpoint(name).changes[-1].attributes["homes"]
        return homes

    def endpoint(self, name: str) -> EndpointRecord:
        found = self.scenario.node.controller.endpoint(VPN, "queue", name)
        assert found is not None
        return found

    def define(self, name: str, **attributes: Any) -> None:
        self.scenario.node.define("queue", VPN, name, **attributes)
        self.wait()

    def delete(self, name: str) -> None:
        self.scenario.node.remove("queue", VPN, name)
        self.wait()

    def purge(self, name: str) -> Operation:
        """Ask for a purge; time has to pass until it is answered."""
        wish = Operation("purge", self.now, 0)
        self.endpoint(name).operations.append(wish)

        def answered(ok: bool, value: Any) -> None:
            wish.answered_at, wish.is_done = self.now, ok

        arguments = {"kind": "queue", "name": name, "vpn": VPN}
        self.scenario.node.controller.admin("endpoints.purge", arguments, answered)
        return wish

    # What came of it.

    def stored(self, name: str) -> list[str]:
        """Give what a queue ever stored, in the order of positions."""
        lane = self.endpoint(name).id
        events = [
            event
            for event in self.scenario.guaranteed.home_events
            if isinstance(event, Stored) and event.place[0] >> 10 == lane
        ]
        return [event.what for event in sorted(events, key=lambda event: event.place)]

    def on_disk(self, name: str) -> list[str]:
        """Give what the disks hold of a queue now."""
        endpoint = self.endpoint(name).id
        found: list[str] = []
        for place in self.scenario.node.disks.values():
            for lane, messages in sorted(place.observer.live().items()):
                if lane >> 10 == endpoint:
                    found += [messages[position] for position in sorted(messages)]
        return found

    def finish(self) -> list[Violation]:
        """Let everybody come back, drain everything, and judge."""
        play = self.scenario
        play._recover()
        play._rest()
        play._drain("drain")
        play._calm()
        play._drain("last drain")
        play._look()
        return [
            *history_checker.check(play.history, LEFT_OUT),
            *checker.check(play.history, play.guaranteed),
        ]


def queue(**attributes: Any) -> dict[str, Any]:
    """Give the attributes of a queue that everybody may use."""
    return {"permission": "delete", "max_bind_count": 100, "respect_ttl": False, **attributes}


def names(publications: list[Publication]) -> list[str]:
    """Give what the payloads of publications say."""
    return [f"g{one.number}" for one in publications]
