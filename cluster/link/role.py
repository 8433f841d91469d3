"""What a link process is among the processes of a node, what the controller tells it, and what its channels show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium_server.frames.metrics import Metrics
from cluster.relay.runtime import of_relay
from cluster.roles.role import Indices, Role
from router.links.gate import opens

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog

CHANNEL: Final = Metrics(
    "channel",
    """
    attempts | counter | number | of the link process to connect, since it started
    relayed_in, relayed_out | counter | messages | direct ones, carried by the link process since the link came up
    rounds_waiting, wishes_waiting | gauge | number | waiting in the link process for a router
    untold_in, untold_out | gauge | number | those of them that are not announced yet to this node, or to the neighbour
    discarded | counter | messages | lost on the way through the link process, or before it
    refused | counter by code | messages | refused by a router
    queues | | | of the two queues of each direction: `queue`, `open`, `waiting`, `under_way`, `acknowledged`, and
     `refused` by code; in messages, since the link came up
    """,
)


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the controller tells of one link."""

    #: Name of the node on the other side.
    neighbour: str
    #: Tried in turn.
    addresses: list[str]
    #: The name that its certificate must have; empty: that of the node.
    server_name: str = ""
    #: The Message VPNs that it joins.
    vpns: list[str]


def links_to_run(catalog: Catalog, node: str) -> dict[int, dict[str, Any]]:
    """Give what each link process of this node has to do; links that the other side opens have none."""
    vpns = sorted(name for (_, name), vpn in catalog.of_kind("vpn").items() if vpn["enabled"])
    return {
        link["number"]: {
            "neighbour": name,
            "addresses": link["addresses"],
            "server_name": link["server_name"],
            "vpns": vpns,
        }
        for (_, name), link in catalog.of_kind("link").items()
        if link["enabled"] and opens(node, name, link["initiator"])
    }


LINK: Final = Role(
    name="link",
    module="cluster.link",
    runtime=of_relay,
    stop_turn=20,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=links_to_run,
)
