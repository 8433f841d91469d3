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
        #: Number of the client -> ranges of positions of its flow; the oldest first.
        self._gathered: dict[int, tuple[FlowWindow, list[Range]]] = {}

    def __len__(self) -> int:
        """Count the clients."""
        return len(self._gathered)

    def add(self, number: int, window: FlowWindow, position: int) -> None:
        """Gather a message; those of an earlier flow of the client come again whatever is said of them."""
        known = self._gathered.get(number)
        if known is None or known[0] is not window:
            self._gathered[number] = window, [(0, position, position)]
            return
        partition, first, last = known[1][-1]
        if position == last + 1:
            known[1][-1] = partition, first, position
        else:
            known[1].append((0, position, position))

    def send(self, session: GatewaySession, has_room: Callable[[GatewaySession], bool]) -> None:
        """Tell the router, as long as there is room for frames."""
        while self._gathered and has_room(session):
            number = next(iter(self._gathered))
            session.accept(number, *self._gathered.pop(number))
