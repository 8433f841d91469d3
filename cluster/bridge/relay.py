"""Direct messages on their way over a bridge: like those of a link, but each gets its trail, or is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.relay.direct import OpenRow, Relay
from cluster.relay.frames import Meta

if TYPE_CHECKING:
    from angarium.client.protocol.events import Welcome
    from cluster.bridge.crossing import Crossing
    from cluster.relay.session import LinkSession, Passed

_decode_meta: Final = msgspec.msgpack.Decoder(Meta | None).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class BridgeRelay(Relay):
    """Carries the direct messages of the far session to the own one."""

    def __init__(self, source: LinkSession, crossing: Crossing) -> None:
        """Begin; `crossing` judges the messages."""
        super().__init__(source)
        self._crossing = crossing

    def _passes_unopened(self, _event: Passed, _welcome: Welcome) -> bool:
        return False

    def _admitted(self, rows: list[OpenRow]) -> list[OpenRow]:
        """Give what crosses, numbered anew: rows of several rounds may have come in one frame."""
        cross = self._crossing.cross
        admitted: list[OpenRow] = []
        for row in rows:
            ttl_ms, delay_ms, priority, route = _decode_meta(row[3]) or (0, 0, None, None)
            goes_on = cross(route)
            if not isinstance(goes_on, str):
                meta = msgspec.Raw(_encode((ttl_ms, delay_ms, priority, goes_on)))
                admitted.append((len(admitted), *row[1:3], meta, *row[4:]))
        return admitted
