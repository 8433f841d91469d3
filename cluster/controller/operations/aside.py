"""The operations on what the spools have and no object claims: lanes that are kept aside.

They are named by the id of the endpoint that they belonged to; its partitions are lanes of the same id. Adopting makes
a queue of that id, so its homes find what is theirs, with positions and records of producers.

    operation           arguments                   answer
    spool.aside                                     a row per endpoint: id, kind, vpn, name, lanes, messages, bytes, ...
    spool.aside.adopt   id, name=None, vpn=None     {"vpn", "name", "messages"}: the queue
    spool.aside.read    id, worker, lane_id,        {"rows", "upto", "end"}: messages with bodies, up to a position
                        after=0
    spool.aside.delete  id                          {"deleted": messages}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from cluster.controller.operations.endpoints import HOME_TIMEOUT_S, answer_of
from cluster.roster.table import WORKER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard

Row = dict[str, Any]

#: What a lane knows of its endpoint, by the name of the attribute.
_ATTRIBUTES: Final = {
    "access_type": "access_type",
    "partition_count": "partitions",
    "max_ttl_s": "max_ttl_s",
    "respect_ttl": "respect_ttl",
    "respect_priority": "respect_priority",
    "respect_dmq_eligible": "respect_dmq_eligible",
    "dead_message_queue": "dead_message_queue",
    "redelivery_enabled": "redelivery_enabled",
    "max_redelivery_count": "max_redeliveries",
}


class AsideOperations:
    """What operators do with lanes that no object claims."""

    def __init__(self, board: Switchboard, catalog: Catalog, changes: Changes) -> None:
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self.operations: Handlers = {
            "spool.aside": self._list,
            "spool.aside.adopt": self._adopt,
            "spool.aside.read": self._read,
            "spool.aside.delete": self._delete,
        }

    def _list(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        self._look(asker, now, lambda rows: self._board.reply(asker, rows))

    def _adopt(self, request: arguments.AdoptArguments, asker: Asker, now: float) -> None:
        def go_on(rows: list[Row]) -> None:
            row = _find(rows, request.id)
            name, vpn = request.name or row["name"], request.vpn or row["vpn"]
            settings = row["settings"]
            given = {name: settings[known] for name, known in _ATTRIBUTES.items()}
            if settings["last_value"]:
                given["max_spool_usage_mb"] = 0
            homes = {lane["partition"]: lane["worker"] for lane in row["lanes"]}
            changes = self._catalog.adopt(vpn, name, given, row["id"], row["generation"], homes)
            answer = {"vpn": vpn, "name": name, "messages": row["messages"]}
            self._changes.make(changes, asker, "adopted from the spool", lambda: answer)

        self._look(asker, now, go_on)

    def _read(self, request: arguments.AsideLaneArguments, asker: Asker, now: float) -> None:
        worker, asked = request.worker, {"lane_id": request.lane_id, "after": request.after}
        self._board.check_worker(worker)
        questions = {worker: ((WORKER.name, worker), "spool.aside.read", asked)}
        self._board.collect(
            asker, now, questions, lambda answers: answer_of(answers, worker, worker), HOME_TIMEOUT_S
        )

    def _delete(self, request: arguments.AsideArguments, asker: Asker, now: float) -> None:
        def go_on(rows: list[Row]) -> None:
            lanes = _find(rows, request.id)["lanes"]
            questions = {
                at: ((WORKER.name, lane["worker"]), "spool.aside.delete", {"lane_id": lane["lane_id"]})
                for at, lane in enumerate(lanes)
            }

            def finish(answers: dict[int, Any]) -> dict[str, int]:
                deleted = (answer_of(answers, at, lane["worker"]) for at, lane in enumerate(lanes))
                return {"deleted": sum(deleted)}

            self._board.collect(asker, now, questions, finish, HOME_TIMEOUT_S)

        self._look(asker, now, go_on)

    def _look(self, asker: Asker, now: float, then: Callable[[list[Row]], None]) -> None:
        """Go on with what all workers keep aside; the answer comes from there, or is a refusal."""
        board = self._board
        gathering = board.gather(None, now, HOME_TIMEOUT_S)
        workers = [row["index"] for row in board.node.get("processes", ()) if row["role"] == WORKER.name]
        numbers = {
            board.ask((WORKER.name, index), "spool.aside", None, gathering): index for index in workers
        }

        def finish(answers: dict[int, Any]) -> None:
            try:
                found = [(index, answer_of(answers, number, index)) for number, index in numbers.items()]
                then(_by_endpoint(found))
            except errors.AngariumError as error:
                board.refuse(asker, error.code, error.detail)

        gathering.takes_refusals = True
        gathering.finish = finish
        board.end_if_complete(gathering)


def _by_endpoint(found: list[tuple[int, list[Row]]]) -> list[Row]:
    """Give a row per endpoint out of those of its lanes."""
    rows: dict[int, Row] = {}
    for worker, lanes in found:
        for lane in lanes:
            number = lane["lane_id"] >> wire.LANE_BITS
            row = rows.setdefault(
                number,
                {"id": number, **{name: lane[name] for name in ("kind", "vpn", "name")}, "lanes": []},
            )
            row["lanes"].append(
                {"worker": worker, "lane_id": lane["lane_id"], "partition": lane["partition"]}
            )
            oldest = [time for time in (row.get("oldest_stored_ms"), lane["oldest_stored_ms"]) if time]
            row["oldest_stored_ms"] = min(oldest, default=0)
            row["messages"] = row.get("messages", 0) + lane["messages"]
            row["bytes"] = row.get("bytes", 0) + lane["bytes"]
            row["generation"] = max(row.get("generation", 1), lane["generation"])
            row["settings"] = lane["settings"]
    return sorted(rows.values(), key=lambda row: row["id"])


def _find(rows: list[Row], endpoint_id: int) -> Row:
    for row in rows:
        if row["id"] == endpoint_id:
            return row
    detail = f"nothing of an endpoint {endpoint_id} is kept aside; 'angarium spool aside list' shows what is"
    raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
