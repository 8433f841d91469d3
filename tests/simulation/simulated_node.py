"""A node of the simulation: the real router and workers, and what the processes around them do.

That is the router's shell (`router.server`: effects, ticks, unreachable clients) and the controller (pushes
objects); the supervisor and its workers are in `simulated_supervisor`. Clients come through `accept`. Every
exception of a state machine is a finding: it would have ended the process.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from angarium_server.access import TopicRules
from angarium_server.connections.tls import Peer
from cluster import objects
from router.ground.effects import EmitEvent, SendClient, SendWorker, VerifyPassword
from router.ground.ground import Ground
from router.links.exports import SUBSCRIPTION_COST
from router.router import Router
from router.sessions.directory import AclProfile
from router.sessions.session import is_attached
from router.subscriptions.subscriptions import STEP_MAX
from tests.simulation.event_history import FOREVER, Rights
from tests.simulation.simulated_network import Connection, Endpoint, Frames, Loop
from tests.simulation.simulated_supervisor import BACK_OFF_FIRST_S, SPAWN_MAX_S, SimulatedSupervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.config import WorkerConfig
    from router.ground.config import RouterConfig
    from router.ground.effects import Effect
    from tests.simulation.event_history import History
    from tests.simulation.simulated_worker import SimulatedWorker

#: As in `router.server`: a router that starts waits no longer for its workers.
WORKERS_WAIT_S = 5.0
#: A process that stops looks so often whether it has drained, and ends after so long in any case.
DRAIN_POLL_S = 0.02
DRAIN_LIMIT_S = 10.0
#: No loop looks at the clock more often.
POLL_MIN_S = 0.001
#: Comparing a password takes the pool so long at most.
PASSWORD_MAX_S = 0.06
#: What a stored hash looks like here; scrypt would be most of the run.
HASHED = "hashed:"

ObjectKey = tuple[str, str, str]


class NodeSettings(NamedTuple):
    """What differs from node to node."""

    router: RouterConfig
    worker: WorkerConfig
    workers: int
    client_delay_max_s: float
    #: Frames inside the node are fast, but two workers are never equally fast.
    worker_delay_max_s: float
    #: The chance that effects of an event are carried out together with those of the next ones, as when the
    #: shell drains a socket.
    laziness: float
    router_class: type[Router] = Router


class ClientLink:
    """One client connection as the router's socket sees it."""

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id
        self.connection: Connection | None = None
        #: True once the socket knows that it is closed: sending fails from then on.
        self.is_gone = False
        #: What came and the router did not take yet.
        self.untaken: deque[tuple[Frames, str]] = deque()


