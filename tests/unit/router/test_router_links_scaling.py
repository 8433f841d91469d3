"""What a full mesh costs grows as it does itself: counted as in docs/scaling.md, for few nodes."""

from __future__ import annotations

import pytest

from benchmarks import scaling

pytestmark = pytest.mark.slow
SUBSCRIPTIONS = 50


def test_each_direction_of_each_link_is_told_each_subscription_once() -> None:
    small, large = (scaling.measure(nodes, SUBSCRIPTIONS) for nodes in (3, 9))
    each = [found.start.bytes / (found.nodes * (found.nodes - 1)) for found in (small, large)]
    assert each[1] == pytest.approx(each[0], rel=0.1)
    again = [found.rejoin.bytes / (found.nodes - 1) for found in (small, large)]
    assert again[1] == pytest.approx(again[0], rel=0.1)
    # One frame for each other node, and its answer where the link process is on this side.
    assert [found.change.frames for found in (small, large)] == [3, 12]


def test_exponents_are_those_of_the_points() -> None:
    slope, coefficient = scaling.exponent([(n, 3.0 * n**2) for n in (5, 10, 20)])
    assert slope == pytest.approx(2.0)
    assert coefficient == pytest.approx(3.0)
