"""Which lanes go to which workers: by load, few of them, and nothing swings."""

from __future__ import annotations

import random

import pytest

from cluster.controller.workers import plan
from cluster.controller.workers.plan import GAIN_MIN, SLACK, Lane, plan_moves


def lane(number: int, home: int, rate: float = 0.0, size: int = 0, stored: int = 0) -> Lane:
    return Lane(number, "queue", "default", f"q{number}", 0, home, stored, stored * 100, rate, float(size))


def carried_out(lanes: list[Lane], workers: int) -> list[Lane]:
    targets = {move.lane.lane_id: move.target for move in plan_moves(lanes, workers).moves}
    return [one._replace(home=targets.get(one.lane_id, one.home)) for one in lanes]


def test_idle_queues_are_spread_by_their_number_and_the_smallest_go() -> None:
    lanes = [lane(n, 0, stored=n) for n in range(9)]
    plan = plan_moves(lanes, 3)
    assert sorted(move.lane.lane_id for move in plan.moves) == [0, 1, 2, 3, 4, 5]
    assert sorted(move.target for move in plan.moves) == [1, 1, 1, 2, 2, 2]


def test_a_busy_queue_counts_more_than_many_that_are_idle() -> None:
    lanes = [lane(1, 0, rate=100.0), lane(2, 0, rate=90.0), *[lane(n, 1) for n in range(10, 40)]]
    plan = plan_moves(lanes, 2)
    assert [(move.lane.lane_id, move.target) for move in plan.moves] == [(2, 1)]
    assert plan.before == pytest.approx([190.02, 0.3])
    assert plan.after == pytest.approx([100.01, 90.31])


def test_bytes_count_like_messages_of_1_kib() -> None:
    lanes = [lane(1, 0, rate=1.0, size=100 << 10), lane(2, 0, rate=60.0), lane(3, 0, rate=60.0)]
    (move,) = plan_moves(lanes, 2).moves
    assert move.lane.lane_id == 1


def test_the_only_busy_queue_of_a_worker_stays() -> None:
    assert plan_moves([lane(1, 0, rate=1_000.0), lane(2, 1, rate=1.0)], 2).moves == []


def test_small_differences_are_left_alone() -> None:
    assert plan_moves([lane(1, 0, rate=50.0), lane(2, 0, rate=10.0), lane(3, 1, rate=50.0)], 2).moves == []


def test_workers_that_leave_are_not_looked_at() -> None:
    assert plan_moves([lane(1, 5, rate=50.0)], 2).moves == []


def test_what_rests_counts_and_stays() -> None:
    lanes = [lane(1, 0, rate=50.0), lane(2, 0, rate=10.0), lane(3, 1, rate=10.0), lane(4, 0, rate=9.0)]
    (move,) = plan_moves(lanes, 2, resting=(2,)).moves
    assert move.lane.lane_id == 4


def test_a_plan_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOVES_MAX", 7)
    assert len(plan_moves([lane(n, 0) for n in range(100)], 2).moves) == 7


@pytest.mark.parametrize("seed", range(40))
def test_what_was_carried_out_is_level_or_cannot_be_made_so_and_nothing_swings(seed: int) -> None:
    rng = random.Random(f"plans {seed}")
    workers = rng.randint(1, 6)
    rates = [0.0, 0.0, 1.0, 10.0, 500.0, rng.random() * 1_000]
    lanes = [
        lane(n, rng.randrange(workers), rng.choice(rates), rng.choice([0, 5_000]), rng.randrange(1_000))
        for n in range(rng.randint(1, 200))
    ]
    plan = plan_moves(lanes, workers)
    assert sum(plan.after) == pytest.approx(sum(plan.before))
    assert max(plan.after) <= max(plan.before) + 1e-9
    assert len({move.lane.lane_id for move in plan.moves}) == len(plan.moves), "no lane goes twice"
    after = carried_out(lanes, workers)
    assert plan_moves(after, workers).moves == []
    gap = max(plan.after) - min(plan.after)
    if gap > SLACK * sum(plan.after) / workers + 1e-9:
        hot = plan.after.index(max(plan.after))
        # A lane that did not go is too large for the difference.
        moved = {move.lane.lane_id for move in plan.moves}
        left = [one.load for one in after if one.home == hot and one.lane_id not in moved]
        assert not [load for load in left if load <= gap / 2 and 2 * load > GAIN_MIN * gap]
