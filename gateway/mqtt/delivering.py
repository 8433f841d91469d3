"""Messages on their way to clients of MQTT: who gets a row, as which bytes, once for all who get the same.

A client gets one copy of a message, however many of its subscriptions match, with the identifiers of all of them.
Copies differ in the version, whether the flag retain is kept, and these identifiers: all that is known per topic and
kept in its plan. So a row is written once for each kind of copy, and the bytes are shared. Rows that came together are
handed over together for each client.

One row for ten thousand clients is much work, and so is one that very many filters match, so a turn of the loop has a
limit; the rest waits for the next turns, and whoever brings rows is to bring no more meanwhile.

Topics that MQTT cannot say are delivered to nobody, and counted; topics of ours that begin with `#` do not exist here,
but for addresses. One of these per Message VPN. `Egress` has what waits; no I/O here.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from angarium import wire
from gateway.egress import Receiver
from gateway.fanout import FanOut
from gateway.mqtt.codec import fields, publish
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.topics import shared
from gateway.mqtt.messages import publish_section, sender_of
from gateway.mqtt.topics import filters_of, mqtt_topic_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from angarium.message import Row
    from gateway.egress import Egress
    from gateway.mqtt.codec.subscribe import Subscription

#: A turn ends behind so many copies, about 5 ms, if it had so many rows: what is handed over to a client is sent by one
#: system call, which costs as much as 20 copies.
TURN_COPIES: Final = 16_384
TURN_ROWS: Final = 32
#: A turn forgets so many subscriptions of clients that are gone, in about a millisecond.
TURN_REMOVALS: Final = 200
#: What a plan takes, and more for each kind of copies, for each receiver, and for each client with the option no local.
_PLAN_BYTES: Final = 60
_KIND_BYTES: Final = 160
_RECEIVER_BYTES: Final = 8
_OWN_BYTES: Final = 80


class MqttReceiver(Receiver, Protocol):
    """A client of MQTT; what is said here does not change while it has subscriptions."""

    @property
    def name(self) -> str:
        """Its client name."""

    @property
    def vpn(self) -> str:
        """The Message VPN in which it is."""

    @property
    def version(self) -> int:
        """The version that it speaks."""

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet that it takes; 0 if it takes any."""

    @property
    def is_taking_retained(self) -> bool:
        """Whether something that `take_retained` was given waits for its acknowledgements."""

    def begin_retained(self) -> None:
        """Hold back what comes of queues: what is retained is read for a subscription with QoS 1 or 2."""

    def take_retained(self, subscription: MqttSubscription, rows: Sequence[Row], now: float) -> None:
        """Send what was read for that subscription, each message with its QoS."""

    def end_retained(self, now: float) -> None:
        """Hold back nothing more for that: all is read."""


class MqttSubscription(msgspec.Struct, frozen=True, eq=False):
    """A subscription of a client; another one takes its place if its options change."""

    receiver: MqttReceiver
    options: Subscription
    identifier: int | None = None


class _Copies(msgspec.Struct, frozen=True):
    """Clients that get the same bytes."""

    receivers: tuple[MqttReceiver, ...]
    version: int
    #: Whether the flag retain is as it was published.
    keeps_retain: bool
    #: The properties that only they get.
    extra: bytes
    #: The largest packet that all of them take; 0 if they take any.
    packet_bytes_max: int

    def without(self, name: str) -> _Copies:
        """Give the same for all but one client."""
        others = tuple([receiver for receiver in self.receivers if receiver.name != name])
        return msgspec.structs.replace(self, receivers=others)


class _Plan(msgspec.Struct, frozen=True):
    """What happens to rows of a topic."""

    #: As packets have it; None if MQTT cannot say it.
    topic: bytes | None
    copies: tuple[_Copies, ...]
    #: Clients that do not want all that they send themselves, by name: their other subscriptions.
    own: dict[str, tuple[MqttSubscription, ...]] | None

    def bytes(self) -> int:
        """Give what it takes while it is kept."""
        receivers = sum([len(one.receivers) for one in self.copies])
        own = sum([_OWN_BYTES + _RECEIVER_BYTES * len(others) for others in (self.own or {}).values()])
        return _PLAN_BYTES + _KIND_BYTES * len(self.copies) + _RECEIVER_BYTES * receivers + own


