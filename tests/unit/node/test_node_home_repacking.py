"""Blocks that lost most of their messages, and runs of small ones, are packed again in the background."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from angarium import wire
from node.backlog.segment import Segment
from node.home.home import HomeLimits
from node.home.spool import repacking
from node.home.spool.blocks import SMALL_ROWS
from node.home.spool.repacking import SMALL_BLOCKS, merge_segments
from storage.spool import Table
from tests.share import short
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, row_of, settings_of, started

if TYPE_CHECKING:
    from node.backlog.segment import Origin

LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}
BIG = bytes(1_000)


def received(driven: DrivenHome, flow: int) -> list[bytes]:
    seen = driven.delivered.get(flow)
    return [] if seen is None else [seen.rows[position][5] for position in seen.order]


def lone_messages(driven: DrivenHome, count: int, lanes: list[int], first: int = 0, file: int = 1) -> None:
    for i in range(first, first + count):
        driven.store((lanes, [row_of(0, b"m%d" % i)]), file=file)
        driven.tick()
        driven.write()
        driven.pass_time(0.001)


def test_lone_messages_that_stay_are_put_together() -> None:
    driven = started()
    lone_messages(driven, 400, [LANE])
    assert driven.disk.count(Table.BLOCKS) == 400
    driven.settle_down(3.0)
    assert driven.disk.count(Table.BLOCKS) <= 400 // SMALL_BLOCKS + SMALL_BLOCKS
    assert driven.disk.count(Table.SEGMENTS) == driven.disk.count(Table.BLOCKS)
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(400)]
    ages = driven.delivered[flow].stored_ms
    assert ages[400] - ages[1] == 399, "each keeps its age"


def test_a_message_that_many_lanes_have_counts_as_often_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "STEP_ROWS", 40)
    driven = started()
    lone_messages(driven, 100, [LANE, OTHER])
    driven.settle_down(5.0)
    assert driven.home.stats()["repacked_blocks"] == 80, "steps of 20, while so many are worth a step"
    assert driven.disk.count(Table.BLOCKS) == 80 // 20 + 20
    flow = driven.bind(OTHER)
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(100)]


def assert_rests(driven: DrivenHome) -> None:
    """See that the loop sleeps when there is nothing to write: it shares the interpreter with the writer."""
    for _ in range(20):
        due = driven.tick()
        if driven.begin_write():
            break
        if due is None or due > driven.now:
            return
    due = driven.tick()
    assert due is None or due > driven.now, f"due {driven.now - due:.3f} s ago"


@pytest.mark.parametrize("rows", [SMALL_ROWS - 1, SMALL_ROWS, SMALL_ROWS + 1, 2 * SMALL_ROWS])
def test_blocks_of_any_size_leave_the_loop_at_rest(rows: int) -> None:
    driven = started()
    for _ in range(3 * SMALL_BLOCKS):
        driven.store(([LANE], [row_of(i, b"m") for i in range(rows)]))
        driven.settle_down(0.01)
    driven.settle_down(3.0)
    assert_rests(driven)
    packed = driven.home.stats()["repacked_blocks"]
    assert packed >= 2 * SMALL_BLOCKS if rows <= SMALL_ROWS else packed == 0


def test_small_blocks_that_are_too_young_leave_the_loop_at_rest() -> None:
    driven = started()
    lone_messages(driven, SMALL_BLOCKS - 1, [LANE])
    driven.settle_down(3.0)
    for _ in range(3):
        lone_messages(driven, 1, [LANE])
        driven.settle_down()
        assert_rests(driven)
    assert driven.home.stats()["repacked_blocks"] == 0
    driven.settle_down(3.0)
    assert driven.home.stats()["repacked_blocks"] >= SMALL_BLOCKS


def test_a_full_disk_leaves_the_loop_at_rest() -> None:
    driven = started()
    lone_messages(driven, 2 * SMALL_BLOCKS, [LANE])
    driven.pass_time(2.0)
    driven.disk.is_full = True
    driven.store(([LANE], [row_of(0, b"m")]))
    while driven.write():
        pass
    assert_rests(driven)


def test_what_was_put_together_survives_a_kill() -> None:
    driven = started()
    lone_messages(driven, 200, [LANE, OTHER])
    driven.settle_down(3.0)
    driven.kill()
    driven.start(ROUTER, LANES)
    for lane in (LANE, OTHER):
        flow = driven.bind(lane)
        driven.settle_down()
        assert received(driven, flow) == [b"m%d" % i for i in range(200)]
    assert driven.disk.count(Table.BLOCKS) <= 200 // SMALL_BLOCKS + SMALL_BLOCKS


def test_who_published_what_was_put_together_is_known_over_a_kill() -> None:
    driven = started()
    ann, bob = 11, 22
    for i in range(200):
        driven.store(([LANE], [row_of(0, b"m%d" % i)]), publisher=(0, ann, bob)[i % 3])
        driven.tick()
        driven.write()
        driven.pass_time(0.001)
    driven.settle_down(3.0)
    assert driven.home.stats()["repacked_blocks"]
    driven.kill()
    driven.start(ROUTER, LANES)
    flow = driven.bind(browse=True, no_local=ann)
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(200) if i % 3 != 1]


def test_messages_that_are_consumed_soon_are_left_alone() -> None:
    driven = started()
    flow = driven.bind()
    for i in range(100):
        driven.store(([LANE], [row_of(0, b"m%d" % i)]))
        driven.settle_down(0.01)
        driven.settle(flow, (i + 1, i + 1))
    driven.settle_down(3.0)
    assert driven.home.stats()["repacked_blocks"] == 0


def test_those_that_are_gone_by_then_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that keeps up with twenty thousand lone messages left a step of 10 ms behind."""
    monkeypatch.setattr(repacking, "GONE_PER_STEP", SMALL_BLOCKS)
    driven = started()
    flow = driven.bind(LANE)
    lone_messages(driven, 4 * SMALL_BLOCKS, [LANE])
    driven.settle_down()
    driven.settle(flow, (1, 4 * SMALL_BLOCKS))
    lone_messages(driven, 2 * SMALL_BLOCKS, [OTHER])
    driven.settle_down()
    assert driven.home.stats()["small_blocks"] == 6 * SMALL_BLOCKS
    driven.pass_time(repacking.SMALL_AGE_S + 0.1)
    for left in (5, 4, 3, 2):
        due = driven.tick()
        assert due is not None
        assert due <= driven.now
        assert driven.home.stats()["small_blocks"] == left * SMALL_BLOCKS
    driven.settle_down(1)
    assert driven.home.stats()["repacked_blocks"] == 2 * SMALL_BLOCKS
    assert_rests(driven)


