"""A lane against a naive model (`lane_model`): small examples by Hypothesis, and long walks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.share import short
from tests.unit.node.lane_driver import KINDS
from tests.unit.node.lane_model import LaneMachine

TestLaneMachine = pytest.mark.slow(LaneMachine.TestCase)
TestLaneMachine.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

#: How often each thing happens in a long walk. Hypothesis tries all alike and makes failures small; a walk
#: in which messages mostly go out and come back gets further.
WEIGHTS = {
    "append": 10,
    "hand_out": 14,
    "settle_some": 10,
    "tick": 8,
    "credit": 4,
    "bind": 4,
    "unbind": 2,
    "leave": 1,
    "settle_a_range": 2,
    "store": 3,
    "merge": 2,
    "move_dead": 3,
    "take_for_a_move": 2,
    "keep_after_all": 3,
    "delete": 2,
    "withdraw": 2,
    "time_passes_unseen": 2,
    "configure": 1,
    "restart": 1,
    "purge": 0.2,
}
WALK_STEPS = 300


def walk(kind: dict[str, Any], seed: int) -> LaneMachine:
    """Let things happen to a lane at random; the same seed gives the same walk."""
    rng = Random(seed)
    machine = LaneMachine()
    machine.begin(kind)
    for _ in range(WALK_STEPS):
        (name,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        happen = getattr(machine, name)
        if all(condition(machine) for condition in conditions_of(happen)):
            happen(rng)
            machine.model_and_lane_agree()
    return machine


def conditions_of(happen: Any) -> list[Any]:
    one = getattr(happen, "hypothesis_stateful_rule", None)
    return list(one.preconditions) if one is not None else []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(short(1, long=4)))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_long_walk_finds_lane_and_model_in_agreement(kind: dict[str, Any], seed: int) -> None:
    machine = walk(kind, seed)
    stats = machine.driver.lane.stats()
    assert stats["next_position"] > 100
    assert machine.flows > 5
