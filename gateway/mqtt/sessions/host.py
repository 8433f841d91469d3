"""What sessions want of their client, and of the process that holds its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.mqtt.delivering import MqttReceiver, MqttSubscription

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from angarium.errors import AngariumError
    from gateway.egress import Receiver
    from gateway.fanout import Lookups
    from gateway.mqtt.codec.acknowledge import PubRel
    from gateway.mqtt.sessions.credit import Credit
    from gateway.mqtt.sessions.received import Answer


class SessionOwner(MqttReceiver, Protocol):
    """The client."""

    def opened(self, present: list[MqttSubscription] | None, now: float) -> None:
        """Its session is open: a new one, or one with these subscriptions."""

    def changed(self, answers: Mapping[str, int], now: float) -> None:
        """What it asked for is in force: 0 or an error code for each topic filter that was put."""

    def released(self, packet: PubRel, now: float) -> None:
        """It is told PUBREL."""

    def answer(self, answers: Sequence[Answer], now: float) -> None:
        """It is told PUBREC and PUBCOMP of what it has published with QoS 2."""

    def end(self, error: AngariumError, now: float) -> None:
        """It cannot stay."""


class SessionHost(Protocol):
    """The process, to the sessions of its clients."""

    @property
    def lookups(self) -> Lookups:
        """What it costs to find which subscriptions a message is for, of all sessions; `Client.tick` goes on."""

    @property
    def credit(self) -> Credit:
        """What may be on its way to all clients."""

    def send_guaranteed(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send what may not be lost, behind what waits; false if too much waits, and it is not taken."""

    def send_retained(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send what is retained, before what is held back for that; else as `send_guaranteed`."""

    def wake(self, connection_id: bytes, at: float) -> None:
        """Call `Client.tick` then, once, besides."""

    def unix_ms(self) -> int:
        """Give the time of day, in ms since 1970."""
