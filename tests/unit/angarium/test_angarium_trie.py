"""The trie against the brute-force matcher, and the cache against matching afresh."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from sys import getsizeof

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium import change_log
from angarium.topic import has_wildcard, matches
from angarium.topic_cache import CacheEntry, TopicCache
from angarium.trie import FilterTrie

_LEVELS = ["", "a", "ab", "abc", "b", "*", ">", "$S", "#P2P"]
_WILDCARDS = ["*", "a*", "ab*", "b*", "**", ">", "$*", "#*", "*b"]


def _joined(levels: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(levels), min_size=1, max_size=4).map("/".join).filter(bool)


TOPICS = _joined(_LEVELS)
PATTERNS = _joined(_LEVELS + _WILDCARDS)
PAIRS = st.lists(st.tuples(PATTERNS, st.integers(0, 5)), max_size=40)


def _expected(pairs: set[tuple[str, int]], topic: str) -> Counter[int]:
    return Counter(value for pattern, value in pairs if matches(pattern, topic))


@pytest.mark.slow
@given(PAIRS, st.data())
@pytest.mark.requirement("R211")
def test_the_trie_agrees_with_brute_force_under_adds_and_removes(
    pairs: list[tuple[str, int]], data: st.DataObject
) -> None:
    trie: FilterTrie[int] = FilterTrie()
    for pattern, value in pairs:
        trie.add(pattern, value)
    left = set(pairs)
    topics = data.draw(st.lists(TOPICS, min_size=1, max_size=8))
    removed = data.draw(st.lists(st.sampled_from(sorted(left)), unique=True)) if left else []
    for gone in [None, *removed]:
        if gone is not None:
            trie.remove(*gone)
            left.discard(gone)
        assert len(trie) == len(left)
        for topic in topics:
            assert Counter(trie.match(topic)) == _expected(left, topic), topic
    trie.validate()
    for pattern, value in sorted(left):
        trie.remove(pattern, value)
    trie.validate()
    assert len(trie) == 0
    assert not trie.match("a/b")


def test_an_answer_depends_only_on_the_changes_made() -> None:
    def build() -> FilterTrie[str]:
        trie: FilterTrie[str] = FilterTrie()
        for pattern in (">", "a/*", "a/b", "*/b", "a/b*", "a/>", "*/*"):
            trie.add(pattern, pattern)
        return trie

    assert build().match("a/b") == build().match("a/b")
    assert build().match("a/b")[0] == "a/b"


def test_a_pattern_keeps_a_value_once_however_often_it_is_added() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for pattern in ("a/b", "a/*", "a/>"):
        trie.add(pattern, "one")
        trie.add(pattern, "one")
    assert len(trie) == 3
    assert trie.match("a/b") == ["one"] * 3
    for pattern in ("a/b", "a/*", "a/>"):
        trie.remove(pattern, "one")
    trie.validate()
    assert trie.match("a/b") == []


@pytest.mark.parametrize("pattern", ["a/b", "a/*", "a/b*", "a/>", ">"])
def test_one_pattern_holds_many_values_in_the_order_of_adding(pattern: str) -> None:
    trie: FilterTrie[int] = FilterTrie()
    values = list(range(50, 0, -1))
    for value in values:
        trie.add(pattern, value)
    assert trie.match("a/b") == values
    trie.validate()
    for value in values[:-1]:
        trie.remove(pattern, value)
    assert trie.match("a/b") == [1]
    trie.remove(pattern, 1)
    assert trie.match("a/b") == []
    trie.validate()


@pytest.mark.parametrize("pattern", ["a/b", "a/*", "a/b*", "a/>", ">", "c/d/*"])
def test_removing_what_is_not_there_is_an_error_and_changes_nothing(pattern: str) -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.add("a/*", 1)
    trie.add("a/b", 1)
    with pytest.raises(KeyError):
        trie.remove(pattern, 2)
    assert len(trie) == 2
    trie.validate()


def test_a_level_may_start_with_many_prefixes() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for length in range(1, 60):
        trie.add("x/" + "a" * length + "*", f"{length}")
        trie.add("x/b" + "a" * length + "*", "no")
    assert trie.match("x/" + "a" * 30) == [f"{length}" for length in range(1, 31)]
    trie.remove("x/" + "a" * 7 + "*", "7")
    assert "7" not in trie.match("x/" + "a" * 30)
    trie.validate()


@settings(deadline=None)
@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_may_be_asked_for(pattern: str, topic: str) -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.add(pattern, 1)
    assert trie.match(topic) == ([1] if matches(pattern, topic) else [])


class _Answer(CacheEntry, eq=False):
    """What brute force said when the entry was made."""

    patterns: frozenset[str]


class _Model:
    """A cache in use: filters come and go, and each lookup is compared with the truth."""

    def __init__(self, entries_max: int) -> None:
        self.dropped: list[_Answer] = []
        self.made = 0
        self.patterns: set[str] = set()
        self.cache: TopicCache[_Answer] = TopicCache(self.dropped.append, entries_max)

    def truth(self, topic: str) -> frozenset[str]:
        return frozenset(pattern for pattern in self.patterns if matches(pattern, topic))

    def toggle(self, pattern: str) -> None:
        self.patterns ^= {pattern}
        self.cache.changed(pattern)

    def look_up(self, topic: str) -> None:
        entry = self.cache.get(topic)
        if entry is None:
            entry = _Answer(self.truth(topic))
            self.made += 1
            self.cache.put(topic, entry)
        assert entry.patterns == self.truth(topic), topic
        assert self.cache.entries[topic].valid_at == self.cache.number

    def check(self) -> None:
        self.cache.validate()
        assert len(self.cache) + len(self.dropped) == self.made
        assert self.cache.evicted + self.cache.dropped == len(self.dropped)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), PATTERNS),
        st.tuples(st.just("look_up"), TOPICS),
        st.tuples(st.sampled_from(["age", "sweep"]), st.just("")),
    )
)


@pytest.mark.slow
@given(_STEPS, st.integers(1, 6), st.integers(1, 4))
def test_the_cache_never_answers_what_fresh_matching_would_not(
    steps: list[tuple[str, str]], entries_max: int, log_max: int
) -> None:
    model = _Model(entries_max)
    before = change_log.CHANGE_LOG_MAX
    change_log.CHANGE_LOG_MAX = log_max  # type: ignore[misc]
    try:
        for action, text in steps:
            if action == "toggle":
                model.toggle(text)
            elif action == "age":
                model.cache.age()
            elif action == "sweep":
                model.cache.sweep(2)
            else:
                model.look_up(text)
            model.check()
    finally:
        change_log.CHANGE_LOG_MAX = before  # type: ignore[misc]


def _filled(topics: list[str], entries_max: int = 100) -> _Model:
    model = _Model(entries_max)
    for topic in topics:
        model.look_up(topic)
    return model


@pytest.mark.parametrize("pattern", ["a/b", "a/*", "a/>", "*/b", ">"])
def test_a_change_drops_only_the_topics_that_it_touches(pattern: str) -> None:
    topics = ["a/b", "a/c", "c", "c/b", "$S/b"]
    model = _filled(topics)
    model.toggle(pattern)
    assert [topic for topic in topics if model.cache.get(topic) is None] == [
        topic for topic in topics if matches(pattern, topic)
    ]
    model.check()


def _file_changes(model: _Model) -> None:
    """Let tests of other topics put all changes into the trie."""
    for _ in range(change_log.CHANGE_LOG_LEVELS_MAX // change_log.INDEXED_LEVELS_MAX + 2):
        model.cache.log.is_untouched("other", model.cache.log.forgotten)


@pytest.mark.requirement("R278")
def test_one_test_files_some_changes_and_knows_nothing_if_there_are_more() -> None:
    """All at once took 10 ms, in which nobody else was served."""
    topics = [f"a/{number}" for number in range(20)]
    model = _filled(topics)
    for number in range(change_log.INDEXED_LEVELS_MAX):
        model.toggle(f"x/{number}/*")
    costs, found = [], []
    for topic in topics:
        before = model.cache.log.tested
        found.append(model.cache.get(topic))
        costs.append(model.cache.log.tested - before)
    assert max(costs) <= change_log.INDEXED_LEVELS_MAX + 8
    assert found[:2] == [None, None]
    assert all(found[3:]), "the third one filed the rest"
    model.check()


def test_changes_beyond_the_log_make_a_miss() -> None:
    model = _filled(["a/b"])
    for number in range(change_log.CHANGE_LOG_MAX // 2):
        model.toggle(f"x/{number}/*")
    _file_changes(model)
    assert model.cache.get("a/b") is not None
    for number in range(change_log.CHANGE_LOG_MAX + 1):
        model.toggle(f"y/{number}/*")
    assert model.cache.get("a/b") is None
    model.check()


def test_the_same_filter_coming_and_going_takes_one_place_in_the_log() -> None:
    model = _filled(["a/b", "x/y"])
    for _ in range(change_log.CHANGE_LOG_MAX):
        model.toggle("x/*")
        model.toggle("z/*")
    assert model.cache.get("a/b") is not None
    assert model.cache.get("x/y") is None
    model.check()


@pytest.mark.requirement("R278")
def test_changes_that_no_lookup_asks_about_are_not_put_into_a_trie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that subscribes to thousands of filters, or leaves with them, costs no more than a note of each."""
    model = _filled(["a/b"])
    added: list[str] = []
    monkeypatch.setattr(FilterTrie, "add", lambda _, pattern, __: added.append(pattern))
    monkeypatch.setattr(FilterTrie, "remove", lambda *_: pytest.fail("taken out one by one"))
    for number in range(10 * change_log.CHANGE_LOG_MAX):
        model.cache.changed(f"y/{number}/*")
    assert not added
    model.look_up("a/b")  # older than the log, so it is matched again
    for number in range(10):
        model.cache.changed(f"z/{number}/*")
    model.look_up("a/b")
    assert "z/9/*" in added
    assert len(added) <= change_log.CHANGE_LOG_MAX // 2


