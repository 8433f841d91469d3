"""A client of MQTT that shares a filter, and keeps over its connections what the specification wants it to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe

if TYPE_CHECKING:
    from random import Random

    from gateway.mqtt.codec import Packet
    from tests.simulation.exactly_once.simulated_gateway import Connection

RECEIVE_MAX = 3
TEXT = "$share/g/in/#"


class Member:
    """The client."""

    def __init__(self, name: str, version: int, random: Random) -> None:
        self.name = name
        self.version = version
        self.random = random
        self.connection: Connection | None = None
        self.is_here = False
        self.is_subscribed = self.is_asking = False
        #: Whether its next connection begins a new session.
        self.is_clean = False
        #: What came with QoS 2 and has no PUBREL, by packet identifier; and what PUBREC has refused.
        self.held: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        #: What came, without what was known to come again; and what a session had not finished when it ended.
        self.got: list[bytes] = []
        self.unfinished: list[bytes] = []
        self.wrong: list[str] = []
        self._at_a_time: set[int] = set()

    def connect(self, connection: Connection) -> None:
        self.connection = connection
        self.is_here = self.is_asking = False
        self._at_a_time.clear()
        given = Properties(session_expiry_interval=600, receive_maximum=RECEIVE_MAX)
        properties = given if self.version == V5 else NONE
        clean, self.is_clean = self.is_clean and self.version == V5, False
        if clean:
            self.begin_anew()
        self._say(
            Connect(version=self.version, client_id=self.name, clean_start=clean, properties=properties)
        )

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.is_open = False
            self.connection = None
        self.is_here = False

    def _say(self, packet: Packet) -> None:
        assert self.connection is not None
        self.connection.to_gateway.append(packet)

    def subscribe(self) -> None:
        if self.is_here and not self.is_subscribed and not self.is_asking:
            self.is_asking = True
            self._say(Subscribe(999, (Subscription(TEXT, 2),)))

    def unsubscribe(self) -> None:
        if self.is_here and self.is_subscribed and not self.is_asking:
            self.is_asking, self.is_subscribed = True, False  # it may be so, though the answer is lost
            self._say(Unsubscribe(998, (TEXT,)))

    def hear(self) -> None:
        connection = self.connection
        if connection is None or not connection.to_device:
            return
        for packet in connection.heard.feed(connection.to_device.popleft()):
            self._take(packet)
        assert connection.heard.fault is None, connection.heard.fault

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, ConnAck):
            self.is_here = not packet.code
            if self.is_here and not packet.session_present:
                self.begin_anew()
        elif isinstance(packet, Publish):
            self._comes(packet)
        elif isinstance(packet, PubRel):
            self.held.pop(packet.packet_id, None)
            self._at_a_time.discard(packet.packet_id)
            self._say(PubComp(packet.packet_id))
        elif isinstance(packet, SubAck):
            assert packet.codes == (2,), packet.codes
            self.is_subscribed, self.is_asking = True, False
        elif isinstance(packet, UnsubAck):
            self.is_asking = False

    def begin_anew(self) -> None:
        """Forget the session: it is over."""
        self.unfinished += self.held.values()
        self.held.clear()
        self.is_subscribed = False

    def _comes(self, packet: Publish) -> None:
        if packet.qos == 1:
            self.got.append(packet.payload)
            self._say(PubAck(packet.packet_id))
            return
        assert packet.qos == 2
        known = self.held.get(packet.packet_id)
        if known is None:
            if self.version == V5 and self.random.random() < 0.05:
                self.refused.add(packet.payload)
                self._say(PubRec(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
                return
            self.got.append(packet.payload)
            self.held[packet.packet_id] = packet.payload
        elif known != packet.payload:
            self.wrong.append(f"{packet.payload!r} has the identifier of {known!r}")
        self._at_a_time.add(packet.packet_id)
        if len(self._at_a_time) > RECEIVE_MAX and self.version == V5:
            self.wrong.append("more than it takes at a time")
        self._say(PubRec(packet.packet_id))
