"""A node whose workers match for real and whose homes are as simple as the contract of their frames allows.

A home keeps on its `Disk` what it has committed; the disk survives it. It commits at once, or when a test says so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from angarium import wire
from cluster import objects
from node.config import WorkerConfig
from node.matching.worker import Worker
from router.ground.effects import AskController, Effect
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

MB = 1_000_000
_HOME_FRAMES = (wire.LANES, wire.STORE, wire.FLOW, wire.GATHER, wire.MOVED)


@dataclass
class Stored:
    """One message in one lane."""

    index: int
    topic: str
    flags: int
    payload: bytes
    size: int
    producer: int | None
    sequence: int
    origin: Any
    past: Any
    file: int


@dataclass
class Disk:
    """What a home has committed."""

    router: int = 0
    stored: int = 0
    lanes: dict[int, list[Stored]] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    #: (lane, producer) -> [{partitions: last}, {sequence: code}].
    records: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    #: Lane -> what of it is on its way to another endpoint: first sequence, messages, bytes.
    moving: dict[int, list[int]] = field(default_factory=dict)
    #: Everything that was ever stored: (lane, producer, sequence).
    log: list[tuple[int, int | None, int]] = field(default_factory=list)


class FakeHome:
    """One worker as a home."""

    def __init__(self, node: PublishNode, index: int, incarnation: int, disk: Disk) -> None:
        self.node = node
        self.index = index
        self.incarnation = incarnation
        self.disk = disk
        self.commits = True
        #: False: it is told its lanes and does not answer HOME yet.
        self.reports = True
        self._lanes_number = 0
        #: STOREs in memory: (number, header, batches).
        self.waiting: deque[tuple[int, list[Any], list[bytes]]] = deque()
        #: Every STORE that came, in order, with those that were sent again.
        self.stores: list[list[Any]] = []
        self.gathers: list[list[Any]] = []
        self.moved: list[list[Any]] = []
        #: Spool files that the router knows.
        self._told_files: set[int] = set()
        #: Lanes of which another worker may hold more: their figures are not complete.
        self.importing: set[int] = set()
        self._gathering: deque[tuple[int, list[Any]]] = deque()

    @property
    def received(self) -> int:
        return self.waiting[-1][0] if self.waiting else self.disk.stored

    def take(self, frames: list[bytes]) -> None:
        body = wire.unpack(frames[1])
        if frames[0] == wire.LANES:
            self._lanes(*body)
        elif frames[0] == wire.STORE:
            self._store(body, frames[2:])
        elif frames[0] == wire.GATHER:
            self.gathers.append(body)
            self._gathering.append((self.received, body))
            self._answer_gathers()
        elif frames[0] == wire.MOVED:
            self.moved.append(body)

    def send(self, operation: bytes, body: list[Any], *batches: bytes) -> None:
        self.node.from_home(self.index, self.incarnation, [operation, wire.pack(body), *batches])

    def _lanes(self, router: int, number: int, complete: bool, puts: list[Any], deletes: list[int]) -> None:
        disk = self.disk
        if router != disk.router:
            disk.router, disk.stored = router, 0
        if complete:
            known = {lane_id for lane_id, _, _ in puts}
            deletes = [lane_id for lane_id in disk.lanes if lane_id not in known]
        for lane_id, generation, _ in puts:
            if disk.generations.get(lane_id) != generation:
                disk.lanes[lane_id] = []
                disk.generations[lane_id] = generation
        for lane_id in deletes:
            disk.lanes.pop(lane_id, None)
            disk.generations.pop(lane_id, None)
            for key in [key for key in disk.records if key[0] == lane_id]:
                del disk.records[key]
        if not complete:
            self.send(wire.LANES_CONFIRM, [self.incarnation, number])
            return
        self._lanes_number = number
        if self.reports:
            self.report()

    def report(self) -> None:
        """Answer the complete LANES."""
        self.reports = True
        totals = self.totals(list(self.disk.lanes))
        self.send(
            wire.HOME,
            [
                self.incarnation,
                self.disk.router,
                self._lanes_number,
                self.disk.stored,
                totals,
                self.spool(complete=True),
            ],
        )

    def _store(self, body: list[Any], batches: list[bytes]) -> None:
        router, number = body[:2]
        assert router == self.disk.router
        assert number == self.received + 1, f"STORE {number} after {self.received}"
        groups = body[4]
        assert len(groups) == len(batches)
        indices = []
        for (lanes, rows, origins), batch in zip(groups, batches, strict=True):
            opened = wire.unpack(batch)
            assert lanes
            assert len(opened) == rows
            assert batch.startswith(wire.array_head(rows))
            assert origins is None or len(origins) == rows
            indices += [row[0] for row in opened]
        assert len(indices) == len(set(indices)), "a row is in one group of a STORE"
        self.stores.append(body)
        self.waiting.append((number, body, batches))
        if self.commits:
            self.commit()

    def accept(self) -> None:
        """Accept what waits without storing it, as of relaxed STOREs."""
        accepted = self.received
        copy = Disk(**{**self.disk.__dict__, "lanes": {k: list(v) for k, v in self.disk.lanes.items()}})
        copy.records = {key: [dict(lasts), dict(no)] for key, (lasts, no) in self.disk.records.items()}
        copy.log = []
        changed: dict[int, None] = {}
        for _, body, batches in self.waiting:
            changed.update(_apply(copy, body, batches))
        totals = [self._entry(copy, lane_id) for lane_id in changed]
        self.send(
            wire.COMMITTED, [self.incarnation, accepted, self.disk.stored, totals, self.spool(disk=copy)]
        )

    def commit(self, upto: int | None = None) -> None:
        """Store what waits, up to a number, and say so."""
        changed: dict[int, None] = {}
        while self.waiting and (upto is None or self.waiting[0][0] <= upto):
            number, body, batches = self.waiting.popleft()
            changed.update(_apply(self.disk, body, batches))
            self.disk.stored = number
        self.tell(changed)
        self._answer_gathers()

    def commit_silently(self) -> None:
        """Store what waits, and die before anybody hears of it."""
        while self.waiting:
            number, body, batches = self.waiting.popleft()
            _apply(self.disk, body, batches)
            self.disk.stored = number

    def tell(self, changed: Any) -> None:
        stored = self.disk.stored
        self.send(wire.COMMITTED, [self.incarnation, stored, stored, self.totals(changed), self.spool()])

    def _answer_gathers(self) -> None:
        while self._gathering and self._gathering[0][0] <= self.disk.stored:
            _, (_, reference, producer, forget) = self._gathering.popleft()
            found = []
            for (lane_id, owner), known in list(self.disk.records.items()):
                if owner == producer:
                    found.append([lane_id, *([list(one) for one in part.items()] for part in known)])
                    if forget:
                        del self.disk.records[lane_id, owner]
            self.send(wire.RECORDS, [self.incarnation, reference, [] if forget else found])

    def consume(self, lane_id: int, count: int) -> None:
        """Somebody acknowledges the oldest messages of a lane."""
        del self.disk.lanes[lane_id][:count]
        self.tell([lane_id])

    def totals(self, lane_ids: Any) -> list[list[int]]:
        return [self._entry(self.disk, lane_id) for lane_id in lane_ids if lane_id in self.disk.lanes]

    def _entry(self, disk: Disk, lane_id: int) -> list[Any]:
        entry, moving = _totals(disk, lane_id), self.disk.moving.get(lane_id)
        is_complete = lane_id not in self.importing
        return [*entry, is_complete, moving] if moving else entry if is_complete else [*entry, False]

    def spool(self, unacked: int = 0, disk: Disk | None = None, *, complete: bool = False) -> list[Any]:
        rows = [row for lane in (disk or self.disk).lanes.values() for row in lane]
        used = {row.file for row in rows}
        told, self._told_files = set() if complete else self._told_files, used
        newest = sum(row.size for row in rows if row.file == max(used))
        return [_runs(used - told), _runs(told - used), newest, sum(row.size for row in rows), unacked]


def _totals(disk: Disk, lane_id: int) -> list[int]:
    rows = disk.lanes[lane_id]
    return [lane_id, len(rows), sum(row.size for row in rows), 1 if rows else 0, 0]


def _runs(files: set[int]) -> list[list[int]]:
    return [[file, 1] for file in sorted(files)]


def _apply(disk: Disk, body: list[Any], batches: list[bytes]) -> dict[int, None]:
    """Carry out a STORE; gives the lanes that changed."""
    _, _, _, producer, groups, refused, _, _, counts, pasts, file, *_ = body
    rows = []
    for (lanes, _, origins), batch in zip(groups, batches, strict=True):
        for number, row in enumerate(wire.unpack(batch)):
            moved = (origins[number] if origins else None), (pasts or {}).get(row[0])
            rows.append((row[0], row, lanes, moved))
    partitions = dict(counts)
    changed: dict[int, None] = {}
    for index, row, lanes, moved in sorted(rows, key=lambda entry: entry[0]):
        size = len(row[5]) + len(row[4] or b"") + wire.SPOOL_OVERHEAD_BYTES
        sequence = producer[1] + index if producer else 0
        for lane_id in lanes:
            if lane_id not in disk.lanes:
                continue
            owner = producer[0] if producer else None
            stored = Stored(index, row[1], row[2], row[5], size, owner, sequence, *moved, file)
            disk.lanes[lane_id].append(stored)
            disk.log.append((lane_id, owner, sequence))
            changed[lane_id] = None
            if producer:
                lasts, _ = disk.records.setdefault((lane_id, producer[0]), [{}, {}])
                count = partitions.get(lane_id, 1)
                assert sequence > lasts.get(count, 0), f"{sequence} is stored twice in lane {lane_id}"
                lasts[count] = sequence
    for lane_id, entries in refused:
        if lane_id in disk.lanes:
            disk.records.setdefault((lane_id, producer[0]), [{}, {}])[1].update(dict(entries))
    return changed


class PublishNode(WiredNode):
    """A node with homes and a registry of producers."""

    def __init__(self, workers: int = 1, rows: list[list[Any]] | None = None, **options: Any) -> None:
        self.homes: dict[int, FakeHome] = {}
        self.disks: dict[int, Disk] = {index: Disk() for index in range(64)}
        #: (VPN, username, name) -> number.
        self.registry: dict[tuple[str, str, str], int] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
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
        home = FakeHome(self, index, self._incarnation, self.disks[index])
        home.reports = index not in self.silent
        self.homes[index] = home
        self.workers[index] = Worker(index, self._incarnation, WorkerConfig())
        self._to_router(index, self.workers[index].ready_frames())
        self.settle()

    def kill_worker(self, index: int) -> None:
        del self.homes[index]
        super().kill_worker(index)

    def restart_worker(self, index: int) -> FakeHome:
        self.kill_worker(index)
        self.start_worker(index)
        return self.homes[index]

    def restart_router(self) -> None:
        """A new router: clients are gone, workers and their disks are not."""
        self.router.validate()
        incarnation = self.router.shards.incarnation + 1
        count = len(self.router.shards.shards)
        self.router = self.make_router(count, incarnation)
        self.clients.clear()
        extra = [[kind, vpn, name, attributes] for (kind, vpn, name), attributes in self._objects.items()]
        self.router.operators.configure([*self._rows, *extra], self.now)
        for index, worker in list(self.workers.items()):
            old = self.homes[index]
            home = self.homes[index] = FakeHome(self, index, old.incarnation, old.disk)
            home.commits, home.reports = old.commits, index not in self.silent
            worker.connected()
            self._to_router(index, worker.ready_frames())
        self.settle()

    def from_home(self, index: int, incarnation: int, frames: list[bytes]) -> None:
        """A home sends: its frames come behind everything that is on its way already."""
        self._inbox.append((b"w%d.%d" % (index, incarnation), frames))
        if not self._settling:
            self.settle()

    def settle(self) -> None:
        self._settling = True
        super().settle()
        while self._inbox:
            identity, frames = self._inbox.popleft()
            self.router.worker_frames(identity, frames, self.now)
            super().settle()
            self.check_limits()
        self._settling = False

    def _to_worker(self, index: int, frames: list[bytes]) -> None:
        if frames[0] in _HOME_FRAMES and index in self.homes:
            self.homes[index].take(frames)
        else:
            super()._to_worker(index, frames)

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

    def home_of(self, name: str, partition: int = 0) -> FakeHome:
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
        self, name: str, *subscriptions: str, home: int = 0, vpn: str = "default", **changes: Any
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
        """No limit is exceeded by what the homes have, not by one message."""
        node = 0
        for endpoint in self.router.endpoints:
            rows = [
                row for lane in endpoint.lanes for row in self.disks[lane.home].lanes.get(lane.lane_id, ())
            ]
            size = sum(row.size for row in rows)
            quota = endpoint.attributes["max_spool_usage_mb"] * MB
            if quota:
                node += size
                assert size <= quota, (endpoint.name, size, quota)
        node -= self._moved_bytes()
        limits = self.router.intake.usage.limits
        assert node <= limits.max_usage_mb * MB
        disks = [self.disks[index] for index in self.homes]
        files = {row.file for disk in disks for rows in disk.lanes.values() for row in rows}
        assert len(files) <= limits.max_files, files

    def _moved_bytes(self) -> int:
        """Give what is where it moves to, and still where it comes from."""
        rows = [row for disk in self.disks.values() for lane in disk.lanes.values() for row in lane]
        asked = [one for home in self.homes.values() for one in home.disk.moving.items()]
        firsts = {wire.INTERNAL_PRODUCER | lane_id: first for lane_id, (first, *_) in asked}
        return sum(
            row.size for row in rows if row.producer in firsts and row.sequence >= firsts[row.producer]
        )

    def validate(self) -> None:
        super().validate()
        self.router.intake.validate()


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
        found, kept = [], deque()
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
