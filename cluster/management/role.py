"""What the management process is among the processes of a node, and what it shows."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics
from cluster.management.config import of_management, processes
from cluster.roles.role import Indices, Role

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
