"""A lane goes from a home that runs to another one, whoever dies when."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from node.home.lanes import adoption, copies
from node.home.spool import layout
from storage.spool import Table
from tests.share import some
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.adopting_home import Folder
from tests.unit.node.driven_home import LANE, OTHER, PRODUCER, ROUTER, DrivenHome, rows_of, settings_of

pytestmark = pytest.mark.requirement("R171", "R190")

Q = {LANE: settings_of("q")}
REST = {OTHER: settings_of("other")}
PLENTY = 1 << 30


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a copy takes several writes."""
    monkeypatch.setattr(adoption, "STEP_SEGMENTS", 2)
    monkeypatch.setattr(copies, "STEP_SEGMENTS", 2)


class Pair:
    """Worker 0 has the lane with 40 messages, of which it shares half with another one; worker 1 gets it."""

    def __init__(self) -> None:
        self.disks = {"0": SimulatedDisk(), "1": SimulatedDisk()}
        self.folders = [Folder(name, self.disks) for name in self.disks]
        self.folders[1].claims = self.folders[0].claims
        self.folders[1].taken = self.folders[0].taken
        self.folders[0].running.add("1")
        self.folders[1].running.add("0")
        self.old, self.new = (
            DrivenHome(disk, neighbours=folder)
            for disk, folder in zip(self.disks.values(), self.folders, strict=True)
        )
        self.old.workers = self.new.workers = 2
        self.old.start(ROUTER, {**Q, **REST})
        self.new.start(ROUTER, {})
        self.flow = self.old.bind(LANE, messages=12)
        for first in range(0, 40, 5):
            lanes = [LANE, OTHER] if first < 20 else [LANE]
            self.old.store((lanes, rows_of(5, first)), producer=(PRODUCER, 1))
            self.old.settle_down(0.1)
        self.old.settle(self.flow, (1, 4))
        self.old.settle_down(0.1)
        self.is_moved = False
        self.part_number = 0
        #: What the router keeps until it is stored, by number.
        self.kept: dict[int, dict[str, Any]] = {}

    def copy(self, seconds: float = 1.0) -> dict[str, Any]:
        """Copy the lane while its worker serves it."""
        self.new.ask("lane.copy", lane_id=LANE, source=0, bytes_per_s=PLENTY)
        self.new.settle_down(seconds)
        answer: dict[str, Any] = self.new.ask("lane.copy", lane_id=LANE, source=0, bytes_per_s=PLENTY)
        return answer

    def move(self) -> None:
        """The router has another home for it, while something is on its way to the old one."""
        self.is_moved = True
        number = self.old.store(([LANE], rows_of(5, 40)), producer=(PRODUCER, 1))
        self.kept[number] = {"groups": (([LANE], rows_of(5, 40)),), "producer": (PRODUCER, 1)}
        self.part_number = self.old.store(producer=None, parts=(LANE,))
        self.kept[self.part_number] = {"groups": (), "producer": None, "parts": (LANE,)}
        self.new.lanes(Q)
        self.new.bind(LANE, flow=77)
        self.new.store(([LANE], rows_of(5, 45)), producer=(PRODUCER, 1), number=self.new.number + 1)
        self.new.number += 1

    def kill_old(self) -> None:
        self.old.kill()
        is_parted = self.old.home.pending.stored >= self.part_number > 0
        here: tuple[int, ...] = ()
        elsewhere, leaving = ((LANE,), here) if is_parted else (here, (LANE,))
        self.old.send(wire.START, self.old.router, 1, bytes(1023) + b"\x01")
        if self.is_moved:
            self.old.lanes(REST, complete=True, leaving=leaving, elsewhere=elsewhere)
        else:
            self.old.lanes({**Q, **REST}, complete=True)
        for number, more in self.kept.items():
            if number > self.old.home.pending.stored:
                self.old.store(*more["groups"], number=number, **_without_groups(more))

    def kill_new(self) -> None:
        stored = self.new.home.pending.stored
        self.new.kill()
        self.new.send(wire.START, self.new.router, 1, bytes(1023) + b"\x01")
        self.new.lanes(Q if self.is_moved else {}, complete=True)
        if self.is_moved:
            self.new.bind(LANE, flow=78 + self.new.incarnation)
            if self.new.home.pending.stored < 1:
                self.new.store(([LANE], rows_of(5, 45)), producer=(PRODUCER, 1), number=1)
        assert self.new.home.pending.stored >= stored - 1

    def step(self) -> None:
        for home in (self.old, self.new):
            home.tick()
            home.write()
            home.pass_time(0.02)
            home.tick()

    def run(self, steps: int = 300) -> None:
        for _ in range(steps):
            self.step()
        self.old.settle_down(1.0)
        self.new.settle_down(1.0)

    def received(self) -> list[bytes]:
        """All that the last flow at the new home got."""
        flow = max(self.new.delivered)
        seen = self.new.delivered[flow]
        return [seen.rows[position][5] for position in seen.order]


