"""What clients of a carrier are done with of their queues, gathered until the end of a turn: one frame for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from gateway.session import GatewaySession


class Accepting:
    """Messages that the router is to hear of."""

    def __init__(self) -> None:
        #: Flow and outcome -> its client, and ranges of positions; the oldest first.
        self.gathered: dict[tuple[FlowWindow, int], tuple[int, list[Range]]] = {}

    def add(
        self,
        number: int,
        window: FlowWindow,
        position: int,
        partition: int = 0,
        outcome: int = wire.OUTCOME_ACCEPTED,
    ) -> None:
        """Gather a message of a client."""
        key = window, outcome
        known = self.gathered.get(key)
        if known is None or not known[1]:
            self.gathered[key] = number, [(partition, position, position)]
            return
        at, first, last = known[1][-1]
        if position == last + 1 and at == partition:
            known[1][-1] = partition, first, position
        else:
            known[1].append((partition, position, position))

    def renew(self, number: int, window: FlowWindow) -> None:
        """Have more granted to a flow, though nothing of it is to be accepted."""
        self.gathered.setdefault((window, wire.OUTCOME_ACCEPTED), (number, []))

    def send(self, session: GatewaySession, has_room: Callable[[GatewaySession], bool]) -> None:
        """Tell the router, as long as there is room for frames."""
        while self.gathered and has_room(session):
            (window, outcome), (number, ranges) = next(iter(self.gathered.items()))
            del self.gathered[window, outcome]
            session.settle(number, window, outcome, ranges)
