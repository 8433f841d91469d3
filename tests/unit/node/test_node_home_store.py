"""The home stores what the router sends, tells when it is durable, delivers it then, and forgets it at the end."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from node.home.home import HomeLimits
from node.home.spool import layout
from node.home.spool.writing import DEAD_PER_WRITE
from storage.spool import Table
from tests.unit.node.driven_home import (
    DMQ,
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    THIRD,
    DrivenHome,
    row_of,
    rows_of,
    settings_of,
    started,
)
from tests.unit.node.stored_messages import on_disk, payloads

# -- the way of a message ------------------------------------------------------------------------------------


@pytest.mark.requirement("R163", "R164")
def test_a_message_is_acknowledged_and_delivered_only_after_its_commit() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.tick()
    assert driven.begin_write()
    driven.tick()
    assert driven.accepted == 0
    assert flow not in driven.delivered
    driven.end_write()
    driven.tick()
    assert (driven.accepted, driven.stored) == (1, 1)
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2"]
    assert driven.delivered[flow].order == [1, 2, 3]


@pytest.mark.requirement("R165", "R166")
def test_the_last_acknowledgement_deletes_a_message_from_the_disk() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.settle(flow, (1, 2))
    driven.settle_down(0.1)
    assert on_disk(driven) == {"blocks": 1, "segments": 1, "states": 1}
    driven.settle(flow, (3, 3))
    driven.settle_down(0.1)
    assert on_disk(driven) == {"blocks": 0, "segments": 0, "states": 0}
    assert driven.totals[LANE] == [0, 0, 0, 0]


@pytest.mark.requirement("R163", "R166")
def test_a_message_for_many_lanes_is_stored_once_and_goes_with_the_last_of_them() -> None:
    driven = started()
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    driven.store(([LANE, OTHER], rows_of(4)))
    driven.settle_down()
    assert on_disk(driven) == {"blocks": 1, "segments": 2, "states": 0}
    assert payloads(driven, flows[0]) == payloads(driven, flows[1]) == [b"m0", b"m1", b"m2", b"m3"]
    driven.settle(flows[0], (1, 4))
    driven.settle_down(0.1)
    assert on_disk(driven)["blocks"] == 1
    driven.settle(flows[1], (1, 4))
    driven.settle_down(0.1)
    assert on_disk(driven)["blocks"] == 0


@pytest.mark.requirement("R168")
def test_messages_wait_for_a_consumer_that_comes_later() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.store(([LANE], rows_of(2, 3)))
    driven.settle_down()
    flow = driven.bind()
    driven.settle_down()
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2", b"m3", b"m4"]


def test_a_whole_block_travels_as_it_was_stored() -> None:
    driven = started()
    driven.bind()
    driven.store(([LANE], rows_of(100)))
    driven.settle_down()
    stats = driven.home.stats()
    assert (stats["handouts"], stats["whole_blocks"], stats["blocks_read"]) == (1, 1, 0)


def test_a_part_of_a_block_is_cut_out_of_it() -> None:
    driven = started()
    flow = driven.bind(messages=3)
    driven.store(([LANE], rows_of(7)))
    driven.settle_down()
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2"]
    driven.credit(flow, 7)
    driven.settle_down()
    assert payloads(driven, flow) == [b"m%d" % i for i in range(7)]
    assert driven.home.stats()["whole_blocks"] == 0


def test_what_left_the_memory_is_read_from_disk() -> None:
    driven = started(HomeLimits(cache_bytes_max=100))
    for first in range(0, 30, 3):
        driven.store(([LANE], rows_of(3, first)))
        driven.settle_down()
    flow = driven.bind()
    driven.settle_down()
    assert payloads(driven, flow) == [b"m%d" % i for i in range(30)]
    assert driven.home.stats()["blocks_read"] >= 9


def test_stored_time_counts_and_origins_are_told() -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)), origins=[None, ["queue", "old", "moved"]])
    at = driven.wall_ms
    driven.settle_down(2.0)
    first = driven.bind()
    driven.settle_down()
    assert driven.delivered[first].origins == {1: None, 2: ["queue", "old", "moved"]}
    assert set(driven.delivered[first].stored_ms.values()) == {at}
    driven.unbind(first)
    second = driven.bind()
    driven.settle_down()
    assert driven.delivered[second].counts == {1: 1, 2: 1}


# -- order ---------------------------------------------------------------------------------------------------


def test_groups_are_merged_by_index_so_that_every_lane_has_the_order_of_the_publisher() -> None:
    driven = started()
    flows = {lane: driven.bind(lane) for lane in (LANE, OTHER)}
    driven.store(
        ([LANE], [row_of(i, b"%d" % i) for i in (0, 3, 5)]),
        ([LANE, OTHER], [row_of(i, b"%d" % i) for i in (1, 4)]),
        ([OTHER], [row_of(2, b"2")]),
    )
    driven.settle_down()
    assert payloads(driven, flows[LANE]) == [b"0", b"1", b"3", b"4", b"5"]
    assert payloads(driven, flows[OTHER]) == [b"1", b"2", b"4"]
    assert on_disk(driven)["blocks"] == 1


def test_groups_that_follow_each_other_are_joined_and_not_packed_again() -> None:
    driven = started()
    flow = driven.bind(OTHER)
    driven.store(([LANE, OTHER], rows_of(2)), ([OTHER], rows_of(3, 2)))
    driven.settle_down()
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert driven.home.stats()["whole_blocks"] == 1


def test_origins_follow_their_rows_when_groups_are_merged() -> None:
    driven = started()
    flow = driven.bind(LANE)
    head = (ROUTER, 1, False, [PRODUCER, 1])
    moved = ["queue", "old", "moved"]
    groups = [[[LANE], 2, [None, moved]], [[LANE, OTHER], 1, None]]
    batches = (wire.pack([row_of(0, b"0"), row_of(2, b"2")]), wire.pack([row_of(1, b"1")]))
    driven.send(wire.STORE, *head, groups, [], driven.wall_ms, batches=batches)
    driven.settle_down()
    assert payloads(driven, flow) == [b"0", b"1", b"2"]
    assert driven.delivered[flow].origins == {1: None, 2: None, 3: moved}


def test_everything_that_comes_while_a_write_is_out_is_one_write() -> None:
    driven = started()
    driven.store(([LANE], rows_of(1)))
    assert driven.begin_write()
    for _ in range(20):
        driven.store(([LANE], rows_of(1)))
        assert driven.home.take_write() is None
    before = driven.disk.commits
    driven.end_write()
    driven.settle_down()
    assert driven.disk.commits == before + 2
    assert driven.stored == 21


# -- numbers -------------------------------------------------------------------------------------------------


def test_a_store_that_comes_twice_is_stored_once_and_counted() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(2)))
    driven.store(([LANE], rows_of(2)), number=1)
    driven.settle_down()
    driven.store(([LANE], rows_of(2)), number=1)
    driven.settle_down()
    assert payloads(driven, flow) == [b"m0", b"m1"]
    assert driven.home.stats()["home_stores_resent"] == 2


def test_a_store_behind_a_lost_one_is_not_taken() -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)), number=2)
    driven.settle_down()
    assert (driven.accepted, driven.home.stats()["home_stores_out_of_order"]) == (0, 1)
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_FRAME_REFUSED"]


def test_a_broken_store_is_neither_stored_nor_acknowledged() -> None:
    driven = started()
    driven.send(
        wire.STORE, ROUTER, 1, False, [PRODUCER, 1], [[[LANE], 1, None]], [], 0, batches=(b"\x91\x00",)
    )
    driven.settle_down()
    assert driven.accepted == 0
    assert driven.home.faults == 1
    driven.number = 0
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert driven.stored == 1


@pytest.mark.parametrize(
    "header",
    [
        [ROUTER, 0, False, None, [], [], 0],
        [ROUTER, 1, False, None, [[[LANE], 1, None]], [], 0],
        [ROUTER, 1, False, [0, 1], [], [], 0],
        [ROUTER, 1, False, None, [[[LANE], 1]], [], 0],
        [ROUTER],
        7,
    ],
)
def test_a_store_of_another_shape_is_a_fault(header: object) -> None:
    driven = started()
    driven.home.handle([wire.STORE, wire.pack(header)], driven.now, driven.wall_ms)
    driven.settle_down()
    assert driven.home.faults == 1
    assert driven.accepted == 0


def test_frames_of_another_router_are_dropped() -> None:
    driven = started()
    driven.store(([LANE], rows_of(1)), router=ROUTER - 1)
    driven.settle_down()
    assert (driven.accepted, driven.home.stats()["home_stale_frames"]) == (0, 1)


def test_rows_for_lanes_that_are_not_here_are_dropped_and_counted() -> None:
    driven = started()
    flow = driven.bind(LANE)
    driven.store(([THIRD], rows_of(5)), ([LANE, THIRD], rows_of(2, 5)))
    driven.settle_down()
    assert driven.stored == 1
    assert payloads(driven, flow) == [b"m5", b"m6"]
    assert driven.home.stats()["rows_dropped"] == 5


# -- totals --------------------------------------------------------------------------------------------------


def test_totals_cover_exactly_what_is_accepted() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.store(([LANE], rows_of(3)), relaxed=True, producer=None)
    driven.tick()
    assert driven.begin_write()
    driven.store(([LANE], rows_of(1)))
    driven.end_write()
    driven.tick()
    # The relaxed one was accepted together with the one before it, and the last one is not yet.
    assert driven.accepted == 2
    assert driven.totals[LANE][:2] == [6, 6 * 66]
    driven.settle_down()
    assert driven.totals[LANE][:2] == [7, 7 * 66]


def test_settled_messages_are_told_when_their_end_is_durable() -> None:
    """After an unclean stop they would be back, and a limit that was met by their end would be exceeded."""
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down(0.1)
    driven.settle(flow, (1, 2))
    driven.settle_down(0.01)
    assert driven.totals[LANE] == [3, 3 * 66, driven.wall_ms - 109, 1]
    driven.settle_down(0.02)
    assert driven.totals[LANE][:2] == [1, 66]
    assert driven.traffic[LANE] == (3, 3 * 66, 2, 2 * 66)
    driven.settle(flow, (3, 3))
    driven.tick()
    driven.pass_time(0.03)
    driven.tick()
    assert driven.begin_write()
    driven.tick()
    assert (driven.totals[LANE][0], driven.files) == (1, {1})
    driven.end_write()
    driven.settle_down(0.02)
    assert (driven.totals[LANE][0], driven.files) == (0, set())
    assert driven.traffic[LANE] == (3, 3 * 66, 3, 3 * 66), "in, and out when it is durable"


def test_totals_that_were_told_are_never_exceeded_after_a_kill() -> None:
    for steps in range(1, 12):
        driven = started()
        flow = driven.bind()
        for first in range(0, 40, 10):
            driven.store(([LANE, OTHER], rows_of(10, first)))
            driven.settle_down()
        for step in range(steps):
            driven.settle(flow, (1 + 3 * step, 3 + 3 * step))
            driven.tick()
            driven.write()
            driven.tick()
            driven.pass_time(0.01)
        told = driven.totals[LANE]
        driven.kill()
        driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
        assert driven.totals[LANE][:2] <= told[:2]


@pytest.mark.requirement("R181", "R182")
def test_spool_files_are_used_until_nothing_is_left_in_them_also_over_restarts() -> None:
    driven = started()
    for file in (3, 3, 4, 7):
        driven.store(([LANE], rows_of(2, driven.number * 2)), file=file)
    driven.settle_down()
    assert driven.files == {3, 4, 7}
    flow = driven.bind()
    driven.settle_down()
    driven.settle(flow, (1, 3), (5, 6))
    driven.settle_down(0.2)
    assert driven.files == {3, 7}
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    assert driven.files == {3, 7}
    flow = driven.bind()
    driven.settle_down()
    driven.settle(flow, (4, 4))
    driven.settle_down(0.2)
    assert driven.files == {7}
    assert driven.home.stats()["spool_files"] == 1


def test_a_file_is_used_while_any_lane_has_messages_in_it() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(2)), ([OTHER], rows_of(1, 2)), file=5)
    driven.settle_down()
    assert driven.files == {5}
    driven.ask("endpoint.purge", lane_id=LANE)
    driven.settle_down(0.5)
    assert driven.files == {5}
    driven.ask("endpoint.purge", lane_id=OTHER)
    driven.settle_down(0.5)
    assert driven.files == set()


def test_files_that_a_purge_frees_late_are_told() -> None:
    """The totals are told at once, the blocks are deleted in the background."""
    driven = started()
    for number in range(DEAD_PER_WRITE + 2):
        driven.store(([LANE], rows_of(1, number)), file=number)
    driven.settle_down()
    assert len(driven.files) == DEAD_PER_WRITE + 2
    driven.ask("endpoint.purge", lane_id=LANE)
    driven.settle_down(1.0)
    assert driven.files == set()


# -- lanes ---------------------------------------------------------------------------------------------------


def test_lanes_are_confirmed_when_they_are_durable() -> None:
    driven = started()
    number = driven.lanes({THIRD: settings_of("third")})
    driven.tick()
    assert driven.confirmed == []
    driven.settle_down()
    assert driven.confirmed == [number]
    assert driven.disk.get(Table.LANES, layout.number_key(THIRD)) is not None


@pytest.mark.requirement("R180")
def test_a_deleted_lane_is_gone_with_everything_that_belongs_to_it() -> None:
    driven = started()
    flow = driven.bind(LANE)
    driven.store(([LANE, OTHER], rows_of(2)), ([LANE], rows_of(2, 2)))
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.settle_down(0.1)
    assert driven.events[-1][:3] == [flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT]
    assert on_disk(driven) == {"blocks": 1, "segments": 1, "states": 0}
    driven.lanes({}, OTHER)
    driven.settle_down(0.1)
    assert [driven.disk.count(table) for table in Table if table is not Table.META] == [0] * 7


def test_rows_that_wait_for_their_commit_go_with_their_lane() -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)))
    assert driven.begin_write()
    driven.store(([LANE], rows_of(2)))
    driven.lanes({}, LANE)
    driven.end_write()
    driven.settle_down(0.1)
    assert driven.stored == 2
    assert on_disk(driven) == {"blocks": 0, "segments": 0, "states": 0}


@pytest.mark.requirement("R149")
def test_another_generation_empties_a_lane_and_positions_go_on() -> None:
    driven = started()
    old = driven.bind(LANE)
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.store(([LANE], rows_of(1)))
    driven.lanes({LANE: settings_of("q")}, generation=2)
    driven.settle_down(0.1)
    assert driven.totals[LANE] == [0, 0, 0, 0]
    assert [event[:3] for event in driven.events if event[0] == old][-1] == [
        old,
        wire.FLOW_CLOSED,
        errors.UNKNOWN_ENDPOINT,
    ]
    flow = driven.bind(LANE)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert driven.delivered[flow].order == [5]
    assert on_disk(driven)["blocks"] == 1


def test_a_purge_right_behind_another_generation_lets_nothing_of_the_one_before_in() -> None:
    """The worker ended: what was on its way to disk belonged to no block any more, and came into the lane."""
    driven = started()
    driven.store(([LANE, OTHER], rows_of(1)))
    driven.lanes({LANE: settings_of("q")}, generation=2)
    driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    flow = driven.bind(LANE)
    driven.settle_down(0.1)
    assert driven.totals[LANE] == [0, 0, 0, 0]
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert driven.delivered[flow].order == [2]


def test_changed_settings_are_in_force_and_durable() -> None:
    driven = started()
    driven.lanes({LANE: settings_of("q", max_redeliveries=1, dead_message_queue="")})
    driven.settle_down()
    driven.kill()
    held = driven.home.lanes.get(LANE)
    assert held is not None
    assert held.lane.settings.max_redeliveries == 1


def test_a_lane_with_settings_that_are_none_is_a_fault() -> None:
    driven = started()
    driven.lanes({THIRD: {"kind": "cupboard"}})
    driven.settle_down()
    assert driven.confirmed == []
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_FRAME_REFUSED"]


def test_lanes_of_a_deleted_endpoint_are_purged_with_the_complete_list() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(2)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")}, deleted=(LANE,))
    assert set(driven.totals) == {OTHER}
    driven.settle_down(0.1)
    assert on_disk(driven) == {"blocks": 1, "segments": 1, "states": 0}


# -- durability ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R170")
def test_a_relaxed_message_that_was_acknowledged_quickly_is_never_written() -> None:
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    driven.settle_down(0.01)
    assert driven.accepted == 1
    assert payloads(driven, flow) == [b"m0", b"m1", b"m2"]
    driven.settle(flow, (1, 3))
    driven.settle_down(1.0)
    assert driven.stored == 1
    assert driven.home.stats()["stores_written"] == 0
    assert driven.disk.count(Table.RECORDS) == 1, "sequences of producers are always written"


def test_a_relaxed_message_that_waits_is_written_after_a_while() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    driven.settle_down(0.04)
    assert (driven.accepted, driven.stored) == (1, 0)
    driven.settle_down(0.02)
    assert driven.stored == 1
    assert on_disk(driven)["blocks"] == 1


def test_what_another_lane_still_holds_is_written() -> None:
    driven = started()
    flow = driven.bind(LANE)
    driven.store(([LANE, OTHER], rows_of(2)), relaxed=True)
    driven.settle_down(0.01)
    driven.settle(flow, (1, 2))
    driven.settle_down(0.2)
    assert on_disk(driven) == {"blocks": 1, "segments": 1, "states": 0}


def test_a_write_takes_along_relaxed_messages_of_its_lanes_and_leaves_others() -> None:
    driven = started()
    driven.settle_down()
    driven.store(([LANE], rows_of(1)), relaxed=True)
    driven.store(([OTHER], rows_of(1)), relaxed=True)
    driven.store(([LANE], rows_of(1)))
    driven.tick()
    assert driven.write()
    driven.tick()
    # Number 2 is not stored, so the router keeps 2 and 3.
    assert (driven.accepted, driven.stored) == (3, 1)
    assert on_disk(driven)["segments"] == 2
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    assert driven.stored == 1
    driven.number = 1
    driven.store(([OTHER], rows_of(1)), relaxed=True)
    driven.store(([LANE], rows_of(1)))
    driven.store(([LANE], rows_of(1)))
    driven.settle_down(0.2)
    assert driven.totals[LANE][0] == 3
    assert driven.totals[OTHER][0] == 1
    assert driven.home.stats()["home_stores_resent"] == 1


def test_promoted_messages_are_dropped_when_too_much_waits_for_the_disk() -> None:
    driven = started(HomeLimits(unwritten_bytes_max=1_000))
    driven.settle_down()
    assert not driven.begin_write()
    driven.store(([LANE], [row_of(0, bytes(2_000))]), relaxed=True, producer=None)
    driven.store(([LANE], rows_of(3)), relaxed=True, producer=None)
    driven.store(([LANE], rows_of(1)), relaxed=True)
    driven.tick()
    assert driven.accepted == 2, "a producer waits for the disk"
    driven.settle_down(0.1)
    assert driven.accepted == 3
    assert driven.totals[LANE][0] == 2
    assert driven.home.stats()["home_rows_promoted_dropped"] == 3


def test_a_will_is_not_dropped_with_them() -> None:
    """It has no producer either, and is to be on disk like what has one."""
    driven = started(HomeLimits(unwritten_bytes_max=1_000))
    driven.settle_down()
    driven.store(([LANE], [row_of(0, bytes(2_000))]), relaxed=True, producer=None)
    driven.store(([LANE], rows_of(3)), producer=None)
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 4


def test_promoted_messages_that_were_dropped_do_not_come_back_behind_what_came_later() -> None:
    """Not even if the process dies before the time at which they would have been written."""
    driven = started(HomeLimits(unwritten_bytes_max=1_000))
    driven.store(([LANE], [row_of(0, bytes(2_000))]), relaxed=True, producer=None)
    dropped = driven.store(([LANE], rows_of(3)), relaxed=True, producer=None)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    driven.store(([LANE], rows_of(3)), relaxed=True, producer=None, number=dropped)
    driven.settle_down(1.0)
    assert driven.totals[LANE][0] == 2


def test_a_lane_that_never_was_cannot_be_bound() -> None:
    driven = started()
    flow = driven.bind(DMQ)
    driven.settle_down()
    assert driven.events == [[flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT, f"lane {DMQ} is not here"]]


def test_the_size_of_the_spool_is_told_after_the_last_deletion() -> None:
    driven = started()
    for first in range(10):
        driven.store(([LANE], [row_of(first, bytes(10_000))]))
        driven.settle_down(0.2)
    assert driven.disk_bytes > 100_000
    driven.ask("endpoint.purge", lane_id=LANE)
    driven.settle_down(0.5)
    assert driven.disk_bytes < 5_000
    driven.committed.clear()
    driven.settle_down(5.0)
    assert driven.committed == []


def test_what_a_last_value_replaces_stays_on_disk_until_the_new_one_is_there() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {LANE: settings_of("last", last_value=True)})
    driven.store(([LANE], rows_of(1)))
    driven.settle_down(0.1)
    driven.store(([LANE], rows_of(1, 1)), relaxed=True, producer=None)
    driven.settle_down(0.03)
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("last", last_value=True)})
    flow = driven.bind()
    driven.settle_down()
    assert payloads(driven, flow) == [b"m1"]


def test_a_lane_may_be_deleted_in_the_moment_in_which_its_last_message_is_settled() -> None:
    driven = started()
    flow = driven.bind(LANE)
    driven.store(([LANE, OTHER], rows_of(2)))
    driven.settle_down()
    driven.settle(flow, (1, 2))
    driven.lanes({}, LANE)
    driven.settle_down(0.1)
    assert on_disk(driven) == {"blocks": 1, "segments": 1, "states": 0}
