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
    filters = [_subscribe(interest, f"{n}/>", *[f"{n}.{m}" for m in range(members)]) for n in range(count)]
    return [interest.use_set([one.id]) for one in filters]


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


@pytest.mark.requirement("R279")
def test_sessions_of_sets_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_module, "RESOLVED_BYTES_MAX", 3 * 10 * RESOLVED_SESSION_BYTES)
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=5, members=10)
    for a_set in sets:
        assert len(interest.resolve(a_set)) == 10
        interest.validate()
    assert [len(a_set.sessions) for a_set in sets] == [0, 0, 10, 10, 10]
    assert len(interest.resolve(sets[0])) == 10
    assert [len(a_set.sessions) for a_set in sets] == [10, 0, 0, 10, 10]


@pytest.mark.requirement("R279")
def test_sessions_that_are_gone_are_forgotten_by_sets_that_nobody_uses() -> None:
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=3, members=2)
    for a_set in sets:
        interest.resolve(a_set)
    (leaving,) = sets[1].filters
    interest.leave(leaving, "1.0", "1/>")
    interest.sweep()
    interest.validate()
    assert [list(a_set.sessions) for a_set in sets] == [["0.0", "0.1"], [], ["2.0", "2.1"]]
    assert list(interest.resolve(sets[1])) == ["1.1"]


@pytest.mark.requirement("R279")
def test_a_sweep_does_a_bounded_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_module, "_SWEPT_SETS_MAX", 2)
    interest: Interest[str] = Interest()
    sets = _sets(interest, count=5, members=1)
    for a_set in sets:
        interest.resolve(a_set)
    for a_set in sets:
        interest.leave(a_set.filters[0], next(iter(a_set.sessions)), a_set.filters[0].pattern)
    left = []
    for _ in range(3):
        interest.sweep()
        interest.validate()
        left.append(sum(len(a_set.sessions) for a_set in sets))
    assert left == [3, 1, 0]
