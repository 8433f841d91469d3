"""What the router keeps of sets of filters, and how much of it."""

from __future__ import annotations

import pytest

from angarium.topic import parse_filter
from angarium_server.costs import RESOLVED_SESSION_BYTES
from router.sessions import interest as interest_module
from router.sessions.interest import Filter, FilterSet, Interest

TABLE = bytes(1024)


def _subscribe(interest: Interest[str], text: str, *sessions: str) -> Filter[str]:
    parsed = parse_filter(text)
    made = interest.find(1, parsed, False) or interest.create(1, parsed, False, TABLE)
    for session in sessions:
        interest.join(made, session, text)
    return made


def _sets(interest: Interest[str], count: int, members: int) -> list[FilterSet[str]]:
    """Make sets of two filters that have the same members."""
    sets = []
    for n in range(count):
        sessions = [f"{n}.{m}" for m in range(members)]
        filters = [_subscribe(interest, text, *sessions) for text in (f"{n}/>", f"{n}/a")]
        sets.append(interest.use_set([one.id for one in filters]))
    return sets


def _counts(sets: list[FilterSet[str]]) -> list[int]:
    return [0 if a_set.sessions is None else len(a_set.sessions) for a_set in sets]


def _leave(interest: Interest[str], a_set: FilterSet[str], session: str) -> None:
    for one in a_set.filters:
        interest.leave(one, session, one.pattern)


def test_the_same_filters_are_one_set_until_nobody_uses_it() -> None:
    interest: Interest[str] = Interest()
    one = _subscribe(interest, "a/>", "s")
    first, second = interest.use_set([one.id]), interest.use_set([one.id])
    assert first is second
    interest.drop_set(first)
    interest.validate()
    assert interest.freed_bytes == 0
    interest.drop_set(first)
    assert interest.freed_bytes == first.bytes
    assert interest.use_set([one.id]) is not first


def test_the_sessions_of_one_filter_are_its_members_and_cost_nothing() -> None:
    interest: Interest[str] = Interest()
    one = _subscribe(interest, "a/>", "s", "t")
    a_set = interest.use_set([one.id])
    assert list(interest.resolve(a_set)) == ["s", "t"]
    interest.leave(one, "s", "a/>")
    assert list(interest.resolve(a_set)) == ["t"]
    interest.leave(one, "t", "a/>")
    assert not interest.resolve(a_set)
    assert interest.resolved_bytes == 0
    interest.validate()


def test_a_set_leaves_out_filters_that_are_gone() -> None:
    interest: Interest[str] = Interest()
    one, other = _subscribe(interest, "a/>", "s"), _subscribe(interest, "a/b", "t")
    interest.leave(one, "s", "a/>")
    assert interest.use_set([one.id, other.id]) is interest.use_set([other.id])
    assert not interest.resolve(interest.use_set([one.id]))
    interest.validate()


@pytest.mark.requirement("R279")
def test_sessions_of_sets_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_module, "RESOLVED_BYTES_MAX", 3 * 10 * RESOLVED_SESSION_BYTES)
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=5, members=10)
    for a_set in sets:
        assert len(interest.resolve(a_set)) == 10
        interest.validate()
    assert _counts(sets) == [0, 0, 10, 10, 10]
    assert len(interest.resolve(sets[0])) == 10
    assert _counts(sets) == [10, 0, 0, 10, 10]


@pytest.mark.requirement("R279")
def test_sessions_that_are_gone_are_forgotten_by_sets_that_nobody_uses() -> None:
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=3, members=2)
    for a_set in sets:
        interest.resolve(a_set)
    _leave(interest, sets[1], "1.0")
    interest.sweep()
    interest.validate()
    assert [list(a_set.sessions or ()) for a_set in sets] == [["0.0", "0.1"], [], ["2.0", "2.1"]]
    assert list(interest.resolve(sets[1])) == ["1.1"]


@pytest.mark.requirement("R279")
def test_a_sweep_does_a_bounded_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_module, "_SWEPT_SETS_MAX", 2)
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=5, members=1)
    for a_set in sets:
        interest.resolve(a_set)
    for a_set in sets:
        _leave(interest, a_set, next(iter(a_set.sessions or ())))
    left = []
    for _ in range(3):
        interest.sweep()
        interest.validate()
        left.append(sum(_counts(sets)))
    assert left == [3, 1, 0]
