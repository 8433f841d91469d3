"""What is missing, doubled or out of order in the numbers of a publisher."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.pipeline.report.numbering import GAPS_KEPT, Gap, Numbering

if TYPE_CHECKING:
    from angarium.pipeline.report.numbering import Run

pytestmark = pytest.mark.requirement("R221")


def read(numbers: list[int], reorder: int = 1000, contents: list[int] | None = None) -> list[Run]:
    """Read numbers; each has other content than all others but where contents are given."""
    numbering = Numbering(reorder)
    for place, number in enumerate(numbers):
        numbering.see(number, contents[place] if contents else place, place)
    return numbering.close()


def figures(runs: list[Run]) -> list[tuple[int, int, int, int]]:
    return [(run.first, run.high, run.missing, run.out_of_order) for run in runs]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3], [(1, 3, 0, 0)]),
        ([7], [(7, 7, 0, 0)]),
        ([1, 2, 4, 3, 6], [(1, 6, 1, 1)]),
        ([1, 5, 2, 3], [(1, 5, 1, 2)]),
        ([3, 1, 2], [(1, 3, 0, 2)]),
        ([3, 1, 4], [(1, 4, 1, 1)]),
        ([1, 2, 3, 1, 2], [(1, 3, 0, 0), (1, 2, 0, 0)]),
        ([5000, 5001, 1, 2], [(5000, 5001, 0, 0), (1, 2, 0, 0)]),
        ([9998, 9999, 1, 10000, 2, 10002], [(9998, 10002, 1, 0), (1, 2, 0, 0)]),
        ([1, 10**15], [(1, 10**15, 10**15 - 2, 0)]),
    ],
)
def test_numbers_in_the_order_of_arrival(
    numbers: list[int], expected: list[tuple[int, int, int, int]]
) -> None:
    assert figures(read(numbers)) == expected


def test_the_same_number_with_the_same_content_is_a_duplicate_and_with_other_content_a_restart() -> None:
    (run,) = read([1, 2, 2, 1, 3], contents=[10, 20, 20, 10, 30])
    assert (run.duplicates, run.numbered, run.missing, run.out_of_order) == (2, 3, 0, 0)
    assert len(read([1, 2, 2, 3], contents=[10, 20, 21, 30])) == 2


def test_a_number_is_awaited_only_so_long() -> None:
    late = [*range(1, 50), *range(51, 1050), 50]
    assert figures(read(late, reorder=1000)) == [(1, 1049, 0, 1)]
    assert figures(read(late, reorder=999)) == [(1, 1049, 1, 0), (50, 50, 0, 0)]


def test_the_largest_gaps_are_kept_with_the_time_at_which_they_showed() -> None:
    numbers, number = [0], 0
    for size in range(1, GAPS_KEPT + 5):
        number += size + 1
        numbers.append(number)
    (run,) = read(numbers)
    assert run.gaps == GAPS_KEPT + 4
    assert run.missing == sum(range(1, GAPS_KEPT + 5))
    assert [gap.missing for gap in run.largest] == list(range(5, GAPS_KEPT + 5))
    assert run.largest[-1] == Gap(GAPS_KEPT + 4, number - GAPS_KEPT - 4, number - 1, GAPS_KEPT + 4)


@given(
    lost=st.sets(st.integers(0, 400), max_size=100),
    spread=st.integers(0, 30),
    copies=st.lists(st.integers(0, 400), max_size=20),
    seed=st.integers(0, 1 << 30),
)
def test_shuffled_numbers_with_losses_and_copies_are_counted_as_a_set_counts_them(
    lost: set[int], spread: int, copies: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    sent = [number for number in range(401) if number not in lost]
    numbers = sorted(
        sent + [one for one in copies if one in sent], key=lambda n: n + chance.random() * spread
    )
    if not numbers:
        return
    (run,) = read(numbers, contents=numbers)
    came = set(numbers)
    absent = [number for number in range(min(came), max(came)) if number not in came]
    assert run.missing == len(absent)
    assert run.gaps == sum(number - 1 in came for number in absent)
    assert run.numbered == len(came)
    assert run.duplicates == len(numbers) - len(came)
    highest, behind = -1, 0
    for number in dict.fromkeys(numbers):
        behind += number < highest
        highest = max(highest, number)
    assert run.out_of_order == behind


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(0, 60))
def test_a_numbering_goes_on_from_its_state_as_if_nothing_had_been(numbers: list[int], cut: int) -> None:
    whole, part = Numbering(20), Numbering(20)
    for place, number in enumerate(numbers):
        if place == cut:
            part = Numbering.from_state(part.to_state())
        whole.see(number, number % 7, place)
        part.see(number, number % 7, place)
    assert part.close() == whole.close()


def test_memory_is_bounded_by_what_is_awaited() -> None:
    numbering = Numbering(100)
    for number in range(0, 40_000, 2):
        numbering.see(number, number, number)
        assert len(numbering.open[-1].seen) <= 201
        assert len(numbering.open[-1].holes) <= 51
    chance = random.Random(1)
    for _ in range(5000):
        numbering.see(chance.randrange(1 << 60), 0, 0)
        assert sum(len(run.seen) for run in numbering.open) <= 402
        numbering.take_closed()
