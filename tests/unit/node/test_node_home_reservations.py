"""Nothing is handed out before it is on disk that consumers may have seen it; nothing becomes of it meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import wire
from tests.unit.node.driven_home import (
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    DrivenHome,
    row_of,
    rows_of,
    settings_of,
    started,
)
from tests.unit.node.lane_driver import Driver, row


def driven_with(count: int = 3, **settings: Any) -> DrivenHome:
    """Give a home with messages that nobody has seen, in a lane with these settings."""
    driven = started()
    driven.lanes({LANE: settings_of(**settings)})
    driven.store(([LANE], rows_of(count)))
    driven.settle_down()
    return driven


def waiting(driven: DrivenHome, **bind: Any) -> int:
    """Bind a consumer; the write that reserves its positions is out."""
    flow = driven.bind(**bind)
    driven.tick()
    assert driven.begin_write()
    driven.tick()
    assert flow not in driven.delivered
    return flow


def test_a_consumer_that_comes_gets_messages_when_their_positions_are_reserved() -> None:
    driven = driven_with()
    flow = waiting(driven)
    assert driven.home.stats()["delivered_unacked"] == 0, "nothing is out"
    driven.end_write()
    driven.settle_down()
    assert driven.delivered[flow].order == [1, 2, 3]


@pytest.mark.parametrize("ends", ["unbind", "another router"])
def test_a_flow_that_ends_before_it_got_anything_tried_nothing(ends: str) -> None:
    """With redelivery off whatever was tried is dead."""
    driven = driven_with(redelivery_enabled=False)
    flow = waiting(driven)
    if ends == "unbind":
        driven.unbind(flow)
    else:
        driven.start(router=8)
        driven.lanes({LANE: settings_of(redelivery_enabled=False)}, complete=True)
    driven.end_write()
    driven.settle_down()
    later = driven.bind()
    driven.settle_down()
    assert driven.delivered[later].counts == {1: 0, 2: 0, 3: 0}


@pytest.mark.requirement("R198")
def test_what_expires_before_its_position_is_reserved_is_not_delivered() -> None:
    driven = started()
    driven.store(([LANE], [row_of(0, meta=[1_000, 0, None, None]), row_of(1)]))
    driven.settle_down()
    flow = waiting(driven)
    driven.pass_time(2.0)
    driven.end_write()
    driven.settle_down()
    assert driven.delivered[flow].order == [2]


def test_what_is_purged_before_its_position_is_reserved_is_not_delivered() -> None:
    driven = driven_with()
    flow = waiting(driven)
    answer = driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    driven.end_write()
    driven.settle_down()
    assert answer.is_known
    assert flow not in driven.delivered


def test_a_browser_waits_for_the_reservation_too() -> None:
    driven = driven_with()
    flow = waiting(driven, browse=True)
    driven.end_write()
    driven.settle_down()
    assert driven.delivered[flow].order == [1, 2, 3]


def test_a_full_disk_is_tried_again_and_then_everything_comes() -> None:
    driven = driven_with()
    flow = driven.bind()
    driven.disk.is_full = True
    driven.settle_down(3.0)
    assert flow not in driven.delivered
    driven.disk.is_full = False
    driven.settle_down(2.0)
    assert driven.delivered[flow].order == [1, 2, 3]


def test_relaxed_messages_have_positions_reserved_ahead() -> None:
    driven = driven_with(count=1, durability="relaxed")
    flow = driven.bind()
    driven.settle_down()
    writes = driven.disk.commits
    for first in range(1, 50, 5):
        driven.store(([LANE], rows_of(5, first)), relaxed=True, producer=None)
        driven.tick()
        driven.write()
        driven.tick()
    assert driven.delivered[flow].order == list(range(1, 52))
    assert driven.disk.commits <= writes + 2


# -- what a lane makes of the limit -------------------------------------------------------------------------


def handed(driver: Driver, upto: int) -> list[int]:
    handouts = driver.lane.hand_out(driver.now, driver.wall_ms, upto=upto)
    return [handout.segment.first + i for handout in handouts for i in handout.indices]


@pytest.mark.parametrize("browse", [False, True])
def test_a_lane_hands_out_up_to_a_position_and_says_what_is_in_its_way(*, browse: bool) -> None:
    driver = Driver()
    driver.fill(4)
    driver.fill(4)
    assert handed(driver, 0) == []
    assert not driver.lane.barred, "nobody wants anything"
    driver.bind(1, browse=browse)
    assert handed(driver, 0) == []
    assert driver.lane.barred
    assert handed(driver, 3) == [1, 2, 3]
    assert driver.lane.barred
    assert handed(driver, 4) == [4]
    assert driver.lane.barred
    assert handed(driver, 8) == [5, 6, 7, 8]
    assert not driver.lane.barred
    assert not driver.lane.more
    driver.lane.validate()


def test_what_comes_back_is_handed_out_before_what_is_above_the_limit() -> None:
    driver = Driver(access_type="non-exclusive")
    driver.fill(4)
    driver.bind(1)
    assert handed(driver, 2) == [1, 2]
    driver.lane.settle(1, wire.OUTCOME_FAILED, [(1, 1)], driver.now, driver.wall_ms)
    assert handed(driver, 2) == [1]
    assert driver.lane.barred
    assert handed(driver, 4) == [3, 4]


def test_a_low_priority_does_not_overtake_what_waits_for_the_limit() -> None:
    driver = Driver(respect_priority=True)
    driver.put(row(0, priority=1), row(1, priority=9), row(2, priority=9))
    driver.bind(1)
    assert handed(driver, 2) == [2]
    assert handed(driver, 3) == [3, 1]


@pytest.mark.requirement("R195", "R196")
def test_who_waits_for_what_others_have_not_settled_gets_its_share_when_they_do() -> None:
    """The lane that is settled has more to give, and must not take all that it frees."""
    driven = DrivenHome(allowance=5)
    driven.start(ROUTER, {LANE: settings_of(), OTHER: settings_of("other")})
    first = driven.bind(LANE)
    driven.store(([LANE], rows_of(20)))
    driven.settle_down(0.1)
    driven.store(([OTHER], rows_of(1)), producer=(PRODUCER + 1, 1))
    driven.settle_down(0.1)
    second = driven.bind(OTHER)
    driven.settle_down(0.1)
    assert second not in driven.delivered
    driven.settle(first, (1, 1))
    driven.settle_down(0.1)
    driven.settle(first, (2, 5))
    driven.settle_down(0.1)
    assert driven.delivered[second].order == [1]
    assert driven.home.stats()["delivered_unacked"] == 5


@pytest.mark.requirement("R196")
def test_who_waits_for_room_on_the_node_gets_it_in_turn_with_those_who_make_it() -> None:
    """Its positions are reserved while it waits: else others would have the room before they are."""
    driven = started(allowance=4)
    driven.store(([LANE], rows_of(20)))
    driven.settle_down()
    first = driven.bind(LANE)
    driven.settle_down()
    assert driven.delivered[first].order == [1, 2, 3, 4]
    driven.store(([OTHER], rows_of(1)), producer=(7, 1))
    driven.settle_down()
    second = driven.bind(OTHER)
    driven.settle_down()
    assert second not in driven.delivered
    driven.settle(first, (1, 4))
    driven.settle_down()
    assert driven.delivered[second].order == [1], "at once, although nothing else happens"
    assert driven.delivered[first].order == [*range(1, 8)]
