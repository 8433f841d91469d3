"""What the processes of a node are told at their start: one file per role in the runtime directory.

Only this user can read them, and they go with the directory; so they may hold secrets.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from cluster.configuration.config import worker_runtime
from cluster.data.data_dir import SPOOL_FOLDER
from cluster.relay.encryption import LinkFiles
from cluster.relay.runtime import RelayRuntime
from router.ground.config import Identity, SpoolLimits

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
        router = {
            "node": node.node,
            "config": config.router,
            "workers": workers,
            "token_key_hex": self._data.token_key_hex(),
            "spool": {name: getattr(config.spool, name) for name in SpoolLimits.__struct_fields__},
            "subscription_exceptions": config.spool.subscription_exceptions,
            "identity": identity,
            "issuers": config.issuers,
        }
        controller = {
            "node": node.node,
            "node_id": node.node_id,
            "data_dir": str(self._data.path),
            "data_id": node.data_id,
            "workers": workers,
            "config": config,
        }
        files = LinkFiles(
            ca_file=config.cluster.ca_file,
            cert_file=config.router.tls_cert_file,
            key_file=config.router.tls_key_file,
        )
        link = RelayRuntime(node=node.node, identity=identity, files=files)
        spools = worker_runtime(config, self._data.path / SPOOL_FOLDER)
        worker = msgspec.structs.replace(spools, data_id=node.data_id)
        for role, content in (
            ("router", router),
            ("worker", worker),
            ("link", link),
            ("bridge", link),
            ("controller", controller),
        ):
            self._runtime.write(f"{role}.json", msgspec.json.encode(content))
