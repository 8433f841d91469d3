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
            found = fan_out.find(argument)
            assert found is not None
            topic, values = found
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


#: Filters of 10 levels that overlap: a topic of them visits 2,047 nodes.
OVERLAPPING = ["/".join("a" if number >> bit & 1 else "*" for bit in range(10)) for number in range(1_024)]


def test_a_lookup_that_is_dear_goes_on_in_later_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "TURN_NODES", 100)
    fan_out = FanOut(plan, bytes_of)
    for value, pattern in enumerate(OVERLAPPING):
        fan_out.add(pattern, value)
    topic = "/".join("a" * 10)
    turns, found = 0, None
    while found is None:
        assert turns < 100
        turns += 1
        fan_out.begin_turn()
        found = fan_out.find(topic)
        fan_out.validate()
        assert fan_out.is_over or found is not None
    assert sorted(found[1]) == list(range(len(OVERLAPPING)))
    assert turns > 2_047 // (100 + 256), "a step of the search is as long as a turn"
    monkeypatch.setattr(fanout, "TURN_NODES", 1)
    fan_out.begin_turn()
    assert fan_out.find(topic) is found
    assert not fan_out.is_over, "what is known costs nothing"


@given(changes=st.lists(st.integers(0, 2 * len(OVERLAPPING) - 1), min_size=1, max_size=30), data=st.data())
def test_who_leaves_while_a_lookup_waits_is_not_found_and_who_stays_is(changes: list[int], data: Any) -> None:
    """Values from 1,024 on have filters that are not there at the beginning."""
    fan_out = FanOut(plan, bytes_of)
    there = dict(enumerate(OVERLAPPING))
    for value, pattern in there.items():
        fan_out.add(pattern, value)
    stayed, topic = set(there), "/".join("a" * 10)
    found = None
    while found is None:
        fan_out.begin_turn()
        fan_out._turn.nodes_left = 200
        found = fan_out.find(topic)
        if found is None and changes and data.draw(st.booleans()):
            value = changes.pop()
            if value in there:
                stayed.discard(value)
                fan_out.remove(there.pop(value), value)
            else:
                there[value] = OVERLAPPING[value % 1_024]
                fan_out.add(there[value], value)
    assert stayed <= set(found[1]) <= set(there)
    fan_out.begin_turn()
    again = fan_out.find(topic)
    assert again is not None
    assert set(again[1]) == set(there), "what came meanwhile is looked at again"
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
