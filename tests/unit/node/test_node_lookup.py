"""Batches that take several steps: the same answers, in turn with others, and at a price."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium import errors, wire
from angarium import trie as trie_module
from angarium.topic import matches, slot_of
from angarium.trie import FilterTrie
from node.config import WorkerConfig
from node.matching import worker as worker_module
from tests.unit.node.fake_router import INCARNATION, PLAIN, SHARED, VPN, Answer, Router, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.requirement("R278")

#: Filters that all match, at every level in two ways.
LEVELS = 8
DEAR = ["/".join(levels) for levels in itertools.product(("a*", "*"), repeat=LEVELS)]
#: Nodes that a topic of theirs visits, beyond the roots.
DEAR_NODES = 2 ** (LEVELS + 1) - 2

_LEVELS = ["a", "ab", "b"]
TOPICS = st.lists(st.sampled_from(_LEVELS), min_size=1, max_size=4).map("/".join)
PATTERNS = st.lists(st.sampled_from([*_LEVELS, "*", "a*"]), min_size=1, max_size=4).map("/".join) | st.just(
    ">"
)


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    """Let searches stop after every node."""
    before = trie_module._PIECE
    trie_module._PIECE = 1  # type: ignore[misc]
    yield
    trie_module._PIECE = before  # type: ignore[misc]


def _dear_topic(number: int) -> str:
    return "/".join([f"a{number}"] * LEVELS)


def _router(step: int = 100, **config: Any) -> Router:
    return Router(WorkerConfig(matching_step_nodes=step, **config))


def _dear_router(step: int = 100, **config: Any) -> Router:
    router = _router(step, **config)
    router.filters(*[(number + 1, pattern, PLAIN) for number, pattern in enumerate(DEAR)])
    return router


def _steps_until(router: Router, reference: int, limit: int = 10_000) -> tuple[int, list[bytes]]:
    """Step until a batch is answered; gives how many steps that took, and the RESULT."""
    for step in range(limit):
        for frames in router.worker.work():
            if frames[0] == wire.RESULT and wire.unpack(frames[1])[1] == reference:
                return step + 1, frames
        router.worker.validate()
    raise AssertionError(f"not answered after {limit} steps")


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=30), TOPICS, st.integers(1, 50))
def test_a_search_in_steps_finds_what_a_search_at_once_finds(
    patterns: list[str], topic: str, nodes_max: int
) -> None:
    trie: FilterTrie[int] = FilterTrie()
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    found: list[int] = []
    walk = trie.search(topic, found, nodes_max)
    if not isinstance(walk, int):
        while not walk.step(nodes_max):
            assert walk.visited <= nodes_max * 1000
    found += trie.exact(topic)
    assert sorted(found) == sorted(trie.match(topic))
    assert sorted(found) == [n for n, pattern in enumerate(patterns) if matches(pattern, topic)]


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_turn_visits_no_more_nodes_than_a_step_whether_batches_come_or_wait_or_both(waiting: int) -> None:
    step = 100
    router = _dear_router(step)
    for number in range(waiting):
        router.begin(rows_of(_dear_topic(number)))
    router.worker.work()
    stats = router.worker.metrics
    for number in range(10, 15):
        before = stats()["matching_work"]
        router.begin(rows_of(*[_dear_topic(10 * number + at) for at in range(3)]))
        router.worker.work()
        assert step // 2 <= stats()["matching_work"] - before <= step + 4, (
            "each search overshoots by two nodes at most"
        )


def test_filters_that_come_are_part_of_a_turn() -> None:
    step = 100
    router = _dear_router(step)
    router.begin(rows_of(_dear_topic(1), _dear_topic(2)))
    come = [[number, VPN, "x/*/y/*/z", PLAIN] for number in range(1_000, 1_004)]
    changes: list[list[Any]] = [[come, []], [[], [*range(1, 7)]]]
    for change in changes:
        router.worker.work()
        router.sequence += 1
        header = [router.incarnation, router.sequence, *change]
        router.worker.handle([wire.FILTERS, wire.pack(header)], 0.0)
        before = router.worker.metrics()["matching_work"]
        router.worker.work()
        assert step // 2 <= router.worker.metrics()["matching_work"] - before <= step // 2 + 4


def test_what_waits_goes_on_however_much_comes() -> None:
    router = _dear_router(100)
    router.match(rows_of("b"))
    reference, *_ = router.begin(rows_of(_dear_topic(1)))
    for _ in range(2 * DEAR_NODES // 50):
        router.begin(rows_of(*["b"] * 500))  # its answer costs more than a step
        done = [wire.unpack(one[1])[1] for one in router.worker.work() if one[0] == wire.RESULT]
        if reference in done:
            break
    assert reference in done


_CHANGES = st.lists(st.tuples(st.integers(1, 12), PATTERNS), max_size=12)


@pytest.mark.slow
@given(
    st.lists(PATTERNS, max_size=12),
    st.lists(TOPICS, min_size=1, max_size=6, unique=True),
    _CHANGES,
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_what_comes_or_goes_between_the_steps_may_be_seen_and_everything_else_is(
    patterns: list[str], topics: list[str], changes: list[tuple[int, str]], step: int, cache_max: int
) -> None:
    """And what is cached is right whatever changed meanwhile."""
    router = Router(WorkerConfig(matching_step_nodes=step, topic_cache_max=cache_max))
    numbers = itertools.count(1)
    alive = {next(numbers): pattern for pattern in patterns}
    router.filters(*[(number, pattern, PLAIN) for number, pattern in alive.items()])
    steady, ever = dict(alive), dict(alive)
    reference, batch, answers = router.begin(rows_of(*topics))
    for ticks, pattern in changes:
        for _ in range(ticks):
            answers += router.worker.work()
        present = [number for number, one in alive.items() if one == pattern]
        answers_before = [one for one in answers if one[0] == wire.RESULT]
        if present:
            _quietly(router, [], present)
            for number in present:
                del alive[number]
                if not answers_before:
                    steady.pop(number, None)
        else:
            number = next(numbers)
            alive[number] = pattern
            _quietly(router, [(number, pattern, PLAIN)], [])
            if not answers_before:
                ever[number] = pattern
    while router.worker.has_work:
        answers += router.worker.work()
    (frames,) = [one for one in answers if one[0] == wire.RESULT]
    answer = router.read(frames, batch, reference)
    for index, topic in enumerate(topics):
        got = _filters_of(answer, index)
        assert got >= {number for number, one in steady.items() if matches(one, topic)}
        assert got <= {number for number, one in ever.items() if matches(one, topic)}
    again = router.match(rows_of(*topics))
    for index, topic in enumerate(topics):
        assert _filters_of(again, index) == {number for number, one in alive.items() if matches(one, topic)}
    router.worker.validate()


def _quietly(router: Router, added: list[tuple[int, str, int]], removed: list[int]) -> None:
    """Change filters without giving the worker a step."""
    router.sequence += 1
    entries = [[number, VPN, pattern, kind] for number, pattern, kind in added]
    body = [router.incarnation, router.sequence, entries, removed]
    (confirmed,) = router.worker.handle([wire.FILTERS, wire.pack(body)], 0.0)
    assert confirmed[0] == wire.CONFIRM


def _filters_of(answer: Answer, index: int) -> set[int]:
    found: set[int] = set()
    for filters, rows in answer.plain.items():
        if any(row[0] == index for row in rows):
            found.update(filters)
    return found


def test_no_step_is_longer_than_it_may_be_however_dear_a_batch_is() -> None:
    """Two hundred new topics that hundreds of filters match were one step before."""
    router = _dear_router(step=100)
    work = router.worker.stats()["matching_work"]
    _, _, answers = router.begin(rows_of(*[_dear_topic(number) for number in range(200)]))
    longest = 0
    while router.worker.has_work:
        now = router.worker.stats()["matching_work"]
        longest, work = max(longest, now - work), now
        answers += router.worker.work()
    assert answers[-1][0] == wire.RESULT
    assert work >= 199 * DEAR_NODES
    # A step, the last node's prefixes, and what it takes to make the entry of 256 filters.
    assert longest <= 100 + 2 + 16 + len(DEAR) // 4
    router.worker.validate()


def test_a_dear_publisher_delays_itself_and_nobody_else() -> None:
    router = _dear_router(step=100)
    dear = [router.begin(rows_of(*[_dear_topic(8 * n + i) for i in range(8)]))[0] for n in range(8)]
    cheap, batch, answers = router.begin(rows_of("x", "y/z"), publisher=2)
    assert answers == [], "the step is over"
    steps, frames = _steps_until(router, cheap)
    assert steps <= 2
    assert router.read(frames, batch, cheap).unmatched == 2
    assert _steps_until(router, dear[-1])[0] > 100
    assert not router.worker.has_work


def test_message_vpns_take_turns_before_publishers_do() -> None:
    router = _dear_router(step=100)
    for publisher in range(1, 51):
        router.begin(rows_of(_dear_topic(publisher)), publisher=publisher)
    cheap, _, _ = router.begin(rows_of("x"), publisher=99, vpn=VPN + 1)
    assert _steps_until(router, cheap)[0] <= 2


def test_the_batches_of_one_publisher_are_answered_in_their_order() -> None:
    router = _dear_router(step=50)
    references = [router.begin(rows_of(_dear_topic(number), "b"))[0] for number in range(5)]
    answered = []
    while router.worker.has_work:
        answered += [wire.unpack(one[1])[1] for one in router.worker.work() if one[0] == wire.RESULT]
    assert answered == references


def test_cached_topics_do_not_wait_for_a_step() -> None:
    router = _dear_router(step=100)
    router.match(rows_of("b", _dear_topic(1)))
    router.begin(rows_of(_dear_topic(2)))
    reference, batch, answers = router.begin(rows_of("b", _dear_topic(1)), publisher=2)
    assert [one[0] for one in answers] == [wire.RESULT]
    assert len(_filters_of(router.read(answers[0], batch, reference), 1)) == len(DEAR)


def test_the_work_beyond_what_is_free_is_told_when_it_begins_and_when_it_ends() -> None:
    router = _dear_router(step=100)
    _, _, answers = router.begin(rows_of(_dear_topic(1), _dear_topic(2)))
    while router.worker.has_work:
        answers += router.worker.work()
    assert [one[0] for one in answers] == [wire.WORK, wire.WORK, wire.RESULT]
    told = [wire.unpack(one[1])[2] for one in answers[:-1]]
    assert told[0] < 256
    expected = 2 * (DEAR_NODES - 256)
    assert expected < sum(told) < expected * 1.5
    router.begin(rows_of("b"))


def test_large_sets_are_defined_step_by_step_and_not_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic matches another part of the filters, so that none shares a set."""
    monkeypatch.setattr(worker_module, "SET_FILTERS_MAX", 200)
    router = _dear_router(step=400)
    topics = ["/".join("a1" if at >> bit & 1 else "b" for bit in range(LEVELS)) for at in range(0, 256, 5)]
    reference, batch, answers = router.begin(rows_of(*topics))
    while router.worker.has_work:
        answers += router.worker.work()
    sizes = []
    for frames in answers:
        if frames[0] == wire.SETS:
            incarnation, defs = wire.unpack(frames[1])
            assert incarnation == INCARNATION
            router.define(defs)
            sizes.append(sum(len(filter_ids) for _, filter_ids in defs))
    assert len(sizes) > 3
    assert max(sizes) <= 200 + 2**LEVELS
    assert answers[-1][0] == wire.RESULT
    assert sum(len(filter_ids) for _, filter_ids in wire.unpack(answers[-1][1])[2]) <= 400
    answer = router.read(answers[-1], batch, reference)
    for index, topic in enumerate(topics):
        wanted = {number + 1 for number, pattern in enumerate(DEAR) if matches(pattern, topic)}
        assert _filters_of(answer, index) == wanted
    router.worker.validate()


