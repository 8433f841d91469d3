"""What lies between two nodes: how slow it is, which directions are cut, and everything that a link has on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.simulated_network import Connection


class Cable:
    """The way between the two nodes of a link."""

    def __init__(self, nodes: tuple[str, str], delay_max_s: float) -> None:
        self.nodes = nodes
        self.delay_max_s = delay_max_s
        #: Directions that are cut, away from the link process and towards it: what is under way waits.
        self._is_up_cut = self._is_down_cut = False
        self._connections: list[Connection] = []

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is cut."""
        return not self._is_up_cut and not self._is_down_cut

    def carry(self, connection: Connection) -> None:
        """Take a new connection, which suffers as the others do."""
        self._connections = [one for one in self._connections if not (one.up.closed and one.down.closed)]
        self._connections.append(connection)
        self._stall()

    def cut(self, *, up: bool, down: bool) -> None:
        """Begin a partition in one direction or both."""
        self._is_up_cut |= up
        self._is_down_cut |= down
        self._stall()

    def _stall(self) -> None:
        for connection in self._connections:
            if self._is_up_cut:
                connection.up.stall()
            if self._is_down_cut:
                connection.down.stall()

    def heal(self) -> None:
        """End every partition."""
        self._is_up_cut = self._is_down_cut = False
        for connection in self._connections:
            connection.heal()

    def sever(self, *, near_notices: bool, far_notices: bool) -> None:
        """Every connection that there is breaks for good."""
        for connection in self._connections:
            connection.sever(near_notices=near_notices, far_notices=far_notices)
