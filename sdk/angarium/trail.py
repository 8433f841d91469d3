"""Where a message has been: the Message VPNs from which bridges took it, one after the other.

The last field of a message's meta is its partition key, or nothing. Of a message that came over a bridge it is an
array: the key, and then the places that the message has been in, oldest first. So a message that never crossed a
bridge costs nothing more, and the type alone tells the two apart: a batch of a client in which that field is an array
is refused while it is decoded, so no client can say where a message has been.

    None, "customer-7"                          keys as publishers give them
    [None, "berlin/orders"]                     came from Message VPN orders of node berlin
    ["customer-7", "munich/hq", "berlin/hq"]    crossed two bridges
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from angarium import wire

#: Key and places; a message with more places than hops are allowed was never made by a node.
_Trail: TypeAlias = Annotated[
    tuple[str | None, ...], msgspec.Meta(min_length=2, max_length=1 + wire.HOPS_MAX)
]
#: The last field of meta.
Route: TypeAlias = str | _Trail | None


def place(node: str, vpn: str) -> str:
    """Give the name of a Message VPN of a node among places; neither name has a slash."""
    return f"{node}/{vpn}"


def key_of(route: Route) -> str | None:
    """Give the partition key of a message."""
    return route[0] if isinstance(route, tuple) else route


def places_of(route: Route) -> tuple[str | None, ...]:
    """Give the places that a message has been in, oldest first."""
    return route[1:] if isinstance(route, tuple) else ()


def extended(route: Route, last: str) -> tuple[str | None, ...]:
    """Give the last field of the meta of a message that is taken from one more place."""
    return (key_of(route), *places_of(route), last)
