"""Partitions that are to move: what nobody has seen of them goes back at once and untried, the rest is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from tests.unit.router.earlier_client import client_of, read_all
from tests.unit.router.publish_rig import PublishNode, ask

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from tests.unit.router.flow_rig import FakeClient, Rig

DELAY_S = 5
HAND_OFF_S = 600


@pytest.fixture
def parted(rig: Rig) -> Endpoint:
    return rig.controller.put(
        "q",
        owner="owner",
        access_type="non-exclusive",
        partition_count=2,
        homes=[0, 0],
        partition_rebalance_delay_s=DELAY_S,
        partition_rebalance_max_handoff_s=HAND_OFF_S,
    )


class Handover:
    """A consumer of both partitions, and another one that gets partition 1."""

    def __init__(self, rig: Rig, *, understands: bool = True, **credit: int) -> None:
        self.rig = rig
        self.first, self.second = rig.client("first", "owner"), rig.client("second", "owner")
        self.first.session.hears_leaving = understands
        self.flow = self.first.bind("q", **credit)["flow"]
        self.home = rig.homes[0]

    def join(self) -> None:
        """Let the other one come, and partition 1 be on its way to it."""
        self.second.bind("q")
        self.rig.advance(DELAY_S + 0.1)

    @property
    def got(self) -> list[tuple[int, list[Any], Any]]:
        """Partition, runs and counts of what the other one has got."""
        self.rig.advance(0)
        taken = self.second.taken(wire.MESSAGES)
        return [(partition, runs, counts) for _, parts in taken for partition, _, runs, counts, *_ in parts]


def indications(client: FakeClient) -> list[tuple[int, Any]]:
    return [(event, detail) for _, event, _, detail in client.taken(wire.INDICATION)]


@pytest.mark.requirement("R101", "R192")
def test_a_hand_off_ends_when_what_was_seen_is_settled_and_the_rest_given_back(
    rig: Rig, parted: Endpoint
) -> None:
    handover = Handover(rig)
    handover.home.store(parted, 50, partition=1)
    handover.join()
    assert indications(handover.first) == [(wire.FLOW_LEAVING, [1])]
    handover.first.settle(handover.flow, wire.OUTCOME_RELEASED, (1, 3, 50))
    assert handover.got == [], "nobody overtakes what is seen"
    handover.first.settle(handover.flow, wire.OUTCOME_ACCEPTED, (1, 2, 2))
    assert handover.got == []
    handover.first.settle(handover.flow, wire.OUTCOME_ACCEPTED, (1, 1, 1))
    assert handover.got == [(1, [[3, 48]], None)]
    assert indications(handover.first) == [(wire.FLOW_PARTITIONS, [0])]
    rig.validate()


def test_what_was_seen_and_not_settled_in_time_comes_before_what_was_given_back(
    rig: Rig, parted: Endpoint
) -> None:
    handover = Handover(rig)
    handover.home.store(parted, 4, partition=1)
    handover.join()
    handover.first.settle(handover.flow, wire.OUTCOME_RELEASED, (1, 2, 4))
    rig.advance(HAND_OFF_S - 1)
    assert handover.got == []
    rig.advance(2)
    ((partition, runs, counts),) = handover.got
    assert (partition, runs, list(counts)) == (1, [[1, 4]], [1, 0, 0, 0])


def test_who_does_not_understand_it_is_not_told(rig: Rig, parted: Endpoint) -> None:
    handover = Handover(rig, understands=False)
    handover.home.store(parted, 3, partition=1)
    handover.join()
    assert indications(handover.first) == []
    handover.first.settle(handover.flow, wire.OUTCOME_ACCEPTED, (1, 1, 3))
    rig.advance(0)
    assert indications(handover.first) == [(wire.FLOW_PARTITIONS, [0])]


def test_several_partitions_that_leave_at_once_are_told_together(rig: Rig) -> None:
    rig.controller.put("q", owner="owner", access_type="non-exclusive", partition_count=7)
    handover = Handover(rig)
    handover.join()
    told = indications(handover.first)
    assert [detail for event, detail in told if event == wire.FLOW_LEAVING] == [[6, 5, 4]]


@pytest.mark.parametrize("understands", [False, True])
def test_what_waits_for_credit_at_the_router_goes_back_untried(
    rig: Rig, parted: Endpoint, *, understands: bool
) -> None:
    handover = Handover(rig, understands=understands, messages=1, bytes=100_000)
    handover.home.store(parted, 1, 100, partition=0)
    handover.home.store(parted, 1, 100, partition=1)
    assert handover.first.messages() == 1
    handover.join()
    assert handover.got == [(1, [[1, 1]], None)]
    rig.validate()


def test_what_waits_for_credit_at_the_router_of_a_client_that_goes_goes_back_untried(
    rig: Rig, parted: Endpoint
) -> None:
    handover = Handover(rig, messages=1, bytes=100_000)
    handover.home.store(parted, 1, 100, partition=0)
    handover.home.store(parted, 1, 100, partition=1)
    handover.second.bind("q")
    handover.first.leave(wanted=False)
    assert [(partition, counts and list(counts)) for partition, _, counts in handover.got] == [
        (0, [1]),
        (1, None),
    ]


def test_what_is_on_its_way_when_its_partition_is_to_move_goes_back_untried(
    rig: Rig, parted: Endpoint
) -> None:
    handover = Handover(rig)
    handover.home.holds = (wire.FLOW_MESSAGES,)
    handover.home.store(parted, 5, partition=1)
    handover.join()
    assert handover.got == []
    handover.home.report()
    assert handover.first.messages() == 0
    assert handover.got == [(1, [[1, 5]], None)]
    rig.validate()


def test_who_says_so_in_hello_is_told_and_a_client_of_0_1_0_sees_no_difference() -> None:
    node = PublishNode()
    parted: dict[str, Any] = {
        "access_type": "non-exclusive",
        "partition_count": 2,
        "partition_rebalance_delay_s": 0,
    }
    credit = {"messages": 10, "bytes": 1 << 20}
    told = []
    old, new = client_of(node), node.client(leaving=True)
    for name, client in (("old", old), ("new", new)):
        node.queue(name, permission="consume", **parted)
        ask(client, "flow.bind", name=name, **credit)
        ask(node.client(), "flow.bind", name=name, **credit)
        node.advance(1)
        told.append([wire.unpack(one[1])[1] for one in client.received if one[0] == wire.INDICATION])
    assert told == [[wire.FLOW_PARTITIONS], [wire.FLOW_LEAVING, wire.FLOW_PARTITIONS]]
    assert read_all(old) == [wire.ANSWER, wire.INDICATION]
