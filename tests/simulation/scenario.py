"""One run from a seed: a disturbed time, a recovery, a calm time in which everything counts exactly.

disturbed   clients publish, subscribe, consume; faults and hostile clients disturb them
recovery    faults have ended; everybody must come back and everything must drain
calm        everybody publishes a little more, nothing is disturbed, then everything must have drained
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
import traceback
from typing import TYPE_CHECKING, NamedTuple

from angarium import wire
from router.router import Router
from tests.simulation import history_checker
from tests.simulation import world as worlds
from tests.simulation.end_state import compare_credit, disagreements, standing_faults, unrest
from tests.simulation.event_history import History
from tests.simulation.fault_injection import Faults
from tests.simulation.hostile_client import HostileClient
from tests.simulation.simulated_client import SimulatedClient
from tests.simulation.simulated_network import Loop
from tests.simulation.simulated_node import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.history_index import Violation
    from tests.simulation.mesh.mesh_history import MeshHistory

#: State machines check themselves so often.
VALIDATE_S = 0.5
#: Everybody must be back so long after the last disturbance: hung processes, back-offs, keepalives and the slowest
#: network fit.
RECOVERY_MAX_S = 120.0
#: Everything must drain within this time.
DRAIN_MAX_S = 200.0
STEP_S = 0.25
#: What was sent before is there by then, unless somebody is disturbed.
SETTLE_S = 0.3
CALM_ROUNDS = 3
ROWS_MAX = 12
BURST_ROUNDS = 3
BURST_ROWS = 4
#: Processor seconds of one run; normal are 0.2, three nodes in small steps have taken 30. An endless loop takes longer.
PROCESSOR_MAX_S = 90.0


class Outcome(NamedTuple):
    """What came of a run."""

    seed: str
    history: History
    violations: list[Violation]
    steps: int
    seconds: float
    #: What guaranteed messages left behind, if there were any.
    guaranteed: GuaranteedHistory | None = None
    #: What each node left behind, if there were several.
    mesh: MeshHistory | None = None

    @property
    def all_guaranteed(self) -> list[GuaranteedHistory]:
        """Give what guaranteed messages left behind, of each node; publications are in each."""
        if self.mesh is not None:
            return [records.guaranteed for records in self.mesh.nodes.values()]
        return [] if self.guaranteed is None else [self.guaranteed]


class EndlessLoopError(Exception):
    """A state machine did not come to an end."""


def run(seed: str, router_class: type[Router] = Router) -> Outcome:
    """Run one seed and judge it."""
    started = time.perf_counter()
    scenario = Scenario(seed, router_class)
    history = scenario.history
    with watched(history):
        scenario.play()
    violations = history_checker.check(history)
    return Outcome(seed, history, violations, scenario.loop.steps, time.perf_counter() - started)


@contextlib.contextmanager
def watched(history: History) -> Iterator[None]:
    """Write down what ends a run before its end: an exception of the simulation, or an endless loop."""
    previous = signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_MAX_S, PROCESSOR_MAX_S)
    try:
        yield
    except Exception:  # noqa: BLE001 - a fault of the simulation itself has to name its seed too
        history.break_rule(f"the run ends with {traceback.format_exc(limit=-4)}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise EndlessLoopError(f"more than {PROCESSOR_MAX_S} s of processor time")


class Scenario:
    """A world while it lives."""

    def __init__(self, seed: str, router_class: type[Router]) -> None:
        rng = random.Random(seed)
        self.world = worlds.draw(rng, router_class)
        self.loop = Loop()
        self.history = History()
        self._rng = random.Random(rng.getrandbits(64))
        self.node = SimulatedNode(
            self.loop, random.Random(rng.getrandbits(64)), self.world.settings, self.history
        )
        self.clients = [
            SimulatedClient(self.loop, random.Random(rng.getrandbits(64)), self.node, self.history, plan)
            for plan in self.world.plans
        ]
        self._hostile = [
            HostileClient(self.loop, random.Random(rng.getrandbits(64)), self.node, list(worlds.TOPICS))
            for _ in range(self.world.hostile_clients)
        ]
        self._faults = Faults(
            self.loop,
            random.Random(rng.getrandbits(64)),
            self.node,
            self.history,
            self.clients,
            list(self.world.vpns),
        )
        #: True while clients act by themselves.
        self._is_busy = True

    def play(self) -> None:
        """Run from the first to the last moment."""
        worlds.furnish(self.node, self.world)
        self.node.start_router()
        self.node.supervisor.start_workers()
        self._await(
            "start", RECOVERY_MAX_S, lambda: [] if self.node.is_healthy else ["the node is not ready"]
        )
        for client in self.clients:
            self._draw_wishes(client)
            client.connect()
        self._validate()
        self._disturb()
        self._recover()
        self._calm()

    # The disturbed time.

    def _disturb(self) -> None:
        loop, duration = self.loop, self.world.duration_s
        for client in self.clients:
            self._act_later(client)
        for hostile in self._hostile:
            self.history.polluted_vpns = ["default"]
            loop.after(self._rng.random(), hostile.begin)
        self._faults.schedule(self.world.faults, loop.now + 0.2, loop.now + duration)
        loop.run_until(loop.now + duration)
        self._is_busy = False
        for hostile in self._hostile:
            hostile.stop()

    def _draw_wishes(self, client: SimulatedClient) -> None:
        client.ask([self._draw_wish() for _ in range(self._rng.randint(0, 4))])

    def _draw_wish(self) -> tuple[str, bool]:
        rng = self._rng
        if rng.random() < 0.3:
            return rng.choice(worlds.SHARED_FILTERS), False
        return rng.choice(worlds.FILTERS), rng.random() < 0.2

    def _act_later(self, client: SimulatedClient) -> None:
        self.loop.after(self._rng.expovariate(1 / self.world.pace_s), lambda: self._act(client))

    def _act(self, client: SimulatedClient) -> None:
        if not self._is_busy:
            return
        self._act_later(client)
        if client.is_paused or not client.is_open:
            return
        choice = self._rng.random()
        if choice < 0.7:
            self._publish(client)
        elif choice < 0.77:
            client.ask([self._draw_wish()])
        elif choice < 0.84 and client.interest.held:
            client.give_back([self._rng.choice(list(client.interest.held))])
        elif choice < 0.9 and client.plan.username == "manager":
            self._manage(client)
        elif not client.plan.is_consuming:
            client.consume(self._rng.randint(0, 6))

    def _publish(self, client: SimulatedClient) -> None:
        rng = self._rng
        for _ in range(rng.choice([1, 1, 1, 3])):
            if client.can_publish():
                rows = rng.choice([1, 2, rng.randint(1, ROWS_MAX)])
                client.publish([self._draw_row(client) for _ in range(rows)], flush=rng.random() < 0.5)

        if rng.random() < 0.15:
            client.ask_retired()

    def _draw_row(self, client: SimulatedClient) -> tuple[str, int]:
        rng = self._rng
        if rng.random() < 0.05:
            other = rng.choice(self.clients)
            if other.reply_topic and other.plan.vpn == client.plan.vpn:
                return other.reply_topic, 0
        return worlds.draw_row(rng, client.plan)

    def _manage(self, client: SimulatedClient) -> None:
        targets = [one for one in self.clients if one.plan.vpn == client.plan.vpn]
        text = self._rng.choice(worlds.MANAGED_FILTERS)
        client.manage(self._rng.choice(targets), text, is_wanted=self._rng.random() < 0.6)

    # Recovery and calm.

    def _recover(self) -> None:
        for client in self.clients:
            client.is_consuming = True
            client.consume(client.unconsumed)
        self.loop.run_until(self.loop.now + SETTLE_S)
        self._await("recovery", RECOVERY_MAX_S, self._missing)
        self.loop.run_until(self.loop.now + SETTLE_S)
        self._await("drain", DRAIN_MAX_S, lambda: unrest(self.node))
        self._look("after recovery")

    def _missing(self) -> list[str]:
        """Say who is not back yet."""
        router = self.node.router
        if router is None or not self.node.is_healthy:
            return ["the node is not healthy"]
        found = []
        if len(router.sessions) != len(self.clients):
            found.append(f"the router has {len(router.sessions)} sessions of {len(self.clients)} clients")
        for client in self.clients:
            if not client.is_settled:
                found.append(f"{client.plan.name} is not back")
                continue
            client.ask(list(client.interest.wishes))
            if not client.interest.is_settled:
                found.append(f"{client.plan.name} waits for SUBACK")
        return found

    def _calm(self) -> None:
        history, router = self.history, self.node.router
        if router is None:
            return
        history.calm_since = self.loop.now
        history.calm_stats = router.stats()
        for client in self.clients:
            if client.record is not None:
                untold = self._untold().get(client.record.session, 0)
                history.calm_untold[client.record.session] = untold, client.record.dropped
        for _ in range(CALM_ROUNDS):
            for client in self.clients:
                self._publish(client)
            self.loop.run_until(self.loop.now + STEP_S)
            self._missing()
        self._await("calm", DRAIN_MAX_S, lambda: [*self._missing(), *unrest(self.node)])
        self._share_out()
        for client in self.clients:
            client.probe()
        self.loop.run_until(self.loop.now + 1.0)
        self._look("at the end")
        self._take_counters()

    def _share_out(self) -> None:
        """Publish deliver-to-one messages on one topic, alone, to see how they are shared out."""
        client, topic = self._rng.choice(self.clients), self._rng.choice(worlds.TOPICS)
        before = len(self.history.messages)
        for _ in range(BURST_ROUNDS):
            if client.can_publish():
                client.publish([(topic, wire.FLAG_DTO)] * BURST_ROWS)
            self._await("burst", DRAIN_MAX_S, lambda: [*self._missing(), *unrest(self.node)])
        self.history.burst = self.history.messages[before:]

    def _untold(self) -> dict[str, int]:
        router = self.node.router
        assert router is not None
        return {
            f"{session.number}": sum(queue.dropped for queue in session.egress.queues)
            for session in router.sessions
            if session.egress is not None
        }

    def _take_counters(self) -> None:
        router = self.node.router
        assert router is not None
        self.history.end_stats = router.stats()
        self.history.untold = self._untold()
        for session in router.sessions:
            self.history.counters[f"{session.number}"] = dict(session.counters)
        compare_credit(router, self.clients)

    def _await(self, what: str, limit_s: float, missing: object) -> None:
        assert callable(missing)
        end = self.loop.now + limit_s
        while found := missing():
            if self.loop.now >= end:
                self.history.break_rule(f"{what}: not within {limit_s} s: {'; '.join(found[:8])}")
                return
            self.loop.run_until(self.loop.now + STEP_S)

    def _look(self, when: str) -> None:
        """Note what router and workers know differently, unless a worker has just told of it."""
        if self.node.router is None or self.history.broken:
            return
        if disagreements(self.node):  # it tidies up unasked, and clients subscribe: that may be on its way
            self.loop.run_until(self.loop.now + STEP_S)
            self._await("drain", DRAIN_MAX_S, lambda: unrest(self.node))
        for text in disagreements(self.node):
            self.history.break_rule(f"{when}: {text}")

    def _validate(self) -> None:
        """Let everything check itself, now and from time to time."""
        self.node.validate()
        router = self.node.router
        if router is not None:
            for text in standing_faults(router):
                self.history.break_rule(f"at {self.loop.now:.3f} {text}")
        for client in self.clients:
            client.validate()
        self.loop.after(VALIDATE_S, self._validate)
