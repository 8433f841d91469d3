"""One run with guaranteed messages: a disturbed time, a recovery, a drain, a calm time, and a last look at the disks.

disturbed   clients publish and consume; faults, operators and hostile clients disturb them
recovery    faults have ended; everybody must come back, and every producer must learn what became of its messages
drain       consumers take everything; every endpoint must become empty
calm        everybody publishes a little more, which must be taken, stored and drained; then disks must be empty
"""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from typing import TYPE_CHECKING

import router.admission.usage
from angarium import wire
from node.home.home import Home
from router.router import Router
from tests.simulation import history_checker, scenario
from tests.simulation import world as worlds
from tests.simulation.end_state import compare_credit, unrest
from tests.simulation.event_history import History
from tests.simulation.guaranteed import checker, guaranteed_end, guaranteed_world
from tests.simulation.guaranteed.changing import Changing
from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
from tests.simulation.guaranteed.guaranteed_faults import GuaranteedFaults
from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode
from tests.simulation.guaranteed.records import GuaranteedHistory
from tests.simulation.guaranteed.retaining import Retaining
from tests.simulation.guaranteed.simulated_flow import FlowPlan
from tests.simulation.guaranteed.simulated_reader import ReaderPlan
from tests.simulation.guaranteed.simulated_writer import WriterPlan
from tests.simulation.hostile_client import HostileClient
from tests.simulation.simulated_network import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.guaranteed.guaranteed_world import GuaranteedWorld
    from tests.simulation.guaranteed.simulated_flow import SimulatedFlow
    from tests.simulation.guaranteed.simulated_producer import SimulatedProducer

#: Wall clocks are not monotonic clocks.
WALL_OFFSET_MS = 1_700_000_000_000
ROWS_MAX = 8
CALM_ROUNDS = 2
#: Direct rules that count every message of a run do not fit one in which others are counted too.
LEFT_OUT = ("accounts", "refusals")
#: Features of worlds in which endpoints have no room until somebody consumes.
ROOM_IS_SHORT = frozenset({"small", "files", "low-priority"})
#: How many worlds have reader groups, and writers of batches.
READERS = 0.35
WRITERS = 0.35
#: How many worlds retain messages.
RETAINING = 0.6
#: In how many of those with another number of workers now and then one dies for good that is taking lanes over.
GIVING_UP = 0.4
#: Until so long after the disturbed time.
GIVEN_UP_S = 3.0
#: What consumers hold for ever would keep others waiting; nobody stalls for longer.
STALL_MAX_S = 1.5


def run(
    seed: str,
    router_class: type[Router] = Router,
    home_class: type[Home] = Home,
    add: Callable[[GuaranteedScenario], None] = lambda play: None,
) -> scenario.Outcome:
    """Run one seed and judge it; `add` gives it what is not in every world."""
    started = time.perf_counter()
    world = guaranteed_world.draw(random.Random(seed), router_class, home_class)
    giving_up = random.Random(f"{seed} gives up")
    # What a worker that leaves did not store is sent again: behind what others stored meanwhile under the same name.
    may_give_up = "scaling" in world.features and "shared-names" not in world.features
    gives_up = may_give_up and giving_up.random() < GIVING_UP
    if gives_up:
        world = world._replace(settings=world.settings._replace(workers=3))
    with sizes(world):
        play = GuaranteedScenario(seed, world)
        play.add_readers(random.Random(f"{seed} reads"))
        play.add_writers(random.Random(f"{seed} writes"))
        play.add_retaining(random.Random(f"{seed} retains"))
        play.giving_up = giving_up if gives_up else None
        add(play)
        with scenario.watched(play.history):
            play.play()
    history = play.history
    violations = history_checker.check(history, LEFT_OUT)
    violations += checker.check(history, play.guaranteed)
    return scenario.Outcome(
        seed, history, violations, play.loop.steps, time.perf_counter() - started, play.guaranteed
    )


def run_changing(seed: str) -> scenario.Outcome:
    """Run one seed in which operators change attributes all the time and clients read ranges, and judge it."""

    def add(play: GuaranteedScenario) -> None:
        play.add_scanners(random.Random(f"{seed} scans"))
        play.add_changing(random.Random(f"{seed} changes"))

    return run(seed, add=add)


