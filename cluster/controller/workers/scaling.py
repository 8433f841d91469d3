"""Another number of workers: those that leave give their lanes away first, those that come get some afterwards.

On a node with a standby the lanes of workers that leave are moved while these run, as by load; elsewhere the others
take them over from the disk of those that have left.

operation       arguments               answer
workers.scale   workers, balance        {"workers"}: what is wanted from now on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from cluster.catalog.placement import WORKERS
from cluster.controller.switchboard.effects import ScaleNode
from cluster.controller.switchboard.switchboard import ROUTER
from cluster.roster.table import WORKER
from cluster.supervisor.supervisor import STOPPED
from storage.config_store import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard
    from cluster.controller.workers.balancing import Balancing


class Scaling:
    """Changes of the number of workers, one at a time."""

    def __init__(
        self,
        board: Switchboard,
        catalog: Catalog,
        changes: Changes,
        balancing: Balancing,
        has_standby: Callable[[], bool],
    ) -> None:
        """Begin with the workers that there are; `has_standby` tells whether another host has their stores too."""
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self._has_standby = has_standby
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
        new home of a lane looks for it on the disk, and makes a new lane if it is not there yet. One that is down and
        comes back may have died in the middle of taking lanes over: what there is of these is on two disks then, and
        it goes on with that. If it was given up, its next home takes them over from both.
        """
        if request.workers == self._balancing.staying:
            self._board.reply(asker, {"workers": request.workers})  # the others are about to leave
            return
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
            is_down = any(
                index not in numbers and (index < request.workers or not self._is_given_up(index))
                for index in range(board.node.get("workers") or 0)
            )
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
            self._begin(request, asker)

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _begin(self, request: arguments.ScaleArguments, asker: Asker) -> None:
        workers, placed = request.workers, self._catalog.placement.workers
        if self._has_standby() and workers < placed:
            self._changes.make(self._balancing.leave(workers), asker, "", lambda: {"workers": workers})
            return
        changes = [*self._catalog.leave_homes(workers), Counter(WORKERS, workers)]
        changes += self._balancing.wish() if request.balance and workers >= max(placed, 2) else []
        verb = f"given homes among {workers} workers"
        self._changes.make(changes, asker, verb, lambda: {"workers": workers}, after=[ScaleNode(workers)])

    def _running_workers(self) -> list[int]:
        """Give the indices of the workers that run; before the supervisor told, of those that said hello."""
        rows = self._board.node.get("processes")
        if rows is None:
            return [index for role, index in self._board.peers if role == WORKER.name]
        return [row["index"] for row in rows if row["role"] == WORKER.name and row["pid"]]

    def _is_given_up(self, index: int) -> bool:
        """Tell whether the supervisor starts a worker again no more."""
        rows = self._board.node.get("processes") or ()
        return (WORKER.name, index, STOPPED) in [(row["role"], row["index"], row["state"]) for row in rows]

    def _is_scaling(self) -> bool:
        """Tell whether the supervisor has not heard of the last change, or a worker runs that is not wanted."""
        wanted = self._board.node.get("workers")
        if wanted is None:
            return False
        is_heard = self._scaled_to in (None, wanted)
        return not is_heard or any(index >= wanted for index in self._running_workers())
