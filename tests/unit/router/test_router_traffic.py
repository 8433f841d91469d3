"""What comes into an endpoint and leaves it, as operators see it: counts since the router began, and rates."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from angarium import wire
from angarium_server.frames.homes import LaneTotals
from router.guaranteed.endpoints import NO_TRAFFIC, RATE_SPAN_S, LaneUsage, Traffic
from router.operators import TRAFFIC, describe_endpoints

if TYPE_CHECKING:
    from tests.unit.router.flow_rig import Rig

LANE = 1 << wire.LANE_BITS


def lane_totals(traffic: tuple[int, int, int, int], *, complete: bool = True) -> LaneTotals:
    return LaneTotals(LANE, 0, 0, None, 0, complete, None, "", traffic)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    traffic, now = Traffic(), 1000.0
    for i in range(1, 301):  # 100 messages each second, a report each tenth
        now += 0.1
        traffic.report((10 * i, 640 * i, 5 * i, 320 * i), now)
    assert traffic.rates(now) == pytest.approx((100, 6400, 50, 3200), rel=0.05)
    assert traffic.counts == (3000, 192_000, 1500, 96_000)


def test_the_rate_of_a_lane_without_traffic_becomes_0() -> None:
    traffic = Traffic()
    assert traffic.rates(1000.0) == NO_TRAFFIC
    traffic.report((100, 6400, 0, 0), 1000.0)
    assert traffic.rates(1000.1)[0] == 100 / RATE_SPAN_S, "never more than came in one span"
    seen = [traffic.rates(1000.0 + RATE_SPAN_S + 0.5 * i)[0] for i in range(10)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] > 0
    assert traffic.rates(1000.0 + 2 * RATE_SPAN_S) == NO_TRAFFIC


def test_messages_that_come_now_and_then_are_the_rate_that_they_have() -> None:
    """Whenever somebody looks, the rate is of a span of 5 to 10 seconds: one message more or less."""
    chance = random.Random(7)
    for gap in (0.3, 1.0, 4.0):
        traffic, now = Traffic(), 1000.0
        for count in range(1, 201):
            now += gap
            traffic.report((count, count, 0, 0), now)
            if count * gap > 2 * RATE_SPAN_S:
                rate = traffic.rates(now + chance.uniform(0, gap))[0]
                assert abs(rate - 1 / gap) <= 1.01 / RATE_SPAN_S, gap


def test_a_home_that_begins_again_is_no_traffic() -> None:
    lane = LaneUsage(LANE, 0)
    lane.report(lane_totals((10, 1000, 4, 400)), 1000.0)
    lane.traffic.go_on((6, 600, 0, 0))  # its successor counts what it found as having come
    lane.report(lane_totals((7, 700, 1, 100)), 1001.0)
    assert lane.traffic.counts == (11, 1100, 5, 500)
    assert min(lane.traffic.rates(1001.0)) >= 0


def test_what_a_lane_brings_from_another_spool_is_no_traffic() -> None:
    lane = LaneUsage(LANE, 0)
    lane.report(lane_totals((10, 1000, 0, 0)), 1000.0)
    lane.move_to(1)
    lane.report(lane_totals((3, 300, 0, 0), complete=False), 1001.0)
    lane.report(lane_totals((9, 900, 0, 0)), 1002.0)
    lane.report(lane_totals((12, 1200, 2, 200)), 1003.0)
    assert lane.traffic.counts == (13, 1300, 2, 200)


def test_the_lanes_of_an_endpoint_are_added_up(rig: Rig) -> None:
    endpoint = rig.controller.put("q", access_type="non-exclusive", partition_count=2)
    for lane in endpoint.lanes:
        lane.report(LaneTotals(lane.lane_id, 15, 150, 1, 0, traffic=(20, 200, 5, 50)), rig.now)
    shown = next(describe_endpoints([endpoint], rig.now, TRAFFIC))
    counts, rates = list(shown.values())[:4], list(shown.values())[4:]
    assert counts == [40, 400, 10, 100]
    assert rates == [8.0, 80.0, 2.0, 20.0]
    assert list(shown) == list(TRAFFIC)
