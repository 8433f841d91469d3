"""Histories of guaranteed messages written by hand, to show what the rules see in them.

The base is right in every respect: `publish` sends, stores and acknowledges, `consume` delivers and accepts. A test
changes one thing and expects one rule to object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.checker import check
from tests.simulation.guaranteed.records import (
    Attributes,
    Bound,
    Change,
    Emitted,
    EndpointRecord,
    FlowDelivery,
    FlowRecord,
    Gone,
    GuaranteedHistory,
    HomeSettled,
    Operation,
    Place,
    Publication,
    Rehomed,
    Settle,
    Stored,
    Unbound,
)
from tests.simulation.written_history import END, VPN, WrittenHistory

if TYPE_CHECKING:
    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.records import ProducerRecord

#: Endpoints exist from here, messages are sent every tenth of a second from `FIRST_AT` on.
MADE_AT = 10.0
FIRST_AT = 20.0
WORKER = 0


class Written:
    """A node with one publisher, and the endpoints and consumers that a test adds."""

    def __init__(self) -> None:
        self.base = WrittenHistory()
        self.history = GuaranteedHistory()
        self.history.drained_at = END
        self.now = FIRST_AT
        self._tails: dict[int, int] = {}
        self._flows = 0
        self._sequences: dict[int, int] = {}

    @property
    def publisher(self) -> ConnectionRecord:
        return self.base.publisher

    def rules(self) -> list[str]:
        """Give the rules that object, each once."""
        self.history.home_events.sort(key=lambda event: event.at)
        return list(dict.fromkeys(one.rule for one in check(self.base.history, self.history)))

    # Endpoints.

    def queue(
        self, name: str, *filters: str, vpn: str = VPN, kind: str = "queue", **attributes: Any
    ) -> EndpointRecord:
        """Make an endpoint that was in force before any message; it is drained in the end."""
        made = EndpointRecord(len(self.history.endpoints) + 1, vpn, kind, name)
        complete: Attributes = {"subscriptions": list(filters), "access_type": "exclusive", **attributes}
        made.changes.append(Change(MADE_AT, MADE_AT + 1, complete))
        self.history.endpoints[made.id] = made
        self.history.drained[made.id] = None
        self.base.allow(vpn)
        return made

    def change(self, endpoint: EndpointRecord, **attributes: Any) -> None:
        """Change attributes, in force a little later."""
        before = endpoint.changes[-1].attributes
        endpoint.changes.append(Change(self.now, self.now + 0.05, {**before, **attributes}))
        self.now += 0.1

    def delete(self, endpoint: EndpointRecord) -> None:
        endpoint.deleted_at = self.now
        endpoint.gone_at = self.now + 0.05
        for place in self.live(endpoint):
            self.gone(place, is_purge=True)
        self.now += 0.1

    def operate(self, endpoint: EndpointRecord, kind: str, positions: list[int] | None = None) -> Operation:
        made = Operation(kind, self.now, 0, positions)
        made.answered_at, made.is_done = self.now + 0.05, True
        endpoint.operations.append(made)
        return made

    def live(self, endpoint: EndpointRecord) -> list[Place]:
        gone = {one.place for one in self.history.home_events if isinstance(one, Gone)}
        stored = [one.place for one in self.history.home_events if isinstance(one, Stored)]
        return [place for place in stored if place[0] >> wire.LANE_BITS == endpoint.id and place not in gone]

    # Publishing.

    def producer(self, name: str = "p", vpn: str = VPN) -> ProducerRecord:
        return self.history.producer(vpn, "app", name)

    def send(self, topic: str, *, producer: ProducerRecord | None = None, **traits: Any) -> Publication:
        """Put a message on the wire, and nothing more."""
        producer = producer or self.producer()
        sequence = self._sequences.get(id(producer), 0) + 1
        self._sequences[id(producer)] = sequence
        made = self.history.publish(producer, sequence, topic, wire.MODE_PERSISTENT, 100)
        for trait, value in traits.items():
            setattr(made, trait, value)
        made.sends.append((self.now, self.publisher))
        self.now += 0.1
        return made

    def publish(self, topic: str, *endpoints: EndpointRecord, **traits: Any) -> Publication:
        """Send, store in these endpoints, and acknowledge."""
        made = self.send(topic, **{"is_unroutable": not endpoints, **traits})
        for endpoint in endpoints:
            self.store(made, endpoint)
        made.acked_at = self.now - 0.02
        return made

    def refuse(self, topic: str, code: int) -> Publication:
        made = self.send(topic)
        made.refused_at, made.code = self.now - 0.02, code
        return made

    def store(
        self,
        what: Publication | str,
        endpoint: EndpointRecord,
        *,
        partition: int = 0,
        position: int | None = None,
        at: float | None = None,
        origin: tuple[str, str, str] | None = None,
        worker: int = WORKER,
    ) -> Place:
        """Put a message on the disk of an endpoint's home."""
        lane = endpoint.id << wire.LANE_BITS | partition
        place = (lane, position or self._tails.get(lane, 0) + 1)
        self._tails[lane] = max(self._tails.get(lane, 0), place[1])
        at = self.now - 0.05 if at is None else at
        name = what if isinstance(what, str) else f"g{what.number}"
        self.history.home_events.append(Stored(at, place, name, worker, self.history.wall_ms(at), origin))
        return place

    def rehome(self, what: Publication, place: Place) -> None:
        """Let a home ask for a message to be moved from a closed partition."""
        self.history.home_events.append(Rehomed(self.now - 0.07, place[0], place[1], f"g{what.number}"))

    def gone(self, place: Place, *, is_purge: bool = False, worker: int = WORKER) -> None:
        self.history.home_events.append(Gone(self.now, place, is_purge, worker))

    # Consumers.

    def bind(self, endpoint: EndpointRecord, *, vpn: str = VPN, **traits: Any) -> FlowRecord:
        """Bind a flow; its number at the home is `flow.number_at_home`."""
        flow = FlowRecord(self.base.connect(f"consumer{self._flows}", vpn), endpoint.name, self.now)
        self._flows += 1
        flow.endpoint_id, flow.bound_at = endpoint.id, self.now
        for trait, value in traits.items():
            setattr(flow, trait, value)
        self.history.flows.append(flow)
        lane = endpoint.id << wire.LANE_BITS
        self.history.home_events.append(
            Bound(self.now, WORKER, self.number(flow), lane, flow.is_browser, flow.selector is not None)
        )
        self.now += 0.1
        return flow

    def number(self, flow: FlowRecord) -> int:
        return self.history.flows.index(flow) + 1

    def deliver(self, flow: FlowRecord, *places: Place, count: int = 0, what: str = "") -> None:
        """Let a home send messages, and a flow get them."""
        for lane, position in places:
            self.history.home_events.append(
                Emitted(self.now, WORKER, self.number(flow), lane, [position], [count])
            )
            name = what or self._what((lane, position))
            flow.deliveries.append(FlowDelivery((lane, position), name, count, self.now + 0.01, None))
            self.now += 0.1

    def _what(self, place: Place) -> str:
        stored = [one for one in self.history.home_events if isinstance(one, Stored) and one.place == place]
        return stored[0].what

    def settle(self, flow: FlowRecord, *places: Place, outcome: int = wire.OUTCOME_ACCEPTED) -> None:
        """Let a client settle messages, and its home hear of it."""
        flow.settles.append(Settle(outcome, list(places), self.now))
        for lane, position in places:
            self.history.home_events.append(
                HomeSettled(self.now + 0.01, WORKER, self.number(flow), lane, outcome, [position])
            )
        self.now += 0.1

    def unbind(self, flow: FlowRecord) -> None:
        flow.closed_at = self.now
        lane = flow.endpoint_id << wire.LANE_BITS
        self.history.home_events.append(Unbound(self.now, WORKER, self.number(flow), lane))
        self.now += 0.1

    def consume(self, flow: FlowRecord, *places: Place, count: int = 0, worker: int = WORKER) -> None:
        """Deliver, accept, and take from disk."""
        self.deliver(flow, *places, count=count)
        self.settle(flow, *places)
        for place in places:
            self.gone(place, worker=worker)
        self.now += 0.1


def place_of(endpoint: EndpointRecord, position: int, partition: int = 0) -> Place:
    """Give a place of an endpoint."""
    return endpoint.id << wire.LANE_BITS | partition, position


NEVER = FOREVER
