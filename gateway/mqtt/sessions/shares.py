"""The shared subscriptions of a client with QoS 1 or 2: a queue for each, from which all who share its filter take.

The node gives each message to one member. One that goes gives back what it has not acknowledged, and another gets that,
with DUP: so packet identifiers do not follow from positions here, they are given out for a connection, beyond those
of its session.

With QoS 2 a message of a session that ends with its connection is done with at its PUBCOMP, since only then the client
has it for certain: a client that is gone after its PUBREC may not have passed it on, and nobody would say PUBREL on its
next connection. A session that is kept holds it (`holding`), and finishes it on whatever connection; what it holds of a
filter that it shares no more, too (`left`).

The window of each flow is the client's receive maximum. If several of them, and the session, bring more than that
together, what came last waits here, in its order.

A step for each thing that is asked, as in the session. No I/O, no clock.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors
from angarium.client.protocol.flow_window import FlowWindow, is_passing
from angarium.errors import error_for
from gateway.attached import nothing
from gateway.mqtt.codec import publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import MqttSubscription
from gateway.mqtt.sessions.holding import Holding, decode_holding
from gateway.mqtt.sessions.packets import came_of, packet_of, written
from gateway.mqtt.sessions.unacknowledged import IDS_OF_SHARES, Numbered
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.errors import AngariumError
    from gateway.asking import Done
    from gateway.attached import Attached
    from gateway.mqtt.sessions.holding import Exchange
    from gateway.mqtt.sessions.host import SessionHost, SessionOwner
    from gateway.mqtt.sessions.packets import Came, Packet
    from gateway.mqtt.sessions.unacknowledged import Awaited, InFlight

#: Of one client: their windows together are a part of what may wait for it.
SHARES_MAX: Final = 32
#: Messages that a session may hold of all queues, with those between PUBREC and PUBCOMP.
HOLDINGS_MAX: Final = 1_000
#: Pause before a flow is bound again.
BIND_AGAIN_S: Final = 0.5


class _Named(msgspec.Struct):
    """What the node says of a queue that is shared."""

    name: str


_decode_named: Final = msgspec.msgpack.Decoder(_Named).decode


class _Share:
    """One of them."""

    __slots__ = ("bind_at", "holding", "name", "out", "subscription", "window")

    def __init__(self, subscription: MqttSubscription, name: str, holding: Holding | None) -> None:
        self.subscription = subscription
        #: Of its queue.
        self.name = name
        #: What its session holds of it, if that is kept.
        self.holding = holding
        #: The credit of the flow that is bound, or about to be; None without one.
        self.window: FlowWindow | None = None
        #: When the flow is bound again.
        self.bind_at = math.inf
        #: Packet identifiers of its messages on their way that are not held, by position.
        self.out: dict[int, int] = {}


class _Out(NamedTuple):
    """A message on its way."""

    share: _Share
    position: int
    size_bytes: int
    #: Of the flow that brought it last.
    window: FlowWindow


class _Waiting(NamedTuple):
    """A message that waits for room."""

    share: _Share
    came: Came


class Shares:
    """Those of one connection."""

    __slots__ = (
        "_answers",
        "_attached",
        "_expiry_s",
        "_held",
        "_holdings",
        "_host",
        "_in_flight",
        "_is_kept",
        "_joining",
        "_left",
        "_on_left",
        "_out",
        "_owner",
        "_shares",
    )

    def __init__(
        self,
        owner: SessionOwner,
        attached: Attached,
        host: SessionHost,
        in_flight: InFlight,
        expiry_s: int,
        on_left: Callable[[], None] | None,
    ) -> None:
        """Have none.

        Args:
            owner: the client.
            attached: the same at the node.
            host: its process.
            in_flight: what it was sent.
            expiry_s: for how long its session outlives the connection.
            on_left: is told that `left` has changed; None: the session is not kept.
        """
        self._owner = owner
        self._attached = attached
        self._host = host
        self._in_flight = in_flight
        self._expiry_s = expiry_s
        self._is_kept = on_left is not None
        self._on_left = on_left or nothing
        #: By the name of the queue: those that it shares no more, and of which it holds something.
        self._left: dict[str, _Share] = {}
        #: Packet identifiers of messages that are held, each with what holds it.
        self._holdings: dict[int, Holding] = {}
        #: By topic filter.
        self._shares: dict[str, _Share] = {}
        #: How many are asked for, and what is known of those that were wanted last.
        self._joining = 0
        self._answers: dict[str, int] = {}
        #: Messages on their way; all of them count as in flight.
        self._out: Numbered[_Out] = Numbered(IDS_OF_SHARES, self._holdings)
        #: Messages without room, the oldest first.
        self._held: list[_Waiting] = []

    # -- members ---------------------------------------------------------------------------------------------

    def join(self, subscriptions: Iterable[MqttSubscription]) -> dict[str, int] | None:
        """Have the queues of topic filters: 0 or an error code for each; None: its owner is told that by `changed`.

        For each 0 `add` or `remove` follows.
        """
        assert not self._joining
        wanted = {one.options.filter: one for one in subscriptions}
        new = [one for text, one in wanted.items() if text not in self._shares]
        room = SHARES_MAX - len(self._shares)
        self._answers = dict.fromkeys(wanted, 0)
        self._answers |= {one.options.filter: errors.MAX_SUBSCRIPTIONS_EXCEEDED for one in new[room:]}
        self._joining = len(new[:room])
        for one in new[:room]:
            self._ask_for(one, partial(self._joined, one))
        return None if self._joining else self._answers

    def _ask_for(self, subscription: MqttSubscription, done: Done) -> None:
        text = subscription.options.filter
        arguments = {"filter": text, "filters": filters_of(text), "expiry_s": self._expiry_s}
        self._attached.request("session.share", arguments, done, _decode_named)

    def _joined(
        self, subscription: MqttSubscription, value: _Named | None, error: AngariumError | None, now: float
    ) -> None:
        text = subscription.options.filter
        if value is None:
            assert error is not None
            self._answers[text] = error.code
        elif (share := self._left.pop(value.name, None)) is not None:
            self._revive(share, subscription)
        else:
            share = self._shares[text] = self._new(subscription, value.name)
            if share.holding is not None:
                self._read(share, partial(self._noted, share))
                return
        self._has_joined(now)

    def _has_joined(self, now: float) -> None:
        self._joining -= 1
        if not self._joining:
            self._owner.changed(self._answers, now)

    def _new(self, subscription: MqttSubscription, name: str) -> _Share:
        holding = None
        if self._is_kept:
            holding = Holding(
                self._owner,
                self._attached,
                self._in_flight,
                name,
                self._holdings,
                self._send_held,
                self._wake,
            )
            holding.note.on_written = self._written
        return _Share(subscription, name, holding)

    def _read(self, share: _Share, done: Done) -> None:
        """Ask for what the session holds of a queue."""
        self._attached.request("session.note", {"share": share.name}, done, decode_holding)

    def _noted(
        self,
        share: _Share,
        value: tuple[bytes, list[int]] | None,
        error: AngariumError | None,
        now: float,
    ) -> None:
        """Go on with what the session holds of a queue; without that nothing may be sent."""
        if value is None:
            assert error is not None
            self._owner.end(error, now)
            return
        assert share.holding is not None
        share.holding.load(*value, now)
        self._has_joined(now)

    # -- what it shares no more ------------------------------------------------------------------------------

    @property
    def left(self) -> list[str]:
        """The queues that it shares no more, and of which it holds something."""
        return list(self._left)

    def load_left(self, names: Iterable[str]) -> None:
        """Finish what an earlier connection held of queues that are not shared any more."""
        for name in names:
            options = MqttSubscription(self._owner, Subscription(name, 2), None)
            share = self._left[name] = self._new(options, name)
            self._read(share, partial(self._left_noted, share))

    def _left_noted(
        self,
        share: _Share,
        value: tuple[bytes, list[int]] | None,
        error: AngariumError | None,
        now: float,
    ) -> None:
        assert share.holding is not None
        if value is not None:
            share.holding.load(*value, now)
        elif error is not None and error.code != errors.UNKNOWN_ENDPOINT:
            self._owner.end(error, now)
            return
        if share.name in self._left:
            self._finish(share)

    def _finish(self, share: _Share) -> None:
        """Leave a queue as soon as nothing of it is held, and take from it only what is."""
        assert share.holding is not None
        if not share.holding:
            self._unbind(share)
            self._left.pop(share.name, None)
            share.holding.stop()
            self._on_left()
            return
        self._left[share.name] = share
        share.holding.leave(partial(self._finish, share))
        if share.holding.awaits and share.window is None:
            self._bind(share)
        elif not share.holding.awaits:
            self._unbind(share)

    def _revive(self, share: _Share, subscription: MqttSubscription) -> None:
        """Share a queue again."""
        assert share.holding is not None
        share.subscription = subscription
        share.holding.stay()
        self._unbind(share)  # what the flow has brought is for all who share it
        self._shares[subscription.options.filter] = share
        self._on_left()

    def add(self, subscription: MqttSubscription) -> None:
        """Let messages of a queue go by a subscription, in place of that with the same topic filter."""
        share = self._shares[subscription.options.filter]
        share.subscription = subscription
        if share.window is None and share.bind_at == math.inf:
            self._bind(share)

    def remove(self, subscription: MqttSubscription) -> None:
        """Take nothing more from a queue, and give back what is not acknowledged."""
        share = self._shares.pop(subscription.options.filter)
        if share.holding:
            self._finish(share)
            self._on_left()
        else:
            self._unbind(share)
            if share.holding is not None:
                share.holding.stop()

    def _unbind(self, share: _Share) -> None:
        window = share.window
        self._lose(share)
        share.bind_at = math.inf
        if window is not None:
            self._attached.unbind(window)

    def clear(self) -> list[dict[str, Any] | None]:
        """Give back what they took of the process: the connection is over. Gives what is to be kept last."""
        for share in self._all():
            self._lose(share)
        last = [share.holding.stop() for share in self._all() if share.holding is not None]
        self._holdings.clear()
        return last

    def _all(self) -> list[_Share]:
        return [*self._shares.values(), *self._left.values()]

    @property
    def holds(self) -> bool:
        """Whether something is held."""
        return bool(self._holdings or self._left)

    def away(self) -> None:
        """Be a member of all again, when the client is attached again."""
        for share in self._shares.values():
            if share.window is not None:
                share.window.flow = 0
            self._lose(share)
            self._ask_for(share.subscription, self._joined_again)
            if share.holding is not None:
                self._read(share, self._compared)
            self._bind(share)

    def _compared(
        self, value: tuple[bytes, list[int]] | None, error: AngariumError | None, now: float
    ) -> None:
        """End if another connection went on with the session: this one held nothing."""
        if error is not None:
            self._owner.end(error, now)
        elif value is not None and any(value):
            self._owner.end(error_for(errors.TAKEN_OVER), now)

    def _joined_again(self, _value: _Named | None, error: AngariumError | None, now: float) -> None:
        """End if the client may not share any more; whatever else stands in the way does so to its flow, too."""
        if error is not None and not is_passing(error.code):
            self._owner.end(error, now)

    # -- flows -----------------------------------------------------------------------------------------------

    def _bind(self, share: _Share) -> None:
        share.bind_at = math.inf
        window = share.window = FlowWindow(self._in_flight.messages_max, self._host.credit.take())

        def bound(_value: Any, error: AngariumError | None, now: float) -> None:
            if error is not None and share.window is window:
                self._unbound(share, error, now)

        self._attached.bind(window, {"name": share.name}, bound)

    def _unbound(self, share: _Share, error: AngariumError, now: float) -> None:
        """Bind again after a while, or end the connection."""
        self._lose(share)
        if is_passing(error.code):
            share.bind_at = now + BIND_AGAIN_S
            self._wake(share.bind_at)
        elif error.code == errors.UNKNOWN_ENDPOINT:
            detail = f"{share.name} was deleted"
            self._owner.end(error_for(errors.DISCONNECTED_BY_OPERATOR, detail), now)
        else:
            self._owner.end(error, now)

    def _wake(self, at: float) -> None:
        self._host.wake(self._owner.connection_id, at)

    def _lose(self, share: _Share) -> None:
        """Be without a flow: what waits of it comes to others, and what is on its way may, too."""
        if share.window is not None:
            self._host.credit.give_back(share.window.bytes_max)
            share.window = None
        self._held = [one for one in self._held if one.share is not share]

    def flow_closed(self, event: Indicated, now: float) -> None:
        """Take note that a flow is over."""
        for share in self._all():
            if event.window is share.window:
                self._unbound(share, error_for(event.code or errors.HOME_NOT_READY, event.detail), now)

    def tick(self, now: float) -> None:
        """Do again what could not be done, if it is time for that."""
        for share in self._all():
            if share.bind_at <= now:
                self._bind(share)
            if share.holding is not None:
                share.holding.note.tick(now)

    # -- messages --------------------------------------------------------------------------------------------

    def take(self, event: Arrived, now: float) -> bool:
        """Send what came, as far as there is room; false if the client takes too little."""
        for share in self._all():
            if share.window is event.window:
                self._held += [_Waiting(share, one) for each in event.deliveries for one in came_of(each)]
        return self.go_on(now)

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if there is none."""
        holding = self._holdings.get(packet_id)
        return self._out.awaited(packet_id) if holding is None else holding.awaited(packet_id)

    def received(self, packet_id: int, code: int, now: float) -> None:
        """Take a PUBREC; `go_on` follows."""
        if packet_id in self._holdings:
            self._holdings[packet_id].received(packet_id, code, now)
        elif self._out.receive(packet_id, code, self._owner, now):
            self.acknowledged(packet_id)

    def completed(self, packet_id: int, now: float) -> None:
        """Take a PUBCOMP; `go_on` follows."""
        if packet_id in self._holdings:
            self._holdings[packet_id].completed(packet_id, now)
        elif self._out.is_released(packet_id):
            self.acknowledged(packet_id)

    def acknowledged(self, packet_id: int) -> None:
        """Take a PUBACK, whatever it says; `go_on` follows."""
        out = self._out.take(packet_id)
        if out is not None:
            del out.share.out[out.position]
            self._in_flight.remove(out.size_bytes)
            self._attached.accept(out.window, out.position)
            out.window.take(1, out.size_bytes)

    def go_on(self, now: float) -> bool:
        """Send what need not wait, in one piece; false as above."""
        passed = 0
        packets: list[bytes] = []
        while passed < len(self._held) and self._has_room:
            packets += self._send(*self._held[passed], now)
            passed += 1
        del self._held[:passed]
        if self._held and len(self._holdings) >= HOLDINGS_MAX:
            for holding in dict.fromkeys(self._holdings.values()):
                holding.note.hurry()
        for share in self._left.values():
            if share.window is not None and share.holding is not None and not share.holding.awaits:
                self._unbind(share)
        return not packets or self._host.send_guaranteed(self._owner, b"".join(packets), now)

    @property
    def _has_room(self) -> bool:
        """Whether another message may be on its way; who says no PUBCOMP, over many connections, gets no more."""
        return self._in_flight.has_room and len(self._holdings) < HOLDINGS_MAX

    def _written(self, now: float) -> None:
        """Use the room of what is remembered to be over."""
        if not self.go_on(now):
            self._owner.end(errors.error_for(errors.EGRESS_BLOCKED), now)

    def _send_held(self, parts: list[bytes], now: float) -> None:
        if not self._host.send_guaranteed(self._owner, b"".join(parts), now):
            self._owner.end(errors.error_for(errors.EGRESS_BLOCKED), now)

    def _send(self, share: _Share, came: Came, now: float) -> list[bytes]:
        """Give the parts of a packet; none if the client does not get the message, has it, or gets it later."""
        if came.position in share.out:
            return self._came_again(share, came)
        known = None if share.holding is None else share.holding.find(came.position)
        if known is not None:
            return self._held_came_again(share, known, came, now)
        if share.name in self._left:
            return []  # it is for others
        packet = self._packet(share, came, share.subscription.options.qos)
        if packet is None or not packet.qos:
            self._attached.accept(came.window, came.position)
            came.window.take(1, came.size_bytes)
            return [] if packet is None else packet.parts(0)
        if packet.qos > 1 and share.holding is not None:
            packet_id = self._out.free_id()
            share.holding.begin(packet_id, came, packet.parts(packet_id), now)
            return []
        packet_id = self._out.add(_Out(share, came.position, came.size_bytes, came.window), packet.qos)
        share.out[came.position] = packet_id
        self._in_flight.add(came.size_bytes)
        return packet.parts(packet_id)

    def _held_came_again(self, share: _Share, known: Exchange, came: Came, now: float) -> list[bytes]:
        """Give the parts of a packet that an earlier connection has sent, as far as it is known."""
        assert share.holding is not None
        if not share.holding.came_again(known, came):
            return []
        packet = self._packet(share, came._replace(is_again=True), 2)
        if packet is None:
            share.holding.release(known, now)
            return []
        return packet.parts(known.packet_id)

    def _packet(self, share: _Share, came: Came, granted: int) -> Packet | None:
        """Write a message; None if the client cannot get it."""
        one, topic = share.subscription, written(came.row[1])
        if topic is None:
            self._owner.count("discard.topic-not-mqtt")
            return None
        extra = publish.subscription_identifiers([one.identifier]) if one.identifier else b""
        keeps_retain = one.options.retain_as_published
        return packet_of(
            came, topic, self._owner, extra, self._host, keeps_retain=keeps_retain, granted=granted
        )

    def _came_again(self, share: _Share, came: Came) -> list[bytes]:
        """Take note that a flow brought what is on its way: nothing is sent twice [MQTT-4.4.0-1]."""
        packet_id = share.out[came.position]
        known = self._out[packet_id]
        self._out[packet_id] = known._replace(window=came.window)
        if known.window is came.window:
            came.window.take(1, came.size_bytes)  # twice in one flow: it is accepted once
        return []

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._shares) + self._joining <= SHARES_MAX
        self._out.validate()
        assert not self._held or not self._has_room
        assert all(one.share.window is one.came.window for one in self._held)
        for share in self._all():
            assert share.window is None or share.bind_at == math.inf
            if share.holding is not None:
                share.holding.validate()
            assert all(self._out[packet_id].position == one for one, packet_id in share.out.items())
