"""What the driver of a streaming query decides, with a node that is made up: no Spark, no socket, no waiting."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from angarium import errors
from angarium.spark.offsets import INITIAL, Lane, Range, parse
from angarium.spark.options import LATEST
from angarium.spark.planning import FIRST_LEASE_S, OUT_WAIT_S, Limit, Planner, Wishes

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.requirement("R221")

A0, A1, B0 = Lane("a", 0), Lane("a", 1), Lane("b", 0)
SIZE = 10


@dataclass
class FakeLane:
    """A partition: positions that are there, and what a group has planned and acknowledged."""

    live: set[int] = field(default_factory=set)
    next: int = 1
    out: set[int] = field(default_factory=set)
    planned: set[int] = field(default_factory=set)
    acknowledged: int = 0
    planned_upto: int = 0

    def add(self, messages: int) -> None:
        self.live |= set(range(self.next, self.next + messages))
        self.next += messages


@dataclass
class FakeQueue:
    endpoint_id: int
    lanes: dict[int, FakeLane]
    holder: str | None = None
    lease_s: float = 0.0
    looks: int = 0


@dataclass
class FakePosition:
    oldest: int
    next: int
    acknowledged: int
    planned: int
    continued: bool


@dataclass
class FakePlanned:
    start: int
    end: int
    messages: int


class FakeGroup:
    def __init__(self, queue: FakeQueue, node_id: str, *, continued: bool) -> None:
        self._queue = queue
        self._continued = continued
        self.closed = False
        self.node_id = node_id

    @property
    def endpoint_id(self) -> int:
        return self._queue.endpoint_id

    def positions(self) -> dict[int, FakePosition]:
        self._queue.looks += 1
        return {
            at: FakePosition(
                min(lane.live, default=lane.next),
                lane.next,
                lane.acknowledged,
                lane.planned_upto,
                self._continued,
            )
            for at, lane in self._queue.lanes.items()
        }

    def count(self, starts: Mapping[int, int]) -> dict[int, int]:
        return {at: sum(one >= start for one in self._queue.lanes[at].live) for at, start in starts.items()}

    def find_time(self, times: Mapping[int, int]) -> dict[int, int]:
        return times if isinstance(times, dict) else dict(times)

    def plan(
        self,
        starts: Mapping[int, int],
        messages: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the name that the SDK has
        *,
        ends: Mapping[int, int] | None = None,
    ) -> dict[int, FakePlanned]:
        room = messages if messages is not None else 1 << 60
        room = min(room, 1 << 60 if bytes is None else -(-bytes // SIZE))
        found = {}
        for at, start in starts.items():
            lane = self._queue.lanes[at]
            start = max(start, lane.acknowledged)
            end, taken = start, 0
            limit = min(lane.next, ends[at] if ends else lane.next)
            while end < limit and room and end not in lane.out:
                if end in lane.live:
                    lane.planned.add(end)
                    taken, room = taken + 1, room - 1
                end += 1
            lane.planned_upto = max(lane.planned_upto, end)
            found[at] = FakePlanned(start, end, taken)
        return found

    def acknowledge(self, ends: Mapping[int, int]) -> None:
        for at, end in ends.items():
            lane = self._queue.lanes[at]
            gone = {one for one in lane.planned if one < end}
            lane.live -= gone
            lane.planned -= gone
            lane.acknowledged = max(lane.acknowledged, end)

    def close(self) -> None:
        self.closed = True

    def release(self) -> None:
        self._queue.holder = None


class FakeNode:
    name = "n1"
    node_id = "0f3a"
    vpn = "default"

    def __init__(self, **queues: FakeQueue) -> None:
        self.queues = queues

    def open(self, queue: str, group: str, lease_s: float) -> FakeGroup:
        found = self.queues[queue]
        if found.holder not in (None, group):
            raise errors.error_for(errors.OBJECT_IN_USE, f"reader group {found.holder!r}")
        continued = found.holder == group
        found.holder, found.lease_s = group, lease_s
        return FakeGroup(found, self.node_id, continued=continued)

    def lapse(self, queue: str) -> None:
        found = self.queues[queue]
        found.holder = None
        for lane in found.lanes.values():
            lane.planned.clear()
            lane.acknowledged = 0


def node(**messages: int) -> FakeNode:
    """A node with queues of one partition, and so many messages in each."""
    queues = {}
    for number, (name, count) in enumerate(messages.items()):
        queues[name] = FakeQueue(17 + number, {0: FakeLane()})
        queues[name].lanes[0].add(count)
    return FakeNode(**queues)


def planner(at: FakeNode, **wishes: Any) -> Planner:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        for queue in at.queues.values():
            for lane in queue.lanes.values():
                if now[0] > OUT_WAIT_S / 2:
                    lane.out.clear()

    wishes.setdefault("queues", tuple(at.queues))
    return Planner(Wishes(**wishes), at, lambda: now[0], sleep)


def stored(raw: Mapping[str, Any]) -> Any:
    """What Spark gives back."""
    return json.loads(json.dumps(raw))


def positions(raw: Mapping[str, Any]) -> dict[Lane, int]:
    found = parse(raw)
    assert found is not None
    return dict(found.positions)


def test_the_first_batch_leases_and_says_where_it_begins() -> None:
    at = node(a=10)
    query = planner(at)
    end = stored(query.latest(INITIAL, Limit()))
    assert positions(end) == {A0: 11}
    assert query.tasks(INITIAL, end) == [Range(A0, 1, 11, 10)]
    holder = at.queues["a"].holder
    assert holder is not None
    assert holder.startswith("spark-")
    assert end["group"] == holder


def test_a_group_that_is_in_no_checkpoint_yet_goes_soon() -> None:
    at = node(a=10)
    query = planner(at, lease_s=3600.0)
    end = stored(query.latest(INITIAL, Limit()))
    assert at.queues["a"].lease_s == FIRST_LEASE_S
    query.tasks(INITIAL, end)
    assert at.queues["a"].lease_s == 3600.0


def test_the_first_batch_of_an_empty_queue_fixes_where_the_query_begins() -> None:
    """Else a query that starts at `latest` would start over, and later, after a restart."""
    at = node(a=10)
    end = stored(planner(at, starting=LATEST).latest(INITIAL, Limit()))
    assert positions(end) == {A0: 11}
    at.queues["a"].lanes[0].add(5)
    later = planner(at, starting=LATEST)
    assert later.tasks(INITIAL, end) == []
    assert later.tasks(end, later.latest(end, Limit())) == [Range(A0, 11, 16, 5)]


def test_a_time_is_found_in_each_partition() -> None:
    at = node(a=10)
    query = planner(at, starting=4)  # The fake's times are positions.
    assert query.tasks(INITIAL, query.latest(INITIAL, Limit())) == [Range(A0, 4, 11, 7)]


def test_nothing_new_is_the_same_offset() -> None:
    at = node(a=10)
    query = planner(at)
    end = stored(query.latest(INITIAL, Limit()))
    assert query.latest(end, Limit()) is end


def test_a_batch_is_read_again_by_a_driver_that_knows_nothing() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit(messages=4)))
    at.queues["a"].lanes[0].add(5)
    again = planner(at)
    assert again.tasks(INITIAL, first) == [Range(A0, 1, 5, 4)]
    second = stored(again.latest(first, Limit(messages=4)))
    assert planner(at).tasks(first, second) == [Range(A0, 5, 9, 4)]


def test_messages_are_deleted_after_sparks_commit_and_not_before() -> None:
    at = node(a=10)
    lane = at.queues["a"].lanes[0]
    query = planner(at)
    first = stored(query.latest(INITIAL, Limit(messages=4)))
    query.tasks(INITIAL, first)
    second = stored(query.latest(first, Limit(messages=4)))
    assert len(lane.live) == 10
    query.commit(first)
    assert lane.live == set(range(5, 11))
    query.tasks(first, second)
    assert lane.live == set(range(5, 11))


def test_a_driver_that_starts_deletes_what_its_checkpoint_has() -> None:
    """Spark commits the last batch of a run with the first of the next one, which may never come."""
    at = node(a=4)
    first = stored(planner(at).latest(INITIAL, Limit()))
    again = planner(at)
    assert again.latest(first, Limit()) is first
    assert at.queues["a"].lanes[0].live == set()


def test_a_driver_that_repeats_a_batch_does_not_delete_it_by_planning_the_next() -> None:
    """With async progress tracking the repeated batch may not be in the checkpoint yet."""
    at = node(a=4)
    first = stored(planner(at).latest(INITIAL, Limit()))
    again = planner(at)
    again.tasks(INITIAL, first)
    again.latest(first, Limit())
    assert len(at.queues["a"].lanes[0].live) == 4


def test_available_now_reads_what_is_there_and_deletes_it_at_the_end() -> None:
    at = node(a=10)
    lane = at.queues["a"].lanes[0]
    query = planner(at)
    query.bound()
    read, start = [], INITIAL
    for _ in range(10):
        end = stored(query.latest(start, Limit(messages=4)))
        if end == start:
            break
        lane.add(3)
        read += query.tasks(start, end)
        start = end
    assert [(one.first, one.end) for one in read] == [(1, 5), (5, 9), (9, 11)]
    assert min(lane.live) == 11


def test_available_now_waits_for_what_a_consumer_had_out() -> None:
    at = node(a=10)
    at.queues["a"].lanes[0].out = {3}
    query = planner(at)
    query.bound()
    first = stored(query.latest(INITIAL, Limit()))
    assert positions(first) == {A0: 3}
    assert positions(query.latest(first, Limit())) == {A0: 11}


def test_limits_are_shared_among_queues() -> None:
    at = node(a=10, b=100)
    end = planner(at).latest(INITIAL, Limit(messages=30))
    assert positions(end) == {A0: 11, B0: 21}


def test_bytes_limit_a_batch() -> None:
    at = node(a=100)
    assert positions(planner(at).latest(INITIAL, Limit(bytes=5 * SIZE))) == {A0: 6}


def test_a_partition_that_comes_is_read_from_its_beginning_and_one_that_goes_no_more() -> None:
    at = node(a=2)
    query = planner(at)
    first = stored(query.latest(INITIAL, Limit()))
    at.queues["a"].lanes[1] = FakeLane()
    at.queues["a"].lanes[1].add(3)
    second = stored(query.latest(first, Limit()))
    assert planner(at).tasks(first, second) == [Range(A1, 1, 4, 3)]
    del at.queues["a"].lanes[0]
    assert query.latest(second, Limit()) is second
    at.queues["a"].lanes[1].add(1)
    third = query.latest(second, Limit())
    assert positions(third) == {A1: 5}
    assert query.tasks(second, third) == [Range(A1, 4, 5, 1)]


def test_positions_that_others_consumed_while_the_lease_had_ended_are_lost() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit(messages=4)))
    at.lapse("a")
    at.queues["a"].lanes[0].live -= {1, 2, 3, 4, 6, 8}
    for _ in range(2):  # also if somebody starts it again
        with pytest.raises(
            errors.NotFoundError, match="2 messages of queue 'a', partition 0, positions 5 to 10"
        ):
            planner(at).latest(first, Limit())
    again = planner(at, fail_on_data_loss=False)
    assert again.tasks(first, again.latest(first, Limit())) == [Range(A0, 5, 11, 4)]


def test_a_lease_that_ended_while_nobody_consumed_is_no_loss() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit(messages=4)))
    at.lapse("a")
    again = planner(at)
    assert again.tasks(INITIAL, first) == [Range(A0, 1, 5, 4)]
    assert again.tasks(first, again.latest(first, Limit())) == [Range(A0, 5, 11, 6)]


@pytest.mark.parametrize("repeats", [False, True])
def test_a_batch_that_is_complete_is_deleted_also_if_it_went_back_to_the_queue(repeats: bool) -> None:
    """The query was away for longer than its lease. Else a batch would stay there each time."""
    at = node(a=10)
    lane = at.queues["a"].lanes[0]
    query = planner(at)
    first = stored(query.latest(INITIAL, Limit(messages=4)))
    done = stored(query.latest(first, Limit(messages=3)))
    query.commit(first)
    begun = stored(query.latest(done, Limit(messages=2))) if repeats else done
    at.lapse("a")
    again = planner(at)
    if repeats:
        assert again.tasks(done, begun) == [Range(A0, 8, 10, 2)]
    else:
        again.latest(done, Limit(messages=2))
    assert lane.live == {8, 9, 10}


def test_what_is_in_a_queue_below_a_batch_that_is_complete_is_left_alone() -> None:
    """What was there was deleted before; so it is another queue with the number of this one."""
    at = node(a=10)
    query = planner(at)
    first = stored(query.latest(INITIAL, Limit(messages=4)))
    done = stored(query.latest(first, Limit(messages=3)))
    other = node(a=10)
    planner(other).latest(done, Limit())
    assert len(other.queues["a"].lanes[0].live) == 10


def test_a_planned_batch_that_is_not_whole_any_more_is_lost() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit()))
    at.queues["a"].lanes[0].live -= {7}
    with pytest.raises(errors.NotFoundError, match="1 messages of queue 'a', partition 0, positions 1 to 10"):
        planner(at).tasks(INITIAL, first)
    assert planner(at, fail_on_data_loss=False).tasks(INITIAL, first) == [Range(A0, 1, 11, 9)]


def test_every_part_of_a_range_that_is_divided_knows_what_it_must_hold() -> None:
    """What is purged while tasks read is found by the task whose messages it was."""
    at = node(a=10)
    at.queues["a"].lanes[0].live -= {2, 7, 8}
    query = planner(at, tasks_min=2)
    first = stored(query.latest(INITIAL, Limit()))
    assert query.tasks(INITIAL, first) == [Range(A0, 1, 6, 4), Range(A0, 6, 11, 3)]


def test_a_checkpoint_that_is_older_than_what_was_acknowledged_has_lost_messages() -> None:
    """As after somebody put back a copy of a checkpoint."""
    at = node(a=10)
    query = planner(at)
    first = stored(query.latest(INITIAL, Limit(messages=4)))
    second = stored(query.latest(first, Limit(messages=4)))
    query.commit(second)
    with pytest.raises(errors.NotFoundError, match="positions 1 to 4 are gone: they were acknowledged"):
        planner(at).tasks(INITIAL, first)
    with pytest.raises(errors.NotFoundError, match="positions 5 to 8 are gone: they are acknowledged"):
        planner(at).latest(first, Limit())


def test_a_checkpoint_of_another_broker_or_queue_is_refused() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit()))
    other = node(a=10)
    other.name = "n2"
    with pytest.raises(errors.InvalidRequestError, match="of node 'n1'"):
        planner(other).latest(first, Limit())
    again = FakeNode(a=replace(node(a=3).queues["a"], endpoint_id=99))
    with pytest.raises(errors.InvalidRequestError, match="endpoint 99"):
        planner(again).tasks(INITIAL, first)


@pytest.mark.parametrize("messages", [5, 30])
def test_a_node_that_was_made_anew_is_another_one_also_with_the_same_name_and_numbers(messages: int) -> None:
    """What it has at the positions of the checkpoint was never read, and would be skipped and deleted."""
    before = node(a=10)
    first = stored(planner(before).latest(INITIAL, Limit()))
    later = node(a=messages)
    later.node_id = "77c1"
    for ask in (
        lambda: planner(later).latest(first, Limit()),
        lambda: planner(later).tasks(INITIAL, first),
        lambda: planner(later).commit(first),
    ):
        with pytest.raises(errors.InvalidRequestError, match="node 'n1' was made anew or restored"):
            ask()
        assert later.queues["a"].holder is None
    assert len(later.queues["a"].lanes[0].live) == messages


def test_a_checkpoint_of_an_earlier_version_learns_which_node_it_is_of() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit()))
    del first["node_id"]
    query = planner(at)
    query.tasks(INITIAL, first)
    query.commit(first)
    at.queues["a"].lanes[0].add(5)
    assert query.latest(first, Limit())["node_id"] == at.node_id


def test_a_checkpoint_goes_on_to_know_its_node_while_that_runs_an_earlier_version() -> None:
    """It would be taken for one of any node later, of one that was made anew too."""
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit()))
    at.node_id = ""
    at.queues["a"].lanes[0].add(5)
    assert planner(at).latest(first, Limit())["node_id"] == first["node_id"] != ""


def test_a_query_that_is_refused_keeps_no_consumers_from_the_queue_that_is_not_its_own() -> None:
    """Who names another checkpoint would be told, for an hour, that the queue is leased."""
    first = stored(planner(node(a=10)).latest(INITIAL, Limit()))
    again = FakeNode(a=replace(node(a=3).queues["a"], endpoint_id=99))
    with pytest.raises(errors.InvalidRequestError):
        planner(again).latest(first, Limit())
    assert again.queues["a"].holder is None
    again.queues["a"].holder = first["group"]  # another query has the same name of a group
    with pytest.raises(errors.InvalidRequestError):
        planner(again).latest(first, Limit())
    assert again.queues["a"].holder == first["group"]


def test_positions_above_those_of_the_queue_are_of_another_one() -> None:
    at = node(a=10)
    first = stored(planner(at).latest(INITIAL, Limit()))
    restored = node(a=3)
    with pytest.raises(errors.InvalidRequestError, match="positions below 4, the checkpoint 11"):
        planner(restored).latest(first, Limit())


def test_a_leased_queue_names_who_has_it() -> None:
    at = node(a=1)
    planner(at, group="g").latest(INITIAL, Limit())
    with pytest.raises(errors.ConflictError, match="reader group 'g'"):
        planner(at).latest(INITIAL, Limit())


def test_the_newest_offset_is_for_the_lag() -> None:
    at = node(a=10)
    query = planner(at)
    assert query.newest() is None
    query.latest(INITIAL, Limit(messages=4))
    newest = query.newest()
    assert newest is not None
    assert positions(newest) == {A0: 11}


def test_leases_are_used_while_a_batch_takes_long() -> None:
    at = node(a=1, b=1)
    query = planner(at)
    query.renew()
    query.latest(INITIAL, Limit())
    query.renew()
    assert [queue.looks for queue in at.queues.values()] == [2, 2]


def test_closing_keeps_the_lease() -> None:
    at = node(a=1)
    query = planner(at, group="g")
    query.latest(INITIAL, Limit())
    query.close()
    assert at.queues["a"].holder == "g"
