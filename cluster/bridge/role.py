"""What a bridge process is among the processes of a node, what the controller tells it, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium_server.frames.metrics import Metrics
from cluster.objects.bridges import Bridge
from cluster.relay.runtime import of_relay
from cluster.roles.role import Indices, Role

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog

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


class BridgeConfig(Bridge, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the controller tells of one bridge: its attributes, and where it is."""

    name: str
    #: The Message VPN that it belongs to.
    vpn: str
    #: The nodes to which this one has links: a Message VPN of the same name there is the same Message VPN.
    neighbours: list[str]


def bridges_to_run(catalog: Catalog, _node: str) -> dict[int, dict[str, Any]]:
    """Give what each bridge process has to do; one in a Message VPN that is disabled has none."""
    vpns = {name for (_, name), vpn in catalog.of_kind("vpn").items() if vpn["enabled"]}
    neighbours = sorted(name for (_, name), link in catalog.of_kind("link").items() if link["enabled"])
    return {
        bridge["number"]: {
            **{attribute: bridge[attribute] for attribute in Bridge.__struct_fields__},
            "name": name,
            "vpn": vpn,
            "neighbours": neighbours,
        }
        for (vpn, name), bridge in catalog.of_kind("bridge").items()
        if bridge["enabled"] and vpn in vpns
    }


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
