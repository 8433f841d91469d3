"""Messages of the queue of a session on their way to its client, with QoS 1, or 0 if they were published so.

A message is done with, so that the queue deletes it, when the client has acknowledged it; with QoS 0, or if the client
cannot have it, when its turn has come. What is sent counts as taken when it is done with: so never more is on its way
than the window of the flow allows, which the client's receive maximum bounds [MQTT-3.3.4-9].

They are sent in the order of the queue [MQTT-4.6.0-5]: one that has to wait holds up those behind it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import wire
from angarium.client.protocol.flow_window import spool_size
from angarium.trie import FilterTrie
from gateway.mqtt.codec import fields, publish
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.messages import publish_section, sender_of
from gateway.mqtt.sessions.unacknowledged import Out, Unacknowledged, Verdict
from gateway.mqtt.topics import filters_of, mqtt_topic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedDelivery
    from angarium.message import Row
    from gateway.attached import Attached
    from gateway.mqtt.delivering import MqttReceiver, MqttSubscription
    from gateway.mqtt.sessions.host import SessionHost

#: Topics that are remembered as packets have them.
TOPICS_MAX: Final = 4_096


class _Came(NamedTuple):
    """A message that came."""

    position: int
    row: Row
    is_again: bool
    stored_ms: int
    window: FlowWindow


class Outgoing:
    """Those of one connection."""

    __slots__ = (
        "_attached",
        "_held",
        "_host",
        "_receiver",
        "_special",
        "_subscriptions",
        "_trie",
        "_unacknowledged",
    )

    def __init__(self, receiver: MqttReceiver, attached: Attached, host: SessionHost) -> None:
        self._receiver = receiver
        self._attached = attached
        self._host = host
        #: The subscriptions whose filters the queue has, by topic filter.
        self._subscriptions: dict[str, MqttSubscription] = {}
        #: How many of them have options that matter; and if any have, the subscriptions by their filters.
        self._special = 0
        self._trie: FilterTrie[MqttSubscription] | None = None
        self._unacknowledged = Unacknowledged()
        #: Those that wait, the oldest first: the first one for its packet identifier.
        self._held: list[_Came] = []

    # -- what the client has subscribed to -------------------------------------------------------------------

    def add(self, subscription: MqttSubscription) -> None:
        """Let a subscription have what the queue brings, in place of that with the same topic filter."""
        text = subscription.options.filter
        if text in self._subscriptions:
            self.remove(self._subscriptions[text])
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
        del self._subscriptions[subscription.options.filter]
        if self._trie is not None:
            for pattern in filters_of(subscription.options.filter):
                self._trie.remove(pattern, subscription)
        if _is_special(subscription):
            self._special -= 1
            if not self._special:
                self._trie = None

    # -- messages --------------------------------------------------------------------------------------------

    def take(self, deliveries: Sequence[GuaranteedDelivery], now: float) -> bool:
        """Send what came; false if the client takes too little."""
        for delivery in deliveries:
            counts = delivery.counts
            for at, (position, row) in enumerate(zip(delivery.positions, delivery.rows, strict=True)):
                is_again = counts is not None and counts[at] > 0
                self._held.append(_Came(position, row, is_again, delivery.stored_ms(at), delivery.window))
        return self._go_on(now)

    def acknowledged(self, packet_id: int, now: float) -> bool:
        """Take a PUBACK, whatever it says: the client will not get the message again; false as above."""
        out = self._unacknowledged.acknowledged(packet_id)
        if out is None:
            return True
        self._attached.accept(out.window, out.position)
        out.window.take(1, out.size_bytes)
        return self._go_on(now)

    def _go_on(self, now: float) -> bool:
        """Send what need not wait, in one piece."""
        passed = 0
        packets: list[bytes] = []
        for came in self._held:
            verdict = self._unacknowledged.judge(came.position)
            if verdict is Verdict.WAIT:
                break
            passed += 1
            if verdict is Verdict.SEND:
                self._unacknowledged.passed(came.position)
                packets += self._send(came)
            elif verdict is Verdict.DONE:
                self._finish(came)
            elif not self._unacknowledged.came_again(came.position, came.window):
                came.window.take(1, spool_size((came.row,)))  # twice in one flow: it is accepted once
        del self._held[:passed]
        return not packets or self._host.send_guaranteed(self._receiver, b"".join(packets), now)

    def interrupt(self) -> None:
        """Forget what waits: the flow is over, and the next one brings it again."""
        self._held.clear()

    def _finish(self, came: _Came) -> None:
        """Be done with a message that is not, or no more, on its way."""
        self._attached.accept(came.window, came.position)
        came.window.take(1, spool_size((came.row,)))

    def _send(self, came: _Came) -> list[bytes]:
        """Give the parts of a packet; none if the client does not get the message."""
        row = came.row
        topic = _written(row[1])
        extra, keeps_retain = b"", False
        if topic is None:
            self._receiver.count("discard.topic-not-mqtt")
        elif self._trie is not None:
            matching = dict.fromkeys(self._trie.match(row[1]))
            if (
                matching
                and all(one.options.no_local for one in matching)
                and sender_of(row) == self._receiver.name
            ):
                topic = None  # [MQTT-3.8.3-3]
            keeps_retain = any(one.options.retain_as_published for one in matching)
            extra = publish.subscription_identifiers(one.identifier for one in matching if one.identifier)
        if topic is None:
            self._finish(came)
            return []
        section = publish_section(self._aged(came)) if self._receiver.version == V5 else b""
        message = publish.Message(topic, section, row[5], self._receiver.version)
        qos = 1 if row[2] & wire.FLAG_MODE else 0
        flags = qos << 1 | (publish.RETAIN if keeps_retain and row[2] & wire.FLAG_RETAIN else 0)
        framed = publish.frame(message, flags | (publish.DUP if qos and came.is_again else 0), extra)
        return self._numbered(came, framed, qos)

    def _numbered(self, came: _Came, framed: publish.Frame, qos: int) -> list[bytes]:
        """Give the parts of a packet with its identifier, and take note of what waits for its acknowledgement."""
        largest = self._receiver.packet_bytes_max
        if largest and publish.frame_size(framed, qos) > largest:  # [MQTT-3.1.2-25]
            self._receiver.count("discard.packet-too-large")
            self._finish(came)
            return []
        if not qos:
            self._finish(came)
            return [*framed]
        out = Out(came.position, spool_size((came.row,)), came.window)
        head, middle, payload = framed
        return [head, self._unacknowledged.sent(out).to_bytes(2, "big"), middle, payload]

    def _aged(self, came: _Came) -> Row:
        """Give a row whose time to live is what is left of it [MQTT-3.3.2-6]."""
        number, topic, flags, meta, properties, payload = came.row
        if meta is None or meta[0] <= 0:
            return came.row
        left_ms = max(1, meta[0] - max(0, self._host.unix_ms() - came.stored_ms))
        return number, topic, flags, (left_ms, *meta[1:]), properties, payload

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._unacknowledged.validate()
        assert self._special == sum(map(_is_special, self._subscriptions.values()))
        assert (self._trie is not None) == bool(self._special)
        assert not self._held or self._unacknowledged.judge(self._held[0].position) is Verdict.WAIT


def _is_special(subscription: MqttSubscription) -> bool:
    """Tell whether messages of a subscription are to be told from others."""
    options = subscription.options
    return bool(subscription.identifier or options.no_local or options.retain_as_published)


def _file(trie: FilterTrie[MqttSubscription], subscription: MqttSubscription) -> None:
    for pattern in filters_of(subscription.options.filter):
        trie.add(pattern, subscription)


@lru_cache(TOPICS_MAX)
def _written(topic: str) -> bytes | None:
    """Give a topic as packets have it; None if MQTT cannot say it."""
    name = mqtt_topic_of(topic)
    return None if name is None else fields.text(name)