def test_an_entry_that_was_tested_is_not_tested_again() -> None:
    model = _filled(["a/b"])
    model.toggle("x/*")
    entry = model.cache.get("a/b")
    assert entry is not None
    assert entry.valid_at == model.cache.number


def test_a_change_with_nothing_cached_is_not_even_logged() -> None:
    model = _Model(10)
    model.toggle("a/*")
    assert model.cache.number == 0
    model.look_up("a/b")
    model.check()


def test_the_oldest_entry_leaves_a_full_cache() -> None:
    model = _filled(["a", "b", "c"], entries_max=2)
    assert list(model.cache.entries) == ["b", "c"]
    assert model.cache.evicted == 1
    model.check()


@pytest.mark.requirement("R279")
def test_the_oldest_entries_leave_a_cache_that_has_too_many_bytes() -> None:
    size = 40 + getsizeof("a")
    cache: TopicCache[_Answer] = TopicCache(lambda _: None, bytes_max=2 * size, entry_bytes=40)
    for topic in ("a", "b", "c"):
        cache.put(topic, _Answer(frozenset()))
        cache.validate()
    assert (list(cache.entries), cache.bytes, cache.evicted) == (["b", "c"], 2 * size, 1)
    large = "l" * 250
    cache.put(large, _Answer(frozenset()))
    assert (list(cache.entries), cache.bytes) == ([large], 40 + getsizeof(large))
    cache.changed(large)
    assert (len(cache), cache.bytes) == (0, 0)


