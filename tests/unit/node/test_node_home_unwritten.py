"""What is consumed before it is written may come back until its STORE is stored, so it counts until then."""

from __future__ import annotations

import pytest

from node.home.home import HomeLimits
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, rows_of, settings_of

LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}
SIZE = 64 + len(b"m0")


def begun() -> DrivenHome:
    driven = DrivenHome(limits=HomeLimits(write_delay_ms=500, ack_delay_ms=0))
    driven.start(ROUTER, LANES)
    return driven


@pytest.mark.requirement("R170", "R171", "R172", "R173", "R182")
@pytest.mark.parametrize("count", [2, 3])
def test_what_was_never_written_is_told_to_be_gone_when_the_router_forgets_it(count: int) -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)), relaxed=True, file=4)
    driven.settle_down(0.05)
    driven.settle(flow, (1, count))
    driven.settle_down(0.1)
    assert (driven.accepted, driven.stored) == (1, 0)
    assert driven.totals[LANE][:2] == [3, 3 * SIZE]
    assert driven.files == {4}
    driven.settle_down(0.6)
    assert driven.stored == 1
    assert driven.totals[LANE][:2] == [3 - count, (3 - count) * SIZE]
    assert driven.files == ({4} if count < 3 else set())


def test_other_lanes_are_told_late_and_not_never() -> None:
    driven = begun()
    flow, other = driven.bind(), driven.bind(OTHER)
    driven.store(([LANE], rows_of(1)), relaxed=True)
    driven.settle_down(0.02)
    driven.settle(flow, (1, 1))
    driven.store(([OTHER], rows_of(1)), relaxed=True, producer=None)
    driven.settle_down(0.02)
    driven.settle(other, (1, 1))
    driven.settle_down(1.0)
    assert (driven.totals[LANE][0], driven.totals[OTHER][0]) == (0, 0)
    assert driven.stored == 2


@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_settled_right_before_its_write_is_told_to_be_gone_and_all_behind_it_too(
    *, is_full: bool
) -> None:
    """A write that has ended is followed by the next one at once, before the lane is asked what it lost."""
    driven = begun()
    flow, other = driven.bind(), driven.bind(OTHER)
    driven.store(([LANE], rows_of(1)), relaxed=True, file=4)
    driven.settle_down(0.05)
    driven.pass_time(0.5)
    driven.settle(flow, (1, 1))
    driven.disk.is_full = is_full
    assert driven.write()
    driven.disk.is_full = False
    driven.settle_down(2.0)
    assert driven.stored == 1
    assert driven.totals[LANE][:2] == [0, 0]
    assert not driven.files
    driven.store(([OTHER], rows_of(1)))
    driven.settle_down()
    driven.settle(other, (1, 1))
    driven.settle_down(0.1)
    assert driven.totals[OTHER][:2] == [0, 0]


def test_an_operator_who_waits_does_not_wait_for_the_write_delay() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    driven.settle_down(0.02)
    driven.settle(flow, (1, 1))
    driven.settle_down(0.02)
    assert driven.ask("endpoint.purge", lane_id=LANE) == 2
    driven.settle_down(0.05)
    assert driven.stored == 1
    assert driven.totals[LANE][:2] == [0, 0]


def test_a_write_that_finds_the_disk_full_makes_nothing_durable() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)), relaxed=True, file=4)
    driven.settle_down(0.02)
    driven.settle(flow, (1, 2))
    driven.settle_down(0.02)
    driven.disk.capacity_bytes = driven.disk.size_bytes()
    driven.settle_down(0.6)
    assert driven.home.stats()["spool_full"] == 1
    driven.settle(flow, (3, 3))
    driven.settle_down(0.2)
    assert (driven.stored, driven.totals[LANE][0], driven.files) == (0, 3, {4})
    driven.disk.capacity_bytes = None
    driven.settle_down(2.0)
    assert (driven.stored, driven.totals[LANE][0], driven.files) == (1, 0, set())
