"""Clients and connections as the way out sees them, without sockets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gateway.mqtt.codec.kinds import V5

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row
    from angarium_server.connections.door import Refusal
    from gateway.mqtt.delivering import MqttSubscription


class FakeClient:
    """A client that notes what it is told."""

    def __init__(self, number: int = 1, *, version: int = V5, queue_units: int = 1_000) -> None:
        self.connection_id = number.to_bytes(8, "big")
        self.name = f"c{number}"
        self.vpn = "default"
        self.version = version
        self.packet_bytes_max = 0
        self.queue_units = queue_units
        self.patience_s = 60.0
        self.queued = (0, 0)
        self.counts: Counter[str] = Counter()
        #: What was read for it that has QoS: filter and topic; whether it is read, and whether it waits for the client.
        self.retained: list[tuple[str, str]] = []
        self.retained_readings = 0
        self.takes_slowly = self.is_taking_retained = False

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def sent(self, data: bytes) -> bytes:
        return data

    def begin_retained(self) -> None:
        self.retained_readings += 1

    def end_retained(self, _now: float) -> None:
        self.retained_readings -= 1
        assert self.retained_readings >= 0

    def take_retained(self, subscription: MqttSubscription, rows: Sequence[Row], _now: float) -> None:
        assert self.retained_readings
        assert not self.is_taking_retained
        self.retained += [(subscription.options.filter, row[1]) for row in rows]
        self.is_taking_retained = self.takes_slowly


class FakeOutlet:
    """Connections that take what they are given, of which so much has left as the test says."""

    def __init__(self) -> None:
        #: Everything that was sent, by connection.
        self.sent: dict[bytes, bytes] = {}
        self._left: Counter[bytes] = Counter()
        self.refusals: dict[bytes, Refusal] = {}
        #: Connections that are to say when they have room.
        self.awaited: set[bytes] = set()

    def send_bytes(self, connection_id: bytes, data: bytes) -> Refusal | None:
        assert data, "nothing is never sent"
        if connection_id in self.refusals:
            return self.refusals[connection_id]
        self.sent[connection_id] = self.sent.get(connection_id, b"") + data
        return None

    def unsent(self, connection_id: bytes) -> int:
        if connection_id in self.refusals:
            return 0
        return len(self.sent.get(connection_id, b"")) - self._left[connection_id]

    def await_room(self, connection_id: bytes) -> None:
        self.awaited.add(connection_id)

    def leave(self, connection_id: bytes, size: int) -> None:
        """Let so many bytes leave."""
        assert size <= self.unsent(connection_id)
        self._left[connection_id] += size

    def leave_all(self) -> list[bytes]:
        """Let everything leave; give the connections that were to say so."""
        for connection_id, data in self.sent.items():
            self._left[connection_id] = len(data)
        awaited, self.awaited = self.awaited, set()
        return sorted(awaited)
