"""A client of MQTT that keeps over all connections what the specification wants it to keep (5.0, 4.3.3 and 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription

if TYPE_CHECKING:
    from gateway.mqtt.codec import Packet
    from tests.simulation.exactly_once.simulated_gateway import Connection

RECEIVE_MAX = 3
#: Packet identifiers with QoS 1 are from here on.
IDS_1 = 100


class Device:
    """The client."""

    def __init__(self, version: int, ids: int) -> None:
        self.version = version
        #: Packet identifiers are from 1 to this: few, so that they are used again at once.
        self.ids = ids
        self.connection: Connection | None = None
        self.is_here = False
        self.is_subscribed = False
        self._next_id = 1
        self.published = self.published_1 = 0
        #: By packet identifier, in order: the payload before PUBREC; after it None.
        self.out: dict[int, bytes | None] = {}
        #: Those with QoS 1, by packet identifier, in order, and what PUBACK was said of.
        self.out_1: dict[int, bytes] = {}
        self.stored: list[bytes] = []
        #: What was answered by PUBREC, as taken or as refused.
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        #: Identifiers between a PUBLISH that came and its PUBREL, and what came, without what was known to come again.
        self.held: set[int] = set()
        self.got: list[bytes] = []
        #: Of this connection: messages that came and are not over, and all that came.
        self._at_a_time = 0
        self._came: set[bytes] = set()
        self.wrong: list[str] = []

    def connect(self, connection: Connection) -> None:
        self.connection = connection
        self.is_here = False
        self._at_a_time = 0
        self._came.clear()
        given = Properties(session_expiry_interval=600, receive_maximum=RECEIVE_MAX)
        properties = given if self.version == V5 else NONE
        self._say(Connect(version=self.version, client_id="c", clean_start=False, properties=properties))

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.is_open = False
            self.connection = None
        self.is_here = False

    def _say(self, packet: Packet) -> None:
        assert self.connection is not None
        self.connection.to_gateway.append(packet)

    def publish(self) -> bool:
        """Publish the next message, if there is an identifier for it."""
        if not self.is_here or len(self.out) >= self.ids:
            return False
        while self._next_id in self.out:
            self._next_id = self._next_id % self.ids + 1
        self.published += 1
        payload = b"%d" % self.published
        self.out[self._next_id] = payload
        self._say(Publish("t", payload, qos=2, packet_id=self._next_id))
        return True

    def publish_1(self) -> None:
        """Publish a message with QoS 1, if there is an identifier for it."""
        free = [one for one in range(IDS_1, IDS_1 + self.ids) if one not in self.out_1]
        if self.is_here and free:
            self.published_1 += 1
            payload = self.out_1[free[0]] = b"1 %d" % self.published_1
            self._say(Publish("t", payload, qos=1, packet_id=free[0]))

    def hear(self) -> bool:
        """Take what came."""
        connection = self.connection
        if connection is None or not connection.to_device:
            return False
        for packet in connection.heard.feed(connection.to_device.popleft()):
            self._take(packet)
        assert connection.heard.fault is None, connection.heard.fault
        return True

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, ConnAck):
            self._begin(packet)
        elif isinstance(packet, PubRec):
            self._received(packet)
        elif isinstance(packet, PubAck):
            assert packet.code < 0x80
            self.stored.append(self.out_1.pop(packet.packet_id))
        elif isinstance(packet, PubComp):
            self.out.pop(packet.packet_id, None)
        elif isinstance(packet, Publish):
            self._comes(packet)
        elif isinstance(packet, PubRel):
            self.held.discard(packet.packet_id)
            self._at_a_time = max(0, self._at_a_time - 1)
            self._say(PubComp(packet.packet_id))
        elif isinstance(packet, SubAck):
            self.is_subscribed = True

    def _begin(self, packet: ConnAck) -> None:
        if packet.code:
            return
        self.is_here = True
        for packet_id, payload in self.out.items():  # [MQTT-4.4.0-1], [MQTT-4.6.0-1]
            if payload is None:
                self._say(PubRel(packet_id))
            else:
                self._say(Publish("t", payload, qos=2, packet_id=packet_id, dup=True))
        for packet_id, payload in self.out_1.items():
            self._say(Publish("t", payload, qos=1, packet_id=packet_id, dup=True))
        if not self.is_subscribed:
            self._say(Subscribe(999, (Subscription("in/#", 2),)))

    def _received(self, packet: PubRec) -> None:
        payload = self.out.get(packet.packet_id)
        if payload is None:
            assert packet.packet_id in self.out, "PUBREC of what was not published"
        elif packet.code >= 0x80:
            self.refused.add(payload)
            del self.out[packet.packet_id]
        else:
            self.acknowledged.add(payload)
            self.out[packet.packet_id] = None
            self._say(PubRel(packet.packet_id))

    def _comes(self, packet: Publish) -> None:
        if packet.payload in self._came:
            self.wrong.append(f"{packet.payload!r} came twice on one connection")  # [MQTT-4.4.0-1]
        self._came.add(packet.payload)
        if packet.qos == 1:
            self.got.append(packet.payload)
            self._say(PubAck(packet.packet_id))
            return
        assert packet.qos == 2
        if packet.packet_id not in self.held:
            self.held.add(packet.packet_id)
            self.got.append(packet.payload)
        self._at_a_time += 1
        assert self._at_a_time <= RECEIVE_MAX or self.version != V5, "more than the client takes at a time"
        self._say(PubRec(packet.packet_id))
