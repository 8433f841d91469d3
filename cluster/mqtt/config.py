"""What the supervisor tells gateway processes of MQTT at their start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of MqttRuntime
from cluster.configuration.mqtt import MqttAddress, MqttSection, address_of
from router.ground.config import tls_files

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce


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