def test_a_set_that_a_paused_batch_has_found_is_not_retired_before_its_answer() -> None:
    router = _dear_router(step=100)
    router.filters((1_000, "a", PLAIN), (1_001, "b", PLAIN))
    router.match(rows_of("a"))
    router.match(rows_of("b"))
    reference, batch, _ = router.begin(rows_of("a", _dear_topic(1)))
    _quietly(router, [(1_002, "a", PLAIN)], [])
    other, others_batch, answers = router.begin(rows_of("b"), publisher=2)
    assert router.read(answers[0], others_batch, other).retired == []
    assert router.worker.tidy(0.0) == []
    router.worker.validate()
    _, frames = _steps_until(router, reference)
    assert _filters_of(router.read(frames, batch, reference), 0) == {1_000}
    assert len(router.match(rows_of("b")).retired) == 1
    router.worker.validate()


def test_cheap_topics_cost_nothing_however_many_there_are() -> None:
    router = _router(step=100)
    router.filters((1, "a/*", PLAIN), (2, "*/b", PLAIN))
    _, _, answers = router.begin(rows_of(*[f"a/{number}" for number in range(500)]))
    while router.worker.has_work:
        answers += router.worker.work()
    assert [one[0] for one in answers] == [wire.RESULT]
    assert router.worker.stats()["paused_batches"] == 1


