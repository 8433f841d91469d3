"""What a bridge process is among the processes of a node, and which of its figures go up and down."""

from __future__ import annotations

from typing import Final

from cluster.bridge.config import bridges_to_run
from cluster.relay.runtime import of_relay
from cluster.roles.role import Figures, Indices, Role

BRIDGE: Final = Role(
    name="bridge",
    module="cluster.bridge",
    runtime=of_relay,
    stop_turn=10,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=bridges_to_run,
    figures=Figures(
        gauges=frozenset(
            ("up", "encrypted", "uptime_s", "queued_messages", "under_way", "rounds_waiting", "lag_ms")
        ),
        splits={"dropped": "reason", "refused": "code"},
        labels=("name", "vpn"),
    ),
)
