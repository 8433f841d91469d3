"""Flows: clients that are bound to endpoints, and what they say of messages.

A home does the delivering: it has the messages, the order, who is active and what is not settled. The router relays.
It opens no batch: FLOW_MESSAGES gets another head and becomes MESSAGES, ranges of SETTLE go to the home of their
partition. What it decides is which home a flow is bound at (`ends`), how much credit each home may use (`flow`), and
which flow has which partition (`assignments`). Who may bind is decided in `binding`.

A home that dies takes nothing with it but what was not settled: its ends wait, settles that come meanwhile are kept
(bounded), and when the home is back they are bound again under the same numbers, with the credit that remains.

Frames: docs/protocol.md and docs/node-protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.frames.frame import MalformedFrameError, encode
from router.flows.assignments import Assignments
from router.flows.ends import Ends
from router.flows.flow import Flow, Held, HomeState, count_refused_bind
from router.guaranteed.permissions import Level, level_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames.homes import FlowEventFrame, FlowMessagesFrame
    from router.delivery.egress import Egress
    from router.flows.flow import HomeFlow
    from router.ground.counters import Counters
    from router.guaranteed.endpoints import Endpoint, Endpoints
    from router.guaranteed.lanes import Lanes
    from router.matching.shards import Shard, Shards
    from router.sessions.directory import Attributes
    from router.sessions.session import Session

#: How long a bind waits for the home's word: a worker that died is back within a few seconds.
BIND_TIMEOUT_S: Final = 10.0

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Position = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=wire.MAX_PARTITIONS)]
_Outcome = Literal[0, 2, 3]  # wire.OUTCOME_ACCEPTED, OUTCOME_FAILED, OUTCOME_REJECTED
_decode_credit = msgspec.msgpack.Decoder(tuple[_Number, _Number, _Number]).decode
_Ranges = Annotated[
    list[tuple[_Partition, _Position, _Position]], msgspec.Meta(max_length=wire.MAX_RANGES_PER_SETTLE)
]
_decode_settle = msgspec.msgpack.Decoder(tuple[_Number, _Outcome, _Ranges]).decode


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
        self._egress = egress
        self._counters = counters
        self.ends = Ends(shards, lanes, egress, unread_bytes_max)
        self._assignments = Assignments(endpoints, self.ends, self._tell_partitions)
        #: By id, in the order of their binding.
        self.by_id: dict[int, Flow] = {}
        #: Flows whose bind is not answered, those that wait longest first.
        self._answering: dict[Flow, None] = {}
        #: Called with an endpoint whose number of flows changed.
        self.on_bind_count: Callable[[Endpoint], None] = _ignore
        #: Called with (flow, wanted, now) when a flow is over, whether its client wanted that or not.
        self.on_removed: Callable[[Flow, bool, float], None] = _ignore_removed

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
        if answer is None or any(
            end.state in (HomeState.WAITING, HomeState.BINDING) for end in flow.ends.values()
        ):
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
        self._send_held(flow)

    # -- from clients ----------------------------------------------------------------------------------------

    def credit(self, session: Session, header: bytes) -> None:
        """Take FLOW_CREDIT.

        Raises:
            InvalidRequestError: malformed, or totals that fall (40001); a flow that never was (40023).
        """
        number, messages, size = wire.decode_header(_decode_credit, header)
        flow = self._find(session, number)
        if flow is None:
            return
        if messages < flow.granted_messages or size < flow.granted_bytes:
            raise error_for(errors.MALFORMED_FRAME, "FLOW_CREDIT has totals that never fall")
        flow.granted_messages, flow.granted_bytes = messages, size
        if flow.held:
            self._send_held(flow)
        self.ends.renew(flow)

    def settle(self, session: Session, header: bytes) -> int:
        """Take SETTLE, and give how many ranges it has: only its form is judged here, the messages by their home.

        Raises:
            InvalidRequestError: malformed (40001); a flow that never was (40023).
        """
        number, outcome, ranges = wire.decode_header(_decode_settle, header)
        flow = self._find(session, number)
        if flow is not None:
            self._settle(session, flow, outcome, ranges)
        return len(ranges)

    def _settle(self, session: Session, flow: Flow, outcome: int, ranges: list[tuple[int, int, int]]) -> None:
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for partition, first, last in ranges:
            if last < first:
                raise error_for(errors.MALFORMED_FRAME, f"SETTLE of {first} to {last}")
            by_partition.setdefault(partition, []).append((first, last))
        if not flow.may_settle:
            detail = f"{flow.endpoint.name} is read-only for {session.username}"
            self._refuse_settle(flow, errors.PERMISSION_DENIED, detail)
            return
        for partition, found in by_partition.items():
            end = flow.ends.get(partition)
            if end is None:
                code = errors.PARTITION_LOST if flow.endpoint.partitions else errors.NOT_DELIVERED
                self._refuse_settle(flow, code, f"partition {partition}")
                continue
            claimed = sum(last - first + 1 for first, last in found)
            flow.settled = min(flow.settled + claimed, flow.sent_messages)
            self.ends.settle(end, outcome, found)

    def _refuse_settle(self, flow: Flow, code: int, detail: Any) -> None:
        self._counters.error(code)
        self._indicate(flow, wire.FLOW_SETTLE_REFUSED, code, detail)

    def _find(self, session: Session, number: int) -> Flow | None:
        """Give a flow of a session; None for one that is over.

        Raises:
            InvalidRequestError: there never was one of that number (40023).
        """
        flow = session.flows.get(number)
        if flow is None and not 1 <= number < session.next_flow:
            raise error_for(errors.UNKNOWN_FLOW, str(number))
        return flow

    # -- from homes ------------------------------------------------------------------------------------------

    def messages(self, frame: FlowMessagesFrame, shard: Shard, batches: list[bytes], _now: float) -> None:
        """Take FLOW_MESSAGES and its batches."""
        parts, size = frame.parts, frame.bytes
        if not parts or len(parts) != len(batches):
            raise MalformedFrameError("FLOW_MESSAGES has one batch for each of its parts")
        rows = sum([part.rows for part in parts])
        end = self.ends.find(frame.flow, shard)
        if end is None:
            self._counters.count("flow_messages_late", rows)
            return
        flow = end.flow
        end.used_messages += rows
        end.used_bytes += size
        flow.taken_messages += rows
        flow.taken_bytes += size
        if flow.range is not None:
            # Another incarnation of the home goes on behind it.
            first, count = parts[-1].runs[-1]
            flow.range = flow.range._replace(first=first + count)
        frames = [wire.MESSAGES, encode((flow.number, parts)), *batches]
        if flow.answer is None and not flow.held and flow.has_credit():
            self._pass_on(flow, frames, rows, size)
        else:
            flow.held.append(Held(end.lane.partition, frames, rows, size))
        if flow.is_capped and end.state is HomeState.BOUND:
            self.ends.renew(flow, end)

    def _pass_on(self, flow: Flow, frames: list[bytes], rows: int, size: int) -> None:
        flow.sent_messages += rows
        flow.sent_bytes += size
        self._counters.count("flow_messages", rows)
        self._egress.pass_on(flow.session, frames, size)

    def _send_held(self, flow: Flow) -> None:
        while flow.held and flow.has_credit():
            held = flow.held.popleft()
            self._pass_on(flow, held.frames, held.messages, held.bytes)

    def event(self, frame: FlowEventFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        """Take FLOW_EVENT."""
        event, code, detail = frame.event, frame.code, frame.detail
        end = self.ends.find(frame.flow, shard)
        if end is None:
            return
        if event in (wire.FLOW_ACTIVE, wire.FLOW_INACTIVE):
            self._activity(end, is_active=event == wire.FLOW_ACTIVE)
        elif event == wire.FLOW_SETTLE_REFUSED:
            self._refuse_settle(end.flow, code, detail)
        elif end.flow.range is not None and not code:
            self._indicate(end.flow, wire.FLOW_CLOSED, 0, None)
            self._remove(end.flow, now, wanted=True)
        elif end.state is HomeState.LEAVING:
            end.state = HomeState.OVER
            self._assignments.released(end, now)
        else:
            self.close(end.flow, error_for(code, str(detail or "")), now)

    def _activity(self, end: HomeFlow, *, is_active: bool) -> None:
        flow = end.flow
        if end.state is HomeState.BINDING:
            end.state = HomeState.BOUND
        was, flow.active = flow.active, is_active
        if flow.answer is not None:
            self._answer_if_bound(flow)
        elif was != is_active and flow.active_indication and not flow.endpoint.partitions:
            self._indicate(flow, wire.FLOW_ACTIVE if is_active else wire.FLOW_INACTIVE, 0, None)

    def home_ready(self, index: int) -> None:
        """A home came, or came back, and knows its lanes."""
        self.ends.home_ready(index)

    def shard_started(self, shard: Shard) -> None:
        """Nothing can be bound at a worker before it answers HOME."""

    def shard_lost(self, shard: Shard) -> None:
        """A worker died: its ends wait for the next one; what was being handed off is free."""
        for end in self.ends.home_lost(shard.index):
            self._assignments.end_soon(end)

    # -- news for clients ------------------------------------------------------------------------------------

    def _indicate(self, flow: Flow, event: int, code: int, detail: Any) -> None:
        if not flow.session.closed and flow.answer is None:
            header = wire.pack([flow.number, event, code, detail])
            self._egress.answer(flow.session, [wire.INDICATION, header])

    def _tell_partitions(self, flow: Flow) -> None:
        if flow.answer is not None:
            self._answer_if_bound(flow)
        else:
            self._indicate(flow, wire.FLOW_PARTITIONS, 0, flow.partitions)

    # -- the end of a flow -----------------------------------------------------------------------------------

    def unbind(self, session: Session, number: int, now: float) -> None:
        """The client does not want a flow any more; nothing comes for it from here on.

        Raises:
            InvalidRequestError: there never was one of that number (40023).
        """
        flow = self._find(session, number)
        if flow is not None:
            self._refuse_bind(flow, error_for(errors.UNKNOWN_FLOW, "unbound meanwhile"))
            self._remove(flow, now, wanted=True)

    def close(self, flow: Flow, error: AngariumError, now: float) -> None:
        """End a flow and tell its client why: as the answer to its bind, if that is not answered yet."""
        if not self._refuse_bind(flow, error):
            self._counters.error(error.code)
            self._indicate(flow, wire.FLOW_CLOSED, error.code, error.detail)
        self._remove(flow, now, wanted=False)

    def session_ended(self, session: Session, now: float, *, wanted: bool) -> None:
        """A session is over, because its client wanted it or not: so are its flows."""
        for flow in list(session.flows.values()):
            self._refuse_bind(flow, error_for(errors.SESSION_UNKNOWN))
            self._remove(flow, now, wanted=wanted)

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
        del endpoint.flows[flow.id]
        del flow.session.flows[flow.number]
        endpoint.vpn.egress_flows -= 1
        flow.held.clear()
        if flow.browse:
            for end in list(flow.ends.values()):
                self.ends.detach(end)
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
            self._tell_partitions(flow)

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
        while self._answering:
            flow = next(iter(self._answering))
            if flow.answer_by > now:
                return min(flow.answer_by, self._assignments.tick(now))
            detail = f"the home of {flow.endpoint.kind} {flow.endpoint.name} does not answer"
            self.close(flow, error_for(errors.HOME_NOT_READY, detail), now)
        return self._assignments.tick(now)

    def describe(self, vpn: str | None, kind: str | None, name: str | None) -> list[dict[str, Any]]:
        """List flows for operators: all, or those of one Message VPN, kind or name of endpoint."""
        return [
            flow.describe()
            for flow in self.by_id.values()
            if vpn in (None, flow.endpoint.vpn.name)
            and kind in (None, flow.endpoint.kind)
            and name in (None, flow.endpoint.name)
        ]

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
    return None


def _ignore(_endpoint: Endpoint) -> None:
    """Nobody watches thresholds."""


def _ignore_removed(_flow: Flow, _wanted: bool, _now: float) -> None:  # noqa: FBT001 - the form of the callback
    """Nobody keeps temporary endpoints."""
