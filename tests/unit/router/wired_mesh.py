"""Nodes as state machines, joined by the channels of link processes, without any process, socket or clock."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.connections.tls import Peer
from cluster.link.link import Channel
from cluster.link.role import LinkConfig
from cluster.relay.pair import Connect, Disconnect, Effect, Emit, Surroundings
from cluster.relay.runtime import RelayRuntime
from router.ground.config import Identity
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

CLUSTER = "test"
SECRET = "correct horse battery staple"


def identity_of(name: str, **changes: str) -> Identity:
    """What a node of a well-formed mesh is."""
    given = {"node_id": f"id-{name}", "cluster": CLUSTER, "secret": SECRET, "local_secret": f"inside-{name}"}
    return Identity(**{**given, **changes})


def link_object(name: str, **attributes: Any) -> tuple[str, str, str, dict[str, Any]]:
    """A link to a neighbour."""
    return ("link", "", name, attributes)


def make_node(name: str, links: Sequence[str], workers: int = 1, **changes: str) -> WiredNode:
    """A node with links to these neighbours."""
    rows = snapshot(*[link_object(other) for other in links if other != name])
    return WiredNode(workers, rows, name=name, identity=identity_of(name, **changes))


class WiredLink:
    """One link process with one channel, at the node that opens it."""

    def __init__(self, own: WiredNode, far: WiredNode, *, incarnation: int = 1, vpn: str = "default") -> None:
        self.nodes = (own, far)
        self.outbox: list[Effect] = []
        self.events: list[dict[str, Any]] = []
        #: Connections of the two sides; None where there is none.
        self.clients: list[FakeClient | None] = [None, None]
        assert own.identity is not None
        config = LinkConfig(neighbour=far.name, addresses=["tcp://far:1"], vpns=[vpn])
        runtime = RelayRuntime(node=own.name, identity=own.identity)
        around = Surroundings(runtime, incarnation, "ipc:///own", self.outbox, random.Random(1))
        self.channel = Channel(around, config, vpn, own.now)
        #: False while the far side cannot be reached.
        self.is_cut = False

    def step(self) -> bool:
        """Carry what waits on either side; false if nothing does."""
        moved = self._carry_out()
        for side in range(len(self.nodes)):
            client, session = self.clients[side], self.channel.sessions[side]
            if client is None or session is None:
                continue
            if outgoing := session.take_outgoing():
                self._to_node(side, client, outgoing)
                moved = True
            if client.received:
                self._to_link(side, client)
                moved = True
        return self._carry_out() or moved

    def _to_node(self, side: int, client: FakeClient, outgoing: deque[list[bytes]]) -> None:
        node = self.nodes[side]
        while outgoing and self.clients[side] is client:
            _offer(node, client, outgoing.popleft())

    def _to_link(self, side: int, client: FakeClient) -> None:
        received, client.received = client.received, deque()
        for frames in received:
            self.channel.received(side, frames, self.nodes[side].now)

    def _carry_out(self) -> bool:
        effects, self.outbox[:] = list(self.outbox), []
        for effect in effects:
            if isinstance(effect, Connect):
                if effect.side == 1 and self.is_cut:
                    self.channel.lost(1, error_for(errors.NOT_CONNECTED, "cut"), self.nodes[1].now)
                else:
                    self.clients[effect.side] = self.nodes[effect.side].connection(
                        "10.0.0.1" if effect.side else ""
                    )
            elif isinstance(effect, Disconnect):
                self._disconnect(effect.side)
            elif isinstance(effect, Emit):
                self.events.append(effect.event)
        return bool(effects)

    def _disconnect(self, side: int) -> None:
        client, node = self.clients[side], self.nodes[side]
        session = self.channel.sessions[side]
        if client is not None and not self.is_cut:
            while session is not None and session.take_outgoing():
                _offer(node, client, session.take_outgoing().popleft())
        if client is not None:
            node.clients.pop(client.routing_id, None)
            node.router.unreachable(client.routing_id, 0, node.now, blocked=False)
            node.settle()
        self.clients[side] = None
        self.channel.forget(side)

    def kill(self) -> None:
        """The process is gone without a word."""
        for side, node in enumerate(self.nodes):
            client = self.clients[side]
            if client is not None:
                node.clients.pop(client.routing_id, None)
                node.router.unreachable(client.routing_id, 0, node.now, blocked=False)
                node.settle()
            self.clients[side] = None


class WiredMesh:
    """Several nodes and the links between them, and a hand that carries everything."""

    def __init__(self, *names: str, workers: int = 1, pairs: Sequence[tuple[str, str]] | None = None) -> None:
        self.nodes = {name: make_node(name, names, workers) for name in names}
        wanted = pairs if pairs is not None else [(a, b) for a in names for b in names if a > b]
        self.links = {pair: WiredLink(self.nodes[pair[0]], self.nodes[pair[1]]) for pair in wanted}
        self.run()

    def __getitem__(self, name: str) -> WiredNode:
        return self.nodes[name]

    def run(self, seconds: float = 0.3) -> None:
        """Let everything happen, and some time pass."""
        steps = max(1, round(seconds / 0.05))
        for _ in range(steps):
            for node in self.nodes.values():
                node.now += 0.05
            self.settle()

    def settle(self) -> None:
        """Carry until nothing moves."""
        moved = True
        while moved:
            moved = False
            for node in self.nodes.values():
                for session in list(node.router.sessions):
                    session.last_heard = node.now
                moved |= self._tick(node)
            for link in self.links.values():
                link.channel.tick(link.nodes[0].now)
                moved |= link.step()

    def _tick(self, node: WiredNode) -> bool:
        """Let what is due happen in a node; false if nothing is."""
        before = len(node.router.out.effects)
        node.router.tick(node.now)
        moved = len(node.router.out.effects) > before
        node.settle()
        return moved

    def validate(self) -> None:
        for node in self.nodes.values():
            node.validate()
        for link in self.links.values():
            link.channel.validate()


def link_hello(name: str = "b", **changes: Any) -> dict[str, Any]:
    link = {"node": name, "node_id": f"id-{name}", "cluster": CLUSTER, "incarnation": 1}
    link.update({key: changes.pop(key) for key in list(changes) if key in link})
    return {"version": 1, "username": wire.LINK_USERNAME, "password": SECRET, "link": link, **changes}


def gated_node(**config: Any) -> WiredNode:
    """Node n, with links to x (which opens it), to a (which n opens), and to one that is off."""
    rows = snapshot(link_object("x"), link_object("a"), link_object("off", enabled=False))
    return WiredNode(1, rows, name="n", identity=identity_of("n"), **config)


def _offer(node: WiredNode, client: FakeClient, frames: list[bytes]) -> None:
    """Send a frame as often as it takes: the session may be busy."""
    for _ in range(1_000):
        if node.router.client_frames(client.routing_id, frames, node.now, Peer(client.address)):
            node.settle()
            return
        node.router.tick(node.now)
        node.settle()
    raise AssertionError("the session stays busy")
