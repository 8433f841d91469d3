"""A flow of the simulation: the SDK's credit window, and an application that takes its messages.

It does what `angarium.client.consuming.flow` does without its event loop: binds on every connection, and again when
the node ended it for a reason that passes. What came through an earlier bind is forgotten, as the SDK throws it
away. The application accepts, fails and rejects, at once or late, in order or not, or just holds on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import errors, wire
from angarium.client.protocol.flow_window import FlowWindow, is_passing
from tests.simulation.event_history import what_of
from tests.simulation.guaranteed.records import FlowDelivery, FlowRecord, Settle

if TYPE_CHECKING:
    from angarium.client.protocol.answers import FlowBound
    from angarium.client.protocol.events import Indicated
    from angarium.client.protocol.messages import GuaranteedDelivery, Range
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

RETRY_MAX_S = 0.4
#: Applications look again for an endpoint that was not there, or that they may not use.
RETURN_MAX_S = 1.0


class FlowPlan(NamedTuple):
    """What kind of consumer it is."""

    name: str
    kind: str = "queue"
    browse: bool = False
    window: int = 255
    window_bytes: int = 1 << 20
    selector: str | None = None
    topic: str | None = None
    max_unacked: int | None = None
    temporary: bool = False
    #: Takes everything and accepts it at once.
    is_prompt: bool = True
    #: Chances that a message that is settled is failed, or rejected.
    fails: float = 0.0
    rejects: float = 0.0
    no_local: bool = False


class Held(NamedTuple):
    """One message that the application has."""

    partition: int
    position: int
    size_bytes: int


class SimulatedFlow:
    """One consumer of a client, over all its connections."""

    def __init__(self, client: GuaranteedClient, plan: FlowPlan) -> None:
        self.client = client
        self.plan = plan
        #: Of the bind that there is; None without one.
        self.window: FlowWindow | None = None
        self.record: FlowRecord | None = None
        #: What came and is not settled, in the order in which it came.
        self.held: list[Held] = []
        self.partitions: list[int] = []
        #: Whether the bind ever had partitions; then what came is no measure of its credit.
        self.had_partitions = False
        self.is_active = False
        self.access_type = ""
        self._is_asking = False
        #: Takes everything from now on, whatever its plan says.
        self.is_draining = False
        #: Whether it is to be bound at all.
        self.is_wanted = True

    # Life.

    def connected(self) -> None:
        """Bind on a new connection."""
        self._is_asking = False
        self.bind()

    def lost(self, code: int | None = None) -> None:
        """The bind is over, and what came through it is the node's again."""
        if self.record is not None:
            self.record.closed_at = self.client.loop.now
            self.record.code = code
        self.window = self.record = None
        self.held.clear()
        self.partitions = []
        self.is_active = self._is_asking = False

    def bind(self) -> None:
        """Ask for the flow on the connection that there is."""
        client, plan = self.client, self.plan
        connection, session = client.record, client.session
        if self._is_asking or self.window is not None or not self.is_wanted:
            return
        if connection is None or session is None or not session.is_open:
            return
        if not session.can_ask() or client.is_paused:
            self._retry(RETRY_MAX_S)
            return
        self._is_asking = True
        record = FlowRecord(connection, plan.name, client.loop.now)
        record.is_browser, record.selector = plan.browse, plan.selector
        record.no_local = plan.no_local
        client.guaranteed.flows.append(record)
        window = FlowWindow(plan.window, plan.window_bytes)
        arguments = {
            "kind": plan.kind,
            "name": plan.name,
            "browse": plan.browse,
            "selector": plan.selector,
            "topic": plan.topic,
            "temporary": plan.temporary,
            "attributes": {},
            "active_indication": True,
            "no_local": plan.no_local,
            "max_unacked": plan.max_unacked,
        }
        request = session.guaranteed.bind(window, arguments, lambda bound: self._bound(record, window, bound))
        client.wait_for(request, lambda value, error: self._answered(record, error))
        client.transmit()

    def _bound(self, record: FlowRecord, window: FlowWindow, bound: FlowBound) -> None:
        record.bound_at = self.client.loop.now
        record.endpoint_id = bound.endpoint_id
        record.access_type = bound.access_type
        self.record, self.window = record, window
        self.partitions = list(bound.partitions)
        self.had_partitions = bool(self.partitions)
        self.is_active = bound.active
        self.access_type = bound.access_type

    def _answered(self, record: FlowRecord, error: errors.AngariumError | None) -> None:
        self._is_asking = False
        if error is None:
            if not self.is_wanted:
                self.unbind()
            return
        record.code, record.closed_at = error.code, self.client.loop.now
        self._retry(RETRY_MAX_S if is_passing(error.code) else RETURN_MAX_S)

    def _retry(self, delay_max_s: float) -> None:
        client = self.client
        session = client.session

        def again() -> None:
            if client.session is session and session is not None:
                self.bind()

        client.loop.after(0.05 + client.rng.random() * delay_max_s, again)

    def unbind(self) -> None:
        """End the flow; what is not settled comes to others."""
        session, window = self.client.session, self.window
        if window is None or not window.flow or session is None or not session.can_ask():
            return
        self._is_asking = True
        request = session.guaranteed.unbind(window.flow, ranges_of(self._take_unseen(self.partitions or [0])))

        def answered(value: Any, error: errors.AngariumError | None) -> None:
            self.lost()
            if self.is_wanted:
                self._retry(RETURN_MAX_S)

        self.client.wait_for(request, answered)
        self.client.transmit()

    def _take_unseen(self, partitions: list[int]) -> list[Held]:
        """Choose what of the newest messages the application is said not to have seen, and act accordingly."""
        if self.plan.browse or self.record is None or self.client.rng.random() < 0.5:
            return []
        seen = self.client.rng.randrange(len(self.held) + 1)
        unseen = [one for one in self.held[seen:] if one.partition in partitions]
        self.held[seen:] = [one for one in self.held[seen:] if one.partition not in partitions]
        deliveries = self.record.deliveries
        for one in unseen:
            place = (self.record.endpoint_id << wire.LANE_BITS | one.partition, one.position)
            newest = max(at for at, got in enumerate(deliveries) if got.place == place)
            del deliveries[newest]
        return unseen

    def indicated(self, event: Indicated) -> None:
        """The node says what happened to the flow."""
        if event.event == wire.FLOW_CLOSED:
            self.lost(event.code)
            self._retry(RETRY_MAX_S if is_passing(event.code) else RETURN_MAX_S)
        elif event.event == wire.FLOW_PARTITIONS:
            self.partitions = list(event.partitions)
            self.had_partitions = True
            kept = [one for one in self.held if one.partition in self.partitions]
            gone = [one for one in self.held if one.partition not in self.partitions]
            self.held = kept
            self._release(gone)
        elif event.event == wire.FLOW_LEAVING:
            unseen = self._take_unseen(event.partitions)
            session, window = self.client.session, self.window
            if unseen and session is not None and session.is_open and window is not None:
                session.guaranteed.settle(window.flow, wire.OUTCOME_RELEASED, ranges_of(unseen))
                self._release(unseen)
        elif event.event in (wire.FLOW_ACTIVE, wire.FLOW_INACTIVE):
            self.is_active = event.event == wire.FLOW_ACTIVE

    # Messages.

    def arrived(self, deliveries: list[GuaranteedDelivery]) -> None:
        """Messages came."""
        record, window = self.record, self.window
        if record is None or window is None:
            return
        now = self.client.loop.now
        for delivery in deliveries:
            lane = record.endpoint_id << wire.LANE_BITS | delivery.partition
            sizes = delivery.size_bytes // len(delivery.rows)
            for at, row in enumerate(delivery.rows):
                position = delivery.positions[at]
                count = 0 if delivery.counts is None else delivery.counts[at]
                origin = None if delivery.origins is None else delivery.origins[at]
                what = what_of(row)
                record.deliveries.append(FlowDelivery((lane, position), what, count, now, origin))
                self.held.append(Held(delivery.partition, position, sizes))
        self._check(record, window, {delivery.partition for delivery in deliveries})
        if (self.plan.is_prompt or self.is_draining) and not self.client.is_paused:
            self.settle_some(len(self.held))

    def _check(self, record: FlowRecord, window: FlowWindow, partitions: set[int]) -> None:
        if self.partitions and not self.plan.browse and not partitions <= set(self.partitions):
            text = f"messages of partitions {sorted(partitions)} came, it has {self.partitions}"
            record.faults.append(text)
        # On a partitioned queue frames of several homes may overdraw it.
        if not self.had_partitions and window.received_messages > window.granted_messages:
            text = f"{window.received_messages} messages came, {window.granted_messages} were granted"
            record.faults.append(text)

    def settle_some(self, most: int) -> None:
        """Settle up to so many messages, each with an outcome of the plan's choice."""
        rng, plan = self.client.rng, self.plan
        taken, self.held = self.held[:most], self.held[most:]
        if plan.browse:
            self._release(taken)
            return
        by_outcome: dict[int, list[Held]] = {}
        for one in taken:
            chance = rng.random() if plan.fails or plan.rejects else 1.0
            outcome = wire.OUTCOME_ACCEPTED
            if not self.is_draining and chance < plan.fails:
                outcome = wire.OUTCOME_FAILED
            elif not self.is_draining and chance < plan.fails + plan.rejects:
                outcome = wire.OUTCOME_REJECTED
            by_outcome.setdefault(outcome, []).append(one)
        for outcome, some in by_outcome.items():
            self._settle(outcome, some)
        self._release(taken)

    def settle_out_of_order(self, most: int) -> None:
        """Settle messages from anywhere among those held."""
        self.client.rng.shuffle(self.held)
        self.settle_some(most)

    def _settle(self, outcome: int, some: list[Held]) -> None:
        session, record, window = self.client.session, self.record, self.window
        if session is None or not session.is_open or record is None or window is None or not window.flow:
            return
        lane = record.endpoint_id << wire.LANE_BITS
        places = [(lane | one.partition, one.position) for one in some]
        record.settles.append(Settle(outcome, places, self.client.loop.now))
        ranges = ranges_of(some)
        session.guaranteed.settle(window.flow, outcome, ranges)

    def _release(self, some: list[Held]) -> None:
        """Let the node send again what was taken."""
        session, window = self.client.session, self.window
        if window is None or not some:
            return
        window.take(len(some), min(sum(one.size_bytes for one in some), window.held_bytes))
        if not self.held:
            window.take(window.held_messages, window.held_bytes)
        if session is not None and session.is_open and window.flow:
            session.guaranteed.renew(window)
        self.client.transmit()

    @property
    def is_settled(self) -> bool:
        """Tell whether it is bound, or is not to be."""
        return not self._is_asking and (self.window is not None or not self.is_wanted)


def ranges_of(some: list[Held]) -> list[Range]:
    """Give ranges (partition, first, last) of messages."""
    ranges: list[Range] = []
    for partition, position, _ in sorted(some):
        if ranges and ranges[-1][0] == partition and ranges[-1][2] + 1 == position:
            ranges[-1] = (partition, ranges[-1][1], position)
        else:
            ranges.append((partition, position, position))
    return ranges
