"""What a link process is among the processes of a node."""

from __future__ import annotations

from typing import Final

from cluster.link.config import links_to_run
from cluster.relay.runtime import of_relay
from cluster.roles.role import Indices, Role

LINK: Final = Role(
    name="link",
    module="cluster.link",
    runtime=of_relay,
    stop_turn=20,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=links_to_run,
)
