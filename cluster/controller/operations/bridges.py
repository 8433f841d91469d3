"""Operations on bridges: how they do.

operation       arguments                       answer
bridges.list    name="*", vpn=None              bridge objects with their state and their metrics
bridges.show    name, vpn="default"             one of them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.bridge.role import BRIDGE

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard

Row = dict[str, Any]


class BridgeOperations:
    """The bridges of the node."""

    def __init__(self, board: Switchboard, catalog: Catalog, processes: ObjectProcesses) -> None:
        self._board = board
        self._catalog = catalog
        self._processes = processes
        self.operations: Handlers = {
            "bridges.list": self._list,
            "bridges.show": self._show,
        }

    # -- operations ------------------------------------------------------------------------------------------

    def _list(self, request: arguments.NamesArguments, asker: Asker, now: float) -> None:
        self._gather(self._catalog.find("bridge", request.vpn, request.name), asker, now, lambda rows: rows)

    def _show(self, request: arguments.NameArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show("bridge", request.vpn, request.name)
        self._gather([found], asker, now, lambda rows: rows[0])

    def _gather(self, bridges: list[Row], asker: Asker, now: float, pick: Any) -> None:
        """Ask bridge processes how they do."""
        numbers = [one["number"] for one in bridges if one["number"] in self._processes.wanted]
        asked = {number: ((BRIDGE.name, number), "stats", None) for number in numbers}

        def finish(answers: dict[int, Any]) -> Any:
            return pick([describe(one, answers.get(one["number"])) for one in bridges])

        self._board.collect_view(asker, now, asked, finish)


def describe(bridge: Row, process: Row | None) -> Row:
    """Give a bridge object with its state and what its process says."""
    state = "down" if bridge["enabled"] else "disabled"
    error = "" if process or not bridge["enabled"] else "its process is not there yet"
    return {**bridge, "state": state, "error": error, **(process or {})}
