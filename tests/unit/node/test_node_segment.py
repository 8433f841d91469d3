"""Segments: what is taken from rows, what is written, what it costs, and what a damaged record does."""

from __future__ import annotations

import tracemalloc
from array import array

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from node.backlog.segment import (
    EXPIRED,
    GONE,
    MOVING,
    PRIORITY_UNSET,
    READY,
    REJECTED,
    TIME_MAX_MS,
    Segment,
    make_segment,
    make_twin,
    segment_key,
)
from tests.unit.node.lane_driver import LANE_ID, row

NOW_MS = 1_700_000_000_000


def columns(segment: Segment) -> dict[str, object]:
    """Give everything that a segment keeps on disk."""
    own = ("timer", "expiry", "delay")
    return {name: getattr(segment, name) for name in Segment.__slots__ if name not in own}


def reload(segment: Segment, *, with_state: bool = True) -> Segment:
    state = segment.pack_state() if with_state else None
    loaded = Segment.unpack(segment.key(), segment.pack(), state)
    loaded.validate()
    return loaded


def test_sizes_are_what_the_quotas_count() -> None:
    rows = [row(0, payload=b"12345", tag="abc"), row(1)]
    segment = make_segment(LANE_ID, 10, 3, rows, None, NOW_MS)
    assert list(segment.sizes) == [5 + 3 + wire.SPOOL_OVERHEAD_BYTES, wire.SPOOL_OVERHEAD_BYTES]
    assert segment.live_bytes == sum(segment.sizes)
    assert segment.size_of(1, 2) == wire.SPOOL_OVERHEAD_BYTES
    assert (segment.first, segment.last, segment.count, segment.live) == (10, 11, 2, 2)
    segment.validate()


def test_a_row_that_is_to_be_retained_has_the_columns_of_its_other_flags() -> None:
    flags = [wire.MODE_PERSISTENT | wire.FLAG_DMQ_ELIGIBLE, wire.MODE_PERSISTENT | 2 << wire.COS_SHIFT]
    plain = make_segment(LANE_ID, 1, 1, [row(0, flags=one) for one in flags], None, NOW_MS)
    retained = [row(0, flags=one | wire.FLAG_RETAIN) for one in flags]
    assert columns(make_segment(LANE_ID, 1, 1, retained, None, NOW_MS)) == columns(plain)


def test_plain_rows_have_no_columns_that_they_do_not_need() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(5)], None, NOW_MS, origins=[None] * 5)
    for name in ("rows", "ages", "expires", "due", "priorities", "dmq", "origins", "tries", "dead"):
        assert getattr(segment, name) is None
    assert segment.state == bytearray([READY] * 5)
    assert segment.priority(3) == PRIORITY_UNSET
    assert not segment.dmq_eligible(3)


def test_times_and_priorities_come_from_the_meta_of_the_rows() -> None:
    rows = [row(0, ttl=500), row(1, delay=70), row(2, priority=0), row(3, priority=200), row(4)]
    segment = make_segment(LANE_ID, 1, 1, rows, None, NOW_MS)
    assert segment.expires is not None
    assert segment.due is not None
    assert list(segment.expires) == [NOW_MS + 500, 0, 0, 0, 0]
    assert list(segment.due) == [0, NOW_MS + 70, 0, 0, 0]
    assert [segment.priority(i) for i in range(5)] == [4, 4, 0, 9, 4]
    assert segment.levels == 1 << 0 | 1 << 4 | 1 << 9
    segment.validate()


def test_a_life_longer_than_any_clock_is_no_error() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(0, ttl=1 << 64, delay=(1 << 70))], None, NOW_MS)
    assert segment.expires is not None
    assert segment.due is not None
    assert segment.expires[0] == segment.due[0] == TIME_MAX_MS
    reload(segment)


def test_a_priority_that_all_have_by_default_costs_nothing() -> None:
    assert make_segment(LANE_ID, 1, 1, [row(0, priority=4), row(1, ttl=9)], None, NOW_MS).priorities is None


def test_eligibility_and_class_of_service_come_from_the_flags() -> None:
    eligible = wire.MODE_PERSISTENT | wire.FLAG_DMQ_ELIGIBLE
    flags = [eligible if i in (0, 9) else wire.MODE_PERSISTENT | (i % 3) << wire.COS_SHIFT for i in range(10)]
    segment = make_segment(LANE_ID, 1, 1, [row(i, flags=one) for i, one in enumerate(flags)], None, NOW_MS)
    assert [i for i in range(10) if segment.dmq_eligible(i)] == [0, 9]
    assert segment.low_priority == 7  # all but the rows 2, 5 and 8, which have class of service 3
    segment.validate()


