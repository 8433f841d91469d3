"""The queue that retains: a worker adds it to the endpoints of rows with FLAG_RETAIN, and to nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.topic import matches
from node.config import WorkerConfig
from node.matching import matching
from tests.unit.node.fake_router import ALWAYS, PLAIN, SHARED, Answer, Router, Row, row_of, rows_of

ENDPOINT, EXCEPTION, RETAINED = wire.KIND_ENDPOINT, wire.KIND_EXCEPTION, wire.KIND_RETAINED
RETAIN = wire.FLAG_RETAIN


@pytest.fixture
def router() -> Router:
    made = Router()
    made.filters((9, ">", RETAINED))
    return made


def test_a_row_with_the_flag_goes_to_the_queue_that_retains_and_where_it_goes_anyhow(router: Router) -> None:
    router.filters((1, "a", ENDPOINT), (2, "a", PLAIN))
    rows = [row_of(0, "a", RETAIN), row_of(1, "a"), row_of(2, "b", RETAIN), row_of(3, "b")]
    answer = router.match(rows)
    assert answer.endpoints == {(1, 9): rows[:1], (1,): rows[1:2], (9,): rows[2:3]}
    assert answer.plain == {(2,): rows[:2]}
    assert answer.unmatched == 1


def test_a_batch_that_is_retained_as_a_whole_is_answered_whole(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    answer = router.match(rows_of("a", "a", flags=RETAIN))
    assert answer.whole
    assert (list(answer.plain), list(answer.endpoints)) == ([(1,)], [(9,)])


def test_addresses_have_nothing_to_retain(router: Router) -> None:
    answer = router.match(rows_of("#P2P/QUE/q", "#P2P/INB/x", flags=RETAIN))
    assert (answer.endpoints, answer.unmatched) == ({}, 2)


def test_a_guaranteed_row_that_nobody_else_takes_is_not_refused(router: Router) -> None:
    flags = wire.MODE_PERSISTENT
    rows = [row_of(0, "a", flags | RETAIN), row_of(1, "a", flags)]
    answer = router.match(rows, guaranteed=True)
    assert answer.refused_indices == {errors.NO_SUBSCRIPTION_MATCH: [1]}
    assert answer.endpoints == {(9,): rows[:1]}


def test_a_direct_row_that_is_retained_is_not_reported_as_unmatched(router: Router) -> None:
    answer = router.match([row_of(0, "a", RETAIN), row_of(1, "b")], flags=wire.MATCH_REPORT)
    assert answer.reported == {"b": 1}


def test_an_exception_keeps_nothing_from_being_retained(router: Router) -> None:
    router.filters((1, "a", EXCEPTION))
    assert list(router.match(rows_of("a", flags=RETAIN)).endpoints) == [(9,)]


def test_what_is_taught_of_a_topic_does_not_depend_on_the_flag(router: Router) -> None:
    router.filters((1, "a", ENDPOINT))
    answer = router.match(rows_of("a", flags=RETAIN), learn=wire.LEARN_ALL)
    assert answer.learned == {"a": ((), (), (), (), (1,))}


def test_without_the_queue_the_flag_means_nothing(router: Router) -> None:
    rows = rows_of("a", flags=RETAIN)
    assert list(router.match(rows).endpoints) == [(9,)]
    assert router.match(rows, vpn=2).unmatched == 1
    router.filters(removed=(9,))
    answer = router.match(rows)
    assert (answer.endpoints, answer.unmatched) == ({}, 1)
    router.worker.validate()


def test_a_queue_that_is_made_again_is_another_filter(router: Router) -> None:
    rows = rows_of("a", flags=RETAIN)
    assert list(router.match(rows).endpoints) == [(9,)]
    router.filters((12, ">", RETAINED), removed=(9,))
    assert list(router.match(rows).endpoints) == [(12,)]
    router.worker.validate()


def test_the_queue_costs_nothing_for_rows_without_the_flag() -> None:
    """Neither sets nor searches are more, and topics that are known stay so when it comes."""
    plain, retaining = Router(), Router()
    for one in (plain, retaining):
        one.filters((1, "a/*", PLAIN), (2, "a/b", ENDPOINT))
        one.match(rows_of("a/b", "a/c", "d"))
    retaining.filters((9, ">", RETAINED))
    for one in (plain, retaining):
        one.match(rows_of("a/b", "a/c", "d"))
    before, after = plain.worker.metrics(), retaining.worker.metrics()
    assert {name: after[name] for name in before if after[name] != before[name]} == {"filters": 3}


def test_its_sets_are_retired_when_nobody_publishes_so_any_more(router: Router) -> None:
    router.match(rows_of("a", flags=RETAIN))
    assert router.worker.metrics()["filter_sets"] == 1
    for _ in range(100):
        router.worker.tidy(router.worker.next_tidy)
    assert router.worker.metrics()["filter_sets"] == 0
    router.worker.validate()


def test_so_many_sets_with_it_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "RETAINING_BYTES_MAX", 1_000)
    router = Router()
    router.filters((999, ">", RETAINED), *((number, f"t/{number}", ENDPOINT) for number in range(1, 101)))
    for number in range(1, 101):
        answer = router.match(rows_of(f"t/{number}", flags=RETAIN))
        assert list(answer.endpoints) == [(number, 999)]
        router.worker.validate()
    # Each topic has a set of its own, and is remembered.
    assert router.worker.metrics()["filter_sets"] < 100 + 20


_TOPICS = st.sampled_from(["a", "a/b", "ab/b", "$S/b", "#P2P/x"])
_PATTERNS = st.sampled_from(["a", "a/b", "a*/b", ">", "*", "a/>", "$S/*", "#P2P/*"])
_KINDS = st.sampled_from([PLAIN, ALWAYS, SHARED, ENDPOINT, EXCEPTION, RETAINED])
_FLAGS = st.sampled_from([0, RETAIN, RETAIN | wire.FLAG_DTO, RETAIN | 4])
_BATCHES = st.lists(st.tuples(_TOPICS, _FLAGS), max_size=8)
_STEPS = st.one_of(_BATCHES, st.tuples(_PATTERNS, _KINDS), st.integers(0, 12))


@pytest.mark.slow
@given(st.lists(_STEPS, max_size=15), st.integers(0, 2))
def test_every_row_is_retained_where_brute_force_says(steps: list[Any], learn: int) -> None:
    """A list is a batch, a pair a filter to add, a number a filter to remove."""
    router = Router(WorkerConfig(topic_cache_max=3))
    filters: dict[int, tuple[str, int]] = {}
    for number, step in enumerate(steps, start=1):
        if isinstance(step, tuple):
            filters[number] = (">", RETAINED) if step[1] == RETAINED else step
            router.filters((number, *filters[number]))
        elif isinstance(step, int):
            filters.pop(step, None)
            router.filters(removed=(step,))
        else:
            rows = [row_of(3 * place, topic, flags, b"p") for place, (topic, flags) in enumerate(step)]
            _check(router.match(rows, learn=learn), rows, filters)
        router.worker.validate()


def _check(answer: Answer, rows: list[Row], filters: dict[int, tuple[str, int]]) -> None:
    """Compare with a model that knows neither sets nor caches."""
    expected: dict[tuple[int, ...], list[Row]] = {}
    unmatched = 0
    for row in rows:
        kinds = {i: kind for i, (pattern, kind) in filters.items() if matches(pattern, row[1])}
        takers = [i for i, kind in kinds.items() if kind in (ENDPOINT, EXCEPTION)]
        if ENDPOINT not in kinds.values():
            takers = []
        if row[2] & RETAIN and not row[1].startswith("#"):
            takers += [i for i, (_, kind) in filters.items() if kind == RETAINED]
        if takers:
            expected.setdefault(tuple(sorted(takers)), []).append(row)
        unmatched += not takers and not {PLAIN, ALWAYS, SHARED} & {*kinds.values()}
    assert answer.endpoints == expected
    assert answer.unmatched == unmatched
