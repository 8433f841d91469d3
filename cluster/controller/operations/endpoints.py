"""The operations on endpoints and what they hold: metrics, messages, purge, move, copy, redrive.

The router knows what an endpoint holds in sum, its flows and what it refused; the home of each lane knows the messages.
An operation that would take long is a job of the homes: it answers at once with [worker, number] of each, and
`jobs.show` tells how far they are. Positions are those of a partition; without partitions that is number 0.

    operation           arguments                                              answer
    endpoints.list      kind="queue", vpn="default" (None: all), name="*",     objects with their metrics
                        fields=[] (all; else these beside
                        kind, vpn and name), these=[] (all;
                        else [vpn, name] of each)
    endpoints.show      kind, name, vpn                                        one, with flows and partitions
    endpoints.publishers  the same                                             of the newest messages: who published how
                                                                               many, [{"client", "messages"}]
    endpoints.purge     kind, name, vpn                                        {"purged": messages}
    endpoints.release   kind, name, vpn                                        {"groups": [name], "partitions": n}
    endpoints.copy      kind, name, vpn, target, target_kind="queue",          {"jobs": [[worker, number], ...]}
                        selector=None, limit=None, partition=None,
                        positions=None
    endpoints.move      the same                                               the same
    endpoints.redrive   kind, name, vpn, selector, limit, partition, positions the same
    messages.list       kind, name, vpn, partition=0, after=0, limit=100,      {"messages", "partitions"}
                        selector=None
    messages.show       kind, name, vpn, position, partition=0                 one, with payload and properties
    messages.delete     kind, name, vpn, positions, partition=0                {"deleted": messages}
    jobs.show           jobs                                                   {"state", "done", "total", "refused",
                                                                                "kept", "error": [code, detail]} of all
    flows.list          vpn=None                                               flows of clients
    producers.list      vpn=None                                               producers, with those that are open
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from cluster.admin import arguments
from cluster.catalog.node_queues import is_carried, is_retained, is_session, node_of
from cluster.controller.operations import metrics
from cluster.controller.switchboard.switchboard import ROUTER, Place
from cluster.roster.table import WORKER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.catalog.catalog import Catalog
    from cluster.catalog.producers import Producers
    from cluster.controller.switchboard.switchboard import AdminAsker, Asker, Handlers, Question, Switchboard
    from cluster.objects import Attributes

#: A home may be busy with a large commit while it is asked.
HOME_TIMEOUT_S: Final = 5.0


class EndpointOperations:
    """What operators do with endpoints and messages."""

    def __init__(self, board: Switchboard, catalog: Catalog, producers: Producers) -> None:
        self._board = board
        self._catalog = catalog
        self._producers = producers
        self.operations: Handlers = {
            "endpoints.list": self._list,
            "endpoints.show": self._show,
            "endpoints.publishers": self._list_publishers,
            "endpoints.purge": self._purge,
            "endpoints.release": self._release,
            "endpoints.copy": self._copy,
            "endpoints.move": self._move,
            "endpoints.redrive": self._redrive,
            "messages.list": self._list_messages,
            "messages.show": self._show_message,
            "messages.delete": self._delete_messages,
            "jobs.show": self._show_jobs,
            "flows.list": self._list_flows,
            "producers.list": self._list_producers,
        }

    # -- metrics ---------------------------------------------------------------------------------------------

    def _list(self, request: arguments.EndpointListArguments, asker: Asker, now: float) -> None:
        asked: dict[str, Any] = {"vpn": request.vpn, "kind": request.kind, "name": request.name}
        found = self._catalog.find(request.kind, request.vpn, request.name, request.fields, request.these)
        if request.these:
            asked["these"] = [(one["vpn"], one["name"]) for one in found]
        if request.fields:
            asked["fields"] = metrics.asked_of_router(request.fields)

        def finish(answers: dict[Place, Any]) -> list[Attributes]:
            return metrics.endpoints(found, answers.get(ROUTER) or [], request.fields)

        self._board.collect_view(asker, now, {ROUTER: (ROUTER, "endpoints", asked)}, finish)

    def _show(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        lanes = _lanes(self._find(request))
        where = {"vpn": request.vpn, "kind": request.kind, "name": request.name}
        asked: dict[str | int, Question] = {
            "endpoints": (ROUTER, "endpoints", where),
            "flows": (ROUTER, "flows", where),
            **{lane: (place, "endpoint.stats", {"lane_id": lane}) for lane, place in lanes.items()},
        }
        shown = self._catalog.show(request.kind, request.vpn, request.name)

        def finish(answers: dict[str | int, Any]) -> dict[str, Any]:
            (row,) = metrics.endpoints([shown], answers.get("endpoints") or [])
            stats = [answers[lane] for lane in lanes if lane in answers]
            told = {name: value for name, value in row.items() if value is not None}
            return {**row, **metrics.lanes(stats), **told, "flows": answers.get("flows") or []}

        self._board.collect_view(asker, now, asked, finish)

    def _list_publishers(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        """Count what the homes know of the newest messages, and have the router name the clients."""
        lanes = _lanes(self._find(request))
        questions = {lane: (place, "endpoint.publishers", {"lane_id": lane}) for lane, place in lanes.items()}

        def named(counted: list[Any]) -> None:
            numbers = list(dict.fromkeys(number for number, _, _ in counted))
            asked = {"vpn": request.vpn, "numbers": numbers}

            def finish(answers: dict[Place, Any]) -> list[dict[str, Any]]:
                return metrics.publishers(counted, answers.get(ROUTER) or [])

            self._board.collect_view(asker, now, {ROUTER: (ROUTER, "publishers", asked)}, finish)

        def counted(answers: dict[int, Any]) -> None:
            named([one for lane in lanes for one in answers.get(lane) or ()])

        self._board.collect_view(None, now, questions, counted)

    def _list_flows(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        self._board.forward("flows", {"vpn": request.vpn, "kind": None, "name": None}, asker, now)

    def _list_producers(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        known = self._producers.find(request.vpn, "*")

        def finish(answers: dict[Place, Any]) -> list[dict[str, Any]]:
            return metrics.producers(known, answers.get(ROUTER) or [])

        self._board.collect_view(asker, now, {ROUTER: (ROUTER, "producers", {"vpn": request.vpn})}, finish)

    # -- messages --------------------------------------------------------------------------------------------

    def _list_messages(self, request: arguments.MessagesArguments, asker: Asker, now: float) -> None:
        endpoint = self._find(request)
        asked = {"after": request.after, "limit": request.limit, "selector": request.selector}
        partitions = int(endpoint.get("partition_count", 0))

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"messages": found[0], "partitions": partitions}

        self._ask(self._chosen(request, request.partition), "endpoint.messages", asked, answer, asker, now)

    def _show_message(self, request: arguments.MessageArguments, asker: Asker, now: float) -> None:
        lanes, asked = self._chosen(request, request.partition), {"position": request.position}
        self._ask(lanes, "endpoint.message", asked, lambda found: metrics.whole_message(found[0]), asker, now)

    def _delete_messages(self, request: arguments.DeleteMessagesArguments, asker: Asker, now: float) -> None:
        lanes, asked = self._chosen(request, request.partition), {"positions": request.positions}

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"deleted": metrics.count(found[0])}

        self._ask(lanes, "endpoint.delete_messages", asked, answer, asker, now)

    def _purge(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        def answer(found: list[Any]) -> dict[str, Any]:
            return {"purged": sum(metrics.count(one) for one in found)}

        # Closed partitions too: what is in them is on its way to the others.
        self._ask(_every_lane(self._find(request)), "endpoint.purge", {}, answer, asker, now)

    def _release(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        def answer(found: list[Any]) -> dict[str, Any]:
            groups = [str(one) for one in found if one]
            return {"groups": sorted(dict.fromkeys(groups)), "partitions": len(groups)}

        self._ask(_every_lane(self._find(request)), "endpoint.release", {}, answer, asker, now)

    def _copy(self, request: arguments.MoveArguments, asker: Asker, now: float) -> None:
        self._begin(request, "endpoint.move", {"target": self._target(request), "copy": True}, asker, now)

    def _move(self, request: arguments.MoveArguments, asker: Asker, now: float) -> None:
        _check_stays(request.kind, request.name)
        self._begin(request, "endpoint.move", {"target": self._target(request), "copy": False}, asker, now)

    def _redrive(self, request: arguments.MoveArguments, asker: Asker, now: float) -> None:
        _check_stays(request.kind, request.name)
        self._begin(request, "endpoint.redrive", {}, asker, now)

    def _begin(
        self,
        request: arguments.MoveArguments,
        operation: str,
        asked: dict[str, Any],
        asker: Asker,
        now: float,
    ) -> None:
        """Begin a job at each home, or at none."""
        lanes = _lanes(self._find(request))
        if request.partition is None and len(lanes) > 1:
            for what, given in (("a limit needs", request.limit), ("positions need", request.positions)):
                if given is not None:
                    needed = f"a partition of 0 to {len(lanes) - 1}"
                    raise errors.invalid(f"{request.name!r} has {len(lanes)} partitions: {what} {needed}")
        which = {"selector": request.selector, "limit": request.limit, "positions": request.positions}
        asked = {**asked, **which}
        lanes = self._chosen(request, request.partition)
        workers = [index for _, index in lanes.values()]

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"jobs": [[worker, one["job"]] for worker, one in zip(workers, found, strict=True)]}

        def begin(since: float) -> None:
            self._ask(lanes, operation, asked, answer, asker, since)

        if len(lanes) == 1:
            begin(now)
        else:
            self._if_all_may(lanes, operation, {**asked, "check": True}, begin, asker, now)

    def _if_all_may(
        self,
        lanes: dict[int, Place],
        operation: str,
        asked: dict[str, Any],
        begin: Callable[[float], None],
        asker: Asker,
        now: float,
    ) -> None:
        """Go on if no home refuses: else what others began would be done once more when it is tried again."""
        gathering = self._board.gather(asker, now, HOME_TIMEOUT_S)
        told = {
            self._board.ask(place, operation, {"lane_id": lane, **asked}, gathering): place[1]
            for lane, place in lanes.items()
        }

        def finish(answers: dict[int, Any]) -> None:
            for number, worker in told.items():
                answer_of(answers, number, worker)
            gathering.asker = None  # what begins answers
            # A home that was slow now is so again: a job that begins must not be taken for one that does not.
            begin(gathering.deadline)

        gathering.finish = finish
        self._board.end_if_complete(gathering)

    def _show_jobs(self, request: arguments.JobArguments, asker: AdminAsker, now: float) -> None:
        for worker, _ in request.jobs:
            self._board.check_worker(worker)
        questions = {
            at: ((WORKER.name, worker), "job", {"job": job}) for at, (worker, job) in enumerate(request.jobs)
        }

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            rows = [answer_of(answers, at, job[0]) for at, job in enumerate(request.jobs)]
            for row in rows:
                if asker.who.vpn and row["vpn"] != asker.who.vpn:  # as one that is not there
                    raise errors.error_for(errors.OBJECT_NOT_FOUND, f"job {row['job']}")
            return metrics.jobs(rows)

        self._board.collect(asker, now, questions, finish, HOME_TIMEOUT_S)

    # -- parts -----------------------------------------------------------------------------------------------

    def _find(self, request: arguments.EndpointArguments) -> Attributes:
        endpoint = self._catalog.get(request.kind, request.vpn, request.name)
        if endpoint is None:
            detail = f"{request.kind} {request.name!r} in Message VPN {request.vpn!r}"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
        return endpoint

    def _target(self, request: arguments.MoveArguments) -> list[str]:
        """Give the target of a move, which exists and is another endpoint."""
        source, target = (request.kind, request.name), (request.target_kind, request.target)
        if source == target:
            raise errors.invalid(f"{request.kind} {request.name!r} is source and target: name another target")
        self._find(arguments.EndpointArguments(request.target, request.target_kind, request.vpn))
        if is_session(*target):
            raise errors.invalid(f"queue {request.target!r} takes only what its client is subscribed to")
        if is_retained(*target):
            raise errors.invalid(f"queue {request.target!r} takes only what is published to be retained")
        return [request.target_kind, request.vpn, request.target]

    def _chosen(self, request: arguments.EndpointArguments, partition: int | None) -> dict[int, Place]:
        """Give the place of the home of the lane of a partition; None: of each lane."""
        lanes = _lanes(self._find(request))
        if partition is None:
            return lanes
        if partition >= len(lanes):
            detail = f"{request.kind} {request.name!r} has no partition {partition}; it has {len(lanes)}"
            raise errors.invalid(detail)
        lane_id = list(lanes)[partition]
        return {lane_id: lanes[lane_id]}

    def _ask(
        self,
        lanes: dict[int, Place],
        operation: str,
        asked: dict[str, Any],
        answer: Any,
        asker: Asker,
        now: float,
    ) -> None:
        """Ask the homes of lanes, and answer with what `answer` makes of their answers, in order."""

        def finish(answers: dict[int, Any]) -> Any:
            return answer([answer_of(answers, lane, worker) for lane, (_, worker) in lanes.items()])

        questions = {lane: (place, operation, {"lane_id": lane, **asked}) for lane, place in lanes.items()}
        self._board.collect(asker, now, questions, finish, HOME_TIMEOUT_S)


def _check_stays(kind: str, name: str) -> None:
    """Refuse to take messages out of what a link carries, out of what is retained, and out of kept sessions.

    One whose move is refused would be back at another position: the link has passed it, and it would count as carried;
    or a newer one of its topic is retained by then; or the client knows it by its position.

    Raises:
        AngariumError: it is such a queue (40018).
    """
    if is_retained(kind, name):
        raise errors.invalid(f"queue {name!r} has what is retained: copy or delete its messages")
    if is_session(kind, name):
        raise errors.invalid(f"queue {name!r} has what its client is to get: copy or delete its messages")
    if is_carried(name):
        detail = (
            f"the link takes the messages of queue {name!r} in order: copy or delete them, or move what arrives in "
            f"'{wire.LINK_NAME_PREFIX}{node_of(name)}{wire.LINK_DMQ_SUFFIX}'"
        )
        raise errors.invalid(detail)


def _lanes(endpoint: Attributes) -> dict[int, Place]:
    """Give the place of the home of each lane, by lane id; lanes of partitions that are no more are left out."""
    count = max(1, int(endpoint.get("partition_count", 0)))
    return dict(list(_every_lane(endpoint).items())[:count])


def _every_lane(endpoint: Attributes) -> dict[int, Place]:
    """Give the place of the home of each lane, also of those that are closed."""
    return {
        endpoint["id"] << wire.LANE_BITS | partition: (WORKER.name, home)
        for partition, home in enumerate(endpoint["homes"])
    }


def answer_of(answers: dict[int, Any], key: int, worker: int) -> Any:
    """Give the answer of the home of a worker to the question of a key.

    Raises:
        UnavailableError: it did not answer (50320).
    """
    if key not in answers:
        raise errors.error_for(errors.HOME_NOT_READY, f"worker {worker} did not answer")
    return answers[key]
