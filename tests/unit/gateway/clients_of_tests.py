"""Clients and connections as the way out sees them, without sockets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gateway.mqtt.codec.kinds import V5

if TYPE_CHECKING:
    from angarium_server.connections.door import Refusal


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

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def sent(self, data: bytes) -> bytes:
        return data


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
