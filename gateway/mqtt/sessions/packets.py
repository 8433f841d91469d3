"""Messages of queues as PUBLISH packets, for one client at a time."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import wire
from angarium.client.protocol.flow_window import spool_size
from gateway.mqtt.codec import fields, publish
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.messages import publish_section, qos_of
from gateway.mqtt.topics import mqtt_topic_of

if TYPE_CHECKING:
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedDelivery
    from angarium.message import Row
    from gateway.mqtt.delivering import MqttReceiver
    from gateway.mqtt.sessions.host import SessionHost

#: Topics that are remembered as packets have them.
TOPICS_MAX: Final = 4_096


class Came(NamedTuple):
    """A message that came through a flow."""

    position: int
    row: Row
    is_again: bool
    stored_ms: int
    window: FlowWindow

    @property
    def size_bytes(self) -> int:
        """Give what it takes of the window."""
        return spool_size((self.row,))


class Packet(NamedTuple):
    """A PUBLISH without its packet identifier."""

    frame: publish.Frame
    qos: int

    def parts(self, packet_id: int) -> list[bytes]:
        """Give its parts; one with QoS 0 has no identifier."""
        head, middle, payload = self.frame
        return [head, packet_id.to_bytes(2, "big"), middle, payload] if self.qos else [*self.frame]


def came_of(delivery: GuaranteedDelivery) -> list[Came]:
    """Give the messages of a delivery, in their order."""
    counts, window = delivery.counts, delivery.window
    return [
        Came(position, row, counts is not None and counts[at] > 0, delivery.stored_ms(at), window)
        for at, (position, row) in enumerate(zip(delivery.positions, delivery.rows, strict=True))
    ]


def packet_of(
    came: Came,
    topic: bytes,
    receiver: MqttReceiver,
    extra: bytes,
    host: SessionHost,
    *,
    keeps_retain: bool,
    granted: int = 1,
) -> Packet | None:
    """Write a message with at most the QoS granted, and the properties `extra` besides its own.

    None if it is too large [MQTT-3.1.2-25], or its time is over and nobody was sent it yet [MQTT-3.3.2-5].
    """
    row = came.row
    left_ms = left_ms_of(row, came.stored_ms, host)
    if left_ms <= 0 and not came.is_again:
        receiver.count("discard.message-expired")
        return None
    section = publish_section(aged(row, left_ms)) if receiver.version == V5 else b""
    message = publish.Message(topic, section, row[5], receiver.version)
    qos = min(granted, qos_of(row)) if granted > 1 else int(bool(row[2] & wire.FLAG_MODE))
    flags = qos << 1 | (publish.RETAIN if keeps_retain and row[2] & wire.FLAG_RETAIN else 0)
    framed = publish.frame(message, flags | (publish.DUP if qos and came.is_again else 0), extra)
    if 0 < receiver.packet_bytes_max < publish.frame_size(framed, qos):
        receiver.count("discard.packet-too-large")
        return None
    return Packet(framed, qos)


def left_ms_of(row: Row, since_ms: int, host: SessionHost) -> float:
    """Give for how long a message may still be sent, of which that was known then; it may have waited for too long."""
    meta = row[3]
    if meta is None or meta[0] <= 0:
        return inf
    return meta[0] - max(0, host.unix_ms() - since_ms)


def aged(row: Row, left_ms: float) -> Row:
    """Give a row whose time to live is what is left of it [MQTT-3.3.2-6]."""
    number, topic, flags, meta, properties, payload = row
    if meta is None or left_ms == inf:
        return row
    return number, topic, flags, (max(1, int(left_ms)), *meta[1:]), properties, payload


@lru_cache(TOPICS_MAX)
def written(topic: str) -> bytes | None:
    """Give a topic as packets have it; None if MQTT cannot say it."""
    name = mqtt_topic_of(topic)
    return None if name is None else fields.text(name)
