"""Promises hold whatever operators change, whenever they change it, and whoever reads from position to position.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate --world changes` many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from node.backlog.lifetimes import Lifetimes
from node.endpoints import consumers
from node.endpoints.reader import Run, Work, browse
from tests.share import short
from tests.simulation import failure_story
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed import guaranteed_scenario
from tests.simulation.simulate import CHANGES, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

SERIES = 0
#: Most of a second of one core each.
SEEDS_DEFAULT = short(1, long=20)
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = short(1, long=4)
#: A fault shows in one of so many.
SEEDS_MAX = 40


def play(number: int) -> Any:
    return guaranteed_scenario.run_changing(name_of(SERIES, number, CHANGES))


@pytest.mark.slow
def test_every_run_keeps_all_promises_while_attributes_change(first_seed: int) -> None:
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        outcome = play(number)
        assert not outcome.violations, failure_story.tell(outcome)


@pytest.mark.slow
@pytest.mark.long  # of what each seed plays, not of the product
def test_the_runs_change_much_and_read_much() -> None:
    changes = ranges = rows = clocks = 0
    for number in range(10):
        records = play(number).guaranteed
        changes += sum(len(one.changes) - 1 for one in records.endpoints.values())
        done = [one for one in records.scans if one.done_at < FOREVER]
        ranges += len(done)
        rows += sum(len(one.got) for one in done)
        clocks += len(records.clock_sets)
    assert min(changes, ranges, rows, clocks) >= 20, (changes, ranges, rows, clocks)


def is_found(rule: str, first: int) -> bool:
    """Run seeds until a rule objects; `first` is one in which the fault has shown."""
    for number in dict.fromkeys((first, *range(SEEDS_MAX))):
        if any(one.rule == rule for one in play(number).violations):
            print(f"first={number} finds {rule}")
            return True
    return False


@pytest.mark.slow
@pytest.mark.long
def test_times_that_do_not_follow_the_settings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lifetimes, "apply_settings", lambda *_: None)
    assert is_found("expired", first=21)


@pytest.mark.slow
@pytest.mark.long
def test_a_range_that_ends_with_the_patience_of_the_home_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(
        segments: Any,
        cursor: int,
        matches: Callable[..., bool] | None,
        rows: int,
        size: int,
        work: Work,
    ) -> tuple[int, Run | None]:
        _, run = browse(segments, cursor, matches, rows, size, work)
        return (1 << 60 if run is not None else cursor), run

    monkeypatch.setattr(consumers, "browse", impatient)
    assert is_found("unseen", first=1)
