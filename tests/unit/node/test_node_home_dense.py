"""Positions of a lane are dense, whatever ended the process that gave them (R221).

What nobody saw and is not on disk gets its position again; what a consumer may have seen keeps its position, or
leaves a gap that the lane remembers.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.home.home import HomeLimits
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL, RESERVED_LEAST
from storage.spool import Table
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.adopting_home import Folder
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, rows_of, settings_of, started

pytestmark = pytest.mark.requirement("R221")

LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}


def again(driven: DrivenHome, router: int = ROUTER, generation: int = 1) -> None:
    """Kill the home; the router sends again what was not stored, so its numbers go on there."""
    driven.kill()
    driven.start(router)
    driven.lanes(LANES, complete=True, generation=generation)
    driven.settle_down()
    driven.number = driven.stored


def direct(driven: DrivenHome, count: int, first: int = 0) -> None:
    """A direct message that the queue takes is delivered before it is on disk."""
    driven.store(([LANE], rows_of(count, first)), relaxed=True, producer=None)


def seen(driven: DrivenHome) -> dict[int, bytes]:
    """Give what a browser sees, from position to payload."""
    flow = driven.bind(browse=True)
    driven.settle_down()
    found = driven.delivered.get(flow)
    return {} if found is None else {position: row[5] for position, row in found.rows.items()}


def numbers(driven: DrivenHome) -> dict[int, int]:
    """Give what a browser sees, from position to the number of the message."""
    return {position: int(payload[1:]) for position, payload in seen(driven).items()}


def gaps(driven: DrivenHome) -> tuple[tuple[int, int], ...]:
    held = driven.home.lanes.get(LANE)
    assert held is not None
    return held.gaps


@pytest.mark.parametrize("writes", range(6))
def test_a_kill_leaves_no_gap_among_synced_messages_that_consumers_follow(writes: int) -> None:
    driven = started()
    driven.bind()
    for first in range(0, 50, 5):
        driven.store(([LANE], rows_of(5, first)))
        if first < 5 * writes:
            driven.settle_down()
    driven.begin_write()
    again(driven)
    for first in range(5 * driven.stored, 50, 5):
        driven.store(([LANE], rows_of(5, first)))
    driven.settle_down()
    assert numbers(driven) == {position: position - 1 for position in range(1, 51)}
    assert gaps(driven) == ()


def test_a_kill_while_the_disk_is_full_leaves_no_gap() -> None:
    """What failed to be written is nowhere, and neither are its positions; what makes room goes on meanwhile."""
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(5)))
    driven.settle_down()
    driven.disk.is_full = True
    driven.store(([LANE], rows_of(5, 5)))
    driven.settle(flow, (1, 5))
    driven.tick()
    driven.write()
    driven.disk.is_full = False
    driven.pass_time(0.2)
    driven.tick()
    assert driven.write(), "what frees space"
    again(driven, router=ROUTER + 1)
    driven.store(([LANE], rows_of(5, 5)))
    driven.settle_down()
    assert numbers(driven) == {position: position - 1 for position in range(6, 11)}
    assert gaps(driven) == ()


def test_what_was_seen_before_it_was_on_disk_comes_again_under_its_positions_and_marked() -> None:
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    driven.store(([LANE], rows_of(5)))
    driven.settle_down()
    direct(driven, 3, 5)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == list(range(1, 9))
    again(driven)
    direct(driven, 3, 5)
    driven.store(([LANE], rows_of(2, 8)))
    flow = driven.bind()
    driven.settle_down()
    assert {position: int(row[5][1:]) for position, row in driven.delivered[flow].rows.items()} == {
        position: position - 1 for position in range(1, 11)
    }
    assert [driven.delivered[flow].counts[position] for position in (1, 6, 8)] == [1, 1, 1]
    assert gaps(driven) == ()


def test_what_comes_again_late_is_marked_even_if_a_process_stopped_in_order_meanwhile() -> None:
    driven = started()
    driven.bind()
    driven.settle_down()
    direct(driven, 3)
    driven.settle_down(0.01)
    again(driven)
    driven.restart()
    driven.start(ROUTER, LANES)
    driven.number = driven.stored
    direct(driven, 3)
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].counts == {1: 1, 2: 1, 3: 1}


def test_what_died_with_the_router_too_leaves_a_gap_that_the_lane_remembers() -> None:
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 10)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == list(range(1, 11))
    again(driven, router=ROUTER + 1)
    told = [event["event"] for event in driven.told]
    assert told == ["SYSTEM_AD_POSITIONS_LOST"]
    for _ in range(2):
        assert len(gaps(driven)) == 1
        first, last = gaps(driven)[0]
        assert first == 1
        assert 10 <= last <= 10 + RESERVED_LEAST
        again(driven, router=ROUTER + 1)
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    assert numbers(driven) == {last + 1: 0, last + 2: 1}
    held = driven.home.lanes.get(LANE)
    assert held is not None
    assert held.lost_between(5, last + 2) == last - 4


def test_what_was_consumed_and_never_written_keeps_its_positions_and_takes_no_others_along() -> None:
    driven = started(HomeLimits(write_delay_ms=50, ack_delay_ms=0))
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 3)
    driven.settle_down(0.01)
    driven.settle(flow, (1, 3))
    driven.settle_down(1.0)
    assert (driven.stored, driven.disk.count(Table.SEGMENTS)) == (1, 0)
    again(driven, router=ROUTER)
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    assert numbers(driven) == {4: 0, 5: 1}


def test_another_router_finds_on_disk_what_the_one_before_sent() -> None:
    """Nobody sends it again, so it is written with the first word of the new one; no position is given twice."""
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 3)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == [1, 2, 3]
    driven.start(ROUTER + 1)
    driven.lanes(LANES, complete=True)
    driven.store(([LANE], rows_of(1, 3)))
    driven.tick()
    driven.write()
    again(driven, router=ROUTER + 1)
    assert numbers(driven) == {position: position - 1 for position in range(1, 5)}
    assert gaps(driven) == ()


def test_nobody_sees_a_position_behind_a_message_that_was_dropped_before_that_is_on_disk() -> None:
    """The next process would not drop it, and give what comes behind it other positions."""
    driven = started(HomeLimits(unwritten_bytes_max=1, write_delay_ms=1_000))
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 2)
    driven.settle_down(0.01)
    direct(driven, 3, 2)
    assert driven.home.stats()["home_rows_promoted_dropped"] == 3
    driven.store(([LANE], rows_of(1, 5)), relaxed=True)
    driven.tick()
    assert driven.delivered[flow].order == [1, 2]
    assert driven.begin_write(), "at once"
    driven.tick()
    assert driven.delivered[flow].order == [1, 2]
    driven.end_write()
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == [1, 2, 3]
    again(driven)
    assert numbers(driven) == {1: 0, 2: 1, 3: 5}


def test_what_may_have_been_seen_is_not_dropped_when_it_comes_again() -> None:
    driven = started()
    driven.bind()
    driven.settle_down()
    for first in (0, 2):
        direct(driven, 2, first)
        driven.settle_down(0.01)
    driven.limits = HomeLimits(unwritten_bytes_max=1)
    again(driven)
    for first in (0, 2):
        direct(driven, 2, first)
    driven.settle_down()
    assert numbers(driven) == {position: position - 1 for position in range(1, 5)}


def test_a_purge_of_what_is_not_written_gives_no_position_twice() -> None:
    driven = started(HomeLimits(write_delay_ms=1_000))
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 4)
    driven.settle_down(0.01)
    assert driven.ask("endpoint.purge", lane_id=LANE) == 4
    direct(driven, 2, 4)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == list(range(1, 7))
    again(driven)
    if driven.stored == 1:
        direct(driven, 2, 4)
    driven.settle_down()
    assert numbers(driven) == {5: 4, 6: 5}


def test_an_endpoint_that_is_made_anew_gives_no_position_of_the_one_before() -> None:
    """The router leaves out what was for the generation before when it sends again."""
    driven = started(HomeLimits(write_delay_ms=1_000))
    flow = driven.bind()
    driven.settle_down()
    direct(driven, 4)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == [1, 2, 3, 4]
    again(driven, generation=2)
    driven.store(([LANE], rows_of(1, 9)))
    driven.settle_down()
    assert min(numbers(driven)) > 4


def test_a_lane_that_is_deleted_and_made_anew_begins_with_position_one() -> None:
    """It belongs to another endpoint: ids are never given twice."""
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.settle_down()
    driven.lanes({LANE + (1 << 20): settings_of("q")})
    driven.store(([LANE + (1 << 20)], rows_of(2)))
    driven.settle_down()
    flow = driven.bind(LANE + (1 << 20))
    driven.settle_down()
    assert driven.delivered[flow].order == [1, 2]


def test_a_lane_that_is_told_gone_and_told_again_at_once_is_there_after_a_restart() -> None:
    """A router may carry out an older deletion behind a configuration that had its endpoint already."""
    driven = started()
    again = LANE + (1 << 20)
    driven.lanes({again: settings_of("q")})
    driven.lanes({}, again)
    driven.lanes({again: settings_of("q")})
    driven.settle_down()
    driven.store(([again], rows_of(2)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {again: settings_of("q")})
    flow = driven.bind(again)
    driven.settle_down()
    assert driven.delivered[flow].order == [1, 2]


def test_last_values_and_expiry_leave_the_positions_of_others_alone() -> None:
    driven = started()
    driven.lanes({LANE: settings_of("q", last_value=True)})
    for number in range(5):
        driven.store(([LANE], rows_of(1, number)))
        driven.settle_down(0.5)
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q", last_value=True)})
    driven.store(([LANE], rows_of(1, 5)))
    driven.settle_down()
    assert numbers(driven) == {6: 5}


# -- a lane that gets another home ---------------------------------------------------------------------------


class Pair:
    """A worker that leaves with a lane, and the one that takes it over."""

    def __init__(self, *, clean: bool = True, shown: int = 0) -> None:
        self.old = DrivenHome()
        self.old.start(ROUTER, {LANE: settings_of("q")})
        self.old.bind()
        self.old.store(([LANE], rows_of(10)))
        self.old.settle_down()
        if shown:
            direct(self.old, shown, 10)
            self.old.settle_down(0.01)
        if clean:
            self.old.restart()
        own = SimulatedDisk()
        self.folder = Folder("0", {"0": own, "1": self.old.disk})
        self.folder.running.add("1")
        self.new = DrivenHome(own, neighbours=self.folder)
        self.new.start(ROUTER, {LANE: settings_of("q")})

    def end_old(self) -> None:
        self.folder.running.clear()
        self.new.pass_time(1.0)

    def step(self, count: int) -> None:
        for _ in range(count):
            self.new.tick()
            self.new.write()

    def step_until_placing(self) -> None:
        """Leave the write out that moves what waits down from the provisional positions."""
        for _ in range(20):
            self.new.tick()
            if self.new.begin_write():
                if self.is_placing():
                    return
                self.new.end_write()
        raise AssertionError("it comes")

    def is_placing(self) -> bool:
        changes = [] if self.new.out is None else self.new.out[1]
        return any(
            table is Table.SEGMENTS and value is None and int.from_bytes(key[8:], "big") > PROVISIONAL
            for table, key, value in changes
        )

    def kill(self) -> None:
        self.folder.opened = None
        self.new.kill()
        self.new.start(ROUTER, {LANE: settings_of("q")})
        self.new.number = self.new.stored

    def positions(self) -> list[int]:
        start, end = layout.number_key(LANE), layout.lane_end(LANE)
        return [int.from_bytes(key[8:], "big") for key, _ in self.new.disk.scan(Table.SEGMENTS, start, end)]


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("kill_after", range(8))
def test_what_comes_while_a_lane_is_taken_over_gets_the_next_positions(
    kill_after: int, *, relaxed: bool
) -> None:
    pair = Pair()
    new = pair.new
    new.bind()
    for number in range(10, 14):
        new.store(([LANE], rows_of(1, number)), relaxed=relaxed)
        if number < 12:
            new.settle_down()
    pair.end_old()
    new.store(([LANE], rows_of(2, 14)), relaxed=relaxed)
    pair.step(kill_after)
    pair.kill()
    for number in range(10 + new.stored, 14):
        new.store(([LANE], rows_of(1, number)), relaxed=relaxed)
    if new.stored < 5:
        new.store(([LANE], rows_of(2, 14)), relaxed=relaxed)
    new.settle_down(1.0)
    assert numbers(new) == {position: position - 1 for position in range(1, 17)}
    assert gaps(new) == ()
    pair.kill()
    new.store(([LANE], rows_of(1, 16)))
    new.settle_down()
    assert numbers(new) == {position: position - 1 for position in range(1, 18)}
    assert [one for one in pair.positions() if one > PROVISIONAL] == []


def test_what_comes_while_positions_are_placed_is_placed_too() -> None:
    pair = Pair()
    new = pair.new
    new.store(([LANE], rows_of(1, 10)))
    new.settle_down()
    pair.end_old()
    pair.step_until_placing()
    new.store(([LANE], rows_of(1, 11)), relaxed=True)
    new.store(([LANE], rows_of(1, 12)))
    new.end_write()
    new.settle_down(1.0)
    assert numbers(new) == {position: position - 1 for position in range(1, 14)}


@pytest.mark.parametrize("what", ["purge", "delete", "full"])
def test_what_happens_to_a_lane_while_its_positions_are_placed_is_right_afterwards(what: str) -> None:
    pair = Pair()
    new = pair.new
    for number in (10, 11):
        new.store(([LANE], rows_of(1, number)))
        new.settle_down()
    pair.end_old()
    pair.step_until_placing()
    if what == "purge":
        new.home.request("endpoint.purge", {"lane_id": LANE}, new.now, new.wall_ms)
    elif what == "delete":
        new.lanes({}, LANE)
    else:
        new.disk.is_full = True
    new.end_write()
    new.disk.is_full = False
    new.settle_down(3.0)
    if what == "delete":
        assert [new.disk.count(table) for table in (Table.LANES, Table.SEGMENTS, Table.BLOCKS)] == [0, 0, 0]
        return
    new.store(([LANE], rows_of(1, 12)))
    new.settle_down()
    expected = {13: 12} if what == "purge" else {position: position - 1 for position in range(1, 14)}
    assert numbers(new) == expected
    pair.kill()
    assert numbers(new) == expected
    assert new.disk.count(Table.BLOCKS) == len(pair.positions())


def test_what_consumers_saw_and_the_old_home_took_with_it_is_a_gap() -> None:
    pair = Pair(clean=False, shown=3)
    pair.end_old()
    pair.new.store(([LANE], rows_of(2, 20)))
    pair.new.settle_down(1.0)
    found = numbers(pair.new)
    assert [position for position in found if found[position] < 20] == list(range(1, 11))
    ((first, last),) = gaps(pair.new)
    assert first == 11
    assert 13 <= last <= 13 + RESERVED_LEAST
    assert {position: found[position] for position in found if position > 10} == {last + 1: 20, last + 2: 21}


def test_positions_stay_dense_over_many_homes() -> None:
    disk = SimulatedDisk()
    driven = DrivenHome(disk)
    driven.start(ROUTER, {LANE: settings_of("q")})
    for number in range(4):
        driven.store(([LANE], rows_of(3, 3 * number)))
        driven.settle_down()
        driven.restart()
        own = SimulatedDisk()
        folder = Folder("0", {"1": driven.disk, "0": own})
        driven = DrivenHome(own, neighbours=folder)
        driven.start(ROUTER, {LANE: settings_of("q")})
        driven.number = 0
        driven.settle_down(1.0)
    positions = sorted(numbers(driven))
    assert positions[0] == 1
    assert all(b == a + 1 for a, b in pairwise(positions))
    assert len(positions) == 12
