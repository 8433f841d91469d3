"""The operations on the spool of the node: show, verify, and a backup of everything that a node keeps.

Each worker has a spool of its own; verifying and copying one are jobs of that worker (`jobs.show` tells how far they
are), and go on beside its messages. A backup is the copies of all spools and of the config store, which is copied
first: an endpoint that is created meanwhile is missing in it with all its messages, never its messages alone.

    operation           arguments       answer
    spool.show                          the metrics of the node, and of each worker
    spool.verify                        {"jobs": [[worker, number], ...], "faults"}: of the config store
    spool.backup        directory=None  {"jobs"}, with what `angarium spool restore` has to know of the node
    spool.fetch         copy, part,     {"data", "size"}: a piece of a copy
                        offset=0
    spool.drop          copy            nil

Without a directory the copies wait in the data directory until they were fetched: that is for operators at another
host. There is one such copy at a time. Whoever had it made drops it; if he is gone, the next one may after a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from cluster.controller.operations import metrics
from cluster.controller.operations.endpoints import HOME_TIMEOUT_S, answer_of
from cluster.controller.switchboard.effects import CheckStore, CopyStore, DropCopy, ReadCopy
from cluster.controller.switchboard.switchboard import ROUTER, AdminAsker
from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER
from cluster.roster.table import WORKER
from storage.spool import DATA_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Place, Question, Switchboard


#: A copy that nobody fetched from for so long belongs to nobody.
COPY_IDLE_S: Final = 600.0
#: Of one answer to `spool.fetch`: the controller has other things to do in between.
PIECE_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Copy:
    """A copy that waits to be fetched."""

    name: str
    directory: Path
    used_at: float


class SpoolOperations:
    """What operators do with the spool as a whole."""

    def __init__(self, board: Switchboard, node_id: str, copies: Path) -> None:
        """Ask the workers over this board; copies that are to be fetched come into a directory in `copies`."""
        self._board = board
        self._node_id = node_id
        self._copies_dir = copies
        #: The one that waits to be fetched; None: there is none.
        self._waiting: Copy | None = None
        #: Number of a copy of the config store that is being made -> who wants the backup, and where.
        self._copies: dict[int, tuple[Asker, str]] = {}
        #: Number of a check of the config store -> who wants everything verified.
        self._checks: dict[int, Asker] = {}
        self.operations: Handlers = {
            "spool.show": self._show,
            "spool.verify": self._verify,
            "spool.backup": self._backup,
            "spool.fetch": self._fetch,
            "spool.drop": self._drop,
        }

    def _show(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        workers = [(WORKER.name, index) for index in self._workers()]
        asked: dict[Place, Question] = {ROUTER: (ROUTER, "stats", None)}
        asked |= {place: (place, "spool.show", {}) for place in workers}

        def finish(answers: dict[Place, Any]) -> dict[str, Any]:
            rows = [{"worker": place[1], **answers.get(place, {})} for place in workers]
            return {**metrics.spool(answers.get(ROUTER)), "workers": rows}

        self._board.collect_view(asker, now, asked, finish)

    def _verify(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        number = self._board.new_number()
        self._checks[number] = asker
        self._board.emit(CheckStore(number))

    def checked(self, number: int, faults: list[str], now: float) -> None:
        """The config store is read: have the workers verify their spools."""
        asked: dict[int, dict[str, Any]] = {index: {} for index in self._workers()}
        self._begin("spool.verify", asked, self._checks.pop(number), now, faults=faults)

    def _backup(self, request: arguments.BackupArguments, asker: Asker, now: float) -> None:
        if request.directory is not None and not Path(request.directory).is_absolute():
            raise errors.invalid(f"directory {request.directory!r} is no absolute path")
        number = self._board.new_number()
        directory = request.directory or self._place(number, now)
        self._copies[number] = (asker, directory)
        self._board.emit(CopyStore(number, str(Path(directory) / CONFIG_FOLDER)))

    def _place(self, number: int, now: float) -> str:
        """Give a new directory for a copy that is to be fetched.

        Raises:
            ConflictError: somebody fetches another one (40902).
        """
        waiting = self._waiting
        if waiting is not None:
            if now - waiting.used_at < COPY_IDLE_S:
                raise errors.error_for(
                    errors.OBJECT_IN_USE, "another backup is being fetched: try again later"
                )
            self._board.emit(DropCopy(str(waiting.directory)))
        self._waiting = Copy(f"{number}", self._copies_dir / f"{number}", now)
        return str(self._waiting.directory)

    def _fetch(self, request: arguments.FetchArguments, asker: Asker, now: float) -> None:
        waiting = self._find(request.copy)
        if request.part not in self._parts():
            raise errors.invalid(f"part {request.part!r}: a backup has {', '.join(self._parts())}")
        waiting.used_at = now
        assert isinstance(asker, AdminAsker)
        path = waiting.directory / request.part / DATA_FILE
        self._board.emit(ReadCopy(asker.identity, asker.number, str(path), request.offset, PIECE_BYTES))

    def _drop(self, request: arguments.CopyArguments, asker: Asker, _now: float) -> None:
        self._board.emit(DropCopy(str(self._find(request.copy).directory)))
        self._waiting = None
        self._board.reply(asker, None)

    def _find(self, name: str) -> Copy:
        if self._waiting is None or self._waiting.name != name:
            raise errors.invalid(f"copy {name!r} is not there any more: begin the backup again")
        return self._waiting

    def _parts(self) -> list[str]:
        return [CONFIG_FOLDER, *(f"{SPOOL_FOLDER}/{index}" for index in self._workers())]

    def copied(self, number: int, now: float) -> None:
        """The config store is copied: have the workers copy their spools."""
        asker, directory = self._copies.pop(number)
        place = Path(directory) / SPOOL_FOLDER
        asked = {index: {"directory": str(place / str(index))} for index in self._workers()}
        waiting = self._waiting
        is_waiting = waiting is not None and str(waiting.directory) == directory
        about = {
            "node": self._board.node.get("node", ""),
            "node_id": self._node_id,
            "workers": len(asked),
            "copy": waiting.name if waiting is not None and is_waiting else None,
            "parts": self._parts(),
        }
        self._begin("spool.backup", asked, asker, now, partial(self._give_up, directory), **about)

    def not_copied(self, number: int, detail: str) -> None:
        """The config store could not be copied."""
        asker, directory = self._copies.pop(number)
        self._give_up(directory)
        self._board.refuse(asker, errors.INVALID_ARGUMENT, detail)

    def _give_up(self, directory: str) -> None:
        """Drop a copy that nobody will fetch: who wanted it hears of a refusal."""
        if self._waiting is not None and str(self._waiting.directory) == directory:
            self._board.emit(DropCopy(directory))
            self._waiting = None

    def _begin(
        self,
        operation: str,
        asked: dict[int, dict[str, Any]],
        asker: Asker,
        now: float,
        give_up: Callable[[], None] = lambda: None,
        **about: Any,
    ) -> None:
        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            jobs = [[index, answer_of(answers, index, index)["job"]] for index in asked]
            return {"jobs": jobs, **about}

        questions = {index: ((WORKER.name, index), operation, content) for index, content in asked.items()}
        self._board.collect(asker, now, questions, finish, HOME_TIMEOUT_S, give_up)

    def _workers(self) -> list[int]:
        rows = self._board.node.get("processes", ())
        return sorted(row["index"] for row in rows if row["role"] == WORKER.name)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert not self._checks, "the store was not checked between two events"
        assert not self._copies, "a copy of the store was not made between two events"
