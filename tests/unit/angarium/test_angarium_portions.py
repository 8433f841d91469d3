"""Portions of an iterable for the thread of a client, with a clock that the iterable turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import Message
from angarium.blocking.portions import PORTION_BYTES, STEP_MESSAGES, portions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.slots import Publishable


class Source:
    """Gives messages of some bytes, each so long after the one before, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.given = 0
        monkeypatch.setattr("angarium.blocking.portions.time.monotonic", lambda: self.now)

    def messages(self, count: int, size: int = 10, *, each_s: float = 0.0) -> Iterator[Publishable]:
        for number in range(count):
            self.now += each_s
            self.given += 1
            yield f"a/{number}", bytes(size)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    return Source(monkeypatch)


def test_a_fast_iterable_is_cut_by_the_number_of_messages(source: Source) -> None:
    found = list(portions(source.messages(5_000), 2_000))
    assert [len(portion) for portion in found] == [2_000, 2_000, 1_000]
    assert [topic for portion in found for topic, _ in portion] == [f"a/{n}" for n in range(5_000)]  # type: ignore[misc]


def test_what_a_slow_iterable_gives_does_not_wait_for_the_next(source: Source) -> None:
    for number, portion in enumerate(portions(source.messages(10, each_s=1.0), 2_000), 1):
        assert [topic for topic, _ in portion] == [f"a/{number - 1}"]  # type: ignore[misc]
        assert source.given == number


def test_an_iterable_that_becomes_slow_keeps_few_back_and_that_once(source: Source) -> None:
    def messages() -> Iterator[Publishable]:
        yield from source.messages(3_000)
        yield from source.messages(500, each_s=1.0)

    sizes = [len(portion) for portion in portions(messages(), 2_000)]
    assert sum(sizes) == 3_500
    assert sizes[0] == 2_000
    assert all(size <= 1_000 + STEP_MESSAGES for size in sizes[1:2])
    assert set(sizes[2:]) == {1}


@pytest.mark.parametrize("size", [1, 1_000, 100_000, 1 << 20, 20 << 20])
def test_large_messages_are_few(source: Source, size: int) -> None:
    found = []
    for portion in portions(source.messages(40, size), 2_000):
        found.append(len(portion))
        assert sum(len(payload) for _, payload in portion) <= max(2 * PORTION_BYTES, size)  # type: ignore[misc]
    assert sum(found) == 40


def test_messages_made_before_have_sizes_too(source: Source) -> None:
    whole = Message("a", bytes(PORTION_BYTES))
    assert [len(portion) for portion in portions(iter([whole] * 3), 2_000)] == [1, 1, 1]
    assert source.given == 0


def test_what_an_iterable_gave_before_it_raised_comes_first(source: Source) -> None:
    def messages() -> Iterator[Publishable]:
        yield from source.messages(100)
        raise KeyError("the next line")

    found = portions(messages(), 2_000)
    assert len(next(found)) == 100
    with pytest.raises(KeyError, match="the next line"):
        next(found)


def test_what_is_no_message_is_left_to_who_publishes_it(source: Source) -> None:
    wrong = [7, (), ("a",), ("a", 5), None]
    assert [one for portion in portions(iter(wrong), 2_000) for one in portion] == wrong  # type: ignore[arg-type]
    assert list(portions(iter(()), 2_000)) == []
    assert source.given == 0
