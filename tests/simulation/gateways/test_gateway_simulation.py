"""Gateways and the clients that are attached to them, disturbed as a seed says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from router.access.login import Authenticator
from router.gateways.wills import Wills
from tests.share import short, some
from tests.simulation.gateways.gateway_scenario import GatewayScenario
from tests.simulation.gateways.simulated_gateway import SimulatedGateway

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS_DEFAULT = short(5, long=20)
SEEDS_PER_TEST = 5
#: A fault that is planted shows within so many seeds.
SEEDS_OF_FAULTS = 100


@pytest.mark.slow
def test_gateways_and_the_router_agree_after_every_disturbance(first_seed: int) -> None:
    broken = {}
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        if found := GatewayScenario(f"gateways-{number}").play():
            broken[number] = found[:3]
    assert broken == {}


# -- faults that are planted -------------------------------------------------------------------------------------


def know_nobody_by_his_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Authenticator, "_may_resume", lambda *_: False)


def forget_the_will_of_who_comes_again(patch: pytest.MonkeyPatch) -> None:
    attached = Wills.attached

    def without(wills: Wills, session: Any, behalf: Any, now: float) -> None:
        attached(
            wills, session, behalf if behalf.takes_over else msgspec.structs.replace(behalf, will=None), now
        )

    patch.setattr(Wills, "attached", without)


def give_gateways_what_their_clients_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedGateway, "_told_kept", lambda _gateway, _kept, rows: [*range(rows)])


def give_gateways_nothing_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedGateway, "_told_kept", lambda *_: [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    some(
        [
            know_nobody_by_his_token,
            forget_the_will_of_who_comes_again,
            give_gateways_what_their_clients_have,
            give_gateways_nothing_of_their_own,
        ],
        of=2,
    ),
    ids=lambda fault: fault.__name__,
)
def test_a_fault_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(GatewayScenario(f"gateways-{number}").play() for number in range(SEEDS_OF_FAULTS))
