"""A node with real homes over disks that fail keeps the promises of guaranteed messaging in every run.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate` many.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium import wire
from tests.share import short
from tests.simulation import failure_story, simulate
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed import guaranteed_scenario
from tests.simulation.guaranteed.fingerprint import fingerprint
from tests.simulation.guaranteed.index import GuaranteedIndex
from tests.simulation.guaranteed.lane_replay import is_owned, is_plain
from tests.simulation.other_process import said_elsewhere
from tests.simulation.simulate import GUARANTEED, name_of

if TYPE_CHECKING:
    from tests.simulation.scenario import Outcome

SERIES = 0
#: Seconds on one core.
SEEDS_DEFAULT = short(3, long=20)
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = short(3, long=4)
#: Of so many runs at most is counted what the rules had to judge, until it is much of everything.
COUNTED_MAX = 80


def play(number: int) -> Outcome:
    return guaranteed_scenario.run(name_of(SERIES, number, GUARANTEED))


class Judged(NamedTuple):
    """What tests need of a run."""

    #: Empty if no rule was broken.
    story: str
    fingerprint: str


@functools.cache
def judged(number: int) -> Judged:
    """Play a run once for all tests."""
    outcome = play(number)
    story = failure_story.tell(outcome) if outcome.violations else ""
    return Judged(story, fingerprint(outcome))


@pytest.mark.slow
@pytest.mark.requirement("R96", "R113", "R155", "R163")  # acknowledged means on every disk, `completeness`
@pytest.mark.requirement("R112", "R122", "R126", "R162")  # by its subscriptions only, `strangers`
@pytest.mark.requirement(
    "R114", "R115", "R177", "R184"
)  # refused everywhere and for a cause, `refusals`, `reasons`
@pytest.mark.requirement("R277")  # acknowledged and taken by nobody, `unroutable`
@pytest.mark.requirement("R101", "R105")  # one flow at a time has an exclusive lane, `owners`
@pytest.mark.requirement("R164", "R165", "R166", "R168", "R179", "R180", "R190")  # deliveries, `flow_rules`
@pytest.mark.requirement(
    "R145", "R148", "R149"
)  # topic endpoints and their selectors, `contents`, `vanished`
@pytest.mark.requirement("R171", "R172", "R173", "R174", "R175", "R176", "R182", "R183")  # limits, `exceeded`
@pytest.mark.requirement("R186", "R188", "R191", "R192", "R193", "R194", "R195", "R196")  # windows, `limits`
@pytest.mark.requirement(
    "R198", "R200", "R202", "R203"
)  # times to live and the dead, `times`, `dead_messages`
@pytest.mark.requirement("R151", "R153", "R156", "R157", "R170")  # promoted, demoted and relaxed messages
def test_every_run_keeps_the_promises_of_guaranteed_messaging(first_seed: int) -> None:
    stories = [judged(number).story for number in range(first_seed, first_seed + SEEDS_PER_TEST)]
    assert not any(stories), "\n\n".join(filter(None, stories))


@pytest.mark.slow
@pytest.mark.long  # that of direct messages does so by default
def test_a_seed_gives_the_same_history_in_another_process_with_other_hashes() -> None:
    """Nothing in router, home, controller or SDK may depend on the order of a set, on the clock or on chance."""
    numbers = [3]
    told = said_elsewhere(__name__, "t.fingerprint(t.play(int(one)))", numbers)
    assert told == [judged(number).fingerprint for number in numbers]


def material(outcome: Outcome) -> Counter[str]:
    """Count what the rules had to judge in a run."""
    assert outcome.guaranteed is not None
    index = GuaranteedIndex(outcome.history, outcome.guaranteed)
    found: Counter[str] = Counter()
    for one in outcome.guaranteed.publications:
        found["acknowledged"] += one.is_acked
        found["refused"] += one.refused_at < FOREVER
        found["sent again"] += len(one.sends) > 1
        found["with a key"] += one.key is not None
    for place, stored in index.stored.items():
        found["stored"] += 1
        found["moved"] += stored.origin is not None
        found["promoted"] += stored.what.isdigit()
        found["gone"] += place in index.gone
        found["sent more than once"] += len(index.emitted.get(place, ())) > 1
    for flow in outcome.guaranteed.flows:
        for settle in flow.settles:
            found[f"outcome {settle.outcome}"] += len(settle.places)
        found["browsed"] += len(flow.deliveries) * flow.is_browser
        found["selected"] += len(flow.deliveries) * (flow.selector is not None)
    for lane, events in index.lanes.items():
        endpoint = index.endpoint((lane, 0))
        if endpoint is not None and is_owned(endpoint):
            found["owned lanes"] += 1
            found["plain lanes"] += is_plain(index, endpoint, events)
        if endpoint is not None:
            found["relaxed lanes"] += outcome.guaranteed.is_relaxed(endpoint)
            found["partitions"] += bool(lane & (1 << wire.LANE_BITS) - 1)
    found["deaths of homes"] += len(index.deaths)
    found["demoted"] += len(outcome.guaranteed.demoted)
    found["operations"] += sum(len(one.operations) for one in outcome.guaranteed.endpoints.values())
    return found


@pytest.mark.slow
@pytest.mark.long  # of what each seed plays, not of the product
def test_the_runs_give_every_rule_something_to_judge() -> None:
    found: Counter[str] = Counter()
    for number in range(COUNTED_MAX):
        outcome = play(number)
        assert not outcome.violations, failure_story.tell(outcome)
        found += material(outcome)
        if len(found) == 21 and min(found.values()) >= 10:
            return
    raise AssertionError(found)


@pytest.mark.slow
def test_the_script_runs_all_worlds_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    status = simulate.main(["--seeds", "5", "--seed", "7", "--first", "12", "--processes", "1"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert status == 0, last
    assert '"seeds": 5, "failed_seeds": [], "verdict": "good"' in last
