"""Plays the events of one lane again, to see who had it, and whether anything was left out or jumped over.

A lane of an exclusive endpoint, or a partition, has one consumer at a time: while messages are unsettled at one
flow, no other flow gets any, until the first one is over or handed it over. Where nothing may change the order,
what is sent next is always the oldest message that waits; so a consumer position never jumps, and a consumer that
joins never breaks the order of a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.flow_rules import keeps_order
from tests.simulation.guaranteed.records import (
    Bound,
    Died,
    Emitted,
    Gone,
    HomeEvent,
    HomeSettled,
    Stored,
    Unbound,
    endpoint_of,
)
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import EndpointRecord


def owners(index: GuaranteedIndex) -> Iterator[Violation]:
    """One flow at a time has an exclusive lane or a partition, and gets the oldest message first (R101)."""
    deaths = [Died(at, worker) for at, worker in index.deaths]
    for lane, events in index.lanes.items():
        endpoint = index.history.endpoints.get(endpoint_of(lane))
        if endpoint is None or not is_owned(endpoint) or index.is_leased(lane):
            continue
        replay = LaneReplay(lane, endpoint, is_plain=is_plain(index, endpoint, events))
        for event in sorted([*events, *deaths], key=_time):
            fault = replay.take(event)
            if fault:
                found = [index.stored[lane, at].what for at in event.positions if (lane, at) in index.stored]  # type: ignore[union-attr]
                yield Violation("owner" if "while" in fault else "jump", fault, whats=tuple(found))
                break


def limits(index: GuaranteedIndex) -> Iterator[Violation]:
    """A flow never has more messages of a lane unsettled than it may, as its home knows them (R192)."""
    deaths = [Died(at, worker) for at, worker in index.deaths]
    for lane, events in index.lanes.items():
        endpoint = index.history.endpoints.get(endpoint_of(lane))
        if endpoint is None or endpoint.operations or index.is_leased(lane):
            continue  # what an operator takes away is gone at once, and from the disk later
        own: dict[int, int] = {}
        replay = LaneReplay(lane, endpoint, is_plain=False)
        for event in sorted([*events, *deaths], key=_time):
            replay.take(event)
            if isinstance(event, Bound):
                own[event.flow] = event.max_unacked
            if not isinstance(event, Emitted) or event.is_browser:
                continue
            names = endpoint.possible(0.0, event.at)
            most = max(one.get("max_delivered_unacked_per_flow", 10_000) for one in names)
            most = min(most, own.get(event.flow) or most)
            if replay.unsettled(event.flow) > most:
                text = (
                    f"{replay.name}: flow {event.flow} has {replay.unsettled(event.flow)} messages unsettled"
                )
                yield Violation("limit", f"{text} at {event.at:.4f}, {most} are allowed")
                break


def _time(event: HomeEvent) -> float:
    return event.at


def is_owned(endpoint: EndpointRecord) -> bool:
    """Tell whether one flow at a time has each lane of an endpoint."""
    return endpoint.always("access_type", "exclusive") or (
        all(one.attributes.get("partition_count", 0) > 0 for one in endpoint.changes)
    )


def is_plain(index: GuaranteedIndex, endpoint: EndpointRecord, events: list[HomeEvent]) -> bool:
    """Tell whether nothing but consumers takes messages from a lane, and nothing changes their order."""
    if not keeps_order(endpoint, index) or index.history.is_relaxed(endpoint) or endpoint.operations:
        return False
    if endpoint.is_repartitioned:
        return False
    if any(one.ttl_ms for one in index.history.publications) or endpoint.kind != "queue":
        return False
    if any(isinstance(event, Bound) and event.is_choosy for event in events):
        return False
    return all(
        change.attributes.get("redelivery_enabled", True)
        and not change.attributes.get("max_redelivery_count")
        and not change.attributes.get("max_ttl_s")
        and change.attributes.get("max_spool_usage_mb") != 0
        for change in endpoint.changes
    ) and not any(change.attributes.get("name") for change in endpoint.changes)


class LaneReplay:
    """The state of one lane as its events tell it."""

    def __init__(self, lane: int, endpoint: EndpointRecord, *, is_plain: bool) -> None:
        self.name = f"lane {lane & (1 << wire.LANE_BITS) - 1} of {endpoint}"
        self._is_plain = is_plain
        #: The worker that has the lane.
        self._home = -1
        #: On disk, in order.
        self._live: dict[int, None] = {}
        #: Position -> the flow that has it unsettled.
        self._out: dict[int, int] = {}
        #: Accepted or rejected, and not gone from the disk yet -> the outcome.
        self._settled: dict[int, int] = {}
        #: Flow -> what it ever got; a resumed one starts over.
        self._seen: dict[int, dict[int, None]] = {}
        #: Flow -> its worker; browsers are left out.
        self._flows: dict[int, int] = {}

    def take(self, event: HomeEvent) -> str:
        """Take the next event; say what is wrong, if anything is."""
        if isinstance(event, (Stored, Bound, Emitted)):
            self._home = event.worker
        if isinstance(event, Stored):
            self._live[event.place[1]] = None
        elif isinstance(event, Gone):
            self._live.pop(event.place[1], None)
            self._settled.pop(event.place[1], None)
            self._out.pop(event.place[1], None)
        elif isinstance(event, Bound):
            if not event.is_browser:
                self._flows[event.flow] = event.worker
        elif isinstance(event, Unbound):
            self._end(event.flow)
        elif isinstance(event, Died):
            self._die(event.worker)
        elif isinstance(event, HomeSettled):
            self._settle(event)
        elif isinstance(event, Emitted) and not event.is_browser:
            return self._emit(event)
        return ""

    def unsettled(self, flow: int) -> int:
        """Count the messages that a flow has."""
        return sum(owner == flow for owner in self._out.values())

    def _end(self, flow: int) -> None:
        self._flows.pop(flow, None)
        self._seen.pop(flow, None)
        for position in [position for position, owner in self._out.items() if owner == flow]:
            del self._out[position]

    def _die(self, worker: int) -> None:
        for flow in [flow for flow, its in self._flows.items() if its == worker]:
            self._end(flow)
        if worker == self._home:
            # What was accepted and not on disk comes again, marked. What was rejected may be marked as dead on disk;
            # then it only waits for its move.
            rejected = {at: one for at, one in self._settled.items() if one == wire.OUTCOME_REJECTED}
            self._settled = rejected

    def _settle(self, event: HomeSettled) -> None:
        for position in event.positions:
            if self._out.get(position, event.flow) != event.flow:
                continue
            self._out.pop(position, None)
            if event.outcome != wire.OUTCOME_FAILED:
                self._settled[position] = event.outcome

    def _emit(self, event: Emitted) -> str:
        others = {owner for owner in self._out.values() if owner != event.flow}
        if others:
            return (
                f"{self.name}: flow {event.flow} was sent {event.positions} at {event.at:.4f} while "
                f"flows {sorted(others)} have unsettled messages"
            )
        seen = self._seen.setdefault(event.flow, {})
        for position in event.positions:
            if self._is_plain:
                # What the flow had and failed may come again behind what was on its way to it by then.
                waiting = (one for one in self._live if self._waits(one) and one not in seen)
                first = min(waiting, default=FOREVER)
                if first < position:
                    return (
                        f"{self.name}: flow {event.flow} was sent {position} at {event.at:.4f} before {first}"
                    )
            self._settled.pop(position, None)
            self._out[position] = event.flow
            seen[position] = None
        return ""

    def _waits(self, position: int) -> bool:
        return position not in self._out and position not in self._settled
