"""Flows under everything at once: clients, homes and operators do what they like, and the promises hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from angarium import wire
from tests.unit.router.flow_rig import BIG, FakeClient, Rig

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint

HOMES = 2
#: Queues and the partitions that they begin with; 0: none.
QUEUES = {"plain": 0, "three": 3}


class Consumer:
    """A client and what it granted to each of its flows."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        #: Flow -> [granted, received].
        self.flows: dict[int, list[int]] = {}


class Machine(RuleBasedStateMachine):
    """Bind, unbind, leave; grant and settle; homes restart, store and are slow; operators change queues."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(HOMES)
        self.consumers: list[Consumer] = []
        self.next_client = 1
        for name, partitions in QUEUES.items():
            self.put(name, partition_count=partitions)

    def put(self, name: str, **attributes: Any) -> Endpoint:
        known = self.rig.endpoints.find("default", "queue", name)
        homes = [] if known is None else list(known.attributes["homes"])
        count = max(1, attributes.get("partition_count", 0))
        homes += [(len(homes) + n) % HOMES for n in range(max(0, count - len(homes)))]
        fixed = {"owner": "default", "access_type": "non-exclusive", "partition_rebalance_delay_s": 1}
        return self.rig.controller.put(name, homes=homes, **{**fixed, **attributes})

    # -- clients ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(hears_leaving=st.booleans())
    def log_in(self, hears_leaving: bool) -> None:
        client = self.rig.client(f"client{self.next_client}")
        client.session.hears_leaving = hears_leaving
        self.next_client += 1
        self.consumers.append(Consumer(client))

    @precondition(lambda self: self.consumers)
    @rule(
        data=st.data(), name=st.sampled_from(sorted(QUEUES)), browse=st.booleans(), messages=st.integers(0, 9)
    )
    def bind(self, data: Any, name: str, browse: bool, messages: int) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        number = consumer.client.session.next_flow
        consumer.client.ask("flow.bind", name=name, browse=browse, messages=messages, bytes=BIG)
        if consumer.client.session.next_flow > number:
            consumer.flows[number] = [messages, 0]

    def draw_flow(self, data: Any) -> tuple[Consumer, int] | None:
        flows = [(one, number) for one in self.consumers for number in one.client.session.flows]
        return data.draw(st.sampled_from(flows)) if flows else None

    @rule(data=st.data())
    def unbind(self, data: Any) -> None:
        if (drawn := self.draw_flow(data)) is not None:
            drawn[0].client.ask("flow.unbind", flow=drawn[1])

    @rule(data=st.data(), more=st.integers(0, 20))
    def grant(self, data: Any, more: int) -> None:
        if (drawn := self.draw_flow(data)) is not None:
            consumer, number = drawn
            consumer.flows[number][0] += more
            consumer.client.credit(number, consumer.flows[number][0])

    @rule(
        data=st.data(),
        partition=st.integers(0, 4),
        first=st.integers(1, 50),
        outcome=st.sampled_from((wire.OUTCOME_ACCEPTED, wire.OUTCOME_RELEASED)),
    )
    def settle(self, data: Any, partition: int, first: int, outcome: int) -> None:
        if (drawn := self.draw_flow(data)) is not None:
            drawn[0].client.settle(drawn[1], outcome, (partition, first, first + 3))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), wanted=st.booleans())
    def leave(self, data: Any, wanted: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        consumer.client.leave(wanted=wanted)

    # -- homes -----------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, HOMES - 1))
    def kill(self, index: int) -> None:
        if index in self.rig.homes:
            self.rig.kill_home(index)

    @rule(index=st.integers(0, HOMES - 1), is_slow=st.booleans())
    def start(self, index: int, is_slow: bool) -> None:
        if index not in self.rig.homes:
            self.rig.start_home(index, holds=(wire.FLOW_EVENT,) if is_slow else ())

    @rule(index=st.integers(0, HOMES - 1))
    def report(self, index: int) -> None:
        if index in self.rig.homes:
            self.rig.homes[index].report()

    @rule(data=st.data(), messages=st.integers(1, 5))
    def store(self, data: Any, messages: int) -> None:
        lanes = [
            (endpoint, lane)
            for endpoint in self.rig.endpoints
            for lane in endpoint.lanes
            if lane.home in self.rig.homes
        ]
        if lanes:
            endpoint, lane = data.draw(st.sampled_from(lanes))
            self.rig.homes[lane.home].store(endpoint, messages, partition=lane.partition)

    # -- operators and time ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(QUEUES)), partitions=st.sampled_from([0, 1, 2, 3, 5]))
    def resize(self, name: str, partitions: int) -> None:
        self.put(name, partition_count=partitions)

    @rule(name=st.sampled_from(sorted(QUEUES)))
    def shut_down_and_up(self, name: str) -> None:
        endpoint = self.put(name)
        self.put(name, egress_enabled=False, partition_count=endpoint.partitions)
        self.put(name, egress_enabled=True, partition_count=endpoint.partitions)

    @rule(name=st.sampled_from(sorted(QUEUES)))
    def make_anew(self, name: str) -> None:
        self.rig.controller.delete(name)
        self.put(name, partition_count=QUEUES[name])

    @rule(name=st.sampled_from(sorted(QUEUES)), home=st.integers(0, HOMES - 1))
    def move(self, name: str, home: int) -> None:
        endpoint = self.rig.endpoints.find("default", "queue", name)
        assert endpoint is not None
        homes = [home for _ in endpoint.attributes["homes"]]
        self.rig.controller.put(name, homes=homes)

    @rule(seconds=st.sampled_from([0.1, 1.1, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def tables_agree(self) -> None:
        self.rig.validate()

    @invariant()
    def nobody_gets_more_than_it_granted(self) -> None:
        for consumer in self.consumers:
            for number, parts in consumer.client.taken(wire.MESSAGES):
                consumer.flows[number][1] += sum(part[1] for part in parts)
            for granted, received in consumer.flows.values():
                assert received <= granted

    @invariant()
    def a_lane_of_a_partitioned_queue_feeds_one_consumer(self) -> None:
        parted = [one.id for one in self.rig.endpoints if one.partitions]
        fed: dict[int, int] = {}
        for home in self.rig.homes.values():
            for _, (lane_id, browse, *_) in home.bound.items():
                if not browse and lane_id >> wire.LANE_BITS in parted:
                    fed[lane_id] = fed.get(lane_id, 0) + 1
        assert all(count == 1 for count in fed.values()), fed

    def teardown(self) -> None:
        """When all homes are up and nothing more happens, every lane is fed, and shares are even."""
        for index in range(HOMES):
            if index not in self.rig.homes:
                self.rig.start_home(index)
            self.rig.homes[index].report()
        self.rig.advance(30)
        self.rig.validate()
        bound = {
            arguments[0]
            for home in self.rig.homes.values()
            for arguments in home.bound.values()
            if not arguments[1]
        }
        for endpoint in self.rig.endpoints:
            consumers = [flow for flow in endpoint.flows.values() if not flow.browse]
            lanes = {lane.lane_id for lane in endpoint.lanes}
            assert lanes <= bound or not consumers
            if endpoint.partitions and consumers:
                shares = [len(flow.ends) for flow in consumers]
                assert max(shares) - min(shares) <= 1
                assert sum(shares) == endpoint.partitions


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40)
