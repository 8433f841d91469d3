"""What an MQTT client wants of the process that holds its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.mqtt.sessions.host import SessionHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row
    from gateway.attached import Attached, Guest, Login
    from gateway.mqtt.delivering import MqttReceiver, MqttSubscription


class Host(SessionHost, Protocol):
    """The process, to all of its clients."""

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Attached:
        """Log a client in at the node; what comes of it is told to the guest, later."""

    def send(self, connection_id: bytes, data: bytes) -> None:
        """Send a packet that is never dropped."""

    def admitted(self, connection_id: bytes) -> None:
        """Take larger packets from now on, and call `Client.tick`: the client has logged in."""

    def pause(self, connection_id: bytes) -> None:
        """Read nothing more of it until `resume`."""

    def await_room(self, connection_id: bytes, qos: int) -> None:
        """Resume it when messages with this QoS find room again, if the room of all clients together is the reason."""

    def resume(self, connection_id: bytes) -> None:
        """Offer again what was not taken, and read further."""

    def count_end(self, reason: int, /) -> None:
        """Note for what reason a connection is ended; `finish` follows."""

    def finish(self, connection_id: bytes, farewell: bytes, reason: str, now: float) -> None:
        """Drop what waits for a connection, send the last packet, which may be none, and close it."""

    def add(self, subscription: MqttSubscription) -> None:
        """Fan out to a subscription, which is not shared, from now on."""

    def remove(self, subscription: MqttSubscription) -> None:
        """Fan out to it no more."""

    def forget(self, receiver: MqttReceiver, subscriptions: dict[str, MqttSubscription]) -> None:
        """Let all subscriptions of a client that is gone have nothing more, and keep the dict, by topic filter."""

    def read_retained(self, subscriptions: Sequence[MqttSubscription]) -> None:
        """Send what is retained to subscriptions in force, and keep back what comes live until that is done."""

    def leave_retained(self, subscription: MqttSubscription) -> None:
        """Send it to a subscription no more, if it was to be."""

    def deliver(self, subscriptions: Sequence[MqttSubscription], rows: Sequence[Row], now: float) -> None:
        """Send what came for one client alone, for these of its subscriptions."""
