"""One run with several nodes: a disturbed time, a recovery, a drain, a calm time in which everything counts exactly.

start       nodes start and join, until each knows what the others want
disturbed   clients publish, subscribe and consume; nodes and the links between them are disturbed
recovery    faults have ended; everybody must come back, and interest must be the same on both sides of every link
drain       what is on its way over links must arrive, and consumers take everything
calm        everybody publishes a little more
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

from angarium import wire
from node.home.home import Home
from router.links import imports
from router.router import Router
from tests.simulation import scenario
from tests.simulation.end_state import disagreements as direct_disagreements
from tests.simulation.end_state import unrest
from tests.simulation.event_history import History
from tests.simulation.guaranteed.guaranteed_scenario import WALL_OFFSET_MS, sizes
from tests.simulation.mesh import mesh_checker, mesh_end, mesh_world
from tests.simulation.mesh.cable import Cable
from tests.simulation.mesh.mesh_faults import LinkFaults
from tests.simulation.mesh.mesh_history import MeshHistory
from tests.simulation.mesh.mesh_node import Network
from tests.simulation.mesh.node_scenario import NodeScenario
from tests.simulation.simulated_network import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.guaranteed.records import Publication
    from tests.simulation.mesh.mesh_world import MeshWorld

CALM_ROUNDS = 2
#: Nodes and links are back by then: hung processes, back-offs of links, keepalives and slow links fit.
RECOVERY_MAX_S = 120.0


def run(seed: str, router_class: type[Router] = Router, home_class: type[Home] = Home) -> scenario.Outcome:
    """Run one seed and judge it."""
    return play_world(seed, mesh_world.draw(random.Random(seed), router_class, home_class))


def play_world(seed: str, world: MeshWorld) -> scenario.Outcome:
    """Run a world and judge it."""
    started = time.perf_counter()
    with sizes(next(iter(world.nodes.values()))), _frames(world):
        play = MeshScenario(seed, world)
        with scenario.watched(play.shared):
            play.play()
    return play.outcome(time.perf_counter() - started)


@contextlib.contextmanager
def _frames(world: MeshWorld) -> Iterator[None]:
    """Let frames of wishes, and what is done of them at once, be as small as the world wants."""
    before = wire.MAX_WISHES_PER_FRAME, imports.STEP_MAX
    wire.MAX_WISHES_PER_FRAME = imports.STEP_MAX = world.wishes_per_frame  # type: ignore[misc]
    try:
        yield
    finally:
        wire.MAX_WISHES_PER_FRAME, imports.STEP_MAX = before  # type: ignore[misc]


class MeshScenario:
    """A mesh while it lives."""

    def __init__(self, seed: str, world: MeshWorld) -> None:
        rng = random.Random(f"{seed} plays")
        self.seed = seed
        self.world = world
        self.loop = Loop()
        self.shared = History()
        publications: list[Publication] = []
        self.history = MeshHistory(self.shared, publications)
        self.network = Network([Cable(pair, delay) for pair, delay in world.links])
        self.plays: dict[str, NodeScenario] = {}
        for name, node in world.nodes.items():
            play = NodeScenario(seed, name, node, self.loop, self.shared, publications, self.network)
            play.guaranteed.wall_offset_ms = WALL_OFFSET_MS + world.clocks_ms[name]
            self.plays[name] = play
        for name, play in self.plays.items():
            self.history.nodes[name] = play.records
        self.faults = LinkFaults(self.loop, random.Random(rng.getrandbits(64)), self.network, self.shared)

    def play(self) -> None:
        """Run from the first to the last moment."""
        self.begin()
        self._disturb()
        self.finish()

    def outcome(self, seconds: float = 0.0) -> scenario.Outcome:
        """Judge what happened."""
        self.history.greeting_max_s = max(
            play.node.link_processes.greeting_max_s for play in self.plays.values()
        )
        violations = mesh_checker.check(self.history)
        return scenario.Outcome(
            self.seed, self.shared, violations, self.loop.steps, seconds, mesh=self.history
        )

    # The start.

    def begin(self) -> None:
        """Start the nodes, join them, and let the clients come."""
        for play in self.plays.values():
            play.start()
        self.wait("start", RECOVERY_MAX_S, self._not_started)
        for play in self.plays.values():
            play.admit()
        self.wait("joining", RECOVERY_MAX_S, self.missing)
        self.history.settled_at = self.loop.now

    def _not_started(self) -> list[str]:
        return [f"node {name} is not ready" for name, play in self.plays.items() if not play.node.is_healthy]

    # The disturbed time.

    def _disturb(self) -> None:
        loop, duration = self.loop, self.world.duration_s
        for play in self.plays.values():
            play.be_busy()
        self.faults.schedule(self.world.faults, loop.now + 0.2, loop.now + duration)
        loop.run_until(loop.now + duration)
        for play in self.plays.values():
            play.be_calm()

    # The end.

    def finish(self) -> None:
        """Let everybody come back, drain everything, and see how it is when nothing is disturbed."""
        self.recover()
        self.drain("drain")
        self.calm()
        self.drain("last drain")
        self.look()

    def recover(self) -> None:
        """Let everybody come back."""
        self.loop.run_until(self.loop.now + scenario.SETTLE_S)
        for play in self.plays.values():
            play.begin_recovery()
        self.loop.run_until(self.loop.now + scenario.SETTLE_S)
        self.wait("recovery", RECOVERY_MAX_S, self.missing)
        self.wait("carrying", scenario.DRAIN_MAX_S, self._carried_so_far)
        for play in self.plays.values():
            play.rest()

    def drain(self, what: str) -> None:
        """Let consumers take everything."""
        self.wait(f"{what}: carrying", scenario.DRAIN_MAX_S, self._carried_so_far)
        for play in self.plays.values():
            if not self.shared.broken:
                play.drain(what)

    def calm(self) -> None:
        """Let everybody publish a little more."""
        if self.shared.broken:
            return
        self.wait("before the calm", RECOVERY_MAX_S, self._under_way)
        self.shared.calm_since = self.loop.now
        for play in self.plays.values():
            play.guaranteed.calm_since = self.loop.now
        for _ in range(CALM_ROUNDS):
            for play in self.plays.values():
                play.publish_calmly()
            self.loop.run_until(self.loop.now + scenario.STEP_S)
        self.wait("calm", scenario.DRAIN_MAX_S, self._under_way)
        for play in self.plays.values():
            for client in play.clients:
                client.probe()
        self.loop.run_until(self.loop.now + 1.0)

    def look(self) -> None:
        """Look at what each node knows and has, at rest."""
        if self.shared.broken:
            return
        self.history.is_over = True
        for play in self.plays.values():
            play.look()
            for text in direct_disagreements(play.node):
                play.history.break_rule(f"at the end: {text}")
        for text in mesh_end.disagreements(self.plays):
            self.shared.break_rule(f"at the end: {text}")

    def missing(self) -> list[str]:
        """Say who is not back, and what neighbours do not know of each other."""
        found = [text for play in self.plays.values() for text in play._not_back()]
        return found or mesh_end.disagreements(self.plays)

    def _under_way(self) -> list[str]:
        found = self.missing()
        for play in self.plays.values():
            found += [*play.carrying(), *(f"node {play.name}: {text}" for text in unrest(play.node))]
        return found

    def _carried_so_far(self) -> list[str]:
        """The same while nobody consumes: what was sent again waits for room in all its queues."""
        routers = [play.node.router for play in self.plays.values()]
        waits = any(router is not None and router.publishing.spooling.waiting_rounds for router in routers)
        return self.missing() if waits else self._under_way()

    def wait(self, what: str, limit_s: float, missing: Callable[[], list[str]]) -> None:
        """Let time pass until nothing is missing."""
        end = self.loop.now + limit_s
        while found := missing():
            if self.loop.now >= end or self.shared.broken:
                self.shared.break_rule(f"{what}: not within {limit_s} s: {'; '.join(found[:8])}")
                return
            self.loop.run_until(self.loop.now + scenario.STEP_S)
