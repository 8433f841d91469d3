"""Another number of workers: those that leave give their lanes away first, those that come get some afterwards.

operation       arguments               answer
workers.scale   workers, balance        {"workers"}: what is wanted from now on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from cluster.controller.switchboard.effects import ScaleNode
from cluster.controller.switchboard.switchboard import ROUTER
from cluster.roster.table import WORKER
from storage.config_store import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard
    from cluster.controller.workers.balancing import Balancing

#: The counter of the config store that says how many workers are wanted; none before the first change.
WORKERS: Final = "workers"


class Scaling:
    """Changes of the number of workers, one at a time."""

    def __init__(
        self,
        board: Switchboard,
        catalog: Catalog,
        changes: Changes,
        balancing: Balancing,
        refuse: Callable[[], None],
    ) -> None:
        """Begin with the workers that there are; `refuse` raises if their number must not change."""
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self._refuse = refuse
        self._balancing = balancing
        balancing.is_node_settled = lambda: not self._is_scaling()
        #: The number of workers that the supervisor was asked for last; None: it was not asked by this process.
        self._scaled_to: int | None = None
        self.operations: Handlers = {"workers.scale": self._scale}

    def note(self, effects: list[Effect]) -> list[Effect]:
        """Take note of what the supervisor is asked for among these effects, and give them."""
        for effect in effects:
            if isinstance(effect, ScaleNode):
                self._scaled_to = effect.workers
        return effects

    def _scale(self, request: arguments.ScaleArguments, asker: Asker, now: float) -> None:
        """Give the lanes of workers that will leave new homes, and only then ask for another number.

        The new homes take over what the leaving ones hold when those have ended; until then it stays where it is. The
        number is durable with the homes: a controller that dies here has a successor that asks the supervisor.

        One change at a time: a worker that is wanted back before its lanes were taken over would keep them from those
        who have them now, so another change is refused until all of the last one is done. So is one while a worker has
        not confirmed its lanes: one that stays may not have begun to take some over; and of one that would leave the
        new home of a lane looks for it on the disk, and makes a new lane if it is not there yet.
        """
        self._refuse()
        self._changes.make(self._balancing.cancel(), None, "", lambda: None)
        board, lanes = self._board, self._catalog.placement.lanes_from(request.workers)
        gathering = board.gather_view(None, now)
        numbers = {
            index: board.ask((WORKER.name, index), "stats", None, gathering)
            for index in self._running_workers()
        }
        told = board.ask(ROUTER, "stats", None, gathering)
        asked = len(gathering.waiting)

        def finish(answers: dict[int, Any]) -> None:
            homes = {index: (answers.get(number) or {}).get("home", {}) for index, number in numbers.items()}
            has_lanes = [index for index in homes if self._catalog.placement.lanes[index]]
            leaving = [index for index in homes if index >= request.workers]
            # Of a home that reads its spool nobody knows what it takes over, or keeps aside.
            is_unread = any(not homes[index] for index in (*has_lanes, *leaving))
            importing = is_unread or any(
                home.get("lanes_importing") or home.get("lanes_parting") for home in homes.values()
            )
            if any(homes[index].get("lanes_kept_aside") for index in leaving):
                detail = "a worker that would leave keeps lanes aside; 'angarium spool aside list' shows them"
                board.refuse(asker, errors.OBJECT_IN_USE, detail)
                return
            # One that is down may be taking over lanes when it is back.
            wanted = min(board.node.get("workers") or 0, request.workers)
            is_down = any(index not in numbers for index in range(wanted))
            settled = (answers.get(told) or {}).get("spool", {}).get("homes_settled", ())
            is_behind = any(index not in settled for index in has_lanes)
            is_behind = (
                is_behind
                or self._balancing.is_moving
                or lanes != self._catalog.placement.lanes_from(request.workers)
            )
            if importing or is_down or is_behind or len(answers) < asked or self._is_scaling():
                detail = (
                    "the last change of workers, or of their lanes, is not complete; try again in a moment"
                )
                board.refuse(asker, errors.OBJECT_IN_USE, detail)
                return
            is_wished = request.balance and request.workers >= max(self._catalog.placement.workers, 2)
            changes = [*self._catalog.leave_homes(request.workers), Counter(WORKERS, request.workers)]
            changes += self._balancing.wish() if is_wished else []
            scale = ScaleNode(request.workers)
            verb = f"given homes among {request.workers} workers"
            self._changes.make(changes, asker, verb, lambda: {"workers": request.workers}, after=[scale])

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _running_workers(self) -> list[int]:
        """Give the indices of the workers that run; before the supervisor told, of those that said hello."""
        rows = self._board.node.get("processes")
        if rows is None:
            return [index for role, index in self._board.peers if role == WORKER.name]
        return [row["index"] for row in rows if row["role"] == WORKER.name and row["pid"]]

    def _is_scaling(self) -> bool:
        """Tell whether the supervisor has not heard of the last change, or a worker runs that is not wanted."""
        wanted = self._board.node.get("workers")
        if wanted is None:
            return False
        is_heard = self._scaled_to in (None, wanted)
        return not is_heard or any(index >= wanted for index in self._running_workers())
