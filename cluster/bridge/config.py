"""Which bridge processes there have to be, and what each is told by the controller, again whenever that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog


class BridgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the controller tells of one bridge; the attributes of the object mean the same."""

    name: str
    #: The Message VPN that it belongs to.
    vpn: str
    remote_vpn: str
    #: Tried in turn; none: the remote Message VPN is one of this node.
    addresses: list[str]
    server_name: str
    ca_pem: str
    remote_username: str
    remote_password_file: str
    remote_subscriptions: list[str]
    remote_deliver_always_subscriptions: list[str]
    remote_deliver_to_one_priority: str
    remote_queue: str
    max_hops: int
    #: The nodes to which this one has links: a Message VPN of the same name there is the same Message VPN.
    neighbours: list[str]


#: What a bridge process is told as it stands in the object.
_TOLD: Final = [name for name in BridgeConfig.__struct_fields__ if name not in ("name", "vpn", "neighbours")]


def bridges_to_run(catalog: Catalog, _node: str) -> dict[int, dict[str, Any]]:
    """Give what each bridge process has to do; one in a Message VPN that is disabled has none."""
    vpns = {name for (_, name), vpn in catalog.of_kind("vpn").items() if vpn["enabled"]}
    neighbours = sorted(name for (_, name), link in catalog.of_kind("link").items() if link["enabled"])
    return {
        bridge["number"]: {
            "name": name,
            "vpn": vpn,
            "neighbours": neighbours,
            **{attribute: bridge[attribute] for attribute in _TOLD},
        }
        for (vpn, name), bridge in catalog.of_kind("bridge").items()
        if bridge["enabled"] and vpn in vpns
    }
