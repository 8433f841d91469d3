"""Flows: clients that are bound to endpoints, and what they say of messages.

A home does the delivering: it has the messages, the order, who is active and what is not settled. The router relays
(`ends`). What it decides is which home a flow is bound at, how much credit each home may use (`flow`), and which flow
has which partition (`assignments`). Who may bind is decided in `binding`.

A home that dies takes nothing with it but what was not settled: its ends wait, settles that come meanwhile are kept
(bounded), and when the home is back they are bound again under the same numbers, with the credit that remains.

Frames: docs/protocol.md and docs/node-protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from router.flows.assignments import Assignments
from router.flows.ends import Ends
from router.flows.flow import Flow, HomeState, count_refused_bind, why_unordered
from router.ground.ground import nothing
from router.guaranteed.permissions import Level, level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from angarium_server.frames.homes import FlowEventFrame
    from router.delivery.egress import Egress
    from router.flows.flow import HomeFlow
    from router.ground.ground import Counters
    from router.guaranteed.endpoints import Endpoint, Endpoints
    from router.guaranteed.lanes import Lanes
    from router.matching.shards import Shard, Shards
    from router.sessions.directory import Attributes
    from router.sessions.session import Session

#: How long a bind waits for the home's word: a worker that died is back within a few seconds.
BIND_TIMEOUT_S: Final = 10.0


class Flows:
    """All flows of the router; a listener of `Shards` and of `Endpoints`."""

    def __init__(
        self,
        endpoints: Endpoints,
        lanes: Lanes,
        shards: Shards,
        egress: Egress,
        counters: Counters,
        unread_bytes_max: int,
    ) -> None:
        self._counters = counters
        self.ends = Ends(shards, lanes, egress, counters, unread_bytes_max)
        self._assignments = Assignments(endpoints, self.ends, self._partitions_changed)
        #: By id, in the order of their binding.
        self.by_id: dict[int, Flow] = {}
        #: Flows whose bind is not answered, those that wait longest first.
        self._answering: dict[Flow, None] = {}
        #: Called with an endpoint whose number of flows changed.
        self.on_bind_count: Callable[[Endpoint], None] = nothing
        #: Called with (flow, wanted, now) when a flow is over, whether its client wanted that or not.
        self.on_removed: Callable[[Flow, bool, float], None] = nothing

        #: Whose partitions changed in this turn.
        self._untold: dict[Flow, None] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    # -- binding ---------------------------------------------------------------------------------------------

    def add(self, flow: Flow, now: float) -> None:
        """Bind a flow that was judged; its answer is given when the homes have answered."""
        endpoint = flow.endpoint
        self.by_id[flow.id] = endpoint.flows[flow.id] = flow
        flow.session.flows[flow.number] = flow
        endpoint.vpn.egress_flows += 1
        flow.answer_by = now + BIND_TIMEOUT_S
        self._answering[flow] = None
        self._place(flow, now)
        self.on_bind_count(endpoint)
        self._answer_if_bound(flow)

    def _place(self, flow: Flow, now: float) -> None:
        """Give a flow its ends."""
        if flow.endpoint.partitions and not flow.browse:
            self._assignments.add(flow, now)
            return
        self.ends.attach(flow, flow.wanted_lanes())

    def _answer_if_bound(self, flow: Flow) -> None:
        """Answer a bind when every home has answered; what came before is sent after the answer."""
        answer = flow.answer
        if answer is None or not flow.is_bound():
            return
        flow.answer = None
        del self._answering[flow]
        endpoint = flow.endpoint
        answer.give(
            {
                "flow": flow.number,
                "name": endpoint.name,
                "endpoint_id": endpoint.id,
                "active": flow.is_active,
                "partitions": flow.partitions,
                "access_type": "exclusive" if endpoint.is_exclusive else "non-exclusive",
                "max_unacked": _max_unacked(flow),
            }
        )
        self.ends.send_held(flow)

    # -- from homes ------------------------------------------------------------------------------------------

    def events(self, frame: FlowEventFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        """Take FLOW_EVENT."""
        for one in frame.events:
            end = self.ends.find(one.flow, shard)
            if end is None:
                continue
            if end.state is HomeState.LEAVING and one.event == wire.FLOW_CLOSED:
                end.state = HomeState.OVER
                self._assignments.end_soon(end)
            else:
                self._event(end, one.event, one.code, one.detail, now)

    def _event(self, end: HomeFlow, event: int, code: int, detail: str, now: float) -> None:
        if event in (wire.FLOW_ACTIVE, wire.FLOW_INACTIVE):
            self._activity(end, is_active=event == wire.FLOW_ACTIVE)
        elif event == wire.FLOW_SETTLE_REFUSED:
            self.ends.refuse_settle(end.flow, code, detail)
        elif end.flow.range is not None and not code:
            self.ends.indicate(end.flow, wire.FLOW_CLOSED, 0, None)
            self._remove(end.flow, now, wanted=True)
        else:
            self.close(end.flow, error_for(code, detail), now)

    def _activity(self, end: HomeFlow, *, is_active: bool) -> None:
        flow = end.flow
        if end.state is HomeState.BINDING:
            end.state = HomeState.BOUND
        was, flow.active = flow.active, is_active
        if flow.answer is not None:
            self._answer_if_bound(flow)
        elif was != is_active and flow.active_indication and not flow.endpoint.partitions:
            self.ends.indicate(flow, wire.FLOW_ACTIVE if is_active else wire.FLOW_INACTIVE, 0, None)

    def home_ready(self, index: int) -> None:
        """A home came, or came back, and knows its lanes."""
        self.ends.home_ready(index)

    def shard_lost(self, shard: Shard) -> None:
        """A worker died: its ends wait for the next one; what was being handed off is free."""
        for end in self.ends.home_lost(shard.index):
            self._assignments.end_soon(end)

    # -- news for clients ------------------------------------------------------------------------------------

    def _partitions_changed(self, flow: Flow) -> None:
        """Have a client told of it at the end of the turn: it is told all of its partitions, so once is enough."""
        if flow.answer is not None:
            self._answer_if_bound(flow)
        else:
            self._untold[flow] = None

    def _tell_partitions(self) -> None:
        untold, self._untold = self._untold, {}
        for flow in untold:
            self.ends.indicate(flow, wire.FLOW_PARTITIONS, 0, flow.partitions)

    # -- the end of a flow -----------------------------------------------------------------------------------

    def unbind(
        self, session: Session, number: int, now: float, released: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """The client does not want a flow any more, and gives back what it has `released`; nothing more comes for it.

        Raises:
            InvalidRequestError: there never was one of that number (40023).
        """
        flow = self.ends.find_flow(session, number)
        if flow is not None:
            self._refuse_bind(flow, error_for(errors.UNKNOWN_FLOW, "unbound meanwhile"))
            self.ends.release(flow, released)
            self._remove(flow, now, wanted=True)

    def close(self, flow: Flow, error: AngariumError, now: float) -> None:
        """End a flow and tell its client why: as the answer to its bind, if that is not answered yet."""
        if not self._refuse_bind(flow, error):
            self._counters.errors[error.code] += 1
            self.ends.indicate(flow, wire.FLOW_CLOSED, error.code, error.detail)
        self._remove(flow, now, wanted=False)

    def session_ended(self, session: Session, error: AngariumError | None, now: float) -> None:
        """A session is over, because its client wanted it or not: so are its flows."""
        for flow in list(session.flows.values()):
            self._refuse_bind(flow, error_for(errors.SESSION_UNKNOWN))
            self._remove(flow, now, wanted=error is None)

    def _refuse_bind(self, flow: Flow, error: AngariumError) -> bool:
        answer, flow.answer = flow.answer, None
        if answer is None:
            return False
        del self._answering[flow]
        count_refused_bind(flow.endpoint, error.code)
        answer.refuse(error)
        return True

    def _remove(self, flow: Flow, now: float, *, wanted: bool) -> None:
        endpoint = flow.endpoint
        del self.by_id[flow.id]
        self._untold.pop(flow, None)
        del endpoint.flows[flow.id]
        del flow.session.flows[flow.number]
        endpoint.vpn.egress_flows -= 1
        if flow.browse:
            self.ends.detach_all(flow)
        else:
            self._assignments.remove(flow, now)
        self.on_removed(flow, wanted, now)
        self.on_bind_count(endpoint)

    # -- endpoints that change -------------------------------------------------------------------------------

    def endpoint_changed(self, endpoint: Endpoint, before: Attributes | None, now: float) -> None:
        """An endpoint has other attributes, or other homes."""
        if before is None:
            return
        for flow in list(endpoint.flows.values()):
            error = _why_not(flow)
            if error is not None:
                self.close(flow, error, now)
        if bool(before.get("partition_count")) != bool(endpoint.partitions):
            self._place_anew(endpoint, now)
        else:
            self._assignments.resize(endpoint, now)
        for flow in endpoint.flows.values():
            if flow.browse:
                self._place_browser(flow)
            for end in list(flow.ends.values()):
                if end.home == end.lane.home:
                    continue
                if end.state in (HomeState.LEAVING, HomeState.OVER):
                    self._assignments.end_soon(end)
                else:
                    self.ends.move(end)
        self.on_bind_count(endpoint)

    def _place_anew(self, endpoint: Endpoint, now: float) -> None:
        """A queue got partitions, or has none any more: its consumers start over."""
        self._assignments.forget(endpoint)
        consumers = [flow for flow in endpoint.flows.values() if not flow.browse]
        for flow in consumers:
            for end in list(flow.ends.values()):
                self._assignments.drop(end)
        for flow in consumers:
            self._place(flow, now)
        for flow in consumers:
            self._partitions_changed(flow)

    def _place_browser(self, flow: Flow) -> None:
        """Browsers look into every lane there is, or into one of a reader group."""
        lanes = flow.wanted_lanes()
        for end in [end for end in flow.ends.values() if end.lane not in lanes]:
            self.ends.detach(end)
        self.ends.attach(flow, [lane for lane in lanes if lane.partition not in flow.ends])

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """An endpoint was deleted; no time is needed, since its partitions go to nobody."""
        self._assignments.forget(endpoint)
        error = error_for(errors.UNKNOWN_ENDPOINT, f"{endpoint.kind} {endpoint.name} was deleted")
        for flow in list(endpoint.flows.values()):
            self.close(flow, error, 0.0)

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what time demands; gives when to call again, infinite if nothing is planned."""
        wake = now if self.ends.step() else float("inf")
        while self._answering:
            flow = next(iter(self._answering))
            if flow.answer_by > now:
                wake = min(wake, flow.answer_by)
                break
            detail = f"the home of {flow.endpoint.kind} {flow.endpoint.name} does not answer"
            self.close(flow, error_for(errors.HOME_NOT_READY, detail), now)
        wake = min(wake, self._assignments.tick(now))
        self._tell_partitions()
        return wake

    def describe(self, vpn: str | None, kind: str | None, name: str | None) -> Iterator[dict[str, Any]]:
        """List flows for operators: all, or those of one Message VPN, kind or name of endpoint."""
        for flow in list(self.by_id.values()):
            endpoint = flow.endpoint
            if (
                flow.id in self.by_id
                and vpn in (None, endpoint.vpn.name)
                and kind in (None, endpoint.kind)
                and name in (None, endpoint.name)
            ):
                yield flow.describe()

    def validate(self) -> None:
        """Check that all tables agree."""
        ends = [end.id for flow in self.by_id.values() for end in flow.ends.values()]
        assert sorted(ends) == sorted(self.ends.by_id)
        self.ends.validate()
        self._assignments.validate()
        for flow in self.by_id.values():
            flow.validate()
            assert not flow.session.closed
            assert not flow.endpoint.is_gone
            assert (flow.answer is None) == (flow not in self._answering)


def _max_unacked(flow: Flow) -> int:
    limit = flow.endpoint.max_unacked
    return limit if flow.max_unacked is None else min(limit, flow.max_unacked)


def _why_not(flow: Flow) -> AngariumError | None:
    """Tell why a flow may not go on under the attributes in force, if so."""
    endpoint = flow.endpoint
    if not endpoint.attributes["egress_enabled"]:
        return error_for(errors.ENDPOINT_SHUTDOWN, endpoint.name)
    level = level_of(flow.session, endpoint)
    flow.may_settle = level >= Level.CONSUME
    if level < (Level.READ_ONLY if flow.browse and not flow.is_of_group else Level.CONSUME):
        return error_for(errors.PERMISSION_DENIED, endpoint.name)
    return why_unordered(endpoint) if flow.in_order else None
