"""The ways that a message may take, each walked once after others have warmed it up.

The nodes are those of the simulation (`guaranteed.stage`, `mesh.mesh_stage`), with nobody but the clients of the walk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.stage import Stage
from tests.simulation.mesh.mesh_stage import MeshStage
from tests.simulation.message_path.application import Simulation
from tests.simulation.message_path.tracer import Tracer, Walk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from angarium.client.client import Client
    from tests.simulation.guaranteed.guaranteed_scenario import GuaranteedScenario

SEED: Final = "the path of a message"
#: More rows than the fast path takes, over topics of both workers.
MANY: Final = 50
WARM_UPS: Final = 5
#: Longer than it takes to notice that a client is gone, and for interest to cross a link.
SETTLED_S: Final = 5.0
#: Every loop turns meanwhile.
IDLE_S: Final = 2.0
#: What belongs to the path of a message happens each time, what a timer does hardly twice; so much later.
WALKS: Final = 4
BETWEEN_S: Final = 0.7
QUEUE: Final = "orders"


#: An idle time, and the same done again and again.
Recorded: TypeAlias = tuple[Walk, list[Walk]]


class Way(NamedTuple):
    """How a message went."""

    #: What was called for it.
    walk: Walk
    #: What is called meanwhile, and was called before too, when there was no message.
    whole: Walk


class _Rig:
    """Nodes and clients of one way."""

    def __init__(self, stage: Stage | MeshStage, plays: Sequence[GuaranteedScenario]) -> None:
        """Take a stage, whose own clients go away."""
        self._stage = stage
        self._nodes = [play.node for play in plays]
        for client in (client for play in plays for client in play.clients):
            client.pause(FOREVER)
        self.settle()
        self.simulation = Simulation(stage.scenario.loop)
        self.do = self.simulation.do

    def settle(self) -> None:
        """Let everything come to rest."""
        self._stage.wait(SETTLED_S)

    def turn(self) -> None:
        """Have all loops turn that would sleep while nothing comes."""
        for node in self._nodes:
            for of_frames in (False, True):
                node.act(lambda router: None, of_frames=of_frames)
            for process in node.supervisor.workers.values():
                process.worker.work()
                process.worker.tidy(node.loop.now)

    def holds_messages(self) -> bool:
        """Tell whether there are messages on a disk, as the routers know it."""
        routers = [node.router for node in self._nodes if node.router is not None]
        return any(endpoint.messages for router in routers for endpoint in router.endpoints)

    async def clients(self) -> list[Client]:
        """Connect a publisher to the first node, and a consumer to the last one."""
        return [await self.simulation.connect(node) for node in (self._nodes[0], self._nodes[-1])]

    async def walk(self, act: Callable[[], Awaitable[Any]]) -> Recorded:
        """Have something done until everything is warm; give an idle time, and what is done some times more."""
        for _ in range(WARM_UPS):
            await act()
        self.settle()
        with Tracer().tracing() as idle:
            self.turn()
            self._stage.wait(IDLE_S)
        walks = []
        for _ in range(WALKS):
            with Tracer().tracing() as walk:
                await act()
            walks.append(walk)
            self._stage.wait(BETWEEN_S)
        return idle, walks


def _node(**queues: Any) -> _Rig:
    stage = Stage(SEED, workers=2, **queues)
    return _Rig(stage, [stage.scenario])


def _mesh() -> _Rig:
    stage = MeshStage(SEED, workers=2)
    return _Rig(stage, [stage["a"], stage["b"]])


async def _direct(rig: _Rig, topics: list[str]) -> Recorded:
    """Publish to a subscriber that takes what comes."""
    publisher, consumer = await rig.clients()
    subscription = await rig.do(consumer.subscribe("d/>").__aenter__())
    messages = aiter(subscription)
    rig.settle()

    async def take() -> None:
        for topic in topics:
            assert (await anext(messages)).topic == topic

    async def act() -> None:
        if len(topics) == 1:
            await rig.do(publisher.publish(topics[0], b"hello"))
        else:
            await rig.do(publisher.publish_many([(topic, b"hello") for topic in topics]))
        await rig.do(take())
        rig.turn()  # by chance no worker would be between two steps in one of the walks

    recorded = await rig.walk(act)
    await rig.do(messages.aclose())
    for client in (publisher, consumer):
        await rig.do(client.close())
    return recorded


async def _guaranteed(rig: _Rig) -> Recorded:
    """Publish to a queue, see it acknowledged, consume and accept, until the router knows that the room is free."""
    publisher, consumer = await rig.clients()
    producer = await rig.do(publisher.producer("p").__aenter__())
    flow = await rig.do(consumer.consume(QUEUE, ack="manual").__aenter__())

    async def publish() -> None:
        await (await producer.send("g/1", b"hello"))

    async def consume() -> None:
        (await flow.receive()).accept()
        while rig.holds_messages():
            await asyncio.sleep(0)

    async def act() -> None:
        await rig.do(publish())
        await rig.do(consume())

    recorded = await rig.walk(act)
    for client in (publisher, consumer):
        await rig.do(client.close())
    return recorded


def _direct_way(rig: _Rig, topics: list[str]) -> Way:
    return _way(*rig.simulation.run(_direct(rig, topics)))


def _guaranteed_way() -> Way:
    return _way(*_record_guaranteed())


def _way_to_store() -> Way:
    """How far the client is by then is chance."""
    idle, walks = _record_guaranteed()
    return _way(idle, [walk.until("STORE", "home").of(client=False) for walk in walks])


def _record_guaranteed() -> Recorded:
    rig = _node(**{QUEUE: {"subscriptions": ["g/>"]}})
    return rig.simulation.run(_guaranteed(rig))


def _way(idle: Walk, walks: list[Walk]) -> Way:
    whole = walks[0].in_each(walks)
    return Way(whole.beyond(idle), whole)


WAYS: Final[dict[str, Callable[[], Way]]] = {
    "direct, fast path": lambda: _direct_way(_node(), ["d/1"]),
    "direct, slow path": lambda: _direct_way(_node(), [f"d/{number}" for number in range(MANY)]),
    "direct, over a link": lambda: _direct_way(_mesh(), ["d/1"]),
    "guaranteed, up to STORE": _way_to_store,
    "guaranteed": _guaranteed_way,
}


def walk_ways(names: Iterable[str] = WAYS) -> dict[str, Way]:
    """Walk some of the ways, or all."""
    return {name: WAYS[name]() for name in names}
