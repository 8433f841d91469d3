"""The controller of a simulated node: the real decisions, a store that outlives it, and what its shell does.

It writes down which endpoints there are and when the node knew: a change is in force when the router answered the
request that told it, or a whole configuration that had it.
"""

from __future__ import annotations

import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from cluster import objects
from cluster.catalog.catalog import COUNTER as ENDPOINT_COUNTER
from cluster.catalog.catalog import Catalog
from cluster.catalog.deletions import Deletions
from cluster.catalog.placement import BALANCE, STAYING, WORKERS
from cluster.catalog.producers import COUNTER as PRODUCER_COUNTER
from cluster.catalog.producers import Producers
from cluster.catalog.registries import Registries
from cluster.catalog.stages import Stages
from cluster.controller.controller import Controller
from cluster.controller.mesh.cluster_view import Identity
from cluster.controller.switchboard.effects import (
    Answer,
    Asked,
    Commit,
    Effect,
    Record,
    Reply,
    Request,
    RunProcesses,
    ScaleNode,
    WriteDown,
)
from cluster.controller.switchboard.events import EventRing
from cluster.controller.switchboard.switchboard import Switchboard
from storage.config_store import Change as StoredObject
from storage.config_store import Counter, Deletion, Entry, Producer, Sink, Stage
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.control_plane import DELAY_MAX_S
from tests.simulation.guaranteed.records import Change, EndpointRecord
from tests.simulation.simulated_network import Connection, Endpoint
from tests.simulation.simulated_supervisor import BACK_OFF_FIRST_S, SPAWN_MAX_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.control_plane import ControlPort
    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.simulated_network import Frames, Loop

#: What waits for answers is looked over so often.
TICK_S = 0.5
PRODUCERS_MAX = 1_000
IDLE_DAYS = 7
STAGE_IDLE_S = 86_400
EVENTS_MAX = 50
#: Requests of one controller; the next one's numbers begin above them.
NUMBERS = 1_000_000
TODAY = "2026-01-01T00:00:00Z"

Key = tuple[str, str, str]


