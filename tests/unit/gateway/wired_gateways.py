"""Gateway processes at a real router, wired without any process, socket or clock."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.connections.tls import Peer
from gateway.attached import Login
from gateway.session import Identity
from gateway.vpn_carriers import VpnCarriers
from router.ground.config import Identity as NodeIdentity
from router.ground.effects import SendClient
from tests.unit.gateway.played_router import FakeGuest
from tests.unit.router.wired_node import WiredNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached
    from router.ground.effects import Effect

SECRET = "inside"


class WiredLine:
    """The connection of a carrier to the router of a node."""

    def __init__(
        self,
        node: NodeOfGateways,
        on_message: Callable[[list[bytes], float], None],
        on_lost: Callable[[AngariumError, float], None],
    ) -> None:
        self._node, self._on_message, self._on_lost = node, on_message, on_lost
        self.routing_id = node.next_line()
        node.lines[self.routing_id] = self
        self._came: deque[list[bytes]] = deque()
        self.closed = False

    @property
    def wake_at(self) -> float:
        return self._node.now if self._came else float("inf")

    @property
    def is_gone(self) -> bool:
        return self.closed

    def tick(self, now: float) -> None:
        while self._came and not self.closed:
            self._on_message(self._came.popleft(), now)

    def send(self, outgoing: deque[list[bytes]]) -> None:
        node = self._node
        while outgoing and not self.closed:
            assert node.router.client_frames(self.routing_id, outgoing.popleft(), node.now, Peer(""))

    def close(self, outgoing: deque[list[bytes]]) -> None:
        if not self.closed:
            self.send(outgoing)
            self.closed = True
            del self._node.lines[self.routing_id]
            self._node.router.unreachable(self.routing_id, 0, self._node.now, blocked=False)

    def take(self, frames: list[bytes]) -> None:
        self._came.append(frames)

    def break_off(self) -> None:
        """The connection is gone; both sides notice."""
        self.close(deque())
        self._on_lost(error_for(errors.NOT_CONNECTED), self._node.now)


class NodeOfGateways(WiredNode):
    """A node to which gateways connect."""

    def __init__(self, workers: int, rows: list[list[Any]], **config: Any) -> None:
        self.lines: dict[bytes, WiredLine] = {}
        self._next_line = 0
        super().__init__(
            workers,
            rows,
            identity=NodeIdentity(node_id="id-n", secret="outside", local_secret=SECRET),
            **config,
        )

    def next_line(self) -> bytes:
        self._next_line += 1
        return b"\1" + self._next_line.to_bytes(4, "big")

    def _carry(self, effect: Effect) -> None:
        """Send like the shell of the router: to a connection, or to who is attached to one."""
        if isinstance(effect, SendClient):
            carrier, number = effect.routing_id[:-8], effect.routing_id[-8:]
            if line := self.lines.get(effect.routing_id):
                line.take(effect.frames)
                return
            if line := self.lines.get(carrier):
                line.take([wire.ATTACHED, number, *effect.frames])
                return
        super()._carry(effect)


class WiredGateway:
    """The carriers of one gateway process at such a node."""

    def __init__(
        self, node: NodeOfGateways, index: int = 0, incarnation: int = 1, *, exchanges: bool = False
    ) -> None:
        self.node = node
        self.rows: list[tuple[str, Row]] = []
        self.lines: list[WiredLine] = []
        identity = Identity(SECRET, "mqtt", index, incarnation)
        self.carriers = VpnCarriers(
            identity, self._connect, self._take, random.Random(1), exchanges=exchanges
        )

    def _connect(
        self,
        on_message: Callable[[list[bytes], float], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[AngariumError, float], None],
    ) -> WiredLine:
        self.lines.append(WiredLine(self.node, on_message, on_lost))
        return self.lines[-1]

    def _take(self, vpn: str, rows: list[Row], now: float) -> bool:
        self.rows += [(vpn, row) for row in rows]
        return True

    def settle(self) -> None:
        """Have turns until nothing moves."""
        self.node.settle()
        self.carriers.hand_over(self.node.now)
        while self.carriers.tick(self.node.now) <= self.node.now or self.node.router.out.effects:
            self.node.router.subscriptions.tick(self.node.now)
            self.node.settle()
        for carrier in self.carriers._by_vpn.values():
            carrier.validate()

    def attach(self, name: str = "", vpn: str = "default", **login: Any) -> tuple[Attached, FakeGuest]:
        guest = FakeGuest()
        who = {"username": "default", "password": None, "address": "127.0.0.1", "certificate": None, **login}
        client = self.carriers.attach(vpn, guest, Login(client_name=name, sdk="mqtt 5", **who), self.node.now)
        self.settle()
        return client, guest

    def open(self, name: str = "", **login: Any) -> tuple[Attached, FakeGuest]:
        """Attach a client that is let in."""
        client, guest = self.attach(name, **login)
        told = guest.take()
        assert told == [("welcomed", client.name)], told
        return client, guest

    def topics(self) -> list[str]:
        """Take what came for plain subscriptions."""
        rows, self.rows = self.rows, []
        return [row[wire.ROW_TOPIC] for _, row in rows]