def test_a_segment_may_have_some_rows_of_its_block_only() -> None:
    rows = [row(i, payload=b"x" * i) for i in range(6)]
    segment = make_segment(LANE_ID, 1, 1, rows, [1, 4, 5], NOW_MS)
    assert [segment.row_in_block(i) for i in range(3)] == [1, 4, 5]
    assert [size - 64 for size in segment.sizes] == [1, 4, 5]
    assert make_segment(LANE_ID, 1, 1, rows, [0, 1, 2], NOW_MS).rows is None
    assert make_segment(LANE_ID, 1, 1, rows, range(6), NOW_MS).rows is None


def test_a_twin_has_the_same_rows_and_states_of_its_own() -> None:
    rows = [row(i, ttl=5, delay=6, priority=7) for i in range(3)]
    one = make_segment(LANE_ID, 1, 9, rows, None, NOW_MS, origins=[("queue", "q", "moved"), None, None])
    other = make_twin(one, LANE_ID + 1, 77)
    assert (other.lane_id, other.first) == (LANE_ID + 1, 77)
    same = {
        "block",
        "count",
        "sizes",
        "expires",
        "due",
        "priorities",
        "dmq",
        "origins",
        "low_priority",
        "levels",
    }
    assert {name: columns(one)[name] for name in same} == {name: columns(other)[name] for name in same}
    assert other.sizes is one.sizes
    other.state[0] = GONE
    assert one.state[0] == READY


def test_keys_sort_by_lane_and_position() -> None:
    keys = [segment_key(lane, first) for lane in (1, 255, 256, 1 << 40) for first in (1, 255, 256, 1 << 40)]
    assert keys == sorted(keys)
    assert make_segment(3, 5, 1, [row()], None, NOW_MS).key() == segment_key(3, 5)


made_rows = st.lists(
    st.builds(
        row,
        payload=st.binary(max_size=9),
        tag=st.none() | st.text(max_size=3),
        ttl=st.sampled_from([0, 0, 100, 1 << 65]),
        delay=st.sampled_from([0, 0, 100]),
        priority=st.none() | st.integers(0, 255),
        flags=st.integers(0, 255),
    ),
    min_size=1,
    max_size=20,
)
origin = st.none() | st.just(("queue", "name", "expired"))


@given(st.data(), made_rows, st.booleans())
def test_what_is_packed_comes_back(data: st.DataObject, rows: list[object], with_ages: bool) -> None:
    count = len(rows)
    indices = data.draw(st.none() | st.sets(st.integers(0, count - 1), min_size=1).map(sorted))
    chosen = count if indices is None else len(indices)
    origins = data.draw(st.none() | st.lists(origin, min_size=chosen, max_size=chosen))
    segment = make_segment(LANE_ID, 1 << 40, 17, rows, indices, NOW_MS, origins=origins)  # type: ignore[arg-type]
    if with_ages:
        segment.ages = array("I", range(chosen))
    for i in range(chosen):
        what = data.draw(st.sampled_from(["ready", "gone", "tried", "dead"]))
        if what == "gone":
            segment.state[i] = GONE
        elif what == "tried":
            segment.tries = segment.tries or bytearray(chosen)
            segment.tries[i] = 255
        elif what == "dead":
            segment.dead = segment.dead or bytearray(chosen)
            segment.dead[i] = REJECTED
            segment.state[i] = MOVING
    segment.live = chosen - segment.state.count(GONE)
    segment.live_bytes = sum(size for i, size in enumerate(segment.sizes) if segment.state[i] != GONE)
    segment.validate()
    assert columns(reload(segment)) == columns(segment)


def test_what_is_out_or_held_or_taken_is_ready_after_a_restart_and_what_is_dead_is_not() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(6)], None, NOW_MS)
    segment.state[:] = bytes([0, 1, 2, 3, 4, 4])
    segment.dead = bytearray([0, 0, 0, 0, 0, EXPIRED])
    loaded = reload(segment)
    assert loaded.state == bytearray([GONE, READY, READY, READY, READY, MOVING])
    assert loaded.live == 5
    assert loaded.live_bytes == 5 * wire.SPOOL_OVERHEAD_BYTES


