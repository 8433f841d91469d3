"""A lease of a lane: who gets what while there is one, what a plan holds, what is left after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from node.endpoints.lease import RANGES_MAX
from node.endpoints.leasing import GRACE_S
from tests.unit.node.lane_driver import ACCEPTED, ACTIVE, FAILED, INACTIVE, REFUSED, row
from tests.unit.node.leased_driver import GROUP, HOUR_MS, LeasedDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.requirement("R221")


@pytest.fixture
def make() -> Iterator[type[LeasedDriver]]:
    made: list[LeasedDriver] = []

    class Checked(LeasedDriver):
        def __init__(self, **settings: object) -> None:
            super().__init__(**settings)
            made.append(self)

    yield Checked
    for driver in made:
        driver.lane.validate()


def code_of(error: pytest.ExceptionInfo[errors.AngariumError]) -> int:
    return error.value.code


# --- who has it -------------------------------------------------------------------------------------------------


def test_consumers_stand_by_and_are_told(make: type[LeasedDriver]) -> None:
    driver = make(access_type="non-exclusive")
    driver.bind(1)
    driver.bind(2)
    assert driver.take() == (False, [(1, INACTIVE, 0, ""), (2, INACTIVE, 0, "")])
    driver.fill(10)
    assert driver.deliver() == {}
    assert driver.bind(3) == [(3, INACTIVE, 0, "")]
    events = driver.end()
    assert events == [(flow, ACTIVE, 0, "") for flow in (1, 2, 3)]
    assert sum(map(len, driver.deliver().values())) == 10


def test_of_an_exclusive_lane_one_is_told_and_a_change_of_turn_stays_in_force(
    make: type[LeasedDriver],
) -> None:
    driver = make()
    driver.bind(1)
    driver.bind(2)
    assert driver.take()[1] == [(1, INACTIVE, 0, "")]
    assert driver.unbind(1) == [(2, INACTIVE, 0, "")]
    assert driver.end() == [(2, ACTIVE, 0, "")]


def test_another_group_is_refused_by_the_name_of_the_first(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.take("first")
    with pytest.raises(errors.ConflictError, match="first") as refused:
        driver.take("second")
    assert code_of(refused) == errors.ENDPOINT_LEASED
    assert driver.take("first")[0], "it goes on"


def test_who_has_no_lease_or_an_old_one_is_refused(make: type[LeasedDriver]) -> None:
    driver = make()
    with pytest.raises(errors.ConflictError) as nobody:
        driver.leasing.demand(GROUP, 0, driver.now)
    driver.take()
    epoch = driver.leasing.lease.epoch
    assert driver.leasing.demand(GROUP, epoch, driver.now).epoch == epoch
    driver.end()
    driver.pass_ms(5)
    driver.take()
    with pytest.raises(errors.ConflictError) as older:
        driver.leasing.demand(GROUP, epoch, driver.now)
    with pytest.raises(errors.ConflictError) as other:
        driver.leasing.demand("other", 0, driver.now)
    assert {code_of(one) for one in (nobody, older, other)} == {errors.LEASE_LOST}


def test_a_lease_that_nobody_uses_ends_and_one_that_is_used_does_not(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(4)
    driver.take(lease_ms=10_000)
    driver.plan(1, messages=2)
    for _ in range(6):
        driver.pass_ms(4_000)
        driver.leasing.demand(GROUP, 0, driver.now)
        assert driver.tick() == []
    driver.pass_ms(9_999)
    assert driver.tick() == []
    driver.pass_ms(1)
    assert driver.lane.next_due() == driver.now
    assert driver.tick() == [(1, ACTIVE, 0, "")]
    assert driver.leasing.timed_out == GROUP
    assert driver.leasing.is_changed
    assert driver.deliver_counts() == {1: 1, 2: 1, 3: 0, 4: 0}, "what was planned may have been read"


def test_reading_uses_the_lease(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(4)
    driver.take(lease_ms=10_000)
    driver.plan(1)
    for _ in range(4):
        driver.pass_ms(6_000)
        assert driver.read(1, 5) == [1, 2, 3, 4]
    assert driver.leasing.lease is not None


# --- what consumers had out -------------------------------------------------------------------------------------


def test_consumers_settle_for_a_while_what_they_had_out_and_then_it_is_the_group_s(
    make: type[LeasedDriver],
) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(6)
    assert driver.deliver() == {1: [1, 2, 3, 4, 5, 6]}
    driver.take()
    assert driver.plan(1).end == 1, "a plan does not pass over what may come back"
    assert driver.settle(1, ACCEPTED, (1, 2)) == []
    assert driver.plan(1) == (1, 3, 0, 0)
    driver.pass_ms(int(GRACE_S * 1000))
    assert driver.tick() == []
    assert driver.plan(3) == (3, 7, 4, 4 * 64)
    assert driver.settle(1, ACCEPTED, (3, 4))[0][1:3] == (REFUSED, errors.PARTITION_LOST)
    assert driver.read(3, 7) == [3, 4, 5, 6]


def test_what_a_consumer_fails_during_that_time_comes_in_its_place(make: type[LeasedDriver]) -> None:
    driver = make(redelivery_delay=(1_000, 1_000, 100))
    driver.bind(1)
    driver.fill(4)
    driver.deliver()
    driver.take()
    driver.settle(1, FAILED, (2, 2))
    driver.settle(1, ACCEPTED, (1, 1), (3, 4))
    assert driver.plan(1).end == 2, "it waits for its delay"
    driver.pass_ms(1_000)
    driver.tick()
    assert driver.plan(1) == (1, 5, 1, 64)


def test_a_resumed_flow_settles_nothing_of_a_leased_lane(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.bind(1)
    driver.fill(3)
    driver.deliver()
    driver.take()
    driver.restart(clean=False)
    driver.bind(1, resume=True)
    assert driver.settle(1, ACCEPTED, (1, 3))[0][1:3] == (REFUSED, errors.PARTITION_LOST)
    assert driver.plan(1).messages == 3


# --- plans ------------------------------------------------------------------------------------------------------


def test_a_plan_ends_at_its_limits_and_has_one_message_in_any_case(make: type[LeasedDriver]) -> None:
    driver = make()
    for _ in range(4):
        driver.fill(5)
    driver.take()
    assert driver.plan(1, messages=7) == (1, 8, 7, 7 * 64)
    assert driver.plan(8, size=1) == (8, 9, 1, 64)
    assert driver.plan(9, size=2 * 64) == (9, 11, 2, 128)
    assert driver.plan(11, size=2 * 64 + 1) == (11, 14, 3, 192)
    assert driver.plan(14, end=16) == (14, 16, 2, 128)
    assert driver.plan(16) == (16, 21, 5, 5 * 64)
    assert driver.plan(21) == (21, 21, 0, 0)
    assert driver.plan(50) == (50, 50, 0, 0)
    assert driver.leasing.lease.ranges == [(1, 21)]


def test_a_plan_may_be_asked_for_twice(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10)
    driver.take()
    assert driver.plan(3, messages=4) == driver.plan(3, messages=4) == (3, 7, 4, 256)
    assert driver.plan(1, messages=5) == (1, 6, 5, 320), "what is planned already counts"
    driver.acknowledge(4)
    assert driver.plan(1, messages=2) == (4, 6, 2, 128), "and what is acknowledged is gone"


def test_what_is_planned_does_not_expire_and_what_is_not_does(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10, ttl=1_000)
    driver.take()
    driver.plan(1, messages=4)
    driver.pass_ms(5_000)
    driver.tick()
    assert driver.positions() == [1, 2, 3, 4]
    assert driver.read(1, 5) == [1, 2, 3, 4]
    driver.end()
    driver.tick()
    assert driver.positions() == []


def test_expired_messages_are_in_no_plan_even_if_nobody_looked_before(make: type[LeasedDriver]) -> None:
    driver = make()
    for _ in range(2_000):
        driver.fill(1, ttl=100)
    driver.fill(1)
    driver.take()
    driver.pass_ms(200)
    assert driver.plan(1) == (1, 2_002, 1, 64)
    assert driver.read(1, 2_002) == [2_001]


def test_a_plan_passes_over_dead_messages_and_stops_at_one_that_is_moved(make: type[LeasedDriver]) -> None:
    driver = make(dead_message_queue="dmq")
    driver.fill(2, ttl=100)
    driver.fill(6)
    driver.take()
    found = driver.lane.find(6)
    assert found is not None
    assert driver.lane.take(*found)
    driver.pass_ms(200)
    assert driver.plan(1) == (1, 6, 3, 192)
    driver.lane.kept(*found, driver.now, driver.wall_ms)
    driver.tick()
    assert driver.plan(6) == (6, 9, 3, 192)
    assert driver.read(1, 9) == [3, 4, 5, 6, 7, 8]


def test_priorities_and_delays_of_messages_do_not_count_those_of_the_endpoint_do(
    make: type[LeasedDriver],
) -> None:
    driver = make(access_type="non-exclusive", respect_priority=True, delivery_delay_ms=500)
    driver.put(*[row(k, priority=k % 9, delay=60_000 * (k % 2)) for k in range(10)])
    driver.take()
    assert driver.plan(1).messages == 0
    driver.pass_ms(500)
    assert driver.plan(1).messages == 10
    assert driver.read(1, 11) == list(range(1, 11))


def test_a_last_value_lane_keeps_what_is_planned_and_the_newest(make: type[LeasedDriver]) -> None:
    driver = make(last_value=True)
    driver.fill(3)
    driver.take()
    assert driver.plan(1) == (1, 4, 1, 64)
    driver.fill(2)
    assert driver.positions() == [3, 5]
    assert driver.plan(4) == (4, 6, 1, 64)
    assert driver.read(1, 6) == [3, 5]
    driver.end()
    assert driver.positions() == [5], "what was replaced goes"


def test_a_group_has_as_many_ranges_as_are_possible(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(2 * RANGES_MAX + 4)
    driver.take()
    for k in range(RANGES_MAX):
        driver.plan(1 + 2 * k, messages=1)
    with pytest.raises(errors.InvalidRequestError, match="ranges"):
        driver.plan(2 * RANGES_MAX + 1, messages=1)
    assert driver.plan(2, end=2 * RANGES_MAX - 1).messages == 2 * RANGES_MAX - 3, "a range that joins others"
    driver.plan(2 * RANGES_MAX + 1)


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_range_is_read_in_order_in_any_portions_as_often_as_wanted(make: type[LeasedDriver]) -> None:
    driver = make()
    for size in (3, 1, 5, 2, 9):
        driver.fill(size)
    driver.take()
    driver.plan(1)
    for messages in (1, 2, 7, 100):
        assert driver.read(1, 21, messages=messages) == list(range(1, 21))
        assert driver.read(5, 13, messages=messages) == list(range(5, 13))
    assert driver.read(6, 6) == []


def test_a_whole_segment_is_handed_out_as_one(make: type[LeasedDriver]) -> None:
    driver = make()
    for _ in range(20):
        driver.fill(300)
    driver.take()
    driver.plan(1)
    driver.bind(9, browse=True, group=GROUP, first=1, end=6_001)
    assert [len(one.indices) for one in driver.handouts()] == [300] * 20


def test_nobody_reads_what_is_not_planned_or_not_its_own(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10)
    closed = [driver.bind(1, browse=True, group=GROUP, first=1, end=3)]
    driver.take()
    driver.plan(1, messages=6)
    driver.acknowledge(3)
    for number, (group, first, end) in enumerate(
        [("other", 3, 5), (GROUP, 1, 5), (GROUP, 4, 8), (GROUP, 8, 8), (GROUP, 20, 30)], 2
    ):
        closed.append(driver.bind(number, browse=True, group=group, first=first, end=end))
    codes = [events[0].code for events in closed]
    assert codes == [errors.LEASE_LOST] * 2 + [errors.INVALID_ARGUMENT] * 4
    assert driver.lane.flows == {}


def test_readers_end_with_the_lease(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10)
    driver.take()
    driver.plan(1)
    driver.bind(1, browse=True, messages=2, group=GROUP, first=1, end=11)
    assert driver.deliver() == {1: [1, 2]}
    assert [event[:3] for event in driver.end()] == [(1, 0, errors.LEASE_LOST)]
    assert driver.lane.flows == {}


def test_an_empty_range_of_a_browser_ends_at_once(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(5)
    assert driver.read(0, 0, group="") == []
    assert driver.read(3, 3, group="") == []
    assert driver.read(2, 4, group="") == [2, 3]


def test_browsers_go_on_while_a_lane_is_leased(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(5)
    driver.take()
    driver.plan(1, messages=3)
    driver.bind(1, browse=True)
    assert driver.deliver() == {1: [1, 2, 3, 4, 5]}


# --- acknowledging, and what others take ------------------------------------------------------------------------


def test_only_what_is_planned_is_acknowledged(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10)
    driver.take()
    driver.plan(4, messages=3)
    assert driver.acknowledge(9) == 3
    assert driver.positions() == [1, 2, 3, 7, 8, 9, 10]
    assert driver.leasing.positions(11) == {
        "oldest": 1,
        "next": 11,
        "acknowledged": 7,
        "planned": 7,
        "lost": 0,
        "messages": 7,
        "bytes": 7 * 64,
    }
    assert driver.acknowledge(9) == 0


def test_what_an_operator_deletes_of_a_plan_is_counted(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(10)
    driver.take()
    driver.plan(1, messages=6)
    driver.gone(2)
    driver.gone(9)
    assert driver.leasing.lease.lost == 1
    assert driver.read(1, 7) == [1, 3, 4, 5, 6]
    found = driver.lane.find(4)
    assert found is not None
    driver.lane.withdraw(*found)
    assert driver.leasing.lease.lost == 2
    driver.lane.purge()
    assert driver.leasing.lease.lost == 6
    assert driver.leasing.is_changed
    assert driver.read(1, 7) == []


def test_operators_move_nothing_that_is_planned(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.fill(4)
    driver.take()
    driver.plan(1, messages=2)
    taken = [driver.lane.take(*at) for at in map(driver.lane.find, range(1, 5)) if at is not None]
    assert taken == [False, False, True, True]


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart_the_group_has_what_it_had(make: type[LeasedDriver], clean: bool) -> None:
    driver = make()
    driver.fill(20, ttl=1_000)
    driver.take()
    driver.plan(3, messages=10)
    driver.acknowledge(6)
    driver.gone(8)
    driver.keep()
    driver.pass_ms(5_000)
    driver.restart(clean=clean)
    driver.tick()
    assert driver.positions() == [6, 7, 9, 10, 11, 12], "it has not expired, what is not planned has"
    assert driver.read(6, 13) == [6, 7, 9, 10, 11, 12]
    lease = driver.leasing.lease
    assert (lease.group, lease.acknowledged, lease.planned, lease.lost) == (GROUP, 6, 13, 1)
    assert driver.bind(1) == [(1, INACTIVE, 0, "")]


def test_the_time_of_a_lease_begins_anew_with_a_restart(make: type[LeasedDriver]) -> None:
    driver = make()
    driver.take(lease_ms=10_000)
    driver.pass_ms(HOUR_MS)
    driver.restart(clean=False)
    driver.pass_ms(9_999)
    assert driver.tick() == []
    assert driver.leasing.lease is not None


# --- figures ----------------------------------------------------------------------------------------------------


def test_messages_are_counted_from_a_position(make: type[LeasedDriver]) -> None:
    driver = make()
    for _ in range(10):
        driver.fill(7)
    for position in (1, 9, 10, 33, 69, 70):
        driver.gone(position)
    live = driver.positions()
    for start in range(75):
        above = [one for one in live if one >= start]
        assert driver.leasing.measure(start) == (len(above), 64 * len(above))


def test_a_position_is_found_by_its_time(make: type[LeasedDriver]) -> None:
    driver = make()
    begin = driver.wall_ms
    for _ in range(40):
        driver.fill(5)
        driver.pass_ms(100)
    for position in range(11, 31):
        driver.gone(position)
    assert driver.leasing.find_time(0) == 1
    assert driver.leasing.find_time(begin + 100) == 6
    assert driver.leasing.find_time(begin + 101) == 31, "what was deleted is passed over"
    assert driver.leasing.find_time(begin + 3_900) == 196
    assert driver.leasing.find_time(begin + 3_901) is None


def test_the_time_of_a_position_is_looked_up_by_halving(make: type[LeasedDriver]) -> None:
    driver = make()
    begin = driver.wall_ms
    looked = 0
    for _ in range(1_024):
        driver.fill(2)
        driver.pass_ms(10)
    kind = type(next(driver.lane.segments))
    before = kind.stored_at_ms

    def counted(segment: object, i: int) -> int:
        nonlocal looked
        looked += 1
        return before(segment, i)  # type: ignore[arg-type]

    kind.stored_at_ms = counted  # type: ignore[method-assign, assignment]
    try:
        assert driver.leasing.find_time(begin + 5_000) == 1_001
    finally:
        kind.stored_at_ms = before  # type: ignore[method-assign]
    assert looked <= 12
