"""Who gets a message: values of all filters that match, whatever came and went before; and a bounded memory of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.topic import matches
from gateway import fanout
from gateway.fanout import FanOut

PATTERNS = ("a", "a/b", "a/>", "*", "*/b", ">", "b*/a", "#P2P/a", "$a/>")
TOPICS = ("a", "a/b", "b", "b/a", "a/b/c", "bb/a", "#P2P/a", "$a/b", "#x")
pairs = st.tuples(st.sampled_from(PATTERNS), st.integers(0, 3))
steps = st.lists(
    st.one_of(
        pairs.map(lambda pair: ("change", pair)),
        st.sampled_from(TOPICS).map(lambda topic: ("find", topic)),
        st.just(("sweep", None)),
    ),
    max_size=40,
)


def plan(topic: str, values: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    return topic, values


def bytes_of(plan: tuple[str, tuple[int, ...]]) -> int:
    return 16 * len(plan[1])


@pytest.mark.slow
@given(steps=steps)
def test_a_plan_is_of_what_matches_now(steps: list[tuple[str, Any]]) -> None:
    fan_out = FanOut(plan, bytes_of)
    there: set[tuple[str, int]] = set()
    now = 0.0
    for what, argument in steps:
        now += 10.0
        if what == "sweep":
            fan_out.sweep(now)
        elif what == "find":
            topic, values = fan_out.find(argument)
            assert topic == argument
            assert sorted(values) == sorted({value for one, value in there if matches(one, argument)})
        elif argument in there:
            there.remove(argument)
            fan_out.remove(*argument)
        else:
            there.add(argument)
            fan_out.add(*argument)
        assert len(fan_out) == len(there)
        fan_out.validate()


def test_a_plan_is_made_once_until_a_filter_that_matches_changes() -> None:
    made: list[str] = []

    def counted(topic: str, values: tuple[int, ...]) -> tuple[int, ...]:
        made.append(topic)
        return values

    fan_out = FanOut(counted, len)
    fan_out.add("a/>", 1)
    fan_out.add("a/>", 2)
    assert fan_out.find("a/b") == fan_out.find("a/b") == (1, 2)
    fan_out.add("b/*", 3)
    assert fan_out.find("a/b") == (1, 2)
    assert made == ["a/b"]
    fan_out.remove("a/>", 1)
    assert fan_out.find("a/b") == (2,)
    assert made == ["a/b", "a/b"]


def test_what_is_not_there_cannot_be_removed() -> None:
    fan_out = FanOut(plan, bytes_of)
    fan_out.add("a/>", 1)
    for pattern, value in (("a/>", 2), ("a", 1), ("b/>", 1)):
        with pytest.raises(KeyError):
            fan_out.remove(pattern, value)
    fan_out.validate()


def test_plans_are_bounded_in_number_and_by_what_went_into_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "KNOWN_TOPICS_MAX", 50)
    few = FanOut(plan, bytes_of)
    monkeypatch.setattr(fanout, "KNOWN_BYTES_MAX", 100_000)
    small = FanOut(plan, bytes_of)
    for value in range(1_000):
        small.add(">", value)
    for number in range(200):
        few.find(f"a/{number}")
        small.find(f"a/{number}")
    few.validate()
    small.validate()
    assert len(few._cache) == 50
    assert 1 <= len(small._cache) <= 100_000 // 16_000


def test_who_left_is_not_held_by_the_plans_of_topics_that_nobody_publishes_to() -> None:
    fan_out = FanOut(plan, bytes_of)
    fan_out.add("a/>", 1)
    for number in range(1_000):
        fan_out.find(f"a/{number}")
    fan_out.remove("a/>", 1)
    for _ in range(10):
        fan_out.sweep(0.0)
    assert len(fan_out._cache) == 0
    assert fan_out._cache.bytes == 0
