"""What the supervisor tells link and bridge processes at their start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium_server.connections.encryption import LinkFiles
from router.ground.config import Identity

if TYPE_CHECKING:
    from cluster.roles.role import InForce


class RelayRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is, and what encrypts its connections."""

    node: str
    identity: Identity = Identity()
    files: LinkFiles = LinkFiles()


def of_relay(now: InForce) -> RelayRuntime:
    """Give the same for every link and every bridge; what each has to do it is told by the controller."""
    files = LinkFiles(
        ca_file=now.config.cluster.ca_file,
        cert_file=now.config.router.tls_cert_file,
        key_file=now.config.router.tls_key_file,
    )
    return RelayRuntime(node=now.node.node, identity=now.identity, files=files)
