"""Offsets: what a checkpoint holds of queues, and what is read between two of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from angarium.errors import InvalidRequestError
from angarium.spark.offsets import (
    INITIAL,
    SPLITS_MAX,
    Lane,
    Offset,
    Range,
    check,
    parse,
    ranges,
    share,
    split,
)

pytestmark = pytest.mark.requirement("R221")

A0, A1, B0 = Lane("a", 0), Lane("a", 1), Lane("b", 0)
FIRST = Offset(
    "n1",
    "default",
    "g",
    {"a": 17, "b": 3},
    {A0: 11, A1: 5, B0: 1},
    {A0: 10, A1: 3, B0: 0},
    {A0: 1, A1: 2, B0: 1},
)
SECOND = replace(FIRST, positions={A0: 21, A1: 5, B0: 4}, messages={A0: 19, A1: 3, B0: 3}, begins={})


def test_an_offset_survives_the_checkpoint() -> None:
    for offset in (FIRST, SECOND):
        text = json.dumps(offset.to_json())
        assert parse(json.loads(text)) == offset
        assert json.dumps(json.loads(text)) == text
    assert FIRST.to_json()["endpoints"]["17"] == {
        "queue": "a",
        "positions": {"0": 11, "1": 5},
        "messages": {"0": 10, "1": 3},
    }


def test_the_initial_offset_says_nothing() -> None:
    assert parse(INITIAL) is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({}, "version None"),
        ({"version": 2}, "version 2"),
        ({"version": 1, "endpoints": []}, "cannot be read"),
        ({"version": 1, "endpoints": {"17": {}}}, "cannot be read"),
        (
            {"version": 1, "endpoints": {"x": {"queue": "a", "positions": {}, "messages": {}}}},
            "cannot be read",
        ),
    ],
)
def test_an_offset_that_is_not_ours_is_refused(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        parse(raw)


def test_the_first_batch_starts_where_it_was_planned_to() -> None:
    """Spark gives the initial offset again when it repeats the first batch."""
    assert ranges(None, FIRST) == [Range(A0, 1, 11, 10), Range(A1, 2, 5, 3)]


def test_later_batches_start_where_the_one_before_ended() -> None:
    assert ranges(FIRST, SECOND) == [Range(A0, 11, 21, 9), Range(B0, 1, 4, 3)]
    assert ranges(SECOND, SECOND) == []


def test_a_partition_that_was_added_begins_where_its_first_batch_says() -> None:
    more = replace(
        SECOND,
        positions={**SECOND.positions, Lane("b", 1): 7},
        messages={**SECOND.messages, Lane("b", 1): 2},
        begins={Lane("b", 1): 5},
    )
    assert ranges(SECOND, more) == [Range(Lane("b", 1), 5, 7, 2)]


def test_a_partition_that_was_taken_away_is_read_no_more() -> None:
    fewer = replace(
        SECOND,
        positions={A0: 30, B0: 4},
        messages={A0: 28, B0: 3},
    )
    assert ranges(SECOND, fewer) == [Range(A0, 21, 30, 9)]


def test_a_batch_that_does_not_say_where_it_begins_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="where partition 0 of 'a' begins"):
        ranges(None, SECOND)


def test_a_checkpoint_of_the_same_queues_is_taken() -> None:
    check(FIRST, replace(FIRST, positions={}, messages={}), None)
    check(FIRST, FIRST, "g")


@pytest.mark.parametrize(
    ("now", "group", "why"),
    [
        (replace(FIRST, node="n2"), None, "of node 'n1', and the query reads from node 'n2'"),
        (replace(FIRST, vpn="test"), None, "Message VPN 'default'"),
        (replace(FIRST, endpoints={"a": 17}), None, "of queues 'a', 'b', and option queue names queue 'a'"),
        (replace(FIRST, endpoints={"a": 18, "b": 3}), None, "queue 'a' that was deleted"),
        (FIRST, "other", "reader group 'g', and option group is 'other'"),
    ],
)
def test_a_checkpoint_of_something_else_says_of_what(now: Offset, group: str | None, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        check(FIRST, now, group)


def test_a_range_is_one_task_unless_more_are_asked_for() -> None:
    found = [Range(A0, 1, 101, 90), Range(B0, 1, 11, 10)]
    assert split(found, None, None) == found
    assert split(found, 1000, 2) == found
    assert split([], 5, 5) == []


def test_a_large_backlog_is_divided() -> None:
    parts = split([Range(A0, 1, 101, 90), Range(B0, 1, 11, 10)], 40, None)
    assert parts == [
        Range(A0, 1, 34, -1),
        Range(A0, 34, 67, -1),
        Range(A0, 67, 101, -1),
        Range(B0, 1, 11, 10),
    ]
    assert len(split([Range(A0, 1, 101, 100)], None, 8)) == 8


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=5),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 100),
)
def test_what_is_divided_is_whole(lengths: list[int], most: int | None, least: int | None) -> None:
    found = [Range(Lane("a", at), 5, 5 + length, length) for at, length in enumerate(lengths)]
    parts = split(found, most, least)
    assert len(parts) <= SPLITS_MAX + len(found)
    for one in found:
        own = [part for part in parts if part.lane == one.lane]
        assert own[0].first == one.first
        assert own[-1].end == one.end
        assert all(before.end == after.first for before, after in pairwise(own))
        assert all(part.first < part.end for part in own)


def test_a_limit_is_shared_and_what_one_does_not_need_the_others_get() -> None:
    assert share(None, {"a": 5, "b": 0}) == {"a": None}
    assert share(100, {"a": 10, "b": 1000, "c": 1000}) == {"a": 10, "b": 45, "c": 45}
    assert share(100, {"a": 10, "b": 20}) == {"a": 10, "b": 20}
    assert share(1, {"a": 10, "b": 20}) == {"a": 1}
    assert share(5, {}) == {}


@given(
    st.integers(1, 10**6), st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10**5), max_size=6)
)
def test_a_limit_is_kept_and_used(limit: int, backlogs: dict[str, int]) -> None:
    shares = share(limit, backlogs)
    given_out = sum(part or 0 for part in shares.values())
    assert given_out == min(limit, sum(backlogs.values()))
    assert all(0 < (part or 0) <= backlogs[queue] for queue, part in shares.items())
