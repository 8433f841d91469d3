"""The worker as the router sees it: what goes where, checked against brute force."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.topic import INBOX_PREFIX, SLOTS, matches, slot_of
from angarium_server.access import TopicRules
from angarium_server.frames.matching import LARGE_ROW_BYTES
from node.config import WorkerConfig
from node.matching.batch import REPORTED_MAX, Batch
from node.matching.worker import Worker
from node.metrics import WORKER
from node.tracing.tracing import NOTHING
from tests.unit.declared_metrics import differences
from tests.unit.node.fake_router import (
    ALWAYS,
    INCARNATION,
    PLAIN,
    ROUTER,
    SHARED,
    VPN,
    Answer,
    Router,
    Row,
    row_of,
    rows_of,
)


@pytest.fixture
def router() -> Any:
    router = Router()
    yield router
    router.worker.validate()


def test_a_worker_announces_itself_until_a_router_starts_it() -> None:
    worker = Worker(2, INCARNATION, WorkerConfig())
    assert worker.ready_frames() == [wire.READY, wire.pack([2, INCARNATION])]
    assert not worker.started
    worker.handle([wire.START, wire.pack([ROUTER, 1, bytes(SLOTS)])], 1.0)
    assert worker.started
    worker.connected()
    assert not worker.started
    worker.handle([wire.START, wire.pack([ROUTER + 1, 1, bytes(SLOTS)])], 1.0)
    assert worker.started
    worker.validate()


def test_before_a_start_everything_is_dropped() -> None:
    worker = Worker(0, INCARNATION, WorkerConfig())
    for incarnation in (0, ROUTER):
        for operation, body in (
            (wire.FILTERS, [incarnation, 1, [[1, VPN, "a", PLAIN]], []]),
            (wire.RULES, [incarnation, 1, None]),
            (wire.MATCH, [incarnation, 1, VPN, 0, 0, 1, 0, 1]),
        ):
            assert worker.handle([operation, wire.pack(body), wire.pack(rows_of("a"))], 0.0) == []
    assert worker.stats()["stale_frames"] == 6


def test_a_batch_whose_rows_all_go_to_one_plain_set_is_answered_whole(router: Router) -> None:
    router.filters((1, "a/>", PLAIN), (2, "a/b", PLAIN))
    answer = router.match(rows_of("a/b", "a/b", "a/b"))
    assert answer.whole
    assert list(answer.plain) == [(1, 2)]
    assert router.match(rows_of("a/c", "a/d")).whole
    assert router.worker.stats()["whole_batches"] == 2


def test_a_worker_answers_the_metrics_that_it_declares(router: Router) -> None:
    of_the_shell = ("in_use_bytes", "undelivered_answers", *NOTHING)
    assert differences(WORKER, router.worker.metrics(), of_the_shell) == []
    assert differences(WORKER, router.worker.stats(), of_the_shell) == []


def test_a_set_is_defined_by_the_first_result_that_uses_it(router: Router) -> None:
    router.filters((1, "a/>", PLAIN))
    router.match(rows_of("a/b"))
    seen = set(router.set_ids_seen)
    answer = router.match(rows_of("a/c"))  # the same set through another topic
    assert list(answer.plain) == [(1,)]
    assert router.set_ids_seen == seen


def test_rows_are_grouped_by_set_and_keep_every_field(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", PLAIN))
    rows = [
        row_of(3, "a", 0, b"1", [1000, 5, 4, "key"], b"\x80"),
        row_of(4, "b", 4, b"2"),
        row_of(70_000, "a", wire.FLAG_ELIDING, b"", [0, 0, None, None]),
        row_of(2**40, "c", 0, b"3"),
    ]
    answer = router.match(rows)
    assert answer.plain == {(1,): [rows[0], rows[2]], (2,): [rows[1]]}
    assert answer.unmatched == 1
    assert not answer.whole


@pytest.mark.parametrize("size", [0, 1, LARGE_ROW_BYTES, 20_000])
def test_rows_of_all_sizes_that_go_to_several_places_are_as_they_came(router: Router, size: int) -> None:
    router.filters((1, "a", PLAIN), (2, "b", PLAIN))
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    rows = [row_of(index, "ab"[index % 2], 0, payload, None, b"properties") for index in range(4)]
    answer = router.match(rows)
    assert answer.plain == {(1,): rows[::2], (2,): rows[1::2]}


def test_the_classes_say_that_a_row_is_to_be_retained(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", PLAIN))
    rows = [row_of(0, "a", wire.FLAG_RETAIN), row_of(1, "b", 1 << wire.COS_SHIFT)]
    batches = [Batch(wire.pack(some), len(some), wire.MATCH_DIRECT) for some in (rows, rows[1:])]
    assert [batch.classes for batch in batches] == [
        wire.CLASS_RETAIN | wire.CLASS_COS1 | wire.CLASS_COS2,
        wire.CLASS_COS2,
    ]
    assert router.match(rows).plain == {(1,): rows[:1], (2,): rows[1:]}


def test_a_batch_that_nobody_wants_is_only_counted(router: Router) -> None:
    answer = router.match(rows_of("a", "b", "b"))
    assert (answer.unmatched, answer.plain, answer.choice, answer.whole) == (3, {}, {}, False)


def test_what_matches_nothing_is_reported_by_topic_if_the_round_asks_for_it(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    answer = router.match(rows_of("a", "b", "c", "b"), flags=wire.MATCH_REPORT)
    assert answer.reported == {"b": 2, "c": 1}
    assert (answer.unmatched, list(answer.plain)) == (0, [(1,)])
    assert router.match(rows_of("a"), flags=wire.MATCH_REPORT).reported == {}
    assert router.match(rows_of("b")).reported == {}


def test_no_more_topics_are_reported_than_fit(router: Router) -> None:
    topics = [f"t/{number}" for number in range(REPORTED_MAX + 5)]
    answer = router.match(rows_of(*topics), flags=wire.MATCH_REPORT)
    assert list(answer.reported) == topics[:REPORTED_MAX]
    assert answer.unmatched == 5


def test_an_empty_batch_is_answered(router: Router) -> None:
    assert router.match([]) == Answer(whole=False)


def test_a_batch_with_a_longer_head_than_needed_is_never_answered_whole(router: Router) -> None:
    """Others join batches by cutting off a head of canonical length."""
    router.filters((1, "a", PLAIN))
    rows = rows_of("a", "a")
    answer = router.match(rows, batch=b"\xdc\x00\x02" + wire.pack(rows)[1:])
    assert not answer.whole
    assert answer.plain == {(1,): rows}


@pytest.mark.requirement("R22", "R26")
def test_rows_for_shared_filters_come_ready_for_the_choice(router: Router) -> None:
    router.filters((1, "a/*", SHARED), (2, "a/b", SHARED))
    rows = [row_of(0, "a/b", 1 << wire.COS_SHIFT), row_of(1, "a/c")]
    answer = router.match(rows)
    assert answer.plain == {}
    assert answer.choice == {((1, 2), (), False): [rows[0]], ((1,), (), False): [rows[1]]}


def test_a_row_goes_both_to_all_and_to_one_of_a_group(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "a", SHARED))
    rows = rows_of("a", "a")
    answer = router.match(rows)
    assert answer.plain == {(1,): rows}
    assert answer.choice == {((2,), (1,), False): rows}
    assert not answer.whole


@pytest.mark.requirement("R80", "R81", "R85", "R86")
def test_a_dto_row_goes_to_deliver_always_filters_and_one_of_the_others(router: Router) -> None:
    """The choice names the plain set of its rows, so that nobody in both gets two copies."""
    router.filters((1, "a", PLAIN), (2, "a", ALWAYS), (3, "a", SHARED))
    rows = rows_of("a", flags=wire.FLAG_DTO)
    answer = router.match(rows)
    assert answer.plain == {(2,): rows}
    assert answer.choice == {((1, 3), (2,), True): rows}


@pytest.mark.requirement("R68")
def test_dto_rows_for_plain_filters_alone_all_need_a_choice(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "a", PLAIN))
    rows = rows_of("a", "a", flags=wire.FLAG_DTO)
    answer = router.match(rows)
    assert answer.plain == {}
    assert answer.choice == {((1, 2), (), True): rows}


@pytest.mark.requirement("R70", "R80")
def test_without_the_flag_deliver_always_filters_are_like_any_other(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "a", ALWAYS))
    answer = router.match(rows_of("a"))
    assert list(answer.plain) == [(1, 2)]
    assert answer.whole


@pytest.mark.requirement("R83", "R84")
def test_a_monitor_with_deliver_always_filters_is_no_candidate_for_a_dto_row(router: Router) -> None:
    router.filters((1, ">", ALWAYS))
    answer = router.match(rows_of("a/b", flags=wire.FLAG_DTO))
    assert list(answer.plain) == [(1,)]
    assert answer.choice == {}


def test_rows_with_and_without_dto_share_a_batch(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    rows = [row_of(0, "a"), row_of(1, "a", wire.FLAG_DTO), row_of(2, "b", wire.FLAG_DTO)]
    answer = router.match(rows)
    assert answer.plain == {(1,): rows[:1]}
    assert answer.choice == {((1,), (), True): rows[1:2]}
    assert answer.unmatched == 1


def test_learning_tells_all_sets_of_each_topic_that_was_not_refused(router: Router) -> None:
    router.rules(5, False, ["a", "b"])
    router.filters((1, "a", PLAIN), (2, "a", ALWAYS), (3, "a", SHARED))
    rows = rows_of("a", "a", "b", "c", "#share/x", "")
    answer = router.match(rows, rules=5, learn=wire.LEARN_ALL)
    assert answer.learned == {"a": ((1, 2), (3,), (2,), (1, 3), ()), "b": ((), (), (), (), ())}
    assert router.match(rows, rules=5).learned == {}


def test_few_topics_are_told_and_many_are_not(router: Router) -> None:
    few = [row_of(n, f"t/{n % wire.FEW_TOPICS_MAX}") for n in range(200)]
    many = [row_of(n, f"t/{n % (wire.FEW_TOPICS_MAX + 1)}") for n in range(200)]
    assert len(router.match(few, learn=wire.LEARN_FEW).learned) == wire.FEW_TOPICS_MAX
    assert router.match(many, learn=wire.LEARN_FEW).learned == {}
    assert len(router.match(many, learn=wire.LEARN_ALL).learned) == wire.FEW_TOPICS_MAX + 1


def test_a_set_is_retired_when_no_topic_leads_to_it_any_more(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", PLAIN))
    router.match(rows_of("a"))
    (retiring,) = router.set_ids_seen
    router.filters(removed=(1,))
    assert router.match(rows_of("b")).retired == [retiring]
    assert router.match(rows_of("a")).retired == []
    assert retiring not in router.sets


@pytest.mark.requirement("R279")
def test_a_set_is_retired_without_traffic(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", PLAIN))
    router.match(rows_of("a"))
    (retiring,) = router.set_ids_seen
    router.worker.tidy(1.0)
    assert router.worker.cached_bytes > 0
    router.filters(removed=(1,))
    frames = router.worker.tidy(router.worker.next_tidy)
    assert frames == [[wire.RETIRE, wire.pack([INCARNATION, [retiring]])]]
    again_at = router.worker.next_tidy
    assert router.worker.tidy(again_at - 0.01) == []
    assert router.worker.next_tidy == again_at
    assert router.worker.tidy(again_at) == []
    assert router.worker.cached_bytes == 0
    assert router.worker.freed_bytes > 0
    router.worker.validate()


def test_a_topic_that_leaves_the_cache_within_its_own_batch_does_not_retire_its_set() -> None:
    router = Router(WorkerConfig(topic_cache_max=1))
    router.filters(*[(number, f"t{number}", PLAIN) for number in range(1, 6)])
    rows = rows_of(*[f"t{number}" for number in range(1, 6)])
    for _ in range(3):
        answer = router.match(rows)
        assert list(answer.plain) == [(number,) for number in range(1, 6)]
    router.worker.validate()


@pytest.mark.requirement("R210")
def test_a_topic_of_another_worker_makes_the_frame_malformed() -> None:
    slots = bytearray(SLOTS)
    slots[slot_of("theirs")] = 1
    router = Router(slots=bytes(slots))
    router.filters((1, ">", PLAIN))
    answer = router.match(rows_of("mine", "theirs"))
    count, detail = answer.refused[errors.MALFORMED_FRAME]
    assert count == 2
    assert "theirs" in detail
    assert (answer.plain, answer.unmatched) == ({}, 0)
    assert router.match(rows_of("mine")).whole


@pytest.mark.parametrize("topic", ["", "x" * 251, "a\0b", "/" * 128])
def test_a_bad_topic_costs_only_its_row(router: Router, topic: str) -> None:
    router.filters((1, "a", PLAIN))
    rows = rows_of("a", topic, topic)
    answer = router.match(rows)
    assert answer.refused == {errors.INVALID_TOPIC: (2, topic[:250])}
    assert answer.plain == {(1,): rows[:1]}


@pytest.mark.parametrize("topic", ["#share/g/a", "#noexport/a", "#LOG/INFO"])
def test_a_reserved_topic_costs_only_its_row(router: Router, topic: str) -> None:
    router.filters((1, ">", PLAIN))
    answer = router.match(rows_of(topic, "b"))
    assert answer.refused == {errors.RESERVED_TOPIC: (1, topic)}
    assert [row[1] for row in answer.plain[1,]] == ["b"]


def test_a_message_beyond_the_size_limit_costs_only_its_row() -> None:
    router = Router(WorkerConfig(max_message_bytes=1024))
    router.filters((1, "a", PLAIN))
    rows = [
        row_of(0, "a", 0, b"x" * 1024),
        row_of(1, "a", 0, b"x" * 1000, None, b"y" * 25),
        row_of(2, "a", 0, b"x" * 9),
    ]
    answer = router.match(rows)
    assert answer.refused == {errors.MESSAGE_TOO_LARGE: (1, "a")}
    assert answer.plain == {(1,): [rows[0], rows[2]]}


def test_a_large_batch_of_small_messages_is_answered_whole_all_the_same() -> None:
    router = Router(WorkerConfig(max_message_bytes=1024))
    router.filters((1, "a", PLAIN))
    assert router.match([row_of(index, "a", 0, b"x" * 1000) for index in range(5)]).whole


def test_publish_rules_refuse_rows_and_name_the_first_topic(router: Router) -> None:
    router.filters((1, ">", PLAIN))
    router.rules(5, True, ["secret/>"])
    rows = rows_of("a", "secret/b", "secret/a", "secret/b")
    answer = router.match(rows, rules=5)
    assert answer.refused == {errors.PUBLISH_DENIED: (3, "secret/b")}
    assert answer.plain == {(1,): rows[:1]}
    assert router.match(rows).whole, "rules number 0 allows everything"
    assert router.worker.stats()["refused"] == {str(errors.PUBLISH_DENIED): 3}


def test_changed_rules_count_at_once_also_for_cached_topics(router: Router) -> None:
    router.filters((1, ">", PLAIN))
    router.rules(5, True, [])
    assert router.match(rows_of("a"), rules=5).whole
    router.rules(5, False, [])
    assert errors.PUBLISH_DENIED in router.match(rows_of("a"), rules=5).refused
    router.rules(5, False, ["a"])
    assert router.match(rows_of("a"), rules=5).whole


def test_rules_that_were_dropped_or_never_told_allow_nothing_but_inboxes(router: Router) -> None:
    router.filters((1, ">", PLAIN), (2, f"{INBOX_PREFIX}>", PLAIN))
    router.rules(5, True, [])
    router.drop_rules(5)
    router.drop_rules(6)
    for rules in (5, 6):
        answer = router.match(rows_of("a", f"{INBOX_PREFIX}x"), rules=rules)
        assert answer.refused == {errors.PUBLISH_DENIED: (1, "a")}
        assert list(answer.plain) == [(2,)]


def test_inboxes_are_exempt_from_publish_rules(router: Router) -> None:
    router.filters((2, f"{INBOX_PREFIX}x/>", PLAIN))
    router.rules(5, False, [])
    assert router.match(rows_of(f"{INBOX_PREFIX}x/1"), rules=5).whole


def test_many_rules_on_one_topic_keep_a_bounded_memory(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    for rules_id in range(1, 300):
        router.rules(rules_id, rules_id % 2 == 0, [])
    for _ in range(2):
        for rules_id in range(1, 300):
            assert router.match(rows_of("a"), rules=rules_id).whole == (rules_id % 2 == 0)


def test_a_new_start_forgets_filters_rules_and_sets_but_never_a_number(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    router.rules(5, True, [])
    router.match(rows_of("a"))
    router.start(ROUTER + 1)
    assert router.match(rows_of("a")).unmatched == 1
    assert errors.PUBLISH_DENIED in router.match(rows_of("a"), rules=5).refused
    router.filters((1, "a", PLAIN))
    assert router.match(rows_of("a")).whole  # read() checks that the set has a new number


def test_frames_of_an_older_router_are_dropped(router: Router) -> None:
    router.start(ROUTER + 1)
    before = router.worker.stats()["stale_frames"]
    assert router.send(wire.START, ROUTER, 1, bytes(SLOTS)) == []
    assert router.send(wire.FILTERS, ROUTER, 1, [[1, VPN, "a", PLAIN]], []) == []
    assert router.send(wire.RULES, ROUTER, 1, None) == []
    assert router.send(wire.MATCH, ROUTER, 1, VPN, 0, 0, 1, 0, 1, batch=wire.pack(rows_of("a"))) == []
    assert router.worker.stats()["stale_frames"] - before == 4
    assert router.match(rows_of("a")).unmatched == 1


def test_the_same_router_may_start_a_worker_again(router: Router) -> None:
    router.filters((1, "a", PLAIN))
    router.start()
    assert router.match(rows_of("a")).unmatched == 1


def test_a_filter_can_come_and_go_in_one_frame(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "a", PLAIN), removed=(2, 77))
    assert list(router.match(rows_of("a")).plain) == [(1,)]


# So few that filters meet topics most of the time.
_TOPICS = st.sampled_from(["a", "a/b", "ab/b", "$S/b", "#P2P/x"])
_PATTERNS = st.sampled_from(["a", "a/b", "a*/b", "*/b", ">", "*", "a/>", "$S/*", "#P2P/*"])
_FLAGS = st.sampled_from([0, wire.FLAG_DTO, wire.FLAG_ELIDING | 4, wire.FLAG_DTO | 8])
_BATCHES = st.lists(st.tuples(_TOPICS, _FLAGS), max_size=8)
_FILTERS = st.tuples(_PATTERNS, st.sampled_from([PLAIN, ALWAYS, SHARED]))
_STEPS = st.one_of(_BATCHES, _FILTERS, st.integers(0, 12))


@pytest.mark.slow
@given(st.lists(_STEPS, max_size=15), st.lists(_PATTERNS, max_size=2), st.booleans(), st.integers(0, 2))
@pytest.mark.requirement("R57", "R80", "R81", "R83", "R85", "R86", "R211")
def test_every_row_goes_where_brute_force_says(
    steps: list[Any], exceptions: list[str], default_allow: bool, learn: int
) -> None:
    """A list is a batch, a pair a filter to add, a number a filter to remove."""
    router = Router(WorkerConfig(topic_cache_max=3))
    router.rules(5, default_allow, exceptions)
    rules = TopicRules(exceptions, default_allow=default_allow)
    filters: dict[int, tuple[str, int]] = {}
    for number, step in enumerate(steps, start=1):
        if isinstance(step, tuple):
            filters[number] = step
            router.filters((number, *step))
        elif isinstance(step, int):
            filters.pop(step, None)
            router.filters(removed=(step,))
        else:
            rows = [row_of(3 * place, topic, flags, b"p") for place, (topic, flags) in enumerate(step)]
            answer = router.match(rows, rules=5, learn=learn)
            _check_answer(answer, rows, filters, rules)
        router.worker.validate()


def _check_answer(
    answer: Answer, rows: list[Row], filters: dict[int, tuple[str, int]], rules: TopicRules
) -> None:
    plain: dict[tuple[int, ...], list[Row]] = {}
    choice: dict[Any, list[Row]] = {}
    unmatched = denied = 0
    for row in rows:
        if not rules.allows_publish(row[1]):
            denied += 1
            continue
        dto = bool(row[2] & wire.FLAG_DTO)
        all_kinds, one_kinds = ((ALWAYS,), (PLAIN, SHARED)) if dto else ((PLAIN, ALWAYS), (SHARED,))
        hits = [(i, kind) for i, (pattern, kind) in filters.items() if matches(pattern, row[1])]
        to_all = tuple(i for i, kind in hits if kind in all_kinds)
        to_one = tuple(i for i, kind in hits if kind in one_kinds)
        unmatched += not hits
        if to_all:
            plain.setdefault(to_all, []).append(row)
        if to_one:
            choice.setdefault((to_one, to_all, dto), []).append(row)
    assert (answer.plain, answer.choice, answer.unmatched) == (plain, choice, unmatched)
    assert sum(count for count, _ in answer.refused.values()) == denied
    assert answer.whole == (len(plain) == 1 and not choice and not unmatched and not denied)


def test_stats_tell_what_there_is_and_what_happened(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", SHARED))
    router.match(rows_of("a", "b", "c", "#LOG/x"))
    router.match([[]])
    stats = router.worker.stats()
    assert (stats["index"], stats["incarnation"], stats["router_incarnation"]) == (0, INCARNATION, ROUTER)
    assert (stats["vpns"], stats["filters"], stats["topics_cached"], stats["topics_matched"]) == (1, 2, 3, 3)
    assert (stats["batches"], stats["malformed_batches"], stats["rows"], stats["rows_unmatched"]) == (
        2,
        1,
        4,
        1,
    )
    assert stats["refused"] == {str(errors.RESERVED_TOPIC): 1}
    assert wire.unpack(wire.pack(stats)) == stats
