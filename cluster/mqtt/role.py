"""What a gateway process of MQTT is among the processes of a node, and what it shows."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics
from cluster.mqtt.config import of_mqtt, processes
from cluster.roles.role import Indices, Role

METRICS: Final = Metrics(
    "mqtt",
    """
    connections | gauge | number | open ones
    unauthenticated | gauge | number | of them, whose clients have not logged in
    unauthenticated_put_off | counter | number | times that one of these had to wait for its turn
    refused | counter by reason | number | connections that ended before a login
    in_use_bytes | gauge | bytes | memory that objects of the process have
    """,
)

MQTT: Final = Role(
    name="mqtt",
    module="cluster.mqtt",
    runtime=of_mqtt,
    stop_turn=15,
    indices=Indices.CONFIGURED,
    count=processes,
    serves_clients=True,
    metrics=METRICS,
)
