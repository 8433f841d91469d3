"""What the supervisor tells the management process at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of ManagementRuntime
from angarium_server.tokens.config import TokenIssuer  # noqa: TC001 - the same
from cluster.configuration.management import ManagementSection, OidcSection, files_of

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce


class ManagementRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Where operators come in, and what they may cost."""

    node: str
    #: Its `listen` has the ports that the supervisor holds.
    settings: ManagementSection
    tls: TlsFiles
    #: Whose tokens operators may log in with; their audience is that of such tokens.
    issuers: list[TokenIssuer] = []
    oidc: OidcSection = msgspec.field(default_factory=OidcSection)


def of_management(now: InForce) -> ManagementRuntime:
    """Give what the one process needs."""
    section = now.config.management
    issuers = [
        msgspec.structs.replace(
            one,
            audience=section.token_audience or one.audience,
            username_claim=section.token_claim,
        )
        for one in now.config.issuers
        if one.name in section.token_issuers
    ]
    files = files_of(section, now.config.router)
    return ManagementRuntime(
        node=now.node.node, settings=section, tls=files, issuers=issuers, oidc=now.config.oidc
    )


def processes(config: NodeConfig) -> int:
    """Say how many there are: none without an address."""
    return 1 if config.management.listen else 0
