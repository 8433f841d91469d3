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
    """The newest figures of the processes of all roles that have some."""

    def __init__(self, board: Switchboard, processes: Mapping[str, ObjectProcesses]) -> None:
        """Begin without any; `processes` are those that come and go with objects, by role."""
        self._board = board
        self._processes = processes
        #: One for each process that was asked last; without figures if it did not answer.
        self.newest: list[Sample] = []

    def sample(self, now: float) -> None:
        """Ask them all."""
        labels = self._labels()
        if not labels:
            self.newest = []
            return
        gathering = self._board.gather_view(None, now)
        asked = {place: self._board.ask(place, _operation(place), None, gathering) for place in labels}

        def finish(answers: dict[int, Any]) -> None:
            self.newest = [
                Sample(ROLES[place[0]], labels[place], answers.get(number) or {})
                for place, number in asked.items()
            ]

        gathering.finish = finish
        self._board.end_if_complete(gathering)

    def _labels(self) -> dict[Place, dict[str, str]]:
        """Give the processes to ask, each with its labels."""
        found: dict[Place, dict[str, str]] = {}
        for role in ROLES.values():
            if role.figures is None:
                continue
            if role.name in self._processes:
                for index, told in self._processes[role.name].wanted.items():
                    names = {name: str(told[name]) for name in role.figures.labels}
                    found[role.name, index] = names or {"index": str(index)}
            else:
                places = sorted(place for place in self._board.peers if place[0] == role.name)
                found.update({place: {"index": str(place[1])} for place in places})
        return found


def _operation(place: Place) -> str:
    figures = ROLES[place[0]].figures
    assert figures is not None, f"{place} has none"
    return figures.operation
