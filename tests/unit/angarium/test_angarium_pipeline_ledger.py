"""The ledger of a publisher whose messages still come."""

from __future__ import annotations

import random

import pytest

from angarium.pipeline.report.live import Ledger

pytestmark = pytest.mark.requirement("R221")


def test_what_is_awaited_counts_as_missing_until_it_comes() -> None:
    ledger = Ledger(100)
    for number in (1, 2, 5):
        ledger.numbering.see(number, number, number)
    row = ledger.row()
    assert (row["missing"], row["gaps"], row["highest"], row["runs"], row["restarts"]) == (2, 1, 5, 1, 0)
    assert row["largest"] == [{"missing": 2, "first": 3, "last": 4, "at_ms": 5}]
    again = Ledger.from_bytes(ledger.to_bytes())
    again.numbering.see(4, 4, 6)
    assert again.row()["missing"] == 1


def test_nothing_came() -> None:
    row = Ledger(100).row()
    assert (row["runs"], row["restarts"], row["highest"], row["largest"]) == (0, 0, None, [])


def test_a_publisher_that_begins_anew_again_and_again_stays_small() -> None:
    chance, ledger = random.Random(3), Ledger(10)
    for place in range(2000):
        ledger.numbering.see(chance.randrange(1 << 60), place, place)
        if place % 100 == 0:
            ledger = Ledger.from_bytes(ledger.to_bytes())
    row = ledger.row()
    assert row["numbered"] == 2000
    assert len(row["largest"]) == 10
    assert len(ledger.to_bytes()) < 10_000
