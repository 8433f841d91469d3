"""Whatever is cut into steps keeps its promises when a step is a message: what comes between two steps does no harm.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate --world steps` many.
"""

from __future__ import annotations

import importlib
import random

import pytest

from node.endpoints.lane import Lane
from tests.share import short
from tests.simulation import failure_story, small_steps
from tests.simulation.guaranteed import guaranteed_scenario
from tests.simulation.simulate import STEPS, name_of

SERIES = 0
#: A second of one core each.
SEEDS_DEFAULT = short(1, long=20)
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = short(1, long=4)
#: The first run in which a lane that does not go on after a step leaves messages behind.
FORGETTING = 3


@pytest.mark.slow
def test_every_run_in_small_steps_keeps_all_promises(first_seed: int) -> None:
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        outcome = small_steps.run(name_of(SERIES, number, STEPS))
        assert not outcome.violations, failure_story.tell(outcome)


def test_limits_are_below_what_they_are_otherwise_for_one_run_only() -> None:
    def now() -> list[int]:
        return [
            getattr(importlib.import_module(module), name)
            for module, limits in small_steps.LIMITS.items()
            for name in limits
        ]

    before = now()
    with small_steps.small(random.Random(0)) as changed:
        during = now()
    assert now() == before
    assert changed
    assert sum(one != other for one, other in zip(before, during, strict=True)) == len(changed)
    assert all(one <= other for one, other in zip(during, before, strict=True))


@pytest.mark.slow
@pytest.mark.long  # four seconds of waiting for messages that never come
def test_what_is_left_of_a_step_and_forgotten_is_found_in_small_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lane, "wants_effort", property(lambda _: False))
    seed = name_of(SERIES, FORGETTING, STEPS)
    assert not guaranteed_scenario.run(seed).violations
    assert any("holds" in one.text for one in small_steps.run(seed).violations)
