"""What a client process of this benchmark is told, as one line of JSON; only the standard library is used."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Final

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
#: The order to a subscriber: so many messages were published, tell when they have come.
TAKE: Final = "take"
PAYLOAD_BYTES: Final = 128
MODULE: Final = "benchmarks.mqtt.client"


@dataclass(frozen=True, kw_only=True)
class MqttTask:
    """What one process does."""

    #: PUBLISH or SUBSCRIBE.
    role: str
    url: str
    #: The first level of all topics of this run.
    prefix: str
    qos: int
    #: Which of several processes with this role it is.
    number: int = 0
    module: str = MODULE
    #: Of a publisher: its connections, and how many messages of each may have no PUBACK yet.
    connections: int = 1
    window: int = 1
    #: How long it publishes, and how many topics it sets: once each if they are retained, else in turn.
    seconds: float = 1.0
    topics: int = 16
    retained: bool = False

    def pack(self) -> bytes:
        """Give the line for standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_task() -> MqttTask:
    """Read the task from standard input."""
    return MqttTask(**json.loads(sys.stdin.readline()))
