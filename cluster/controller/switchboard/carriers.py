"""Reconciles link and bridge processes with the catalog: which must exist, and the configuration of each.

Desired and actual state are compared whenever objects or processes have changed. Requests are not remembered, so lost
frames, restarts of the controller and renamed objects need no special handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.switchboard.effects import RunProcesses

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.controller.catalog.catalog import Catalog
    from cluster.controller.switchboard.switchboard import Place, Switchboard

Row = dict[str, Any]


class Carriers:
    """The processes of one role, which come and go with objects."""

    def __init__(
        self, board: Switchboard, catalog: Catalog, role: str, configurations: Callable[[], dict[int, Row]]
    ) -> None:
        """See to the processes of a role.

        Args:
            board: asks and tells.
            catalog: what `configurations` looks at.
            role: of the processes; each is told what it is to do by the request `<role>_config`.
            configurations: gives for each process that there has to be its index, and what it is told.
        """
        self._board = board
        self._catalog = catalog
        self._role = role
        self._configurations = configurations
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
        wanted = self._configurations()
        if set(wanted) != set(self.wanted):
            self._board.emit(RunProcesses(self._role, list(wanted)))
        self.wanted = wanted

    def _tell(self, place: Place, incarnation: int, wanted: Row, now: float) -> None:
        gathering = self._board.gather(None, now)
        self._told[place] = (incarnation, wanted)
        number = self._board.ask(place, f"{self._role}_config", wanted, gathering)

        def finish(answers: dict[int, Any]) -> None:
            if number not in answers:
                self._told.pop(place, None)

        gathering.finish = finish
        self._board.end_if_complete(gathering)
