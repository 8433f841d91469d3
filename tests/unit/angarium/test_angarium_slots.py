"""Tables of slots, cutting by them, and gathering rounds."""

from __future__ import annotations

import zlib
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, slots
from angarium.message import Message, Row, unpack_rows
from angarium.slots import RowGatherer, TopicOwners, partition, slot_table
from angarium.topic import SLOTS, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.slots import Round

topics = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


def rows_of(batch: Round) -> list[Row]:
    """Give all rows of a round by index."""
    return sorted(row for part in batch.batches for row in unpack_rows(part))


def filled(gatherer: RowGatherer, count: int, size: int = 1) -> None:
    for index in range(count):
        gatherer.add(f"t/{index}", b"x" * size)


@pytest.fixture
def gatherer() -> Iterator[RowGatherer]:
    gatherer = RowGatherer()
    yield gatherer
    gatherer.validate()


@pytest.mark.requirement("R210")
def test_the_table_is_the_same_in_every_process() -> None:
    assert slot_table(4)[:8].hex() == "0000030300000303"
    assert zlib.crc32(slot_table(4)) == 622082282, "two versions must agree"


@pytest.mark.requirement("R210")
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 32])
def test_slots_are_spread_evenly(workers: int) -> None:
    table = slot_table(workers)
    assert len(table) == SLOTS
    counts = [table.count(worker) for worker in range(workers)]
    assert sum(counts) == SLOTS
    assert min(counts) > SLOTS / workers * 0.5
    assert max(counts) < SLOTS / workers * 1.6


@pytest.mark.requirement("R210")
def test_one_worker_more_takes_its_share_and_moves_nothing_else() -> None:
    for few, many in pairwise(range(1, 9)):
        moved = [(a, b) for a, b in zip(slot_table(few), slot_table(many), strict=True) if a != b]
        assert all(new == few for _, new in moved)
        assert 0.6 * SLOTS / many < len(moved) < 1.5 * SLOTS / many


@pytest.mark.parametrize("workers", [0, -1, 257])
def test_a_table_for_no_or_too_many_workers_is_refused(workers: int) -> None:
    with pytest.raises(errors.InvalidRequestError, match="40018"):
        slot_table(workers)


@given(st.lists(topics, max_size=50), st.integers(1, 8))
def test_partition_keeps_every_row_with_its_owner_in_order(names: list[str], workers: int) -> None:
    table = slot_table(workers)
    rows = [[index, name, 0, None, None, b""] for index, name in enumerate(names)]
    parts = partition(rows, table)
    assert sorted((row for part in parts.values() for row in part), key=itemgetter(0)) == rows
    for owner, part in parts.items():
        assert part == sorted(part, key=itemgetter(0))
        assert all(table[slot_of(str(row[1]))] == owner for row in part)


@pytest.mark.parametrize(
    "row", [[], [1], [1, None], [1, b"a"], [1, 5], [1, ["a"]], None, 7, {}, [0, "\ud800"]]
)
def test_partition_refuses_a_row_without_topic(row: object) -> None:
    with pytest.raises(errors.InvalidRequestError, match="40001"):
        partition([[0, "a"], row], slot_table(2))  # type: ignore[list-item]


def test_owners_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAX_KNOWN_TOPICS", 10)
    owners = TopicOwners(slot_table(4))
    for index in range(100):
        assert owners[f"t/{index}"] == owners.table[slot_of(f"t/{index}")]
        assert len(owners) <= 10
    owners.validate()


@pytest.mark.parametrize("table", [b"", bytes(1023), "x" * 1024, None])
def test_what_is_no_table_is_refused(table: object) -> None:
    with pytest.raises(errors.InvalidRequestError, match="40001"):
        TopicOwners(table)  # type: ignore[arg-type]


def test_before_a_table_is_known_everything_is_one_part(gatherer: RowGatherer) -> None:
    filled(gatherer, 5)
    batch = gatherer.take()
    assert (batch.epoch, batch.parts, batch.rows) == (0, [(0, 5)], 5)
    assert batch.size_bytes == len(batch.batches[0])


