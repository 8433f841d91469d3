"""Everything that consumers need, tied together: endpoints, their lanes and filters, flows, and what clients ask.

The router's state machine (`router.router`) hands events here and knows no more of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from angarium_server.costs import flow_bytes
from router.flows.alarms import FlowAlarms
from router.flows.binding import BindArguments, Binding
from router.flows.ends import Ranges  # noqa: TC001 - msgspec reads it
from router.flows.flows import Flows
from router.flows.groups import Groups
from router.flows.lane_questions import LaneQuestions
from router.guaranteed.charged_asks import ChargedAsks
from router.guaranteed.endpoints import Endpoints
from router.guaranteed.filter_checks import do_at_once
from router.guaranteed.holders import Holders
from router.guaranteed.lanes import Lanes
from router.guaranteed.provisioning import CreateArguments, FilterArguments, NameArguments, Provisioning
from router.guaranteed.sessions import (
    ChangeArguments,
    CloseArguments,
    KeepArguments,
    KeptSessions,
    NoteArguments,
    OpenArguments,
    ShareArguments,
)
from router.guaranteed.temporaries import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames.homes import LanesConfirmFrame
    from router.asking.requests import Answer, Requests
    from router.asking.work import Work
    from router.delivery.egress import Egress
    from router.ground.ground import Ground
    from router.guaranteed.endpoints import Endpoint
    from router.guaranteed.memory_accounts import MemoryAccounts
    from router.matching.shards import Shard, Shards
    from router.sessions.directory import Attributes
    from router.sessions.session import Session


class UnbindArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of flow.unbind."""

    flow: int
    #: Partition, first and last position of what the application has not seen.
    released: Ranges = []


class Consumers:
    """Endpoints and flows of the node."""

    def __init__(
        self,
        ground: Ground,
        shards: Shards,
        egress: Egress,
        requests: Requests,
        memory: MemoryAccounts,
        on_filter: Callable[[int, str], None],
    ) -> None:
        """Begin without endpoints; `on_filter` is called with (VPN number, pattern) when a filter comes or goes."""
        counters, asks = ground.counters, requests.asks
        #: Begins with what takes several steps.
        self.begin_work: Callable[[Work], None] = do_at_once
        self._memory = memory
        self.lanes = Lanes(shards)
        self.endpoints = Endpoints(
            shards.interest, shards, self.lanes, on_filter, exceptions=ground.exceptions
        )
        self.flows = Flows(
            self.endpoints, self.lanes, shards, egress, counters, ground.config.egress_unread_bytes
        )
        self.temporaries = Temporaries(asks)
        self.alarms = FlowAlarms(ground.alarms)
        self.questions = LaneQuestions(shards, self.lanes)
        shards.on_started.append(self.lanes.shard_started)
        shards.on_lost += [one.shard_lost for one in (self.lanes, self.flows, self.questions)]
        self.holders = Holders(self.endpoints, self.questions.ask)
        hearing = (self.flows, self.questions, self.holders, self)
        self.endpoints.on_gone += [one.endpoint_gone for one in hearing]
        self.endpoints.on_cost = self._endpoint_costs
        self.endpoints.on_change = self._endpoint_changed
        self.flows.on_removed = self._flow_removed
        self.flows.on_bind_count = self._bind_count_changed
        binding = Binding(
            self.endpoints,
            self.flows,
            asks,
            ground.secrets,
            self.alarms,
            memory,
            self._begin,
        )
        charged = ChargedAsks(asks, memory, self.alarms.endpoint_refused)
        provisioning = Provisioning(self.endpoints, charged, self._begin)
        requests.register("flow.bind", BindArguments, binding.bind)
        requests.register("flow.unbind", UnbindArguments, self._unbind)
        requests.register("endpoint.create", CreateArguments, provisioning.create)
        requests.register("endpoint.delete", NameArguments, provisioning.delete)
        requests.register("endpoint.subscribe", FilterArguments, provisioning.subscribe)
        requests.register("endpoint.unsubscribe", FilterArguments, provisioning.unsubscribe)
        requests.register("endpoint.show", NameArguments, provisioning.show)
        self._register_sessions(requests, charged)
        Groups(self.endpoints, self.questions, ground.identity.node_id).register(requests)

    def _register_sessions(self, requests: Requests, charged: ChargedAsks) -> None:
        """Take what clients of gateways ask of their sessions."""
        sessions = KeptSessions(
            self.endpoints, charged, self._begin, self.questions.ask, self.holders, self.temporaries
        )
        requests.register("session.open", OpenArguments, sessions.open)
        requests.register("session.change", ChangeArguments, sessions.change)
        requests.register("session.close", CloseArguments, sessions.close)
        requests.register("session.note", NoteArguments, sessions.note)
        requests.register("session.keep", KeepArguments, sessions.keep)
        requests.register("session.share", ShareArguments, sessions.share)

    def _begin(self, work: Work) -> None:
        self.begin_work(work)

    # -- from homes ------------------------------------------------------------------------------------------

    def home(self, shard: Shard, number: int) -> None:
        """Take HOME, the answer to a LANES: flows are bound at a home that is ready."""
        if self.lanes.home_ready(shard.index, number):
            self.flows.home_ready(shard.index)
            self.questions.home_ready(shard.index)

    def lanes_confirmed(
        self, confirm: LanesConfirmFrame, shard: Shard, _batches: list[bytes], _now: float
    ) -> None:
        """Take LANES_CONFIRM: flows follow lanes that were taken over."""
        if self.lanes.confirm(shard.index, confirm.number):
            self.flows.home_ready(shard.index)
            self.questions.home_ready(shard.index)

    # -- from clients ----------------------------------------------------------------------------------------

    def _unbind(self, session: Session, wish: UnbindArguments, answer: Answer, now: float) -> None:
        self.flows.unbind(session, wish.flow, now, wish.released)
        answer.give(None)

    # -- endpoints and flows ---------------------------------------------------------------------------------

    def _endpoint_changed(self, endpoint: Endpoint, before: Attributes | None, now: float) -> None:
        if before is None:
            self.temporaries.made(endpoint, now)
            self.alarms.made(endpoint)
        else:
            self.temporaries.changed(endpoint, before, now)
        self.flows.endpoint_changed(endpoint, before, now)
        self.alarms.look(endpoint)

    def _endpoint_costs(self, endpoint: Endpoint, size: int) -> None:
        if not endpoint.link:
            self._memory.keep(endpoint.vpn, endpoint.creator, size)

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """An endpoint was deleted."""
        self.temporaries.gone(endpoint)
        self.alarms.gone(endpoint)

    def _bind_count_changed(self, endpoint: Endpoint) -> None:
        if endpoint.flows:
            self.temporaries.bound(endpoint)
        self.alarms.look(endpoint)

    def _flow_removed(self, flow: Any, wanted: bool, now: float) -> None:  # noqa: FBT001 - the form of the callback
        self._memory.refund(flow.session, flow_bytes(flow.selector))
        self.temporaries.unbound(flow.endpoint, now, wanted=wanted)
        self.alarms.flows_changed(flow.session, -1)

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what time demands; gives when to call again, infinite if nothing is planned."""
        self.holders.tick(now)
        wake = min(self.flows.tick(now), self.temporaries.tick(now), self.questions.tick(now))
        self.endpoints.filters.step()
        return now if self.endpoints.filters else wake

    def validate(self) -> None:
        """Check everything that must always hold."""
        self.lanes.validate()
        self.endpoints.validate()
        self.flows.validate()
        self.temporaries.validate()
        self.questions.validate()
        self.holders.validate()
