"""A partition moves to another consumer while the first one has much of it, of which it has seen little."""

from __future__ import annotations

import pytest

from tests.share import short
from tests.simulation.guaranteed.stage import Stage

SEEDS = [f"handoff {number}" for number in range(short(5, long=30))]
PARTED = {
    "subscriptions": ["t/>"],
    "access_type": "non-exclusive",
    "partition_count": 3,
    "partition_rebalance_delay_s": 0,
    "partition_rebalance_max_handoff_s": 600,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement("R101", "R192")
def test_what_nobody_has_seen_does_not_hold_up_a_partition_that_moves(seed: str) -> None:
    """What of it is in hand is settled first; across both consumers a partition comes in order, and once."""
    stage = Stage(seed, workers=2, orders=PARTED)
    producer, first = stage.producer(), stage.flow("orders", window=40)
    for key in "abcdefgh":
        stage.publish(producer, *["t/1"] * 10, partition_key=key)
    stage.wait()
    second = stage.flow("orders", number=1, window=40)
    for _ in range(100):
        for flow in (first, second):
            flow.settle_some(1)
        stage.wait(0.02)
    assert second.partitions
    records = [flow.record for flow in (first, second) if flow.record is not None]
    got = sorted((one for record in records for one in record.deliveries), key=lambda one: one.at)
    assert not any(one.tries for one in got)
    for lane in {one.place[0] for one in got}:
        positions = [one.place[1] for one in got if one.place[0] == lane]
        assert positions == sorted(set(positions))
    assert stage.finish() == []
