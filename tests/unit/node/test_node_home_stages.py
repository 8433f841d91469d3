"""Stages at a home: nobody sees them, they count, they are released once and whole, whatever dies when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from node.home.spool import layout
from storage.spool import Table
from tests.unit.node.adopting_home import Folder
from tests.unit.node.driven_home import (
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    DrivenHome,
    row_of,
    rows_of,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.requirement("R221")

LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}
STAGE, SECOND = 20, 21


def started(disk: SimulatedDisk | None = None, **settings: Any) -> DrivenHome:
    driven = DrivenHome(disk)
    driven.start(ROUTER, {LANE: settings_of("q", **settings), OTHER: settings_of("other")})
    return driven


def staged(driven: DrivenHome) -> int:
    """Give the rows in the table STAGED."""
    return driven.disk.count(Table.STAGED)


def held(driven: DrivenHome, lane_id: int) -> tuple[int, int]:
    """Give what the router was told that a lane has: messages and bytes."""
    return tuple(driven.totals[lane_id][:2])  # type: ignore[return-value]


def payloads(driven: DrivenHome, lane_id: int) -> dict[int, bytes]:
    """Read a lane: position -> payload."""
    flow = driven.bind(lane_id)
    driven.settle_down()
    driven.unbind(flow)
    driven.settle_down()
    rows = driven.delivered.get(flow)
    return {} if rows is None else {position: row[5] for position, row in rows.rows.items()}


def test_what_is_staged_counts_and_is_seen_by_nobody() -> None:
    driven = started()
    flow, browser = driven.bind(), driven.bind(browse=True)
    driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    assert driven.stored == driven.number
    assert held(driven, LANE) == held(driven, OTHER) == (3, 3 * (2 + wire.SPOOL_OVERHEAD_BYTES))
    assert driven.delivered == {}
    assert driven.home.stats()["messages_staged"] == 6
    assert driven.home.stats()["messages_spooled"] == 0
    assert driven.files == {1}
    driven.store(([LANE], [row_of(0, b"usual")]))
    driven.settle_down()
    assert [*driven.delivered[flow].rows] == [*driven.delivered[browser].rows] == [1]


def test_a_release_gives_positions_at_the_tail_in_the_order_of_the_staging() -> None:
    driven = started()
    driven.store(([LANE], rows_of(2)), producer=(STAGE, 1), stage=STAGE)
    driven.store(([LANE], [row_of(0, b"other stage")]), producer=(SECOND, 1), stage=SECOND)
    driven.store(([LANE], [row_of(0, b"usual")]))
    driven.store(([LANE], rows_of(2, 2)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.decide(release=(SECOND, STAGE))
    driven.settle_down()
    expected = [b"usual", b"other stage", b"m0", b"m1", b"m2", b"m3"]
    assert payloads(driven, LANE) == dict(enumerate(expected, 1))
    assert staged(driven) == 0
    assert held(driven, LANE)[0] == 6
    driven.gather(STAGE)
    driven.settle_down()
    assert [*driven.records.values()] == [{}], "nobody asks about a stage that is over"


def test_a_release_that_comes_with_the_rows_in_one_write_is_whole() -> None:
    driven = started()
    assert driven.store(([LANE], [row_of(0, b"usual")]))
    assert driven.begin_write()
    driven.store(([LANE], rows_of(2)), producer=(STAGE, 1), stage=STAGE)
    driven.decide(release=(STAGE,))
    driven.end_write()
    driven.settle_down()
    assert payloads(driven, LANE) == {1: b"usual", 2: b"m0", 3: b"m1"}
    assert staged(driven) == 0


def test_lives_and_delays_count_from_the_release() -> None:
    driven = started(respect_ttl=True)
    mortal, late = (
        row_of(0, b"mortal", meta=[2_000, 0, None, None]),
        row_of(1, b"late", meta=[0, 2_000, None, None]),
    )
    driven.store(([LANE], [mortal, late]), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down(60.0)
    driven.decide(release=(STAGE,))
    flow = driven.bind()
    driven.settle_down()
    assert [row[5] for row in driven.delivered[flow].rows.values()] == [b"mortal"]
    assert driven.delivered[flow].stored_ms[1] == driven.wall_ms
    driven.settle_down(2.1)
    assert [row[5] for row in driven.delivered[flow].rows.values()] == [b"mortal", b"late"]
    other = started(respect_ttl=True)
    other.store(([LANE], [mortal]), producer=(STAGE, 1), stage=STAGE)
    other.settle_down(60.0)
    other.decide(release=(STAGE,))
    other.settle_down(2.1)
    assert payloads(other, LANE) == {}


def test_what_is_dropped_is_deleted_and_counts_until_that_is_durable() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.decide(drop=(STAGE,))
    driven.tick()
    assert held(driven, LANE)[0] == 3
    driven.settle_down(1.0)
    assert held(driven, LANE) == held(driven, OTHER) == (0, 0)
    tables = (Table.STAGED, Table.BLOCKS, Table.SEGMENTS, Table.RECORDS)
    assert [driven.disk.count(table) for table in tables] == [0, 0, 0, 0]
    assert driven.files == set()
    driven.decide(drop=(STAGE,), release=(STAGE, 99))
    driven.settle_down()
    assert driven.stored == driven.number


def test_what_is_dropped_before_it_is_written_is_never_written() -> None:
    driven = started()
    driven.store(([LANE], [row_of(0, b"usual")]))
    assert driven.begin_write()
    driven.store(([LANE], rows_of(2)), producer=(STAGE, 1), stage=STAGE)
    driven.decide(drop=(STAGE,))
    driven.end_write()
    driven.settle_down(1.0)
    assert driven.disk.count(Table.BLOCKS) == 1
    assert held(driven, LANE)[0] == 1


def test_a_resend_is_judged_by_the_record_of_its_stage() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(STAGE, 5), stage=STAGE)
    driven.kill()
    driven.start(ROUTER + 1, LANES)
    driven.gather(STAGE)
    driven.settle_down()
    assert [*driven.lasts.values()] == [{}], "nothing was acknowledged"
    driven.store(([LANE], rows_of(3)), producer=(STAGE, 5), stage=STAGE)
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER + 2, LANES)
    driven.gather(STAGE)
    driven.settle_down()
    assert [*driven.lasts.values()][-1] == {LANE: {1: 7}}


def test_every_refusal_of_the_window_of_a_stage_is_known() -> None:
    driven = started()
    codes = dict.fromkeys(range(2, 3000), 50310)
    driven.store(([LANE], rows_of(1)), producer=(STAGE, 1), stage=STAGE, refused=[[LANE, [*codes.items()]]])
    driven.store(([LANE], rows_of(1_000)), producer=(STAGE, 3_000), stage=STAGE)
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER + 1, LANES)
    driven.gather(STAGE)
    driven.settle_down()
    (found,) = driven.records.values()
    assert found == {LANE: (3_999, codes)}


def test_a_lane_takes_what_is_staged_for_it_along_when_it_goes() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.settle_down(1.0)
    assert staged(driven) == 1
    driven.decide(release=(STAGE,))
    driven.settle_down()
    assert payloads(driven, OTHER) == {1: b"m0", 2: b"m1", 3: b"m2"}


def test_another_topic_of_a_topic_endpoint_drops_what_is_staged_for_it() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.lanes({LANE: settings_of("q")}, generation=2)
    assert driven.begin_write()
    driven.end_write()
    driven.kill()  # the row of the lane is durable, and perhaps not what it dropped
    driven.start(lanes={LANE: settings_of("q"), OTHER: settings_of("other")})
    driven.decide(release=(STAGE,))
    driven.settle_down(1.0)
    assert payloads(driven, LANE) == {}
    assert driven.disk.count(Table.BLOCKS) == staged(driven) == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lane_that_is_emptied_while_its_release_is_written_stays_empty(is_late: bool) -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.decide(release=(STAGE,))
    if is_late:
        assert driven.begin_write()
    driven.lanes({LANE: settings_of("q")}, generation=2)
    driven.settle_down(1.0)
    assert payloads(driven, LANE) == {}
    assert held(driven, LANE) == (0, 0)
    assert [*payloads(driven, OTHER)] == [1, 2, 3]
    driven.kill()
    driven.start(lanes=LANES)
    assert payloads(driven, LANE) == {}


def test_a_lane_that_is_deleted_while_its_release_is_written_counts_no_more_when_it_is() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down()
    driven.decide(release=(STAGE,))
    assert driven.begin_write()
    driven.lanes({}, LANE)
    driven.home.validate()
    driven.end_write()
    driven.home.validate()
    driven.settle_down(1.0)
    assert driven.home.parts.staging.totals == (0, 0)
    assert [*payloads(driven, OTHER)] == [1, 2, 3]


def test_a_purge_leaves_what_is_staged() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.ask("endpoint.purge", lane_id=LANE)
    driven.settle_down(1.0)
    assert held(driven, LANE)[0] == 3
    driven.decide(release=(STAGE,))
    driven.settle_down()
    assert [*payloads(driven, LANE)] == [4, 5, 6]


def test_a_full_disk_delays_a_release_and_drops_make_room() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    driven.store(([LANE], rows_of(3)), producer=(SECOND, 1), stage=SECOND)
    driven.settle_down()
    driven.disk.is_full = True
    driven.decide(release=(STAGE,))
    driven.settle_down(0.5)
    assert driven.stored == driven.number - 1
    assert payloads(driven, LANE) == {}
    driven.disk.is_full = False
    driven.decide(drop=(SECOND,))
    driven.settle_down(3.0)
    assert driven.stored == driven.number
    assert [*payloads(driven, LANE)] == [1, 2, 3]
    assert staged(driven) == 0


def test_small_blocks_of_a_stage_are_packed_anew_when_they_are_released_and_not_before() -> None:
    driven = started()
    for number in range(40):
        driven.store(([LANE], [row_of(number, b"%d" % number)]), producer=(STAGE, 1), stage=STAGE)
    driven.settle_down(5.0)
    assert driven.home.stats()["repacked_blocks"] == 0
    driven.kill()
    driven.start(lanes=LANES)
    driven.settle_down(5.0)
    assert driven.home.stats()["repacked_blocks"] == 0
    driven.decide(release=(STAGE,))
    driven.settle_down(5.0)
    assert driven.home.stats()["repacked_blocks"] == 40
    assert [*payloads(driven, LANE).values()] == [b"%d" % number for number in range(40)]


class Router:
    """The other end of a home that dies: it keeps what is not stored, and sends it again."""

    def __init__(self, driven: DrivenHome, dies_after: int) -> None:
        self.driven = driven
        self.sent: list[Callable[[], object]] = []
        #: Writes until the home is killed, the write itself lost or not.
        self.dies_after = dies_after
        self.deaths = 0

    def give(self, send: Callable[[], object]) -> None:
        self.sent.append(send)
        send()
        self.run()

    def run(self) -> None:
        driven = self.driven
        for _ in range(100):
            driven.tick()
            if not driven.begin_write():
                return
            self.dies_after -= 1
            if self.dies_after == -1 or self.dies_after == 0:
                if self.dies_after == 0:
                    driven.end_write()
                self.die()
            else:
                driven.end_write()
        raise AssertionError("it does not settle")

    def die(self) -> None:
        driven, self.deaths = self.driven, self.deaths + 1
        driven.kill()
        driven.send(wire.START, driven.router, 1, bytes(1024))
        driven.lanes(LANES, complete=True)
        driven.settle_down()
        stored = driven.homes[-1][2]
        driven.number = stored
        for send in self.sent[stored:]:
            send()


@pytest.mark.parametrize("dies_after", range(14))
def test_what_was_decided_is_done_once_whichever_write_is_the_last(dies_after: int) -> None:
    driven = started()
    router = Router(driven, dies_after)
    start = driven.number
    assert start == 0
    router.give(lambda: driven.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE))
    router.give(lambda: driven.store(([LANE], [row_of(0, b"usual")])))
    router.give(lambda: driven.store(([LANE], rows_of(2, 3)), producer=(STAGE, 1), stage=STAGE))
    router.give(lambda: driven.store(([LANE, OTHER], rows_of(2)), producer=(SECOND, 1), stage=SECOND))
    router.give(lambda: driven.decide(release=(STAGE,)))
    router.give(lambda: driven.store(([LANE], [row_of(1, b"later")])))
    router.give(lambda: driven.decide(release=(STAGE,), drop=(SECOND,)))
    router.run()
    driven.settle_down(1.0)
    assert [one[5] for one in driven.homes[-1:] if one[5:]] == []
    if driven.home.stats()["stages"]:  # a drop is durable before its deletions: the router drops it again
        driven.decide(drop=(SECOND,))
        driven.settle_down(1.0)
    assert driven.stored == driven.number
    expected = [b"usual", b"m0", b"m1", b"m2", b"m3", b"m4", b"later"]
    got = payloads(driven, LANE)
    assert list(got.values()) == expected
    assert list(payloads(driven, OTHER).values()) == [b"m0", b"m1", b"m2"]
    assert staged(driven) == 0
    assert held(driven, LANE)[0] == 7
    assert held(driven, OTHER)[0] == 3
    keys = [layout.key_numbers(key)[1] for key, _ in driven.disk.scan(Table.RECORDS)]
    assert set(keys) <= {PRODUCER}
    assert router.deaths <= 2


def moved(dies_after: int | None = None) -> DrivenHome:
    """Give a home that takes a lane over, with what was staged for it at the home before, and here meanwhile."""
    old = started()
    old.store(([LANE, OTHER], rows_of(3)), producer=(STAGE, 1), stage=STAGE)
    old.store(([LANE], [row_of(0, b"usual")]))
    old.settle_down()
    old.restart()
    folder = Folder("0", {"1": old.disk})
    folder.running.add("1")
    new = DrivenHome(neighbours=folder)
    new.start(ROUTER + 1, LANES)
    new.store(([LANE], rows_of(2, 3)), producer=(STAGE, 1), stage=STAGE)
    new.settle_down()
    new.decide(release=(STAGE,))  # too early: the router says it again
    new.settle_down()
    assert payloads(new, LANE) == {}
    folder.running.clear()
    for number in range(1_000):
        new.tick()
        if number == dies_after:
            new.kill()
            folder.close()
            new.start(lanes=LANES)
        if not new.write() and not new.home.stats()["lanes_importing"]:
            break
        new.pass_time(0.01)
    return new


@pytest.mark.parametrize("dies_after", [None, *range(12)])
def test_a_lane_that_gets_another_home_takes_its_stages_along(dies_after: int | None) -> None:
    new = moved(dies_after)
    new.settle_down(1.0)
    assert new.home.stats()["lanes_importing"] == 0
    assert held(new, LANE)[0] == 6
    assert held(new, OTHER)[0] == 3
    new.decide(release=(STAGE,))
    new.settle_down(1.0)
    assert list(payloads(new, LANE).values()) == [b"usual", b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert list(payloads(new, OTHER).values()) == [b"m0", b"m1", b"m2"]
    assert staged(new) == 0
