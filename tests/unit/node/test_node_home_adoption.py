"""A lane whose worker left comes to its new home with positions, ages, attempts and records."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from node.home.lanes import adoption
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL
from storage.spool import Table
from tests.share import some
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.adopting_home import LANES, Folder, new_home
from tests.unit.node.driven_home import LANE, OTHER, PRODUCER, ROUTER, THIRD, DrivenHome, rows_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def left_behind(*, clean: bool = True) -> SimulatedDisk:
    """The disk of a worker that left: 30 messages in two lanes, some settled, some delivered."""
    old = DrivenHome()
    old.start(ROUTER, LANES)
    flow = old.bind(LANE, messages=10)
    for first in range(0, 30, 10):
        old.store(([LANE, OTHER], rows_of(10, first)), producer=(PRODUCER, 1), file=7 + first // 10)
        old.settle_down(1.0)
    old.settle(flow, (1, 4))
    old.store(producer=(PRODUCER, 31), refused=[(LANE, [(31, errors.SPOOL_OVER_QUOTA)])])
    old.settle_down(0.1)
    if clean:
        old.restart()
        # The next process would take the mark away with its first write; this worker never starts again.
    return old.disk


def received(driven: DrivenHome, flow: int) -> list[bytes]:
    seen = driven.delivered.get(flow)
    return [] if seen is None else [seen.rows[position][5] for position in seen.order]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an import takes several writes."""
    monkeypatch.setattr(adoption, "STEP_SEGMENTS", 1)


def test_messages_come_with_positions_ages_and_attempts() -> None:
    driven, folder = new_home(left_behind())
    driven.lanes(LANES)
    driven.settle_down(0.1)
    assert driven.confirmed == [driven.lanes_number]
    assert driven.totals[LANE][:2] == [26, sum(64 + len(b"m%d" % i) for i in range(4, 30))]
    flow = driven.bind(LANE)
    driven.settle_down()
    seen = driven.delivered[flow]
    assert seen.order == list(range(5, 31))
    assert received(driven, flow) == [b"m%d" % i for i in range(4, 30)]
    assert [seen.counts[position] for position in (5, 10, 11, 30)] == [1, 1, 0, 0]
    assert seen.stored_ms[30] - seen.stored_ms[5] == 2_000
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_LANE_ADOPTED"] * 2
    assert folder.names() == [], "the old spool goes with its last lane"
    assert folder.claims == {}


def test_what_is_brought_from_another_spool_is_no_traffic_and_what_comes_meanwhile_is() -> None:
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    driven.store(([LANE], rows_of(2, 30)), producer=(PRODUCER, 32))
    driven.settle_down(1.0)
    assert driven.totals[LANE][0] == 28
    assert driven.traffic[LANE][::2] == (2, 0)


def test_a_lane_is_here_before_there_is_room_to_delete_it_in_its_old_spool() -> None:
    disk = left_behind()
    driven, folder = new_home(disk)
    disk.is_full = True
    driven.lanes(LANES)
    flow = driven.bind(LANE)
    driven.settle_down(1.0)
    assert received(driven, flow) == [b"m%d" % i for i in range(4, 30)]
    assert driven.home.stats()["lanes_importing"] == 2, (
        "the number of workers does not change before that is over"
    )
    disk.is_full = False
    driven.settle_down(1.0)
    assert driven.home.stats()["lanes_importing"] == 0
    assert folder.names() == []
    assert folder.claims == {}


def test_messages_are_not_deleted_before_they_are_here() -> None:
    """Those that come behind the answer would be delivered although they are deleted."""
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    assert driven.home.lanes.get(LANE).importing  # type: ignore[union-attr]
    with pytest.raises(errors.AngariumError) as refused:
        driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[5, 6])
    assert refused.value.code == errors.HOME_NOT_READY
    driven.settle_down(1.0)
    assert driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[5, 6]) == 2


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("endpoint.move", {"target": ["queue", "default", "other"]}),
        ("endpoint.move", {"target": ["queue", "default", "other"], "copy": True}),
        ("endpoint.redrive", {}),
        ("endpoint.release", {}),
    ],
)
def test_what_is_asked_of_all_messages_waits_until_they_are_here(
    operation: str, arguments: dict[str, Any]
) -> None:
    """A job would be done with nothing, and write a row in front of the one that comes."""
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    with pytest.raises(errors.AngariumError) as refused:
        driven.ask(operation, lane_id=LANE, **arguments)
    assert refused.value.code == errors.HOME_NOT_READY
    driven.settle_down(1.0)
    answer = driven.ask(operation, lane_id=LANE, **arguments)
    assert answer is None or driven.ask("job", job=answer["job"])["total"] > 0


