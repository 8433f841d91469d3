"""Reader groups as clients use them: the operations group.* of REQUEST.

A reader group leases all lanes of a durable queue. The leases are at the homes (`node.endpoints.leasing`); here rights
are judged, questions go to the lanes, and limits of a plan are shared out among them.

    group.open         name, group, lease_ms                    {endpoint_id, lease_ms,
                                                                 lanes: [[partition, figures], ...]}
    group.positions    name, group, lanes: [[p, epoch]]         [[partition, figures], ...]
    group.count        name, group, lanes: [[p, epoch, start]]  [[partition, [messages, bytes]], ...]
    group.find_time    name, group, lanes: [[p, epoch, ms]]     [[partition, position], ...]
    group.plan         name, group, lanes: [[p, epoch, start, end]], messages, bytes
                                                                [[partition, [start, end, messages, bytes]], ...]
    group.acknowledge  name, group, lanes: [[p, epoch, end]]    [[partition, messages], ...]
    group.release      name, group, lanes: [[p, epoch]]         [[partition, whether], ...]

Who only browses asks with endpoint.positions (kind, name), which takes no lease.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.frames.homes import (
    AcknowledgeUpto,
    AskFigures,
    AskPositions,
    CountFrom,
    FindTime,
    LeaseVerb,
    OpenLease,
    PlanRange,
    ReleaseLease,
)
from router.ground.ground import nothing
from router.guaranteed.endpoints import QUEUE, Endpoint
from router.guaranteed.permissions import Level, demand, demand_creator, demand_receive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.asking.requests import Answer, Requests
    from router.flows.lane_questions import LaneQuestions
    from router.guaranteed.endpoints import Endpoints, LaneUsage
    from router.sessions.session import Session

#: Bytes of the name of a reader group.
GROUP_BYTES_MAX: Final = 200
#: A lease lasts a second at least and 30 days at most if nobody uses it.
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 30 * 86_400_000
#: Stands for no limit.
_ALL: Final = 1 << 62

_Natural = Annotated[int, Meta(ge=0, le=_ALL)]
_Positive = Annotated[int, Meta(ge=1, le=_ALL)]
_Partition = Annotated[int, Meta(ge=0, lt=wire.MAX_PARTITIONS)]
_Lanes = Meta(min_length=1, max_length=wire.MAX_PARTITIONS)

#: A lane and what is asked of it.
Asked = tuple["LaneUsage", LeaseVerb]
#: What lanes answered: partition and value, by partition.
Results = list[tuple[int, Any]]


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=250)]
    group: str


class OpenArguments(_Arguments, frozen=True, forbid_unknown_fields=True):
    """Arguments of group.open."""

    lease_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)]


class LanesArguments(_Arguments, frozen=True, forbid_unknown_fields=True):
    """Arguments of group.positions and group.release: partitions, and the epochs of their leases."""

    lanes: Annotated[list[tuple[_Partition, _Natural]], _Lanes]


class AtArguments(_Arguments, frozen=True, forbid_unknown_fields=True):
    """Arguments of group.count, group.find_time and group.acknowledge: partition, epoch, position or time."""

    lanes: Annotated[list[tuple[_Partition, _Natural, _Natural]], _Lanes]


class PositionsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of endpoint.positions."""

    kind: Literal["queue", "topic-endpoint"]
    name: Annotated[str, Meta(max_length=250)]


class PlanArguments(_Arguments, frozen=True, forbid_unknown_fields=True):
    """Arguments of group.plan: partition, epoch, start, end (0: none); limits of all partitions together."""

    lanes: Annotated[list[tuple[_Partition, _Natural, _Natural, _Natural]], _Lanes]
    messages: _Positive | None = None
    bytes: _Positive | None = None


