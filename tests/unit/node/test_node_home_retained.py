"""Retained messages at a home: what a reader gets, when it waits, and what a crash may and may not do to them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from angarium import errors, wire
from node.endpoints import retained
from node.endpoints.effort import STEPS_PER_TURN
from storage.spool import Table
from tests.share import short
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.adopting_home import Folder
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, row_of, settings_of

KEPT = {LANE: settings_of("#retained", retains=True), OTHER: settings_of("other")}
PLENTY = 1 << 30


def keeping(disk: SimulatedDisk | None = None) -> DrivenHome:
    """A home with a lane that retains messages, and one that does not."""
    driven = DrivenHome(disk)
    driven.start(ROUTER, KEPT)
    return driven


def topics(*names: str, payload: bytes | None = None, **fields: Any) -> list[list[Any]]:
    return [
        row_of(i, b"%d" % i if payload is None else payload, topic=name, **fields)
        for i, name in enumerate(names)
    ]


def ask(driven: DrivenHome, wanted: str = ">", after: str = "", upto: int = 0, size: int = PLENTY) -> int:
    return driven.lease("retained", wanted, after, upto, size)


def read(driven: DrivenHome, wanted: str = ">", size: int = PLENTY) -> dict[str, bytes]:
    """Read all pages; gives topic -> payload."""
    found: dict[str, bytes] = {}
    after, upto = "", 0
    for _ in range(1_000):
        value, rows = driven.leased_at_once("retained", wanted, after, upto, size)
        found.update((row[wire.ROW_TOPIC], row[wire.ROW_PAYLOAD]) for row in rows)
        upto, after = value
        if after is None:
            return found
    raise AssertionError("the pages have no end")


def messages(driven: DrivenHome) -> int:
    return int(driven.totals[LANE][0])


def test_a_reader_gets_the_rows_as_they_were_published() -> None:
    driven = keeping()
    rows = [
        row_of(3, b"one", topic="b", flags=wire.MODE_PERSISTENT | wire.FLAG_RETAIN, meta=[0, 0, 7, "key"]),
        row_of(9, b"two", topic="a", flags=wire.MODE_DIRECT | wire.FLAG_RETAIN),
    ]
    driven.store(([LANE], rows))
    driven.settle_down(0.1)
    assert driven.leased_at_once("retained", ">", "", 0, PLENTY) == ([2, None], [rows[1], rows[0]])
    assert driven.leased_at_once("retained", "b", "", 0, PLENTY) == ([2, None], [rows[0]])
    assert driven.leased_at_once("retained", "c/>", "", 0, PLENTY) == ([2, None], [])
    assert driven.home.stats()["retained_reads"] == 3
    assert driven.home.stats()["retained_rows_read"] == 3
    assert driven.home.stats()["retained_topics"] == 2


def test_the_time_to_live_of_a_row_is_what_is_left_of_it() -> None:
    driven = keeping()
    rows = topics("a", "b", "c", flags=wire.MODE_PERSISTENT | wire.FLAG_RETAIN)
    rows[0][wire.ROW_META] = [60_000, 0, 7, "key"]
    rows[1][wire.ROW_META] = [500, 0, None, None]
    driven.store(([LANE], rows))
    driven.settle_down(0.1)
    for _ in range(2):
        driven.settle_down(10.0)
        _, found = driven.leased_at_once("retained", ">", "", 0, PLENTY)
    left_ms = found[0][wire.ROW_META][0]
    assert 39_000 < left_ms <= 40_000
    assert found == [[*rows[0][:3], [left_ms, 0, 7, "key"], *rows[0][4:]], rows[2]]


def test_what_is_replaced_leaves_the_disk_after_what_replaced_it_is_there() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a", "b", payload=b"old")))
    driven.settle_down(0.1)
    driven.store(([LANE], topics("a", payload=b"new")), relaxed=True, producer=None)
    assert read(driven) == {"a": b"new", "b": b"old"}
    assert driven.home.lanes.get(LANE).lane.messages == 3  # type: ignore[union-attr]
    driven.settle_down(0.2)
    assert messages(driven) == 2
    assert driven.home.lanes.get(LANE).lane.stats()["replaced"] == 1  # type: ignore[union-attr]
    driven.store(([LANE], topics("a", "b", payload=b"")))
    driven.settle_down(0.2)
    assert read(driven) == {}
    assert messages(driven) == 0
    assert [driven.disk.count(table) for table in (Table.BLOCKS, Table.SEGMENTS, Table.STATES)] == [0, 0, 0]


def test_a_page_comes_while_more_is_published_than_goes_into_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = keeping()
    driven.store(([LANE], topics("a")))
    driven.settle_down()
    monkeypatch.setattr(retained, "STEP_ROWS", 10)
    number = 0

    def publish() -> None:
        nonlocal number
        number += 1
        driven.store(([LANE], topics(*[f"t/{number}/{i}" for i in range(20)])), relaxed=True, producer=None)

    publish()
    reference = ask(driven)
    for _ in range(10):
        publish()
        driven.tick()
    held = driven.home.lanes.get(LANE)
    assert held is not None
    assert held.lane.retained is not None
    assert held.lane.retained.is_behind(held.lane.next_position)
    assert reference in driven.leased
    assert {row[wire.ROW_TOPIC] for row in driven.leased[reference][1][1]} >= {"a", "t/1/0", "t/1/19"}


@pytest.mark.parametrize("relaxed", [False, True])
def test_the_first_page_waits_for_what_was_stored_before_it(relaxed: bool) -> None:
    driven = keeping()
    driven.store(([LANE], topics("a")), relaxed=relaxed, producer=None)
    reference = ask(driven)
    driven.tick()
    assert (reference in driven.leased) == relaxed, "a relaxed STORE is accepted before it is on disk"
    driven.store(([LANE], topics("b")))
    driven.settle_down()
    assert driven.leased[reference][1][1][0][wire.ROW_TOPIC] == "a"


def test_later_pages_leave_out_what_came_after_the_first() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a", "b", "c")))
    driven.settle_down()
    (upto, after), rows = driven.leased_at_once("retained", ">", "", 0, 1)
    assert (upto, after, len(rows)) == (3, "a", 1)
    driven.store(([LANE], topics("b", "d", payload=b"new")))
    driven.settle_down()
    value, rows = driven.leased_at_once("retained", ">", after, upto, PLENTY)
    assert (value, [row[wire.ROW_TOPIC] for row in rows]) == ([3, None], ["c"])


def test_a_later_page_waits_for_what_the_first_one_had_and_a_crash_took() -> None:
    driven = keeping()
    rows = topics("a", "b")
    number = driven.store(([LANE], rows), relaxed=True, producer=None)
    (upto, after), _ = driven.leased_at_once("retained", ">", "", 0, 1)
    driven.kill()
    driven.start(ROUTER, KEPT)
    reference = ask(driven, ">", after, upto)
    driven.settle_down()
    assert reference not in driven.leased
    driven.store(([LANE], rows), relaxed=True, producer=None, number=number)
    driven.tick()
    assert driven.leased[reference] == (0, ([2, None], rows[1:]))


def test_a_topic_that_is_replaced_while_its_reader_waits_for_the_index_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = keeping()
    driven.store(([LANE], topics("a")))
    driven.settle_down()
    monkeypatch.setattr(retained, "STEP_ROWS", 15)
    driven.store(([LANE], topics(*[f"t/{i}" for i in range(20)])), relaxed=True, producer=None)
    reference = ask(driven)
    driven.store(([LANE], topics("a", payload=b"newer")), relaxed=True, producer=None)
    assert reference not in driven.leased
    driven.settle_down(0.1)
    _, (value, rows) = driven.leased[reference]
    assert (value, len(rows)) == ([22, None], 21)
    assert rows[0][wire.ROW_PAYLOAD] == b"newer"


def test_after_a_restart_readers_wait_until_all_is_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "STEP_ROWS", 10)
    driven = keeping()
    for first in range(0, 100, 20):
        driven.store(([LANE], topics(*[f"t/{first + i:02}" for i in range(20)])))
    driven.settle_down()
    driven.restart()
    driven.start(ROUTER, KEPT)
    driven.kill()
    driven.send(wire.START, ROUTER, 1, bytes(1024))
    driven.lanes(KEPT, complete=True)
    references = [ask(driven, f"t/{i:02}") for i in (99, 0)]
    ticks = 0
    while not driven.leased:
        driven.tick()
        driven.write()
        ticks += 1
        assert ticks < 100
    assert ticks >= 10
    assert list(driven.leased) == references
    assert len(read(driven)) == 100


@pytest.mark.parametrize("clean", [True, False])
def test_old_and_new_on_disk_are_one_after_a_restart(clean: bool) -> None:
    driven = keeping()
    driven.store(([LANE], topics("a", "b", payload=b"old")))
    driven.settle_down()
    driven.store(([LANE], topics("a", "c", payload=b"new")))
    driven.store(([LANE], topics("b", payload=b"")))
    driven.tick()
    assert driven.write()
    if clean:
        driven.restart()
    else:
        driven.kill()
    assert driven.disk.count(Table.SEGMENTS) >= 2
    driven.start(ROUTER, KEPT)
    driven.settle_down(0.2)
    assert read(driven) == {"a": b"new", "c": b"new"}
    assert messages(driven) == 2
    driven.kill()
    driven.start(ROUTER, KEPT)
    assert read(driven) == {"a": b"new", "c": b"new"}


def test_operators_delete_and_purge_and_nothing_older_comes_back() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a", "b", payload=b"old")))
    driven.settle_down()
    driven.store(([LANE], topics("a", payload=b"new")))
    driven.settle_down(0.1)
    assert driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[3]) == 1
    assert read(driven) == {"b": b"old"}
    driven.kill()
    driven.start(ROUTER, KEPT)
    assert read(driven) == {"b": b"old"}
    driven.ask("endpoint.purge", lane_id=LANE)
    assert read(driven) == {}
    driven.store(([LANE], topics("b", payload=b"again")))
    assert read(driven) == {"b": b"again"}


def test_blocks_are_repacked_and_the_index_leads_to_them_all_the_same() -> None:
    driven = keeping()
    for round_ in range(4):
        for first in range(40):
            driven.store(([LANE], topics(f"t/{first}", payload=b"%d" % round_)))
            driven.settle_down()
    driven.settle_down(5.0)
    assert driven.home.stats()["merged_segments"] > 0
    expected = {f"t/{first}": b"3" for first in range(40)}
    assert read(driven, size=500) == expected
    driven.store(([LANE], topics("t/7", payload=b"new")))
    driven.settle_down(0.1)
    assert read(driven) == expected | {"t/7": b"new"}
    assert messages(driven) == 40
    driven.kill()
    driven.start(ROUTER, KEPT)
    assert read(driven) == expected | {"t/7": b"new"}


def test_a_lane_that_goes_to_another_home_has_all_it_retained() -> None:
    disks = {"0": SimulatedDisk(), "1": SimulatedDisk()}
    old = keeping(disks["1"])
    old.store(([LANE], topics("a", "b", "c", payload=b"old")))
    old.settle_down()
    old.store(([LANE], topics("b", payload=b"new")))
    old.settle_down(0.1)
    old.home.stop(old.now, old.wall_ms)
    old.settle_down()
    folder = Folder("0", disks)
    folder.running.add("1")
    driven = DrivenHome(disks["0"], neighbours=folder)
    driven.start(ROUTER, KEPT)
    driven.store(([LANE], topics("c", payload=b"newer")))
    reference = ask(driven)
    driven.settle_down(1.0)
    assert reference not in driven.leased
    folder.running.clear()
    driven.settle_down(10.0)
    assert [row[5] for row in driven.leased[reference][1][1]] == [b"old", b"new", b"newer"]
    driven.settle_down(0.2)
    assert messages(driven) == 3


def test_at_another_home_nothing_goes_before_what_replaced_it_is_on_disk() -> None:
    """While a lane is taken over, what comes has positions far above those it gets then."""
    disks = {"0": SimulatedDisk(), "1": SimulatedDisk()}
    old = keeping(disks["1"])
    old.store(([LANE], topics("a", payload=b"old")))
    old.settle_down()
    folder = Folder("0", disks)
    folder.running.add("1")
    driven = DrivenHome(disks["0"], neighbours=folder)
    driven.start(ROUTER, KEPT)
    driven.store(([LANE], topics("b")))
    driven.settle_down(1.0)
    folder.running.clear()
    driven.settle_down(10.0)
    driven.store(([LANE], topics("a", payload=b"new")), relaxed=True, producer=None)
    driven.tick()
    driven.store(([OTHER], topics("c")))
    assert driven.write()
    assert after_crash(driven)["a"] in (b"old", b"new")


def test_what_cannot_be_read_is_left_out_and_operators_are_told() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a")))
    driven.settle_down()
    driven.store(([LANE], topics("b")))
    driven.settle_down()
    driven.restart()
    driven.start(ROUTER, KEPT)
    key, value = driven.disk.scan(Table.BLOCKS)[0]
    assert len(read(driven)) == 2
    driven.home.parts.blocks._batches.drop(1)
    driven.home.parts.blocks._raws.drop(1)
    driven.disk.commit([(Table.BLOCKS, key, value[:-1])])
    assert list(read(driven)) == ["b"]
    assert [event["event"] for event in driven.told][-1] == "SYSTEM_AD_MESSAGES_UNREADABLE"
    assert list(read(driven)) == ["b"]
    assert driven.home.stats()["messages_unreadable"] == 1


def test_questions_that_have_no_answer_are_refused() -> None:
    driven = keeping()
    references = [
        driven.lease("retained", ">", "", 0, 1, lane_id=lane) for lane in (OTHER, 77 << wire.LANE_BITS)
    ]
    references.append(ask(driven, "a\0b"))
    driven.settle_down()
    assert [driven.leased[reference][0] for reference in references] == [
        errors.MALFORMED_FRAME,
        errors.UNKNOWN_ENDPOINT,
        errors.INVALID_FILTER,
    ]


def test_a_lane_that_is_deleted_refuses_who_waits_and_another_router_gets_no_old_answers() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a")))
    reference = ask(driven)
    driven.lanes({}, LANE)
    driven.settle_down()
    assert driven.leased[reference][0] == errors.UNKNOWN_ENDPOINT
    driven = keeping()
    driven.store(([LANE], topics("a")))
    reference = ask(driven)
    driven.start(ROUTER + 1, KEPT)
    driven.settle_down()
    assert reference not in driven.leased
    assert read(driven) == {"a": b"0"}


def test_a_page_ends_when_it_has_cost_a_turn() -> None:
    driven = keeping()
    for name in "abcd":
        driven.store(([LANE], topics(name, payload=b"x" * 600_000)))
        driven.settle_down()
    driven.restart()
    driven.start(ROUTER, KEPT)
    driven.settle_down()
    driven.home.parts.blocks._raws.drop(1)
    pages = []
    after, upto = "", 0
    while after is not None:
        (upto, after), rows = driven.leased_at_once("retained", ">", after, upto, PLENTY)
        pages.append(len(rows))
    assert sum(pages) == 4
    assert len(pages) >= 2


def test_many_topics_are_few_pages() -> None:
    driven = keeping()
    for first in range(0, 1_500, 250):
        driven.store(([LANE], topics(*[f"t/{number:04}" for number in range(first, first + 250)])))
        driven.settle_down()
    pages = []
    after, upto = "", 0
    while after is not None:
        (upto, after), rows = driven.leased_at_once("retained", ">", after, upto, PLENTY)
        pages.append(len(rows))
    assert sum(pages) == 1_500
    assert len(pages) <= 1_500 * retained.TOPIC_STEPS / (STEPS_PER_TURN / 2)


def test_a_queue_begins_and_ends_to_retain() -> None:
    driven = keeping()
    driven.store(([OTHER], topics("a", "b", "a")))
    driven.settle_down()
    driven.lanes({OTHER: settings_of("other", retains=True)})
    driven.settle_down(0.1)
    value, rows = driven.leased_at_once("retained", ">", "", 0, PLENTY, lane_id=OTHER)
    assert (value, [row[wire.ROW_TOPIC] for row in rows]) == ([3, None], ["a", "b"])
    assert driven.totals[OTHER][0] == 2
    driven.lanes({OTHER: settings_of("other")})
    driven.store(([OTHER], topics("a")))
    driven.settle_down(0.1)
    assert driven.totals[OTHER][0] == 3


def after_crash(driven: DrivenHome) -> dict[str, bytes]:
    """End router and home, so nobody sends again what was not on disk; gives what is found then."""
    driven.kill()
    driven.start(driven.router + 1, KEPT)
    return read(driven)


@pytest.mark.parametrize("ttl", [0, 5])
def test_what_was_replaced_leaves_the_disk_no_later_than_what_replaced_it(ttl: int) -> None:
    """The one shares its segment with others, and the newer one, which ended the topic or has expired, does not."""
    driven = keeping()
    driven.store(([LANE], topics("a", "b", payload=b"old")))
    driven.settle_down(0.1)
    meta = [ttl, 0, None, None] if ttl else None
    driven.store(([LANE], topics("a", payload=b"new" if ttl else b"", meta=meta)))
    assert driven.write()
    driven.tick()
    driven.pass_time(0.015)
    driven.tick()
    assert driven.home.stats()["segments_to_delete"] == 1
    assert driven.home.stats()["segments_to_update"] == 1
    driven.store(([OTHER], topics("c")))
    assert driven.write()
    assert after_crash(driven) == {"b": b"old"}


def test_what_expires_before_it_is_on_disk_takes_what_it_replaced_with_it() -> None:
    driven = keeping()
    driven.store(([LANE], topics("a", "b", payload=b"old")))
    driven.settle_down(0.1)
    number = driven.store(
        ([LANE], topics("a", payload=b"new", meta=[5, 0, None, None])), relaxed=True, producer=None
    )
    driven.tick()
    driven.pass_time(0.06)
    driven.tick()
    assert driven.write()
    driven.tick()
    assert driven.stored == number
    assert after_crash(driven) == {"b": b"old"}


def test_nothing_expires_after_a_start_before_it_is_known_what_it_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained, "STEP_ROWS", 1)
    driven = keeping()
    driven.store(([LANE], topics("a", payload=b"old")))
    driven.settle_down(0.1)
    driven.store(([LANE], topics("a", payload=b"new", meta=[5, 0, None, None])))
    assert driven.write()
    driven.pass_time(1.0)
    assert after_crash(driven) == {}
    driven.settle_down(0.1)
    assert messages(driven) == 0


class History:
    """What was published to each topic, and what of it was said to be on disk."""

    def __init__(self) -> None:
        #: Topic -> (STORE, payload or None, when it expires or 0), in order.
        self.writes: dict[str, list[tuple[int, bytes | None, int]]] = {}

    def allowed(self, topic: str, stored: int, wall_ms: int) -> list[bytes | None]:
        """Give what may be found of a topic after a crash."""
        writes = [(0, None, 0), *self.writes.get(topic, [])]
        last = max(at for at, write in enumerate(writes) if write[0] <= stored)
        return [None if ends and ends <= wall_ms else payload for _, payload, ends in writes[last:]]

    def collapse(self, found: dict[str, bytes]) -> None:
        """Begin again with what was found; it is on disk."""
        self.writes = {
            topic: [(0, found.get(topic), next((w[2] for w in writes if w[1] == found.get(topic)), 0))]
            for topic, writes in self.writes.items()
        }


@pytest.mark.parametrize("seed", range(short(10, long=60)))
def test_no_crash_leaves_neither_the_old_nor_the_new_nor_brings_back_what_was_replaced(seed: int) -> None:
    """Router and home end together, so nobody sends again what was not on disk."""
    chance = random.Random(seed)
    driven, history = keeping(), History()
    router = ROUTER
    payload = 0
    for _ in range(8):
        for _ in range(chance.randint(1, 25)):
            what = chance.randrange(10)
            if what < 5:
                rows = []
                for i in range(chance.randint(1, 5)):
                    payload += 1
                    topic, ttl = f"t/{chance.randrange(4)}", chance.choice([0, 0, 30])
                    body = b"" if chance.random() < 0.25 else b"%d" % payload
                    ends = driven.wall_ms + ttl if ttl else 0
                    history.writes.setdefault(topic, []).append((driven.number + 1, body or None, ends))
                    rows.append(row_of(i, body, topic=topic, meta=[ttl, 0, None, None] if ttl else None))
                driven.store(([LANE], rows), relaxed=chance.random() < 0.5, producer=None)
            elif what < 7:
                driven.tick()
            elif what == 7:
                if driven.begin_write() and chance.random() < 0.7:
                    driven.end_write()
            elif what == 8:
                driven.disk.capacity_bytes = chance.choice([None, None, 1])
            else:
                driven.pass_time(chance.choice([0.001, 0.01, 0.06, 1.1]))
        stored = driven.stored
        driven.disk.capacity_bytes = None
        driven.kill()
        router += 1
        driven.start(router, KEPT)
        found = read(driven, size=chance.choice([1, PLENTY]))
        for topic in history.writes:
            assert found.get(topic) in history.allowed(topic, stored, driven.wall_ms), (topic, stored)
        driven.settle_down(0.3)
        assert messages(driven) == len(read(driven))
        history.collapse(found)
