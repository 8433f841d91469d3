"""Waits between attempts: random ones that grow, and how late what comes back is seen."""

from __future__ import annotations

from itertools import accumulate, islice, pairwise

import pytest

from angarium.client.connection.backoff import EAGER, FIRST_S, RELUCTANT, waits


def test_waits_grow_to_the_longest_one() -> None:
    found = list(islice(waits(5.0, RELUCTANT), 200))
    assert FIRST_S / 2 <= found[0] <= FIRST_S
    assert all(5.0 / 2 <= one <= 5.0 for one in found[20:])
    assert len(set(found)) == len(found), "clients that were interrupted together do not come back together"


@pytest.mark.requirement("R271")
def test_what_is_there_after_a_hand_over_is_seen_soon_after() -> None:
    for _ in range(1_000):
        tries = list(accumulate(islice(waits(3.0, EAGER), 20), initial=0.0))
        late = max(after - before for before, after in pairwise(tries) if before < 0.75)
        assert late < 0.45, tries
