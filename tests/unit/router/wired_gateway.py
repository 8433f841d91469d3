"""A gateway at a wired node, and the clients that are attached to it."""

from __future__ import annotations

from typing import Any

from angarium import wire
from angarium_server.frames.frame import encode
from router.ground.config import Identity
from tests.unit.router.wired_node import FakeClient, WiredNode

SECRET = "inside"
IDENTITY = Identity(node_id="id-n", secret="outside", local_secret=SECRET)
NEAR = "10.1.2.3"


def says(**changes: Any) -> dict[str, Any]:
    return {"name": "mqtt", "index": 0, "incarnation": 1, **changes}


class FakeGateway(FakeClient):
    """The session of a gateway with one Message VPN."""

    def __init__(self, node: WiredNode, vpn: str = "default", **gateway: Any) -> None:
        super().__init__(node, node.connection("").routing_id, "")
        node.clients[self.routing_id] = self
        self.vpn, self.numbers = vpn, 0
        self.greet(gateway=says(**gateway))

    def greet(self, **fields: Any) -> None:
        header = {"version": 1, "vpn": self.vpn, "username": wire.GATEWAY_USERNAME}
        self.send(wire.HELLO, {**header, "behalf": {"secret": SECRET}, "credit": [1 << 40] * 2, **fields})

    @property
    def welcome(self) -> dict[str, Any]:
        """What it was told when it came."""
        operation, body = self.take()
        assert operation == wire.WELCOME, body
        assert isinstance(body, dict)
        return body

    def client(self) -> FakeAttached:
        """Give a client that has not said HELLO."""
        self.numbers += 1
        return FakeAttached(self, self.numbers)

    def attach(self, address: str = "127.0.0.1", **fields: Any) -> FakeAttached:
        client = self.client()
        client.attach(address, **fields)
        operation, body = client.take()
        assert operation == wire.WELCOME, body
        return client

    def count(self, *clients: list[Any]) -> None:
        self.send_raw([wire.COUNTED, encode([list(clients)])])

    def send_raw(self, frames: list[bytes]) -> None:
        assert self.node.router.client_frames(self.routing_id, frames, self.node.now)
        self.node.settle()

    def die(self) -> None:
        """Its process is gone, and its connection."""
        for routing_id in [one for one in self.node.clients if one.startswith(self.routing_id)]:
            del self.node.clients[routing_id]
        self.node.router.unreachable(self.routing_id, 0, self.node.now, blocked=False)
        self.node.settle()

    def rights(self) -> list[tuple[list[Any], list[int]]]:
        """Take what it was told of the rights of its clients."""
        found = [wire.unpack(frames[1]) for frames in self.received if frames[0] == wire.RIGHTS]
        self.received.clear()
        return [(rights, numbers) for rights, numbers in found]


class FakeAttached(FakeClient):
    """A client of a gateway: what it says travels inside."""

    def __init__(self, gateway: FakeGateway, number: int) -> None:
        self.gateway, self.number = gateway, number
        self.inside = number.to_bytes(wire.ATTACHED_NUMBER_BYTES, "big")
        super().__init__(gateway.node, gateway.routing_id + self.inside, "")
        gateway.node.clients[self.routing_id] = self

    def say(self, operation: bytes, header: Any, *batches: bytes) -> None:
        """Send without waiting for what becomes of it."""
        node, inside = self.node, [wire.ATTACHED, self.inside, operation, wire.pack(header), *batches]
        assert node.router.client_frames(self.gateway.routing_id, inside, node.now)
        node.settle()

    def send(self, operation: bytes, header: Any, *batches: bytes) -> None:
        self.say(operation, header, *batches)
        self.node.router.subscriptions.tick(self.node.now)
        self.node.settle()

    def attach(self, address: str = "127.0.0.1", behalf: dict[str, Any] | None = None, **fields: Any) -> None:
        who = {"secret": SECRET, "address": address, "takes_over": True, **(behalf or {})}
        about = {"version": 1, "vpn": self.gateway.vpn, "sdk": "mqtt 5", "unroutable": True}
        self.send(wire.HELLO, {**about, "behalf": who, **fields})

    def bye(self) -> None:
        self.send(wire.BYE, [])
