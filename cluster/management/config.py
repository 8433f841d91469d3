"""What the supervisor tells the management process at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of ManagementRuntime
from cluster.configuration.listening import files_of
from cluster.configuration.management import ManagementSection  # noqa: TC001 - the same

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce


class ManagementRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Where operators come in, and what they may cost."""

    node: str
    #: Its `listen` has the ports that the supervisor holds.
    settings: ManagementSection
    tls: TlsFiles


def of_management(now: InForce) -> ManagementRuntime:
    """Give what the one process needs."""
    section = now.config.management
    return ManagementRuntime(node=now.node.node, settings=section, tls=files_of(section, now.config.router))


def processes(config: NodeConfig) -> int:
    """Say how many there are: none without an address."""
    return 1 if config.management.listen else 0
