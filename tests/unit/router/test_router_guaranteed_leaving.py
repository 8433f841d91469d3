"""Partitions that are to move: what nobody has seen of them goes back at once and untried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from tests.unit.router.flow_rig import Rig

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

    def __init__(self, rig: Rig, **credit: int) -> None:
        self.rig = rig
        self.first, self.second = rig.client("first", "owner"), rig.client("second", "owner")
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


@pytest.mark.requirement("R192")
def test_what_waits_for_credit_at_the_router_goes_back_untried(rig: Rig, parted: Endpoint) -> None:
    handover = Handover(rig, messages=1, bytes=100_000)
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
