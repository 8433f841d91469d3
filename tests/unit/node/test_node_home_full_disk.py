"""A disk without room: nothing is lost, nothing is said to be stored, and consumers can make room."""

from __future__ import annotations

import pytest

from storage.spool import Table
from tests.unit.node.driven_home import LANE, PRODUCER, DrivenHome, rows_of, started
from tests.unit.node.stored_messages import on_disk, payloads


@pytest.mark.requirement("R182")
def test_a_full_disk_stores_and_acknowledges_nothing_and_is_tried_again() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    driven.disk.is_full = True
    driven.store(([LANE], rows_of(2, 2)))
    driven.tick()
    assert driven.write()
    driven.tick()
    assert (driven.accepted, driven.stored) == (1, 1)
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_DISK_FULL"]
    assert driven.home.stats()["spool_full"] == 1
    driven.disk.is_full = False
    driven.settle(flow, (1, 2))
    driven.settle_down(0.1)
    # What frees space goes first.
    assert (driven.stored, on_disk(driven)["blocks"]) == (1, 0)
    driven.settle_down(2.0)
    assert driven.stored == 2
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2", b"m3"]
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_DISK_FULL", "SYSTEM_AD_DISK_FULL_CLEAR"]
    assert driven.disk.count(Table.RECORDS) == 1


@pytest.mark.requirement("R281")
def test_what_is_under_way_is_stored_while_the_router_is_told_to_admit_nothing_more() -> None:
    driven = started()
    flow = driven.bind()
    driven.disk.room_bytes = 0
    driven.store(([LANE], rows_of(2)))
    driven.settle_down(0.1)
    driven.store(([LANE], rows_of(2, 2)))
    driven.settle_down(0.1)
    assert (driven.stored, payloads(driven, flow)) == (2, [b"m0", b"m1", b"m2", b"m3"])
    assert driven.lacks_room
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_DISK_FULL"]
    driven.settle_down(3.0)
    assert driven.home.stats()["spool_full"] == 1
    driven.disk.room_bytes = 1 << 40
    driven.settle_down(1.5)
    assert not driven.lacks_room
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_DISK_FULL", "SYSTEM_AD_DISK_FULL_CLEAR"]
    assert driven.home.stats()["spool_full"] == 0


def test_a_disk_without_much_room_is_looked_at_once_a_second() -> None:
    driven = started()
    driven.disk.room_bytes = 0
    driven.store(([LANE], rows_of(2)))
    driven.settle_down(0.1)
    before = driven.home.stats()["writes"]
    driven.settle_down(5.0)
    assert 4 <= driven.home.stats()["writes"] - before <= 6


def fill_disk(driven: DrivenHome) -> None:
    """Nothing more fits, and the home knows it; what deletes still does, as with LMDB."""
    driven.disk.capacity_bytes = driven.disk.size_bytes()
    driven.store(([LANE], rows_of(2, 40)))
    driven.tick()
    assert driven.write()


@pytest.mark.requirement("R183")
def test_consumers_empty_a_full_disk() -> None:
    """Positions are reserved before their messages are delivered, so that goes with what makes room."""
    driven = started()
    driven.store(([LANE], rows_of(40)))
    driven.settle_down()
    fill_disk(driven)
    flow = driven.bind()
    for _ in range(4):
        driven.tick()
        driven.write()
    assert payloads(driven, flow) == [b"m%d" % number for number in range(40)]
    assert driven.home.stats()["spool_full"] == 1
    assert (driven.stored, driven.home.stats()["writes_failed"]) == (1, 1)
    driven.settle(flow, (1, 40))
    driven.settle_down(2.0)
    assert driven.stored == 2
    assert payloads(driven, flow)[40:] == [b"m40", b"m41"]


def test_a_disk_that_takes_nothing_at_all_is_not_asked_all_the_time() -> None:
    driven = started()
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    driven.disk.is_full = True
    flow = driven.bind()
    driven.settle_down(2.5)
    assert driven.home.stats()["writes_failed"] <= 6
    driven.disk.is_full = False
    driven.settle_down(2.0)
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2", b"m3"]


@pytest.mark.requirement("R180")
def test_what_waits_for_its_positions_goes_with_a_purge_and_costs_no_credit() -> None:
    driven = started()
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    driven.disk.is_full = True
    flow = driven.bind(messages=4)
    driven.settle_down(0.5)
    assert driven.delivered == {}
    driven.disk.is_full = False
    driven.pass_time(1.0)
    assert driven.ask("endpoint.purge", lane_id=LANE) == 4
    driven.store(([LANE], rows_of(4, 10)), producer=(PRODUCER, 11))
    driven.settle_down(2.0)
    assert payloads(driven, flow) == [b"m10", b"m11", b"m12", b"m13"]
