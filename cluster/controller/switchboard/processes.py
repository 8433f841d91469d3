"""Reconciles processes that come and go with objects, as links and bridges do: which must exist, and what each is told.

Desired and actual state are compared whenever objects or processes have changed. Requests are not remembered, so lost
frames, restarts of the controller and renamed objects need no special handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.switchboard.effects import RunProcesses

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.switchboard import Place, Switchboard
    from cluster.roles.role import Role

Row = dict[str, Any]


class ObjectProcesses:
    """The processes of one role, which come and go with objects."""

    def __init__(self, board: Switchboard, catalog: Catalog, role: Role, node: str) -> None:
        self._board = board
        self._catalog = catalog
        self._role = role.name
        assert role.wanted is not None, f"nothing says which {role.name} processes there have to be"
        self._configurations = role.wanted
        self._node = node
        #: Index -> what its process is to do; right as of `_revision` of the catalog.
        self.wanted: dict[int, Row] = {}
        self._revision = -1
        #: Place -> (incarnation, what it was told last).
        self._told: dict[Place, tuple[int, Row]] = {}

    def tick(self, now: float) -> None:
        """Compare what is wanted with what there is, and ask for the difference."""
        self._look_at_catalog()
        for index, wanted in self.wanted.items():
            place = (self._role, index)
            peer = self._board.peers.get(place)
            if peer is not None and self._told.get(place) != (peer.incarnation, wanted):
                self._tell(place, peer.incarnation, wanted, now)

    def node_news(self) -> None:
        """The supervisor told which processes there are."""
        self._look_at_catalog()
        rows = self._board.node.get("processes", ())
        if {row["index"] for row in rows if row["role"] == self._role} != set(self.wanted):
            self._board.emit(RunProcesses(self._role, list(self.wanted)))

    def _look_at_catalog(self) -> None:
        if self._revision == self._catalog.revision:
            return
        self._revision = self._catalog.revision
        wanted = self._configurations(self._catalog, self._node)
        if set(wanted) != set(self.wanted):
            self._board.emit(RunProcesses(self._role, list(wanted)))
        self.wanted = wanted

    def _tell(self, place: Place, incarnation: int, wanted: Row, now: float) -> None:
        self._told[place] = (incarnation, wanted)

        def finish(answers: dict[Place, Any]) -> None:
            if place not in answers:
                self._told.pop(place, None)

        self._board.collect(None, now, {place: (place, f"{self._role}_config", wanted)}, finish)
