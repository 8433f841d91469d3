"""A gateway process: real clients of it, and between them and the router what order frames have."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from angarium import errors, slots
from angarium.client.protocol.events import Welcome
from angarium.slots import ROUND_ROWS_MAX
from angarium_server.frames.gateways import Rights
from gateway.fanout import Lookups
from gateway.mqtt.clients.client import Client, ClientState
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec import Parser, Sender
from gateway.mqtt.sessions.credit import Credit
from gateway.producing import Producing
from gateway.rights import KnownRights
from gateway.session import Acknowledged, AttachedWelcome, ProducerOpened
from tests.simulation.exactly_once.modelled_node import closed, encoded, ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.events import Arrived
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.message import Row
    from gateway.attached import Guest, Login

RIGHTS = Rights(
    publish_allowed=True,
    publish_exceptions=[],
    queue_units=100,
    may_share=True,
    may_send_guaranteed=True,
    may_receive_guaranteed=True,
)


#: What the router says to a process.
WELCOME = Welcome(
    session="g",
    client_name="g",
    vpn="default",
    node="n",
    token=b"",
    resumed=False,
    epoch=1,
    slots=slots.slot_table(1),
    workers=1,
    rounds=100,
    round_bytes=1 << 20,
    keepalive_ms=1_000,
    max_message_bytes=1 << 20,
    max_batch_rows=10_000,
    max_batch_bytes=16 << 20,
    inbox="",
)


class SimulatedAttached:
    """A client at the node, as `gateway.attached.Attached` is: one request at a time, everything else in order."""

    vpn, queued, may_be_retained = "default", (0, 0), True

    def __init__(self, gateway: SimulatedGateway, guest: Guest, name: str) -> None:
        self.gateway = gateway
        self.name = name
        self.guest = guest
        self.rights = KnownRights().find(RIGHTS)
        #: Whether the router has it, and whether the gateway has.
        self.is_known = False
        self.is_open = True
        #: Whether it waits to be attached again.
        self.is_away = False
        self.counts: Counter[str] = Counter()
        self._requests: list[tuple[str, dict[str, Any], Any, Any]] = []

    # To the client.

    def request(
        self, operation: str, arguments: dict[str, Any], done: Any, decode: Any = msgpack.decode
    ) -> None:
        if self.is_open:
            self._requests.append((operation, arguments, done, decode))
            if len(self._requests) == 1 and not self.is_away:
                self._ask()

    def _ask(self) -> None:
        operation, arguments, *_ = self._requests[0]
        self.gateway.say(lambda node: node.request(self, operation, arguments))

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        self.tell(lambda: self.guest.answered([0] * len(filters), self.gateway.now))

    unsubscribe = subscribe

    def bind(self, window: FlowWindow, arguments: dict[str, Any], done: Any) -> None:
        self.request("flow.bind", {**arguments, "window": window}, done)

    def unbind(self, window: FlowWindow) -> None:
        self.request("flow.unbind", {"window": window}, lambda *_: None)

    def accept(self, window: FlowWindow, position: int) -> None:
        if self.is_open and not self.is_away and window.flow:
            self.gateway.say(lambda node: node.settle(self, window, position))
            self.renew(window)

    def renew(self, window: FlowWindow) -> None:
        if self.is_open and window.flow:
            window.renew()

    def publish_own(self, _producer: int, first: int, rows: Sequence[Row]) -> None:
        if self.is_open and not self.is_away:
            payloads = [row[5] for row in rows]
            self.gateway.say(lambda node: node.publish(self, first, payloads))

    def leave(self, *_how: Any, **_will: Any) -> None:
        if self.is_open:
            self.is_open = False
            self.gateway.say(lambda node: node.end(self, 0))

    def guaranteed_refusal_of(self, _topic: str, _size: int) -> int:
        return 0

    def has_room_guaranteed(self) -> bool:
        return not self.is_away and self.gateway.producing.has_room()

    def publish_guaranteed(
        self, topic: str, flags: int, meta: Any, properties: bytes | None, payload: bytes, name: int
    ) -> None:
        if self.is_open:
            self.gateway.producing.add(self, name, (0, topic, flags, meta, properties, payload))
            self.gateway.produce()

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    # From the router.

    def tell(self, what: Callable[[], None]) -> None:
        self.gateway.from_router.append((self, what))

    def suspend(self) -> None:
        """Wait for another router, if the client can."""
        pending, self._requests, self.is_away = self._requests, [], True
        if self.guest.away(self.gateway.now):
            self._requests += [one for one in pending if one[0] != "flow.bind"]
            self.gateway.say(lambda node: node.attach_again(self))
        else:
            self.is_away = False
            self.ended(errors.SHUTTING_DOWN)

    def welcomed(self) -> None:
        if self.is_away:
            self.is_away = False
            if self._requests:
                self._ask()
            self.guest.may_go_on(self.gateway.now)
            return
        welcome = AttachedWelcome(
            session="s",
            client_name=self.name,
            username="default",
            inbox="#P2P/INB/n/c",
            token=b"",
            resumed=False,
            max_message_bytes=1 << 20,
            rights=RIGHTS,
        )
        self.guest.welcomed(welcome, self.gateway.now)

    def answered(self, value: Any, code: int = 0) -> None:
        operation, arguments, done, decode = self._requests.pop(0)
        if operation == "flow.bind" and not code:
            arguments["window"].flow = 1
        elif operation == "flow.unbind":
            arguments["window"].flow = 0
        if self._requests:
            self._ask()
        if code:
            done(None, ending(code), self.gateway.now)
        else:
            done(encoded(value, decode), None, self.gateway.now)

    def stored(self, event: Acknowledged) -> None:
        self.guest.stored(event, self.gateway.now)

    def spooled(self, event: Arrived) -> None:
        self.guest.spooled(event, self.gateway.now)

    def flow_closed(self, window: FlowWindow) -> None:
        if window.flow:
            self.guest.indicated(closed(window), self.gateway.now)

    def ended(self, code: int) -> None:
        self.is_open = False
        self.guest.ended(ending(code), self.gateway.now)


class Connection:
    """One connection of the device, with what is on its way in both directions."""

    def __init__(self, gateway: SimulatedGateway, version: int) -> None:
        self.gateway = gateway
        self.client = Client(gateway, Settings(), b"%08d" % id(self), "", None, "default", gateway.now)  # type: ignore[arg-type]
        gateway.connections[self.client.connection_id] = self
        #: Whether the device has it, and whether the gateway has.
        self.is_open = self.is_held = True
        self.to_gateway: deque[Any] = deque()
        self.to_device: deque[bytes] = deque()
        self.heard = Parser(Sender.SERVER, version=version)
        self.is_paused = False

    def pass_on(self) -> bool:
        """Have the gateway read a packet."""
        if not self.to_gateway or self.is_paused or not self.is_held:
            return False
        packet = self.to_gateway.popleft()
        if not self.client.packet(packet, self.gateway.now):
            self.to_gateway.appendleft(packet)
        self.client.validate()
        return True

    def lose(self) -> None:
        """Have the gateway notice that it is gone."""
        if self.is_held:
            self.is_held = False
            self.client.lost("lost", self.gateway.now)


class Carrier:
    """The session of a process at a router, which brings what its clients publish with QoS 1."""

    def __init__(self, gateway: SimulatedGateway, name: str) -> None:
        self.gateway = gateway
        self.name = name
        self.is_known = self.is_open = True

    def tell(self, what: Callable[[], None]) -> None:
        self.gateway.from_router.append((self, what))

    def opened(self, last_sequence: int) -> None:
        self.gateway.hear_of_producer(ProducerOpened(1, last_sequence, ROUND_ROWS_MAX))

    def stored(self, event: Acknowledged) -> None:
        self.gateway.hear_of_producer(event)


class SimulatedGateway:
    """One process, to its clients."""

    def __init__(self, clock: Callable[[], float], name: str = "g") -> None:
        self._clock = clock
        self._name = name
        self.carrier: Carrier | None = None
        self._begin_producing()
        self.credit = Credit()
        self.lookups = Lookups()
        self.connections: dict[bytes, Connection] = {}
        self.to_router: deque[Callable[[Any], None]] = deque()
        self.from_router: deque[tuple[SimulatedAttached | Carrier, Callable[[], None]]] = deque()

    @property
    def now(self) -> float:
        return self._clock()

    def say(self, what: Callable[[Any], None]) -> None:
        self.to_router.append(what)

    def hear(self) -> bool:
        """Take what the router said."""
        if not self.from_router:
            return False
        attached, what = self.from_router.popleft()
        if attached.is_open:
            what()
        return True

    def _begin_producing(self) -> None:
        self.producing: Producing[SimulatedAttached] = Producing()
        self.producing.limit(WELCOME)
        self._begin_session()

    def _begin_session(self) -> None:
        if self.carrier is not None:
            self.carrier.is_known = self.carrier.is_open = False
        self.carrier = Carrier(self, self._name)

    def produce(self) -> None:
        """Have leave what may."""
        producing, carrier = self.producing, self.carrier
        assert carrier is not None
        if producing.open_at() <= self.now:
            producing.is_opening = True
            self.say(lambda node: node.open_producer(carrier))
        while producing.can_send():
            first, made = producing.take()
            rows = sorted(row for batch in made.batches for row in msgpack.decode(batch))
            payloads = [row[5] for row in rows]
            self.say(partial(_publish, carrier, first, payloads))
        producing.validate()

    def hear_of_producer(self, event: ProducerOpened | Acknowledged) -> None:
        self.producing.hear(event, self.now)
        for attached, settled in self.producing.settled().items():
            if attached.is_open:
                attached.guest.acknowledged(settled.answers, self.now)
        self.produce()

    def die(self) -> list[SimulatedAttached]:
        """Be a new process; gives the clients of the old one."""
        gone = [one.client.attached for one in self.connections.values() if one.client.attached is not None]
        for connection in self.connections.values():
            connection.is_open = connection.is_held = False
        self.connections.clear()
        self.to_router.clear()
        self.from_router.clear()
        self.credit = Credit()
        self.lookups = Lookups()
        self._begin_producing()
        for one in gone:
            one.is_open = False  # type: ignore[attr-defined]
        return gone  # type: ignore[return-value]

    def router_lost(self) -> None:
        """All that are attached wait for another one, if they can."""
        self.to_router.clear()
        self.from_router.clear()
        self.producing.lose()
        self._begin_session()
        self.produce()
        for connection in list(self.connections.values()):
            attached: Any = connection.client.attached
            if attached is not None and attached.is_open:
                attached.suspend()

    # The process, to its clients.

    def attach(self, guest: Guest, login: Login, _vpn: str, _now: float) -> SimulatedAttached:
        attached = SimulatedAttached(self, guest, login.client_name)
        self.say(lambda node: node.attach(attached))
        return attached

    def send(self, connection_id: bytes, data: bytes) -> None:
        self.connections[connection_id].to_device.append(data)

    def send_guaranteed(self, receiver: Any, data: bytes, _now: float) -> bool:
        self.send(receiver.connection_id, data)
        return True

    def finish(self, connection_id: bytes, farewell: bytes, _reason: str, _now: float) -> None:
        connection = self.connections[connection_id]
        if farewell:
            connection.to_device.append(farewell)
        connection.is_held = False

    def forget(self, *_gone: Any) -> None:
        """Nothing is fanned out."""

    def count_end(self, _reason: Any) -> None:
        """Nobody asks how many."""

    def pause(self, connection_id: bytes) -> None:
        self.connections[connection_id].is_paused = True

    def resume(self, connection_id: bytes) -> None:
        self.connections[connection_id].is_paused = False

    def wake(self, connection_id: bytes, at: float) -> None:
        """Every tick looks at all."""

    def admitted(self, connection_id: bytes) -> None:
        """Take larger packets."""

    def await_room(self, connection_id: bytes, qos: int) -> None:
        """There is always room."""

    def unix_ms(self) -> int:
        return 0

    def read_retained(self, subscriptions: Any) -> None:
        """Nothing is."""

    def leave_retained(self, subscription: Any) -> None:
        """Nothing was read."""

    def tick(self) -> None:
        self.lookups.renew()
        for connection in list(self.connections.values()):
            if connection.client.state is ClientState.HERE:
                connection.client.tick(self.now)


def _publish(carrier: Carrier, first: int, payloads: list[bytes], node: Any) -> None:
    node.publish(carrier, first, payloads)
