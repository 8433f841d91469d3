"""What the supervisor tells link and bridge processes at their start."""

from __future__ import annotations

import msgspec

from cluster.relay.encryption import LinkFiles
from router.ground.config import Identity


class RelayRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is, and what encrypts its connections."""

    node: str
    identity: Identity = Identity()
    files: LinkFiles = LinkFiles()
