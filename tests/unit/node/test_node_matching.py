"""Numbered filter sets, and the four sets of a topic."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.topic import SLOTS, matches
from angarium.wire import KIND_DELIVER_ALWAYS, KIND_PLAIN, KIND_SHARED
from angarium_server.frames.matching import SetDefinition, Start
from node.config import WorkerConfig
from node.matching import matching as matching_module
from node.matching import worker as worker_module
from node.matching.matching import EMPTY_SET, FilterSets, Matching, TopicEntry, VpnMatching, describe
from node.matching.worker import Worker

VPN = 1
# So few that filters meet topics most of the time.
TOPICS = st.sampled_from(["a", "a/b", "ab/b", "$S/b", "c"])
PATTERNS = st.sampled_from(["a", "a/b", "a*/b", "*/b", ">", "*", "a/>", "$S/*"])
KINDS = st.sampled_from([KIND_PLAIN, KIND_DELIVER_ALWAYS, KIND_SHARED])


def _look_up(matching: Matching, topic: str, vpn_id: int = VPN) -> TopicEntry:
    vpn = matching.vpn(vpn_id)
    return vpn.cache.get(topic) or _matched(vpn, topic)


def _matched(vpn: VpnMatching, topic: str) -> TopicEntry:
    found = vpn.match(topic, sys.maxsize)
    assert isinstance(found, TopicEntry)
    return found


def _ids(entry: TopicEntry) -> tuple[tuple[int, ...], ...]:
    sets = (entry.plain, entry.choice, entry.always, entry.dto_choice)
    return tuple(one.filter_ids for one in sets)


def test_the_same_filters_are_the_same_set() -> None:
    sets = FilterSets()
    first, second, other = sets.acquire((1, 2)), sets.acquire((1, 2)), sets.acquire((2,))
    assert first is second
    assert (first.id, other.id) == (1, 2)
    sets.validate({1: 2, 2: 1})


def test_no_filters_are_the_empty_set_which_needs_no_definition_and_is_never_retired() -> None:
    sets = FilterSets()
    empty = sets.acquire(())
    assert empty is EMPTY_SET
    assert empty.id == 0
    sets.release(empty)
    assert describe([empty]) == []
    assert sets.retire({}) == []
    sets.validate({})


def test_a_set_is_defined_once() -> None:
    sets = FilterSets()
    one = sets.acquire((3 << 3, 4 << 3))
    assert describe([one]) == [SetDefinition(1, (3, 4))]
    assert describe([one]) == []


def test_a_set_without_references_is_retired_unless_it_is_in_use() -> None:
    sets = FilterSets()
    one = sets.acquire((3,))
    describe([one])
    sets.release(one)
    assert sets.retire({one.id: one}) == []
    assert sets.retire({}) == [1]
    assert sets.retire({}) == []
    assert len(sets) == 0
    sets.validate({})


def test_a_set_that_comes_back_before_it_was_retired_keeps_its_number() -> None:
    sets = FilterSets()
    one = sets.acquire((3,))
    describe([one])
    sets.release(one)
    assert sets.acquire((3,)) is one
    assert sets.retire({}) == []
    sets.validate({1: 1})


def test_a_number_is_never_used_again() -> None:
    sets = FilterSets()
    sets.release(sets.acquire((3,)))
    sets.retire({})
    assert sets.acquire((3,)).id == 2


def test_a_set_that_the_router_never_heard_of_is_forgotten_without_a_word() -> None:
    sets = FilterSets()
    sets.release(sets.acquire((3,)))
    assert sets.retire({}) == []
    assert len(sets) == 0


def test_one_result_retires_a_bounded_number_of_sets() -> None:
    sets = FilterSets()
    limit = matching_module.RETIRED_PER_RESULT_MAX
    for number in range(limit + 5):
        one = sets.acquire((number,))
        describe([one])
        sets.release(one)
    assert len(sets.retire({})) == limit
    assert len(sets.retire({})) == 5


def test_without_special_filters_all_go_to_the_plain_set_and_one_of_it_gets_a_dto_message() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10))
    matching.add(7, VPN, "a/*", KIND_PLAIN)
    matching.add(5, VPN, "a/b", KIND_PLAIN)
    assert _ids(_look_up(matching, "a/b")) == ((5, 7), (), (), (5, 7))
    assert _ids(_look_up(matching, "c")) == ((), (), (), ())
    matching.validate()


@pytest.mark.requirement("R21", "R22", "R81", "R83", "R85")
def test_each_kind_of_filter_is_in_the_sets_of_its_kind() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10))
    matching.add(1, VPN, "a/b", KIND_PLAIN)
    matching.add(2, VPN, "a/b", KIND_DELIVER_ALWAYS)
    matching.add(3, VPN, "a/*", KIND_SHARED)
    matching.add(4, VPN, "a/*", KIND_SHARED)
    assert _ids(_look_up(matching, "a/b")) == ((1, 2), (3, 4), (2,), (1, 3, 4))


def test_message_vpns_do_not_see_each_other() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10))
    matching.add(1, 1, "a", KIND_PLAIN)
    matching.add(2, 2, "a", KIND_PLAIN)
    assert _look_up(matching, "a", 1).plain.filter_ids == (1,)
    assert _look_up(matching, "a", 2).plain.filter_ids == (2,)
    assert _look_up(matching, "a", 3).plain.filter_ids == ()
    matching.validate()


def test_a_removed_filter_matches_no_more_and_other_topics_stay_cached() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10))
    matching.add(1, VPN, "a/*", KIND_PLAIN)
    matching.add(2, VPN, "b/*", KIND_PLAIN)
    kept, gone = _look_up(matching, "b/x"), _look_up(matching, "a/x")
    matching.remove(1)
    assert _look_up(matching, "a/x") is not gone
    assert _look_up(matching, "a/x").plain is EMPTY_SET
    assert _look_up(matching, "b/x") is kept
    matching.validate()


def test_removing_an_unknown_filter_and_adding_a_number_again_are_harmless() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10))
    matching.remove(9)
    matching.add(1, VPN, "a", KIND_PLAIN)
    matching.add(1, VPN, "b", KIND_SHARED)
    assert _ids(_look_up(matching, "a")) == ((), (), (), ())
    assert _ids(_look_up(matching, "b")) == ((), (1,), (), (1,))
    assert len(matching) == 1
    matching.validate()


def test_a_message_vpn_without_filters_is_forgotten_step_by_step() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=10_000))
    matching.add(1, VPN, ">", KIND_PLAIN)
    topics = 2 * 1_000 + 1
    for number in range(topics):
        _look_up(matching, f"t/{number}")
    matching.remove(1)
    assert matching.stats()["topics_cached"] == 0
    matching.validate()
    for _ in range(3):
        matching.tidy()
        matching.validate()
    assert matching.sets.retire({}) == []  # the set was never defined
    assert matching.stats() == dict.fromkeys(matching.stats(), 0)


def test_a_full_cache_releases_the_sets_of_the_topics_that_leave() -> None:
    matching = Matching(WorkerConfig(topic_cache_max=2))
    for number in range(1, 5):
        matching.add(number, VPN, f"t/{number}", KIND_PLAIN)
        describe([_look_up(matching, f"t/{number}").plain])
    matching.validate()
    assert matching.stats()["topics_cached"] == 2
    assert matching.stats()["topics_evicted"] == 2
    assert matching.sets.retire({}) == [1, 2]
    matching.validate()


@pytest.mark.requirement("R279")
def test_the_sets_of_the_cached_topics_count_towards_the_bytes_of_the_cache() -> None:
    matching = Matching(WorkerConfig(topic_cache_bytes=1 << 16))
    for number in range(1, 1_001):
        matching.add(number, VPN, f"{'*/' * (number % 5)}>", KIND_PLAIN)
    for number in range(50):
        matching.add(2_000 + number, VPN, f"t/{number}/a/b/c", KIND_PLAIN)
        _look_up(matching, f"t/{number}/a/b/c")
        matching.sets.retire(())
        matching.validate()
    assert 4 < matching.stats()["topics_cached"] < 10  # each has a set of 1,001 filters
    assert 1 << 15 < matching.stats()["cache_bytes"] <= 1 << 16


@pytest.mark.requirement("R279")
def test_a_step_retires_so_many_sets_and_fewer_if_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = FilterSets()
    limit = matching_module.RETIRED_PER_RESULT_MAX
    for number in range(limit + 50):
        sets.release(sets.acquire((number << 3,)))
    describe(sets._by_values.values())
    assert len(sets.retire(())) == limit
    monkeypatch.setattr(matching_module, "RETIRED_FILTERS_MAX", 10)
    assert len(sets.retire(())) == 10
    sets.release(sets.acquire(tuple(range(100))))
    assert sum(len(sets.retire(())) for _ in range(4)) == 40
    assert len(sets) == 1
    assert sets.retire(()) == [], "it was not defined"
    assert len(sets) == sets.idle_bytes == 0


@pytest.mark.requirement("R278", "R279")
def test_while_idle_sets_take_much_each_turn_retires_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "IDLE_BYTES_MAX", 0)
    monkeypatch.setattr(matching_module, "RETIRED_FILTERS_MAX", 10)
    worker = Worker(0, 1, WorkerConfig())
    worker.handle(Start(1, 1, bytes(SLOTS)).frames(), 0.0)
    sets = worker._matching.sets
    for number in range(25):
        sets.release(sets.acquire((number << 3,)))
    describe(sets._by_values.values())
    steps = []
    for _ in range(3):
        worker.tidy(5.0)
        steps.append(worker.next_tidy)
    assert steps == [5.0, 5.0, 5.0 + worker_module.TIDY_STEP_S]
    assert not len(sets)


@pytest.mark.requirement("R279")
def test_what_a_client_left_behind_is_forgotten_without_traffic() -> None:
    matching = Matching(WorkerConfig())
    matching.add(1, VPN, "kept/*", KIND_PLAIN)
    matching.add(2, VPN, "gone/*", KIND_PLAIN)
    for number in range(5_000):
        _look_up(matching, f"gone/{number}")
    describe([_look_up(matching, "kept/a").plain, _look_up(matching, "gone/1").plain])
    matching.remove(2)
    steps = 1
    while matching.sweep():
        steps += 1
        matching.validate()
    assert steps == 41
    assert (matching.stats()["topics_cached"], matching.sets.retire(())) == (1, [1])


@pytest.mark.requirement("R279")
def test_topics_that_nobody_publishes_to_any_more_are_forgotten_although_their_filters_stay() -> None:
    matching = Matching(WorkerConfig())
    matching.add(1, VPN, ">", KIND_PLAIN)
    for number in range(700):
        _look_up(matching, f"a/{number}")
    for _ in range(2):
        _look_up(matching, "a/used")
        matching.age()
        while matching.sweep():
            matching.validate()
    assert matching.stats()["topics_cached"] == 1
    assert matching.vpn(VPN).cache.get("a/used") is not None


@pytest.mark.slow
@given(st.lists(st.one_of(TOPICS, st.tuples(PATTERNS, KINDS), st.integers(0, 20)), max_size=40))
@pytest.mark.requirement("R211")
def test_the_sets_of_a_topic_are_what_brute_force_says(steps: list[str | tuple[str, int] | int]) -> None:
    """A text is a topic to look up, a pair a filter to add, a number one to remove."""
    matching = Matching(WorkerConfig(topic_cache_max=3))
    filters: dict[int, tuple[str, int]] = {}
    for number, step in enumerate(steps, start=1):
        if isinstance(step, tuple):
            filters[number] = step
            matching.add(number, VPN, *step)
        elif isinstance(step, int):
            filters.pop(step, None)
            matching.remove(step)
        else:
            hits = [(i, kind) for i, (pattern, kind) in filters.items() if matches(pattern, step)]
            expected = tuple(
                tuple(i for i, kind in hits if kind in kinds)
                for kinds in (
                    (KIND_PLAIN, KIND_DELIVER_ALWAYS),
                    (KIND_SHARED,),
                    (KIND_DELIVER_ALWAYS,),
                    (KIND_PLAIN, KIND_SHARED),
                )
            )
            assert _ids(_look_up(matching, step)) == expected
        matching.tidy()
        matching.validate()
    assert len(matching) == len(filters)
