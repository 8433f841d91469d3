"""What is retained, on its way to a new subscription with QoS 1 or 2: with the QoS of the message, and not above that.

It counts as in flight, and what comes of queues waits until all of it is sent: so it comes first, and does not wait for
the acknowledgement of what is held back behind it.

It is remembered by this connection alone, which is all there is to remember if the session ends with it. To one that is
kept it does not come again, so none has QoS 2 there: the client would still hold an identifier which is that of another
message on the next connection. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.client.protocol.flow_window import spool_size
from angarium.errors import error_for
from gateway.mqtt.delivering import retained_frame
from gateway.mqtt.messages import qos_of
from gateway.mqtt.sessions.packets import aged, left_ms_of
from gateway.mqtt.sessions.unacknowledged import IDS_OF_RETAINED, Numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row
    from gateway.mqtt.delivering import MqttSubscription
    from gateway.mqtt.sessions.host import SessionHost, SessionOwner
    from gateway.mqtt.sessions.unacknowledged import Awaited, InFlight


class Retained:
    """That of one connection."""

    __slots__ = ("_host", "_in_flight", "_out", "_owner", "_qos_max", "_waiting")

    def __init__(
        self, owner: SessionOwner, host: SessionHost, in_flight: InFlight, *, outlives_connection: bool
    ) -> None:
        self._owner = owner
        self._host = host
        self._in_flight = in_flight
        self._qos_max: Final = 1 if outlives_connection else 2
        #: The sizes of those on their way.
        self._out: Numbered[int] = Numbered(IDS_OF_RETAINED)
        #: Those without room, the oldest first, and since when; as long as there are any, they hold back what comes of
        #: queues.
        self._waiting: deque[tuple[MqttSubscription, Row, int]] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether there is something without room."""
        return bool(self._waiting)

    def take(self, subscription: MqttSubscription, rows: Sequence[Row], now: float) -> None:
        """Send what was read for a subscription."""
        if rows and not self._waiting:
            self._in_flight.hold()
        since_ms = self._host.unix_ms()
        self._waiting.extend([(subscription, row, since_ms) for row in rows])
        if not self.go_on(now):
            self._owner.end(error_for(errors.EGRESS_BLOCKED), now)

    def go_on(self, now: float) -> bool:
        """Send what there is room for; false if the client takes too little."""
        if not self._waiting:
            return True
        packets: list[bytes] = []
        while self._waiting and self._in_flight.has_place:
            packets += self._send(*self._waiting.popleft())
        if not self._waiting:
            self._in_flight.release()
        return not packets or self._host.send_retained(self._owner, b"".join(packets), now)

    def _send(self, subscription: MqttSubscription, row: Row, since_ms: int) -> list[bytes]:
        """Give the parts of a packet; none if the client cannot have it, or its time is over [MQTT-3.3.2-5]."""
        left_ms = left_ms_of(row, since_ms, self._host)
        if left_ms <= 0:
            return []
        qos = min(subscription.options.qos, self._qos_max, qos_of(row))
        frame = retained_frame(aged(row, left_ms), subscription, qos)
        if frame is None:
            return []
        head, *rest = frame
        if not qos:
            return [head, *rest]
        size = spool_size((row,))
        self._in_flight.add(size)
        return [head, self._out.add(size, qos).to_bytes(2, "big"), *rest]

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if there is none."""
        return self._out.awaited(packet_id)

    def acknowledged(self, packet_id: int) -> None:
        """Take a PUBACK, whatever it says; `go_on` follows."""
        size = self._out.take(packet_id)
        if size is not None:
            self._in_flight.remove(size)

    def received(self, packet_id: int, code: int, now: float) -> None:
        """Take a PUBREC; `go_on` follows."""
        if self._out.receive(packet_id, code, self._owner, now):
            self.acknowledged(packet_id)

    def completed(self, packet_id: int, _now: float) -> None:
        """Take a PUBCOMP; `go_on` follows."""
        if self._out.is_released(packet_id):
            self.acknowledged(packet_id)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._out.validate()
        assert not self._waiting or not self._in_flight.has_place
