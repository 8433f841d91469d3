"""What processes told last of how they do, for `/metrics`: asked each second, so that nobody is when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.health.metrics import Sample
from cluster.roster.table import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Place, Switchboard


class Samples:
    """The newest metrics of the processes of all roles that have some."""

    def __init__(self, board: Switchboard, processes: Mapping[str, ObjectProcesses]) -> None:
        """Begin without any; `processes` are those that come and go with objects, by role."""
        self._board = board
        self._processes = processes
        #: One for each process that was asked last; without values if it did not answer.
        self.newest: list[Sample] = []

    def sample(self, now: float) -> None:
        """Ask them all."""
        labels = self._labels()
        if not labels:
            self.newest = []
            return

        def finish(answers: dict[Place, Any]) -> None:
            self.newest = [
                Sample(ROLES[place[0]], label, answers.get(place) or {}) for place, label in labels.items()
            ]

        asked = {place: (place, ROLES[place[0]].metrics_operation, None) for place in labels}
        self._board.collect_view(None, now, asked, finish)

    def _labels(self) -> dict[Place, dict[str, str]]:
        """Give the processes to ask, each with its labels."""
        found: dict[Place, dict[str, str]] = {}
        for role in ROLES.values():
            if role.metrics is None:
                continue
            if role.name in self._processes:
                for index, told in self._processes[role.name].wanted.items():
                    names = {name: str(told[name]) for name in role.metric_labels}
                    found[role.name, index] = names or {"index": str(index)}
            else:
                places = sorted(place for place in self._board.peers if place[0] == role.name)
                found.update({place: {"index": str(place[1])} for place in places})
        return found
