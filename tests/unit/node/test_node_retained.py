"""What a lane retains: the newest message of each topic, compared with a dict, whatever happens in between."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.topic import matches, parse_filter
from node.backlog.segment import POSITION_MAX
from node.endpoints import retained
from node.endpoints.retained import Page, Retained, SortedTopics, literal_prefix
from tests.share import short
from tests.unit.node.lane_driver import Driver, checked_drivers, merged, row

if TYPE_CHECKING:
    from collections.abc import Iterator

PLENTY = 1 << 40


@pytest.fixture
def make() -> Iterator[type[Driver]]:
    yield from checked_drivers()


def kept(driver: Driver) -> Retained:
    assert driver.lane.retained is not None
    return driver.lane.retained


def put(driver: Driver, *topics: str, payload: bytes = b"x", ttl: int = 0) -> None:
    driver.put(*[row(i, topic=topic, payload=payload, ttl=ttl) for i, topic in enumerate(topics)])


def on_disk(driver: Driver) -> None:
    """Have everything on disk, and what was replaced removed."""
    kept(driver).stored_upto = driver.lane.next_position - 1
    while driver.lane.wants_effort:
        driver.tick()


def page(
    driver: Driver, wanted: str = ">", after: str = "", *, upto: int = POSITION_MAX, size: int = PLENTY
) -> Page:
    return kept(driver).page(parse_filter(wanted), after, upto, size, driver.wall_ms)


def read(driver: Driver, wanted: str = ">", **limits: Any) -> dict[str, int]:
    """Read all pages; gives topic -> position."""
    found: dict[str, int] = {}
    after = ""
    for _ in range(10_000):
        one = page(driver, wanted, after, **limits)
        topics = [at.topic for at in one.found]
        assert topics == sorted(topics)
        assert all(topic > after for topic in topics)
        found.update((at.topic, at.segment.first + at.row) for at in one.found)
        if one.next is None:
            return found
        assert one.next > after
        after = one.next
    raise AssertionError("the pages have no end")


def test_the_newest_message_of_a_topic_is_kept(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b", "a")
    put(driver, "b", "c")
    assert read(driver) == {"a": 3, "b": 4, "c": 5}
    on_disk(driver)
    assert driver.positions() == [3, 4, 5]
    assert driver.lane.stats()["replaced"] == 2


def test_what_is_replaced_stays_until_the_new_one_is_on_disk(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b")
    on_disk(driver)
    put(driver, "a")
    put(driver, "b")
    assert not driver.lane.wants_effort
    assert read(driver) == {"a": 3, "b": 4}
    assert driver.positions() == [1, 2, 3, 4]
    kept(driver).stored_upto = 3
    assert driver.lane.wants_effort
    driver.tick()
    assert driver.positions() == [2, 3, 4]


def test_a_message_without_payload_ends_its_topic_and_goes_with_what_it_ended(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b")
    on_disk(driver)
    put(driver, "a", "never", payload=b"")
    assert read(driver) == {"b": 2}
    assert driver.positions() == [1, 2, 3, 4]
    on_disk(driver)
    assert driver.positions() == [2]
    put(driver, "a")
    assert read(driver) == {"a": 5, "b": 2}


def test_a_topic_may_end_and_begin_again_in_one_batch(make: type[Driver]) -> None:
    driver = make(retains=True)
    driver.put(
        *[row(i, topic="a", payload=payload) for i, payload in enumerate((b"1", b"", b"2", b"", b"3"))]
    )
    assert read(driver) == {"a": 5}
    on_disk(driver)
    assert driver.positions() == [5]


def test_what_has_expired_is_not_given_whether_it_was_removed_or_not(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", ttl=1_000)
    put(driver, "b")
    driver.pass_ms(999)
    assert read(driver) == {"a": 1, "b": 2}
    driver.pass_ms(1)
    assert read(driver) == {"b": 2}
    driver.tick()
    assert driver.positions() == [2]
    assert read(driver) == {"b": 2}


def test_an_expired_message_does_not_bring_back_the_one_that_it_replaced(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a")
    put(driver, "a", ttl=1_000)
    driver.pass_ms(2_000)
    driver.tick()
    assert driver.positions() == [1]
    assert read(driver) == {}
    on_disk(driver)
    assert driver.positions() == []


def test_deleted_and_purged_messages_are_not_given(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b", "c")
    driver.gone(2)
    assert read(driver) == {"a": 1, "c": 3}
    assert driver.lane.purge() == 2
    assert read(driver) == {}
    assert len(kept(driver)) == 0
    put(driver, "a")
    assert read(driver) == {"a": 4}


def test_what_is_being_moved_is_not_given_and_is_there_again_if_it_stays(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a")
    found = driver.lane.find(1)
    assert found is not None
    assert driver.lane.take(*found)
    assert read(driver) == {}
    driver.lane.kept(*found, driver.now, driver.wall_ms)
    assert read(driver) == {"a": 1}


def test_newer_messages_than_a_position_are_left_out(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b")
    put(driver, "a", "c")
    assert read(driver, upto=2) == {"b": 2}, "nobody gets an older one in the place of a newer one"


def test_the_index_is_made_again_after_a_restart_with_old_and_new_on_disk(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b", "c", "d")
    put(driver, "a", "b")
    put(driver, "c", payload=b"")
    driver.restart(clean=False)
    assert driver.lane.wants_effort
    assert not kept(driver).is_complete(driver.lane.next_position)
    on_disk(driver)
    assert kept(driver).is_complete(driver.lane.next_position)
    assert read(driver) == {"a": 5, "b": 6, "d": 4}
    assert driver.positions() == [4, 5, 6]


def test_messages_that_come_below_others_are_in_the_index_too(make: type[Driver]) -> None:
    """A lane that is taken over may be looked at before its older messages are given to it."""
    driver = make(retains=True)
    put(driver, "a", "b", "c")
    put(driver, "a")
    driver.restart(clean=True)
    full, driver.lane = driver.lane, driver.make_lane(driver.lane.settings, 5, 0)
    driver.tick()
    assert kept(driver).is_complete(5)
    for segment in full.segments:
        driver.lane.load(segment, driver.now, driver.wall_ms)
    assert not kept(driver).is_complete(5)
    on_disk(driver)
    assert read(driver) == {"a": 4, "b": 2, "c": 3}


def test_a_start_takes_bounded_steps_and_stops_for_want_of_effort(
    make: type[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "STEP_ROWS", 10)
    driver = make(retains=True)
    for first in range(0, 100, 25):
        put(driver, *[f"t/{first + i}" for i in range(25)])
    driver.restart(clean=True)
    ticks = 0
    while not kept(driver).is_complete(101):
        driver.tick()
        ticks += 1
        assert len(kept(driver)) <= 10 * ticks
    assert ticks == 10
    driver.restart(clean=True)
    driver.effort.left = 3 * retained.TOPIC_STEPS
    driver.tick()
    assert len(kept(driver)) == 3
    driver.effort.left = 0
    driver.tick()
    assert len(kept(driver)) == 3
    assert driver.lane.wants_effort


def test_a_damaged_block_hides_its_messages_and_replaces_nothing(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b")
    put(driver, "a")
    driver.restart(clean=True)
    driver.damaged.append(2)
    on_disk(driver)
    assert read(driver) == {"a": 1, "b": 2}
    assert driver.positions() == [1, 2, 3]
    assert driver.lane.stats()["unreadable"] == 1


def test_merged_segments_need_no_change_of_the_index(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, "a", "b", "c")
    put(driver, "b", "d")
    on_disk(driver)
    old = list(driver.lane.segments)
    driver.lane.replace(old, merged(driver, old))
    assert read(driver) == {"a": 1, "b": 4, "c": 3, "d": 5}
    put(driver, "a", "c")
    on_disk(driver)
    assert driver.positions() == [4, 5, 6, 7]


def test_the_index_shrinks_with_the_messages(make: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "GONE_MAX", 20)
    monkeypatch.setattr(retained, "STEP_ROWS", 7)
    driver = make(retains=True)
    for round_ in range(20):
        put(driver, *[f"t/{round_}/{i}" for i in range(50)], ttl=1_000)
        on_disk(driver)
        driver.pass_ms(1_000)
        driver.tick()
        on_disk(driver)
        assert len(kept(driver)) <= 20
    assert driver.positions() == []


def test_a_page_has_so_many_bytes_and_at_least_one_message(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, *[f"t/{i}" for i in range(10)], payload=b"x" * 36)
    one = page(driver, size=250)
    assert ([at.topic for at in one.found], one.next) == (["t/0", "t/1"], "t/1")
    one = page(driver, after="t/1", size=1)
    assert ([at.topic for at in one.found], one.next) == (["t/2"], "t/2")
    assert page(driver, after="t/8", size=1) == Page([page(driver).found[9]], None)
    assert page(driver, after="t/9") == Page([], None)
    assert len(read(driver, size=150)) == 10


def test_a_page_looks_at_so_many_topics(make: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "PAGE_TOPICS", 5)
    driver = make(retains=True)
    put(driver, *[f"t/{i:02}/x" for i in range(20)], "t/17/y")
    pages = []
    after: str | None = ""
    while after is not None:
        one = page(driver, "t/*/y", after)
        pages.append(([at.topic for at in one.found], one.next))
        after = one.next
    assert pages[:2] == [([], "t/04/x"), ([], "t/09/x")]
    assert [topic for topics, _ in pages for topic in topics] == ["t/17/y"]


def test_looking_leaves_half_of_the_effort_for_reading(make: type[Driver]) -> None:
    driver = make(retains=True)
    put(driver, *[f"t/{i:02}" for i in range(50)])
    driver.effort.left = 20 * retained.TOPIC_STEPS
    one = page(driver)
    assert (len(one.found), one.next) == (11, "t/10")
    assert driver.effort.left == 9 * retained.TOPIC_STEPS
    driver.effort.left = 20 * retained.TOPIC_STEPS
    assert page(driver, "*/49") == Page([page(driver, "t/49").found[0]], None)


def test_an_exact_filter_looks_at_one_topic(make: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make(retains=True)
    put(driver, *[f"t/{i}" for i in range(50)])
    monkeypatch.setattr(SortedTopics, "since", None)
    assert [at.topic for at in page(driver, "t/7").found] == ["t/7"]
    assert [at.topic for at in page(driver, "#noexport/t/7").found] == ["t/7"]
    assert page(driver, "t/7", "t/7") == Page([], None)
    assert page(driver, "t/99") == Page([], None)


@pytest.mark.parametrize(
    ("wanted", "prefix"),
    [
        (">", ""),
        ("*", ""),
        ("a/>", "a/"),
        ("a/*/c", "a/"),
        ("a/b*", "a/b"),
        ("a/b*/c", "a/b"),
        ("a/>/c", "a/>/c"),
        ("a/*b/>", "a/*b/"),
        ("#share/g/a/>", "a/"),
    ],
)
def test_what_a_filter_matches_begins_with_its_prefix(wanted: str, prefix: str) -> None:
    assert literal_prefix(parse_filter(wanted)) == prefix


_LEVELS = st.sampled_from(["a", "b", "ab", "$s", "", "*b", ">", "é"])
_TOPICS = st.lists(_LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
_WANTED = (
    st.lists(st.sampled_from(["a", "b", "*", "a*", "$s*", "*b", "", ">"]), min_size=1, max_size=3)
    .map("/".join)
    .filter(bool)
)


@given(st.lists(_TOPICS, unique=True, max_size=30), _WANTED, st.integers(1, 5))
def test_a_filter_finds_what_it_matches(topics: list[str], wanted: str, messages: int) -> None:
    driver = Driver(retains=True)
    if topics:
        put(driver, *topics, payload=b"")
        put(driver, *topics)
    expected = sorted(topic for topic in topics if matches(wanted, topic))
    assert list(read(driver, wanted, size=messages * 65)) == expected
    driver.lane.validate()


@given(st.lists(st.tuples(st.booleans(), _TOPICS), max_size=200), st.integers(2, 6))
def test_topics_stay_sorted(changes: list[tuple[bool, str]], chunk: int) -> None:
    topics, model = SortedTopics(), set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained, "CHUNK_TOPICS", chunk)
        for adds, topic in changes:
            if adds and topic not in model:
                topics.add(topic)
                model.add(topic)
            elif not adds and topic in model:
                topics.remove(topic)
                model.remove(topic)
            topics.validate()
    assert list(topics.since("")) == sorted(model)
    assert list(topics.since("b")) == [topic for topic in sorted(model) if topic >= "b"]


class Model:
    """What is to be found: topic -> position and end of the newest message."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[int, int]] = {}

    def put(self, topic: str, position: int, ends_ms: int, *, is_end: bool) -> None:
        self.newest.pop(topic, None)
        if not is_end:
            self.newest[topic] = position, ends_ms

    def at(self, wall_ms: int) -> dict[str, int]:
        return {
            topic: position
            for topic, (position, ends_ms) in sorted(self.newest.items())
            if not ends_ms or wall_ms < ends_ms
        }


