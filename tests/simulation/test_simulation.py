"""A node of real state machines, disturbed as a seed says, keeps its promises in every run.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate` many.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.share import short
from tests.simulation import delivery_rules, failure_story, scenario, simulate
from tests.simulation.event_history import FOREVER
from tests.simulation.history_index import Index, Violation
from tests.simulation.other_process import said_elsewhere
from tests.simulation.simulate import name_of

if TYPE_CHECKING:
    from tests.simulation.event_history import History

SERIES = 0
#: Seconds on one core.
SEEDS_DEFAULT = short(10, long=20)
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = 10
#: Runs in which is counted what the rules had to judge.
COUNTED = SEEDS_DEFAULT
#: What these have less of is as good as not tried.
SCARCE = 5


@functools.cache
def judged(number: int) -> tuple[str, Counter[str]]:
    """Play a run once for all tests; give what is to be told of it, if it broke a rule, and what there was to judge."""
    outcome = scenario.run(name_of(SERIES, number))
    story = failure_story.tell(outcome) if outcome.violations else ""
    return story, material(outcome.history) if number < COUNTED else Counter()


@pytest.mark.slow
@pytest.mark.requirement("R3")  # order of each publisher over all topics, `safety_rules.order`
@pytest.mark.requirement(
    "R7", "R8", "R9", "R45"
)  # what is lost is counted, `losses`, `discards`, `indications`
@pytest.mark.requirement("R12", "R19", "R21", "R22", "R27")  # shared subscriptions, both `groups`
@pytest.mark.requirement("R32", "R51")  # the newest value arrives in the end, `newest_values`
@pytest.mark.requirement("R53", "R56", "R57")  # nobody gets what no subscription or ACL lets through, `leaks`
@pytest.mark.requirement("R58", "R61", "R65", "R66")  # subscription managers, `leaks` and `completeness`
@pytest.mark.requirement("R68", "R70", "R73", "R74", "R81", "R84", "R86")  # deliver to one, `deliver_to_one`
def test_every_run_keeps_the_promises_of_direct_messaging(first_seed: int) -> None:
    stories = [judged(number)[0] for number in range(first_seed, first_seed + SEEDS_PER_TEST)]
    assert not any(stories), "\n\n".join(filter(None, stories))


def fingerprint(history: History) -> str:
    """Give a short text that differs if anything in a history does."""
    lines = [
        f"{message.number} {message.topic} {message.flags} {message.sent_at} {message.retired_at}"
        for message in history.messages
    ]
    for record in history.connections:
        lines.append(f"{record} {record.opened_at} {record.closed_at} {record.close_code} {record.dropped}")
        lines += [f"{one.message.number} {one.share} {one.at}" for one in record.deliveries]
        lines += [
            f"{one.text} {one.asked_at} {one.confirmed_at} {one.gone_at}" for one in record.subscriptions
        ]
    lines += [f"{at} {event}" for at, event in history.events]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.slow
def test_a_seed_gives_the_same_history_in_another_process_with_other_hashes() -> None:
    """Nothing in router, worker or SDK may depend on the order of a set, on the clock or on chance."""
    seeds = [name_of(SERIES, number) for number in short((3,), long=(3, 8))]
    told = said_elsewhere(__name__, "t.fingerprint(t.scenario.run(one).history)", seeds)
    assert told == [fingerprint(scenario.run(seed).history) for seed in seeds]


def material(history: History) -> Counter[str]:
    """Count what the rules had to judge in a run."""
    index = Index(history)
    found: Counter[str] = Counter()
    for message in history.messages:
        if not delivery_rules.is_sure(index, message):
            found["lost with a worker"] += history.was_out(message.topic, message.sent_at, message.retired_at)
            found["not allowed to publish"] += history.publish_verdict(message) is False
            continue
        records = index.matcher.find(message)
        found["certain deliveries"] += sum(
            delivery_rules.is_certain(one, message) for one in records if not message.is_eliding
        )
        found["eliding messages"] += message.is_eliding
        found["deliver-to-one messages"] += message.is_dto and bool(records)
        found["messages for share groups"] += any(one.group for one in records)
    for record in history.connections:
        found["discards told of"] += record.dropped
        found["sessions that ended"] += record.ended_at < FOREVER
        found["unsubscribed"] += sum(one.gone_at < FOREVER for one in record.subscriptions)
        found["managed subscriptions"] += sum(bool(one.asker) for one in record.subscriptions)
        found["deliveries by share"] += sum(one.share is not None for one in record.deliveries)
    found["disturbances"] = len(history.faults)
    return found


@pytest.mark.slow
def test_the_runs_give_every_rule_something_to_judge() -> None:
    found: Counter[str] = Counter()
    for number in range(COUNTED):
        found += judged(number)[1]
    scarce = {name: count for name, count in found.items() if count < SCARCE}
    assert len(found) == 12, found
    assert not scarce, found


@pytest.mark.slow
@pytest.mark.long  # guaranteed/test_guaranteed_simulation.py has it run all worlds
def test_the_script_reports_what_it_ran_and_that_it_was_good(capsys: pytest.CaptureFixture[str]) -> None:
    status = simulate.main(["--seeds", "2", "--seed", "7", "--first", "3", "--processes", "1"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert status == 0, last
    assert '"seeds": 2, "failed_seeds": [], "verdict": "good"' in last


def test_a_run_that_breaks_a_rule_is_told_with_its_seed_and_its_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scenario.run

    def run_without_the_last_delivery(seed: str) -> scenario.Outcome:
        outcome = run(seed)
        if seed != name_of(SERIES, 6):
            return outcome
        message = outcome.history.messages[0]
        violation = Violation("lost", f"somebody never got {message}", (message,), (message.publisher,))
        return outcome._replace(violations=[violation])

    monkeypatch.setattr(scenario, "run", run_without_the_last_delivery)
    arguments = [
        "--world",
        "direct",
        "--seeds",
        "2",
        "--seed",
        f"{SERIES}",
        "--first",
        "5",
        "--processes",
        "1",
    ]
    status = simulate.main(arguments)
    out, err = capsys.readouterr()
    assert status == 1
    assert '"failed_seeds": [6], "verdict": "bad"' in out.splitlines()[-1]
    assert "seed 0/6: 1 broken rules\n  lost: somebody never got message 0" in err
    assert "(round 1.0) left with flags" in err
    assert "again: scripts/simulate --seeds 1 --seed 0 --first 6 --world direct" in err
