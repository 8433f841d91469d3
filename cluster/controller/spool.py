"""The operations on the spool of the node: show, verify, and a backup of everything that a node keeps.

Each worker has a spool of its own; verifying and copying one are jobs of that worker (`jobs.show` tells how far they
are), and go on beside its messages. A backup is the copies of all spools and of the config store, which is copied
first: an endpoint that is created meanwhile is missing in it with all its messages, never its messages alone.

    operation           arguments       answer
    spool.show                          the figures of the node, and of each worker
    spool.verify                        {"jobs": [[worker, number], ...]}
    spool.backup        directory       the same, with what `angarium spool restore` has to know of the node
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium import errors
from cluster.controller import arguments, figures
from cluster.controller.effects import CopyStore
from cluster.controller.endpoints import HOME_TIMEOUT_S
from cluster.controller.switchboard import ROUTER
from cluster.data_dir import CONFIG_FOLDER, SPOOL_FOLDER

if TYPE_CHECKING:
    from cluster.controller.switchboard import Asker, Gathering, Switchboard


class SpoolOperations:
    """What operators do with the spool as a whole."""

    def __init__(self, board: Switchboard) -> None:
        """Ask the workers over this board."""
        self._board = board
        #: Number of a copy of the config store that is being made -> who wants the backup, and where.
        self._copies: dict[int, tuple[Asker, str]] = {}
        self.operations: arguments.Operations = {
            "spool.show": (arguments.NoArguments, self._show),
            "spool.verify": (arguments.NoArguments, self._verify),
            "spool.backup": (arguments.BackupArguments, self._backup),
        }

    def _show(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        board = self._board
        gathering = board.gather_view(asker, now)
        router = board.ask(ROUTER, "stats", None, gathering)
        workers = {
            index: board.ask(("worker", index), "spool.show", {}, gathering) for index in self._workers()
        }

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            rows = [{"worker": index, **answers.get(number, {})} for index, number in workers.items()]
            return {**figures.spool(answers.get(router)), "workers": rows}

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _verify(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        gathering = self._board.gather(asker, now, HOME_TIMEOUT_S)
        asked: dict[int, dict[str, Any]] = {index: {} for index in self._workers()}
        self._begin("spool.verify", asked, gathering)

    def _backup(self, request: arguments.BackupArguments, asker: Asker, _now: float) -> None:
        if not Path(request.directory).is_absolute():
            detail = f"directory {request.directory!r} is no absolute path"
            raise errors.error_for(errors.INVALID_ARGUMENT, detail)
        number = self._board.new_number()
        self._copies[number] = (asker, request.directory)
        self._board.emit(CopyStore(number, str(Path(request.directory) / CONFIG_FOLDER)))

    def copied(self, number: int, now: float) -> None:
        """The config store is copied: have the workers copy their spools."""
        asker, directory = self._copies.pop(number)
        gathering = self._board.gather(asker, now, HOME_TIMEOUT_S)
        place = Path(directory) / SPOOL_FOLDER
        asked = {index: {"directory": str(place / str(index))} for index in self._workers()}
        self._begin("spool.backup", asked, gathering)

    def not_copied(self, number: int, detail: str) -> None:
        """The config store could not be copied."""
        asker, _ = self._copies.pop(number)
        self._board.refuse(asker, errors.INVALID_ARGUMENT, detail)

    def _begin(self, operation: str, asked: dict[int, dict[str, Any]], gathering: Gathering) -> None:
        board = self._board
        numbers = {
            index: board.ask(("worker", index), operation, content, gathering)
            for index, content in asked.items()
        }

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            for index, number in numbers.items():
                if number not in answers:
                    raise errors.error_for(errors.HOME_NOT_READY, f"worker {index} did not answer")
            jobs = [[index, answers[number]["job"]] for index, number in numbers.items()]
            return {"jobs": jobs, "node": board.node.get("node", ""), "workers": len(jobs)}

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _workers(self) -> list[int]:
        rows = self._board.node.get("processes", ())
        return sorted(row["index"] for row in rows if row["role"] == "worker")

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert not self._copies, "a copy of the store was not made between two events"