class SimulatedNode:
    """One node; its router and workers come and go."""

    #: What it is called.
    name = "n1"

    def __init__(self, loop: Loop, rng: random.Random, settings: NodeSettings, history: History) -> None:
        self.loop = loop
        self._rng = rng
        self.settings = settings
        self.history = history
        #: What operators created: (kind, VPN, name) -> attributes.
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        #: None while the router process is down.
        self.router: Router | None = None
        self.supervisor = SimulatedSupervisor(loop, rng, self, history)
        #: The clients' connections to this router, by routing id.
        self.links: dict[bytes, ClientLink] = {}
        self._next_routing_id = 0
        #: What the router process has to do while it is paused; None while it runs.
        self._backlog: deque[Callable[[Router], None]] | None = None
        #: True from the moment in which the router process had its configuration, and its workers or enough
        #: of waiting for them.
        self._are_doors_open = False
        self._started_at = 0.0
        self._next_tick = FOREVER
        self._is_carry_scheduled = False
        self._epoch = 0

    # Configuration.

    def define(self, kind: str, vpn: str, name: str, **attributes: Any) -> None:
        """Create or change an object, as the controller does it."""
        key = (kind, "" if kind == "vpn" else vpn, name)
        complete = objects.complete(kind, {**self.objects.get(key, {}), **attributes})
        if complete.get("password") and not complete["password"].startswith(HASHED):
            complete["password"] = HASHED + complete["password"]
        self.objects[key] = complete

        def put(router: Router) -> None:
            router.operators.put_object(kind, vpn, name, complete, self.loop.now)
            self.note_rights(vpn)

        self.act(put)

    def remove(self, kind: str, vpn: str, name: str) -> None:
        """Delete an object; a Message VPN takes along what is in it, as the controller sees to it."""
        inside = [key for key in self.objects if kind == "vpn" and key[1] == name]
        for key in [*inside, (kind, "" if kind == "vpn" else vpn, name)]:
            del self.objects[key]
            self.act(lambda router, key=key: router.operators.drop_object(*key, self.loop.now))  # type: ignore[misc]

    def note_rights(self, vpn: str) -> None:
        for (kind, owner, name), attributes in list(self.objects.items()):
            if (
                kind == "username"
                and owner == vpn
                and ("acl", vpn, attributes["acl_profile"]) in self.objects
            ):
                acl = AclProfile("", self.objects["acl", vpn, attributes["acl_profile"]])
                default_allow, exceptions = acl.publish_list(name)
                timeline = self.history.rights.setdefault((vpn, name), [])
                publish = TopicRules(exceptions, default_allow=default_allow)
                timeline.append(Rights(self.loop.now, publish, acl.subscribe_rules(name)))

    # The router process.

    def start_router(self) -> None:
        """Start a router process; its configuration comes a little later."""
        router = self.router = self.make_router()
        self._epoch = 0
        self._are_doors_open = False
        self._started_at = self.loop.now
        self.supervisor.router_started(router)
        for kind, _, name in self.objects:
            if kind == "vpn":
                self.note_rights(name)
        self.configure_router(router)
        self.act(lambda same: None)

    def make_router(self, **more: Any) -> Router:
        """Make the state machine of a new router process; `more` is for its `Ground`."""
        rng = random.Random(self._rng.getrandbits(64))
        router = self.settings.router_class(
            Ground(self.settings.router, self.name, rng, rng, **more),
            workers=self.supervisor.target,
            incarnation=self.supervisor.next_incarnation(),
            token_key=b"k" * 32,
            now=self.loop.now,
        )
        # One filter at a time, or as many as come.
        step = self._rng.choice([1, STEP_MAX])
        router.subscriptions.step_max = router.endpoints.filters.step_max = step
        router.links.step_max = step * SUBSCRIPTION_COST
        return router

    def configure_router(self, router: Router) -> None:
        """Let a new router have its configuration soon, as the controller does it."""

        def deliver() -> None:
            rows = [[*key, attributes] for key, attributes in self.objects.items()]
            if self.router is router:
                self.act(lambda same: same.operators.configure(rows, self.loop.now))

        self.loop.after(self._rng.random() * 0.05, deliver)

    def furnish_worker(self, worker: SimulatedWorker) -> None:
        """Give a new worker process what else lives in it."""

    def kill_router(self) -> None:
        """The router process dies: all connections end."""
        self.router = None
        self._backlog = None
        self.history.end_all_sessions(self.loop.now)
        for link in self.links.values():
            if link.connection is not None:
                link.connection.close_far()
        self.links.clear()
        self.supervisor.router_died()
        delay = BACK_OFF_FIRST_S + self._rng.random() * SPAWN_MAX_S
        self.loop.after(delay, self.start_router)

    def stop_router(self) -> None:
        """Stop the router process in order: what was accepted retires, sessions are told; then it restarts."""
        router = self.router
        if router is None:
            return

        def drain(same: Router) -> None:
            if same.drain(self.loop.now):
                self.loop.after(0.0, end)
            else:
                self.loop.after(DRAIN_POLL_S, lambda: self.act(drain))

        def end() -> None:
            if self.router is router:
                self.kill_router()

        self.act(drain)
        self.loop.after(DRAIN_LIMIT_S, end)

    def pause_router(self, duration_s: float) -> None:
        """Stop the router process for a while."""
        if self.router is None or self._backlog is not None:
            return
        backlog = self._backlog = deque()

        def go_on() -> None:
            if self._backlog is backlog:
                self._backlog = None
                while backlog and self._backlog is None:
                    self.act(backlog.popleft())

        self.loop.after(duration_s, go_on)

    @property
    def is_listening(self) -> bool:
        """Tell whether a client can connect."""
        return self._are_doors_open and self.router is not None

    @property
    def is_healthy(self) -> bool:
        """Tell whether the router runs and every worker is ready."""
        router = self.router
        return (
            router is not None
            and self._backlog is None
            and router.directory.complete
            and not router.rounds.held
            and self.supervisor.is_complete(router)
        )

    def act(self, event: Callable[[Router], None], *, of_frames: bool = False) -> None:
        """Let the router process, if it runs, take an event, perhaps frames of a client, and carry out what follows."""
        router = self.router
        if router is None:
            return
        if self._backlog is not None:
            self._backlog.append(event)
            return
        try:
            event(router)
            self.after_event(router, of_frames=of_frames)
        except Exception:  # noqa: BLE001 - whatever it is, it would have ended the process
            self.history.break_rule(f"the router process ends with {traceback.format_exc(limit=-4)}")
            if self.router is router:
                self.history.fault(self.loop.now, "router", "ends by itself")
                self.kill_router()

    def after_event(self, router: Router, *, of_frames: bool = False) -> None:
        """Do what the router's loop does after each event."""
        wake = router.next_tick() if of_frames else 0.0
        if wake <= self.loop.now:
            wake = router.tick(self.loop.now)
        for link in [one for one in self.links.values() if one.untaken]:
            self._offer(router, link)
        if self._rng.random() < self.settings.laziness:
            if not self._is_carry_scheduled:
                self._is_carry_scheduled = True
                self.loop.after(0.0002, self._carry_late)
        else:
            self._carry_out(router)
        if router.shards.epoch != self._epoch:
            self._epoch = router.shards.epoch
            self.history.tables.append((self.loop.now, router.shards.table))
        self.supervisor.look(router)
        has_waited = self.loop.now - self._started_at >= WORKERS_WAIT_S
        is_there = router.directory.complete and router.shards.all_told
        if is_there and (router.shards.all_ready or has_waited):
            self._are_doors_open = True
        wake = max(wake, self.loop.now + POLL_MIN_S)
        if wake < self._next_tick or self._next_tick <= self.loop.now:
            self._next_tick = wake
            self.loop.at(wake, self._tick)

    def _tick(self) -> None:
        if self.loop.now >= self._next_tick:
            self._next_tick = FOREVER
            self.act(lambda router: None)

    def _carry_late(self) -> None:
        self._is_carry_scheduled = False
        self.act(self._carry_out)

    def _carry_out(self, router: Router) -> None:
        while effects := router.out.take():
            for effect in effects:
                self._carry(router, effect)

    def _carry(self, router: Router, effect: Effect) -> None:
        kind = type(effect)
        if kind is SendClient:
            self._send_client(router, effect)  # type: ignore[arg-type]
        elif kind is SendWorker:
            self.supervisor.send(router, effect)  # type: ignore[arg-type]
        elif isinstance(effect, VerifyPassword):
            correct = effect.stored == HASHED + effect.password
            number, now = effect.ticket, self.loop

            def verified() -> None:
                if self.router is router:
                    self.act(lambda same: same.handshake.password_verified(number, now.now, correct=correct))

            self.loop.after(self._rng.random() * PASSWORD_MAX_S, verified)
        elif isinstance(effect, EmitEvent):
            event = effect.event
            self.history.events.append((self.loop.now, event))
            if event["event"] == "CLIENT_DISCONNECT":
                self.history.end_session(event["client"], event["vpn"], self.loop.now)
        else:
            self.carry_more(router, effect)

    def carry_more(self, router: Router, effect: Effect) -> None:
        """Carry out what concerns guaranteed messages; here nobody answers."""

    def _send_client(self, router: Router, effect: SendClient) -> None:
        routing_id, frames = effect.routing_id, effect.frames
        if is_attached(routing_id):
            number = routing_id[-wire.ATTACHED_NUMBER_BYTES :]
            routing_id, frames = routing_id[: -wire.ATTACHED_NUMBER_BYTES], [wire.ATTACHED, number, *frames]
        link = self.links.get(routing_id)
        if link is None or link.is_gone or link.connection is None:
            router.unreachable(routing_id, effect.rows, self.loop.now, blocked=False)
        elif (
            link.connection.down.stalled
            and link.connection.down.waiting_bytes > self.settings.router.send_queue_bytes
        ):
            router.unreachable(routing_id, effect.rows, self.loop.now, blocked=True)
        else:
            link.connection.down.send(frames)

    # Clients.

    def accept(self, near: Endpoint, address: str, delay_max_s: float | None = None) -> Connection:
        """Take the connection of a client, or of a link process on a path of its own."""
        assert self.router is not None
        router = self.router
        self._next_routing_id += 1
        routing_id = b"\0" + self._next_routing_id.to_bytes(4, "big")
        link = self.links[routing_id] = ClientLink(routing_id)

        def arrived(frames: Frames) -> None:
            if self.router is router:
                self.act(lambda same: self._client_frames(same, link, frames, address), of_frames=True)

        def ended() -> None:
            link.is_gone = True
            self.links.pop(routing_id, None)
            if self.router is router:
                self.act(lambda same: same.unreachable(routing_id, 0, self.loop.now, blocked=False))

        far = Endpoint(arrived, ended)
        delay = self.settings.client_delay_max_s if delay_max_s is None else delay_max_s
        link.connection = Connection(self.loop, self._rng, delay, near, far)
        return link.connection

    def _client_frames(self, router: Router, link: ClientLink, frames: Frames, address: str) -> None:
        link.untaken.append((frames, address))
        if len(link.untaken) == 1:
            self._offer(router, link)

    def _offer(self, router: Router, link: ClientLink) -> None:
        """Have the router take what it did not take when it came, as far as it does now."""
        while link.untaken and self._is_taken(router, link.routing_id, *link.untaken[0]):
            link.untaken.popleft()

    def _is_taken(self, router: Router, routing_id: bytes, frames: Frames, address: str) -> bool:
        if not router.client_frames(routing_id, frames, self.loop.now, Peer(address)):
            return False
        session = router.sessions.by_routing_id.get(routing_id)
        if session is None or session.link is not None or frames[0] != wire.PUBLISH:
            return True
        config = self.settings.router
        over = session.unretired_bytes - sum(map(len, frames[2:]))
        if len(session.open_rounds) > config.ingress_rounds or over >= config.ingress_bytes:
            rounds, size = len(session.open_rounds), session.unretired_bytes
            text = f"{session.client_name} has {rounds} open rounds with {size} bytes, and stays connected"
            self.history.break_rule(text)
        return True

    def validate(self) -> None:
        """Let every state machine check itself."""
        try:
            if self.router is not None:
                self.router.validate()
            self.supervisor.validate()
        except AssertionError:
            self.history.break_rule(f"at {self.loop.now:.3f} {traceback.format_exc(limit=-3)}")