@pytest.mark.requirement("R279")
def test_topics_beyond_ascii_that_leave_a_cache_leave_nothing_of_their_charge() -> None:
    cache: TopicCache[_Answer] = TopicCache(lambda _: None, bytes_max=1_000, entry_bytes=40)
    for number in range(50):
        cache.put(f"Straße/\N{SLICE OF PIZZA}/{number}", _Answer(frozenset()))
        cache.validate()
        for topic in cache.entries:
            msgspec.msgpack.encode(topic)  # the interpreter keeps what that took beside the text
            cache.validate()
    assert len(cache) < 10
    cache.drop_oldest(50)
    assert cache.bytes == 0


@pytest.mark.requirement("R279")
def test_a_sweep_drops_what_is_wrong_and_keeps_the_rest_although_nobody_looks_it_up() -> None:
    model = _filled([f"{first}/{number}" for number in range(5) for first in "ab"])
    assert not model.cache.sweep(100)
    assert len(model.cache) == 10
    model.toggle("a/*")
    assert model.cache.sweep(3)
    model.check()
    assert len(model.cache) == 8
    assert not model.cache.sweep(100)
    assert sorted(model.cache.entries) == [f"b/{number}" for number in range(5)]
    assert all(entry.valid_at == model.cache.number for entry in model.cache.entries.values())
    model.check()


@pytest.mark.requirement("R278", "R279")
def test_a_sweep_drops_what_it_has_no_time_to_test() -> None:
    """Filters that overlap at each level made tests dear; what nobody asked for stayed for a minute then."""
    topics = [f"{'a/' * 6}{number}" for number in range(1_000)]
    model = _filled(topics, entries_max=len(topics))
    for number in range(1 << 6):
        levels = ["*" if number >> level & 1 else "a*" for level in range(6)]
        model.toggle("/".join([*levels, "x"]))
    _file_changes(model)
    costs, is_over = [], False
    while not is_over:
        before = model.cache.log.tested
        is_over = not model.cache.sweep(100)
        costs.append(model.cache.log.tested - before)
        model.check()
    assert len(costs) == 10, "as many steps as if tests cost nothing"
    assert max(costs) < 3_000, "and none of them takes longer for it"
    assert 100 < len(model.cache) < 500
    kept = len(model.cache)
    model.toggle("b/*")
    _file_changes(model)
    assert not model.cache.sweep(1_000)
    assert len(model.cache) == kept, "what there is time for is tested"
    model.check()