class Groups:
    """Does what clients ask for reader groups."""

    def __init__(self, endpoints: Endpoints, questions: LaneQuestions, node_id: str) -> None:
        self._endpoints = endpoints
        self._node_id = node_id
        self._questions = questions

    def register(self, requests: Requests) -> None:
        """Take the operations."""
        requests.register("group.open", OpenArguments, self._open)
        requests.register("group.positions", LanesArguments, partial(self._relay, AskPositions))
        requests.register("group.release", LanesArguments, partial(self._relay, ReleaseLease))
        requests.register("group.count", AtArguments, partial(self._relay, CountFrom))
        requests.register("group.find_time", AtArguments, partial(self._relay, FindTime))
        requests.register("group.acknowledge", AtArguments, partial(self._relay, AcknowledgeUpto))
        requests.register("group.plan", PlanArguments, self._plan)
        requests.register("endpoint.positions", PositionsArguments, self._look)

    # -- rights ----------------------------------------------------------------------------------------------

    def _find(self, session: Session, wish: _Arguments) -> Endpoint:
        """Give the queue that a reader group may lease.

        Raises:
            AngariumError: why it may not.
        """
        check_group(wish.group)
        demand_receive(session)
        endpoint = self._endpoints.find(session.vpn.name, QUEUE, wish.name)
        if endpoint is None:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"queue {wish.name}")
        demand(session, endpoint, Level.CONSUME, "leasing")
        if not endpoint.durable:
            detail = f"queue {endpoint.name} is temporary, a reader group leases a durable one"
            raise error_for(errors.INVALID_DURABILITY, detail)
        return endpoint

    def _lanes(
        self, endpoint: Endpoint, asked: Sequence[tuple[int, ...]]
    ) -> list[tuple[LaneUsage, list[int]]]:
        """Give the lanes that are meant, and the numbers that came with each."""
        lanes = {lane.partition: lane for lane in endpoint.all_lanes()}
        found = []
        for partition, *numbers in asked:
            if partition not in lanes:
                raise errors.invalid(f"queue {endpoint.name} has no partition {partition}")
            found.append((lanes.pop(partition), numbers))
        return found

    def _look(self, session: Session, wish: PositionsArguments, answer: Answer, now: float) -> None:
        """Tell who may browse which positions there are; it needs no lease and takes none."""
        demand_receive(session)
        endpoint = self._endpoints.find(session.vpn.name, wish.kind, wish.name)
        if endpoint is None:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"{wish.kind} {wish.name}")
        demand_creator(session, endpoint)
        demand(session, endpoint, Level.READ_ONLY, "browsing")

        def give(results: Results, _now: float) -> None:
            answer.give({"name": endpoint.name, "endpoint_id": endpoint.id, "lanes": results})

        lanes: list[Asked] = [(lane, AskFigures()) for lane in endpoint.lanes]
        session.charge(len(lanes), "partitions", now)
        self._ask(endpoint, lanes, give, _refuse(answer), now)

    # -- operations ------------------------------------------------------------------------------------------

    def _open(self, session: Session, wish: OpenArguments, answer: Answer, now: float) -> None:
        endpoint = self._find(session, wish)
        if not endpoint.attributes["egress_enabled"]:
            raise error_for(errors.ENDPOINT_SHUTDOWN, f"egress of queue {endpoint.name}")
        if endpoint.link:
            raise error_for(errors.QUEUE_UNFIT, f"{endpoint.name} belongs to a link")
        # A partition that was taken away has what groups have planned in it, and is leased until that is done. Only
        # its home knows, and gives nil if nothing is there for the group, which has to hear of all that it releases.
        first, *others = endpoint.all_lanes()
        session.charge(1 + len(others), "partitions", now)
        # A lease outlives sessions, so that a job that is started again finds its messages; the queue says how long.
        lease_ms = min(wish.lease_ms, int(endpoint.attributes["max_lease_s"]) * 1000)
        lease = OpenLease(wish.group, lease_ms)

        def opened(results: Results, at: float) -> None:
            """The first lane decides who of several groups gets the queue."""
            more: list[Asked] = [(lane, lease) for lane in others]
            self._ask(
                endpoint,
                more,
                lambda rest, _: give(results + rest),
                lambda error, rest, later: failed(error, results + rest, later),
                at,
            )

        def give(results: Results) -> None:
            endpoint.reader = session.username, session.client_name
            answer.give(
                {
                    "name": endpoint.name,
                    "endpoint_id": endpoint.id,
                    "node_id": self._node_id,
                    "lease_ms": lease_ms,
                    "lanes": [one for one in results if one[1] is not None],
                }
            )

        def failed(error: AngariumError, results: Results, at: float) -> None:
            """Let go again what was not leased before."""
            lanes = {lane.partition: lane for lane in endpoint.all_lanes()}
            taken = [
                (p, value["epoch"])
                for p, value in results
                if value is not None and not value["continued"] and p in lanes
            ]
            for partition, epoch in taken:
                release = ReleaseLease(wish.group, epoch)
                self._questions.ask(endpoint, lanes[partition], release, nothing, at)
            answer.refuse(error)

        self._ask(endpoint, [(first, lease)], opened, failed, now)

    def _relay(
        self,
        verb: Callable[..., LeaseVerb],
        session: Session,
        wish: LanesArguments | AtArguments,
        answer: Answer,
        now: float,
    ) -> None:
        endpoint = self._find(session, wish)
        session.charge(len(wish.lanes), "partitions", now)
        lanes = [(lane, verb(wish.group, *numbers)) for lane, numbers in self._lanes(endpoint, wish.lanes)]

        def give(results: Results, _now: float) -> None:
            if verb is not ReleaseLease:  # which is answered whoever has the lease
                endpoint.reader = session.username, session.client_name
            answer.give(results)

        self._ask(endpoint, lanes, give, _refuse(answer), now)

    def _plan(self, session: Session, wish: PlanArguments, answer: Answer, now: float) -> None:
        endpoint = self._find(session, wish)
        session.charge(len(wish.lanes), "partitions", now)
        lanes = self._lanes(endpoint, wish.lanes)
        messages, size = wish.messages or _ALL, wish.bytes or _ALL
        if len(lanes) == 1 or (wish.messages is None and wish.bytes is None):
            shares: list[Asked] = [
                (lane, PlanRange(wish.group, epoch, start, end, messages, size))
                for lane, (epoch, start, end) in lanes
            ]
            self._ask_plan(endpoint, shares, [], answer, now)
            return

        def measured(results: Results, at: float) -> None:
            """Share the limits out among lanes by what they have."""
            has = dict(results)
            by_messages = share_out(messages, [has[lane.partition][0] for lane, _ in lanes])
            by_bytes = share_out(size, [has[lane.partition][1] for lane, _ in lanes])
            shares: list[Asked] = []
            empty: Results = []
            for (lane, (epoch, start, end)), rows, room in zip(lanes, by_messages, by_bytes, strict=True):
                if rows and room:
                    shares.append((lane, PlanRange(wish.group, epoch, start, end, rows, room)))
                else:
                    empty.append((lane.partition, [start, start, 0, 0]))
            self._ask_plan(endpoint, shares, empty, answer, at)

        measures: list[Asked] = [
            (lane, CountFrom(wish.group, epoch, start)) for lane, (epoch, start, _) in lanes
        ]
        self._ask(endpoint, measures, measured, _refuse(answer), now)

    def _ask_plan(
        self, endpoint: Endpoint, shares: list[Asked], empty: Results, answer: Answer, now: float
    ) -> None:
        def give(results: Results, _now: float) -> None:
            answer.give(sorted(results + empty))

        self._ask(endpoint, shares, give, _refuse(answer), now)

    def _ask(
        self,
        endpoint: Endpoint,
        lanes: list[Asked],
        done: Callable[[Results, float], None],
        failed: Callable[[AngariumError, Results, float], None],
        now: float,
    ) -> None:
        """Ask lanes; `done` gets what they say when all have answered, `failed` the first error and the rest."""
        results: Results = []
        refused: list[AngariumError] = []
        missing = dict.fromkeys(lane.partition for lane, _ in lanes)
        if not missing:
            done(results, now)

        def answered(partition: int, value: Any, error: AngariumError | None, at: float) -> None:
            del missing[partition]
            if error is None:
                results.append((partition, value))
            else:
                refused.append(error)
            if missing:
                return
            if refused:
                failed(refused[0], results, at)
            else:
                done(sorted(results, key=_partition_of), at)

        for lane, verb in lanes:
            self._ask_one(endpoint, lane, verb, answered, now)

    def _ask_one(
        self,
        endpoint: Endpoint,
        lane: LaneUsage,
        verb: LeaseVerb,
        answered: Callable[[int, Any, AngariumError | None, float], None],
        now: float,
    ) -> None:
        def done(value: Any, error: AngariumError | None, at: float) -> None:
            answered(lane.partition, value, error, at)

        self._questions.ask(endpoint, lane, verb, done, now)


def check_group(name: str) -> None:
    """Return if this may be the name of a reader group.

    Raises:
        InvalidRequestError: it is empty, longer than 200 bytes, or has characters that cannot be printed (40018).
    """
    if not name or len(name.encode(errors="replace")) > GROUP_BYTES_MAX or not name.isprintable():
        detail = (
            f"the reader group {name[:50]!r}: a name has 1 to {GROUP_BYTES_MAX} bytes that can be printed"
        )
        raise errors.invalid(detail)


def share_out(limit: int, wants: list[int]) -> list[int]:
    """Share a limit out: everybody gets what it wants, or an equal part of what the others leave.

    Example: 10 among wants of 1, 100 and 100 is 1, 5 and 4.
    """
    shares = [0] * len(wants)
    left = limit
    by_want = sorted(range(len(wants)), key=lambda at: wants[at])
    for done, at in enumerate(by_want):
        shares[at] = min(wants[at], -(-left // (len(wants) - done)))
        left -= shares[at]
    return shares


def _refuse(answer: Answer) -> Callable[[AngariumError, Results, float], None]:
    return lambda error, _results, _now: answer.refuse(error)


def _partition_of(result: tuple[int, Any]) -> int:
    return result[0]