@pytest.mark.parametrize("seed", range(short(6, long=40)))
def test_whatever_happens_the_newest_messages_are_found(seed: int) -> None:
    chance = random.Random(seed)
    driver, model = Driver(retains=True), Model()
    topics = [f"{chance.choice('ab')}/{i}" for i in range(chance.choice([3, 40]))]
    for _ in range(120):
        _do_something(chance, driver, model, topics)
        if kept(driver).is_complete(driver.lane.next_position):
            assert read(driver, size=chance.choice([1, 500, PLENTY])) == model.at(driver.wall_ms)
        driver.lane.validate()
    on_disk(driver)
    assert driver.positions() == sorted(model.at(driver.wall_ms).values())


def _do_something(chance: random.Random, driver: Driver, model: Model, topics: list[str]) -> None:
    what = chance.randrange(12)
    if what < 5:
        rows = []
        for i in range(chance.randint(1, 8)):
            topic, is_end, ttl = chance.choice(topics), chance.random() < 0.2, chance.choice([0, 0, 500])
            rows.append(row(i, topic=topic, payload=b"" if is_end else b"x", ttl=ttl))
            ends_ms = driver.wall_ms + ttl if ttl else 0
            model.put(topic, driver.lane.next_position + i, ends_ms, is_end=is_end)
        driver.put(*rows)
    elif what < 7:
        kept(driver).stored_upto = chance.randint(kept(driver).stored_upto, driver.lane.next_position - 1)
        driver.tick()
    elif what < 9:
        driver.pass_ms(chance.choice([1, 100, 600]))
        driver.tick()
    elif what == 9 and model.newest:
        topic = chance.choice(sorted(model.newest))
        position, _ = model.newest.pop(topic)
        if driver.lane.find(position) is not None:
            driver.gone(position)
    elif what == 10 and chance.random() < 0.2:
        driver.lane.purge()
        model.newest.clear()
    elif what == 11:
        # What is lost is in order: the newest goes from the disk with all that it replaced.
        on_disk(driver)
        driver.store()
        driver.restart(clean=chance.random() < 0.5)
        on_disk(driver)