@pytest.mark.requirement("R279")
def test_changes_without_end_are_kept_in_the_same_two_objects() -> None:
    """New ones, made while memory is full of what goes, would each keep an arena of a megabyte."""

    def generations() -> list[int]:
        return sorted(id(one) for one in gc.get_objects() if type(one) is change_log._Generation)

    model = _filled(["a/b"])
    before = generations()
    for number in range(2 * change_log.CHANGE_LOG_MAX):
        model.toggle(f"x/{number}/*")
    assert model.cache.log.forgotten > 0
    model.check()
    assert generations() == before
    while model.cache.sweep(10):
        pass
    assert not len(model.cache.log)
    assert generations() == before
    model.check()


@pytest.mark.requirement("R279")
def test_changes_are_kept_up_to_so_many_levels() -> None:
    model = _filled(["a/b"])
    long = "/x" * 99 + "/*"
    for number in range(change_log.CHANGE_LOG_LEVELS_MAX // 202):
        model.toggle(f"{number}{long}")
    model.check()
    _file_changes(model)
    assert model.cache.get("a/b") is not None
    for number in range(change_log.CHANGE_LOG_LEVELS_MAX // 101 + 1):
        model.toggle(f"y{number}{long}")
        model.cache.validate()
    assert model.cache.get("a/b") is None


@pytest.mark.requirement("R279")
def test_a_complete_sweep_forgets_the_changes_and_later_ones_count() -> None:
    model = _filled(["a/b", "b/b"])
    model.toggle("x/*")
    assert not model.cache.sweep(10)
    assert not len(model.cache.log)
    model.check()
    assert model.cache.get("a/b") is not None
    model.toggle("a/*")
    assert model.cache.get("a/b") is None
    assert model.cache.get("b/b") is not None
    model.check()


@pytest.mark.requirement("R279")
def test_a_sweep_drops_what_is_older_than_the_log() -> None:
    model = _filled(["a/b"])
    for number in range(change_log.CHANGE_LOG_MAX + 1):
        model.toggle(f"y/{number}/*")
    assert not model.cache.sweep(1)
    assert len(model.cache) == 0
    model.check()


@pytest.mark.requirement("R279")
def test_what_nobody_asks_for_is_forgotten_by_the_second_sweep_that_looks_for_it() -> None:
    model = _filled([f"{first}/{number}" for number in range(5) for first in "ab"])
    cache = model.cache
    cache.age()
    assert not cache.sweep(100)
    assert len(cache) == 10, "nobody knows yet what is asked for"
    model.toggle("x/*")
    assert not cache.sweep(100)
    assert len(cache) == 10, "a sweep after a change does not look for it"
    for number in range(5):
        model.look_up(f"a/{number}")
    cache.age()
    assert cache.sweep(4)
    model.check()
    model.toggle("y/*")  # in the middle
    while cache.sweep(4):
        model.check()
    assert sorted(cache.entries) == [f"a/{number}" for number in range(5)]
    model.look_up("a/1")
    cache.age()
    while cache.sweep(4):
        model.check()
    assert list(cache.entries) == ["a/1"]


@pytest.mark.requirement("R279")
def test_the_table_of_what_was_idle_is_given_back_too() -> None:
    cache: TopicCache[_Answer] = TopicCache(lambda _: None)
    for number in range(20_000):
        cache.put(f"a/{number}", _Answer(frozenset()))
    before = sys.getsizeof(cache.entries)
    for _ in range(2):
        cache.age()
        while cache.sweep(1_000):
            pass
    assert len(cache) == 0
    assert sys.getsizeof(cache.entries) < before / 50


@pytest.mark.requirement("R279")
def test_a_sweep_gives_back_the_table_of_entries_that_it_dropped() -> None:
    cache: TopicCache[_Answer] = TopicCache(lambda _: None)
    for number in range(20_000):
        cache.put(f"a/{number}", _Answer(frozenset()))
    for number in range(100):
        cache.put(f"b/{number}", _Answer(frozenset()))
    before = sys.getsizeof(cache.entries)
    cache.changed("a/*")
    while cache.sweep(1_000):
        pass
    assert list(cache.entries) == [f"b/{number}" for number in range(100)]
    assert sys.getsizeof(cache.entries) < before / 50
    cache.validate()


def test_a_cache_can_be_dropped_in_steps() -> None:
    model = _filled(["a", "b", "c"])
    model.cache.drop_oldest(2)
    assert list(model.cache.entries) == ["c"]
    model.cache.drop_oldest(2)
    assert len(model.cache) == 0
    assert len(model.dropped) == 3


@settings(deadline=None)
@given(PATTERNS)
def test_has_wildcard_says_whether_a_pattern_can_match_anything_but_itself(pattern: str) -> None:
    candidates = [pattern.replace("*", "xy").replace(">", "x/y"), pattern.replace("*", "").replace(">", "x")]
    if not has_wildcard(pattern):
        assert not any(matches(pattern, topic) for topic in candidates if topic != pattern)
