"""The rules for retained messages object to every kind of broken promise, and nodes with a fault are found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from node.endpoints.retained import Retained as Index
from router.delivery.crowds import Crowd, Crowds
from router.sessions.splice import Splice
from tests.simulation.guaranteed.mutations import is_found
from tests.simulation.guaranteed.retained_records import Got, Pages, Reading
from tests.simulation.guaranteed.written import Written, place_of
from tests.simulation.written_history import END

if TYPE_CHECKING:
    from collections import deque

    from tests.simulation.guaranteed.records import Publication

pytestmark = pytest.mark.requirement("R248", "R249")

TOPIC = "r/1"
RETAINED = wire.FLAG_RETAIN | wire.MODE_PERSISTENT


class Kept:
    """A Message VPN that retains two messages of one topic after each other, and somebody who reads then."""

    def __init__(self) -> None:
        self.written = written = Written()
        self.queue = written.queue(wire.RETAINED_QUEUE)
        written.history.drained.clear()
        self.old, self.new = self.publish(), self.publish()
        written.gone(place_of(self.queue, 1))
        written.now += 0.1

    def publish(self, **traits: Any) -> Publication:
        return self.written.publish(TOPIC, self.queue, flags=RETAINED, **traits)

    def read(self, *whats: str, is_live: bool = False) -> Reading:
        """Read once, up to the last page."""
        written = self.written
        subscriber = written.base.connect("reader")
        subscriber.answers.append((END, END))
        made = Reading(subscriber, ("r/>",), is_live=is_live)
        made.begun_at = written.now
        pages = Pages("r/>", written.now)
        pages.rows = [(TOPIC, what) for what in whats]
        written.now += 0.1
        made.pages.append(pages)
        made.done_at = pages.done_at = written.now
        made.got = [Got(TOPIC, what, written.now, is_retained=True) for what in whats]
        written.history.readings.append(made)
        return made

    def rules(self) -> list[str]:
        return self.written.rules()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def give(kept: Kept, reading: Reading, *sent: Publication) -> None:
    for one in sent:
        reading.got.append(Got(TOPIC, f"g{one.number}", kept.written.now, is_retained=False))
        kept.written.now += 0.1


@pytest.mark.parametrize("is_live", [False, True])
def test_who_reads_the_newest_and_gets_what_follows_is_good(kept: Kept, is_live: bool) -> None:
    reading = kept.read("g1", is_live=is_live)
    give(kept, reading, kept.publish())
    assert kept.rules() == []


def test_a_message_that_was_replaced_and_is_read_is_found_out(kept: Kept) -> None:
    kept.read("g0")
    assert "retained-stale" in kept.rules()


def test_a_message_that_is_not_read_is_found_out(kept: Kept) -> None:
    kept.read()
    assert kept.rules() == ["retained-lost"]


def test_nothing_is_read_when_an_empty_message_ended_it(kept: Kept) -> None:
    kept.publish(is_empty=True)
    for position in (2, 3):
        kept.written.gone(place_of(kept.queue, position))
    kept.written.now += 0.1
    kept.read()
    assert kept.rules() == []
    kept.read("g1")
    assert kept.rules() == ["retained-stale"]


def test_an_empty_message_that_is_read_is_found_out(kept: Kept) -> None:
    kept.publish(is_empty=True)
    kept.read("g2")
    assert kept.rules() == ["retained-stale"]


def test_a_page_with_one_topic_twice_is_found_out(kept: Kept) -> None:
    kept.read("g1", "g1")
    assert kept.rules() == ["retained-page"]


def test_a_message_that_is_not_to_be_retained_and_is_read_is_found_out(kept: Kept) -> None:
    plain = kept.written.publish(TOPIC)
    kept.read("g1").pages[0].rows = [(TOPIC, f"g{plain.number}")]
    assert kept.rules() == ["retained-page"]


def test_a_message_that_comes_live_and_was_read_is_found_out(kept: Kept) -> None:
    reading = kept.read("g1", is_live=True)
    give(kept, reading, kept.new)
    assert kept.rules() == ["retained-twice"]


def test_an_older_message_behind_a_newer_one_is_found_out(kept: Kept) -> None:
    reading = kept.read("g1", is_live=True)
    give(kept, reading, kept.old)
    assert kept.rules() == ["retained-order"]


def test_a_message_between_reading_and_what_comes_live_that_is_missed_is_found_out(kept: Kept) -> None:
    reading = kept.read("g1", is_live=True)
    missed = kept.publish()
    assert kept.rules() == ["retained-missed"]
    give(kept, reading, missed)
    assert kept.rules() == []


def test_a_subscriber_who_is_given_nothing_of_what_was_there_is_found_out(kept: Kept) -> None:
    kept.read(is_live=True)
    assert kept.rules() == ["retained-missed"]


def test_a_message_that_its_publisher_has_replaced_and_that_is_behind_it_is_found_out(kept: Kept) -> None:
    kept.old.sequence, kept.new.sequence = kept.new.sequence, kept.old.sequence
    assert "retained-order" in kept.rules()


def test_a_message_that_goes_before_the_one_that_replaces_it_is_on_disk_is_found_out() -> None:
    kept = Kept()
    kept.written.gone(place_of(kept.queue, 2))
    kept.written.now += 0.1
    kept.publish()
    assert kept.rules() == ["vanished"]


@pytest.mark.parametrize(
    ("durability", "ttl_ms", "passed_s", "rules"),
    [
        ("relaxed", 50, 0.1, []),
        ("relaxed", 50, 0.01, ["vanished"]),
        ("relaxed", 0, 0.1, ["vanished"]),
        ("synced", 50, 0.1, ["lost", "vanished"]),
    ],
)
def test_a_message_may_go_when_its_successor_expired_before_it_was_written(
    durability: str, ttl_ms: int, passed_s: float, rules: list[str]
) -> None:
    """Where messages are acknowledged, and replace others, before they are on disk; not earlier, and nowhere else."""
    kept = Kept()
    kept.written.change(kept.queue, durability=durability)
    kept.written.publish(TOPIC, flags=RETAINED, ttl_ms=ttl_ms)
    kept.written.now += passed_s - 0.1
    kept.written.gone(place_of(kept.queue, 2))
    assert kept.rules() == rules


def test_an_older_message_without_payload_is_no_reason_to_go() -> None:
    written = Written()
    queue = written.queue(wire.RETAINED_QUEUE)
    written.history.drained.clear()
    written.publish(TOPIC, queue, flags=RETAINED, is_empty=True)
    written.publish(TOPIC, queue, flags=RETAINED)
    written.gone(place_of(queue, 1))
    written.gone(place_of(queue, 2))
    assert written.rules() == ["vanished"]


# -- nodes with a fault ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reading_that_does_not_note_what_comes_live_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Splice, "note", lambda self, topics: None)
    assert is_found("retained-twice", "retained-order", first=17)


@pytest.mark.slow
def test_a_router_that_gives_the_newest_to_very_many_first_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So routers with short steps have some that are retained on their way at the same time."""
    serve_first = Crowds._serve_first

    def serve_last(self: Crowds, line: deque[Crowd], now: float) -> None:
        line.reverse()
        serve_first(self, line, now)
        line.reverse()

    monkeypatch.setattr(Crowds, "_serve_first", serve_last)
    assert is_found("retained-order", first=20)


@pytest.mark.slow
def test_an_index_that_keeps_the_older_message_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Index._put

    def put_first(self: Index, topic: str, position: int, *, is_end: bool) -> None:
        older = self._newest.get(topic)
        if older is None or self._at(older) is None or is_end:
            put(self, topic, position, is_end=is_end)
        else:
            self._replaced.append((position, position))

    monkeypatch.setattr(Index, "_put", put_first)
    assert is_found("retained-stale")


@pytest.mark.slow
def test_a_message_that_goes_before_what_replaced_it_is_written_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def remove_at_once(self: Index) -> None:
        while self._replaced:
            self._remove_at(self._replaced.popleft()[1])

    monkeypatch.setattr(Index, "_remove_replaced", remove_at_once)
    assert is_found("vanished", "retained-lost")