def test_a_batch_that_costs_too_much_is_matched_as_far_as_it_may_and_the_rest_is_refused() -> None:
    router = _dear_router(step=100, max_matching_work=1000)
    router.match(rows_of("b"))
    reference, batch, answers = router.begin(rows_of("b", *[_dear_topic(n) for n in range(9)], "c"))
    while router.worker.has_work:
        answers += router.worker.work()
    answer = router.read(answers[-1], batch, reference)
    rows, topic = answer.refused[errors.MATCHING_WORK_EXCEEDED]
    matched = sum(len(rows) for rows in answer.plain.values())
    assert (matched + rows, topic) == (10, _dear_topic(matched))
    assert 2 <= matched <= 5
    assert answer.unmatched == 1, "what is known already is not refused"
    assert router.worker.stats()["refused"] == {"42903": rows}
    router.worker.validate()


def test_a_new_start_forgets_the_batches_that_wait() -> None:
    router = _dear_router(step=100)
    router.begin(rows_of(_dear_topic(1)))
    assert router.worker.has_work
    router.start()
    assert not router.worker.has_work
    router.worker.validate()


def test_a_batch_goes_on_when_its_message_vpn_loses_all_filters_and_gets_others() -> None:
    router = _dear_router(step=100)
    reference, batch, answers = router.begin(rows_of(_dear_topic(1), "b"))
    _quietly(router, [], list(range(1, len(DEAR) + 1)))
    _quietly(router, [(1000, "b", SHARED), (1001, ">", PLAIN)], [])
    while router.worker.has_work:
        answers += router.worker.work()
        router.worker.validate()
    answer = router.read(answers[-1], batch, reference)
    assert _filters_of(answer, 0) == {1001}
    assert _filters_of(answer, 1) == {1001}


