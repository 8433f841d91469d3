"""One MQTT client in a conversation: the test says its packets as bytes, and plays the node and the process.

What the client is answered is read by the codec, which refuses what a server may not say, as a packet that is larger
than the client takes, or a reason that its packet does not have.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from angarium import wire
from angarium.client.protocol.events import Arrived, Indicated
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium.errors import error_for
from angarium_server.frames.gateways import Rights
from gateway.fanout import Lookups
from gateway.mqtt.clients.client import Client, ClientState
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec import Parser, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.properties import NONE
from gateway.mqtt.codec.subscribe import SubAck
from gateway.mqtt.codec.topics import shared
from gateway.mqtt.sessions.credit import Credit
from gateway.rights import KnownRights
from gateway.session import AttachedWelcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.message import Meta, Row
    from gateway.attached import Guest, Login, Wish
    from gateway.mqtt.codec import Packet, PacketError
    from gateway.mqtt.codec.errors import ReasonCode
    from gateway.mqtt.codec.properties import Properties
    from gateway.mqtt.delivering import MqttReceiver, MqttSubscription

INBOX = "#P2P/INB/n/0123456789ab"
RIGHTS = Rights(
    publish_allowed=True,
    publish_exceptions=["secret/>"],
    queue_units=100,
    may_share=True,
    may_send_guaranteed=True,
    may_receive_guaranteed=True,
)


class FakeSession:
    """What the node has of the session of a client, and what it answers to its operations."""

    def __init__(self) -> None:
        #: Whether there is a durable queue, and what is in it; and whether there is a temporary one.
        self.is_kept = False
        self.filters: dict[str, Any] = {}
        self.is_temporary = False
        #: Error codes of topic filters that may not be in it.
        self.refused: dict[str, int] = {}
        #: For which it cannot be opened; 0: it can.
        self.error = 0
        #: For how long its client says that the sessions are kept that share queues, by filter.
        self.shared_for_s: dict[str, int] = {}
        #: What it keeps, and the messages that went with that; and the highest sequence of its producer.
        self.note = b""
        self.done: set[int] = set()
        self.last_sequence = 0
        #: By the name of a queue that is shared: the note there, and what is held; and what is refused to be.
        self.holdings: dict[str, tuple[bytes, list[int]]] = {}
        self.taken_by_others: set[int] = set()

    def opened(self, arguments: dict[str, Any]) -> dict[str, Any]:
        present = self.is_kept and not arguments["clean"]
        if not present:
            self.filters = {}
        self.is_kept = present or arguments["expiry_s"] > 0
        return {
            "name": "#mqtt/c",
            "present": present,
            "temporary": not self.is_kept,
            "filters": dict(self.filters),
        }

    def shared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert all(one.startswith("#share/") for one in arguments["filters"])
        self.shared_for_s[arguments["filter"]] = arguments["expiry_s"]
        return {"name": f"#mqtt/{arguments['filter']}"}

    def noted(self, arguments: dict[str, Any]) -> Any:
        assert self.is_kept
        return self.holdings.get(arguments["share"], (b"", [])) if "share" in arguments else self.note

    def kept(self, arguments: dict[str, Any]) -> list[int] | None:
        assert self.is_kept
        if "share" in arguments:
            held = [one for one in arguments["held"] if one not in self.taken_by_others]
            self.holdings[arguments["share"]] = arguments["note"], held
            self.done |= {*arguments["done"]}
            return [one for one in arguments["held"] if one not in held]
        self.note = arguments["note"]
        self.done |= {*arguments["done"]}
        return None

    def opens_producer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert arguments == {"name": "#mqtt/c"}
        return {"producer": 7, "name": "#mqtt/c", "window": 255, "last_sequence": self.last_sequence}

    def changed(self, arguments: dict[str, Any]) -> list[Any]:
        assert arguments["temporary"] is not self.is_kept
        assert len(arguments["put"]) <= 16
        assert len(arguments["drop"]) <= 16
        for text in arguments["drop"]:
            self.filters.pop(text, None)
        for text, (filters, options, _) in arguments["put"].items():
            assert bool(filters) == bool(options & 3 and not text.startswith("$share/"))
            if text not in self.refused:
                self.filters[text] = arguments["put"][text]
        return [[self.refused[text], ""] if text in self.refused else None for text in arguments["put"]]


class FakeAttached:
    """A client at the node, whose answers the test gives."""

    def __init__(self, login: Login, vpn: str) -> None:
        self.login = login
        self.vpn = vpn
        self.name = ""
        self.rights = KnownRights().find(RIGHTS)
        self.queued = (0, 0)
        self.message_bytes_max = 1 << 20
        self.is_full = self.is_away = False
        #: Whether the node says that what is retained has to be read.
        self.may_be_retained = True
        #: Whether it has said BYE, and whether it is at the node no more.
        self.has_left = False
        self.is_over = False
        #: What it was asked and has not answered; one request at a time.
        self.asked: tuple[bytes, list[str]] | None = None
        #: Filters that the node has.
        self.in_force: set[str] = set()
        self.published: list[tuple[str, int, Meta | None, bytes | None, bytes]] = []
        #: Guaranteed messages, and what is not answered yet: packet id, and the code for what was refused at once.
        self.stored: list[tuple[str, int, Meta | None, bytes | None, bytes]] = []
        self.unanswered: list[tuple[int, int]] = []
        self.is_store_full = False
        self.counts: Counter[str] = Counter()
        #: Its session at the node, as the operations session.* have made it.
        self.session = FakeSession()
        #: Operations that it has asked for and that have no answer, the oldest first; and the last ones, at its end.
        self.requests: list[tuple[str, dict[str, Any], Any, Any]] = []
        self.last: Sequence[Wish] = ()
        #: The round of its own producer that is not settled: first sequence and rows.
        self.own: tuple[int, list[Row]] | None = None
        #: How it left: within so many seconds its will is published, None: it is not.
        self.will_within_s: int | None = None
        #: The flows that it was given so far.
        self.flows = 0
        #: The flow of its session that it was given, and positions that it has accepted there.
        self.window: FlowWindow | None = None
        self.accepted: list[int] = []
        #: The same of queues that it shares, by name; and (name, position).
        self.shared: dict[str, FlowWindow] = {}
        self.accepted_shared: list[tuple[str, int]] = []

    def request(
        self, operation: str, arguments: dict[str, Any], done: Any, decode: Any = msgpack.decode
    ) -> None:
        assert not self.is_over
        self.requests.append((operation, arguments, done, decode))

    def bind(self, window: FlowWindow, arguments: dict[str, Any], done: Any) -> None:
        self.request("flow.bind", {**arguments, "window": window}, done)

    def accept(self, window: FlowWindow, position: int) -> None:
        assert not self.is_over
        if window is self.window and window.flow:
            self.accepted.append(position)
        for name, one in self.shared.items():
            if window is one and window.flow:
                self.accepted_shared.append((name, position))

    def unbind(self, window: FlowWindow) -> None:
        self.request("flow.unbind", {"window": window}, lambda *_: None)

    def bound(self, name: str, window: FlowWindow) -> None:
        """Have a flow of a queue."""
        self.flows += 1
        window.flow = self.flows
        if name.startswith("#mqtt/$share/"):
            self.shared[name] = window
        else:
            self.window = window

    def renew(self, window: FlowWindow) -> None:
        assert not self.is_over

    def _ask(self, operation: bytes, filters: Sequence[tuple[str, int]]) -> None:
        assert not self.is_over
        assert self.asked is None, "one request at a time"
        assert filters
        assert all(flags == wire.SUBSCRIBE_DELIVER_ALWAYS for _, flags in filters)
        self.asked = operation, [text for text, _ in filters]

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        assert not self.in_force & {text for text, _ in filters}, "it is in force"
        self._ask(wire.SUBSCRIBE, filters)

    def subscribe_again(self, filters: Sequence[tuple[str, int]], done: Any) -> None:
        assert self.is_away
        self.request("subscribe", {"filters": [text for text, _ in filters]}, done)

    def unsubscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        assert {text for text, _ in filters} <= self.in_force, "it is not in force"
        self._ask(wire.UNSUBSCRIBE, filters)

    def answer(self, refused: dict[str, int]) -> list[int]:
        """Do what was asked, but for what is refused, and give the codes."""
        assert self.asked is not None
        operation, filters = self.asked
        self.asked = None
        for one in filters:
            if one not in refused:
                (self.in_force.add if operation == wire.SUBSCRIBE else self.in_force.discard)(one)
        return [refused.get(one, 0) for one in filters]

    def refusal_of(self, topic: str, size: int) -> int:
        return self.rights.refusal_of(topic) or (40007 if size > self.message_bytes_max else 0)

    def has_room(self) -> bool:
        return not self.is_full

    def publish(
        self, topic: str, flags: int, meta: Meta | None, properties: bytes | None, payload: bytes
    ) -> None:
        assert not self.is_over
        assert self.has_room()
        assert not self.refusal_of(topic, len(payload))
        self.published.append((topic, flags, meta, properties, payload))

    def guaranteed_refusal_of(self, topic: str, size: int) -> int:
        return self.refusal_of(topic, size) if self.rights.may_send_guaranteed else 40312

    def has_room_guaranteed(self) -> bool:
        return not self.is_store_full

    def publish_guaranteed(
        self, topic: str, flags: int, meta: Meta | None, properties: bytes | None, payload: bytes, name: int
    ) -> None:
        assert not self.is_over
        assert self.has_room_guaranteed()
        assert not self.guaranteed_refusal_of(topic, len(payload))
        assert flags & wire.FLAG_MODE == wire.MODE_PERSISTENT
        self.stored.append((topic, flags, meta, properties, payload))
        self.unanswered.append((name, 0))

    def publish_own(self, producer: int, first: int, rows: Sequence[Row]) -> None:
        assert not self.is_over
        assert self.own is None, "one round at a time"
        assert rows
        assert producer == 7
        self.own = first, list(rows)

    def refuse_guaranteed(self, name: int, code: int) -> None:
        assert not self.is_over
        assert code
        self.unanswered.append((name, code))

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def leave(self, last: Sequence[Wish] = (), *, will_within_s: int | None = None) -> None:
        assert not self.is_over
        self.last, self.will_within_s = last, will_within_s
        self.has_left = self.is_over = True


class Conversation:
    """A client with its process and its node, both of which the test plays."""

    def __init__(self, version: int = V5, settings: Settings | None = None) -> None:
        self.version = version
        self.now = 1_000.0
        self.settings = settings or Settings()
        self.client = Client(self, self.settings, b"12345678", "192.0.2.1", None, "default", self.now)  # type: ignore[arg-type]
        self.attached: FakeAttached | None = None
        self.is_admitted = False
        #: Whether nothing is read of it, and what it said meanwhile.
        self.is_paused = False
        self.waiting: list[Packet | PacketError] = []
        #: The QoS of the message that found no room last.
        self.awaited: int | None = None
        #: How the process was told that the connection is over; None as long as it is not.
        self.finished: str | None = None
        #: For what it was ended, if the client did not end it itself.
        self.ended: list[int] = []
        self.fanned_out: set[MqttSubscription] = set()
        self.delivered: list[tuple[list[str], list[str]]] = []
        self.credit = Credit()
        self.lookups = Lookups()
        self.wakes: list[float] = []
        self.time_ms = 1_700_000_000_000
        self.takes_more = True
        #: Topic filters for which it was to be read what is retained, in order.
        self.read: list[str] = []
        #: Those of them that were left again.
        self.left: list[str] = []
        self._said = Parser(Sender.CLIENT)
        self._heard = Parser(Sender.SERVER, version=version)
        self._taken: list[Packet] = []

    # The process, to the client.

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> FakeAttached:
        assert guest is self.client
        assert now == self.now
        self.attached = FakeAttached(login, vpn)
        return self.attached

    def send(self, connection_id: bytes, data: bytes) -> None:
        assert connection_id == b"12345678"
        assert self.finished is None
        self._hear(data)

    def _hear(self, data: bytes) -> None:
        self._taken += self._heard.feed(data)
        if self._heard.fault:
            raise self._heard.fault
        assert not self._heard.waiting_bytes

    def admitted(self, connection_id: bytes) -> None:
        assert not self.is_admitted
        self.is_admitted = True

    def send_guaranteed(self, receiver: Client, data: bytes, now: float) -> bool:
        assert receiver is self.client
        if self.takes_more:
            self.send(receiver.connection_id, data)
        return self.takes_more

    def send_retained(self, receiver: Client, data: bytes, now: float) -> bool:
        return self.send_guaranteed(receiver, data, now)

    def wake(self, connection_id: bytes, at: float) -> None:
        assert connection_id == b"12345678"
        self.wakes.append(at)

    def unix_ms(self) -> int:
        return self.time_ms

    def pause(self, connection_id: bytes) -> None:
        assert self.finished is None
        self.is_paused = True

    def await_room(self, connection_id: bytes, qos: int) -> None:
        assert self.finished is None
        self.awaited = qos

    def resume(self, connection_id: bytes) -> None:
        assert self.finished is None
        self.is_paused = False

    def count_end(self, reason: int) -> None:
        assert self.finished is None
        self.ended.append(reason)

    def finish(self, connection_id: bytes, farewell: bytes, reason: str, now: float) -> None:
        assert self.finished is None, "a connection ends once"
        assert self.attached is None or not self.attached.has_left, "counts would not reach the node"
        assert reason
        if farewell:
            self._hear(farewell)
        self.finished = reason
        self.is_paused = False
        self.waiting.clear()

    def add(self, subscription: MqttSubscription) -> None:
        assert subscription not in self.fanned_out
        self.fanned_out.add(subscription)

    def remove(self, subscription: MqttSubscription) -> None:
        self.fanned_out.remove(subscription)

    def forget(self, receiver: MqttReceiver, subscriptions: dict[str, MqttSubscription]) -> None:
        for text, subscription in subscriptions.items():
            assert subscription.receiver is receiver
            self.leave_retained(subscription)
            if not shared(text) and not subscription.options.qos:
                self.remove(subscription)

    def read_retained(self, subscriptions: Sequence[MqttSubscription]) -> None:
        assert subscriptions
        assert self.fanned_out.issuperset(one for one in subscriptions if not one.options.qos)
        assert isinstance(self._taken[-1], SubAck), "it comes behind the answer"
        self.read += [one.options.filter for one in subscriptions]

    def leave_retained(self, subscription: MqttSubscription) -> None:
        if self.read and subscription.options.filter in self.read:
            self.left.append(subscription.options.filter)

    def deliver(self, subscriptions: Sequence[MqttSubscription], rows: Sequence[Row], now: float) -> None:
        self.delivered.append(([one.options.filter for one in subscriptions], [row[1] for row in rows]))

    # What the test says.

    @property
    def node(self) -> FakeAttached:
        assert self.attached is not None
        return self.attached

    def says(self, *packets: Packet) -> list[bool]:
        """Have the client say packets, and tell which were taken."""
        return self.says_bytes(b"".join(write(one, self.version) for one in packets))

    def says_bytes(self, data: bytes) -> list[bool]:
        found: list[Packet | PacketError] = [*self._said.feed(data)]
        if self._said.fault:
            found.append(self._said.fault)
        before = len(self.waiting)
        self.waiting += found
        left = before + len(found) - self.go_on()
        return [number < left for number in range(before, before + len(found))]

    def go_on(self) -> int:
        """Offer what waits, as the door does; give how much still does."""
        while self.waiting and not self.is_paused:
            if self.offers(self.waiting[0]):
                del self.waiting[:1]  # it may have been the last of this client
            else:
                assert self.is_paused, "who takes nothing is not read"
        return len(self.waiting)

    def finds_room(self) -> None:
        """Have room for messages again, and go on."""
        self.node.is_full = False
        self.resume(self.client.connection_id)
        self.go_on()

    def offers(self, packet: Packet | PacketError) -> bool:
        is_taken = self.client.packet(packet, self.now)
        self.client.validate()
        return is_taken

    def connect(self, **fields: Any) -> Conversation:
        fields = {"version": self.version, "client_id": "c", **fields}
        self.expect(fields.get("properties", NONE))
        self.says(Connect(**fields))
        return self

    def expect(self, given: Properties) -> None:
        """Take no larger packets than the client has said that it does."""
        if given.maximum_packet_size:
            self._heard.packet_bytes_max = given.maximum_packet_size

    def welcome(self, name: str = "c", **fields: Any) -> ConnAck:
        """Log the client in, and give the CONNACK."""
        self.node.name = name
        rights = fields.pop("rights", RIGHTS)
        self.node.rights = KnownRights().find(rights)
        welcome = AttachedWelcome(
            session="s",
            client_name=name,
            username="default",
            inbox=INBOX,
            token=b"",
            resumed=False,
            max_message_bytes=self.node.message_bytes_max,
            rights=rights,
            new_session=fields.pop("new_session", ""),
        )
        self.client.welcomed(welcome, self.now)
        self.client.validate()
        self.node_works()
        self.go_on()
        return self.hears_first()

    def node_works(self) -> None:
        """Carry out the operations that were asked for."""
        while self.node.requests and not self.node.is_over:
            self.node_carries_out()

    def router_is_replaced(self) -> None:
        """Have another router, which knows of no flow and no producer and is asked again what had no answer."""
        node = self.node
        pending, node.requests, node.own, node.is_away = node.requests, [], None, True
        assert self.client.away(self.now)
        node.requests += [one for one in pending if not one[0].startswith("flow.")]
        node.window, node.shared, node.is_away = None, {}, False
        self.client.may_go_on(self.now)
        self.client.validate()

    def node_carries_out(self) -> None:
        node = self.node
        operation, arguments, done, decode = node.requests.pop(0)
        if operation == "session.open" and node.session.error:
            done(None, error_for(node.session.error), self.now)
            return
        if operation == "session.share" and (code := node.session.refused.get(arguments["filter"])):
            done(None, error_for(code), self.now)
            return
        value: Any = {}
        if operation == "flow.bind":
            node.bound(arguments["name"], arguments["window"])
        elif operation == "flow.unbind":
            arguments["window"].flow = 0
        else:
            session = node.session
            carry_out: dict[str, Any] = {
                "session.open": session.opened,
                "session.change": session.changed,
                "session.note": session.noted,
                "session.keep": session.kept,
                "session.share": session.shared,
                "producer.open": session.opens_producer,
            }
            value = carry_out[operation](arguments)
        done(decode(msgpack.encode(value)), None, self.now)
        self.client.validate()

    def node_brings(
        self,
        *messages: tuple[int, Row],
        counts: list[int] | None = None,
        waited_ms: int = 0,
        window: FlowWindow | None = None,
    ) -> None:
        """Bring messages of the queue, with their positions, through the flow; of another one through that."""
        window = window or self.node.window
        assert window is not None
        rows = [row for _, row in messages]
        runs = [(position, 1) for position, _ in messages]
        size = spool_size(rows)
        window.receive(len(rows), size)
        delivery = GuaranteedDelivery(window, 0, rows, runs, counts, self.time_ms - waited_ms, None, size)
        self.client.spooled(Arrived(window, [delivery]), self.now)
        self.client.validate()
        window.validate()

    def node_ends_flow(self, code: int, detail: str = "", window: FlowWindow | None = None) -> None:
        """End the flow, or another one, and take no more of it."""
        window = window or self.node.window
        assert window is not None
        window.flow = 0
        self.client.indicated(Indicated(window, wire.FLOW_CLOSED, code, detail, []), self.now)
        self.client.validate()

    def node_cannot(self, code: int, detail: str = "") -> None:
        """Refuse an operation that was asked for."""
        _, _, done, _ = self.node.requests.pop(0)
        done(None, error_for(code, detail), self.now)
        self.client.validate()

    def here(self, **fields: Any) -> Conversation:
        """Connect and log in."""
        self.connect(**fields)
        assert self.welcome().code == 0
        assert self.client.state is ClientState.HERE
        return self

    def node_answers(self, refused: dict[str, int] | None = None) -> None:
        self.client.answered(self.node.answer(refused or {}), self.now)
        self.client.validate()
        self.go_on()

    def node_does_all(self) -> None:
        while self.node.asked or self.node.requests:
            if self.node.asked:
                self.node_answers()
            else:
                self.node_works()

    def node_stores(self, count: int | None = None, refused: dict[int, int] | None = None) -> None:
        """Answer the oldest messages that are to be stored, or all: by packet id what is refused, the rest is there."""
        unanswered = self.node.unanswered
        count = len(unanswered) if count is None else count
        answers = [(name, code or (refused or {}).get(name, 0)) for name, code in unanswered[:count]]
        del unanswered[:count]
        self.client.acknowledged(answers, self.now)
        self.client.validate()
        self.go_on()

    def node_refuses(self, code: int, detail: str = "") -> None:
        self.node.is_over = True
        self.client.refused(error_for(code, detail), self.now)
        self.client.validate()

    def node_ends(self, code: int, detail: str = "") -> None:
        self.node.is_over = True
        self.client.ended(error_for(code, detail), self.now)
        self.client.validate()

    def hears(self) -> list[Packet]:
        """Take what the client was told."""
        taken, self._taken = self._taken, []
        return taken

    def hears_first(self) -> ConnAck:
        """Take the CONNACK, whatever came behind it."""
        first = self._taken.pop(0)
        assert isinstance(first, ConnAck)
        return first

    def hears_one(self) -> Any:
        (packet,) = self.hears()
        return packet

    def ends_with(self, code: ReasonCode | None) -> None:
        """Check that the connection is over, and that the client was told that reason last; None: told nothing."""
        assert self.finished is not None, "the connection is not over"
        assert self.client.state is ClientState.GONE
        assert not self.fanned_out
        assert self.attached is None or self.attached.is_over
        told = [one.code for one in self.hears()[-1:] if hasattr(one, "code")]
        assert told == ([] if code is None else [code])


def filters_of(subscriptions: Iterable[MqttSubscription]) -> list[str]:
    return sorted(one.options.filter for one in subscriptions)
