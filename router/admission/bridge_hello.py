"""What a bridge process says of itself in HELLO, at the far router and at its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from angarium import wire


class BridgeHello(msgspec.Struct, frozen=True):
    """Name and place of a bridge: the Message VPN that it takes messages into."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    vpn: Annotated[str, Meta(min_length=1, max_length=32)]
    node: Annotated[str, Meta(min_length=1, max_length=64)]
    node_id: Annotated[str, Meta(min_length=1, max_length=64)]
    #: Of the process: its successor has a higher one.
    incarnation: Annotated[int, Meta(ge=0, le=1 << 62)]

    @property
    def client_name(self) -> str:
        """Give the name of its sessions."""
        return f"{wire.BRIDGE_NAME_PREFIX}{self.node}/{self.vpn}/{self.name}"
