"""The kinds of processes of a node. One that is new is a folder with its code, and an entry here.

The order is that in which a node starts its processes and shows them.
"""

from __future__ import annotations

from typing import Final

from cluster.bridge.config import bridges_to_run
from cluster.link.config import links_to_run
from cluster.roles import runtime
from cluster.roles.role import Figures, Indices, Role

CONTROLLER: Final = Role(
    name="controller",
    module="cluster.controller.server",
    runtime=runtime.of_controller,
    stop_turn=50,
)
ROUTER: Final = Role(
    name="router",
    module="router",
    runtime=runtime.of_router,
    stop_turn=30,
    ends_node=True,
    serves_clients=True,
    has_public_sockets=True,
)
WORKER: Final = Role(
    name="worker",
    module="node",
    runtime=runtime.of_worker,
    stop_turn=40,
    indices=Indices.WORKERS,
    serves_clients=True,
    has_black_box=True,
)
LINK: Final = Role(
    name="link",
    module="cluster.link",
    runtime=runtime.of_relay,
    stop_turn=20,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=links_to_run,
)
BRIDGE: Final = Role(
    name="bridge",
    module="cluster.bridge",
    runtime=runtime.of_relay,
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

ROLES: Final = {role.name: role for role in (CONTROLLER, ROUTER, WORKER, LINK, BRIDGE)}
#: The shut-down list, read from left to right: stop accepting and drain, then persist, then who reports on it.
STOP_ORDER: Final = tuple(sorted(ROLES, key=lambda name: ROLES[name].stop_turn))


def first_places(workers: int) -> list[tuple[str, int]]:
    """Give (role, index) of what a node starts with; those of objects come when the controller has read them."""
    numbers = {Indices.ONE: 1, Indices.WORKERS: workers, Indices.OBJECTS: 0}
    return [(role.name, index) for role in ROLES.values() for index in range(numbers[role.indices])]
