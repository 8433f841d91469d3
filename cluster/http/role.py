"""What the gateway process of HTTP is among the processes of a node, what it is told, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium_server.connections.tls import TlsFiles  # noqa: TC001 - msgspec reads the types of HttpRuntime
from angarium_server.frames.metrics import Metrics
from cluster.configuration.http import HttpSection  # noqa: TC001 - the same
from cluster.configuration.listening import files_of
from cluster.roles.role import Indices, Role

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig
    from cluster.roles.role import InForce

METRICS: Final = Metrics(
    "http",
    """
    connections | gauge | number | open ones, also those that have asked for nothing yet
    connections_refused | counter | number | that were closed because there were too many
    requests | counter | number | of clients
    refused | counter by code | number | requests that were answered with an error, by its code
    clients, waiting | gauge | number | clients that are attached to the router, or about to be; those that wait until
     the router is there
    logins | counter | number | of clients at the router, each for the requests of a minute
    messages_in | counter | messages | of clients, given to the router
    streams | gauge | number | streams of events that are open
    streams_slow | counter | number | that were ended because their clients did not read
    messages_out | counter | messages | of topics, given to streams
    leases | gauge | messages | of queues, that requests and streams have got and not settled
    carriers | gauge | number | Message VPNs in which the process has a session with the router
    gathered_messages | gauge | messages | of clients, that wait for the router
    unacknowledged | gauge | messages | of clients, guaranteed ones that are not stored yet
    refused_messages | counter by code | messages | of clients, direct ones that the router refused
    malformed_contexts | counter | messages | of which a malformed traceparent or tracestate was left out
    body_bytes | gauge | bytes | room that bodies have which are on their way in
    in_use_bytes | gauge | bytes | memory that objects of the process have
    """,
)


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


HTTP: Final = Role(
    name="http",
    module="cluster.http",
    runtime=of_http,
    stop_turn=16,
    indices=Indices.CONFIGURED,
    count=processes,
    serves_clients=True,
    metrics=METRICS,
)
