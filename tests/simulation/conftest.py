"""Seeds of simulations: a test that takes `first_seed` runs for each part of those that its module has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give SEEDS_DEFAULT of the module, or what the environment says, SEEDS_PER_TEST of them to a test.

    So a failure is found, and named, soon.
    """
    if "first_seed" in metafunc.fixturenames:
        module = metafunc.module
        variable = getattr(module, "SEEDS_VARIABLE", "ANGARIUM_SIMULATION_SEEDS")
        seeds = int(os.environ.get(variable, module.SEEDS_DEFAULT))
        firsts = range(0, seeds, module.SEEDS_PER_TEST)
        metafunc.parametrize("first_seed", firsts, ids=lambda first: f"from-{first}")
