"""Sets of positions against Python's sets, and what an absurd range costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from node.backlog.backlog import PositionSet

if TYPE_CHECKING:
    from collections.abc import Iterable

spans = st.tuples(st.integers(0, 5000), st.integers(0, 1500)).map(lambda span: (span[0], span[0] + span[1]))
changes = st.lists(st.tuples(st.booleans(), spans), max_size=30)


def runs_of(positions: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and runs[-1][1] == position - 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


def flat(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [position for first, last in runs for position in range(first, last + 1)]


@given(changes)
def test_a_position_set_is_a_set_of_positions(changes: list[tuple[bool, tuple[int, int]]]) -> None:
    positions, model = PositionSet(), set[int]()
    for adds, (first, last) in changes:
        span = set(range(first, last + 1))
        if adds:
            positions.add(first, last)
            model |= span
        else:
            assert positions.remove(first, last) == runs_of(model & span)
            model -= span
        positions.validate()
        assert positions.count == len(model)
        assert flat(positions.runs()) == sorted(model)
        for probe in (first - 1, first, last, last + 1):
            assert probe < 0 or (probe in positions) == (probe in model)
    first_run = positions.first_run()
    if first_run is None:
        assert not model
    else:
        assert first_run[0] == min(model)
        assert set(flat([first_run])) <= model


def test_a_range_costs_what_it_removes_and_not_its_width() -> None:
    positions = PositionSet()
    positions.add(10, 20)
    positions.add(1 << 40, (1 << 40) + 5)
    assert positions.remove(21, (1 << 40) - 1) == []
    assert positions.remove(-(1 << 70), 1 << 70) == [(10, 20), (1 << 40, (1 << 40) + 5)]
    assert positions.remove(-(1 << 70), 1 << 70) == []
    assert positions.remove(30, 3) == []
    assert positions.count == 0
    positions.validate()


def test_a_range_that_ends_before_it_begins_removes_nothing() -> None:
    positions = PositionSet()
    positions.add(0, 5000)
    assert positions.remove(3000, 1000) == []
    assert positions.remove(3000, 2999) == []
    assert positions.count == 5001


def test_scattered_positions_stay_small() -> None:
    positions = PositionSet()
    for position in range(0, 100_000, 2):
        positions.add(position, position)
    size = sys.getsizeof(positions._chunks) + sys.getsizeof(positions._keys)
    size += sum(sys.getsizeof(mask) for mask in positions._chunks.values())
    assert positions.count == 50_000
    assert size < 50_000


def test_clear_removes_everything() -> None:
    positions = PositionSet()
    positions.add(1, 5000)
    positions.clear()
    assert positions.count == 0
    assert positions.first_run() is None
    assert 7 not in positions
    positions.validate()
