"""How random tests are judged, and what the hash of a password costs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from cluster.security import passwords
from router.access import handshake
from tests import characters

if TYPE_CHECKING:
    from collections.abc import Iterator

# Random tests are judged by what they find, not by how long an example took: the machine may be busy.
# None says how many examples it takes: here is the share of all.
settings.register_profile(
    "long", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=400
)
settings.register_profile("short", settings.get_profile("long"), max_examples=10)

# A hash says what it cost, so a cheap one is compared as any other. Some are made when a module is imported.
_USUAL_COST = passwords.COST
pytest.MonkeyPatch().setattr(passwords, "COST", 1 << 4)
pytest.MonkeyPatch().setattr(handshake, "DUMMY_HASH", passwords.unfitting())


def pytest_configure(config: pytest.Config) -> None:
    """Say how many examples random tests have; before their modules are imported.

    Hypothesis parses all of our modules for constants that examples may have; few examples have room for hardly any.
    """
    is_long = config.getoption("--long")
    settings.load_profile("long" if is_long else "short")
    characters.tell()
    if not is_long:
        none = providers._local_constants
        pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: none)


@pytest.fixture
def usual_cost() -> Iterator[None]:
    """Have passwords hashed as outside of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", _USUAL_COST)
        yield
