"""The smaller parts of a home, each by itself: spool files, the numbers of the stream, the layout on disk, runs."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from angarium_server.frames.homes import StoreFrame
from angarium_server.frames.settings import LaneSettings
from node.backlog.segment import make_segment
from node.endpoints.effort import Effort
from node.endpoints.lane import Lane, Sources
from node.home.lanes.outbox import runs_of
from node.home.spool import layout
from node.home.spool.blocks import SpoolFiles
from node.home.spool.held_lanes import HeldLane
from node.home.spool.stores import RELAXED_MAX, PendingStores, Store
from tests.unit.node.lane_driver import Driver, row

# -- spool files ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("R181")
def test_a_file_is_used_while_something_is_in_it() -> None:
    files = SpoolFiles()
    for file in (7, 7, 8):
        files.join(file)
    assert (files.count, files.newest, list(files)) == (2, 8, [7, 8])
    files.leave(7)
    files.leave(8)
    assert (files.count, files.newest) == (1, 7)
    files.leave(7)
    assert (files.count, files.newest) == (0, 0)
    files.validate()


def test_the_router_is_told_which_files_came_and_went() -> None:
    files = SpoolFiles()
    for file in (3, 4, 9):
        files.join(file)
    assert files.has_changed
    assert files.take_changes() == ([(3, 2), (9, 1)], [])
    assert not files.has_changed
    files.leave(4)
    files.join(9)
    files.join(5)
    files.leave(5)
    files.leave(3)
    files.join(3)
    assert files.take_changes() == ([(3, 1)], [(4, 2)]), "as it is now"
    files.leave(3)
    assert files.used() == [(9, 1)]
    assert files.take_changes() == ([], []), "it knows everything"


# -- the stream ----------------------------------------------------------------------------------------------


def store(number: int, *, relaxed: bool = False, router: int = 7) -> Store:
    """A STORE with a message for a lane of its own."""
    made = dropped(number, router=router)
    made.is_relaxed = relaxed
    lane = Lane(number, 1, LaneSettings(), Sources(Driver().read_row, Effort()))
    made.segments = [(HeldLane(lane, 0), make_segment(number, 1, 1, [row()], None, 1_000))]
    return made


def dropped(number: int, *, router: int = 7) -> Store:
    """A STORE of which no lane gets anything."""
    return Store(StoreFrame(router, number, True, None, [], [], 0))


def streaming(row: layout.StoredRow | None = None) -> PendingStores:
    stream = PendingStores(0.05)
    if row is None:
        stream.start(7)
    else:
        stream.resume(row)
    return stream


def write(stream: PendingStores, now: float) -> list[int]:
    """Write what is due; gives its numbers."""
    picked = stream.pick(now)
    stream.note_stored(picked)
    stream.take_accepted()
    stream.validate()
    return [one.number for one in picked]


def test_a_synced_one_is_accepted_when_it_is_stored() -> None:
    stream = streaming()
    stream.take(store(1), 0.0)
    assert stream.take_accepted() == []
    assert (stream.accepted, stream.stored) == (0, 0)
    assert stream.wants_write(0.0)
    assert write(stream, 0.0) == [1]
    assert (stream.accepted, stream.stored) == (1, 1)
    assert not stream.wants_write(9.0)


def test_a_relaxed_one_is_accepted_at_once_but_never_before_those_in_front_of_it() -> None:
    stream = streaming()
    stream.take(store(1, relaxed=True), 0.0)
    assert [one.number for one in stream.take_accepted()] == [1]
    stream.take(store(2), 0.0)
    stream.take(store(3, relaxed=True), 0.0)
    assert stream.take_accepted() == []
    assert (stream.accepted, stream.stored) == (1, 0)
    picked = stream.pick(0.0)
    assert [one.number for one in picked] == [2]
    assert stream.row_with(picked, 5) == layout.StoredRow(7, 2, (1,), 5)
    stream.note_stored(picked)
    assert [one.number for one in stream.take_accepted()] == [2, 3]
    assert (stream.accepted, stream.stored) == (3, 0)
    assert not stream.wants_write(0.04)
    assert stream.next_due == 0.05
    assert write(stream, 0.05) == [1, 3]
    assert stream.stored == 3


def test_a_flush_takes_everything() -> None:
    stream = streaming()
    for number in (1, 2):
        stream.take(store(number, relaxed=True), 0.0)
    stream.flush()
    stream.take(store(3, relaxed=True), 0.0)
    assert stream.wants_write(0.0)
    assert write(stream, 0.0) == [1, 2]
    assert not stream.wants_write(0.0)


def test_what_was_dropped_is_a_number_and_goes_with_any_write() -> None:
    stream = streaming()
    stream.take(store(1, relaxed=True), 0.0)
    stream.take(dropped(2), 0.0)
    assert not stream.wants_write(0.0)
    stream.take(store(3), 0.0)
    picked = stream.pick(0.0)
    assert [one.number for one in picked] == [2, 3]
    assert stream.row_with(picked, 5) == layout.StoredRow(7, 3, (1,), 5)


def test_too_many_relaxed_ones_do_not_wait() -> None:
    stream = streaming()
    for number in range(1, RELAXED_MAX + 2):
        stream.take(store(number, relaxed=True), 0.0)
    assert stream.wants_write(0.0)
    assert len(write(stream, 0.0)) == RELAXED_MAX + 1


def test_after_a_restart_the_missing_ones_and_the_next_are_expected() -> None:
    stream = streaming(layout.StoredRow(7, 9, (4, 6), 1))
    assert (stream.accepted, stream.stored) == (3, 3)
    assert [number for number in range(1, 13) if stream.expects(number)] == [4, 6, 10]
    stream.take(store(4), 0.0)
    assert write(stream, 0.0) == [4]
    assert (stream.accepted, stream.stored) == (5, 5)
    stream.take(store(6), 0.0)
    stream.take(store(10), 0.0)
    picked = stream.pick(0.0)
    assert stream.row_with(picked, 1) == layout.StoredRow(7, 10, (), 1)
    assert write(stream, 0.0) == [6, 10]
    assert stream.stored == 10


def test_what_an_earlier_router_sent_is_written_without_a_number() -> None:
    stream = streaming()
    stream.take(store(1), 0.0)
    stream.take(store(2), 0.0)
    stream.start(8)
    assert (stream.received, stream.accepted, stream.stored) == (0, 0, 0)
    stream.take(store(1, router=8), 0.0)
    picked = stream.pick(0.0)
    assert len(picked) == 3
    assert stream.row_with(picked, 1) == layout.StoredRow(8, 1, (), 1)
    stream.note_stored(picked)
    assert len(stream.take_accepted()) == 3
    assert (stream.accepted, stream.stored) == (1, 1)


def test_the_row_names_nothing_that_was_not_there_yet() -> None:
    stream = streaming()
    stream.take(store(1), 0.0)
    picked = stream.pick(0.0)
    stream.take(store(2), 0.0)
    stream.take(store(3), 0.0)
    assert stream.row_with(picked, 1) == layout.StoredRow(7, 1, (), 1)


# -- the layout ----------------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were() -> None:
    stored = layout.StoredRow(7, 9, (4, 6), 33)
    assert layout.unpack_stored(layout.pack_stored(stored)) == stored
    assert layout.unpack_stored(None) == layout.StoredRow(0, 0, (), 1)
    lane = layout.LaneRow(2, 5, 1, 77, {"name": "q"})
    assert layout.unpack_lane(layout.pack_lane(lane)) == lane
    positions = layout.Positions(9, 8)
    assert layout.unpack_positions(layout.pack_positions(positions)) == positions
    assert layout.key_numbers(layout.pair_key(3, 4)) == (3, 4)


def test_keys_sort_by_lane_and_then_by_position() -> None:
    keys = [layout.pair_key(lane, position) for lane in (1, 2, 300) for position in (1, 2, 70_000)]
    assert keys == sorted(keys)
    assert layout.number_key(2) <= keys[3] < layout.lane_end(2) <= keys[6]


def test_a_block_tells_every_flipped_bit() -> None:
    batch = wire.pack([[0, "a", 1, None, None, b"body"]])
    value = layout.pack_block(1_700_000_000_000, 1, batch)
    assert layout.open_block(value, 1, "it") == batch
    assert layout.open_block(value, 0, "it") == batch
    for at in range(len(value)):
        broken = bytearray(value)
        broken[at] ^= 1 << at % 8
        with pytest.raises(errors.UnavailableError, match="it does not have its checksum"):
            layout.open_block(bytes(broken), 1, "it")


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (None, 1),
        (b"", 1),
        (b"short", 1),
        (layout.pack_block(0, 2, wire.pack([1, 2])), 3),
        (layout.pack_block(0, 3, wire.pack([1, 2])), 3),
    ],
)
def test_what_is_no_block_is_refused(value: bytes | None, rows: int) -> None:
    with pytest.raises(errors.UnavailableError) as caught:
        layout.open_block(value, rows, "it")
    assert caught.value.code == errors.SPOOL_DAMAGED


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x90", b"\x95\x01\x02\x03\x04\x05", b"\x96\x09\x01\x01\x00\x00\x80"]
)
def test_what_is_no_lane_is_refused(value: bytes) -> None:
    with pytest.raises(errors.UnavailableError):
        layout.unpack_lane(value)


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "runs"),
    [
        (range(3, 7), [(13, 4)]),
        ([0], [(10, 1)]),
        ([0, 1, 4], [(10, 2), (14, 1)]),
        ([5, 6, 0, 1, 9], [(15, 2), (10, 2), (19, 1)]),
    ],
)
def test_positions_are_told_as_runs_in_the_order_of_the_rows(
    indices: list[int], runs: list[tuple[int, int]]
) -> None:
    assert runs_of(10, indices) == runs