def test_a_batch_is_judged_by_the_rules_of_the_moment_at_which_it_came() -> None:
    router = _dear_router(step=100)
    router.rules(5, True, ["b"])
    reference, batch, answers = router.begin(rows_of(_dear_topic(1), "b", "c"), rules=5)
    assert router.worker.handle([wire.RULES, wire.pack([router.incarnation, 5, None])], 0.0) == []
    while router.worker.has_work:
        answers += router.worker.work()
    answer = router.read(answers[-1], batch, reference)
    assert answer.refused == {errors.PUBLISH_DENIED: (1, "b")}
    assert answer.unmatched == 1


def test_a_malformed_topic_behind_a_dear_one_refuses_the_batch() -> None:
    slots = bytes([0, 1] * 512)
    router = Router(WorkerConfig(matching_step_nodes=100), slots=slots)
    router.filters(*[(number + 1, pattern, PLAIN) for number, pattern in enumerate(DEAR)])
    mine = [topic for topic in map(_dear_topic, range(99)) if not _is_foreign(topic, slots)]
    foreign = next(topic for topic in map(str, range(99)) if _is_foreign(topic, slots))
    reference, batch, answers = router.begin(rows_of(mine[0], foreign))
    while router.worker.has_work:
        answers += router.worker.work()
    assert router.read(answers[-1], batch, reference).refused[errors.MALFORMED_FRAME][0] == 2
    router.worker.validate()


def _is_foreign(topic: str, slots: bytes) -> bool:
    return slots[slot_of(topic)] != 0
