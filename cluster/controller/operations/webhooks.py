"""Operations on webhooks: how they do.

operation       arguments                       answer
webhooks.list   name="*", vpn=None              webhook objects with their state and their figures
webhooks.show   name, vpn="default"             one of them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.webhook.role import WEBHOOK

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard

Row = dict[str, Any]
#: All are in one process.
_PLACE: Final = (WEBHOOK.name, 0)
#: Of one that is not there.
_NOTHING: Final[Row] = {
    "state": "down",
    "error": "",
    "last_failure": "",
    "last_failure_s": None,
    **dict.fromkeys(
        (*("attempts", "accepted", "failed", "rejected"), "under_way", "waiting", "held_bytes"), 0
    ),
}


class WebhookOperations:
    """The webhooks of the node."""

    def __init__(self, board: Switchboard, catalog: Catalog, processes: ObjectProcesses) -> None:
        self._board = board
        self._catalog = catalog
        self._processes = processes
        self.operations: Handlers = {"webhooks.list": self._list, "webhooks.show": self._show}

    def _list(self, request: arguments.NamesArguments, asker: Asker, now: float) -> None:
        self._gather(self._catalog.find("webhook", request.vpn, request.name), asker, now, lambda rows: rows)

    def _show(self, request: arguments.NameArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show("webhook", request.vpn, request.name)
        self._gather([found], asker, now, lambda rows: rows[0])

    def _gather(self, webhooks: list[Row], asker: Asker, now: float, pick: Any) -> None:
        asked = {_PLACE: (_PLACE, "webhooks", None)} if self._processes.wanted else {}

        def finish(answers: dict[Any, Any]) -> Any:
            told = answers.get(_PLACE) or {}
            return pick([describe(one, told.get(f"{one['vpn']}/{one['name']}")) for one in webhooks])

        self._board.collect_view(asker, now, asked, finish)


def describe(webhook: Row, told: Row | None) -> Row:
    """Give a webhook object with its state and what its process says."""
    if not webhook["enabled"]:
        return {**webhook, **_NOTHING, "state": "disabled"}
    return {**webhook, **(told or {**_NOTHING, "error": "its process is not there yet"})}
