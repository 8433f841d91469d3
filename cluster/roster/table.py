"""The kinds of processes of a node. One that is new is a folder with its code and its role, and its name here.

The order is that in which a node starts its processes and shows them. What is a package beside `cluster`, or reads this
table, has its role here, and what it is told at its start, which the supervisor writes and `load_config` reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.bridge.role import BRIDGE
from cluster.configuration.config import worker_runtime
from cluster.data.data_dir import SPOOL_FOLDER
from cluster.http.role import HTTP
from cluster.link.role import LINK
from cluster.management.role import MANAGEMENT
from cluster.mqtt.role import MQTT
from cluster.roles.role import Indices, Role
from cluster.standby.pair.settings import standby_of
from cluster.webhook.role import WEBHOOK
from node import metrics
from router.ground.config import SpoolLimits

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce
    from node.config import WorkerRuntime


def of_controller(now: InForce) -> dict[str, Any]:
    """Give what `cluster.controller.server.ControllerRuntime` reads."""
    return {
        "node": now.node.node,
        "node_id": now.node.node_id,
        "data_dir": str(now.data_path),
        "data_id": now.node.data_id,
        "workers": now.workers,
        "config": now.config,
        "standby": standby_of(now.config, now.node.data_id),
    }


def of_router(now: InForce) -> dict[str, Any]:
    """Give what `router.ground.config.RouterRuntime` reads."""
    spool = now.config.spool
    return {
        "node": now.node.node,
        "config": now.config.router,
        "workers": now.workers,
        "token_key_hex": now.token_key_hex,
        "spool": {name: getattr(spool, name) for name in SpoolLimits.__struct_fields__},
        "subscription_exceptions": spool.subscription_exceptions,
        "identity": now.identity,
        "issuers": now.config.issuers,
    }


def of_worker(now: InForce) -> WorkerRuntime:
    """Give the same for every worker."""
    settings = worker_runtime(now.config, now.data_path / SPOOL_FOLDER)
    standby = standby_of(now.config, now.node.data_id)
    return msgspec.structs.replace(settings, data_id=now.node.data_id, standby=standby, node=now.node.node)


CONTROLLER: Final = Role(
    name="controller",
    module="cluster.controller.server",
    runtime=of_controller,
    stop_turn=50,
)
ROUTER: Final = Role(
    name="router",
    module="router",
    runtime=of_router,
    stop_turn=30,
    ends_node=True,
    serves_clients=True,
    has_public_sockets=True,
)
WORKER: Final = Role(
    name="worker",
    module="node",
    runtime=of_worker,
    stop_turn=40,
    indices=Indices.WORKERS,
    serves_clients=True,
    has_black_box=True,
    metrics=metrics.WORKER,
    metrics_operation="metrics",
)

ROLES: Final = {
    role.name: role for role in (CONTROLLER, ROUTER, WORKER, LINK, BRIDGE, MQTT, HTTP, WEBHOOK, MANAGEMENT)
}
#: The shut-down list, read from left to right: stop accepting and drain, then persist, then who reports on it.
STOP_ORDER: Final = tuple(sorted(ROLES, key=lambda name: ROLES[name].stop_turn))


def first_places(config: NodeConfig, workers: int) -> list[tuple[str, int]]:
    """Give (role, index) of what a node starts with; those of objects come when the controller has read them."""
    return [(role.name, index) for role in ROLES.values() for index in range(_first(role, config, workers))]


def _first(role: Role, config: NodeConfig, workers: int) -> int:
    if role.count is not None:
        return role.count(config)
    return {Indices.ONE: 1, Indices.WORKERS: workers}.get(role.indices, 0)
