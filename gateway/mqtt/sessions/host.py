"""What sessions want of the process that holds the connections of their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.egress import Receiver
    from gateway.mqtt.sessions.credit import Credit


class SessionHost(Protocol):
    """The process, to the sessions of its clients."""

    @property
    def credit(self) -> Credit:
        """What may be on its way to all clients."""

    def send_guaranteed(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send what may not be lost, behind what waits; false if too much waits, and it is not taken."""

    def wake(self, connection_id: bytes, at: float) -> None:
        """Call `Client.tick` then, once, besides."""

    def unix_ms(self) -> int:
        """Give the time of day, in ms since 1970."""
