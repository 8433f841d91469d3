"""Brokers as clients of MQTT meet them: what is switched on for them, and what a PUBACK of each has behind it.

A subscriber with QoS 1 has a session that outlives its connection, so that each broker keeps what comes for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.brokers.angarium import AngariumMqtt
from benchmarks.brokers.mosquitto import CONFIGURATION, Mosquitto
from benchmarks.brokers.nats import Nats
from benchmarks.brokers.rabbitmq import RabbitMq
from benchmarks.brokers.server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker

OURS: Final = "angarium-mqtt"
CLIENT: Final = "gmqtt"
#: Messages on their way to one subscriber, where this can be said; ours has 255.
PREFETCH: Final = 255
#: The file is written after each change, and not synced before the PUBACK leaves.
SAVED_CONFIGURATION: Final = CONFIGURATION.replace("persistence false", "persistence true") + (
    f"autosave_on_changes true\nautosave_interval 1\nmax_inflight_messages {PREFETCH}\n"
)
#: Clients of MQTT need JetStream, whatever their QoS.
NATS_CONFIGURATION: Final = f"""
server_name: bench
listen: 127.0.0.1:{{inner_port}}
max_pending: 8GB
write_deadline: "120s"
mqtt {{{{ listen: "127.0.0.1:{{port}}", max_ack_pending: {PREFETCH} }}}}
jetstream {{{{ store_dir: "{{directory}}", sync_interval: always, max_file_store: 20GB }}}}
"""
RABBITMQ_CONFIGURATION: Final = f"""
listeners.tcp = none
mqtt.listeners.tcp.local = 127.0.0.1:{{port}}
mqtt.durable_queue_type = quorum
mqtt.prefetch = {PREFETCH}
"""


class MosquittoSaved(Mosquitto):
    """A mosquitto that writes its sessions and their messages to disk at each change, all of them."""

    name = "mosquitto-saved"
    configuration = SAVED_CONFIGURATION


class NatsMqtt(Nats):
    """A nats-server for clients of MQTT."""

    scheme = "mqtt"
    client_package = CLIENT

    def configured(self, port: int) -> str:
        """Give its configuration."""
        return NATS_CONFIGURATION.format(
            port=port, inner_port=free_port(), directory=self.directory / "store"
        )


class RabbitMqMqtt(RabbitMq):
    """A RabbitMQ node for clients of MQTT only."""

    address = "mqtt://127.0.0.1:{port}"
    configuration = RABBITMQ_CONFIGURATION
    plugins = "[rabbitmq_mqtt].\n"
    client_package = CLIENT


def mqtt_brokers(directory: Path) -> list[Broker]:
    """Give all of them; each has the name of its peer, and ours is the first."""
    return [
        AngariumMqtt(directory, 1, OURS),
        Mosquitto(directory),
        RabbitMqMqtt(directory),
        NatsMqtt(directory),
    ]
