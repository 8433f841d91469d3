"""The consumer side of a router with real homes, and clients and a controller that are as simple as can be."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors, slots, wire
from angarium.errors import AngariumError, error_for
from angarium_server.access import TopicRules
from angarium_server.frames.frame import takes
from angarium_server.frames.homes import (
    CommittedFrame,
    FlowEventFrame,
    FlowMessagesFrame,
    HomeFrame,
    LanesConfirmFrame,
    LeasedFrame,
    MoveFrame,
)
from cluster import objects
from router.asking.asks import Asks
from router.asking.requests import Requests
from router.delivery.egress import Egress
from router.flows.consumers import Consumers
from router.ground.config import RouterConfig
from router.ground.effects import AskController, Effect, EmitEvent, SendClient, SendWorker
from router.ground.ground import Ground, TokenBucket
from router.guaranteed.memory_accounts import MemoryAccounts
from router.matching.shards import Shards, ShardState
from router.sessions.directory import Username, Vpn
from router.sessions.interest import Interest
from router.sessions.session import Permissions, Session
from tests.unit.router.real_home import Disk, RealHome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.homes import LaneTotals
    from router.guaranteed.endpoints import Endpoint
    from router.matching.shards import Shard

INCARNATION = 7
BIG = 1 << 40
PARTITION_MASK = (1 << wire.LANE_BITS) - 1


class FlowHome(RealHome):
    """A home, and what it was told of lanes, flows and leases."""

    def __init__(self, rig: Rig, index: int, incarnation: int) -> None:
        #: LANES that came: [number, complete, puts, deletes].
        self.lanes_frames: list[list[Any]] = []
        #: FLOW that came: (verb, flow, arguments).
        self.flow_frames: list[tuple[str, int, list[Any]]] = []
        #: LEASE that came: (partition, verb, arguments).
        self.questions: list[tuple[int, str, list[Any]]] = []
        super().__init__(rig, index, incarnation, rig.disks[index])

    def take(self, frames: list[bytes]) -> None:
        body = wire.unpack(frames[1])
        assert body[0] == INCARNATION
        if frames[0] == wire.LANES:
            self.lanes_frames.append(body[1:5])
        elif frames[0] == wire.FLOW:
            for flow, (verb, *arguments) in body[1]:
                self._check_flow(verb, flow, arguments)
                self.flow_frames.append((verb, flow, arguments))
        elif frames[0] == wire.LEASE:
            _, lane_id, (verb, *arguments) = body[1:]
            self.questions.append((lane_id & PARTITION_MASK, verb, arguments))
        super().take(frames)

    def _check_flow(self, verb: str, flow: int, arguments: list[Any]) -> None:
        if verb == "bind":
            assert self.home.lanes.get(arguments[0]) is not None, "FLOW before LANES"
        elif verb == "credit" and (held := self.home.lanes.flows.get(flow)) is not None:
            known = held.lane.flows[flow]
            assert known.messages_granted <= arguments[0], "credit fell"
            assert known.bytes_granted <= arguments[1], "credit fell"

    @property
    def lanes(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """The lanes that it has, each with the generation and the settings that it was told last."""
        told = {lane: (at, settings) for _, _, puts, _ in self.lanes_frames for lane, at, settings in puts}
        return {held.lane_id: told[held.lane_id] for held in self.home.lanes}

    @property
    def bound(self) -> dict[int, list[Any]]:
        """Flow -> arguments of its bind."""
        binds = {flow: arguments for verb, flow, arguments in self.flow_frames if verb == "bind"}
        return {flow: binds[flow] for held in self.home.lanes for flow in held.lane.flows}

    @property
    def credit(self) -> dict[int, list[int]]:
        """Flow -> [messages, bytes] that it may still send."""
        return {
            number: [flow.messages_granted - flow.messages_sent, flow.bytes_granted - flow.bytes_sent]
            for held in self.home.lanes
            for number, flow in held.lane.flows.items()
        }

    def event(self, flow: int, event: int, code: int = 0, detail: str = "") -> None:
        """Say something of a flow that the home has not come to say by itself."""
        self.send(wire.FLOW_EVENT, [self.incarnation, [[flow, event, code, detail]]])

    def store(self, endpoint: Endpoint, messages: int = 1, size: int = 100, partition: int = 0) -> None:
        """Store messages, all in one STORE; they go out as far as there is credit."""
        lane_id = endpoint.id << wire.LANE_BITS | partition
        payload = bytes(size - wire.SPOOL_OVERHEAD_BYTES)
        rows = [[index, "a", wire.MODE_PERSISTENT, None, None, payload] for index in range(messages)]
        number, groups = self.home.pending.received + 1, [[[lane_id], messages, None]]
        body = [INCARNATION, number, False, None, groups, [], self.wall_ms, 0, [], None, 1]
        self.take([wire.STORE, wire.pack(body), wire.pack(rows)])
        self.node.settle()

    def flow_at(self, endpoint: Endpoint, partition: int = 0) -> int:
        """Give the number of the only flow bound at a lane."""
        lane_id = endpoint.id << wire.LANE_BITS | partition
        (flow,) = [flow for flow, arguments in self.bound.items() if arguments[0] == lane_id]
        return flow

    def verbs(self, flow: int | None = None) -> list[str]:
        return [verb for verb, number, _ in self.flow_frames if flow in (None, number)]

    def arguments(self, verb: str) -> list[list[Any]]:
        return [arguments for one, _, arguments in self.flow_frames if one == verb]


class FakeClient:
    """A logged-in client: its requests, and what it got."""

    def __init__(self, rig: Rig, session: Session) -> None:
        self.rig = rig
        self.session = session
        self.received: deque[list[bytes]] = deque()
        self._request = 0

    def ask(self, operation: str, **arguments: Any) -> int:
        """Send a REQUEST; gives its number."""
        self._request += 1
        header = wire.pack([self._request, operation, arguments])
        self.rig.requests.handle(self.session, header, self.rig.now)
        self.rig.settle()
        return self._request

    def request(self, operation: str, **arguments: Any) -> tuple[int, Any]:
        """Send a REQUEST and take its ANSWER as (code, value)."""
        return self.answer(self.ask(operation, **arguments))

    def answer(self, number: int) -> tuple[int, Any]:
        found = [wire.unpack(frames[1]) for frames in self.received if frames[0] == wire.ANSWER]
        (answer,) = [one for one in found if one[0] == number]
        self.received = deque(
            frames
            for frames in self.received
            if frames[0] != wire.ANSWER or wire.unpack(frames[1])[0] != number
        )
        return answer[1], answer[2]

    def has_answer(self, number: int) -> bool:
        return any(f[0] == wire.ANSWER and wire.unpack(f[1])[0] == number for f in self.received)

    def bind(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Bind with a credit of 100 messages and a megabyte, unless told otherwise."""
        code, value = self.request("flow.bind", name=name, **{"messages": 100, "bytes": 1 << 20, **arguments})
        assert code == 0, (code, value)
        assert isinstance(value, dict)
        return value

    def refused(self, name: str, **arguments: Any) -> int:
        """Bind and give the code of the refusal."""
        code, value = self.request("flow.bind", name=name, **arguments)
        assert code, value
        assert isinstance(value, str)
        return code

    def credit(self, flow: int, messages: int, size: int = BIG) -> None:
        self.rig.flows.ends.credit(self.session, wire.pack([flow, messages, size]))
        self.rig.settle()

    def settle(self, flow: int, outcome: int, *ranges: tuple[int, int, int]) -> None:
        self.rig.flows.ends.settle(self.session, wire.pack([flow, outcome, ranges]))
        self.rig.settle()

    def taken(self, operation: bytes) -> list[list[Any]]:
        """Take the headers of all frames of an operation."""
        found = [wire.unpack(frames[1]) for frames in self.received if frames[0] == operation]
        self.received = deque(frames for frames in self.received if frames[0] != operation)
        return found

    def messages(self) -> int:
        """Take MESSAGES; gives how many there were."""
        return sum(part[1] for _, parts in self.taken(wire.MESSAGES) for part in parts)

    def leave(self, *, wanted: bool) -> None:
        """End the session as the router does."""
        self.session.closed = True
        error = None if wanted else errors.error_for(errors.KEEPALIVE_TIMEOUT)
        self.rig.flows.session_ended(self.session, error, self.rig.now)
        self.rig.settle()


