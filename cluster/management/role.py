"""What the management process is among the processes of a node, what it is told at its start, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of ManagementRuntime
from angarium_server.frames.metrics import Metrics
from angarium_server.tokens.config import TokenIssuer  # noqa: TC001 - the same
from cluster.configuration.management import ManagementSection, OidcSection, files_of
from cluster.roles.role import Indices, Role

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce

METRICS: Final = Metrics(
    "management",
    """
    connections | gauge | number | open ones, also those that have asked for nothing yet
    connections_refused | counter | number | that were closed because there were too many
    requests | counter | number | over HTTP
    refused | counter by code | number | requests that were answered with an error, by its code
    logins | counter | number | of operators, by any way; the same again within a minute is one
    logins_failed | counter | number | of anybody, with a password, a token or a certificate that does not count
    logins_put_off | counter | number | that were refused unseen, because too many had failed
    sessions | gauge | number | of browsers, also those that are over and not yet forgotten
    streams | gauge | number | of events and of jobs that are open
    streams_slow | counter | number | streams that were ended because their client did not read
    waiting | gauge | number | requests that the controller has not answered
    in_use_bytes | gauge | bytes | memory that objects of the process have
    """,
)


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


MANAGEMENT: Final = Role(
    name="management",
    module="cluster.management",
    runtime=of_management,
    # Before the controller, which it asks.
    stop_turn=45,
    indices=Indices.CONFIGURED,
    count=processes,
    metrics=METRICS,
)
