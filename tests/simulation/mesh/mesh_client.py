"""A client of a simulated mesh: it writes down by which subscription direct copies of guaranteed messages came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

if TYPE_CHECKING:
    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.mesh.mesh_history import NodeHistory


class MeshClient(GuaranteedClient):
    """One client of one node."""

    history: NodeHistory

    def demoted(self, record: ConnectionRecord, number: int, share: str | None) -> None:
        """A direct copy of a guaranteed message came."""
        super().demoted(record, number, share)
        self.history.copies.append((record, number, share, self.loop.now))
