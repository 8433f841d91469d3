"""Nodes joined by links that break keep the promises of the mesh in every run.

`ANGARIUM_SIMULATION_SEEDS=1000 scripts/test tests/simulation` runs more seeds, `scripts/simulate --world mesh` many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import failure_story
import pytest
from guaranteed.test_guaranteed_simulation import fingerprint
from simulate import MESH, name_of

from mesh import mesh_scenario

if TYPE_CHECKING:
    from scenario import Outcome

SERIES = 0
#: About five seconds on one core.
SEEDS_DEFAULT = 12
#: Seeds of one test, so that a failure is found, and named, soon.
SEEDS_PER_TEST = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        seeds = int(os.environ.get("ANGARIUM_SIMULATION_SEEDS", SEEDS_DEFAULT))
        firsts = range(0, seeds, SEEDS_PER_TEST)
        metafunc.parametrize("first_seed", firsts, ids=lambda first: f"from-{first}")


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
def test_a_seed_gives_the_same_history_in_another_process_with_other_hashes() -> None:
    numbers = [1, 3]
    program = (
        "import sys; from mesh import test_mesh_simulation as t; "
        "print(*(t.fingerprint(t.play(int(number))) for number in sys.argv[1:]))"
    )
    here = Path(__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4711",
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, numbers)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [fingerprint(play(number)) for number in numbers]
