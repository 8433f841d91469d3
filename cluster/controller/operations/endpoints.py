"""The operations on endpoints and what they hold: figures, messages, purge, move, copy, redrive.

The router knows what an endpoint holds in sum, its flows and what it refused; the home of each lane knows the messages.
An operation that would take long is a job of the homes: it answers at once with [worker, number] of each, and
`jobs.show` tells how far they are. Positions are those of a partition; without partitions that is number 0.

    operation           arguments                                              answer
    endpoints.list      kind="queue", vpn="default" (None: all), name="*"      objects with their figures
    endpoints.show      kind, name, vpn                                        one, with flows and partitions
    endpoints.purge     kind, name, vpn                                        {"purged": messages}
    endpoints.release   kind, name, vpn                                        {"groups": [name], "partitions": n}
    endpoints.copy      kind, name, vpn, target, target_kind="queue",          {"jobs": [[worker, number], ...]}
                        selector=None, limit=None, partition=None
    endpoints.move      the same                                               the same
    endpoints.redrive   kind, name, vpn, selector, limit, partition            the same
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
from cluster.catalog.link_queues import is_carried, node_of
from cluster.controller.operations import arguments, figures
from cluster.controller.switchboard.switchboard import ROUTER, Place
from cluster.roster.table import WORKER

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.catalog.producers import Producers
    from cluster.controller.switchboard.switchboard import Asker, Switchboard
    from cluster.objects import Attributes

#: A home may be busy with a large commit while it is asked.
HOME_TIMEOUT_S: Final = 5.0


class EndpointOperations:
    """What operators do with endpoints and messages."""

    def __init__(self, board: Switchboard, catalog: Catalog, producers: Producers) -> None:
        """Find homes by this catalog."""
        self._board = board
        self._catalog = catalog
        self._producers = producers
        self.operations: arguments.Operations = {
            "endpoints.list": (arguments.EndpointListArguments, self._list),
            "endpoints.show": (arguments.EndpointArguments, self._show),
            "endpoints.purge": (arguments.EndpointArguments, self._purge),
            "endpoints.release": (arguments.EndpointArguments, self._release),
            "endpoints.copy": (arguments.MoveArguments, self._copy),
            "endpoints.move": (arguments.MoveArguments, self._move),
            "endpoints.redrive": (arguments.MoveArguments, self._redrive),
            "messages.list": (arguments.MessagesArguments, self._list_messages),
            "messages.show": (arguments.MessageArguments, self._show_message),
            "messages.delete": (arguments.DeleteMessagesArguments, self._delete_messages),
            "jobs.show": (arguments.JobArguments, self._show_jobs),
            "flows.list": (arguments.VpnArguments, self._list_flows),
            "producers.list": (arguments.VpnArguments, self._list_producers),
        }

    # -- figures ---------------------------------------------------------------------------------------------

    def _list(self, request: arguments.EndpointListArguments, asker: Asker, now: float) -> None:
        board = self._board
        gathering = board.gather_view(asker, now)
        asked = {"vpn": request.vpn, "kind": request.kind, "name": request.name}
        router = board.ask(ROUTER, "endpoints", asked, gathering)
        found = self._catalog.find(request.kind, request.vpn, request.name)
        gathering.finish = lambda answers: figures.endpoints(found, answers.get(router) or [])
        board.end_if_complete(gathering)

    def _show(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        board = self._board
        endpoint = self._find(request)
        gathering = board.gather_view(asker, now)
        where = {"vpn": request.vpn, "kind": request.kind, "name": request.name}
        router = board.ask(ROUTER, "endpoints", where, gathering)
        flows = board.ask(ROUTER, "flows", where, gathering)
        lanes = [
            board.ask(place, "endpoint.stats", {"lane_id": lane}, gathering)
            for lane, place in _lanes(endpoint).items()
        ]
        shown = self._catalog.show(request.kind, request.vpn, request.name)

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            (row,) = figures.endpoints([shown], answers.get(router) or [])
            stats = [answers[number] for number in lanes if number in answers]
            told = {name: value for name, value in row.items() if value is not None}
            return {**row, **figures.lanes(stats), **told, "flows": answers.get(flows) or []}

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _list_flows(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        self._board.forward("flows", {"vpn": request.vpn, "kind": None, "name": None}, asker, now)

    def _list_producers(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        gathering = self._board.gather_view(asker, now)
        router = self._board.ask(ROUTER, "producers", {"vpn": request.vpn}, gathering)
        known = self._producers.find(request.vpn, "*")
        gathering.finish = lambda answers: figures.producers(known, answers.get(router) or [])
        self._board.end_if_complete(gathering)

    # -- messages --------------------------------------------------------------------------------------------

    def _list_messages(self, request: arguments.MessagesArguments, asker: Asker, now: float) -> None:
        endpoint = self._find(request)
        asked = {"after": request.after, "limit": request.limit, "selector": request.selector}
        partitions = int(endpoint.get("partition_count", 0))

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"messages": found[0], "partitions": partitions}

        self._ask_homes(request, "endpoint.messages", asked, answer, asker, now, request.partition)

    def _show_message(self, request: arguments.MessageArguments, asker: Asker, now: float) -> None:
        self._find(request)
        asked = {"position": request.position}
        self._ask_homes(
            request, "endpoint.message", asked, lambda found: found[0], asker, now, request.partition
        )

    def _delete_messages(self, request: arguments.DeleteMessagesArguments, asker: Asker, now: float) -> None:
        asked = {"positions": request.positions}

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"deleted": figures.count(found[0])}

        self._ask_homes(request, "endpoint.delete_messages", asked, answer, asker, now, request.partition)

    def _purge(self, request: arguments.EndpointArguments, asker: Asker, now: float) -> None:
        def answer(found: list[Any]) -> dict[str, Any]:
            return {"purged": sum(figures.count(one) for one in found)}

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
        _check_carried(request.name)
        self._begin(request, "endpoint.move", {"target": self._target(request), "copy": False}, asker, now)

    def _redrive(self, request: arguments.MoveArguments, asker: Asker, now: float) -> None:
        _check_carried(request.name)
        self._begin(request, "endpoint.redrive", {}, asker, now)

    def _begin(
        self,
        request: arguments.MoveArguments,
        operation: str,
        asked: dict[str, Any],
        asker: Asker,
        now: float,
    ) -> None:
        """Begin a job at each home."""
        lanes = _lanes(self._find(request))
        if request.limit is not None and request.partition is None and len(lanes) > 1:
            detail = f"{request.name!r} has {len(lanes)} partitions: a limit needs a partition"
            raise errors.error_for(errors.INVALID_ARGUMENT, detail)
        asked = {**asked, "selector": request.selector, "limit": request.limit}
        workers = [index for _, index in _chosen(request, lanes, request.partition).values()]

        def answer(found: list[Any]) -> dict[str, Any]:
            return {"jobs": [[worker, one["job"]] for worker, one in zip(workers, found, strict=True)]}

        self._ask_homes(request, operation, asked, answer, asker, now, request.partition)

    def _show_jobs(self, request: arguments.JobArguments, asker: Asker, now: float) -> None:
        board = self._board
        gathering = board.gather(asker, now, HOME_TIMEOUT_S)
        numbers = [
            board.ask((WORKER.name, worker), "job", {"job": job}, gathering) for worker, job in request.jobs
        ]
        workers = [worker for worker, _ in request.jobs]

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            return figures.jobs(_all_of(answers, numbers, workers))

        gathering.finish = finish
        board.end_if_complete(gathering)

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
            detail = f"{request.kind} {request.name!r} is source and target: name another target"
            raise errors.error_for(errors.INVALID_ARGUMENT, detail)
        self._find(arguments.EndpointArguments(request.target, request.target_kind, request.vpn))
        return [request.target_kind, request.vpn, request.target]

    def _ask_homes(
        self,
        request: arguments.EndpointArguments,
        operation: str,
        asked: dict[str, Any],
        answer: Any,
        asker: Asker,
        now: float,
        partition: int | None,
    ) -> None:
        """Ask the home of each lane, or of one, and answer with what `answer` makes of their answers, in order."""
        lanes = _chosen(request, _lanes(self._find(request)), partition)
        self._ask(lanes, operation, asked, answer, asker, now)

    def _ask(
        self,
        lanes: dict[int, Place],
        operation: str,
        asked: dict[str, Any],
        answer: Any,
        asker: Asker,
        now: float,
    ) -> None:
        board = self._board
        gathering = board.gather(asker, now, HOME_TIMEOUT_S)
        numbers = [
            board.ask(place, operation, {"lane_id": lane, **asked}, gathering)
            for lane, place in lanes.items()
        ]
        workers = [index for _, index in lanes.values()]
        gathering.finish = lambda answers: answer(_all_of(answers, numbers, workers))
        board.end_if_complete(gathering)


def _check_carried(name: str) -> None:
    """Refuse to take messages out of what a link carries.

    One whose move is refused would be back at a position that the link has passed, and count as carried.

    Raises:
        AngariumError: it is such a queue (40018).
    """
    if is_carried(name):
        detail = (
            f"the link takes the messages of queue {name!r} in order: copy or delete them, or move what arrives in "
            f"'{wire.LINK_NAME_PREFIX}{node_of(name)}{wire.LINK_DMQ_SUFFIX}'"
        )
        raise errors.error_for(errors.INVALID_ARGUMENT, detail)


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


def _chosen(
    request: arguments.EndpointArguments, lanes: dict[int, Place], partition: int | None
) -> dict[int, Place]:
    if partition is None:
        return lanes
    if partition >= len(lanes):
        detail = f"{request.kind} {request.name!r} has no partition {partition}; it has {len(lanes)}"
        raise errors.error_for(errors.INVALID_ARGUMENT, detail)
    lane_id = list(lanes)[partition]
    return {lane_id: lanes[lane_id]}


def _all_of(answers: dict[int, Any], numbers: list[int], workers: list[int]) -> list[Any]:
    """Give the answer to each number.

    Raises:
        UnavailableError: a home did not answer (50320).
    """
    for number, worker in zip(numbers, workers, strict=True):
        if number not in answers:
            raise errors.error_for(errors.HOME_NOT_READY, f"worker {worker} did not answer")
    return [answers[number] for number in numbers]
