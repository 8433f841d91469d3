"""Guaranteed messages on their way over a bridge: carried exactly once, as those of a link are.

The queue is one of the remote Message VPN, which others may use too. So the bridge may have to stand by until it is
the active consumer, and what the queue holds is not made for it: direct messages that it attracted, messages that have
been here before. A message

    that has been in this Message VPN               is accepted there: it is here already
    that has crossed too many bridges               is rejected: it goes to the dead message queue of the queue
    that an endpoint here refuses                   is rejected too; redriven it is tried again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from angarium import wire
from cluster.bridge.crossing import VISITED
from cluster.relay.spooled import Forwarder, aged

if TYPE_CHECKING:
    from cluster.bridge.crossing import Crossing
    from cluster.relay.frames import Row
    from cluster.relay.session import LinkSession


class BridgeForwarder(Forwarder):
    """Carries the messages of the remote queue of a bridge."""

    PRODUCER_PREFIX: ClassVar[str] = wire.BRIDGE_NAME_PREFIX
    MORE_WISHES: ClassVar[dict[str, Any]] = {"active_indication": True}

    def __init__(
        self, source: LinkSession, target: LinkSession, queue: str, clock_offset_ms: int, crossing: Crossing
    ) -> None:
        """Begin as a forwarder does; `crossing` judges the messages."""
        super().__init__(source, target, queue, clock_offset_ms)
        self._crossing = crossing
        #: True while another consumer has the queue.
        self.is_standing_by = False

    def _bound(self, value: dict[str, Any]) -> None:
        self.is_standing_by = not value["active"]
        if not self.is_standing_by:
            super()._bound(value)
        else:
            self.flow, self._endpoint_id = int(value["flow"]), int(value["endpoint_id"])

    def activated(self, flow: int) -> None:
        """The flow is the active one; only then a producer is opened, which would fence that of another bridge."""
        if flow == self.flow and self.is_standing_by:
            self.is_standing_by = False
            self.open()

    def _admit(self, position: int, row: Row, age_ms: int, origin: tuple[str, str, str] | None) -> None:
        del origin
        ttl_ms, delay_ms, priority, route = (0, 0, None, None) if row[3] is None else aged(row[3], age_ms)
        goes_on = self._crossing.cross(route)
        if isinstance(goes_on, str):
            outcome = wire.OUTCOME_ACCEPTED if goes_on == VISITED else wire.OUTCOME_REJECTED
            self._drop(position, outcome)
            return
        flags = row[2] if row[2] & wire.FLAG_MODE else row[2] | wire.MODE_NON_PERSISTENT
        self._add(position, (row[0], row[1], flags, (ttl_ms, delay_ms, priority, goes_on), row[4], row[5]))