@contextlib.contextmanager
def sizes(world: GuaranteedWorld) -> Iterator[None]:
    """Let a megabyte and a spool file be as large as the world wants."""
    before = router.admission.usage.BYTES_PER_MB, wire.SPOOL_FILE_BYTES
    router.admission.usage.BYTES_PER_MB = world.mb_bytes  # type: ignore[misc]
    wire.SPOOL_FILE_BYTES = world.file_bytes  # type: ignore[misc]
    try:
        yield
    finally:
        router.admission.usage.BYTES_PER_MB, wire.SPOOL_FILE_BYTES = before  # type: ignore[misc]


class GuaranteedScenario:
    """A world with guaranteed messages while it lives."""

    #: What its clients are.
    client_class: type[GuaranteedClient] = GuaranteedClient

    def __init__(
        self, seed: str, world: GuaranteedWorld, loop: Loop | None = None, history: History | None = None
    ) -> None:
        rng = random.Random(f"{seed} plays")
        self.world = world
        self.loop = loop or Loop()
        self.history = history or History()
        self.guaranteed = GuaranteedHistory()
        self.guaranteed.wall_offset_ms = WALL_OFFSET_MS
        self.guaranteed.ack_delay_s = world.spool.home.ack_delay_ms / 1000
        self.guaranteed.is_node_wide = not {"small", "files"} & world.features
        self._rng = random.Random(rng.getrandbits(64))
        self.node = self.make_node(random.Random(rng.getrandbits(64)))
        self.clients = [self._make_client(rng, plan) for plan in world.plans]
        self._hostile = [
            HostileClient(self.loop, random.Random(rng.getrandbits(64)), self.node, list(worlds.TOPICS))
            for _ in range(world.hostile_clients)
        ]
        self._faults = self.make_faults(random.Random(rng.getrandbits(64)))
        #: True while clients act by themselves.
        self._is_busy = True
        #: What makes them publish and read what is retained, if anything does.
        self._retaining: Retaining | None = None
        #: What changes endpoints, if anything does.
        self._changing: Changing | None = None
        #: What draws when a worker is given up, if one is.
        self.giving_up: random.Random | None = None

    def make_node(self, rng: random.Random) -> GuaranteedNode:
        """Make the node that the clients connect to."""
        world = self.world
        return GuaranteedNode(self.loop, rng, world.settings, self.history, self.guaranteed, world.spool)

    def make_faults(self, rng: random.Random) -> GuaranteedFaults:
        """Make what disturbs them."""
        return GuaranteedFaults(self.loop, rng, self.node, self.history, self.clients, self.world)

    def _make_client(self, rng: random.Random, plan: guaranteed_world.GuaranteedPlan) -> GuaranteedClient:
        client = self.client_class(
            self.loop,
            random.Random(rng.getrandbits(64)),
            self.node,
            self.history,
            self.guaranteed,
            plan.client,
        )
        for one in plan.producers:
            client.add_producer(one.name, one.window, has_journal=one.has_journal)
        for flow in plan.flows:
            client.add_flow(flow)
        return client

    def add_readers(self, rng: random.Random) -> None:
        """Give some clients reader groups, in some worlds."""
        if rng.random() > READERS:
            return
        for number in range(rng.choice([1, 1, 2, 3])):
            client = rng.choice(self.clients)
            queues = [
                one.name
                for one in self.world.endpoints
                if (one.vpn, one.kind) == (client.plan.vpn, "queue")
                and one.attributes.get("max_spool_usage_mb", 1)
            ]
            if not queues:
                continue
            client.add_reader(
                ReaderPlan(
                    rng.choice(queues),
                    f"group-{number}",
                    messages=rng.choice([None, 1, 5, 30]),
                    bytes=rng.choice([None, None, 500]),
                    window=rng.choice([1, 3, 255]),
                )
            )

    def add_writers(self, rng: random.Random) -> None:
        """Give some clients writers of batches, in some worlds."""
        if rng.random() > WRITERS:
            return
        for number in range(rng.choice([1, 1, 2])):
            client = rng.choice(self.clients)
            queues = [
                one.name
                for one in self.world.endpoints
                if (one.vpn, one.kind) == (client.plan.vpn, "queue") and one.name != "dmq"
            ]
            client.add_writer(
                WriterPlan(
                    f"sink{number}",
                    rng.sample(queues, rng.randint(1, len(queues))),
                    tasks=rng.choice([1, 2, 3]),
                    rows=rng.choice([1, 5, 12]),
                    window=rng.choice([1, 20]),
                )
            )

    def add_retaining(self, rng: random.Random) -> None:
        """Let clients publish and read what is retained, in some worlds."""
        if rng.random() > RETAINING or "files" in self.world.features:
            return  # what is retained keeps the few files that such a world has
        self._retaining = Retaining(rng, self.loop, self.clients, self.world)

    def add_changing(self, rng: random.Random) -> None:
        """Let an operator change attributes of endpoints and of what is around them."""
        self._changing = Changing(rng, self.node, self.world, self._note)

    def add_scanners(self, rng: random.Random) -> None:
        """Let clients read ranges of endpoints."""
        for _ in range(rng.choice([1, 2])):
            client = rng.choice(self.clients)
            client.add_scanner(
                [(one.kind, one.name) for one in self.world.endpoints if one.vpn == client.plan.vpn]
            )

    def _note(self, whom: str, what: str) -> None:
        self.history.fault(self.loop.now, whom, what)

    def play(self) -> None:
        """Run from the first to the last moment."""
        self.begin()
        self._disturb()
        self._recover()
        self._rest()
        self._drain("drain")
        self._calm()
        self._drain("last drain")
        self._look()

    def begin(self) -> None:
        """Start the node, make its objects, and let the clients come."""
        self.start()
        self._await("start", scenario.RECOVERY_MAX_S, self._not_started)
        self.admit()

    def start(self) -> None:
        """Start the node, and make its objects."""
        self.node.controller.start()
        guaranteed_world.furnish(self.node, self.world)
        self.node.start_router()
        self.node.supervisor.start_workers()

    def admit(self) -> None:
        """Let the clients come."""
        for client in self.clients:
            if self._rng.random() < 0.5:
                client.ask([(self._rng.choice(worlds.FILTERS), False)])
            client.connect()
        self._validate()

    def _not_started(self) -> list[str]:
        return [] if self.node.is_healthy else ["the node is not ready"]

    # The disturbed time.

    def _disturb(self) -> None:
        self.be_busy()
        self.loop.run_until(self.loop.now + self.world.duration_s)
        self.be_calm()

    def be_busy(self) -> None:
        """Let clients act by themselves, and disturb them."""
        loop, duration = self.loop, self.world.duration_s
        for client in self.clients:
            self._act_later(client)
        if self._retaining is not None:
            self._retaining.begin()
        if self._changing is not None:
            self._changing.begin()
        for hostile in self._hostile:
            self.history.polluted_vpns = ["default"]
            loop.after(self._rng.random(), hostile.begin)
        self._faults.schedule(self.world.faults, loop.now + 0.2, loop.now + duration)
        if self.giving_up is not None:
            self._faults.give_up_heir(self.giving_up, loop.now + duration + GIVEN_UP_S)

    def be_calm(self) -> None:
        """End that; what was begun goes on to its end."""
        self._is_busy = False
        if self._retaining is not None:
            self._retaining.end()
        if self._changing is not None:
            self._changing.end()
        for hostile in self._hostile:
            hostile.stop()

    def _act_later(self, client: GuaranteedClient) -> None:
        self.loop.after(self._rng.expovariate(1 / self.world.pace_s), lambda: self._act(client))

    def _act(self, client: GuaranteedClient) -> None:
        if not self._is_busy:
            return
        self._act_later(client)
        if client.is_paused or not client.is_open:
            return
        choice = self._rng.random()
        if choice < 0.45 and client.producers:
            self._publish(client, self._rng.choice(client.producers))
        elif choice < 0.55 and "promoted" in self.world.features:
            self._publish_direct(client)
        elif choice < 0.9 and client.flows:
            self._consume(self._rng.choice(client.flows))
        elif choice < 0.93 and client.flows:
            self._rng.choice(client.flows).unbind()
        elif choice < 0.96 and client.producers and "forget" in self.world.features:
            self._rng.choice(client.producers).close(forget=self._rng.random() < 0.6)
        else:
            self._subscribe(client)

    def _publish(self, client: GuaranteedClient, producer: SimulatedProducer) -> None:
        rng = self._rng
        contents = [
            guaranteed_world.draw_guaranteed_row(rng, self.world, client.plan.vpn)
            for _ in range(rng.choice([1, 1, 2, rng.randint(1, ROWS_MAX)]))
        ]
        client.publish_guaranteed(producer, contents, int(rng.random() ** 3 * 200))

    def _publish_direct(self, client: GuaranteedClient) -> None:
        if client.can_publish():
            topics = [self._rng.choice(worlds.TOPICS[:20]) for _ in range(self._rng.randint(1, 3))]
            client.publish([(topic, 0) for topic in topics])

    def _consume(self, flow: SimulatedFlow) -> None:
        rng = self._rng
        if flow.plan.is_prompt or not flow.held:
            return
        if rng.random() < 0.3:
            flow.settle_out_of_order(rng.randint(1, 5))
        else:
            flow.settle_some(rng.randint(1, 20))

    def _subscribe(self, client: GuaranteedClient) -> None:
        queues = [one for one in self.world.endpoints if one.vpn == client.plan.vpn and one.kind == "queue"]
        operation = self._rng.choice(["endpoint.subscribe", "endpoint.unsubscribe"])
        filters = [self._rng.choice(guaranteed_world.QUEUE_FILTERS)]
        arguments = {"name": self._rng.choice(queues).name, "filters": filters}
        client.request(operation, arguments, lambda value, error: None)

    # Recovery.

    def _recover(self) -> None:
        self.begin_recovery()
        self.loop.run_until(self.loop.now + scenario.SETTLE_S)
        self._await("recovery", scenario.RECOVERY_MAX_S, self._not_back)
        self.loop.run_until(self.loop.now + scenario.SETTLE_S)

    def begin_recovery(self) -> None:
        """Open what operators shut, and let consumers take everything."""
        for producer in self._contenders():
            producer.retire()
        for one in self.world.endpoints:
            record = self.node.controller.endpoint(one.vpn, one.kind, one.name)
            if record is not None and not all(
                record.changes[-1].attributes[name] for name in ("ingress_enabled", "egress_enabled")
            ):
                self.node.define(one.kind, one.vpn, one.name, ingress_enabled=True, egress_enabled=True)
        for client in self.clients:
            for flow in client.flows:
                flow.is_draining = True
                flow.settle_some(len(flow.held))
            for reader in client.readers:
                reader.is_wanted = False
            for writer in client.writers:
                writer.is_wanted = False
            for scanner in client.scanners:
                scanner.is_wanted = False

    def _rest(self) -> None:
        """Let disks, homes and router agree with messages in them; then all homes may have to read their disks."""
        if self.history.broken:
            return
        self._await("rest", scenario.DRAIN_MAX_S, self._disagreements)
        if self._rng.random() < 0.5:
            self.history.fault(self.loop.now, "node", "loses all workers at rest")
            for index in list(self.node.supervisor.workers):
                self.node.supervisor.kill_worker(index)
            self.loop.run_until(self.loop.now + scenario.SETTLE_S)
            self._await("recovery from rest", scenario.RECOVERY_MAX_S, self._not_back)
            self._await("rest after recovery", scenario.DRAIN_MAX_S, self._disagreements)

    def _disagreements(self) -> list[str]:
        missing = self._not_back()
        return missing or list(guaranteed_end.disagreements(self.node, self.guaranteed))

    def _contenders(self) -> list[SimulatedProducer]:
        """Give the producers whose names others have too: one of each name goes on."""
        seen: dict[tuple[str, str], None] = {}
        found = []
        for client in self.clients:
            for producer in client.producers:
                key = client.plan.vpn, producer.name
                if key in seen:
                    found.append(producer)
                seen[key] = None
        return found

    def _missing(self) -> list[str]:
        """Say who is not back yet, and what is not settled."""
        found = self._not_back()
        for client in self.clients:
            found += [
                f"producer {one.name} of {client.plan.name} has {one.rows.held_messages} unsettled"
                for one in client.producers
                if not one.is_settled
            ]
        return found

    def _not_back(self) -> list[str]:
        """Say who is not back yet.

        What is sent again, is in some endpoints and has no room in others, waits until there is room.
        """
        router = self.node.router
        if router is None or not self.node.is_healthy or not self.node.controller.is_working:
            return ["the node is not healthy"]
        found = []
        if len(router.sessions) != len(self.clients):
            found.append(f"the router has {len(router.sessions)} sessions of {len(self.clients)} clients")
        for client in self.clients:
            if not client.is_settled:
                found.append(f"{client.plan.name} is not back")
                continue
            found += [
                f"{one.record} of {client.plan.name} goes on" for one in client.writers if not one.is_over
            ]
            found += [
                f"{reader.record} of {client.plan.name} has not let {reader.plan.queue} go"
                for reader in client.readers
                if not reader.is_over
            ]
            client.ask(list(client.interest.wishes))
            if not client.interest.is_settled:
                found.append(f"{client.plan.name} waits for SUBACK")
            if not ROOM_IS_SHORT & self.world.features and not all(
                one.is_settled for one in client.producers
            ):
                found.append(f"{client.plan.name} has producers that are not settled")
        return found

    # Draining.

    def _drain(self, what: str) -> None:
        if self.history.broken:
            return
        for client in self.clients:
            for flow in client.flows:
                flow.is_wanted = flow.plan.temporary
                if not flow.is_wanted:
                    flow.unbind()
        self._await(f"{what}: unbinding", scenario.RECOVERY_MAX_S, self._bound)
        drainers = self._bind_drainers()
        self._await(what, scenario.DRAIN_MAX_S, lambda: [*self._missing(), *self._left(), *unrest(self.node)])
        for flow in drainers:
            flow.is_wanted = False
            flow.unbind()
        self._await(f"{what}: the end", scenario.RECOVERY_MAX_S, self._bound)

    def _bound(self) -> list[str]:
        return [
            f"{client.plan.name} is bound to {flow.plan.name}"
            for client in self.clients
            for flow in client.flows
            if flow.window is not None and not flow.is_wanted
        ]

    def _bind_drainers(self) -> list[SimulatedFlow]:
        flows = []
        for record in list(self.guaranteed.endpoints.values()):
            if record.deleted_at < float("inf") or not record.changes[-1].attributes["durable"]:
                continue
            if record.name.startswith(wire.LINK_NAME_PREFIX) or record.retains:
                continue
            attributes = record.changes[-1].attributes
            if record.kind != "queue" and attributes.get("topic") is None:
                continue
            client = next((one for one in self.clients if one.plan.vpn == record.vpn), None)
            if client is None:
                continue
            plan = FlowPlan(
                record.name,
                kind=record.kind,
                topic=attributes.get("topic") if record.kind != "queue" else None,
                selector=attributes.get("selector") if record.kind != "queue" else None,
            )
            flow = client.add_flow(plan)
            flow.is_draining = True
            flows.append(flow)
            self.guaranteed.drained[record.id] = None
        return flows

    def _left(self) -> list[str]:
        """Say which endpoints hold messages."""
        router = self.node.router
        assert router is not None
        return [
            f"{one.name} of {one.vpn.name} holds {one.messages} messages"
            for one in router.endpoints
            if one.messages and one.id in self.guaranteed.drained
        ]

    # Calm.

    def _calm(self) -> None:
        if self.history.broken:
            return
        self.history.calm_since = self.guaranteed.calm_since = self.loop.now
        for _ in range(CALM_ROUNDS):
            for client in self.clients:
                for producer in client.producers:
                    if not producer.is_over:
                        self._publish(client, producer)
                if self._retaining is not None:
                    self._retaining.publish(client)
            self.loop.run_until(self.loop.now + scenario.STEP_S)
        self._await("calm", scenario.DRAIN_MAX_S, self._missing)
        for client in self.clients:
            client.probe()
        self.loop.run_until(self.loop.now + 1.0)

    def _look(self) -> None:
        if self.history.broken:
            return
        # New workers get lanes in batches, of which the last may come long after all that was disturbed.
        self._await("the last move", scenario.DRAIN_MAX_S, self._moving)
        self.loop.run_until(self.loop.now + 1.0)
        if self._retaining is not None:
            self._retaining.look()
            self._await("the last look", scenario.RECOVERY_MAX_S, self._retaining.looking)
        self.guaranteed.drained_at = self.loop.now
        assert self.node.router is not None
        compare_credit(self.node.router, self.clients)
        for text in guaranteed_end.disagreements(self.node, self.guaranteed):
            self.history.break_rule(f"at the end: {text}")

    def _moving(self) -> list[str]:
        return ["lanes are moved"] if self.node.controller.is_balancing else []

    def _await(self, what: str, limit_s: float, missing: Callable[[], list[str]]) -> None:
        end = self.loop.now + limit_s
        while found := missing():
            if self.loop.now >= end or self.history.broken:
                self.history.break_rule(f"{what}: not within {limit_s} s: {'; '.join(found[:8])}")
                return
            self.loop.run_until(self.loop.now + scenario.STEP_S)

    def _validate(self) -> None:
        """Let everything check itself, now and from time to time."""
        self.node.validate()
        for text in guaranteed_end.exceeded(self.node, self.world, self.guaranteed):
            self.history.break_rule(f"at {self.loop.now:.3f} {text}")
        for client in self.clients:
            try:
                client.validate()
            except AssertionError:
                self.history.break_rule(f"{client.plan.name}: {traceback.format_exc(limit=-3)}")
        self.loop.after(scenario.VALIDATE_S, self._validate)
