"""The rows about messages of MQTT: what is published to how many, and against whom.

Data and pure functions; `benchmarks.mqtt.suite` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.brokers.mqtt import OURS

PEERS: Final = ("mosquitto", "rabbitmq", "nats")
#: Peer -> the broker that is started for messages that are to be kept, if it is another one.
KEEPING: Final = {"mosquitto": "mosquitto-saved"}
#: Messages on the way on a connection: of one that is alone, and of each of many.
WINDOW: Final = 64
WINDOW_OF_MANY: Final = 10
MANY: Final = 100

#: What a PUBACK means, by broker: of messages for a session that outlives its connection, and of retained ones.
BEHIND_PUBACK: Final = (
    {
        OURS: "synced commit",
        "mosquitto-saved": "PUBACK from memory, then autosave_on_changes",
        "rabbitmq": "quorum queue, fdatasync of the log",
        "nats": "JetStream, sync_interval: always",
    },
    {
        OURS: "synced commit",
        "mosquitto": "PUBACK from memory, nothing on disk",
        "rabbitmq": "PUBACK from memory, a file that is synced every 2 s",
        "nats": "JetStream, sync_interval: always",
    },
)

DELIVERED: Final = "delivered"
ACKNOWLEDGED: Final = "acknowledged"
SET: Final = "set"
GOT: Final = "got"
UNITS: Final = {
    DELIVERED: "deliveries/s",
    ACKNOWLEDGED: "PUBACKs/s",
    SET: "topics/s",
    GOT: "messages/s",
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is published, and to how many."""

    title: str
    qos: int
    #: What is told of it.
    figures: tuple[str, ...]
    publishers: int = 1
    subscribers: int = 1
    window: int = WINDOW
    #: Whether each topic is set once, and its message is got afterwards by who subscribes then.
    retained: bool = False

    def broker_of(self, peer: str) -> str:
        """Give the broker that is started for a peer."""
        return KEEPING.get(peer, peer) if self.qos and not self.retained else peer


SCENARIOS: Final = (
    Scenario(title="QoS 0 1->1, 128 B", qos=0, figures=(DELIVERED,)),
    Scenario(title="QoS 0 1->10, 128 B", qos=0, figures=(DELIVERED,), subscribers=10),
    Scenario(title=f"QoS 1 1->1, 128 B, window {WINDOW}", qos=1, figures=(DELIVERED,)),
    Scenario(title=f"QoS 1 1->10, 128 B, window {WINDOW}", qos=1, figures=(DELIVERED,), subscribers=10),
    Scenario(
        title=f"QoS 1 {MANY}->1, 128 B, window {WINDOW_OF_MANY}",
        qos=1,
        figures=(ACKNOWLEDGED,),
        publishers=MANY,
        window=WINDOW_OF_MANY,
    ),
    Scenario(title="retained topics, 128 B", qos=1, figures=(SET, GOT), retained=True),
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row to be: one figure of ours and of a peer."""

    scenario: Scenario
    figure: str
    #: Empty: our figure alone.
    peer: str

    @property
    def name(self) -> str:
        """The name of the row."""
        against = f", against {self.peer}" if self.peer else ""
        return f"messages of MQTT, {self.scenario.title}, {self.figure}{against}"

    @property
    def ours(self) -> str:
        """The broker of ours."""
        return OURS

    @property
    def other(self) -> str:
        """The broker of the peer."""
        return self.scenario.broker_of(self.peer)


def comparisons(peers: tuple[str, ...]) -> list[Comparison]:
    """Give all rows, with those peers only; without any our figures alone."""
    return [
        Comparison(scenario=scenario, figure=figure, peer=peer)
        for scenario in SCENARIOS
        for figure in scenario.figures
        for peer in tuple(peer for peer in PEERS if peer in peers) or ("",)
    ]
