"""Operations on bridges and webhooks: how they do, as the processes that see to them tell.

operation                       arguments                       answer
bridges.list, webhooks.list     name="*", vpn=None              objects with their state and their metrics
bridges.show, webhooks.show     name, vpn="default"             one of them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.bridge.role import BRIDGE
from cluster.webhook.role import WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Question, Switchboard

Row = dict[str, Any]
_NO_PROCESS: Final = "its process is not there yet"
#: Of a webhook that is not there.
_NOTHING: Final[Row] = {
    "state": "down",
    "error": "",
    "last_failure": "",
    "last_failure_s": None,
    **dict.fromkeys(
        (*("attempts", "accepted", "failed", "rejected"), "under_way", "waiting", "held_bytes"), 0
    ),
}


class BridgeOperations:
    """The bridges of the node, each of which has a process."""

    kind = BRIDGE.name

    def __init__(self, board: Switchboard, catalog: Catalog, processes: ObjectProcesses) -> None:
        self._board = board
        self._catalog = catalog
        self._processes = processes
        self.operations: Handlers = {f"{self.kind}s.list": self._list, f"{self.kind}s.show": self._show}

    def _list(self, request: arguments.NamesArguments, asker: Asker, now: float) -> None:
        self._gather(self._catalog.find(self.kind, request.vpn, request.name), asker, now, lambda rows: rows)

    def _show(self, request: arguments.NameArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show(self.kind, request.vpn, request.name)
        self._gather([found], asker, now, lambda rows: rows[0])

    def _gather(self, objects: list[Row], asker: Asker, now: float, pick: Callable[[list[Row]], Any]) -> None:
        """Ask the processes how the objects do."""

        def finish(answers: dict[Any, Any]) -> Any:
            return pick([self._described(one, answers) for one in objects])

        self._board.collect_view(asker, now, self._questions(objects), finish)

    def _questions(self, bridges: list[Row]) -> dict[Any, Question]:
        numbers = [one["number"] for one in bridges if one["number"] in self._processes.wanted]
        return {number: ((self.kind, number), "stats", None) for number in numbers}

    def _described(self, bridge: Row, answers: dict[Any, Any]) -> Row:
        """Give an object with its state and what its process says."""
        process = answers.get(bridge["number"])
        state = "down" if bridge["enabled"] else "disabled"
        error = "" if process or not bridge["enabled"] else _NO_PROCESS
        return {**bridge, "state": state, "error": error, **(process or {})}


class WebhookOperations(BridgeOperations):
    """The webhooks of the node, all of which are in one process."""

    kind = WEBHOOK.name

    def _questions(self, _webhooks: list[Row]) -> dict[Any, Question]:
        return {0: ((self.kind, 0), "webhooks", None)} if self._processes.wanted else {}

    def _described(self, webhook: Row, answers: dict[Any, Any]) -> Row:
        if not webhook["enabled"]:
            return {**webhook, **_NOTHING, "state": "disabled"}
        told = (answers.get(0) or {}).get(f"{webhook['vpn']}/{webhook['name']}")
        return {**webhook, **(told or {**_NOTHING, "error": _NO_PROCESS})}
