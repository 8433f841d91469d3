"""What the processes of a node are told at their start: one file per role in the runtime directory.

Only this user can read them, and they go with the directory; so they may hold secrets.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from cluster.roles.role import InForce
from cluster.roster.table import ROLES
from router.ground.config import Identity

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.data.data_dir import DataDirectory, RuntimeDirectory

_LOCAL_SECRET_BYTES: Final = 32


class RuntimeFiles:
    """Writes them, as often as something has changed."""

    def __init__(self, data: DataDirectory, runtime: RuntimeDirectory, cluster_secret: str) -> None:
        """Make the secret that the link processes of this run share with our own router."""
        self._data = data
        self._runtime = runtime
        self._cluster_secret = cluster_secret
        self._local_secret = secrets.token_hex(_LOCAL_SECRET_BYTES)

    def write(self, config: NodeConfig, workers: int) -> None:
        """Write what is in force now."""
        node = self._data.node
        identity = Identity(
            node_id=node.node_id,
            cluster=config.cluster.name,
            secret=self._cluster_secret,
            local_secret=self._local_secret,
        )
        now = InForce(config, node, identity, workers, self._data.path, self._data.token_key_hex())
        for role in ROLES.values():
            self._runtime.write(f"{role.name}.json", msgspec.json.encode(role.runtime(now)))
