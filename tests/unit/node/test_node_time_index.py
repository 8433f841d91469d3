"""The time index against a sorted list, and what timers cost."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.backlog.time_index import GRANULARITY_MS, Schedule, TimeIndex


def bucket_end(at_ms: int) -> int:
    return -(-at_ms // GRANULARITY_MS) * GRANULARITY_MS


def test_nothing_is_early_and_nothing_later_than_a_bucket() -> None:
    index = TimeIndex()
    index.add(1005, 7, 3)
    assert index.next_ms() == 1010
    assert index.take(1009, 10) == []
    assert index.take(1010, 10) == [(7, 3)]
    assert index.next_ms() is None
    assert index.count == 0


def test_a_run_that_is_there_already_becomes_longer_and_not_two() -> None:
    index = TimeIndex()
    index.add(1000, 7, 3)
    index.add(1000, 7, 9)
    index.add(1000, 7, 2)
    assert index.count == 1
    assert index.take(1000, 10) == [(7, 9)]


def test_one_call_takes_no_more_than_its_limit() -> None:
    index = TimeIndex()
    for first in range(100):
        index.add(1000 + first, first, 1)
    taken = index.take(2000, 30)
    assert len(taken) == 30
    assert index.count == 70
    assert max(first for first, _ in taken) < 40
    index.validate()
    assert len(index.take(2000, 1000)) == 70


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 400), st.integers(1, 30)),
        st.tuples(st.just("discard"), st.integers(1, 30), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 450), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(operations)
def test_the_index_gives_each_run_once_when_it_is_due(operations: list[tuple[str, int, int]]) -> None:
    index, model = TimeIndex(), dict[int, tuple[int, int]]()
    for what, one, other in operations:
        if what == "add" and other not in model:
            model[other] = (index.add(one, other, other), one)
        elif what == "discard" and one in model:
            index.discard(model.pop(one)[0], one)
        elif what == "take":
            due = {first for first, (_, at_ms) in model.items() if bucket_end(at_ms) <= one}
            taken = index.take(one, other)
            assert len(taken) == min(other, len(due))
            assert {first for first, _ in taken} <= due
            for first, count in taken:
                assert count == first
                del model[first]
        index.validate()
        assert index.count == len(model)
        assert index.next_ms() == min((bucket_end(at_ms) for _, at_ms in model.values()), default=None)


def test_discarding_what_is_not_there_does_nothing() -> None:
    index = TimeIndex()
    number = index.add(1000, 7, 1)
    index.discard(number, 8)
    index.discard(number + 1, 7)
    assert index.count == 1
    index.discard(number, 7)
    index.discard(number, 7)
    assert index.count == 0
    index.validate()


def test_runs_that_go_before_their_time_leave_nothing_behind() -> None:
    """A queue with a time to live of a day whose messages are consumed at once."""
    index = TimeIndex()
    for at_ms in range(0, 10_000_000, 100):
        index.discard(index.add(at_ms, at_ms, 100), at_ms)
    assert len(index._heap) < 200
    assert index._buckets == {}
    index.validate()


@pytest.mark.slow
def test_a_hundred_thousand_delayed_messages_cost_little() -> None:
    """Each with a time of its own, in segments of 100: one entry per segment and two bytes per message."""
    times = [1_700_000_000_000 + (k * 7919) % 3_600_000 for k in range(100_000)]
    tracemalloc.start()
    index, schedules = TimeIndex(), list[Schedule]()
    for first in range(0, 100_000, 100):
        schedule = Schedule(times[first : first + 100])
        schedules.append(schedule)
        index.add(times[first + schedule.next_row()], first, 100)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 100_000 < 10


@given(st.lists(st.integers(0, 50), max_size=40), st.lists(st.integers(0, 60), max_size=10))
def test_a_schedule_gives_each_row_with_a_time_once_in_order(times: list[int], steps: list[int]) -> None:
    schedule = Schedule(times)
    taken: list[int] = []
    for upto in sorted(steps):
        rows: list[int] = []
        while some := schedule.take(times.__getitem__, upto, 3):
            assert len(some) <= 3
            rows += some
        assert all(times[row] <= upto for row in rows)
        taken += rows
        left = [time for time in times if time > upto]
        following = schedule.next_row()
        assert (times[following] if following >= 0 else None) == min(left, default=None)
    taken += schedule.take(times.__getitem__, 1000, 1 << 16)
    assert sorted(taken) == [row for row, time in enumerate(times) if time]
    assert [times[row] for row in taken] == sorted(time for time in times if time)
    assert schedule.next_row() == -1


def test_rows_that_share_a_time_cost_no_order() -> None:
    assert isinstance(Schedule([5] * 1000)._order, range)
    assert isinstance(Schedule([1, 2, 2, 9])._order, range)
    assert not isinstance(Schedule([1, 0, 2])._order, range)
