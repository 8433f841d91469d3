"""Lanes in which nobody has a part rest: little is kept of them, and they go on as if nothing had been."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import wire
from node.endpoints.resting import FIRST_START, RestingLane
from node.home.spool.held_lanes import REST_AFTER_S, RESTS_PER_TICK
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, rows_of, settings_of, started

if TYPE_CHECKING:
    from node.endpoints.lane import Lane

pytestmark = pytest.mark.requirement("R279")

LATER = 2 * REST_AFTER_S + 0.1


def lane_of(driven: DrivenHome, lane_id: int = LANE) -> Lane | RestingLane:
    held = driven.home.lanes.get(lane_id)
    assert held is not None
    return held.lane


def is_resting(driven: DrivenHome, lane_id: int = LANE) -> bool:
    return type(lane_of(driven, lane_id)) is RestingLane


def test_a_lane_rests_from_its_first_moment_until_something_comes() -> None:
    driven = started()
    assert is_resting(driven)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert not is_resting(driven)
    assert is_resting(driven, OTHER)


def test_a_lane_without_consumers_rests_with_its_messages_and_says_the_same_of_them() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    awake = lane_of(driven)
    said = {name: getattr(awake, name) for name in ("messages", "bytes", "oldest_stored_ms", "next_position")}
    stats, found = awake.stats(), awake.find(2)
    segments = list(awake.segments), list(awake.segments_from(2))
    driven.settle_down(LATER)
    resting = lane_of(driven)
    assert type(resting) is RestingLane
    assert {name: getattr(resting, name) for name in said} == said
    assert (resting.stats(), resting.find(2)) == (stats, found)
    assert (list(resting.segments), list(resting.segments_from(2))) == segments
    assert (resting.find(9), resting.flows, resting.lease, resting.retained) == (None, {}, None, None)


def test_a_lane_that_rested_goes_on_with_its_messages_their_attempts_and_its_positions() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.settle(flow, (1, 1))
    driven.unbind(flow)
    driven.settle_down(LATER)
    assert is_resting(driven)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down(LATER)
    assert is_resting(driven)
    again = driven.bind()
    driven.settle_down()
    assert driven.delivered[again].order == [2, 3, 4]
    assert driven.delivered[again].counts == {2: 1, 3: 1, 4: 0}
    assert lane_of(driven).stats()["redelivered"] == 2
    assert lane_of(driven).stats()["accepted"] == 1
    assert lane_of(driven).delivered_upto == 4


def test_a_lane_that_rests_empty_keeps_its_counts_and_positions() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    driven.settle(flow, (1, 2))
    driven.unbind(flow)
    before = lane_of(driven).stats()
    driven.settle_down(LATER)
    assert is_resting(driven)
    assert lane_of(driven).stats() == {**before, "messages": 0, "consumers": 0}
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert lane_of(driven).next_position == 4


def test_lanes_that_somebody_has_a_part_in_or_that_wait_for_a_time_do_not_rest() -> None:
    lanes = [(5 + at) << wire.LANE_BITS for at in range(5)]
    bound, leased, timed, selecting, retaining = lanes
    driven = DrivenHome()
    settings = dict.fromkeys(lanes, settings_of("q"))
    settings[timed] = settings_of("q", max_ttl_s=600)
    settings[selecting] = settings_of("q", kind="topic-endpoint", selector="a = 1")
    settings[retaining] = settings_of("q", retains=True)
    driven.start(ROUTER, settings)
    driven.bind(bound)
    driven.leased_at_once("open", "group", 600_000, lane_id=leased)
    driven.store(([timed], rows_of(1)))
    driven.settle_down(LATER)
    assert [is_resting(driven, lane) for lane in lanes] == [False] * 5


def test_a_lane_rests_again_after_a_question_that_only_one_that_is_awake_answers() -> None:
    driven = started()
    driven.leased_at_once("figures")
    assert not is_resting(driven)
    driven.settle_down(LATER)
    assert is_resting(driven)


def test_many_lanes_rest_some_at_a_time() -> None:
    count = 2 * RESTS_PER_TICK + 1
    lanes = [5 << wire.LANE_BITS | at for at in range(count)]
    driven = DrivenHome()
    driven.start(ROUTER, dict.fromkeys(lanes, settings_of("parted", partitions=count)))
    flows = [driven.bind(lane) for lane in lanes]
    driven.settle_down(1.0)
    assert not any(is_resting(driven, lane) for lane in lanes)
    for flow in flows:
        driven.unbind(flow)
    driven.settle_down(REST_AFTER_S / 8)
    while not any(is_resting(driven, lane) for lane in lanes):
        driven.pass_time(REST_AFTER_S / 4)
        driven.tick()
    assert sum(is_resting(driven, lane) for lane in lanes) <= RESTS_PER_TICK
    driven.settle_down(LATER)
    assert all(is_resting(driven, lane) for lane in lanes)


def test_lanes_that_were_never_used_share_what_they_start_with_and_their_settings() -> None:
    lanes = [5 << wire.LANE_BITS | at for at in range(3)]
    driven = DrivenHome()
    driven.start(ROUTER, dict.fromkeys(lanes, settings_of("parted", partitions=3)))
    for _ in range(2):
        found = [lane_of(driven, lane) for lane in lanes]
        assert len({id(lane.settings) for lane in found}) == 1
        assert all(type(lane) is RestingLane and lane.start is FIRST_START for lane in found)
        driven.restart()


def test_who_asks_one_that_was_roused_asks_the_lane_in_its_place() -> None:
    driven = started()
    resting = lane_of(driven)
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    assert resting.unbind(7, None, 0.0, 0) == []
    found = lane_of(driven).find(1)
    assert found is not None
    assert resting.state_of(*found) == "ready"
    assert len(driven.home.lanes) == 2
    driven.home.validate()


def test_a_lane_that_is_deleted_while_it_rests_is_gone() -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)))
    driven.settle_down(LATER)
    driven.lanes({}, LANE)
    driven.settle_down(LATER)
    assert driven.home.lanes.get(LANE) is None
    driven.restart()
    assert driven.home.lanes.get(LANE) is None
