"""What the supervisor tells the gateway process of HTTP at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of HttpRuntime
from cluster.configuration.http import HttpSection  # noqa: TC001 - the same
from cluster.configuration.listening import files_of

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce


class HttpRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients come in, what they may cost, and what shows the router that this is a process of its node."""

    node: str
    #: Its `listen` has the ports that the supervisor holds.
    settings: HttpSection
    max_message_bytes: int
    tls: TlsFiles
    local_secret: str


def of_http(now: InForce) -> HttpRuntime:
    """Give what the one process needs."""
    section = now.config.http
    return HttpRuntime(
        node=now.node.node,
        settings=section,
        max_message_bytes=now.config.router.max_message_bytes,
        tls=files_of(section, now.config.router),
        local_secret=now.identity.local_secret,
    )


def processes(config: NodeConfig) -> int:
    """Say how many there are: none without an address."""
    return 1 if config.http.listen else 0
