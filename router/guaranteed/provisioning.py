"""Endpoints as clients make, change and see them: the operations endpoint.* of REQUEST.

Rights are judged here (`permissions`): the client profile for creating (R111), the permission on the endpoint for the
rest (R127-R139), the ACL for the topics that a client subscribes an endpoint to. The controller judges what can be
(names, attributes, templates, limits), makes it durable, has the router install it, and answers then. So ANSWER means
that it is in force.

    endpoint.create                     kind, name, durable, attributes, ignore_exists    {name, created}
    endpoint.delete                     kind, name                                        nil
    endpoint.subscribe, .unsubscribe    name, filters                                     [nil | [code, detail], ...]
    endpoint.show                       kind, name                                        attributes and metrics
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from router.asking.requests import GivenAttributes  # noqa: TC001 - msgspec reads it at run time
from router.guaranteed.endpoint_filters import EXCEPTION_MARK
from router.guaranteed.endpoints import QUEUE, Endpoint
from router.guaranteed.filter_checks import FilterChecks
from router.guaranteed.permissions import (
    Level,
    check_dead_message_queue,
    check_filter,
    creation,
    demand,
    demand_create,
    demand_creator,
    partitions_in,
    subscriptions_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.asking.requests import Answer
    from router.asking.work import Work
    from router.guaranteed.charged_asks import ChargedAsks
    from router.guaranteed.endpoints import Endpoints
    from router.sessions.session import Session

#: Attributes that say how the node holds an endpoint; clients do not see them.
_HIDDEN: Final = ("id", "generation", "homes")
#: Who created what no client did (R132).
_OPERATOR: Final = "operator"

Kind = Literal["queue", "topic-endpoint"]
_Name = Annotated[str, Meta(max_length=250)]
_Filters = Annotated[list[str], Meta(min_length=1, max_length=wire.MAX_FILTERS_PER_REQUEST)]


class CreateArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of endpoint.create."""

    name: _Name
    kind: Kind = QUEUE
    durable: bool = True
    attributes: GivenAttributes = {}
    ignore_exists: bool = False


class NameArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of endpoint.delete and endpoint.show."""

    name: _Name
    kind: Kind = QUEUE


class FilterArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of endpoint.subscribe and endpoint.unsubscribe."""

    name: _Name
    filters: _Filters
    kind: Kind = QUEUE


