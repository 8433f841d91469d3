"""What controller, router and workers are told at their start: the supervisor writes it, and `load_config` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cluster.configuration.config import worker_runtime
from cluster.data.data_dir import SPOOL_FOLDER
from cluster.standby.pair.settings import standby_of
from router.ground.config import SpoolLimits

if TYPE_CHECKING:
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