def test_a_lane_is_done_with_when_another_worker_has_deleted_its_old_spool() -> None:
    """The worker that left deleted it itself; so the next one that looked deleted the last lane, and the spool."""
    disk = left_behind()
    driven, folder = new_home(disk)
    disk.is_full = True
    driven.lanes(LANES)
    driven.settle_down(1.0)
    assert driven.home.stats()["lanes_importing"] == 2
    folder.opened, folder.disks = None, {"0": folder.disks["0"]}
    driven.settle_down(1.0)
    assert driven.home.stats()["lanes_importing"] == 0


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_lane_that_is_still_in_its_old_spool_is_deleted_there_by_the_next_process(is_orderly: bool) -> None:
    """Else the old spool, with its claim, would be there for ever."""
    disk = left_behind()
    driven, folder = new_home(disk)
    disk.is_full = True
    driven.lanes(LANES)
    flow = driven.bind(LANE)
    driven.settle_down(1.0)
    driven.settle(flow, (5, 20))
    driven.settle_down(1.0)
    folder.opened = None
    if is_orderly:
        driven.restart()
    else:
        driven.kill()
    driven.start(ROUTER, LANES)
    # The row of a lane is written for other reasons, too.
    driven.lanes({LANE: settings_of("q", max_unacked=7)})
    driven.settle_down(1.0)
    folder.opened = None
    driven.kill()
    driven.start(ROUTER, LANES)
    disk.is_full = False
    driven.settle_down(1.0)
    assert folder.names() == []
    assert folder.claims == {}
    assert [driven.totals[lane][0] for lane in LANES] == [10, 30]
    driven.kill()
    del folder.disks["0"]
    driven.start(ROUTER, LANES)
    assert [event["event"] for event in driven.told if event["event"] == "lane_not_adopted"] == []
    flow = driven.bind(LANE)
    driven.settle_down()
    assert received(driven, flow) == [b"m%d" % i for i in range(20, 30)]


def test_an_old_spool_that_could_not_be_read_when_its_lanes_were_given_up_keeps_them() -> None:
    """Nothing of it was copied: who gets it back finds its messages."""
    driven, folder = new_home(left_behind(), runs=True)
    driven.lanes(LANES)
    driven.settle_down()
    away = folder.disks.pop("1")
    driven.kill()
    driven.start(ROUTER, LANES)
    folder.disks["1"] = away
    folder.running.clear()
    driven.kill()
    driven.start(ROUTER, LANES)
    driven.settle_down(1.0)
    assert away.get(Table.LANES, layout.number_key(LANE)) is not None
    assert away.count(Table.SEGMENTS) == 6


def test_after_an_unclean_end_everything_that_may_have_been_sent_is_marked() -> None:
    driven, _ = new_home(left_behind(clean=False))
    driven.lanes(LANES)
    flow = driven.bind(LANE)
    driven.settle_down()
    counts = driven.delivered[flow].counts
    assert set(counts.values()) == {1}, "the lane had a consumer, so all its positions were reserved"


def test_a_message_that_lanes_share_goes_on_being_stored_once() -> None:
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    driven.settle_down()
    assert driven.disk.count(Table.BLOCKS) == 3
    assert driven.disk.count(Table.SEGMENTS) == 6


def test_records_of_producers_come_along_and_are_waited_for() -> None:
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    reference = driven.gather()
    driven.tick()
    assert reference not in driven.records
    driven.settle_down()
    assert driven.records[reference] == {LANE: (30, {31: errors.SPOOL_OVER_QUOTA}), OTHER: (30, {})}
    driven.kill()
    driven.start(ROUTER, LANES)
    reference = driven.gather()
    driven.settle_down()
    assert driven.records[reference][OTHER] == (30, {})


