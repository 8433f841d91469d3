"""flow.bind: who may bind to what, and what must be there before.

The layers of R127 to R139 in their order: the client profile, the endpoint itself (is it there, is it of that
durability, is egress enabled), the permission, limits. Two things may have to be done first, by the controller: a
temporary endpoint that is missing is created (R107), and a topic endpoint gets the topic and selector of its consumer,
which empties it if they change (R121, R149). After each the bind is judged again from the beginning, since much may
have changed meanwhile.

A topic endpoint with consumers has one topic and one selector, so a second consumer must want the same (50316, 50317).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.costs import flow_bytes
from router.asking.asks import refusal
from router.asking.requests import GivenAttributes  # noqa: TC001 - msgspec reads it at run time
from router.flows.flow import Flow, Range, count_refused_bind, why_unordered
from router.flows.groups import check_group
from router.ground.alarms import CLIENT_EGRESS_FLOWS, ENDPOINT_FLOWS, VPN_EGRESS_FLOWS
from router.guaranteed.endpoints import QUEUE, TOPIC_ENDPOINT, Endpoint
from router.guaranteed.filter_checks import FilterChecks, do_at_once
from router.guaranteed.holders import holder_of
from router.guaranteed.permissions import (
    Level,
    check_dead_message_queue,
    check_filter,
    creation,
    demand,
    demand_create,
    demand_creator,
    demand_receive,
    level_of,
    partitions_in,
    profile_of,
    subscriptions_in,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from router.asking.asks import Asks
    from router.asking.requests import Answer
    from router.asking.work import Work
    from router.flows.alarms import FlowAlarms
    from router.flows.flows import Flows
    from router.guaranteed.endpoints import Endpoints
    from router.guaranteed.memory_accounts import MemoryAccounts
    from router.sessions.session import Session

#: Bytes of a selector (R141).
MAX_SELECTOR_BYTES: Final = 2_000
#: Times that a bind is judged: once more after each thing that it needs, and some for others who change the same.
ATTEMPTS_MAX: Final = 5

_Total = Annotated[int, Meta(ge=0, le=1 << 62)]
Kind = Literal["queue", "topic-endpoint"]
assert Kind.__args__ == (QUEUE, TOPIC_ENDPOINT)  # type: ignore[attr-defined]


class RangeArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Positions of one partition, from `first` to before `end`: planned by a group, or, without one, what is there."""

    group: str
    partition: Annotated[int, Meta(ge=0, lt=wire.MAX_PARTITIONS)]
    first: _Total
    end: _Total


class BindArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of flow.bind."""

    name: Annotated[str, Meta(max_length=250)]
    kind: Kind = QUEUE
    browse: bool = False
    selector: str | None = None
    #: The first credit, in messages and spool bytes.
    messages: _Total = 0
    bytes: _Total = 0
    #: Of a topic endpoint.
    topic: str | None = None
    temporary: bool = False
    #: Of a temporary endpoint, if it is to be made.
    attributes: GivenAttributes = {}
    active_indication: bool = False
    no_local: bool = False
    max_unacked: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    #: By rising positions, for those who carry the messages elsewhere and use positions as sequences.
    in_order: bool = False
    #: What a reader group reads, with `browse`.
    range: RangeArguments | None = None


class _Bind(NamedTuple):
    """A bind that is being judged."""

    session: Session
    wish: BindArguments
    answer: Answer
    attempts: int


class Binding:
    """Judges binds, and makes flows of those that may be."""

    def __init__(
        self,
        endpoints: Endpoints,
        flows: Flows,
        asks: Asks,
        rng: random.Random,
        alarms: FlowAlarms,
        memory: MemoryAccounts,
        begin_work: Callable[[Work], None],
    ) -> None:
        self._endpoints = endpoints
        self._memory = memory
        self._flows = flows
        self._asks = asks
        self._random = rng
        self._alarms = alarms
        self._begin_work = begin_work
        #: Topic endpoint -> topic and selector that it is about to get, and how many binds wait for that.
        self._changing: dict[Endpoint, list[Any]] = {}

    def bind(self, session: Session, wish: BindArguments, answer: Answer, now: float) -> None:
        """Take flow.bind.

        Raises:
            AngariumError: why it may not be.
        """
        if not wish.name:
            if not wish.temporary:
                raise error_for(errors.INVALID_ENDPOINT_NAME, "a durable endpoint has a name")
            wish = msgspec.structs.replace(wish, name=f"temporary/{self._random.getrandbits(96):024x}")
        self._judge(_Bind(session, wish, answer, 1), now)

    def _judge(self, bind: _Bind, now: float) -> None:
        session, wish = bind.session, bind.wish
        demand_receive(session)
        _check_wish(wish)
        endpoint = self._endpoints.find(session.vpn.name, wish.kind, wish.name)
        if endpoint is None:
            self._create(bind)
            return
        try:
            self._check_endpoint(session, endpoint, wish)
            self._check_limits(session, endpoint)
        except AngariumError as error:
            count_refused_bind(endpoint, error.code)
            raise
        if endpoint.kind == TOPIC_ENDPOINT and not wish.browse and self._wants_other_topic(endpoint, wish):
            self._set_topic(bind, endpoint)
            return
        flow = self._flow_of(bind, endpoint)
        self._memory.charge(session, flow_bytes(flow.selector))
        self._alarms.flows_changed(session, 1)
        self._flows.add(flow, now)

    def _check_endpoint(self, session: Session, endpoint: Endpoint, wish: BindArguments) -> None:
        if endpoint.durable == wish.temporary:
            kind = "durable" if endpoint.durable else "temporary"
            raise error_for(errors.INVALID_DURABILITY, f"{endpoint.kind} {endpoint.name} is {kind}")
        demand_creator(session, endpoint)
        if wish.browse and not (wish.range and wish.range.group):
            demand(session, endpoint, Level.READ_ONLY, "browsing")
        else:
            demand(session, endpoint, Level.CONSUME, "consuming from")
        if not endpoint.attributes["egress_enabled"]:
            raise error_for(errors.ENDPOINT_SHUTDOWN, f"egress of {endpoint.kind} {endpoint.name}")
        unfit = why_unordered(endpoint) if wish.in_order else None
        if unfit is not None:
            raise unfit
        if not endpoint.durable and endpoint.flows:
            raise error_for(errors.ALREADY_BOUND, endpoint.name)

    def _check_limits(self, session: Session, endpoint: Endpoint) -> None:
        bound = int(endpoint.attributes["max_bind_count"])
        if len(endpoint.flows) >= bound:
            self._alarms.alarms.exceeded(ENDPOINT_FLOWS, endpoint)
            raise error_for(errors.MAX_BIND_COUNT_EXCEEDED, f"{endpoint.name} allows {bound}")
        profile = profile_of(session)
        own = int(profile["max_egress_flow_count"])
        if len(session.flows) >= own:
            self._alarms.alarms.client_is_full(CLIENT_EGRESS_FLOWS, session, own)
            raise error_for(errors.TOO_MANY_FLOWS, f"client profile {session.profile_name} allows {own}")
        limit = int(profile["max_egress_flow_count_per_client_username"])
        if not self._alarms.flows.has_room(session.vpn, session.username, limit):
            raise error_for(errors.TOO_MANY_FLOWS, f"username {session.username} may have {limit}")
        vpn = session.vpn
        limit = int(vpn.attributes["max_egress_flow_count"])
        if vpn.egress_flows >= limit:
            self._alarms.alarms.exceeded(VPN_EGRESS_FLOWS, vpn)
            raise error_for(errors.TOO_MANY_FLOWS, f"Message VPN {vpn.name} allows {limit}")

    def _wants_other_topic(self, endpoint: Endpoint, wish: BindArguments) -> bool:
        """Tell whether a topic endpoint must change for this consumer.

        Raises:
            UnavailableError: it has consumers with another topic (50316) or selector (50317).
        """
        attributes = endpoint.attributes
        has = [attributes.get("topic"), attributes.get("selector") or None]
        wants = [wish.topic, wish.selector or None]
        changing = self._changing.get(endpoint)
        is_taken = any(not flow.browse for flow in endpoint.flows.values())
        other = has if is_taken else changing[:2] if changing else wants
        if other[0] != wants[0]:
            raise error_for(errors.SUBSCRIPTION_DOES_NOT_MATCH, f"{endpoint.name} has {other[0]}")
        if other[1] != wants[1]:
            raise error_for(errors.SELECTOR_DOES_NOT_MATCH, endpoint.name)
        return has != wants

    # -- what must be done first -----------------------------------------------------------------------------

    def _create(self, bind: _Bind) -> None:
        """Have a temporary endpoint made (R102, R107).

        Raises:
            AngariumError: it is not to be temporary, or may not be made.
        """
        session, wish = bind.session, bind.wish
        if not wish.temporary:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"{wish.kind} {wish.name}")
        demand_create(session, durable=False)
        check_dead_message_queue(session, self._endpoints, wish.attributes)

        def judge(text: str) -> None:
            check_filter(session, wish.kind, text, exceptions=self._endpoints.filters.exceptions)

        filters = subscriptions_in(wish.attributes)
        # A session does one thing at a time, and may be at the next one when it is tried again.
        begin = self._begin_work if bind.attempts == 1 else do_at_once
        begin(FilterChecks(bind.answer, filters, judge, lambda: self._ask_for(bind)))

    def _ask_for(self, bind: _Bind) -> None:
        """Ask for a temporary endpoint whose filters were judged."""
        session, wish = bind.session, bind.wish
        filters, partitions = subscriptions_in(wish.attributes), partitions_in(wish.attributes)
        size = self._endpoints.would_cost(filters, partitions)
        if wish.topic is not None:
            check_filter(session, wish.kind, wish.topic, exceptions=self._endpoints.filters.exceptions)
        arguments = creation(session, wish.kind, wish.name, wish.attributes, durable=False)
        self._ask(bind, "endpoint.create", arguments, (errors.OBJECT_EXISTS,), size=size)

    def _set_topic(self, bind: _Bind, endpoint: Endpoint) -> None:
        session, wish = bind.session, bind.wish
        demand(session, endpoint, Level.MODIFY_TOPIC, "setting the topic of")
        assert wish.topic is not None
        check_filter(session, endpoint.kind, wish.topic, exceptions=self._endpoints.filters.exceptions)
        arguments = {
            "vpn": session.vpn.name,
            "name": wish.name,
            "topic": wish.topic,
            "selector": wish.selector or None,
        }
        changing = self._changing.setdefault(endpoint, [wish.topic, wish.selector or None, 0])
        changing[2] += 1
        self._ask(bind, "endpoint.set_topic", arguments, (), endpoint)

    def _changed(self, endpoint: Endpoint) -> None:
        """One bind less waits for the topic of an endpoint."""
        changing = self._changing[endpoint]
        changing[2] -= 1
        if not changing[2]:
            del self._changing[endpoint]

    def _ask(
        self,
        bind: _Bind,
        operation: str,
        arguments: dict[str, Any],
        harmless: tuple[int, ...],
        endpoint: Endpoint | None = None,
        size: int = 0,
    ) -> None:
        """Ask the controller, then judge again; a refusal with a harmless code is no obstacle.

        Raises:
            UnavailableError: no memory is left for what it is to make (50325).
        """
        self._memory.charge(bind.session, size)

        def done(ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - the form of an answer
            self._memory.refund(bind.session, size)
            if endpoint is not None:
                self._changed(endpoint)
            error = None if ok else refusal(value)
            if error is not None and error.code not in harmless:
                self._alarms.endpoint_refused(bind.session, error.code)
                bind.answer.refuse(error)
            elif bind.session.closed:
                bind.answer.refuse(error_for(errors.SESSION_UNKNOWN))
            elif bind.attempts >= ATTEMPTS_MAX:
                bind.answer.refuse(error_for(errors.OBJECT_IN_USE, f"{bind.wish.name} changes all the time"))
            else:
                self._judge_again(bind._replace(attempts=bind.attempts + 1), now)

        self._asks.ask(operation, arguments, done, bind.session)

    def _judge_again(self, bind: _Bind, now: float) -> None:
        try:
            self._judge(bind, now)
        except AngariumError as error:
            bind.answer.refuse(error)

    def _flow_of(self, bind: _Bind, endpoint: Endpoint) -> Flow:
        session, wish = bind.session, bind.wish
        flow = Flow(self._flows.ends.new_id(), session, endpoint)
        flow.browse = wish.browse
        if wish.range is not None:
            flow.range = Range(*msgspec.structs.astuple(wish.range))
            if not flow.wanted_lanes():
                raise errors.invalid(f"queue {endpoint.name} has no partition {flow.range.partition}")
        # The selector of a topic endpoint's consumers is its own: it filters what comes in (R145).
        is_own = endpoint.kind == TOPIC_ENDPOINT and not wish.browse
        flow.selector = None if is_own else wish.selector or None
        flow.no_local = wish.no_local or session.no_local
        flow.active_indication = wish.active_indication
        flow.max_unacked = wish.max_unacked
        flow.in_order = wish.in_order and not wish.browse
        flow.may_settle = level_of(session, endpoint) >= Level.CONSUME
        flow.holder = holder_of(self._endpoints, session, endpoint)
        flow.granted_messages, flow.granted_bytes = wish.messages, wish.bytes
        flow.answer = bind.answer
        return flow


def _check_wish(wish: BindArguments) -> None:
    """Judge what can be judged without an endpoint."""
    if wish.selector is not None and len(wish.selector.encode(errors="replace")) > MAX_SELECTOR_BYTES:
        raise error_for(errors.INVALID_SELECTOR, f"it has more than {MAX_SELECTOR_BYTES} bytes")
    if wish.range is not None:
        _check_range(wish, wish.range)
    if wish.kind == TOPIC_ENDPOINT:
        if wish.topic is None and not wish.browse:
            raise errors.invalid("flow.bind: a topic endpoint is bound with a topic")
    elif wish.topic is not None:
        raise errors.invalid("flow.bind: a queue has subscriptions, no topic")


def _check_range(wish: BindArguments, wanted: RangeArguments) -> None:
    """Judge the range of a browser."""
    if wanted.end < wanted.first:
        raise errors.invalid(f"flow.bind: a range from {wanted.first} to before {wanted.end}")
    if not wish.browse or wish.no_local:
        raise errors.invalid("flow.bind: a range is browsed, without no_local")
    if wanted.group:
        check_group(wanted.group)
        if wish.kind != QUEUE or wish.selector:
            raise errors.invalid(
                "flow.bind: the range of a reader group is of a queue, and read without selector"
            )
