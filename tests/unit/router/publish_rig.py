"""A node whose workers match for real, and whose homes are real over disks in memory.

The disk survives its home. A home commits at once, or when a test says so.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from angarium import wire
from cluster import objects
from node.config import WorkerConfig
from node.matching.worker import Worker
from router.ground.effects import AskController, Effect
from tests.unit.router.real_home import Disk, RealHome, Stored
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

MB = 1_000_000
#: What goes to the home of a worker; START goes to both.
_HOME_FRAMES = (wire.LANES, wire.STORE, wire.FLOW, wire.GATHER, wire.MOVED, wire.LEASE, wire.ALLOWANCE)


class PublishNode(WiredNode):
    """A node with homes and a registry of producers."""

    def __init__(self, workers: int = 1, rows: list[list[Any]] | None = None, **options: Any) -> None:
        self.homes: dict[int, RealHome] = {}
        self.disks: dict[int, Disk] = {index: Disk() for index in range(64)}
        #: (VPN, username, name) -> number.
        self.registry: dict[tuple[str, str, str], int] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        #: Whether homes may read the disks of workers that are gone, and what they wait for there.
        self.lets_adopt = False
        self.claims: dict[tuple[int, int], None] = {}
        self.taken: dict[tuple[int, int, int], None] = {}
        self.held_asks: list[AskController] | None = None
        self._inbox: deque[tuple[bytes, list[bytes]]] = deque()
        self._settling = False
        self._queues = 0
        self._next_producer = 1
        #: Homes of these indices do not report when they start.
        self.silent: set[int] = set()
        self._rows = snapshot() if rows is None else rows
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        super().__init__(workers, self._rows, **options)

    # -- homes -----------------------------------------------------------------------------------------------

    def start_worker(self, index: int) -> None:
        self._incarnation += 1
        self._begin_home(index, self._incarnation)
        self.workers[index] = Worker(index, self._incarnation, WorkerConfig())
        self._to_router(index, self.workers[index].ready_frames())
        self.settle()

    def kill_worker(self, index: int) -> None:
        del self.homes[index]
        super().kill_worker(index)

    def restart_worker(self, index: int) -> RealHome:
        self.kill_worker(index)
        self.start_worker(index)
        return self.homes[index]

    def restart_router(self) -> None:
        """A new router: clients are gone, workers and disks are not; homes begin again with what is on disk."""
        self.router.validate()
        incarnation = self.router.shards.incarnation + 1
        count = len(self.router.shards.shards)
        self.router = self.make_router(count, incarnation)
        self.clients.clear()
        extra = [[kind, vpn, name, attributes] for (kind, vpn, name), attributes in self._objects.items()]
        self.router.operators.configure([*self._rows, *extra], self.now)
        for index, worker in list(self.workers.items()):
            self.end_home(index)
            worker.connected()
            self._to_router(index, worker.ready_frames())
        self.settle()

    def end_home(self, index: int) -> None:
        """Let a home end with the router, and another one begin."""
        old = self.homes[index]
        self._begin_home(index, old.incarnation).commits = old.commits

    def _begin_home(self, index: int, incarnation: int) -> RealHome:
        home = self.homes[index] = RealHome(self, index, incarnation, self.disks[index])
        home.holds = (wire.HOME,) if index in self.silent else ()
        return home

    def from_home(self, index: int, incarnation: int, frames: list[bytes]) -> None:
        """A home sends: its frames come behind everything that is on its way already."""
        self._inbox.append((b"w%d.%d" % (index, incarnation), frames))
        if not self._settling:
            self.settle()

    def settle(self) -> None:
        self._settling = True
        super().settle()
        questions = self.router.consumers.questions
        while self._inbox or questions.is_busy:
            if self._inbox:
                identity, frames = self._inbox.popleft()
                self.router.worker_frames(identity, frames, self.now)
            questions.step()
            super().settle()
            self.check_limits()
        self._settling = False

    def _to_worker(self, index: int, frames: list[bytes]) -> None:
        if index in self.homes and (frames[0] == wire.START or frames[0] in _HOME_FRAMES):
            self.homes[index].take(frames)
        if index not in self.homes or frames[0] not in _HOME_FRAMES:
            super()._to_worker(index, frames)

    def hand_over(self) -> None:
        """Let homes take over what workers that are gone have left."""
        self.lets_adopt = True
        self.now += 1.0
        for home in list(self.homes.values()):
            home.tell(*[held.lane_id for held in home.home.lanes])
        self.settle()

    def hold(self) -> None:
        """Homes commit only when told."""
        for home in self.homes.values():
            home.commits = False

    def commit(self) -> None:
        """All homes commit what they have, and at once from now on."""
        for home in self.homes.values():
            home.commits = True
            home.commit()

    def lane(self, name: str, partition: int = 0, kind: str = "queue") -> int:
        endpoint = self.endpoint(name, kind)
        return int(endpoint.id) << wire.LANE_BITS | partition

    def endpoint(self, name: str, kind: str = "queue", vpn: str = "default") -> Any:
        found = self.router.endpoints.find(vpn, kind, name)
        assert found is not None
        return found

    def home_of(self, name: str, partition: int = 0) -> RealHome:
        return self.homes[self.endpoint(name).all_lanes()[partition].home]

    def stored(self, name: str, partition: int | None = None, kind: str = "queue") -> list[Stored]:
        """Give what an endpoint has on disk, partition by partition."""
        endpoint = self.endpoint(name, kind)
        lanes = endpoint.lanes if partition is None else [endpoint.lanes[partition]]
        return [row for lane in lanes for row in self.disks[lane.home].lanes.get(lane.lane_id, ())]

    def payloads(self, name: str, partition: int | None = None) -> list[bytes]:
        return [row.payload for row in self.stored(name, partition)]

    def sequences(self, name: str) -> list[int]:
        return [row.sequence for row in self.stored(name)]

    def consume(self, name: str, count: int, partition: int = 0) -> None:
        self.home_of(name, partition).consume(self.lane(name, partition), count)

    # -- objects ---------------------------------------------------------------------------------------------

    def queue(
        self, name: str, *subscriptions: str, home: int | list[int] = 0, vpn: str = "default", **changes: Any
    ) -> Any:
        return self.put("queue", name, vpn=vpn, home=home, subscriptions=list(subscriptions), **changes)

    def put(
        self, kind: str, name: str, *, vpn: str = "default", home: int | list[int] = 0, **changes: Any
    ) -> Any:
        """Create or change an endpoint as an operator."""
        known = self._objects.get((kind, vpn, name))
        if known is None:
            self._queues += 1
            count = max(1, changes.get("partition_count", 0))
            homes = home if isinstance(home, list) else [home] * count
            known = {"id": self._queues, "homes": homes}
        attributes = objects.complete(kind, {**known, **changes})
        self._objects[kind, vpn, name] = attributes
        self.router.operators.put_object(kind, vpn, name, attributes, self.now)
        self.settle()
        return self.router.endpoints.find(vpn, kind, name)

    def change(self, name: str, kind: str = "queue", **changes: Any) -> None:
        self.put(kind, name, **changes)

    def drop(self, name: str, kind: str = "queue") -> None:
        del self._objects[kind, "default", name]
        self.router.operators.drop_object(kind, "default", name, self.now)
        self.settle()

    def change_vpn(self, **changes: Any) -> None:
        attributes = objects.complete("vpn", changes)
        self.router.operators.put_object("vpn", "", "default", attributes, self.now)
        self.settle()

    def forbid(self, *topics: str) -> None:
        """Change the ACL profile: nobody may publish to these topics."""
        changes = {
            "client_connect_default": "allow",
            "publish_topic_default": "allow",
            "publish_topic_exceptions": list(topics),
            "subscribe_topic_default": "allow",
        }
        attributes = objects.complete("acl", changes)
        self.router.operators.put_object("acl", "default", "default", attributes, self.now)
        self.settle()

    def change_profile(self, **changes: Any) -> None:
        attributes = objects.complete("profile", changes)
        self.router.operators.put_object("profile", "default", "default", attributes, self.now)
        self.settle()

    # -- the controller --------------------------------------------------------------------------------------

    def _carry(self, effect: Effect) -> None:
        if not isinstance(effect, AskController):
            super()._carry(effect)
        elif self.held_asks is not None:
            self.held_asks.append(effect)
        else:
            self.answer_ask(effect)

    def answer_ask(self, effect: AskController) -> None:
        self.asked.append((effect.operation, effect.arguments))
        wish = effect.arguments
        if effect.operation == "producer.open":
            key = (wish["vpn"], wish["username"], wish["name"])
            if key not in self.registry:
                if wish["resume"]:
                    self.router.controller_answered(effect.ticket, False, [40019, wish["name"]], self.now)
                    return
                self.registry[key] = self._next_producer
                self._next_producer += 1
            answer: Any = {"id": self.registry[key], "name": wish["name"]}
        else:
            for key in [key for key, number in self.registry.items() if number == wish["id"]]:
                del self.registry[key]
            answer = None
        self.router.controller_answered(effect.ticket, True, answer, self.now)

    # -- clients ---------------------------------------------------------------------------------------------

    def publisher(self, name: str = "p", window: int = 255, **hello: Any) -> Publisher:
        client = self.client(**hello)
        return Publisher(self, client, name, window)

    # -- limits ----------------------------------------------------------------------------------------------

    def check_limits(self) -> None:
        """No limit is exceeded by what the homes have, not by one message; what removes is gone in a moment."""
        node = 0
        for endpoint in self.router.endpoints:
            rows = [
                row for lane in endpoint.lanes for row in self.disks[lane.home].lanes.get(lane.lane_id, ())
            ]
            size = sum(row.size for row in rows if row.payload or not endpoint.retains)
            quota = endpoint.attributes["max_spool_usage_mb"] * MB
            if quota:
                node += size
                assert size <= quota, (endpoint.name, size, quota)
        node -= self._moved_bytes()
        limits = self.router.publishing.usage.limits
        assert node <= limits.max_usage_mb * MB
        disks = [self.disks[index] for index in self.homes]
        files = {row.file for disk in disks for rows in disk.lanes.values() for row in rows}
        assert len(files) <= limits.max_files, files

    def _moved_bytes(self) -> int:
        """Give what is where it moves to, and still where it comes from."""
        rows = [row for disk in self.disks.values() for lane in disk.lanes.values() for row in lane]
        asked = [one for home in self.homes.values() for one in home.moving.items()]
        firsts = {wire.INTERNAL_PRODUCER | lane_id: first for lane_id, (first, *_) in asked}
        return sum(
            row.size for row in rows if row.producer in firsts and row.sequence >= firsts[row.producer]
        )

    def validate(self) -> None:
        super().validate()
        self.router.publishing.validate()
        for home in self.homes.values():
            home.home.validate()


class Publisher:
    """A client with one producer."""

    def __init__(
        self, node: PublishNode, client: FakeClient, name: str = "p", window: int = 255, resume: bool = False
    ) -> None:
        self.node = node
        self.client = client
        self.name = name
        value = self.request("producer.open", name=name, window=window, resume=resume)
        self.handle: int = value["producer"]
        self.last: int = value["last_sequence"]
        self.name = value["name"]
        self._next = self.last + 1

    def request(self, operation: str, **arguments: Any) -> Any:
        code, value = request(self.client, operation, **arguments)
        assert code == 0, (code, value)
        return value

    def publish(
        self,
        *rows: Any,
        first: int | None = None,
        flags: int = wire.MODE_PERSISTENT,
        meta: Any = None,
        indices: list[int] | None = None,
    ) -> int:
        """Publish a round; a row is a topic, or (topic, payload[, flags[, meta]]). Gives the first sequence."""
        first = self._next if first is None else first
        packed = []
        for index, row in enumerate(rows):
            topic, payload, own, about = (
                (row, b"x", flags, meta) if isinstance(row, str) else (*row, *(flags, meta)[len(row) - 2 :])
            )
            number = indices[index] if indices is not None else index
            packed.append([number, topic, own, about, None, payload])
        self._next = first + packed[-1][0] + 1
        self.send(packed, first)
        return first

    def send(self, rows: list[list[Any]], first: int, handle: int | None = None) -> None:
        self.client.round += 1
        header = [self.client.round, 0, False, [[0, len(rows)]], handle or self.handle, first]
        self.client.send(wire.PUBLISH, header, wire.pack(rows))

    def acked(self) -> tuple[int, list[list[Any]]]:
        """Take what was told: the sequence up to which, and the nacks as [sequence, code]."""
        upto, nacks = 0, []
        for body in self.told():
            assert body[3] == 0, body
            assert body[1] > upto or not upto
            upto = body[1]
            nacks += [nack[:2] for nack in body[2]]
        return upto, nacks

    def told(self) -> list[list[Any]]:
        """Take all ACKED of this producer."""
        found: list[list[Any]] = []
        kept: deque[list[bytes]] = deque()
        for frames in self.client.received:
            body = wire.unpack(frames[1]) if frames[0] == wire.ACKED else [None]
            if body[0] == self.handle:
                found.append(body)
            else:
                kept.append(frames)
        self.client.received = kept
        return found

    def reopen(self) -> Publisher:
        """Open the same name in another session."""
        return Publisher(self.node, self.node.client(), self.name)


def request(client: FakeClient, operation: str, **arguments: Any) -> tuple[int, Any]:
    """Send a REQUEST and take its ANSWER as (code, value)."""
    number = ask(client, operation, **arguments)
    found = answer_to(client, number)
    assert found is not None, "no answer"
    return found


def ask(client: FakeClient, operation: str, **arguments: Any) -> int:
    client.request += 1
    client.send(wire.REQUEST, [client.request, operation, arguments])
    return client.request


def answer_to(client: FakeClient, number: int) -> tuple[int, Any] | None:
    """Take the answer to a request, if it came."""
    for frames in client.received:
        if frames[0] == wire.ANSWER and (body := wire.unpack(frames[1]))[0] == number:
            client.received.remove(frames)
            return body[1], body[2]
    return None