class Delivering:
    """Deliveries of one Message VPN."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._fan_out: FanOut[MqttSubscription, _Plan] = FanOut(_plan, _Plan.bytes)
        #: Packets by client that were not handed over yet; empty between two calls.
        self._gathered: dict[MqttReceiver, list[bytes]] = {}
        #: What this turn has done.
        self._turn_rows = self._turn_copies = 0
        #: Rows for which it had no time, in their order, each iterator at its first one, and what is called then.
        self.waiting: deque[tuple[Iterator[Row], Callable[[float], None] | None]] = deque()
        #: Subscriptions of clients that are gone, by topic filter; what comes for these reaches nobody.
        self._left: deque[dict[str, MqttSubscription]] = deque()
        #: Told the topic of each message that came to be retained, and that somebody gets.
        self.on_retained: Callable[[str], None] = lambda _topic: None

    def add(self, subscription: MqttSubscription) -> None:
        """Let a subscription that is not shared get what its filter matches."""
        for pattern in filters_of(subscription.options.filter):
            self._fan_out.add(pattern, subscription)

    def remove(self, subscription: MqttSubscription) -> None:
        """Let it get nothing more.

        Raises:
            KeyError: it was not added.
        """
        for pattern in filters_of(subscription.options.filter):
            self._fan_out.remove(pattern, subscription)

    def forget(self, subscriptions: dict[str, MqttSubscription]) -> None:
        """Remove these some at a time: their client is gone, and may have had very many. The dict is emptied."""
        self._left.append(subscriptions)

    def _remove_left(self) -> None:
        for _ in range(TURN_REMOVALS):
            if not self._left:
                return
            text, subscription = self._left[0].popitem()
            if not self._left[0]:
                self._left.popleft()
            if not shared(text) and not subscription.options.qos:
                self.remove(subscription)

    def deliver(self, rows: Iterable[Row], now: float) -> None:
        """Send rows to all clients whose subscriptions match; perhaps not all of them in this turn."""
        self.waiting.append((iter(rows), None))
        if len(self.waiting) == 1:
            self._go_on(now)

    def begin_turn(self, now: float) -> bool:
        """Go on with what the last turn had no time for; true if some of it waits for the next one."""
        self._turn_rows = self._turn_copies = 0
        self._fan_out.begin_turn()
        if self._left:
            self._remove_left()
        if self.waiting:
            self._go_on(now)
        return bool(self.waiting or self._left)

    def _go_on(self, now: float) -> None:
        """Send what waits, as far as the turn goes."""
        find = self._fan_out.find
        while self.waiting and not self._is_over():
            rows, then = self.waiting[0]
            for row in rows:
                plan = find(row[1])
                if plan is None:
                    self.waiting[0] = (chain((row,), rows), then)
                    break
                if plan.copies:
                    if row[2] & wire.FLAG_RETAIN:
                        self.on_retained(row[1])
                    self._gather(row, plan)
                    if self._turn_copies >= TURN_COPIES and self._is_over():
                        break
            else:
                self.waiting.popleft()
                if then is not None:
                    then(now)
        self._hand_over(now)

    def _is_over(self) -> bool:
        had_many = self._turn_copies >= TURN_COPIES and self._turn_rows >= TURN_ROWS
        return had_many or self._fan_out.is_over

    @property
    def is_idle(self) -> bool:
        """Whether there are no subscriptions, and nothing waits."""
        return not (self._fan_out or self.waiting or self._left)

    def behind(self, then: Callable[[float], None], now: float) -> None:
        """Call this when all rows are delivered that came before, with the time."""
        if self.waiting:
            self.waiting.append((iter(()), then))
        else:
            then(now)

    def deliver_to(self, subscriptions: Sequence[MqttSubscription], rows: Sequence[Row], now: float) -> None:
        """Send rows to the client of some subscriptions, which may be shared; all of them match."""
        for row in rows:
            self._gather(row, _plan(row[1], subscriptions))
        self._hand_over(now)

    def _gather(self, row: Row, plan: _Plan) -> None:
        """Gather the copies of one row."""
        copies, topic = plan.copies, plan.topic
        self._turn_rows += 1
        if topic is None:
            _count_all(copies, "discard.topic-not-mqtt")
            return
        if plan.own is not None:
            copies = _copies_of_others(row, plan, plan.own)
        gathered = self._gathered
        for one in copies:
            section = publish_section(row) if one.version == V5 else b""
            flags = publish.RETAIN if one.keeps_retain and row[2] & wire.FLAG_RETAIN else 0
            data = publish.direct(topic, section, row[5], one.version, flags, one.extra)
            if one.packet_bytes_max and len(data) > one.packet_bytes_max:
                one = _takers(one, len(data))
            for receiver in one.receivers:
                packets = gathered.get(receiver)
                if packets is None:
                    gathered[receiver] = [data]
                else:
                    packets.append(data)
            self._turn_copies += len(one.receivers)

    def _hand_over(self, now: float) -> None:
        put = self._egress.put
        for receiver, packets in self._gathered.items():
            put(receiver, packets, now)
        self._gathered.clear()

    def sweep(self, now: float) -> None:
        """Do one step of forgetting topics that nobody publishes to."""
        self._fan_out.sweep(now)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert not self._gathered
        self._fan_out.validate()


def _plan(topic: str, subscriptions: Sequence[MqttSubscription]) -> _Plan:
    """Say what happens to rows of a topic that some subscriptions match."""
    name = mqtt_topic_of(topic)
    if name is None and topic.startswith("#"):
        return _Plan(None, (), None)
    written = None if name is None else fields.text(name)
    return _Plan(written, _copies(subscriptions), _own(subscriptions) or None)


def _own(subscriptions: Sequence[MqttSubscription]) -> dict[str, tuple[MqttSubscription, ...]]:
    """Give the clients with the option no local, by name, and those of their subscriptions without it."""
    own: dict[str, list[MqttSubscription]] = {
        one.receiver.name: [] for one in subscriptions if one.options.no_local
    }
    for one in subscriptions if own else ():
        if one.receiver.name in own and not one.options.no_local:
            own[one.receiver.name].append(one)
    return {name: tuple(others) for name, others in own.items()}


def _copies(subscriptions: Sequence[MqttSubscription]) -> tuple[_Copies, ...]:
    """Give the kinds of copies, and who gets them."""
    by_receiver: dict[MqttReceiver, list[MqttSubscription]] = {}
    for one in subscriptions:
        by_receiver.setdefault(one.receiver, []).append(one)
    kinds: dict[tuple[int, bool, bytes], list[MqttReceiver]] = {}
    for receiver, matching in by_receiver.items():
        keeps_retain = any(one.options.retain_as_published for one in matching)
        identifiers = dict.fromkeys(one.identifier for one in matching if one.identifier)
        extra = publish.subscription_identifiers(identifiers) if identifiers else b""
        kinds.setdefault((receiver.version, keeps_retain, extra), []).append(receiver)
    return tuple([_Copies(tuple(who), *kind, _smallest(who)) for kind, who in kinds.items()])


def _smallest(receivers: Sequence[MqttReceiver]) -> int:
    """Give the size of packets that all of some clients take; 0 if they take any."""
    return min([one.packet_bytes_max for one in receivers if one.packet_bytes_max], default=0)


def _copies_of_others(
    row: Row, plan: _Plan, own: dict[str, tuple[MqttSubscription, ...]]
) -> tuple[_Copies, ...]:
    """Give the copies of a row without those that its sender does not want [MQTT-3.8.3-3]."""
    sender = sender_of(row)
    if sender is None or sender not in own:
        return plan.copies
    return *[one.without(sender) for one in plan.copies], *_copies(own[sender])


def _takers(copies: _Copies, size: int) -> _Copies:
    """Give those who take a packet of a size; to the others it is as if it had been sent [MQTT-3.1.2-25]."""
    able = [one for one in copies.receivers if not 0 < one.packet_bytes_max < size]
    for one in copies.receivers:
        if 0 < one.packet_bytes_max < size:
            one.count("discard.packet-too-large")
    return msgspec.structs.replace(copies, receivers=tuple(able))


def _count_all(copies: Sequence[_Copies], name: str) -> None:
    for one in copies:
        for receiver in one.receivers:
            receiver.count(name)


def retained_frame(row: Row, subscription: MqttSubscription, qos: int) -> publish.Frame | None:
    """Write a row that is retained as a PUBLISH for a new subscription [MQTT-3.3.1-8]; None if it cannot have it."""
    name, receiver = mqtt_topic_of(row[1]), subscription.receiver
    if name is None or (subscription.options.no_local and sender_of(row) == receiver.name):  # [MQTT-3.8.3-3]
        return None
    section = publish_section(row) if receiver.version == V5 else b""
    identifier = subscription.identifier
    extra = publish.subscription_identifiers([identifier]) if identifier else b""
    message = publish.Message(fields.text(name), section, row[5], receiver.version)
    framed = publish.frame(message, publish.RETAIN | qos << 1, extra)
    is_too_large = 0 < receiver.packet_bytes_max < publish.frame_size(framed, qos)
    return None if is_too_large else framed
