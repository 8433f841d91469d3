"""What a bridge process is told by the controller, again whenever that changes."""

from __future__ import annotations

import msgspec


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