def test_new_messages_wait_for_the_old_ones_and_come_behind_them() -> None:
    driven, folder = new_home(left_behind(), runs=True)
    driven.lanes(LANES)
    flow = driven.bind(LANE)
    driven.store(([LANE], rows_of(3, 30)), producer=(PRODUCER, 10))
    driven.settle_down(1.0)
    assert driven.stored == 1
    assert driven.totals[LANE][0] == 3
    assert flow not in driven.delivered
    folder.running.clear()
    driven.settle_down(1.0)
    assert received(driven, flow) == [b"m%d" % i for i in range(4, 33)]
    assert driven.delivered[flow].order == list(range(5, 34)), "dense, wherever they were stored"
    assert driven.totals[LANE][0] == 29
    reference = driven.gather()
    driven.settle_down()
    assert driven.records[reference][LANE] == (42, {31: errors.SPOOL_OVER_QUOTA})


@pytest.mark.requirement("R171", "R172", "R173", "R182")
def test_what_the_old_worker_has_counts_as_soon_as_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the figures say that they are not all; the messages themselves come later."""
    monkeypatch.setattr(adoption, "SCAN_ROWS", 2)
    driven, folder = new_home(left_behind(), runs=True)
    driven.lanes(LANES)
    driven.store(([LANE], rows_of(3, 30)), producer=(PRODUCER, 10), file=11)
    driven.settle_down(1.0)
    assert driven.totals[LANE][4:] == [False]
    assert driven.totals[LANE][0] == 3
    assert driven.totals[OTHER] == [0, 0, 0, 0, False]
    assert driven.files == {11}
    folder.running.clear()
    driven.pass_time(1.0)
    for _ in range(8):
        driven.tick()
        driven.pass_time(0.02)
    driven.write()
    driven.tick()
    assert driven.home.parts.adoptions.stats() == {
        "lanes_adopted": 0,
        "messages_adopted": 0,
        "lanes_importing": 2,
        # A segment of ten is here by now.
        "messages_importing": 26 + 30 - 10,
    }
    size = sum(64 + len(b"m%d" % i) for i in range(4, 33))
    assert driven.totals[LANE][:2] == [29, size]
    assert driven.totals[OTHER][0] == 30
    assert (driven.totals[LANE][4:], driven.totals[OTHER][4:]) == ([], [])
    assert driven.files == {7, 8, 9, 11}
    driven.settle_down(1.0)
    assert driven.home.parts.adoptions.stats() == {
        "lanes_adopted": 2,
        "messages_adopted": 26 + 30,
        "lanes_importing": 0,
        "messages_importing": 0,
    }
    assert driven.totals[LANE][:2] == [29, size]
    assert driven.files == {7, 8, 9, 11}
    driven.home.validate()
    flows = [driven.bind(lane) for lane in LANES]
    driven.settle_down(0.1)
    for flow in flows:
        driven.settle(flow, *[(position, position) for position in driven.delivered[flow].order])
    driven.settle_down(0.3)
    assert driven.files == set()


def test_a_spool_that_can_be_counted_is_counted_while_another_is_imported() -> None:
    """A router that came meanwhile admits nothing before it knows everything."""
    driven, folder = new_home(left_behind())
    folder.disks["2"] = SimulatedDisk()
    third = DrivenHome(folder.disks["2"])
    third.start(ROUTER, {THIRD: settings_of("third")})
    for first in range(4):
        third.store(([THIRD], rows_of(1, first)), file=20)
        third.settle_down(1.0)
    folder.running.add("2")
    driven.lanes({**LANES, THIRD: settings_of("third")})
    driven.tick()
    driven.write()
    driven.tick()
    assert driven.totals[THIRD] == [0, 0, 0, 0, False]
    folder.running.clear()
    driven.pass_time(adoption.RETRY_S)
    for _ in range(10):
        driven.tick()
        driven.write()
        driven.pass_time(0.02)
        if driven.totals[THIRD][0]:
            break
    assert driven.totals[THIRD][0] == 4
    assert driven.home.parts.adoptions.is_busy
    driven.settle_down(1.0)
    assert [driven.totals[lane][0] for lane in (LANE, OTHER, THIRD)] == [26, 30, 4]
    assert driven.files == {7, 8, 9, 20}
    assert folder.names() == []


def test_a_lane_that_is_deleted_meanwhile_counts_no_more() -> None:
    driven, folder = new_home(left_behind())
    driven.lanes(LANES)
    driven.tick()
    driven.tick()
    driven.lanes({}, LANE, OTHER)
    driven.settle_down(1.0)
    assert driven.files == set()
    assert folder.claims == {}


def test_a_resumed_flow_may_settle_what_the_old_home_delivered() -> None:
    driven, _ = new_home(left_behind())
    driven.lanes(LANES)
    driven.settle_down()
    flow = driven.bind(LANE, resume=True, messages=0)
    driven.settle(flow, (5, 10))
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 20
    assert not any(event[1] == wire.FLOW_SETTLE_REFUSED for event in driven.events)


def test_a_move_that_was_under_way_goes_on() -> None:
    old = DrivenHome()
    old.start(ROUTER, {LANE: settings_of("q", dead_message_queue="dead")})
    flow = old.bind(LANE)
    old.store(([LANE], rows_of(3)))
    old.settle_down()
    old.settle(flow, (1, 3), outcome=wire.OUTCOME_REJECTED)
    old.settle_down()
    driven, _ = new_home(old.disk)
    driven.lanes({LANE: settings_of("q", dead_message_queue="dead")})
    driven.settle_down()
    assert [(header[:2], len(rows)) for header, rows in driven.moves] == [([LANE, 1], 3)]
    driven.moved(LANE, 1, 3)
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 0


@pytest.mark.parametrize("writes", some(range(1, 20), of=2))
def test_an_interrupted_import_begins_again_and_loses_and_doubles_nothing(writes: int) -> None:
    driven, folder = new_home(left_behind())
    driven.lanes(LANES)
    driven.bind(LANE)
    driven.store(([LANE], rows_of(2, 30)), producer=(PRODUCER, 40))
    for _ in range(writes):
        driven.tick()
        driven.write()
    folder.opened = None
    driven.kill()
    driven.start(ROUTER, LANES)
    driven.number = driven.stored
    if not driven.stored:
        driven.store(([LANE], rows_of(2, 30)), producer=(PRODUCER, 40))
    driven.settle_down(1.0)
    assert folder.names() == []
    driven.kill()
    driven.start(ROUTER, LANES)
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    driven.settle_down()
    assert received(driven, flows[0]) == [b"m%d" % i for i in range(4, 32)]
    assert driven.delivered[flows[0]].order == list(range(5, 33))
    assert received(driven, flows[1]) == [b"m%d" % i for i in range(30)]
    for lane_flow in flows:
        driven.settle(lane_flow, *[(p, p) for p in driven.delivered[lane_flow].order])
    driven.settle_down(0.1)
    tables = (Table.BLOCKS, Table.SEGMENTS, Table.STATES)
    assert [driven.disk.count(table) for table in tables] == [0, 0, 0]


def test_of_two_spools_that_have_a_lane_the_later_hand_over_counts() -> None:
    old = left_behind()
    stale = copy.deepcopy(old)
    driven, folder = new_home(old)
    driven.lanes(LANES)
    driven.settle_down()
    flow = driven.bind(LANE)
    driven.settle_down()
    driven.settle(flow, (5, 20))
    driven.restart()
    third = SimulatedDisk()
    folder = Folder("0", {"1": driven.disk, "2": stale, "0": third})
    heir = DrivenHome(third, neighbours=folder)
    heir.start(ROUTER, LANES)
    heir.settle_down()
    assert heir.totals[LANE][0] == 10
    assert folder.names() == ["2"]


def test_a_lane_that_was_made_anew_meanwhile_brings_nothing_but_its_positions() -> None:
    driven, _ = new_home(left_behind())
    driven.lanes({LANE: settings_of("q")}, generation=2)
    flow = driven.bind(LANE)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert received(driven, flow) == [b"m0"]
    assert driven.delivered[flow].order == [31]


def test_a_lane_that_another_worker_claims_is_kept_and_not_served() -> None:
    disk = left_behind()
    folder = Folder("1", {"0": SimulatedDisk(), "1": disk})
    folder.claim("1", LANE)
    old = DrivenHome(disk, neighbours=folder)
    old.start(ROUTER, {}, deleted=(OTHER,))
    old.settle_down(1.0)
    assert old.totals == {}
    assert disk.get(Table.LANES, layout.number_key(LANE)) is not None
    assert disk.get(Table.LANES, layout.number_key(OTHER)) is None
    driven, _ = new_home(disk)
    driven.lanes({LANE: settings_of("q")})
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 26


def test_a_lane_that_is_deleted_while_it_is_taken_over_leaves_nothing_here() -> None:
    driven, folder = new_home(left_behind())
    driven.lanes(LANES)
    driven.store(([LANE], rows_of(2, 30)))
    for _ in range(3):
        driven.tick()
        driven.write()
    driven.lanes({}, LANE, OTHER)
    driven.settle_down(1.0)
    tables = (Table.LANES, Table.BLOCKS, Table.SEGMENTS, Table.STATES, Table.RECORDS)
    assert [driven.disk.count(table) for table in tables] == [0] * 5
    assert folder.claims == {}
    assert folder.opened is None, "its worker may start again"


def test_a_purge_during_an_import_removes_what_comes_too() -> None:
    driven, folder = new_home(left_behind(), runs=True)
    driven.lanes(LANES)
    driven.store(([LANE], rows_of(2, 30)))
    driven.settle_down()
    assert driven.ask("endpoint.purge", lane_id=LANE) == 2
    folder.running.clear()
    driven.settle_down(1.0)
    assert (driven.totals[LANE][0], driven.totals[OTHER][0]) == (0, 30)
    assert driven.disk.count(Table.SEGMENTS) == 3


def test_if_the_old_spool_is_gone_an_interrupted_import_ends_with_what_is_here() -> None:
    driven, folder = new_home(left_behind(), runs=True)
    driven.lanes({LANE: settings_of("q")})
    driven.store(([LANE], rows_of(2, 30)))
    driven.settle_down()
    del folder.disks["1"]
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q")})
    assert [event["event"] for event in driven.told] == ["lane_not_adopted"]
    flow = driven.bind(LANE)
    driven.settle_down()
    assert received(driven, flow) == [b"m30", b"m31"]


def test_a_spool_that_cannot_be_read_is_told_and_others_go_on() -> None:
    driven, folder = new_home(left_behind())

    @contextmanager
    def damaged(name: str) -> Iterator[Any]:
        raise errors.error_for(errors.SPOOL_DAMAGED, name)
        yield

    folder.view = damaged  # type: ignore[method-assign]
    driven.lanes(LANES)
    driven.settle_down()
    assert [event["event"] for event in driven.told] == ["spool_unreadable"]
    assert driven.totals[LANE][0] == 0


# -- a lane that its last worker was still taking over ---------------------------------------------------------


def row_disk(handovers: int, importing: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    row = layout.LaneRow(1, 1, handovers, importing, {})
    disk.commit([(Table.LANES, layout.number_key(LANE), layout.pack_lane(row))])
    return disk


@pytest.mark.parametrize(
    ("rows", "trail", "below"),
    [
        ({"1": (4, 0), "2": (3, 0)}, "1", "2"),
        ({"1": (4, layout.PARTED), "2": (3, 0)}, "1", "2"),
        ({"1": (4, 9), "2": (3, layout.PARTED), "3": (2, 0)}, "12", "2"),
        ({"1": (4, 9), "2": (3, PROVISIONAL + 1), "3": (2, 0)}, "123", "23"),
        ({"1": (4, layout.COPIED), "2": (3, 9), "3": (2, 0), "4": (1, 0)}, "123", "23"),
        ({"1": (4, 9), "2": (2, 0)}, "1", ""),
        ({"1": (2, 0), "2": (3, 9), "3": (4, 9)}, "321", "21"),
    ],
)
def test_a_trail_goes_from_the_latest_spool_to_one_that_has_all(
    rows: dict[str, tuple[int, int]], trail: str, below: str
) -> None:
    """Below the hand-overs of a lane that is here it begins with the one that this came from."""
    disks = {name: row_disk(*row) for name, row in rows.items()}
    others = DrivenHome(neighbours=Folder("0", disks)).home.parts.others
    assert "".join(old.name for old in others.search([LANE])[LANE]) == trail
    assert "".join(old.name for old in others.trails_below({LANE: 4}).get(LANE, ())) == below


class Unfinished:
    """Worker 2 left; worker 1, which took its lanes over, got two messages and died after so many writes."""

    def __init__(self, writes: int, *, purges: bool = False) -> None:
        self.disks = {"0": SimulatedDisk(), "1": SimulatedDisk(), "2": left_behind()}
        self.last = Folder("1", self.disks)
        self.middle = DrivenHome(self.disks["1"], neighbours=self.last)
        self.middle.workers = 2
        self.middle.start(ROUTER, {})
        self.last.running = {"2"}
        self.middle.lanes(LANES)
        self.middle.store(([LANE], rows_of(2, 30)), producer=(PRODUCER, 40))
        self.middle.settle_down(0.1)
        assert self.middle.stored == 1
        if purges:
            self.middle.ask("endpoint.purge", lane_id=LANE)
            self.middle.settle_down(0.1)
        self.last.running.clear()
        self.middle.pass_time(adoption.RETRY_S)
        self.write(self.middle, writes)
        self.last.close()
        self.folder = Folder("0", self.disks)
        self.folder.claims = self.last.claims
        self.next = DrivenHome(self.disks["0"], neighbours=self.folder)
        self.next.start(ROUTER, {})

    def write(self, driven: DrivenHome, writes: int) -> None:
        for _ in range(writes):
            driven.tick()
            driven.write()

    @property
    def marks(self) -> list[int]:
        """The marks of the lane on the disks of workers 1 and 2, if they have it."""
        key = layout.number_key(LANE)
        found = [self.disks[name].get(Table.LANES, key) for name in ("1", "2") if name in self.disks]
        return [layout.unpack_lane(value).importing for value in found if value is not None]

    def lanes(self) -> None:
        """Give the lanes to worker 0, and more messages."""
        self.next.lanes(LANES)
        self.next.store(([LANE], rows_of(3, 32)), producer=(PRODUCER, 50))


@pytest.mark.requirement("R163", "R190")
@pytest.mark.parametrize("again", [0, 5, 11])
@pytest.mark.parametrize("writes", range(16))
def test_what_an_unfinished_import_lacks_is_found_where_it_came_from(writes: int, again: int) -> None:
    """However far both homes came; nothing is lost, doubled, or left behind, and positions go on."""
    story = Unfinished(writes)
    story.lanes()
    driven = story.next
    if again:
        story.write(driven, again)
        story.folder.close()
        driven.kill()
        driven.start(ROUTER, LANES)
        driven.number = driven.stored
        if not driven.stored:
            driven.store(([LANE], rows_of(3, 32)), producer=(PRODUCER, 50))
    driven.settle_down(1.0)
    flows = [driven.bind(LANE), driven.bind(OTHER)]
    driven.settle_down()
    assert received(driven, flows[0]) == [b"m%d" % i for i in range(4, 35)]
    assert driven.delivered[flows[0]].order == list(range(5, 36))
    assert received(driven, flows[1]) == [b"m%d" % i for i in range(30)]
    assert driven.delivered[flows[0]].counts[5] == 1, "it was delivered where it was first"
    assert (story.folder.names(), story.folder.claims) == ([], {})
    reference = driven.gather()
    driven.settle_down()
    assert driven.records[reference][LANE] == (84, {31: errors.SPOOL_OVER_QUOTA})
    for lane_flow in flows:
        driven.settle(lane_flow, *[(p, p) for p in driven.delivered[lane_flow].order])
    driven.settle_down(0.1)
    driven.home.validate()
    assert [driven.disk.count(table) for table in (Table.BLOCKS, Table.SEGMENTS, Table.STATES)] == [0] * 3


def test_an_unfinished_import_is_met_at_every_mark() -> None:
    """Else the test above shows less than it says."""
    marks = [(Unfinished(writes).marks or [0])[0] for writes in range(16)]
    assert {PROVISIONAL + 1, 31, layout.COPIED, 0} <= set(marks)


@pytest.mark.parametrize("writes", [0, 3])
def test_a_purge_of_an_unfinished_import_removes_what_it_did_not_have_yet(writes: int) -> None:
    story = Unfinished(writes, purges=True)
    story.lanes()
    story.next.settle_down(1.0)
    flow = story.next.bind(LANE)
    story.next.settle_down()
    assert received(story.next, flow) == [b"m32", b"m33", b"m34"]
    assert story.next.delivered[flow].order == [33, 34, 35]
    assert story.folder.names() == []


@pytest.mark.parametrize("writes", [0, 3])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_if_the_spool_that_an_unfinished_import_came_from_is_gone_the_rest_is_delivered_and_kept(
    writes: int, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Unfinished(writes)
    away = copy.deepcopy(story.disks["2"]) if is_damaged else story.disks.pop("2")
    view = story.folder.view

    @contextmanager
    def view_of_others(name: str) -> Iterator[Any]:
        if name == "2":
            raise errors.error_for(errors.SPOOL_DAMAGED, name)
        with view(name) as disk:
            yield disk

    monkeypatch.setattr(story.folder, "view", view_of_others)
    story.lanes()
    story.next.settle_down(1.0)
    told = [event["event"] for event in story.next.told]
    assert told.count("lane_not_adopted") == 2, "of each lane"
    assert told.count("spool_unreadable") == is_damaged
    flow = story.next.bind(LANE)
    story.next.settle_down()
    assert received(story.next, flow) == [b"m30", b"m31", b"m32", b"m33", b"m34"]
    order = story.next.delivered[flow].order
    assert order == sorted(set(order))
    assert order[0] >= 31, "no position is given again"
    for name, disk in (("1", story.disks["1"]), ("2", story.disks.get("2", away))):
        assert disk.get(Table.LANES, layout.number_key(LANE)) is not None, name
    story.next.kill()
    story.disks["2"] = away
    monkeypatch.undo()
    story.next.start(ROUTER, LANES)
    story.next.settle_down(1.0)
    assert story.next.totals[LANE][0] == 5
    assert away.count(Table.SEGMENTS) == 6, "nobody has a copy"


@pytest.mark.parametrize("writes", [0, 1, 6])
def test_a_lane_whose_unfinished_import_went_on_is_looked_for_again(writes: int) -> None:
    """Its worker came back before the next home had read anything, or when it had read some."""
    story = Unfinished(0)
    story.folder.running = set() if writes else {"1"}
    story.lanes()
    story.write(story.next, writes)
    story.folder.close()
    story.middle.kill()
    story.middle.start(ROUTER, LANES)
    story.middle.settle_down(1.0)
    assert "2" not in story.disks
    story.middle.restart()
    story.folder.running = set()
    story.next.settle_down(1.0)
    flow = story.next.bind(LANE)
    story.next.settle_down()
    assert received(story.next, flow) == [b"m%d" % i for i in range(4, 35)]
    assert story.next.delivered[flow].order == list(range(5, 36))
    assert story.folder.names() == []
    story.next.home.validate()


def test_a_lane_that_is_deleted_while_two_spools_have_it_leaves_nothing_here() -> None:
    story = Unfinished(3)
    story.lanes()
    story.write(story.next, 6)
    story.next.lanes({}, LANE, OTHER)
    story.next.settle_down(1.0)
    tables = (Table.LANES, Table.BLOCKS, Table.SEGMENTS, Table.STATES, Table.RECORDS)
    assert [story.next.disk.count(table) for table in tables] == [0] * 5
    assert (story.folder.names(), story.folder.claims) == ([], {})