def test_rows_are_cut_by_owner_and_numbered_over_all_parts(gatherer: RowGatherer) -> None:
    table = slot_table(4)
    gatherer.set_table(7, table)
    filled(gatherer, 100)
    batch = gatherer.take()
    assert batch.epoch == 7
    assert len(batch.parts) == 4
    assert [row[0] for row in rows_of(batch)] == list(range(100))
    for (worker, count), part in zip(batch.parts, batch.batches, strict=True):
        rows = unpack_rows(part)
        assert len(rows) == count
        assert all(table[slot_of(row[1])] == worker for row in rows)
        assert rows == sorted(rows)
    assert gatherer.rows == gatherer.size_bytes == 0


def test_a_worker_without_rows_gets_no_part(gatherer: RowGatherer) -> None:
    gatherer.set_table(1, slot_table(4))
    gatherer.add("one", b"")
    assert len(gatherer.take().parts) == 1


def test_what_is_gathered_is_cut_again_by_a_new_table(gatherer: RowGatherer) -> None:
    filled(gatherer, 50)
    gatherer.set_table(1, slot_table(2))
    gatherer.validate()
    filled(gatherer, 10)
    gatherer.set_table(2, slot_table(3))
    gatherer.validate()
    batch = gatherer.take()
    assert batch.epoch == 2
    assert [row[1] for row in rows_of(batch)] == [f"t/{i}" for i in range(50)] + [f"t/{i}" for i in range(10)]


def test_rows_that_shall_not_leave_are_removed_and_the_others_close_up(gatherer: RowGatherer) -> None:
    gatherer.set_table(1, slot_table(3))
    filled(gatherer, 6, size=10)
    gatherer.remove({0, 3, 5})
    gatherer.validate()
    assert gatherer.size_bytes == 3 * (10 + slots.ROW_OVERHEAD_BYTES)
    gatherer.add("t/last", b"")
    assert [row[:2] for row in rows_of(gatherer.take())] == [
        (0, "t/1"),
        (1, "t/2"),
        (2, "t/4"),
        (3, "t/last"),
    ]


@pytest.mark.parametrize(("workers", "rows"), [(1, 512), (2, 1024), (4, 1638), (32, 1638)])
def test_a_full_round_has_enough_rows_for_each_worker(gatherer: RowGatherer, workers: int, rows: int) -> None:
    gatherer.set_table(1, slot_table(workers))
    gatherer.set_limits(1 << 20, 10_000, 1 << 24)
    while gatherer.has_room():
        gatherer.add(f"t/{gatherer.rows}", b"")
    assert gatherer.rows == rows


def test_the_limits_of_the_router_hold_whatever_comes_first(gatherer: RowGatherer) -> None:
    gatherer.set_limits(1000, 5, 1 << 20)
    gatherer.set_table(1, slot_table(2))
    filled(gatherer, 5)
    assert not gatherer.has_room()


def test_bytes_fill_a_round_too(gatherer: RowGatherer) -> None:
    gatherer.set_table(1, slot_table(2))
    gatherer.set_limits(100_000, 10_000, 200_000)
    gatherer.add("a", b"x" * 90_000)
    gatherer.add("b", b"x" * 90_000)
    assert not gatherer.has_room(90_000)
    assert gatherer.has_room(10)
    assert gatherer.take().size_bytes <= 200_000


def test_a_message_larger_than_a_round_goes_alone(gatherer: RowGatherer) -> None:
    gatherer.set_limits(1 << 21, 10_000, 1 << 22)
    assert gatherer.has_room(1 << 20)
    gatherer.add("a", b"x" * (1 << 20))
    assert not gatherer.has_room(0)
    assert gatherer.take().rows == 1