def _without_groups(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name != "groups"}


ALL = [b"m%d" % i for i in range(4, 50)]


def expect_moved(pair: Pair) -> None:
    assert pair.received() == ALL
    assert pair.new.home.stats()["lanes_importing"] == 0
    assert pair.old.home.stats()["lanes_parting"] == 0
    assert pair.disks["0"].get(Table.LANES, layout.number_key(LANE)) is None
    assert pair.disks["0"].scan(Table.SEGMENTS, layout.number_key(LANE), layout.lane_end(LANE)) == []
    assert pair.old.totals[OTHER][0] == 20
    assert not pair.folders[0].claims
    assert not pair.folders[0].taken
    blocks = pair.disks["1"].count(Table.BLOCKS)
    pair.new.kill()
    pair.new.start(ROUTER, Q)
    pair.new.settle_down(5.0)
    assert pair.new.totals[LANE][0] == len(ALL), "nothing of an early copy comes back"
    assert pair.disks["1"].count(Table.BLOCKS) == blocks
    pair.old.restart()
    assert [event["event"] for event in pair.old.told if event["severity"] == "error"] == []


@pytest.mark.parametrize("copies_early", [True, False])
def test_a_lane_goes_to_another_home_with_all_it_has_while_its_worker_runs(copies_early: bool) -> None:
    pair = Pair()
    if copies_early:
        assert pair.copy() == {"messages": 36, "bytes": pytest.approx(36 * 68, abs=200), "is_caught_up": True}
        pair.old.settle(pair.flow, (5, 8))
        pair.old.settle_down(0.1)
    pair.move()
    pair.run()
    got = pair.received()
    assert got == (ALL[4:] if copies_early else ALL)
    seen = pair.new.delivered[77]
    assert seen.order == sorted(seen.order)
    assert [seen.counts[position] for position in (9, 12, 40, 50)] == [1, 1, 0, 0], (
        "what was delivered says so"
    )
    assert pair.new.home.stats()["messages_adopted"] == len(got) - 5


def test_what_was_copied_early_is_not_copied_again() -> None:
    pair = Pair()
    pair.copy()
    before = pair.disks["1"].count(Table.BLOCKS)
    assert before == 8
    pair.move()
    pair.run()
    expect_moved(pair)
    assert pair.disks["1"].count(Table.BLOCKS) == before + 2


def test_what_went_after_it_was_copied_does_not_come_back() -> None:
    pair = Pair()
    pair.copy()
    pair.old.settle(pair.flow, (5, 12))
    pair.old.settle_down(0.1)
    pair.old.ask("endpoint.delete_messages", lane_id=LANE, positions=list(range(13, 31)))
    pair.move()
    pair.run()
    assert pair.received() == [b"m%d" % i for i in range(30, 50)]
    pair.new.kill()
    pair.new.start(ROUTER, Q)
    pair.new.settle_down(5.0)
    assert pair.new.totals[LANE][0] == 20


@pytest.mark.parametrize("victim", ["old", "new"])
@pytest.mark.parametrize("copies_early", [True, False])
@pytest.mark.parametrize("after", some((*range(14), 20, 30), of=3))
def test_whoever_dies_when_everything_is_at_the_new_home_once(
    victim: str, copies_early: bool, after: int
) -> None:
    pair = Pair()
    if copies_early:
        pair.copy(0.0 if after % 2 else 1.0)
    pair.move()
    for _ in range(after):
        pair.step()
    pair.kill_old() if victim == "old" else pair.kill_new()
    pair.run()
    expect_moved(pair)


def test_a_write_that_is_out_when_the_old_home_dies_counts_or_not() -> None:
    for is_written in (False, True):
        pair = Pair()
        pair.move()
        assert pair.old.begin_write()
        if is_written:
            assert pair.old.out is not None
            pair.disks["0"].commit(pair.old.out[1])
        pair.kill_old()
        pair.run()
        expect_moved(pair)