class SimulatedStore:
    """The config store: what a commit made durable."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.counters: dict[str, int] = {}
        self.producers: dict[Key, Producer] = {}
        self.stages: dict[Key, Stage] = {}
        self.sinks: dict[Key, Sink] = {}
        self.deletions: dict[int, Deletion] = {}

    def commit(self, entries: list[Entry]) -> None:
        """Make changes durable, all of them."""
        for entry in wire.unpack(wire.pack([[type(one).__name__, *one] for one in entries])):
            kind, *fields = entry
            if kind == "Counter":
                name, value = fields
                self.counters[name] = value
            elif kind == "Producer":
                self._put(self.producers, tuple(fields[:3]), Producer(*fields) if fields[3] else None)
            elif kind == "Stage":
                self._put(self.stages, tuple(fields[:3]), None if fields[3] is None else Stage(*fields))
            elif kind == "Deletion":
                self._put(self.deletions, int(fields[0]), None if fields[1] else Deletion(*fields))
            elif kind == "Sink":
                self._put(self.sinks, tuple(fields[:3]), None if fields[3] is None else Sink(*fields))
            else:
                self._put(self.objects, tuple(fields[:3]), fields[3])

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value


class SimulatedController:
    """The controller process, as long as the node lives: it may be paused, die, and come back."""

    def __init__(
        self, loop: Loop, rng: random.Random, history: History, guaranteed: GuaranteedHistory, workers: int
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._history = history
        self._guaranteed = guaranteed
        self._workers = workers
        self.store = SimulatedStore()
        self.controller: Controller | None = None
        self.has_standby = False
        #: Every process that may connect.
        self.ports: list[ControlPort] = []
        #: Calls back when the router has told its workers everything: a whole configuration is answered before.
        self.when_installed: Callable[[Callable[[], None]], None] = lambda call: call()
        #: Asks the supervisor for another number of workers.
        self.on_scale: Callable[[int], None] = lambda workers: None
        #: Gives the node as the supervisor describes it; None: it does not.
        self.look_at_node: Callable[[], dict[str, Any]] | None = None
        #: What the node is called, and who runs its link processes.
        self.node_name = ""
        self.on_processes: Callable[[str, list[int]], None] = lambda role, indices: None
        self._connections: dict[bytes, Connection] = {}
        self._backlog: deque[Callable[[], None]] | None = None
        self._starts = 0
        #: Whether it dies right after the next commit, before anybody hears of it.
        self.is_doomed = False
        self._next_admin = 1
        #: Number of an admin request -> who wants its answer.
        self._admins: dict[int, Any] = {}
        #: Number of a request to the router -> what is in force when it is answered.
        self._told: dict[int, list[tuple[EndpointRecord, int, bool]]] = {}

    # The process.

    @property
    def is_up(self) -> bool:
        """Tell whether the process runs, paused or not."""
        return self.controller is not None

    @property
    def is_working(self) -> bool:
        """Tell whether it runs and is not paused."""
        return self.is_up and self._backlog is None

    @property
    def is_balancing(self) -> bool:
        """Tell whether its store says that lanes are to be moved, one batch after the other."""
        return self.store.counters.get(BALANCE, 0) % 2 == 1

    def start(self) -> None:
        """Start the process: it reads its store, and asks for the workers that were wished last."""
        wanted = self.store.counters.get(WORKERS, self._workers)
        is_scale_needed, self._workers = wanted != self._workers, wanted
        stored = [StoredObject(*key, attributes) for key, attributes in sorted(self.store.objects.items())]
        catalog = Catalog(
            stored,
            lambda password: f"hashed:{password}",
            next_endpoint_id=self.store.counters.get(ENDPOINT_COUNTER, 1),
            workers=self._workers,
        )
        catalog.take([Counter(name, self.store.counters.get(name, 0)) for name in (STAYING, BALANCE)])
        producers = Producers(
            list(self.store.producers.values()),
            self.store.counters.get(PRODUCER_COUNTER, 1),
            PRODUCERS_MAX,
            IDLE_DAYS,
        )
        missing = catalog.missing_built_ins()
        if missing:
            self._commit(missing)
            catalog.take(missing)
        self._starts += 1
        stages = Stages(
            list(self.store.stages.values()), list(self.store.sinks.values()), producers, STAGE_IDLE_S
        )
        self.controller = Controller(
            Registries(catalog, producers, stages, Deletions(self.store.deletions.values())),
            Switchboard(EventRing(EVENTS_MAX, []), lambda: TODAY, self._starts * NUMBERS),
            Identity(self.node_name, "", "", ""),
            {},
        )
        self._tell_standby()
        self.is_doomed = False
        for port in self.ports:
            port.controller_started()
        if is_scale_needed:
            self.on_scale(wanted)
        self._tick(self.controller)

    def _tell_standby(self) -> None:
        if self.has_standby and self.controller is not None:
            self._do(self.controller.pair(None))

    def have_standby(self) -> None:
        """Be the controller of a node with a standby, which does not play here."""
        self.has_standby = True
        self._tell_standby()

    def kill(self) -> None:
        """The process dies; another one starts after the back-off."""
        if self.controller is None:
            return
        self.controller = None
        self._backlog = None
        self._admins.clear()
        for connection in self._connections.values():
            connection.close_far()
        self._connections.clear()
        self._loop.after(BACK_OFF_FIRST_S + self._rng.random() * SPAWN_MAX_S, self.start)

    def pause(self, duration_s: float) -> None:
        """Stop the process for a while."""
        if self.controller is None or self._backlog is not None:
            return
        backlog = self._backlog = deque()

        def go_on() -> None:
            if self._backlog is backlog:
                self._backlog = None
                while backlog and self._backlog is None:
                    backlog.popleft()()

        self._loop.after(duration_s, go_on)

    def _act(self, event: Callable[[Controller], list[Effect]]) -> None:
        controller = self.controller
        if controller is None:
            return
        if self._backlog is not None:
            self._backlog.append(lambda: self._act(event))
            return
        try:
            self._do(event(controller))
        except Exception:  # noqa: BLE001 - whatever it is, it would have ended the process
            self._history.break_rule(f"the controller process ends with {traceback.format_exc(limit=-4)}")
            self.kill()

    def _tick(self, controller: Controller) -> None:
        if self.controller is controller:
            self._act(lambda same: same.tick(self._loop.now))
            self._tell_node()
            self._loop.after(TICK_S, lambda: self._tick(controller))

    def _tell_node(self) -> None:
        """Let the supervisor describe the node."""
        if self.look_at_node is not None:
            news = self.look_at_node()
            self._act(lambda controller: controller.node_news(news, self._loop.now))

    # Processes.

    def accept(self, port: ControlPort, near: Endpoint) -> Connection:
        """Take the connection of a process."""
        connection: Connection | None = None

        def arrived(frames: Frames) -> None:
            if self._connections.get(port.identity) is connection:
                kind, *content = wire.unpack(frames[0])
                self._act(lambda controller: self._take(controller, port.identity, kind, content))

        def ended() -> None:
            if self._connections.get(port.identity) is connection:
                del self._connections[port.identity]

        connection = Connection(self._loop, self._rng, DELAY_MAX_S, near, Endpoint(arrived, ended))
        self._connections[port.identity] = connection
        return connection

    def _take(self, controller: Controller, identity: bytes, kind: str, content: list[Any]) -> list[Effect]:
        now = self._loop.now
        if kind == "hello":
            role, index, incarnation, pid = content
            return controller.hello(identity, (role, index), incarnation, pid, now)
        if kind == "ask":
            number, operation, arguments = content
            return controller.asked([Asked(identity, number, operation, arguments)])
        number, ok, value = content
        told = self._told.pop(number, ()) if ok else ()
        self.when_installed(lambda: self._all_in_force(told))
        return controller.answered(number, value) if ok else controller.refused(number, *value)

    # Operators.

    def admin(self, operation: str, arguments: dict[str, Any], done: Any = None) -> None:
        """Do an admin operation; `done(ok, value)` comes when it is answered, never if the controller dies."""
        number = self._next_admin
        self._next_admin += 1
        if done is not None:
            self._admins[number] = done
        self._act(
            lambda controller: controller.admin(b"operator", number, operation, arguments, self._loop.now)
        )

    # Effects.

    def _do(self, effects: list[Effect]) -> None:
        controller = self.controller
        for effect in effects:
            if self.controller is not controller:
                return
            self._do(self._carry_out(effect))

    def _carry_out(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, Commit):
            self._commit(effect.changes)
            if self.is_doomed:
                self._history.fault(self._loop.now, "controller", "dies right after a commit")
                self.kill()
                return []
            assert self.controller is not None
            return self.controller.committed(effect.number, self._loop.now)
        if isinstance(effect, Request):
            return self._request(effect)
        if isinstance(effect, Answer):
            connection = self._connections.get(effect.identity)
            if connection is not None:
                connection.down.send([wire.pack(["answer", effect.number, effect.ok, effect.value])])
        elif isinstance(effect, Reply):
            done = self._admins.pop(effect.number, None)
            if done is not None:
                done(effect.ok, wire.unpack(wire.pack(effect.value)))
        elif isinstance(effect, ScaleNode):
            self._workers = effect.workers
            self.on_scale(effect.workers)
            self._tell_node()
        elif isinstance(effect, RunProcesses):
            self.on_processes(effect.role, effect.indices)
        else:
            assert isinstance(effect, Record | WriteDown), effect
        return []

    def _request(self, effect: Request) -> list[Effect]:
        connection = self._connections.get(effect.identity)
        assert self.controller is not None
        if connection is None:
            return self.controller.unanswered(effect.number)
        self._note_told(effect)
        frame = ["request", effect.number, effect.operation, effect.arguments]
        connection.down.send([wire.pack(frame)])
        return []

    # What is written down.

    def _commit(self, entries: list[Entry]) -> None:
        self.store.commit(entries)
        now = self._loop.now
        for entry in entries:
            if not isinstance(entry, StoredObject):
                assert isinstance(entry, (Counter, Producer, Stage, Sink, Deletion))
                continue
            kind, vpn, name, attributes = entry
            if kind == "vpn":
                self._guaranteed.vpns.setdefault(name, []).append((now, attributes or {}))
            elif kind in objects.ENDPOINT_KINDS:
                self._note_endpoint(kind, vpn, name, attributes)

    def _note_endpoint(self, kind: str, vpn: str, name: str, attributes: dict[str, Any] | None) -> None:
        now = self._loop.now
        known = self.endpoint(vpn, kind, name)
        if attributes is None:
            assert known is not None, "what is deleted was there"
            known.deleted_at = now
            return
        if known is None:
            known = EndpointRecord(attributes["id"], vpn, kind, name)
            self._guaranteed.endpoints[known.id] = known
        known.changes.append(Change(now, FOREVER, wire.unpack(wire.pack(attributes))))

    def endpoint(self, vpn: str, kind: str, name: str) -> EndpointRecord | None:
        """Give the endpoint of a name that is there now."""
        for one in reversed(self._guaranteed.endpoints.values()):
            if (one.vpn, one.kind, one.name) == (vpn, kind, name) and one.deleted_at == FOREVER:
                return one
        return None

    def _note_told(self, effect: Request) -> None:
        """Remember what the router knows for certain when it answers."""
        if effect.operation == "config_snapshot":
            everything = self._guaranteed.endpoints.values()
            self._told[effect.number] = [_told_of(one) for one in everything]
        elif effect.operation in ("config_set", "config_edit", "config_delete"):
            kind, vpn, name = effect.arguments[:3]
            self._told[effect.number] = [
                _told_of(one)
                for one in self._guaranteed.endpoints.values()
                if (one.vpn, one.kind, one.name) == (vpn, kind, name)
            ]

    def _all_in_force(self, told: Sequence[tuple[EndpointRecord, int, bool]]) -> None:
        for endpoint, changes, is_deleted in told:
            self._in_force(endpoint, changes, is_deleted=is_deleted)

    def _in_force(self, endpoint: EndpointRecord, changes: int, *, is_deleted: bool) -> None:
        """The router knows an endpoint with its first so many changes, or that it is gone."""
        now = self._loop.now
        for number in range(changes):
            change = endpoint.changes[number]
            if change.in_force_at == FOREVER:
                endpoint.changes[number] = change._replace(in_force_at=now)
        if is_deleted and endpoint.gone_at == FOREVER:
            endpoint.gone_at = now

    def validate(self) -> None:
        """Let the state machine check itself."""
        if self.controller is not None and self._backlog is None:
            self.controller.validate()


def _told_of(endpoint: EndpointRecord) -> tuple[EndpointRecord, int, bool]:
    return endpoint, len(endpoint.changes), endpoint.deleted_at < FOREVER


def refused_with(value: Any) -> int:
    """Give the code of a refusal."""
    return int(value[0]) if isinstance(value, list) and value else errors.INTERNAL
