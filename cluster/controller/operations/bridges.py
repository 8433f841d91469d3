"""Bridges as the controller sees to them: which processes there have to be, what each is told, and how they do.

operation       arguments                       answer
bridges.list    name="*", vpn=None              bridge objects with their state and their figures
bridges.show    name, vpn="default"             one of them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.bridge.config import BridgeConfig
from cluster.controller.operations import arguments
from cluster.controller.switchboard.carriers import Carriers

if TYPE_CHECKING:
    from cluster.controller.catalog.catalog import Catalog
    from cluster.controller.switchboard.switchboard import Asker, Switchboard

Row = dict[str, Any]
#: What a bridge process is told as it stands in the object.
_TOLD: Final = [name for name in BridgeConfig.__struct_fields__ if name not in ("name", "vpn", "neighbours")]


class BridgeOperations:
    """The bridges of the node."""

    def __init__(self, board: Switchboard, catalog: Catalog) -> None:
        """See to the bridge objects of this catalog."""
        self._board = board
        self._catalog = catalog
        self.carriers = Carriers(board, catalog, "bridge", self._configurations)
        #: What each bridge that has a process told last, by Message VPN and name.
        self.figures: dict[tuple[str, str], Row] = {}
        self.operations: arguments.Operations = {
            "bridges.list": (arguments.BridgeListArguments, self._list),
            "bridges.show": (arguments.BridgeArguments, self._show),
        }

    def _configurations(self) -> dict[int, Row]:
        """Give what each bridge process has to do; one in a Message VPN that is disabled has none."""
        catalog = self._catalog
        vpns = {name for (_, name), vpn in catalog.of_kind("vpn").items() if vpn["enabled"]}
        neighbours = sorted(name for (_, name), link in catalog.of_kind("link").items() if link["enabled"])
        return {
            bridge["number"]: {
                "name": name,
                "vpn": vpn,
                "neighbours": neighbours,
                **{attribute: bridge[attribute] for attribute in _TOLD},
            }
            for (vpn, name), bridge in catalog.of_kind("bridge").items()
            if bridge["enabled"] and vpn in vpns
        }

    def sample(self, now: float) -> None:
        """Ask bridge processes how they do, for those who will look at it without asking."""
        if not self.carriers.wanted:
            self.figures = {}
            return
        gathering = self._board.gather_view(None, now)
        asked = {
            (told["vpn"], told["name"]): self._board.ask(("bridge", index), "stats", None, gathering)
            for index, told in self.carriers.wanted.items()
        }

        def finish(answers: dict[int, Any]) -> None:
            self.figures = {key: answers.get(number) or {} for key, number in asked.items()}

        gathering.finish = finish
        self._board.end_if_complete(gathering)

    # -- operations ------------------------------------------------------------------------------------------

    def _list(self, request: arguments.BridgeListArguments, asker: Asker, now: float) -> None:
        self._gather(self._catalog.find("bridge", request.vpn, request.name), asker, now, lambda rows: rows)

    def _show(self, request: arguments.BridgeArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show("bridge", request.vpn, request.name)
        self._gather([found], asker, now, lambda rows: rows[0])

    def _gather(self, bridges: list[Row], asker: Asker, now: float, pick: Any) -> None:
        """Ask bridge processes how they do."""
        board = self._board
        gathering = board.gather_view(asker, now)
        asked = {
            bridge["number"]: board.ask(("bridge", bridge["number"]), "stats", None, gathering)
            for bridge in bridges
            if bridge["number"] in self.carriers.wanted
        }

        def finish(answers: dict[int, Any]) -> Any:
            return pick([describe(one, answers.get(asked.get(one["number"], -1))) for one in bridges])

        gathering.finish = finish
        board.end_if_complete(gathering)


def describe(bridge: Row, process: Row | None) -> Row:
    """Give a bridge object with its state and what its process says."""
    state = "down" if bridge["enabled"] else "disabled"
    error = "" if process or not bridge["enabled"] else "its process is not there yet"
    return {**bridge, "state": state, "error": error, **(process or {})}
