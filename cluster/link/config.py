"""Which link processes there have to be, and what each is told by the controller, again whenever that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from router.links.gate import opens

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog


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
