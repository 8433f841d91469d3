"""The rows about many quiet clients: what is measured of whom, in which order, and against which peers.

Data and pure functions; `benchmarks.crowd.suite` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.brokers import mqtt
from benchmarks.crowd.task import PATTERNS
from benchmarks.figures import Better

#: Our node as it is by default, and the same with clients of MQTT.
OURS: Final = "angarium"
OURS_MQTT: Final = mqtt.OURS
#: Whom we compare with, and by which client.
CLIENTS: Final = {"nats": "nats-py", "mosquitto": "gmqtt", "rabbitmq": "pika"}
PEERS: Final = tuple(CLIENTS)
#: Messages per second, of all clients together.
RATES: Final = (2_000, 5_000, 10_000)
#: Lone messages under way in the closed loop, each of another client, of so many clients.
AT_ONCE: Final = (1, 16, 256)
LOOP_CLIENTS: Final = 256

CONNECTS: Final = "connects/s"
MEMORY: Final = "memory of the broker per idle client"
IDLE: Final = "CPU of the broker while all are idle"
STORM: Final = "all back after a kill"
P50: Final = "p50"
P99: Final = "p99"
REACHED: Final = "rate reached"
BROKER_CPU: Final = "CPU of the broker"


class Load(NamedTuple):
    """Messages that the clients of one broker publish for a while."""

    rate: int
    pattern: str

    @property
    def title(self) -> str:
        """Name it in a row."""
        return f"{self.rate:,}/s {self.pattern}"


LOADS: Final = tuple(Load(rate, pattern) for pattern in PATTERNS for rate in RATES)
#: Figure of a load -> its unit, and which way it is good.
_OF_LOAD: Final = {
    P50: ("us", Better.LOWER),
    P99: ("us", Better.LOWER),
    REACHED: ("messages/s", Better.HIGHER),
    BROKER_CPU: ("us per message", Better.LOWER),
}
_OF_BROKER: Final = {
    CONNECTS: ("clients/s", Better.HIGHER),
    MEMORY: ("KiB", Better.LOWER),
    IDLE: ("% of a core", Better.LOWER),
    STORM: ("s", Better.LOWER),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row to be: one figure of ours and of a peer."""

    #: Connections, that of the collector among them.
    size: int
    #: Who measures it for us, and against whom.
    ours: str
    peer: str
    #: What is measured: a key of the findings of both.
    figure: str
    unit: str
    better: Better

    @property
    def name(self) -> str:
        """The name of the row; it says by which client the peer was measured."""
        against = f", against {self.peer} ({client_of(self.ours, self.peer)})" if self.peer else ""
        return f"{self.size:,} clients{' of MQTT' if self.ours == OURS_MQTT else ''}, {self.figure}{against}"


def client_of(ours: str, peer: str) -> str:
    """Give the client by which a peer is measured; with clients of MQTT it is one and the same for all."""
    return mqtt.CLIENT if ours == OURS_MQTT else CLIENTS[peer]


def module_of(ours: str, broker: str) -> str:
    """Give the module of the clients of a broker."""
    return "mqtt" if ours == OURS_MQTT or CLIENTS.get(broker) == mqtt.CLIENT else broker


def figure_of(load: Load, what: str) -> str:
    """Give the key of one figure of a load."""
    return f"{load.title}, {what}"


def loop_name(at_once: int) -> str:
    """Give the name of a row of the closed loop."""
    return f"CPU of the router per lone message, closed loop of {at_once} raw clients"


def comparisons(peers: tuple[str, ...], sizes: tuple[int, ...], ours: str = OURS) -> list[Comparison]:
    """Give all rows with so many connections, with those peers only; without any our figures alone."""
    figures = dict(_OF_BROKER)
    figures |= {figure_of(load, what): shape for load in LOADS for what, shape in _OF_LOAD.items()}
    return [
        Comparison(size=size, ours=ours, peer=peer, figure=figure, unit=unit, better=better)
        for size in sizes
        for figure, (unit, better) in figures.items()
        for peer in tuple(peer for peer in PEERS if peer in peers) or ("",)
    ]
