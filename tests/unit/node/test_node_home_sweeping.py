"""What lanes that were emptied or deleted leave behind goes some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from node.home.home import HomeLimits
from node.home.spool import writing
from node.home.spool.repacking import SMALL_BLOCKS
from node.home.spool.writing import DEAD_PER_WRITE, SWEPT_PER_TURN, Writing
from storage.spool import Table
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, row_of, rows_of, settings_of, started

if TYPE_CHECKING:
    from node.backlog.segment import Segment

SEGMENTS = 5 * SWEPT_PER_TURN + 7
#: What one write has: records and blocks of what two turns let go, rows of lanes, what the router sent.
CHANGES_MAX = 2 * 3 * SWEPT_PER_TURN + 10


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> list[Segment]:
    """The segments that were let go, in order."""
    seen: list[Segment] = []
    discard = Writing.discard

    def noted(self: Writing, segment: Segment, now: float) -> bool:
        seen.append(segment)
        return discard(self, segment, now)

    monkeypatch.setattr(Writing, "discard", noted)
    return seen


def filled(segments: int = SEGMENTS) -> DrivenHome:
    driven = started()
    for _ in range(segments):
        driven.store(([LANE], [row_of(0)]), producer=None)
    driven.store(([OTHER], rows_of(2)), producer=None)
    driven.settle_down()
    return driven


def end(driven: DrivenHome, how: str) -> None:
    if how == "purge":
        driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    elif how == "delete":
        driven.lanes({}, LANE)
    else:
        driven.lanes({LANE: settings_of("q")}, generation=2)


def left(driven: DrivenHome) -> int:
    """Count the segments on disk."""
    return len(driven.disk.scan(Table.SEGMENTS))


@pytest.mark.parametrize("how", ["purge", "delete", "made again"])
def test_a_lane_that_loses_all_takes_no_turn_for_all_of_it(how: str, let_go: list[Segment]) -> None:
    """A queue of half a million messages in small batches took half a second, and was one write."""
    driven = filled()
    let_go.clear()
    end(driven, how)
    assert not let_go
    for _ in range(20):
        before = len(let_go)
        due = driven.tick()
        assert len(let_go) - before <= SWEPT_PER_TURN
        assert due is not None or len(let_go) == SEGMENTS, "it goes on by itself"
        if driven.begin_write():
            assert driven.out is not None
            assert len(driven.out[1]) <= CHANGES_MAX
            driven.end_write()
        driven.pass_time(0.05)
    assert left(driven) == 1
    assert len(driven.disk.scan(Table.BLOCKS)) == 1
    driven.home.validate()


@pytest.mark.parametrize("how", ["purge", "delete", "made again"])
def test_what_is_left_behind_when_the_process_dies_is_nobodys(how: str) -> None:
    driven = filled()
    end(driven, how)
    driven.tick()
    driven.write()
    assert left(driven) > 1
    driven.kill()
    lanes = {OTHER: settings_of("other")} | ({} if how == "delete" else {LANE: settings_of("q")})
    driven.start(ROUTER, lanes)
    driven.settle_down(1)
    held = driven.home.lanes.get(LANE)
    assert held is None or held.lane.messages == 0
    assert left(driven) == 1


def test_the_router_hears_of_room_when_what_took_it_is_deleted() -> None:
    driven = filled()
    end(driven, "purge")
    driven.tick()
    driven.write()
    driven.tick()
    assert left(driven) > SWEPT_PER_TURN
    assert driven.totals[LANE][0] == SEGMENTS
    driven.settle_down(1)
    assert driven.totals[LANE][0] == 0


def test_what_an_operator_deletes_elsewhere_does_not_take_it_along() -> None:
    driven = filled()
    end(driven, "purge")
    driven.home.request(
        "endpoint.delete_messages", {"lane_id": OTHER, "positions": [1]}, driven.now, driven.wall_ms
    )
    driven.tick()
    assert driven.begin_write()
    assert driven.out is not None
    assert len(driven.out[1]) <= CHANGES_MAX
    driven.end_write()
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    held = driven.home.lanes.get(OTHER)
    assert held is not None
    assert held.lane.messages == 1


def test_blocks_are_packed_again_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SWEPT_PER_TURN", 1)
    driven = started()
    for _ in range(2 * SMALL_BLOCKS):
        driven.store(([LANE, OTHER], [row_of(0)]), producer=None)
    driven.settle_down()
    end(driven, "purge")
    driven.pass_time(2)
    driven.tick()
    assert driven.home.parts.repacking.stats()["repacked_blocks"] == 2 * SMALL_BLOCKS
    driven.settle_down(1)
    held = driven.home.lanes.get(OTHER)
    assert held is not None
    assert held.lane.messages == 2 * SMALL_BLOCKS
    assert left(driven) == 1


def test_keys_are_free_when_all_of_it_is_deleted() -> None:
    driven = filled()
    home = driven.home.writing
    assert home.is_cleared(home.buried)
    end(driven, "delete")
    for _ in range(20):
        if home.is_cleared(0):
            break
        assert left(driven) > 1
        driven.tick()
        driven.write()
        driven.pass_time(0.05)
    assert left(driven) == 1


def test_it_does_not_pile_up_before_the_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "DEAD_PER_WRITE", SWEPT_PER_TURN)
    assert DEAD_PER_WRITE > SWEPT_PER_TURN
    driven = filled()
    end(driven, "purge")
    driven.tick()
    assert driven.begin_write()
    for _ in range(5):
        driven.tick()
    assert driven.home.stats()["segments_to_delete"] > SWEPT_PER_TURN
    assert not driven.home.writing.may_sweep
    driven.end_write()
    driven.settle_down(1)
    assert left(driven) == 1


def test_what_was_purged_while_a_write_found_no_room_is_written_no_more() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], [row_of(i) for i in range(10)]))
    driven.settle_down()
    driven.settle(flow, (1, 3))
    driven.disk.is_full = True
    while not driven.begin_write():
        driven.now += 0.01
        driven.tick()
    end(driven, "purge")
    driven.end_write()
    driven.home.validate()


def test_what_a_consumer_leaves_behind_is_stored_some_in_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of ten thousand lone messages that it had not settled were in one write, and nobody had a turn meanwhile."""
    monkeypatch.setattr(writing, "STATES_PER_WRITE", 10)
    driven = started(HomeLimits(ack_delay_ms=0))
    flow = driven.bind()
    for number in range(35):
        driven.store(([LANE], [row_of(0, b"%d" % number)]))
    driven.settle_down()
    driven.unbind(flow)
    stored = []
    for _ in range(20):
        driven.tick()
        if driven.begin_write():
            assert driven.out is not None
            stored.append(sum(table is Table.STATES for table, _, _ in driven.out[1]))
            driven.end_write()
    assert [count for count in stored if count] == [10, 10, 10, 5]
    assert driven.disk.count(Table.STATES) == 35
    flow = driven.bind()
    driven.settle_down()
    driven.settle(flow, (1, 35))
    driven.settle_down(0.5)
    assert driven.totals[LANE][:2] == [0, 0]
