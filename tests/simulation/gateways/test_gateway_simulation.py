"""Gateways and the clients that are attached to them, disturbed as a seed says."""

from __future__ import annotations

import os

import pytest

from tests.simulation.gateways.gateway_scenario import GatewayScenario

SEEDS_DEFAULT = 60
SEEDS_PER_TEST = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        seeds = int(os.environ.get("ANGARIUM_SIMULATION_SEEDS", SEEDS_DEFAULT))
        firsts = range(0, seeds, SEEDS_PER_TEST)
        metafunc.parametrize("first_seed", firsts, ids=lambda first: f"from-{first}")


@pytest.mark.slow
def test_gateways_and_the_router_agree_after_every_disturbance(first_seed: int) -> None:
    broken = {}
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        if found := GatewayScenario(f"gateways-{number}").play():
            broken[number] = found[:3]
    assert broken == {}
