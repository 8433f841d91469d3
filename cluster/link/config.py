"""What a link process is told: by the supervisor at its start, and by the controller whenever it changes."""

from __future__ import annotations

import msgspec

from cluster.relay.encryption import LinkFiles
from router.ground.config import Identity


class LinkRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor writes for the links."""

    node: str
    identity: Identity = Identity()
    files: LinkFiles = LinkFiles()


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