def test_a_segment_without_a_state_is_untouched() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(9)], None, NOW_MS)
    assert columns(reload(segment, with_state=False)) == columns(segment)


def test_who_published_is_kept_for_all_rows_or_for_each() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(3)], None, NOW_MS, publishers=1 << 62)
    assert [reload(segment).publisher(i) for i in range(3)] == [1 << 62] * 3
    assert make_twin(segment, LANE_ID + 1, 1).publisher(2) == 1 << 62
    segment.publishers = array("Q", [5, 0, 1 << 62])
    assert [reload(segment).publisher(i) for i in range(3)] == [5, 0, 1 << 62]


def test_a_segment_that_was_written_without_a_publisher_is_read() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(i) for i in range(3)], None, NOW_MS)
    fields = msgpack.unpackb(segment.pack())
    old = Segment.unpack(segment.key(), msgpack.packb([1, *fields[1:13]]), None)
    assert columns(old) == columns(segment)


def test_numbers_are_little_endian_wherever_they_are_written() -> None:
    segment = make_segment(LANE_ID, 1, 1, [row(0, ttl=5)], None, NOW_MS)
    fields = msgpack.unpackb(segment.pack())
    assert fields[5] == wire.SPOOL_OVERHEAD_BYTES.to_bytes(4, "little")
    assert fields[7] == (NOW_MS + 5).to_bytes(8, "little")


def damaged_records() -> list[tuple[bytes, bytes, bytes | None]]:
    segment = make_segment(LANE_ID, 1, 1, [row(i, ttl=4, priority=2) for i in range(9)], [1, 2, 5], NOW_MS)
    key, value, state = segment.key(), segment.pack(), segment.pack_state()
    fields = msgpack.unpackb(value)
    cases: list[tuple[bytes, bytes, bytes | None]] = [
        (key[1:], value, None),
        (key, value[:-3], None),
        (key, b"", None),
        (key, b"\xc0", None),
        (key, value, b""),
        (key, value, b"\x90"),
        (key, value, state[:-1]),
    ]
    changes: list[tuple[int, object]] = [
        (0, 99),
        (2, 4),
        (2, 0),
        (4, b"1"),
        (5, None),
        (5, b"123"),
        (7, b"12345678"),
        (9, b"\x01"),
        (9, b"\x01\x02\x0a"),
        (10, b"12"),
        (10, b"\xff"),
        (11, [None]),
        (0, 1),
        (13, bytes(8)),
        (13, None),
    ]
    for at, changed in changes:
        cases.append((key, msgpack.packb([*fields[:at], changed, *fields[at + 1 :]]), None))
    for state_fields in (
        [b"\x01\x01", None, None],
        [b"\x09", None, None],
        [b"\0", b"1", None],
        [b"\0", None, b"\x09\0\0"],
    ):
        cases.append((key, value, msgpack.packb(state_fields)))
    return cases


@pytest.mark.parametrize("case", damaged_records())
def test_a_damaged_record_is_told_and_not_guessed(case: tuple[bytes, bytes, bytes | None]) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        Segment.unpack(*case)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert case[0].hex() in str(caught.value)


@pytest.mark.slow
def test_a_message_costs_at_most_64_bytes_of_index_even_with_every_column() -> None:
    """The index lives in memory for every spooled message; here with 100 rows per segment."""
    plain = [row(i, payload=b"x") for i in range(100)]
    rich = [row(i, ttl=9 + i, delay=5, priority=i % 10, flags=1 | wire.FLAG_DMQ_ELIGIBLE) for i in range(200)]
    sizes = {}
    for name, rows, indices in (("plain", plain, None), ("rich", rich, list(range(0, 200, 2)))):
        tracemalloc.start()
        segments = []
        for k in range(200):
            segment = make_segment(LANE_ID + k, 1 << 40 | k, 1 << 33 | k, rows, indices, NOW_MS + k)
            segment.tries = bytearray(100) if name == "rich" else None
            segment.ages = array("I", range(100)) if name == "rich" else None
            segment.dead = bytearray(100) if name == "rich" else None
            segment.publishers = array("Q", range(100)) if name == "rich" else 1 << 61 | k
            segments.append(segment)
        sizes[name] = tracemalloc.get_traced_memory()[0] / (100 * len(segments))
        tracemalloc.stop()
    assert sizes["plain"] < 16
    assert sizes["rich"] < 64
