"""Leases at a home: what a reader group was told is true after a crash, and goes with the lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from node.backlog.lifetimes import Lifetimes
from node.home.lanes import adoption
from node.home.spool import layout
from storage.spool import Table
from tests.unit.node.adopting_home import LANES, new_home
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, rows_of, settings_of, started

if TYPE_CHECKING:
    from node.backlog.segment import Segment

pytestmark = pytest.mark.requirement("R221")

HOUR_MS = 3_600_000
ALL = 1 << 40


def leased(messages: int = 20, **kwargs: Any) -> DrivenHome:
    """A home with messages in two blocks, and a reader group that has the first lane."""
    driven = started()
    for first in (0, messages // 2):
        driven.store(([LANE], rows_of(messages // 2, first)), **kwargs)
        driven.settle_down()
    driven.leased_at_once("open", "g", HOUR_MS)
    return driven


def plan(driven: DrivenHome, start: int, end: int = 0, messages: int = ALL) -> Any:
    return driven.leased_at_once("plan", "g", 0, start, end, messages, ALL)


def read(driven: DrivenHome, first: int, end: int) -> list[int]:
    flow = driven.bind(browse=True, group="g", first=first, end=end)
    driven.settle_down()
    assert [event[1:3] for event in driven.events if event[0] == flow] == [
        [wire.FLOW_ACTIVE, 0],
        [wire.FLOW_CLOSED, 0],
    ]
    return driven.delivered[flow].order if flow in driven.delivered else []


def again(driven: DrivenHome) -> None:
    """Kill the process, and start the next one."""
    driven.kill()
    driven.start(ROUTER, LANES)


def test_a_plan_is_answered_when_it_is_on_disk_and_is_there_after_a_crash() -> None:
    driven = leased()
    reference = driven.lease("plan", "g", 0, 1, 0, 12, ALL)
    driven.tick()
    assert driven.begin_write()
    assert driven.leased == {}
    driven.end_write()
    assert driven.leased == {reference: (0, [1, 13, 12, sum(64 + len(b"m%d" % i) for i in range(12))])}
    again(driven)
    found = driven.leased_at_once("open", "g", HOUR_MS)
    assert (found["continued"], found["planned"], found["messages"]) == (True, 13, 20)
    assert read(driven, 1, 13) == list(range(1, 13))


def test_what_was_not_answered_may_be_lost_with_the_process() -> None:
    driven = leased()
    driven.lease("plan", "g", 0, 1, 0, 12, ALL)
    driven.tick()
    assert driven.begin_write()
    again(driven)
    assert driven.leased_at_once("positions", "g", 0)["planned"] == 0


def test_relaxed_messages_are_on_disk_before_a_plan_with_them_is_answered() -> None:
    driven = started()
    driven.leased_at_once("open", "g", HOUR_MS)
    driven.store(([LANE], rows_of(8)), relaxed=True)
    driven.tick()
    assert driven.stored == 0
    assert plan(driven, 1)[:3] == [1, 9, 8]
    again(driven)
    assert read(driven, 1, 9) == list(range(1, 9))


def test_what_is_acknowledged_is_gone_after_a_crash() -> None:
    driven = leased()
    plan(driven, 1)
    assert driven.leased_at_once("acknowledge", "g", 0, 15) == 14
    again(driven)
    found = driven.leased_at_once("positions", "g", 0)
    assert [found[name] for name in ("oldest", "next", "acknowledged", "planned")] == [15, 21, 15, 21]
    assert driven.totals[LANE][0] == 6
    assert driven.leased_at_once("acknowledge", "g", 0, 15) == 0, "it may be asked twice"


def test_whole_blocks_are_sent_as_they_lie() -> None:
    driven = leased(200)
    plan(driven, 1)
    before = driven.home.stats()
    assert read(driven, 1, 201) == list(range(1, 201))
    after = driven.home.stats()
    assert after["whole_blocks"] - before["whole_blocks"] == 2
    assert after["handouts"] - before["handouts"] == 2


def test_a_router_that_comes_anew_finds_the_lease_and_gets_no_old_answers() -> None:
    driven = leased()
    reference = driven.lease("plan", "g", 0, 1, 0, 5, ALL)
    driven.tick()
    assert driven.begin_write()
    driven.router = ROUTER + 1
    driven.number = 0
    driven.send(wire.START, ROUTER + 1, 1, bytes(1024))
    driven.end_write()
    driven.lanes(LANES, complete=True)
    driven.settle_down()
    assert reference not in driven.leased
    assert driven.leased_at_once("positions", "g", 0)["planned"] == 6


def test_groups_do_not_count_towards_what_consumers_may_have() -> None:
    driven = leased()
    plan(driven, 1)
    driven.store(([OTHER], rows_of(3, 50)))
    flow = driven.bind(OTHER)
    driven.settle_down()
    assert driven.home.lanes.unacked == 3
    assert driven.home.stats()["leased_messages"] == 20
    assert driven.totals[LANE][3:] == [20, True, None, "g"], "operators see them as unacknowledged"
    assert len(driven.delivered[flow].order) == 3


def test_a_lease_that_nobody_uses_ends_on_disk_too() -> None:
    driven = started()
    driven.store(([LANE], rows_of(4)))
    driven.leased_at_once("open", "g", 5_000)
    plan(driven, 1)
    flow = driven.bind(LANE)
    driven.settle_down(6.0)
    assert driven.delivered[flow].order == [1, 2, 3, 4]
    assert "SYSTEM_AD_LEASE_TIMED_OUT" in [event["event"] for event in driven.told]
    driven.settle_down(0.1)
    assert len(driven.totals[LANE]) == 4, "nobody has it"
    again(driven)
    reference = driven.lease("positions", "g", 0)
    driven.settle_down()
    assert driven.leased[reference][0] == errors.LEASE_LOST


def test_release_is_on_disk_and_an_operator_needs_no_name() -> None:
    driven = leased()
    assert driven.leased_at_once("release", "other", 0) is False
    plan(driven, 1, messages=6)
    figures = driven.ask("endpoint.stats", lane_id=LANE)
    assert (figures["reader_group"], figures["leased_messages"], figures["delivered_unacked"]) == ("g", 6, 6)
    assert driven.ask("endpoint.release", lane_id=LANE) == "g"
    assert driven.ask("endpoint.release", lane_id=LANE) is None
    assert driven.leased_at_once("release", "g", 0) is False
    again(driven)
    assert driven.leased_at_once("open", "h", HOUR_MS)["continued"] is False
    names = [event["event"] for event in driven.told]
    assert names == ["SYSTEM_AD_LEASE_TAKEN"]


def test_a_partition_that_was_taken_away_is_leased_while_it_has_something_for_the_group() -> None:
    """The group hears of what it has leased there, so that it releases that too."""
    driven = started()
    taken_away = LANE + 1
    driven.lanes({taken_away: settings_of("q", partitions=2)})
    driven.store(([taken_away], rows_of(4)))
    driven.settle_down()
    driven.leased_at_once("open", "g", HOUR_MS, lane_id=taken_away)
    driven.leased_at_once("plan", "g", 0, 1, 0, ALL, ALL, lane_id=taken_away)
    driven.lanes({taken_away: settings_of("q", partitions=1)})
    reference = driven.lease("open", "h", HOUR_MS, lane_id=taken_away)
    driven.settle_down()
    assert driven.leased[reference][0] == errors.ENDPOINT_LEASED, "what is planned is in it"
    driven.leased_at_once("acknowledge", "g", 0, 5, lane_id=taken_away)
    assert driven.leased_at_once("open", "h", HOUR_MS, lane_id=taken_away) is None
    found = driven.leased_at_once("open", "g", HOUR_MS, lane_id=taken_away)
    assert (found["continued"], found["acknowledged"], found["messages"]) == (True, 5, 0)
    assert driven.leased_at_once("release", "g", found["epoch"], lane_id=taken_away)
    assert driven.leased_at_once("open", "g", HOUR_MS, lane_id=taken_away) is None
    driven.lanes({taken_away: settings_of("q", partitions=2)})
    found = driven.leased_at_once("open", "h", HOUR_MS, lane_id=taken_away)
    assert (found["continued"], found["next"]) == (False, 5), "it is a partition again"


def test_a_purge_is_counted_for_the_group_after_a_crash_too() -> None:
    driven = leased()
    plan(driven, 1, messages=5)
    driven.ask("endpoint.purge", lane_id=LANE)
    driven.settle_down(0.1)
    again(driven)
    found = driven.leased_at_once("positions", "g", 0)
    assert (found["lost"], found["messages"], found["planned"]) == (5, 0, 6)


def test_a_lane_that_is_deleted_or_made_anew_has_no_lease() -> None:
    driven = leased()
    driven.lanes({LANE: settings_of("q")}, generation=2)
    driven.settle_down()
    assert driven.disk.get(Table.LANES, layout.lease_key(LANE)) is None
    driven.leased_at_once("open", "g", HOUR_MS)
    assert driven.disk.get(Table.LANES, layout.lease_key(LANE)) is not None
    driven.lease("positions", "g", 0)
    driven.lanes({}, LANE)
    driven.settle_down()
    assert [key for key, _ in driven.disk.scan(Table.LANES) if key.startswith(layout.number_key(LANE))] == []
    reference = driven.lease("positions", "g", 0)
    driven.settle_down()
    assert driven.leased[reference][0] == errors.UNKNOWN_ENDPOINT


def test_a_lease_that_was_released_while_its_lane_moved_is_over() -> None:
    old = leased()
    old.restart()
    driven, _ = new_home(old.disk, runs=True)
    driven.lanes(LANES)
    consumer = driven.bind(LANE)
    driven.settle_down(0.1)
    old.disk.commit([(Table.LANES, layout.lease_key(LANE), None)])
    driven.neighbours.running.clear()  # type: ignore[union-attr]
    driven.settle_down(1.0)
    assert driven.delivered[consumer].order == list(range(1, 21))


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("sell", ["g", 0]),
        ("open", ["g"]),
        ("open", ["g", 0]),
        ("plan", ["g", 0, 1, 0, 0, 1]),
        ("plan", ["g", 0, -1, 0, 1, 1]),
        ("plan", ["g", 0, 1 << 63, 0, 1, 1]),
        ("count", ["g", 0]),
        ("acknowledge", ["g", 0, "all"]),
    ],
)
def test_nonsense_is_a_fault_of_the_router_and_changes_nothing(verb: str, arguments: list[Any]) -> None:
    driven = leased()
    reference = driven.lease(verb, *arguments)
    driven.settle_down()
    assert reference not in driven.leased
    assert driven.home.faults == 1
    assert "SYSTEM_AD_FRAME_REFUSED" in [event["event"] for event in driven.told]
    assert plan(driven, 1)[:3] == [1, 21, 20]


def test_a_leased_lane_comes_to_its_new_home_with_lease_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "STEP_SEGMENTS", 1)
    old = leased()
    plan(old, 1, messages=12)
    old.leased_at_once("acknowledge", "g", 0, 5)
    old.restart()
    driven, _ = new_home(old.disk, runs=True)
    driven.lanes(LANES)
    consumer = driven.bind(LANE)
    reference = driven.lease("positions", "g", 0)
    driven.store(([LANE], rows_of(5, 100)))
    readers = [driven.bind(browse=True, group=group, first=5, end=13) for group in ("g", "")]
    driven.settle_down(0.3)
    codes = [event[2] for event in driven.events if event[0] in readers]
    assert codes == [errors.HOME_NOT_READY] * 2, "what is not here yet would be missing"
    assert [event[:2] for event in driven.events if event[0] == consumer] == [[consumer, wire.FLOW_INACTIVE]]
    assert reference not in driven.leased, "it waits until the lane is here"
    driven.neighbours.running.clear()  # type: ignore[union-attr]
    driven.settle_down(1.0)
    code, found = driven.leased[reference]
    assert (code, found["acknowledged"], found["planned"], found["messages"]) == (0, 5, 13, 21)
    assert read(driven, 5, 13) == list(range(5, 13))
    assert driven.delivered.get(consumer) is None
    assert old.disk.get(Table.LANES, layout.lease_key(LANE)) is None
    driven.kill()
    driven.start(ROUTER, LANES)
    assert driven.leased_at_once("open", "g", HOUR_MS)["continued"] is True


def test_a_plan_waits_in_turns_until_very_many_messages_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """It let a million expire before it was answered, and everybody else waited for that."""
    driven = leased(messages=2)
    for _ in range(20):
        driven.store(([LANE], rows_of(1_000, meta=(1_000, 0, None, None))), producer=None)
    driven.store(([LANE], rows_of(1)), producer=None)
    driven.settle_down()
    served: list[int] = []
    serve = Lifetimes._serve

    def noted(lifetimes: Lifetimes, segment: Segment, wall_ms: int) -> int:
        served.append(serve(lifetimes, segment, wall_ms))
        return served[-1]

    monkeypatch.setattr(Lifetimes, "_serve", noted)
    driven.pass_time(2)
    before = driven.home.stats()["lease_questions"]
    reference = driven.lease("plan", "g", 0, 1, 0, ALL, 1 << 40)
    turns = 0
    while reference not in driven.leased:
        assert sum(served) <= 2_000
        served.clear()
        driven.tick()
        driven.write()
        turns += 1
        assert turns < 100
    assert turns > 10
    code, planned = driven.leased[reference]
    assert (code, planned[:3]) == (0, [1, 20_004, 3])
    assert driven.home.stats()["lease_questions"] == before + 1


@pytest.mark.parametrize("is_leased", [True, False])
def test_consumers_of_a_lane_that_comes_are_told_what_became_of_its_lease_meanwhile(is_leased: bool) -> None:
    old = leased()
    if not is_leased:
        old.leased_at_once("release", "g", 0)
    driven, _ = new_home(old.disk, runs=True)
    driven.lanes(LANES)
    consumer = driven.bind(LANE)
    driven.settle_down(0.1)
    if is_leased:
        old.leased_at_once("release", "g", 0)
    else:
        old.leased_at_once("open", "g", HOUR_MS)
    old.restart()
    driven.neighbours.running.clear()  # type: ignore[union-attr]
    driven.settle_down(1.0)
    turns = [wire.FLOW_INACTIVE, wire.FLOW_ACTIVE] if is_leased else [wire.FLOW_ACTIVE, wire.FLOW_INACTIVE]
    assert [event[1] for event in driven.events if event[0] == consumer] == turns
    assert (consumer in driven.delivered) is is_leased


# -- notes -------------------------------------------------------------------------------------------------------


def test_a_lease_does_not_end_while_its_lane_is_taken_over_however_long_that_takes() -> None:
    """It was told, to consumers too, and was there again with the lane."""
    old = leased()
    old.leased_at_once("open", "g", 1_000)
    old.restart()
    driven, _ = new_home(old.disk, runs=True)
    driven.lanes(LANES)
    consumer = driven.bind(LANE)
    driven.settle_down(5.0)
    driven.neighbours.running.clear()  # type: ignore[union-attr]
    driven.settle_down(0.5)
    assert driven.home.stats()["leases_timed_out"] == 0
    assert [event[1] for event in driven.events if event[0] == consumer] == [wire.FLOW_INACTIVE]
    assert driven.leased_at_once("positions", "g", 0)["messages"] == 20
    driven.settle_down(2.0)
    assert driven.home.stats()["leases_timed_out"] == 1, "from then on it counts"


def test_a_note_is_one_write_with_what_was_settled_before_it_and_what_is_done_with_it() -> None:
    driven = started()
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    consumer = driven.bind(LANE)
    driven.settle_down()
    driven.settle(consumer, (2, 2))
    reference = driven.lease("keep", b"two", [3, 17])
    driven.tick()
    assert driven.begin_write()
    assert reference not in driven.leased
    driven.end_write()
    assert driven.leased[reference] == (0, None)
    again(driven)
    assert driven.leased_at_once("note") == b"two"
    consumer = driven.bind(LANE)
    driven.settle_down()
    assert driven.delivered[consumer].order == [1, 4]


def test_a_note_that_is_not_on_disk_is_told_to_nobody() -> None:
    driven = started()
    assert driven.leased_at_once("note") == b""
    driven.lease("keep", b"new", [])
    asked = driven.lease("note")
    driven.tick()
    assert driven.begin_write()
    assert asked not in driven.leased
    driven.end_write()
    driven.settle_down()
    assert driven.leased[asked] == (0, b"new")
    driven.leased_at_once("keep", b"", [])
    again(driven)
    assert driven.leased_at_once("note") == b""


def test_a_note_goes_with_its_lane_and_ends_with_it() -> None:
    old = started()
    old.leased_at_once("keep", b"mine", [])
    old.restart()
    driven, _ = new_home(old.disk)
    driven.lanes(LANES)
    driven.settle_down(1.0)
    assert driven.leased_at_once("note") == b"mine"
    driven.kill()
    driven.start(ROUTER, LANES)
    assert driven.leased_at_once("note") == b"mine"
    driven.lanes({}, LANE)
    driven.settle_down()
    assert driven.disk.get(Table.LANES, layout.note_key(LANE)) is None


# -- what is held ------------------------------------------------------------------------------------------------

GROUP = wire.SHARED_QUEUE_PREFIX + "g/a"


def shared(messages: int = 4) -> DrivenHome:
    """A home with a queue that is shared, and messages in it."""
    driven = DrivenHome()
    driven.start(ROUTER, {LANE: settings_of(GROUP), OTHER: settings_of("other")})
    driven.store(([LANE], rows_of(messages)))
    driven.settle_down()
    return driven


def came_again(driven: DrivenHome) -> None:
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of(GROUP), OTHER: settings_of("other")})


def member(driven: DrivenHome, holder: str, **options: Any) -> int:
    flow = driven.bind(holder=holder, **options)
    driven.settle_down()
    return flow


def has(driven: DrivenHome, flow: int) -> list[int]:
    return driven.delivered[flow].order if flow in driven.delivered else []


def test_what_a_member_holds_is_for_nobody_else_whatever_dies_and_comes_to_it_again() -> None:
    driven = shared()
    first = member(driven, "m", messages=2)
    assert has(driven, first) == [1, 2]
    reference = driven.lease("keep", b"note", [], "m", [2])
    driven.tick()
    assert driven.begin_write()
    assert reference not in driven.leased
    driven.end_write()
    assert driven.leased[reference] == (0, [])
    driven.order(first, "unbind", None)
    driven.settle_down()
    assert has(driven, member(driven, "other")) == [1, 3, 4]
    came_again(driven)
    assert driven.leased_at_once("holders") == ["m"]
    assert driven.leased_at_once("note", "m") == [b"note", [2]]
    assert has(driven, member(driven, "other")) == [1, 3, 4]
    assert has(driven, member(driven, "m")) == [2]
    assert driven.leased_at_once("note", "m") == [b"note", [2]]


def test_what_a_flow_does_not_have_is_refused_and_what_is_held_already_is_not() -> None:
    driven = shared()
    member(driven, "m", messages=1)
    assert driven.leased_at_once("keep", b"", [], "m", [1, 2, 9]) == [2, 9]
    assert driven.leased_at_once("keep", b"", [], "other", [1]) == [1]
    came_again(driven)
    assert driven.leased_at_once("keep", b"x", [], "m", [1, 2]) == [2], "it has no flow"


def test_what_is_held_no_more_is_for_others_and_what_is_done_is_deleted() -> None:
    driven = shared(3)
    first = member(driven, "m")
    driven.leased_at_once("keep", b"a", [], "m", [1, 2, 3])
    driven.order(first, "unbind", None)
    other = member(driven, "other")
    assert has(driven, other) == []
    driven.leased_at_once("keep", b"b", [1], "m", [3])
    assert has(driven, other) == [2]
    driven.leased_at_once("keep", b"", [], "m", [])
    driven.settle_down()
    assert has(driven, other) == [2, 3]
    assert driven.leased_at_once("holders") == []
    came_again(driven)
    assert has(driven, member(driven, "m")) == [2, 3]


def test_a_purge_takes_what_is_held_and_leaves_the_note() -> None:
    driven = shared(2)
    member(driven, "m")
    driven.leased_at_once("keep", b"a", [], "m", [1, 2])
    driven.ask("endpoint.purge", lane_id=LANE)
    assert driven.leased_at_once("note", "m") == [b"a", []]


def test_what_is_held_goes_with_its_lane() -> None:
    old = shared(3)
    member(old, "m", messages=2)
    old.leased_at_once("keep", b"mine", [], "m", [2])
    old.restart()
    driven, _ = new_home(old.disk)
    driven.lanes({LANE: settings_of(GROUP)})
    driven.settle_down(1.0)
    assert driven.leased_at_once("note", "m") == [b"mine", [2]]
    assert has(driven, member(driven, "other")) == [1, 3]
    assert has(driven, member(driven, "m")) == [2]


def test_who_came_while_a_lane_was_taken_over_has_what_it_holds_and_may_hold_more() -> None:
    old = shared(3)
    member(old, "m", messages=2)
    old.leased_at_once("keep", b"mine", [], "m", [2])
    old.restart()
    driven, _ = new_home(old.disk)
    driven.lanes({LANE: settings_of(GROUP)})
    flow = driven.bind(holder="m")
    driven.settle_down(1.0)
    assert has(driven, flow) == [2, 1, 3]
    assert driven.leased_at_once("keep", b"more", [], "m", [1, 2]) == []
    driven.unbind(flow)
    assert has(driven, member(driven, "other")) == [3]
