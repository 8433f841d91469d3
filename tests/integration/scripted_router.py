"""A small router in a thread that speaks the client protocol over a real socket, and obeys tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.message import Row, pack_rows, unpack_rows
from angarium.slots import slot_table
from angarium.topic import matches, parse_filter
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.framing import FramingLimits
from angarium_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from angarium_server.connections.connection import Connection

LIMIT_S = 20.0
_LIMITS = DoorLimits(
    framing=FramingLimits(1 << 30, 1 << 30),
    unsent_bytes=1 << 30,
    login_s=LIMIT_S,
    unauthenticated=1_000,
    unauthenticated_per_network=1_000,
)


class Peer:
    """What the router knows of one connected client."""

    def __init__(self, identity: bytes, hello: dict[str, Any]) -> None:
        self.identity = identity
        self.hello = hello
        self.name = hello["client_name"] or f"made-up-{identity.hex()}"
        self.filters: dict[tuple[str, int], None] = {}
        self.credit = hello["credit"]
        self.delivered = 0
        #: Messages that wait for credit, when the router honours it.
        self.waiting: deque[tuple[list[Row], str | None]] = deque()


class Router(threading.Thread):
    """A router for tests: matches by brute force, delivers to everybody, obeys knobs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._watch = Watch()
        self._door: Door | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._bell, self._ring = os.pipe()
        self._watch.add(self._bell, self._obey)
        self.url = "tcp://127.0.0.1:0"
        self.bind()
        self.port = int(self.url.rpartition(":")[2])
        self.workers = 2
        self.peers: dict[bytes, Peer] = {}
        #: Every multipart that came, without the identity.
        self.seen: list[list[bytes]] = []
        self.rows: list[Row] = []
        self.rounds = 8
        self.round_bytes = self.max_message_bytes = 1 << 20
        #: What HELLO is answered with instead of WELCOME: a code, or 0 for silence.
        self.hello_refusals: deque[int] = deque()
        self.filter_refusals: dict[str, int] = {}
        self.retires = True
        self.answers_pings = self.answers_bye = True
        #: Answers to SUBSCRIBE that wait for `let_subscribe`; None while they are sent at once.
        self.held_subacks: list[tuple[bytes, Any]] | None = None
        self.honours_credit = False
        #: Batches that are delivered right before BYE is answered.
        self.last_batches: list[list[Row]] = []
        self.inbox_serial = 0
        self.dead = False

    # For tests, from their thread.

    def do(self, command: Callable[[], Any]) -> Any:
        """Run something in the router's thread and give its result."""
        done = threading.Event()
        result: list[Any] = []

        def run() -> None:
            result.append(command())
            done.set()

        self._commands.append(run)
        os.write(self._ring, b"!")
        assert done.wait(LIMIT_S)
        return result[0]

    def send(self, *frames: bytes, to: str | None = None) -> None:
        """Send frames to one client or all."""

        def run() -> None:
            for peer in list(self.peers.values()):
                if to is None or peer.name == to:
                    self._say(peer.identity, list(frames))

        self.do(run)

    def drop_connections(self) -> None:
        """Close all connections, and listen at the same address again."""
        self.do(self.unbind)
        self.do(self.bind)

    def let_subscribe(self) -> None:
        """Send the answers to SUBSCRIBE that were held, and hold no more; to be done in the router's thread."""
        held, self.held_subacks = self.held_subacks or [], None
        for identity, header in held:
            self._reply(identity, wire.SUBACK, header)

    def unbind(self) -> None:
        """Close all connections; to be done in the router's thread."""
        self.peers.clear()
        if self._door is not None:
            self._door.close(0.0)
            self._door = None

    def bind(self) -> None:
        """Listen, at the same address again; to be done in the router's thread."""
        self._door = Door(
            self._watch,
            _LIMITS,
            self._take,
            self._forget,
            self._forget,
            lambda _reason, _now: None,
            lambda _network, _now: True,
        )
        self.url = self._door.listen(self.url)

    def stop(self) -> None:
        if not self.dead:
            self.dead = True
            os.write(self._ring, b"!")
            self.join(LIMIT_S)
        self.unbind()
        self._watch.close()
        os.close(self._ring)
        os.close(self._bell)

    def sent_operations(self) -> bytes:
        """Give the operations that clients sent, one byte each, without keepalive."""
        return b"".join(frames[0] for frames in self.seen if frames[0] not in (wire.PING, wire.PONG))

    def last_hello(self) -> dict[str, Any]:
        """Give the header of the newest HELLO."""
        hello: dict[str, Any] = wire.unpack(
            [frames[1] for frames in self.seen if frames[0] == wire.HELLO][-1]
        )
        return hello

    # The thread.

    def run(self) -> None:
        wait_s = 0.0
        while not self.dead:
            self._watch.wait(wait_s)
            wait_s = 0.05
            if self._door is not None:
                self._door.tick(time.monotonic())
                wait_s = 0.0 if self._door.read_rest() else wait_s
                self._door.flush()

    def _obey(self) -> None:
        os.read(self._bell, 4_096)
        while self._commands:
            self._commands.popleft()()

    def _forget(self, identity: bytes, _reason: str, _now: float) -> None:
        self.peers.pop(identity, None)

    def _say(self, identity: bytes, frames: list[bytes]) -> None:
        if self._door is not None:
            self._door.send(identity, frames)

    def _take(self, connection: Connection, frames: list[bytes], _now: float) -> None:
        identity = connection.id
        assert self._door is not None
        self._door.admit(identity)
        self.seen.append(frames)
        header = wire.unpack_header(frames[1])
        peer = self.peers.get(identity)
        if frames[0] == wire.HELLO:
            self._greet(identity, header)
        elif peer is None:
            self._reply(identity, wire.CLOSED, [errors.SESSION_UNKNOWN, ""])
        elif frames[0] == wire.PUBLISH:
            self._publish(peer, header, frames[2:])
        elif frames[0] in (wire.SUBSCRIBE, wire.UNSUBSCRIBE):
            self._subscribe(peer, frames[0], header)
        elif frames[0] == wire.CREDIT:
            peer.credit = header
            self._push(peer)
        elif frames[0] == wire.PING and self.answers_pings:
            self._reply(identity, wire.PONG, header)
        elif frames[0] == wire.BYE and self.answers_bye:
            peer.waiting += [(rows, None) for rows in self.last_batches]
            self._push(peer)
            self._reply(identity, wire.CLOSED, [0, "bye"])
            del self.peers[identity]

    def _reply(self, identity: bytes, operation: bytes, header: Any) -> None:
        self._say(identity, [operation, wire.pack(header)])

    def _greet(self, identity: bytes, hello: dict[str, Any]) -> None:
        if self.hello_refusals:
            code = self.hello_refusals.popleft()
            if code:
                self._reply(identity, wire.CLOSED, [code, "refused"])
            return
        peer = self.peers[identity] = Peer(identity, hello)
        welcome = {
            "session": identity.hex(),
            "client_name": peer.name,
            "vpn": hello["vpn"],
            "node": "test",
            "token": b"token of " + peer.name.encode(),
            "resumed": "token" in hello,
            "epoch": 1,
            "slots": slot_table(self.workers),
            "workers": self.workers,
            "rounds": self.rounds,
            "bytes": self.round_bytes,
            "keepalive_ms": hello["keepalive_ms"],
            "max_message_bytes": self.max_message_bytes,
            "max_batch_rows": 10_000,
            "max_batch_bytes": 1 << 22,
            "inbox": f"#P2P/INB/{peer.name}/{self.inbox_serial}",
        }
        self._reply(identity, wire.WELCOME, welcome)

    def _subscribe(self, peer: Peer, operation: bytes, header: Any) -> None:
        request, filters, client_name = header
        target = next((one for one in self.peers.values() if one.name == client_name), None)
        results: list[Any] = []
        for text, flags in filters:
            refused = self.filter_refusals.get(text)
            if refused is None and client_name is not None and target is None:
                refused = errors.UNKNOWN_CLIENT_NAME
            results.append(None if refused is None else [refused, text])
            if refused is None:
                known = (target or peer).filters
                known[text, flags] = None
                if operation == wire.UNSUBSCRIBE:
                    del known[text, flags]
        if self.held_subacks is None:
            self._reply(peer.identity, wire.SUBACK, [request, results])
        else:
            self.held_subacks.append((peer.identity, [request, results]))

    def _publish(self, peer: Peer, header: Any, batches: list[bytes]) -> None:
        number, _, _, parts = header
        rows = sorted(row for batch in batches for row in unpack_rows(batch))
        assert [row[0] for row in rows] == list(range(len(rows)))
        assert [count for _, count in parts] == [len(unpack_rows(batch)) for batch in batches]
        self.rows += rows
        for other in self.peers.values():
            self._match(other, rows)
        if self.retires:  # a real router does it for rounds with `flush`, and when nothing is left to retire
            self._reply(peer.identity, wire.RETIRED, [number])

    def _match(self, peer: Peer, rows: list[Row]) -> None:
        """Queue what a client wants of a round: plain rows once, shared ones per share."""
        shares = dict.fromkeys(text for text, _ in peer.filters if parse_filter(text).share is not None)
        plain = [parse_filter(text).pattern for text, _ in peer.filters if parse_filter(text).share is None]
        groups = [(None, plain), *((text, [parse_filter(text).pattern]) for text in shares)]
        for share, patterns in groups:
            mine = [row for row in rows if any(matches(pattern, row[1]) for pattern in patterns)]
            if mine:
                peer.waiting.append((mine, share))
        self._push(peer)

    def _push(self, peer: Peer) -> None:
        while peer.waiting and (not self.honours_credit or peer.delivered < peer.credit[0]):
            rows, share = peer.waiting.popleft()
            peer.delivered += len(rows)
            header = wire.pack([0, [[len(rows), share]], 0])
            self._say(peer.identity, [wire.DELIVER, header, pack_rows(rows)])


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine with a bound."""
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 3))


@contextlib.contextmanager
def running_router() -> Iterator[Router]:
    """Give a router that runs, and end it."""
    router = Router()
    router.start()
    try:
        yield router
    finally:
        router.stop()
