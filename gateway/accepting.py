"""What clients of a carrier are done with of their queues, gathered until the end of a turn: one frame for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from gateway.session import GatewaySession


class Accepting:
    """Messages that the router is to hear of."""

    def __init__(self) -> None:
        """Begin with none."""
        #: Flow -> its client, and ranges of positions; the oldest first.
        self._gathered: dict[FlowWindow, tuple[int, list[Range]]] = {}

    def __len__(self) -> int:
        """Count the flows."""
        return len(self._gathered)

    def add(self, number: int, window: FlowWindow, position: int) -> None:
        """Gather a message of a client."""
        known = self._gathered.get(window)
        if known is None or not known[1]:
            self._gathered[window] = number, [(0, position, position)]
            return
        partition, first, last = known[1][-1]
        if position == last + 1:
            known[1][-1] = partition, first, position
        else:
            known[1].append((0, position, position))

    def renew(self, number: int, window: FlowWindow) -> None:
        """Have more granted to a flow, though nothing of it is to be accepted."""
        self._gathered.setdefault(window, (number, []))

    def send(self, session: GatewaySession, has_room: Callable[[GatewaySession], bool]) -> None:
        """Tell the router, as long as there is room for frames."""
        while self._gathered and has_room(session):
            window, (number, ranges) = next(iter(self._gathered.items()))
            del self._gathered[window]
            session.accept(number, window, ranges)
