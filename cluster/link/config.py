"""What a link process is told by the controller, again whenever that changes."""

from __future__ import annotations

import msgspec


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