def test_a_home_that_parts_with_a_lane_does_nothing_with_it_any_more() -> None:
    pair = Pair()
    pair.old.store(producer=None, parts=(LANE,))
    with pytest.raises(errors.UnavailableError):
        pair.old.ask("endpoint.purge", lane_id=LANE)
    pair.old.settle_down(0.5)
    before = [
        pair.disks["0"].scan(table, layout.number_key(LANE), layout.lane_end(LANE))
        for table in (Table.LANES, Table.SEGMENTS, Table.STATES, Table.RECORDS)
    ]
    pair.old.settle_down(3.0)
    pair.old.kill()
    pair.old.start(ROUTER, None)
    pair.old.lanes(REST, complete=True, elsewhere=(LANE,))
    pair.old.settle_down(3.0)
    after = [
        pair.disks["0"].scan(table, layout.number_key(LANE), layout.lane_end(LANE))
        for table in (Table.LANES, Table.SEGMENTS, Table.STATES, Table.RECORDS)
    ]
    assert before == after
    assert pair.old.home.stats()["lanes_kept_aside"] == 0
    assert pair.old.home.stats()["lanes_parting"] == 1


def test_what_was_under_way_when_a_lane_left_is_asked_for_by_its_new_home_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The router takes what the old one asks for again for something new: it would be moved twice."""
    monkeypatch.setitem(Q, LANE, settings_of("q", dead_message_queue="dead"))
    pair = Pair()
    pair.old.settle(pair.flow, (5, 7), outcome=wire.OUTCOME_REJECTED)
    pair.old.settle_down(0.1)
    assert len(pair.old.moves) == 1
    pair.move()
    pair.run()
    assert pair.disks["0"].get(Table.LANES, layout.number_key(LANE)) is None
    assert len(pair.old.moves) == 1, "also when it deletes what it has left"
    assert [header[:2] for header, _ in pair.new.moves] == [[LANE, 1]]


def test_a_home_that_has_its_lane_again_before_another_had_it_goes_on() -> None:
    pair = Pair()
    pair.old.store(producer=None, parts=(LANE,))
    pair.old.settle_down(0.5)
    pair.old.lanes(Q)
    flow = pair.old.bind(LANE)
    pair.old.settle_down(0.5)
    assert pair.old.delivered[flow].order == list(range(5, 41))


def test_an_early_copy_that_nobody_asks_about_is_deleted() -> None:
    pair = Pair()
    pair.copy()
    pair.new.settle_down(copies.FORGOTTEN_S + 5.0)
    assert pair.new.home.stats()["lanes_copying"] == 0
    assert pair.disks["1"].count(Table.SEGMENTS) == pair.disks["1"].count(Table.BLOCKS) == 0


def test_an_early_copy_keeps_its_rate() -> None:
    pair = Pair()
    pair.new.ask("lane.copy", lane_id=LANE, source=0, bytes_per_s=600)
    pair.new.settle_down(2.0)
    found = pair.new.ask("lane.copy", lane_id=LANE, source=0, bytes_per_s=600)
    assert 600 <= found["bytes"] <= 2_000
    assert not found["is_caught_up"]


def content(disk: SimulatedDisk) -> dict[tuple[Table, bytes], bytes]:
    return {(table, key): value for table in Table for key, value in disk.scan(table)}


def importing_of(disk: SimulatedDisk) -> int | None:
    value = disk.get(Table.LANES, layout.number_key(LANE))
    return None if value is None else layout.unpack_lane(value).importing


@pytest.mark.requirement("R268")
def test_a_lane_whose_deletion_a_standby_lacks_when_it_takes_over_is_deleted_there() -> None:
    """The new home has seen the deletion on the disk of the primary, and says no more that it has all."""
    pair = Pair()
    pair.move()
    disk = pair.disks["0"]
    while importing_of(disk) != layout.PARTED:
        pair.step()
    parted = content(disk)
    pair.run()
    assert importing_of(disk) is None
    gone = [(*place, None) for place in content(disk) if place not in parted]
    disk.commit([*gone, *[(*place, value) for place, value in parted.items()]])
    pair.kill_old()
    pair.run()
    expect_moved(pair)
    assert importing_of(disk) is None


@pytest.mark.requirement("R264")
def test_a_lane_is_marked_as_parted_when_all_that_it_has_is_durable_already() -> None:
    """Who takes it over reads this disk, and a standby may have what he writes sooner than what he has read."""
    pair = Pair()
    pair.move()
    disk = pair.disks["0"]
    before = content(disk)
    while importing_of(disk) != layout.PARTED:
        before = content(disk)
        pair.step()
    segments = [place for place in content(disk) if place[0] is Table.SEGMENTS]
    assert [place for place in before if place[0] is Table.SEGMENTS] == segments
    assert pair.old.home.pending.stored >= pair.part_number