class FakeController:
    """Endpoints as the controller makes them for clients and operators."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        #: Questions that came: (operation, arguments).
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers = True
        #: Endpoints that there may be.
        self.endpoints_max = 1_000
        self._next_id = 1

    def put(self, name: str, kind: str = "queue", **attributes: Any) -> Endpoint:
        """Create or change an endpoint as an operator; its home is worker 0 unless told otherwise."""
        known = self.rig.endpoints.find("default", kind, name)
        if known is not None:
            complete = {**known.attributes, **attributes}
        else:
            identity = {"id": self._next_id, "homes": [0] * max(1, attributes.get("partition_count", 0))}
            complete = objects.complete(kind, {**identity, **attributes})
            self._next_id += 1
        endpoint = self.rig.endpoints.put(self.rig.vpn, kind, name, complete, now=self.rig.now)
        self.rig.settle()
        return endpoint

    def delete(self, name: str, kind: str = "queue") -> None:
        self.rig.endpoints.drop("default", kind, name)
        self.rig.settle()

    def take(self, effect: AskController) -> None:
        self.asked.append((effect.operation, effect.arguments))
        if not self.answers:
            return
        try:
            answer = self._answer(effect.operation, effect.arguments)
        except AngariumError as error:
            self.rig.asks.answered(effect.ticket, False, [error.code, error.detail], self.rig.now)
        else:
            self.rig.asks.answered(effect.ticket, True, answer, self.rig.now)

    def _answer(self, operation: str, wish: dict[str, Any]) -> Any:
        kind = wish.get("kind", "topic-endpoint" if operation == "endpoint.set_topic" else "queue")
        if operation == "endpoint.create":
            if len(self.rig.endpoints) >= self.endpoints_max:
                raise error_for(errors.TOO_MANY_ENDPOINTS)
            creator = {"created_by": f"client:{wish['username']}", "owner": wish["username"]}
            client = "" if wish["durable"] else wish["client"]
            attributes = {**wish["attributes"], **creator, "client": client, "durable": wish["durable"]}
            made = self.put(wish["name"], kind, **attributes)
            return {"created": True, "id": made.id, "name": made.name, "durable": made.durable}
        endpoint = self.rig.endpoints.find("default", kind, wish["name"])
        assert endpoint is not None
        if operation == "endpoint.delete":
            assert endpoint.id == wish["id"]
            self.delete(wish["name"], kind)
            return None
        if operation == "endpoint.set_topic":
            changed = {"topic": wish["topic"], "selector": wish["selector"]}
            self.put(wish["name"], kind, **changed, generation=endpoint.generation + 1)
            return {"generation": endpoint.generation}
        return self._subscribe(endpoint, wish)

    def _subscribe(self, endpoint: Endpoint, wish: dict[str, Any]) -> dict[str, Any]:
        add, remove = wish.get("add", []), wish.get("remove", [])
        known = endpoint.attributes["client_subscriptions"]
        texts = [text for text in dict.fromkeys([*known, *add]) if text not in remove]
        self.put(endpoint.name, client_subscriptions=texts)
        gone = [None if text in known else [40402, text] for text in remove]
        return {"added": [None for _ in add], "removed": gone}


class Rig:
    """Everything, wired."""

    def __init__(
        self, homes: int = 1, *, exceptions: bool = True, is_open: bool = True, **config: Any
    ) -> None:
        self.now = 1000.0
        settings = RouterConfig(**config)
        rng = random.Random(3)
        ground = Ground(settings, "n1", rng, rng, exceptions=exceptions)
        self.out, self.counters = ground.out, ground.counters
        self.interest: Interest[Session] = Interest()
        self.shards = Shards(homes, slots.slot_table(homes), INCARNATION, self.interest, self.out)
        self.egress = Egress(self.out, settings.egress_memory_bytes, settings.egress_unread_bytes, rng)
        self.asks = Asks(self.out)
        self.requests = Requests(self.egress, self.counters, self.asks)
        #: (VPN number, pattern) of filters that came or went.
        self.touched: list[tuple[int, str]] = []
        self.consumers = Consumers(
            ground,
            self.shards,
            self.egress,
            self.requests,
            MemoryAccounts(ground.alarms),
            lambda vpn, pattern: self.touched.append((vpn, pattern)),
        )
        self.flows, self.endpoints = self.consumers.flows, self.consumers.endpoints
        self.vpn = Vpn(1, "default", objects.complete("vpn", {}))
        self.vpn.profiles["default"] = objects.complete("profile", {})
        self.homes: dict[int, FlowHome] = {}
        self.disks = {index: Disk() for index in range(homes)}
        #: No home may read the disks of others.
        self.lets_adopt = False
        self.claims: dict[tuple[int, int], None] = {}
        self.taken: dict[tuple[int, int, int], None] = {}
        self._inbox: deque[tuple[int, int, list[bytes]]] = deque()
        self._settling = False
        #: What homes said, in all.
        self._said = 0
        self.clients: dict[bytes, FakeClient] = {}
        self.controller = FakeController(self)
        self.events: list[dict[str, Any]] = []
        self._incarnation = 10
        #: Operation of a home -> what reads the header, and what acts on it, as the router has them.
        self._of_homes = dict(
            [
                takes(HomeFrame, self._home_reported),
                takes(CommittedFrame, self._committed),
                takes(LanesConfirmFrame, self.consumers.lanes_confirmed),
                takes(LeasedFrame, self.consumers.questions.answered),
                takes(FlowMessagesFrame, self.flows.ends.messages),
                takes(FlowEventFrame, self.flows.events),
                # Nobody admits messages here: what moves to another endpoint stays on its way.
                takes(MoveFrame, lambda *_: None),
            ]
        )
        if is_open:
            self.consumers.lanes.open()
        for index in range(homes):
            self.start_home(index)

    def start_home(self, index: int, holds: tuple[bytes, ...] = ()) -> FlowHome:
        """Start a home on its disk; what it says with some operations waits for `report`."""
        self._incarnation += 1
        home = self.homes[index] = FlowHome(self, index, self._incarnation)
        home.holds = holds
        self.shards.start(self.shards.shards[index], self._incarnation)
        self.settle()
        return home

    def kill_home(self, index: int) -> None:
        del self.homes[index]
        self.shards.lose(self.shards.shards[index], self.now)
        self.settle()

    def from_home(self, index: int, incarnation: int, frames: list[bytes]) -> None:
        """A home sends: its frames come behind everything that is on its way already."""
        self._inbox.append((index, incarnation, frames))
        if not self._settling:
            self.settle()

    def _home_said(self, index: int, incarnation: int, frames: list[bytes]) -> None:
        shard = self.shards.shards[index]
        if shard.incarnation == incarnation and shard.state is not ShardState.DOWN:
            decode, act = self._of_homes[frames[0]]
            act(decode(frames[1]), shard, frames[2:], self.now)

    def _home_reported(self, frame: HomeFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        self._take(frame.totals, now)
        self.consumers.home(shard, frame.number)
        self.homes[shard.index].take([wire.ALLOWANCE, wire.pack([INCARNATION, BIG])])

    def _committed(self, frame: CommittedFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        self._take(frame.totals, now)

    def _take(self, totals: Sequence[LaneTotals], now: float) -> None:
        for entry in totals:
            if found := self.endpoints.lane(entry.lane):
                found[1].report(entry, now)

    def client(self, name: str = "", username: str = "default", **rights: Any) -> FakeClient:
        """Log a client in; `rights` are attributes of its username."""
        number = len(self.clients) + 1
        routing_id = number.to_bytes(5, "big")
        attributes = objects.complete("username", rights)
        self.vpn.usernames[username] = Username(username, attributes, number)
        session = Session(number, routing_id, self.vpn, username, name or f"client{number}", self.now)
        session.profile_name = "default"
        session.bucket = TokenBucket(10_000, 20_000, self.now)
        everything = TopicRules([], default_allow=True)
        session.permissions = Permissions(True, 100, 1 << 30, 1 << 30, everything, everything)
        made = self.clients[routing_id] = FakeClient(self, session)
        return made

    def settle(self) -> None:
        """Carry effects until nothing moves."""
        before, self._settling = self._settling, True
        while (effects := self.out.take()) or self._inbox or self.consumers.questions.is_busy:
            self.consumers.questions.step()
            for effect in effects:
                self._carry(effect)
            if self._inbox:
                self._said += 1
                self._home_said(*self._inbox.popleft())
        self._settling = before

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, SendWorker):
            home = self.homes.get(effect.worker)
            if effect.frames[0] == wire.FILTERS:
                self.shards.confirm(self.shards.shards[effect.worker], wire.unpack(effect.frames[1])[1])
            elif home is not None and home.incarnation == effect.incarnation:
                home.take(effect.frames)
        elif isinstance(effect, SendClient):
            self.clients[effect.routing_id].received.append(effect.frames)
        elif isinstance(effect, AskController):
            self.controller.take(effect)
        elif isinstance(effect, EmitEvent):
            self.events.append(effect.event)
        else:
            raise AssertionError(effect)

    def advance(self, seconds: float) -> None:
        """Let time pass in the steps that the router and the homes ask for."""
        end = self.now + seconds
        while self.now < end:
            wake = self._work()
            self.now = min(end, max(wake, self.now + 0.001))
        self._work()

    def _work(self) -> float:
        """Do what is due, and what that leads to; gives when more is."""
        while True:
            said = self._said
            wake = self.consumers.tick(self.now)
            self.settle()
            dues = [home.work() for home in self.homes.values()]
            self.settle()
            if self._said == said:
                return min([wake, *[due for due in dues if due is not None]])

    def validate(self) -> None:
        self.interest.validate()
        self.consumers.validate()
        for home in self.homes.values():
            home.home.validate()
        for client in self.clients.values():
            assert client.session.closed or client.session.requests >= 0