class Provisioning:
    """Does what clients wish of endpoints, as far as they may."""

    def __init__(self, endpoints: Endpoints, asks: ChargedAsks, begin_work: Callable[[Work], None]) -> None:
        self._endpoints = endpoints
        self._asks = asks
        self._begin_work = begin_work

    def create(self, session: Session, wish: CreateArguments, answer: Answer, _now: float) -> None:
        """Create an endpoint (R100, R108).

        Raises:
            AngariumError: the profile (40314) or the ACL (40303, 40302) does not let it; 50325 no memory is left.
        """
        demand_create(session, durable=wish.durable)
        check_dead_message_queue(session, self._endpoints, wish.attributes)
        filters = subscriptions_in(wish.attributes)

        def judge(text: str) -> None:
            check_filter(session, wish.kind, text, exceptions=self._endpoints.filters.exceptions)

        self._begin_work(FilterChecks(answer, filters, judge, lambda: self._create(session, wish, answer)))

    def _create(self, session: Session, wish: CreateArguments, answer: Answer) -> None:
        """Ask for an endpoint that may be."""
        filters, partitions = subscriptions_in(wish.attributes), partitions_in(wish.attributes)
        arguments = creation(session, wish.kind, wish.name, wish.attributes, durable=wish.durable)
        arguments["ignore_exists"] = wish.ignore_exists

        def created(value: Any) -> None:
            answer.give({"name": wish.name, "created": bool(value["created"])})

        size = self._endpoints.would_cost(filters, partitions)
        self._asks.ask("endpoint.create", arguments, answer, created, size)

    def delete(self, session: Session, wish: NameArguments, answer: Answer, _now: float) -> None:
        """Delete an endpoint that a client created (R132, R139).

        Raises:
            AngariumError: it is not there (40404), it may not (40315), an operator created it (40317).
        """
        endpoint = self._find(session, wish.kind, wish.name)
        demand_creator(session, endpoint)
        demand(session, endpoint, Level.DELETE, "deleting")
        if endpoint.created_by == _OPERATOR:
            raise error_for(errors.OPERATOR_ENDPOINT, f"{endpoint.kind} {endpoint.name}")
        arguments = {
            "vpn": session.vpn.name,
            "kind": wish.kind,
            "name": wish.name,
            "id": endpoint.id,
        }
        self._asks.ask("endpoint.delete", arguments, answer, lambda _: answer.give(None))

    def subscribe(self, session: Session, wish: FilterArguments, answer: Answer, now: float) -> None:
        """Add subscriptions to a queue (R120).

        Raises:
            AngariumError: it is not there (40404), it may not be changed (40315), that was too much (42902), or no
                memory is left for it (50325).
        """
        session.charge(len(wish.filters), "filters", now)
        self._find_changeable(session, wish)
        verdicts: dict[str, list[Any] | None] = {}

        def judge(text: str) -> None:
            verdicts[text] = None
            try:
                check_filter(session, wish.kind, text, exceptions=self._endpoints.filters.exceptions)
            except AngariumError as error:
                verdicts[text] = [error.code, error.detail]

        def then() -> None:
            self._find_changeable(session, wish)
            self._change(session, wish, "add", "added", verdicts, answer)

        self._begin_work(FilterChecks(answer, wish.filters, judge, then))

    def unsubscribe(self, session: Session, wish: FilterArguments, answer: Answer, now: float) -> None:
        """Remove subscriptions that clients added.

        Raises:
            AngariumError: it is not there (40404), it may not be changed (40315), or that was too much (42902).
        """
        session.charge(len(wish.filters), "filters", now)
        self._find_changeable(session, wish)
        self._change(session, wish, "remove", "removed", dict.fromkeys(wish.filters), answer)

    def _change(
        self,
        session: Session,
        wish: FilterArguments,
        verb: str,
        told: str,
        verdicts: dict[str, list[Any] | None],
        answer: Answer,
    ) -> None:
        """Ask for the filters without a verdict against them; the answer names those of the controller too."""
        texts = [text for text, verdict in verdicts.items() if verdict is None]
        if not texts:
            answer.give([verdicts[text] for text in wish.filters])
            return

        def changed(value: Any) -> None:
            verdicts.update(zip(texts, value[told], strict=True))
            answer.give([verdicts[text] for text in wish.filters])

        arguments = {"vpn": session.vpn.name, "name": wish.name, verb: texts}
        size = self._endpoints.would_cost(texts) if verb == "add" else 0
        self._asks.ask("endpoint.subscribe", arguments, answer, changed, size)

    def show(self, session: Session, wish: NameArguments, answer: Answer, _now: float) -> None:
        """Give attributes and metrics of an endpoint.

        Raises:
            AngariumError: it is not there (40404), or it may not be seen (40315).
        """
        endpoint = self._find(session, wish.kind, wish.name)
        demand(session, endpoint, Level.READ_ONLY, "showing")
        attributes = {name: value for name, value in endpoint.attributes.items() if name not in _HIDDEN}
        metrics = {
            "messages": endpoint.messages,
            "bytes": endpoint.bytes,
            "unacked": endpoint.unacked,
            "bind_count": len(endpoint.flows),
        }
        answer.give({"kind": endpoint.kind, "name": endpoint.name, "attributes": attributes, **metrics})

    def _find(self, session: Session, kind: str, name: str) -> Endpoint:
        endpoint = self._endpoints.find(session.vpn.name, kind, name)
        if endpoint is None:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"{kind} {name}")
        return endpoint

    def _find_changeable(self, session: Session, wish: FilterArguments) -> None:
        if wish.kind != QUEUE:
            exceptions = [text for text in wish.filters if text.startswith(EXCEPTION_MARK)]
            if exceptions:  # R123
                raise error_for(errors.EXCEPTIONS_NOT_SUPPORTED, exceptions[0][:300])
            raise errors.invalid("a topic endpoint gets its topic when it is bound")
        endpoint = self._find(session, wish.kind, wish.name)
        demand_creator(session, endpoint)
        demand(session, endpoint, Level.MODIFY_TOPIC, "changing the subscriptions of")