def test_the_rest_of_a_block_that_lost_most_of_its_messages_is_packed_anew() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], [row_of(i, BIG) for i in range(100)]))
    driven.settle_down()
    before = driven.disk.size_bytes()
    driven.settle(flow, (1, 40), (45, 95))
    driven.settle_down(0.5)
    assert driven.home.stats()["repacked_rows"] == 9
    assert driven.disk.size_bytes() < before / 5
    driven.settle(flow, (41, 42))
    driven.settle_down(0.1)
    driven.kill()
    driven.start(ROUTER, LANES)
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == [43, 44, 96, 97, 98, 99, 100]
    assert received(driven, flow) == [BIG] * 7


def test_a_block_that_is_gone_before_its_turn_keeps_no_other_from_being_packed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing more is lost in these, they would take their room on disk for as long as one message is left."""
    monkeypatch.setattr(repacking, "STEP_BLOCKS", 1)
    driven = started()
    flow = driven.bind()
    for _ in range(5):
        driven.store(([LANE], [row_of(i, BIG) for i in range(100)]))
        driven.settle_down()
    driven.settle(flow, *((first, first + 98) for first in range(1, 501, 100)))
    while not driven.home.stats()["sparse_blocks"]:
        driven.tick()
        driven.pass_time(0.01)
        driven.write()
    driven.settle(flow, (200, 200))
    driven.settle_down(5.0)
    assert driven.home.stats()["messages_spooled"] == 4
    assert driven.home.stats()["repacked_blocks"] == 4
    assert driven.disk.size_bytes() < 10 * len(BIG)


def test_a_block_of_two_lanes_keeps_what_either_has() -> None:
    driven = started()
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    driven.store(([LANE, OTHER], [row_of(i, b"%03d" % i + BIG) for i in range(100)]))
    driven.settle_down()
    driven.settle(flows[0], (1, 90))
    driven.settle_down(0.1)
    assert driven.home.stats()["repacked_blocks"] == 0, "the other lane still has them"
    driven.settle(flows[1], (21, 100))
    driven.settle_down(0.5)
    assert driven.home.stats()["repacked_rows"] == 30
    driven.kill()
    driven.start(ROUTER, LANES)
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    driven.settle_down()
    assert [payload[:3] for payload in received(driven, flows[0])] == [b"%03d" % i for i in range(90, 100)]
    assert [payload[:3] for payload in received(driven, flows[1])] == [b"%03d" % i for i in range(20)]
    assert driven.disk.count(Table.BLOCKS) == 1


def test_what_is_settled_while_the_new_block_is_being_written_stays_away() -> None:
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    while not driven.home.stats()["repacked_blocks"]:
        driven.tick()
        assert driven.begin_write()
        if not driven.home.stats()["repacked_blocks"]:
            driven.end_write()
    driven.settle(flow, (1, 60))
    driven.tick()
    driven.end_write()
    driven.settle_down(0.1)
    driven.kill()
    driven.start(ROUTER, LANES)
    assert driven.totals[LANE][0] == 40
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(60, 100)]


def test_everything_may_be_gone_before_the_new_block_is_written() -> None:
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    driven.tick()
    while not driven.home.stats()["repacked_blocks"]:
        driven.write()
        driven.tick()
    driven.settle(flow, (1, 100))
    driven.settle_down(0.1)
    tables = (Table.BLOCKS, Table.SEGMENTS, Table.STATES)
    assert [driven.disk.count(table) for table in tables] == [0, 0, 0]


def test_a_full_disk_does_not_bring_back_what_was_settled() -> None:
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    driven.disk.is_full = True
    for _ in range(5):
        driven.tick()
        driven.write()
    assert driven.home.stats()["repacked_blocks"] == 100
    driven.disk.is_full = False
    driven.settle(flow, (1, 50))
    driven.settle_down(3.0)
    driven.kill()
    driven.start(ROUTER, LANES)
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(50, 100)]
    driven.settle(flow, (51, 100))
    driven.settle_down(0.1)
    assert driven.disk.count(Table.BLOCKS) == 0


def test_the_state_of_a_merged_segment_is_not_written_before_the_segment() -> None:
    """What makes room goes first while the disk is full, but there the segments are as they were."""
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    driven.disk.is_full = True
    for _ in range(5):
        driven.tick()
        driven.write()
    assert driven.home.stats()["merged_segments"]
    driven.disk.is_full = False
    driven.settle(flow, (1, 50))
    driven.settle_down(0.1)
    assert driven.home.stats()["spool_full"] == 1, "only what makes room was written"
    driven.kill()
    driven.start(ROUTER, LANES)
    driven.settle_down(3.0)
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow)[-50:] == [b"m%d" % i for i in range(50, 100)]


def test_no_block_is_left_for_ever_if_all_in_it_went_while_it_could_not_be_packed_anew() -> None:
    """The segment that all were merged into has the name of the first, which is not all that is on disk."""
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    driven.disk.is_full = True
    for _ in range(5):
        driven.tick()
        driven.write()
    assert driven.home.stats()["merged_segments"]
    driven.disk.is_full = False
    driven.settle(flow, (1, 100))
    driven.settle_down(0.1)
    assert driven.home.stats()["spool_full"] == 1, "only what makes room was written"
    driven.kill()
    driven.start(ROUTER, LANES)
    flow = driven.bind()
    driven.settle_down(3.0)
    for position in driven.delivered[flow].order if flow in driven.delivered else ():
        driven.settle(flow, (position, position))
    driven.settle_down(3.0)
    assert [driven.disk.count(table) for table in (Table.SEGMENTS, Table.BLOCKS)] == [0, 0]


def test_what_went_while_it_could_not_be_packed_anew_goes_when_there_is_room() -> None:
    driven = started()
    flow = driven.bind()
    lone_messages(driven, 100, [LANE])
    driven.pass_time(2.0)
    driven.disk.is_full = True
    for _ in range(5):
        driven.tick()
        driven.write()
    driven.disk.is_full = False
    driven.settle(flow, (1, 100))
    driven.settle_down(3.0)
    tables = (Table.SEGMENTS, Table.STATES, Table.BLOCKS)
    assert [driven.disk.count(table) for table in tables] == [0, 0, 0]


def test_a_block_that_cannot_be_read_is_left_where_it_is() -> None:
    driven = started(HomeLimits(cache_bytes_max=1))
    lone_messages(driven, 100, [LANE])
    key, value = driven.disk.scan(Table.BLOCKS)[50]
    driven.disk.commit([(Table.BLOCKS, key, value[:-1] + b"?")])
    driven.settle_down(3.0)
    assert driven.disk.get(Table.BLOCKS, key) is not None
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(100) if i != 50]


@pytest.mark.requirement("R182")
def test_what_is_packed_anew_stays_in_the_spool_file_of_the_oldest() -> None:
    """Also over a restart, which counts what is there and not what was: files never become more by themselves."""
    driven = started()
    lone_messages(driven, 50, [LANE], file=4)
    lone_messages(driven, 50, [LANE], 50, file=5)
    flow = driven.bind()
    driven.settle_down()
    driven.settle(flow, *[(position, position) for position in range(2, 100, 2)])
    driven.settle_down(3.0)
    assert driven.home.stats()["repacked_blocks"] == 51
    assert driven.files == {4}
    driven.kill()
    driven.start(ROUTER, LANES)
    assert driven.files == {4}
    assert [block.size for block in driven.home.parts.blocks.in_order()] == [driven.totals[LANE][1]]
    flow = driven.bind()
    driven.settle_down()
    driven.settle(flow, (1, 1), *[(position, position) for position in range(3, 101, 2)], (100, 100))
    driven.settle_down(0.1)
    assert driven.files == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(short(3, long=8)))
def test_random_lives_of_messages_end_with_an_empty_disk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "SPARSE_BYTES", 200)
    rng = random.Random(seed)
    driven = started()
    flows = {lane: driven.bind(lane, messages=1_000_000) for lane in (LANE, OTHER)}
    left: dict[int, dict[int, bytes]] = {LANE: {}, OTHER: {}}
    serial = 0
    for _ in range(400):
        action = rng.random()
        if action < 0.5:
            rows = [row_of(i, b"%d-%d" % (serial, i)) for i in range(rng.choice((1, 1, 1, 2, 30)))]
            driven.store((rng.choice(([LANE], [OTHER], [LANE, OTHER])), rows), relaxed=rng.random() < 0.2)
            serial += 1
        elif action < 0.8:
            lane, flow = rng.choice(list(flows.items()))
            if left[lane]:
                chosen = rng.sample(sorted(left[lane]), rng.randint(1, len(left[lane])))
                driven.settle(flow, *[(position, position) for position in chosen])
                for position in chosen:
                    del left[lane][position]
        elif action < 0.83:
            driven.settle_down(2.0)
            driven.restart() if rng.random() < 0.5 else driven.kill()
            driven.start(ROUTER, LANES)
            driven.number = driven.stored
            flows = {lane: driven.bind(lane) for lane in (LANE, OTHER)}
        driven.settle_down(rng.choice((0.0, 0.0, 0.3, 2.0)))
        for lane, flow in flows.items():
            seen = driven.delivered.get(flow)
            fresh = seen.order if seen else []
            for position in fresh:
                assert seen is not None
                assert left[lane].setdefault(position, seen.rows[position][5]) == seen.rows[position][5]
            if seen is not None:
                seen.order.clear()
    driven.settle_down(0.1)
    for lane, flow in flows.items():
        assert driven.totals.get(lane, [0])[0] == len(left[lane])
        driven.settle(flow, *[(position, position) for position in left[lane]])
    driven.settle_down(0.2)
    for table in (Table.BLOCKS, Table.SEGMENTS, Table.STATES):
        assert driven.disk.count(table) == 0, table.name


# -- one segment out of many ---------------------------------------------------------------------------------


def test_merged_segments_say_the_same_of_every_message() -> None:
    rng = random.Random(1)
    segments = []
    position = 1
    for k in range(10):
        rows = [
            row_of(i, b"x" * rng.randint(0, 9), flags=rng.choice((1, 1 | wire.FLAG_DMQ_ELIGIBLE)))
            for i in range(rng.randint(1, 9))
        ]
        segment = _segment(position, k, rows, rng)
        segments.append(segment)
        position += segment.count
    merged = merge_segments(segments)
    merged.validate()
    row = 0
    for one in segments:
        for i in range(one.count):
            assert merged.first + row == one.first + i
            assert merged.row_in_block(row) == one.row_in_block(i)
            assert merged.stored_at_ms(row) == one.stored_at_ms(i)
            assert merged.priority(row) == one.priority(i)
            assert merged.dmq_eligible(row) == one.dmq_eligible(i)
            assert merged.sizes[row] == one.sizes[i]
            assert merged.state[row] == one.state[i]
            for column in ("expires", "due", "tries", "dead", "origins"):
                old, new = getattr(one, column), getattr(merged, column)
                said = 0 if new is None else new[row] or 0
                assert said == (0 if old is None else old[i] or 0)
            row += 1
    assert merged.count == row
    copy = Segment.unpack(merged.key(), merged.pack(), merged.pack_state())
    assert copy.pack() == merged.pack()


def _segment(first: int, block: int, rows: list[list[object]], rng: random.Random) -> Segment:
    from node.backlog.segment import make_segment
    from node.matching.batch import Row

    typed = []
    for index, topic, flags, _, properties, payload in rows:
        meta = rng.choice((None, (5_000, 0, None, None), (0, 700, 9, "k"), (0, 0, 2, None)))
        typed.append(Row(index, topic, flags, meta, properties, payload))  # type: ignore[arg-type]
    moved: list[Origin | None] = [("queue", "old", "moved")] * len(typed)
    origins = rng.choice((None, moved))
    segment = make_segment(LANE, first, 7, typed, None, 1_000 + block * 10, origins=origins)
    if rng.random() < 0.5:
        segment.tries = bytearray(rng.randint(0, 3) for _ in range(segment.count))
    if segment.count > 1:
        segment.state[0] = 0
        segment.live -= 1
        segment.live_bytes -= segment.sizes[0]
    return segment


@pytest.mark.slow
def test_a_backlog_of_lone_messages_costs_few_bytes_each() -> None:
    """At most 64 bytes of memory per message for the index, however they came."""
    driven = started()
    lone_messages(driven, 3_000, [LANE])
    driven.settle_down(10.0)
    held = driven.home.lanes.get(LANE)
    assert held is not None
    size = 0
    for segment in held.lane.segments:
        size += sys.getsizeof(segment)
        for column in ("rows", "sizes", "ages", "state"):
            size += sys.getsizeof(getattr(segment, column))
    assert size / 3_000 < 40
