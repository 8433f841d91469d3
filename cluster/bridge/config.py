"""Which bridge processes there have to be, and what each is told by the controller, again whenever that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.objects.bridges import Bridge

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog


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
