"""What a bridge process is among the processes of a node, and what it shows."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics
from cluster.bridge.config import bridges_to_run
from cluster.relay.runtime import of_relay
from cluster.roles.role import Indices, Role

METRICS: Final = Metrics(
    "bridge",
    """
    state, error | | | [bridges.md](bridges.md#looking-at-bridges)
    up | gauge | 0, 1 | on `/metrics` only: whether that is its state
    step | | | what it does: `waiting`, `calling` the remote node, `joining` its own, `up`
    remote_node | | | the node that answered
    encrypted | gauge | 0, 1 | whether TLS encrypts the connection
    uptime_s | gauge | s | since it is up
    attempts | counter | number | to connect, since its process started
    messages | counter | messages | direct ones that it took
    guaranteed_messages | counter | messages | those of the remote queue that are stored here
    queued_messages | gauge | messages | that the remote queue holds; empty if that is not known
    under_way | gauge | messages | of them, taken and not settled yet
    lag_ms | gauge | ms | how long the remote node takes to answer
    dropped | counter by reason | messages | not taken: `visited`, they have been here; `max_hops`, they have
     crossed too many bridges
    discarded | counter | messages | dropped on the remote node because the bridge was slow, or too large for a
     batch here
    rounds_waiting | gauge | number | batches that wait for this node
    refused | counter by code | messages | refused by this node
    """,
)

BRIDGE: Final = Role(
    name="bridge",
    module="cluster.bridge",
    runtime=of_relay,
    stop_turn=10,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=bridges_to_run,
    metrics=METRICS,
    metric_labels=("name", "vpn"),
)
