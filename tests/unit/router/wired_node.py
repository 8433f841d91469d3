"""A router and its workers as state machines, wired without any process, socket or clock."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from angarium import wire
from angarium_server.connections.tls import Peer
from angarium_server.tokens.verification import signed_payload
from cluster import objects
from node.config import WorkerConfig
from node.matching.worker import Worker
from router.ground.config import Identity, RouterConfig, SpoolLimits
from router.ground.effects import Effect, EmitEvent, SendClient, SendWorker, VerifyPassword, VerifyToken
from router.ground.ground import Ground
from router.router import Router
from router.server import password_matches

BIG = 1 << 40


def snapshot(*extra: tuple[str, str, str, dict[str, Any]]) -> list[list[Any]]:
    """The objects of a fresh node, and some more; a Message VPN among them brings its built-in objects."""
    rows: list[list[Any]] = [["vpn", "", "default", objects.complete("vpn", {})]]
    rows += [
        [kind, "default", name, objects.complete(kind, attributes)]
        for kind, name, attributes in objects.built_in("default")
    ]
    for kind, vpn, name, attributes in extra:
        rows.append([kind, vpn, name, objects.complete(kind, attributes)])
        if kind == "vpn":
            rows += [[k, name, n, objects.complete(k, a)] for k, n, a in objects.built_in(name)]
    return rows


class FakeClient:
    """One client connection: sends frames to the router and keeps what it gets."""

    def __init__(self, node: WiredNode, routing_id: bytes, address: str) -> None:
        self.node = node
        self.routing_id = routing_id
        self.address = address
        self.received: deque[list[bytes]] = deque()
        self.round = 0
        self.request = 0

    def send(self, operation: bytes, header: Any, *batches: bytes) -> None:
        frames = [operation, wire.pack(header), *batches]
        node = self.node
        assert node.router.client_frames(self.routing_id, frames, node.now, Peer(self.address))
        node.settle()
        session = node.router.sessions.by_routing_id.get(self.routing_id)
        while session is not None and session.is_busy:
            node.router.subscriptions.tick(node.now)
            node.settle()

    def hello(self, **fields: Any) -> dict[str, Any]:
        header = {"version": 1, "credit": [BIG, BIG], "unroutable": True, **fields}
        self.send(wire.HELLO, header)
        operation, welcome = self.take()
        assert operation == wire.WELCOME, (operation, welcome)
        assert isinstance(welcome, dict)
        return welcome

    def subscribe(self, *filters: str, deliver_always: bool = False, client: str | None = None) -> list[Any]:
        self.request += 1
        self.send(wire.SUBSCRIBE, [self.request, [[text, int(deliver_always)] for text in filters], client])
        return self.suback()

    def unsubscribe(
        self, *filters: str, deliver_always: bool = False, client: str | None = None
    ) -> list[Any]:
        self.request += 1
        self.send(wire.UNSUBSCRIBE, [self.request, [[text, int(deliver_always)] for text in filters], client])
        return self.suback()

    def suback(self) -> list[Any]:
        operation, answer = self.take()
        assert operation == wire.SUBACK, (operation, answer)
        assert answer[0] == self.request
        codes = answer[1]
        assert isinstance(codes, list)
        return codes

    def publish(self, *rows: tuple[Any, ...] | str, flush: bool = False, reports: bool = False) -> None:
        """Publish a batch; a row is a topic or (topic, payload[, flags])."""
        packed = []
        for index, row in enumerate(rows):
            topic, payload, flags = (
                ((row, b"", 0) if isinstance(row, str) else (*row, b"", 0)[:3])
                if len(row) != 2 or isinstance(row, str)
                else (*row, 0)
            )
            packed.append([index, topic, flags, None, None, payload])
        self.publish_raw(packed, flush=flush, reports=reports)

    def publish_raw(self, rows: list[list[Any]], *, flush: bool = False, reports: bool = False) -> None:
        self.round += 1
        more = [True] if reports else []
        self.send(wire.PUBLISH, [self.round, 0, flush, [[0, len(rows)]], *more], wire.pack(rows))

    def take(self) -> tuple[bytes, Any]:
        """Take the oldest frame that is not RETIRED, as (operation, header)."""
        while self.received:
            frames = self.received.popleft()
            if frames[0] != wire.RETIRED:
                return frames[0], wire.unpack(frames[1])
        return b"", None

    def rows(self) -> list[list[Any]]:
        """Take all deliveries, as rows in the order in which the SDK gives them to the application."""
        found: list[list[Any]] = []
        kept: deque[list[bytes]] = deque()
        while self.received:
            frames = self.received.popleft()
            if frames[0] != wire.DELIVER:
                kept.append(frames)
                continue
            flags, parts, *_ = wire.unpack(frames[1])
            rows = []
            for (count, _), batch in zip(parts, frames[2:], strict=True):
                opened = wire.unpack(batch)
                assert len(opened) == count
                rows += opened
            if flags & wire.DELIVER_UNSORTED:
                rows.sort(key=lambda row: row[wire.ROW_INDEX])
            found += rows
        self.received = kept
        return found

    def topics(self) -> list[str]:
        return [row[wire.ROW_TOPIC] for row in self.rows()]

    def payloads(self) -> list[bytes]:
        return [row[wire.ROW_PAYLOAD] for row in self.rows()]

    def deliveries(self) -> list[tuple[int, list[Any], int]]:
        """Take the heads of all deliveries: (flags, parts, dropped)."""
        heads: list[tuple[int, list[Any], int]] = [
            tuple(wire.unpack(f[1])) for f in self.received if f[0] == wire.DELIVER
        ]
        self.received = deque(f for f in self.received if f[0] != wire.DELIVER)
        return heads

    def closed_with(self) -> int | None:
        """Give the code of CLOSED if the session was closed."""
        for frames in self.received:
            if frames[0] == wire.CLOSED:
                code = wire.unpack(frames[1])[0]
                assert isinstance(code, int)
                return code
        return None

    def notices(self) -> list[list[Any]]:
        found = [wire.unpack(f[1]) for f in self.received if f[0] == wire.NOTICE]
        self.received = deque(f for f in self.received if f[0] != wire.NOTICE)
        return found

    def retired(self) -> int:
        """Give the newest round that RETIRED named."""
        return max((wire.unpack(f[1])[0] for f in self.received if f[0] == wire.RETIRED), default=0)


class WiredNode:
    """The state machines of one node and a hand that carries frames between them."""

    def __init__(
        self,
        workers: int = 1,
        rows: list[list[Any]] | None = None,
        *,
        spool: SpoolLimits | None = None,
        name: str = "n1",
        identity: Identity | None = None,
        **config: Any,
    ) -> None:
        self.now = 1000.0
        self.name, self.identity = name, identity or Identity()
        self.config, self.spool = RouterConfig(**config), spool or SpoolLimits()
        self.router = self.make_router(workers, 7)
        self.workers: dict[int, Worker] = {}
        self.clients: dict[bytes, FakeClient] = {}
        self.events: list[dict[str, Any]] = []
        #: Frames for these workers wait (a paused worker).
        self.paused: dict[int, list[list[bytes]]] = {}
        self._incarnation = 0
        self._next_client = 0
        if rows is None:
            rows = snapshot()
        self.router.operators.configure(rows, self.now)
        for index in range(workers):
            self.start_worker(index)
        self.settle()

    def make_router(self, workers: int, incarnation: int) -> Router:
        return Router(
            Ground(self.config, self.name, random.Random(1), random.Random(2), self.spool, self.identity),
            workers=workers,
            incarnation=incarnation,
            token_key=b"k" * 32,
            now=self.now,
        )

    def start_worker(self, index: int) -> None:
        self._incarnation += 1
        self.workers[index] = Worker(index, self._incarnation, WorkerConfig())
        self._to_router(index, self.workers[index].ready_frames())
        self.settle()

    def kill_worker(self, index: int) -> None:
        worker = self.workers.pop(index)
        self.router.worker_lost(index, worker.incarnation, self.now)
        self.paused.pop(index, None)
        self.settle()

    def client(self, address: str = "127.0.0.1", **hello: Any) -> FakeClient:
        client = self.connection(address)
        client.hello(**hello)
        return client

    def connection(self, address: str = "127.0.0.1", routing_id: bytes | None = None) -> FakeClient:
        self._next_client += 1
        made = FakeClient(self, routing_id or b"\0" + self._next_client.to_bytes(4, "big"), address)
        self.clients[made.routing_id] = made
        return made

    def advance(self, seconds: float) -> None:
        """Let time pass in the steps that the router asks for; clients keep themselves alive."""
        end = self.now + seconds
        while self.now < end:
            for session in list(self.router.sessions):
                session.last_heard = self.now
            wake = self.router.tick(self.now)
            self.settle()
            self.now = min(end, max(wake, self.now + 0.001))
        self.router.tick(self.now)
        self.settle()

    def pause(self, index: int) -> None:
        self.paused[index] = []

    def unpause(self, index: int) -> None:
        for frames in self.paused.pop(index):
            self._to_worker(index, frames)
        self.settle()

    def settle(self) -> None:
        """Carry effects until nothing moves."""
        while effects := self.router.out.take():
            for effect in effects:
                self._carry(effect)

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, SendClient):
            if effect.routing_id in self.clients:
                self.clients[effect.routing_id].received.append(effect.frames)
            else:
                gone = (
                    effect.routing_id[: -wire.ATTACHED_NUMBER_BYTES] or effect.routing_id
                )  # as the shell does
                self.router.unreachable(gone, effect.rows, self.now, blocked=False)
        elif isinstance(effect, SendWorker):
            if effect.worker in self.paused:
                is_bundle = effect.frames[0] == wire.BUNDLE
                self.paused[effect.worker] += (
                    wire.unpack(effect.frames[1])[0] if is_bundle else [effect.frames]
                )
            else:
                self._to_worker(effect.worker, effect.frames)
        elif isinstance(effect, VerifyPassword):
            correct = password_matches(effect.password, effect.stored)
            self.router.handshake.password_verified(effect.ticket, self.now, correct=correct)
        elif isinstance(effect, VerifyToken):
            payload = signed_payload(effect.token, effect.algorithm, effect.keys)
            self.router.handshake.token_verified(effect.ticket, payload, self.now)
        elif isinstance(effect, EmitEvent):
            self.events.append(effect.event)

    def _to_worker(self, index: int, frames: list[bytes]) -> None:
        worker = self.workers.get(index)
        if worker is None:
            self.router.worker_lost(index, 0, self.now)
            return
        answers = worker.handle(frames, self.now) + worker.work()
        while worker.has_work:
            answers += worker.work()
        for answer in answers:
            self._to_router(index, answer)

    def _to_router(self, index: int, frames: list[bytes]) -> None:
        identity = b"w%d.%d" % (index, self.workers[index].incarnation)
        self.router.worker_frames(identity, frames, self.now)

    def validate(self) -> None:
        self.router.validate()
        for worker in self.workers.values():
            worker.validate()
