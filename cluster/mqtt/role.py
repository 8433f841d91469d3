"""What a gateway process of MQTT is among the processes of a node, what it is told at its start, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of MqttRuntime
from angarium_server.frames.metrics import Metrics
from cluster.configuration.mqtt import MqttAddress, MqttSection, address_of
from cluster.roles.role import Indices, Role
from router.ground.config import tls_files

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce

METRICS: Final = Metrics(
    "mqtt",
    """
    connections | gauge | number | open ones
    unauthenticated | gauge | number | of them, whose clients have not logged in
    unauthenticated_put_off | counter | number | times that one of these had to wait for its turn
    refused | counter | number | connections that ended without a word of MQTT: too many of them, too late, no TLS
    clients, waiting | gauge | number | clients that are attached to the router, or about to be; those that wait until
     the router is there
    sessions | gauge | number | of these clients, that are kept when the connection ends
    messages_in, messages_out | counter | messages | of clients, given to the router; for clients, given to their
     connections
    ended | counter by code | number | connections of clients that were ended, by the reason code of MQTT 5.0
    carriers | gauge | number | Message VPNs in which the process has a session with the router
    gathered_messages | gauge | messages | of clients, that wait for the router
    unacknowledged | gauge | messages | with QoS 1 and 2 of clients, that are not stored yet
    refused_messages | counter by code | messages | of clients, refused by the router
    discarded | counter | messages | for clients, discarded by the router because the process was slow
    lost | counter | messages | of clients, that may be lost because the router was
    malformed_contexts | counter | messages | of which a malformed traceparent or tracestate was left out
    queued_bytes | gauge | bytes | that wait for slow clients
    in_use_bytes | gauge | bytes | memory that objects of the process have
    """,
)


class MqttRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients come in, what they may cost, and what shows the router that this is a process of its node."""

    node: str
    #: Of all processes the same: they share the ports.
    addresses: list[MqttAddress]
    settings: MqttSection
    max_message_bytes: int
    #: Of the whole node, so also of a process.
    max_connections: int
    tls: TlsFiles
    local_secret: str


def of_mqtt(now: InForce) -> MqttRuntime:
    """Give the same for every process."""
    return MqttRuntime(
        node=now.node.node,
        addresses=[address_of(entry) for entry in now.config.mqtt.listen],
        settings=now.config.mqtt,
        max_message_bytes=now.config.router.max_message_bytes,
        max_connections=now.config.router.max_connections,
        tls=tls_files(now.config.router),
        local_secret=now.identity.local_secret,
    )


def processes(config: NodeConfig) -> int:
    """Say how many there are: none without an address."""
    return config.mqtt.processes if config.mqtt.listen else 0


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
