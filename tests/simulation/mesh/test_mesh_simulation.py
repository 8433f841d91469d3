"""Nodes joined by links that break keep the promises of the mesh in every run.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate --world mesh` many.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.share import short
from tests.simulation import failure_story
from tests.simulation.guaranteed.fingerprint import fingerprint
from tests.simulation.history_index import Index
from tests.simulation.mesh import mesh_scenario
from tests.simulation.mesh.crossing_rules import CrossingIndex
from tests.simulation.mesh.crossing_rules import name_of as what_of
from tests.simulation.mesh.mesh_rules import MeshIndex
from tests.simulation.other_process import said_elsewhere
from tests.simulation.simulate import MESH, name_of

if TYPE_CHECKING:
    from tests.simulation.scenario import Outcome

SERIES = 0
#: Seconds on one core.
SEEDS_DEFAULT = short(2, long=8)
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = 2
#: Runs in which is counted what the rules had to judge: much of everything for little time.
COUNTED = (0, 1, 18, 24)


@functools.cache
def play(number: int) -> Outcome:
    return mesh_scenario.run(name_of(SERIES, number, MESH))


@pytest.mark.slow
@pytest.mark.requirement("R17", "R18", "R90", "R214", "R215")  # `mesh_end`, `transit`, `strangers`
@pytest.mark.requirement("R31")  # one member on each node, `groups`, `members`
@pytest.mark.requirement("R75", "R76", "R77", "R78", "R79", "R82", "R216")  # `deliver_to_one`, `completeness`
@pytest.mark.requirement(
    "R89", "R91", "R167"
)  # queues of one name on several nodes, `stored_there`, `carried`
@pytest.mark.requirement("R199", "R204")  # `times`
def test_every_run_keeps_the_promises_of_the_mesh(first_seed: int) -> None:
    stories = []
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        outcome = play(number)
        if outcome.violations:
            stories.append(failure_story.tell(outcome))
    assert not stories, "\n\n".join(stories)


@pytest.mark.slow
@pytest.mark.long  # that of direct messages does so by default
def test_a_seed_gives_the_same_history_in_another_process_with_other_hashes() -> None:
    numbers = [short(18, long=3)]  # they are played anyway
    told = said_elsewhere(__name__, "t.fingerprint(t.play(int(one)))", numbers)
    assert told == [fingerprint(play(number)) for number in numbers]


def material(outcome: Outcome) -> Counter[str]:
    """Count what the rules had to judge in a run."""
    assert outcome.mesh is not None
    history = outcome.mesh
    index, crossing = MeshIndex(history, Index(history.shared)), CrossingIndex(history)
    found: Counter[str] = Counter()
    for received in index.index.received.values():
        for connection, delivery in received:
            found["crossed directly"] += connection.node != delivery.message.publisher.node
            found["crossed to a group"] += (
                connection.node != delivery.message.publisher.node and delivery.share is not None
            )
    for message in index.calm_messages():
        found["calm"] += 1
        if message.is_dto:
            node = index.chosen_node(message)
            found["for a client here"] += node == message.publisher.node
            found["for a neighbour"] += node not in ("", message.publisher.node)
    for publication, origin in crossing.acknowledged():
        what = what_of(publication)
        there = [copy for copy in crossing.copies.get(what, ()) if copy.node != origin]
        found["crossed and stored"] += len(there)
        found["with a time to live"] += len(there) if publication.ttl_ms else 0
        found["tried again"] += any(name.endswith("/retry") for _, name in crossing.carried.get(what, ()))
        found["given up"] += any(name.endswith("/dmq") for _, name in crossing.carried.get(what, ()))
    for records in history.nodes.values():
        for _, event in records.history.events:
            found[event["event"]] += event["event"] in ("SYSTEM_LINK_UP", "SYSTEM_LINK_DOWN")
        found["demoted copies"] += len(records.history.copies)
    return found


@pytest.mark.slow
@pytest.mark.long  # of what each seed plays, not of the product
def test_the_runs_give_every_rule_something_to_judge() -> None:
    found: Counter[str] = Counter()
    for number in COUNTED:
        outcome = play(number)
        assert not outcome.violations, failure_story.tell(outcome)
        found += material(outcome)
    scarce = {name: count for name, count in found.items() if count < 5}
    assert len(found) == 12, found
    assert not scarce, found
