"""What becomes of a message that crosses a bridge: how often it has, and where it has been.

Each crossing adds the Message VPN that the message is taken from to its trail. It is dropped if it would be taken
into a Message VPN that it has been in, so that opposite bridges whose subscriptions overlap, and triangles, make no
loop; or if it has crossed as many bridges as the bridge allows.

    trail            taken from   into    max_hops
    -                a/x          a/y     8         goes on with the trail a/x
    a/y, a/z         a/x          a/y     8         was in a/y: dropped
    a/p, a/q         a/x          a/y     2         would be the third hop: dropped

Nodes that are joined by links share a Message VPN of one name: what was in it on one of them was in it on all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium import trail
from cluster.relay.frames import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.trail import Route
    from cluster.relay.direct import OpenRow

VISITED: Final = "visited"
TOO_MANY_HOPS: Final = "max_hops"
#: Trails whose verdict is remembered; messages of one origin share one.
_KNOWN_MAX: Final = 1_000
_decode_meta: Final = msgspec.msgpack.Decoder(Meta | None).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class Crossing:
    """Judges messages that cross one bridge, and extends their trails."""

    def __init__(self, source: str, vpn: str, nodes: Iterable[str], max_hops: int) -> None:
        """Judge what goes from `source` into `vpn`; `nodes` are this one and those that it has links to."""
        self._source = source
        self._vpn = vpn
        self._max_hops = max_hops
        #: Trail as it came -> as it goes on, or why it does not; at most _KNOWN_MAX.
        self._known: dict[Route, tuple[str | None, ...] | str] = {}
        #: Messages that were dropped, by reason.
        self.dropped = {VISITED: 0, TOO_MANY_HOPS: 0}
        self.join(nodes)

    def join(self, nodes: Iterable[str]) -> None:
        """Take note of the nodes that share the Message VPN now."""
        self._here = frozenset(trail.place(node, self._vpn) for node in nodes)
        self._known.clear()

    def admit(self, rows: list[OpenRow]) -> list[OpenRow]:
        """Give the direct messages that go on, with their trails; numbered anew, as they may be of several rounds."""
        admitted: list[OpenRow] = []
        for row in rows:
            ttl_ms, delay_ms, priority, route = _decode_meta(row[3]) or (0, 0, None, None)
            goes_on = self.cross(route)
            if not isinstance(goes_on, str):
                meta = msgspec.Raw(_encode((ttl_ms, delay_ms, priority, goes_on)))
                admitted.append((len(admitted), *row[1:3], meta, *row[4:]))
        return admitted

    def cross(self, route: Route) -> tuple[str | None, ...] | str:
        """Give what the message goes on with, or why it is dropped, which is counted."""
        known = self._known.get(route)
        if known is None:
            known = self._judge(route)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[route] = known
        if isinstance(known, str):
            self.dropped[known] += 1
        return known

    def _judge(self, route: Route) -> tuple[str | None, ...] | str:
        places = trail.places_of(route)
        if any(place in self._here for place in places):
            return VISITED
        if len(places) >= self._max_hops:
            return TOO_MANY_HOPS
        return trail.extended(route, self._source)