@pytest.mark.parametrize("how", ["add", "row", "fill", "fill message"])
def test_a_message_over_the_limit_is_refused_and_leaves_no_trace(gatherer: RowGatherer, how: str) -> None:
    gatherer.set_limits(1000, 10_000, 1 << 20)
    gatherer.add("a", b"x" * 1000)
    big = Message("b", b"x" * 990, correlation_id="c" * 20)
    attempts: dict[str, Callable[[], object]] = {
        "add": lambda: gatherer.add("b", b"x" * 1001),
        "row": lambda: gatherer.add_row(big.row),
        "fill": lambda: gatherer.fill(iter([("b", b"x" * 1001)])),
        "fill message": lambda: gatherer.fill(iter([big])),
    }
    with pytest.raises(errors.InvalidRequestError, match="40007"):
        attempts[how]()
    gatherer.validate()
    assert gatherer.take().rows == 1


def test_filling_stops_when_there_is_no_room_and_gives_back_what_did_not_fit(gatherer: RowGatherer) -> None:
    messages = iter([(f"t/{index}", b"%d" % index) for index in range(1000)])
    seen: list[Row] = []
    left = gatherer.fill(messages)
    while left is not None:
        gatherer.validate()
        assert not gatherer.has_room()
        seen += rows_of(gatherer.take())
        assert gatherer.fill(iter((left,))) is None
        left = gatherer.fill(messages)
    seen += rows_of(gatherer.take())
    assert [row[5] for row in seen] == [b"%d" % index for index in range(1000)]


def test_messages_and_pairs_mix(gatherer: RowGatherer) -> None:
    assert gatherer.fill(iter([("a", b"1"), Message("b", b"2", cos=3), ("c", bytearray(b"3"))])) is None  # type: ignore[list-item]
    rows = rows_of(gatherer.take())
    assert [(row[0], row[1], row[5]) for row in rows] == [(0, "a", b"1"), (1, "b", b"2"), (2, "c", b"3")]
    assert rows[1][2] == Message("b", cos=3).row[2]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("", b""), errors.INVALID_TOPIC),
        ((5, b""), errors.INVALID_ARGUMENT),
        (("a", "text"), errors.INVALID_ARGUMENT),
        (("a",), errors.INVALID_ARGUMENT),
        (["a", b""], errors.INVALID_ARGUMENT),
        ("a", errors.INVALID_ARGUMENT),
        (None, errors.INVALID_ARGUMENT),
    ],
)
def test_what_is_before_a_wrong_message_stays_gathered(
    gatherer: RowGatherer, wrong: object, code: int
) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        gatherer.fill(iter([("a", b"1"), wrong, ("c", b"3")]))  # type: ignore[list-item]
    assert caught.value.code == code
    gatherer.validate()
    assert [row[5] for row in rows_of(gatherer.take())] == [b"1"]


def test_a_guaranteed_message_is_given_back_because_it_goes_through_a_producer(gatherer: RowGatherer) -> None:
    message = Message("a", mode="persistent")
    messages: Iterator[Message | tuple[str, bytes]] = iter([("a", b"1"), message, ("c", b"3")])
    assert gatherer.fill(messages) is message
    assert gatherer.fill(messages) is None
    assert [row[5] for row in rows_of(gatherer.take())] == [b"1", b"3"]


def test_an_error_of_the_iterable_itself_passes_through(gatherer: RowGatherer) -> None:
    def broken() -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gatherer.fill(broken())
    assert gatherer.take().rows == 1


@given(st.lists(st.tuples(topics, st.binary(max_size=2000)), max_size=300), st.integers(1, 5))
def test_nothing_is_lost_or_reordered_whatever_is_published(
    messages: list[tuple[str, bytes]], workers: int
) -> None:
    gatherer = RowGatherer()
    gatherer.set_table(1, slot_table(workers))
    gatherer.set_limits(1 << 16, 10_000, 1 << 17)
    iterator = iter(messages)
    seen: list[tuple[str, bytes]] = []
    while (left := gatherer.fill(iterator)) is not None:
        batch = gatherer.take()
        assert all(len(part) <= 1 << 17 for part in batch.batches)
        seen += [(row[1], row[5]) for row in rows_of(batch)]
        assert gatherer.fill(iter((left,))) is None
    seen += [(row[1], row[5]) for row in rows_of(gatherer.take())]
    assert seen == messages
