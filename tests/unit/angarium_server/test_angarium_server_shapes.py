"""Shapes bound how many filters match one topic, and what the search for them visits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium.topic import has_wildcard, matches
from angarium.trie import FilterTrie
from angarium_server.shapes import Shapes, shape_of

pytestmark = pytest.mark.requirement("R278")

_LEVELS = ["a", "ab", "abc", "b"]
TOPICS = st.lists(st.sampled_from(_LEVELS), min_size=1, max_size=4).map("/".join)
PATTERNS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.sampled_from([*_LEVELS, "*", "a*", "ab*", "b*"]), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
)


@pytest.mark.parametrize(
    ("pattern", "share", "shape"),
    [
        ("devices/4711/*", None, "//*"),
        ("devices/47*/temp", None, "/2/"),
        ("devices/>", None, "/>"),
        (">", None, ">"),
        ("devices/4711/temp", None, None),
        ("a*b/c", None, None),
        ("a/*", "group", "group=/*"),
        ("a/b", "group", "group="),
    ],
)
def test_a_shape_is_where_the_wildcards_stand(pattern: str, share: str | None, shape: str | None) -> None:
    assert shape_of(pattern, share) == shape


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=40, unique=True), TOPICS)
def test_one_topic_matches_at_most_one_filter_of_each_shape(patterns: list[str], topic: str) -> None:
    found = [shape_of(one) for one in patterns if has_wildcard(one) and matches(one, topic)]
    assert len(found) == len(set(found))


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=40, unique=True), TOPICS)
def test_a_search_visits_no_more_nodes_than_shapes_at_each_level(patterns: list[str], topic: str) -> None:
    shapes = Shapes()
    trie: FilterTrie[int] = FilterTrie()
    for pattern in patterns:
        shape = shape_of(pattern)
        if shape is not None:
            shapes.add(shape)
            trie.add(pattern, 1)
    visited = trie.search(topic, [], 1_000_000)
    assert isinstance(visited, int)
    # The three roots, and the lookups of up to three lengths of prefixes for each node.
    assert visited <= 3 + len(shapes) * (topic.count("/") + 2) * 2


def test_shapes_are_counted_as_long_as_a_filter_has_them() -> None:
    shapes = Shapes()
    for one in ("/*", "/*", "/>"):
        shapes.add(one)
    shapes.remove("/*")
    assert ("/*" in shapes, len(shapes)) == (True, 2)
    shapes.remove("/*")
    assert ("/*" in shapes, len(shapes)) == (False, 1)


def test_a_hundred_thousand_devices_have_one_shape_and_overlapping_levels_very_many() -> None:
    assert len({shape_of(f"devices/{number}/*") for number in range(100_000)}) == 1
    overlapping = ["/".join(levels) for levels in itertools.product(("a*", "*"), repeat=10)]
    assert len({shape_of(one) for one in overlapping}) == 1024
