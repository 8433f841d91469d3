"""Messages of the queue of a session on their way to its client, with QoS 1 or 2, or 0 if they were published so.

A message is done with, so that the queue deletes it, when the client has acknowledged it; with QoS 0, or if the client
cannot have it, when its turn has come. What is sent counts as taken when it is done with: so never more is on its way
than the window of the flow allows, which the client's receive maximum bounds [MQTT-3.3.4-9].

They are sent in the order of the queue [MQTT-4.6.0-5]: one that has to wait holds up those behind it. Where
subscriptions have options it is looked up which of them a message is for. That takes several turns of the process if
very many match, and all sessions share these (`gateway.fanout.Lookups`).

With QoS 2 a message is done with at its PUBREC. That it will not be sent again is remembered, in one write with its
deletion, before PUBREL is said; and that PUBREL is to be said on the next connection too, until PUBCOMP came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.errors import error_for
from angarium.trie import FilterTrie, Walk
from gateway.attached import nothing
from gateway.mqtt.codec import publish
from gateway.mqtt.codec.acknowledge import PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.messages import sender_of
from gateway.mqtt.sessions.note import NoNote
from gateway.mqtt.sessions.packets import Came, came_of, packet_of, written
from gateway.mqtt.sessions.unacknowledged import FAILURE, Out, Unacknowledged, Verdict, packet_id_of
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium.client.protocol.messages import GuaranteedDelivery
    from gateway.attached import Attached
    from gateway.mqtt.delivering import MqttSubscription
    from gateway.mqtt.sessions.host import SessionHost, SessionOwner
    from gateway.mqtt.sessions.note import Keeping, State
    from gateway.mqtt.sessions.unacknowledged import Awaited, InFlight, Released

#: Messages after their PUBREC of a client that does not say PUBCOMP, over many connections.
RELEASED_MAX: Final = 1_000
#: Above all positions.
ALL: Final = (1 << 63) - 1


class Outgoing:
    """Those of one connection."""

    __slots__ = (
        "_attached",
        "_has_all",
        "_held",
        "_host",
        "_in_flight",
        "_keeping",
        "_receiver",
        "_special",
        "_subscriptions",
        "_trie",
        "_unacknowledged",
        "_walk",
        "exact",
        "is_put_off",
    )

    def __init__(
        self, receiver: SessionOwner, attached: Attached, host: SessionHost, in_flight: InFlight
    ) -> None:
        self._receiver = receiver
        self._keeping: Keeping = NoNote()
        self._in_flight = in_flight
        self._attached = attached
        self._host = host
        #: The subscriptions whose filters the queue has, by topic filter.
        self._subscriptions: dict[str, MqttSubscription] = {}
        #: How many of them have options that matter; and if any have, the subscriptions by their filters.
        self._special = 0
        self._trie: FilterTrie[MqttSubscription] | None = None
        #: The topic of which it is being looked up which subscriptions match it: for that a turn was too short.
        self._walk: tuple[str, Walk[MqttSubscription]] | None = None
        #: Whether `go_on` has something to do in the next turn.
        self.is_put_off = False
        #: What comes again, up to this position, comes with QoS 2 if it was published so, whatever is subscribed to.
        self.exact = 0
        #: Whether all has come that was sent on earlier connections: there is none, or a message was not sent before.
        self._has_all = True
        self._unacknowledged = Unacknowledged()
        #: Those that wait, the oldest first: the first one for its packet identifier.
        self._held: list[Came] = []

    # -- what the client has subscribed to -------------------------------------------------------------------

    def add(self, subscription: MqttSubscription) -> None:
        """Let a subscription have what the queue brings, in place of that with the same topic filter."""
        text = subscription.options.filter
        before = self._subscriptions.get(text)
        if before is not None:
            self._take_out(before)
            if _asks_for_less(subscription, before):
                self._keep_exact()
        self._subscriptions[text] = subscription
        if _is_special(subscription):
            self._special += 1
        if self._trie is not None:
            _file(self._trie, subscription)
        elif self._special:
            self._trie = FilterTrie()
            for one in self._subscriptions.values():
                _file(self._trie, one)

    def remove(self, subscription: MqttSubscription) -> None:
        """Forget a subscription."""
        self._take_out(subscription)
        if subscription.options.qos > 1:
            self._keep_exact()

    def _take_out(self, subscription: MqttSubscription) -> None:
        del self._subscriptions[subscription.options.filter]
        if self._trie is not None:
            for pattern in filters_of(subscription.options.filter):
                self._trie.remove(pattern, subscription)
        if _is_special(subscription):
            self._special -= 1
            if not self._special:
                self._trie = self._walk = None

    def expect(self, subscriptions: Iterable[MqttSubscription]) -> None:
        """Take note of those that are about to be in force: the connection may end before `add` says that they are."""
        here = self._subscriptions
        if any(_asks_for_less(one, here.get(one.options.filter)) for one in subscriptions):
            self._comes_exactly(ALL)

    def _keep_exact(self) -> None:
        """Have what was sent with QoS 2 come again with that: its client would take it twice."""
        self._comes_exactly(self._unacknowledged.last_exact if self._has_all else ALL)

    def _comes_exactly(self, upto: int) -> None:
        before, self.exact = self.exact, upto
        if upto > before:  # what is remembered may be too much, and is less with the next write
            self._keeping.after(nothing, 0.0)

    # -- messages --------------------------------------------------------------------------------------------

    def take(self, deliveries: Sequence[GuaranteedDelivery], now: float) -> bool:
        """Send what came; false if the client takes too little."""
        for delivery in deliveries:
            self._held += came_of(delivery)
        return self.go_on(now)

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if there is none."""
        return self._unacknowledged.awaited(packet_id)

    def acknowledged(self, packet_id: int) -> None:
        """Take a PUBACK, whatever it says: the client will not get the message again; `go_on` follows."""
        out = self._unacknowledged.acknowledged(packet_id)
        if out is not None:
            self._in_flight.remove(out.size_bytes)
            self._attached.accept(out.window, out.position)
            out.window.take(1, out.size_bytes)

    def keep_by(self, keeping: Keeping, state: State, *, is_new: bool) -> None:
        """Remember what is released, and go on with what was on an earlier connection."""
        self._keeping = keeping
        self.exact, self._has_all = state.exact, is_new
        self._unacknowledged.load(state.released)

    def resume(self, now: float) -> None:
        """Say PUBREL again of what an earlier connection has released [MQTT-4.4.0-1]."""
        for one in self._unacknowledged.all_released():
            self._say_released(one, now)

    @property
    def released(self) -> list[int]:
        """The positions that are to be remembered."""
        return [one.position for one in self._unacknowledged.all_released()]

    @property
    def done(self) -> list[int]:
        """Those of them that are to be deleted with that."""
        return [one.position for one in self._unacknowledged.all_released() if not one.is_written]

    def received(self, packet_id: int, code: int, now: float) -> None:
        """Take a PUBREC: the client has the message, or does not want it; `go_on` follows."""
        if code >= FAILURE:
            self.acknowledged(packet_id)
            return
        one = self._unacknowledged.release(packet_id)
        if one is None:
            known = self._unacknowledged.released(packet_id)
            if known is None:
                self._receiver.released(PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), now)
            elif known.is_told:
                self._receiver.released(PubRel(packet_id), now)
            return
        assert one.out is not None
        if not self._keeping.deletes:
            self._attached.accept(one.out.window, one.position)
        self._keeping.after(lambda then: self._written(one, then), now)

    def _written(self, one: Released, now: float) -> None:
        one.is_written = True
        self._say_released(one, now)

    def _say_released(self, one: Released, now: float) -> None:
        one.is_told = True
        self._receiver.released(PubRel(packet_id_of(one.position)), now)

    def completed(self, packet_id: int, now: float) -> None:
        """Take a PUBCOMP: the identifier is free as soon as that is remembered; `go_on` follows."""
        one = self._unacknowledged.released(packet_id)
        if one is None or not one.is_told:
            return
        if one.out is not None:
            self._in_flight.remove(one.out.size_bytes)
            one.out.window.take(1, one.out.size_bytes)
            self._attached.renew(one.out.window)
        self._unacknowledged.complete(packet_id)
        self._keeping.later(lambda then: self._forget(packet_id, then), now)

    def _forget(self, packet_id: int, now: float) -> None:
        self._unacknowledged.forget(packet_id)
        if not self.go_on(now):
            self._receiver.end(error_for(errors.EGRESS_BLOCKED), now)

    def go_on(self, now: float) -> bool:
        """Send what need not wait, in one piece; false as above."""
        if not self._held:
            return True
        self.is_put_off = False
        passed = 0
        packets: list[bytes] = []
        for came in self._held:
            verdict = self._unacknowledged.judge(came.position)
            if verdict is Verdict.SEND and self._has_room:
                matching = self._matching(came.row[1])
                if matching is None:
                    self.is_put_off = True
                    break
                self._unacknowledged.passed(came.position)
                packets += self._send(came, matching)
            elif verdict is Verdict.SEND or verdict is Verdict.WAIT:
                if self._unacknowledged.is_held(came.position):
                    self._keeping.hurry()
                break
            elif verdict is Verdict.DONE:
                self._finish(came)
            elif not self._unacknowledged.came_again(came.position, came.window):
                came.window.take(1, came.size_bytes)  # twice in one flow: it is accepted once
            passed += 1
        del self._held[:passed]
        return not packets or self._host.send_guaranteed(self._receiver, b"".join(packets), now)

    @property
    def _has_room(self) -> bool:
        """Whether another message may be on its way."""
        return self._in_flight.has_room and self._unacknowledged.released_count < RELEASED_MAX

    def interrupt(self) -> None:
        """Forget what waits: the flow is over, and the next one brings it again."""
        self._held.clear()
        self._walk, self.is_put_off = None, False

    def _finish(self, came: Came) -> None:
        """Be done with a message that is not, or no more, on its way."""
        self._attached.accept(came.window, came.position)
        came.window.take(1, came.size_bytes)

    def _matching(self, topic: str) -> dict[MqttSubscription, None] | None:
        """Give the subscriptions that match a topic, if they are told apart; None: the turn ends before that is known.

        `go_on` comes back to it in the next one. What the client gives back of its filters meanwhile is not among them.
        """
        trie, lookups = self._trie, self._host.lookups
        if trie is None:
            return {}
        if self._walk is None or self._walk[0] != topic:
            found = [*trie.exact(topic)]
            begun = lookups.search(trie, topic, found)
            if begun is None:
                return dict.fromkeys(found)
            self._walk = topic, begun
        walk = self._walk[1]
        if not lookups.go_on(walk):
            lookups.put_off(self._receiver.connection_id)
            return None
        self._walk = None
        here = self._subscriptions
        return {one: None for one in walk.found if here.get(one.options.filter) is one}

    def _send(self, came: Came, matching: dict[MqttSubscription, None]) -> list[bytes]:
        """Give the parts of a packet; none if the client does not get the message."""
        row = came.row
        topic = written(row[1])
        extra, keeps_retain, granted = b"", False, 1
        if topic is None:
            self._receiver.count("discard.topic-not-mqtt")
        elif self._trie is not None:
            if (
                matching
                and all(one.options.no_local for one in matching)
                and sender_of(row) == self._receiver.name
            ):
                topic = None  # [MQTT-3.8.3-3]
            keeps_retain = any(one.options.retain_as_published for one in matching)
            granted = max((one.options.qos for one in matching), default=1)
            extra = publish.subscription_identifiers(one.identifier for one in matching if one.identifier)
        if topic is None:
            self._finish(came)
            return []
        if came.is_again:
            granted = 2 if came.position <= self.exact else granted
        elif not self._has_all:
            self._has_all = True
            self.exact = min(self.exact, came.position - 1)
        packet = packet_of(
            came, topic, self._receiver, extra, self._host, keeps_retain=keeps_retain, granted=granted
        )
        if packet is None or not packet.qos:
            self._finish(came)
            return [] if packet is None else packet.parts(0)
        size = came.size_bytes
        self._in_flight.add(size)
        return packet.parts(self._unacknowledged.sent(Out(came.position, size, packet.qos, came.window)))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._unacknowledged.validate()
        assert self._special == sum(map(_is_special, self._subscriptions.values()))
        assert (self._trie is not None) == bool(self._special)
        verdict = self._unacknowledged.judge(self._held[0].position) if self._held else Verdict.WAIT
        assert verdict is Verdict.WAIT or not self._has_room or self.is_put_off


def _is_special(subscription: MqttSubscription) -> bool:
    """Tell whether messages of a subscription are to be told from others."""
    options = subscription.options
    return bool(subscription.identifier or options.no_local or options.retain_as_published or options.qos > 1)


def _asks_for_less(subscription: MqttSubscription, before: MqttSubscription | None) -> bool:
    """Tell whether a subscription takes the place of one with QoS 2 and has another one."""
    return before is not None and before.options.qos > max(1, subscription.options.qos)


def _file(trie: FilterTrie[MqttSubscription], subscription: MqttSubscription) -> None:
    for pattern in filters_of(subscription.options.filter):
        trie.add(pattern, subscription)
