"""MOVE: a home publishes to another endpoint by itself, exactly once, through the router's admission."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode
    from tests.unit.router.real_home import RealHome

MODE = wire.MODE_PERSISTENT
#: Who published the rows of a move, by index.
PUBLISHERS = {0: 11, 1: 22}


def move(
    node: PublishNode,
    source: str,
    target: list[Any],
    *payloads: bytes,
    first: int = 1,
    partition: int = 0,
    keys: list[str] | None = None,
    pasts: dict[int, Any] | None = None,
    home: RealHome | None = None,
) -> None:
    """Let the home of a queue, or one that was it, ask for rows to be moved."""
    home = home or node.home_of(source, partition)
    metas = [[0, 0, None, key] for key in keys] if keys else [None] * len(payloads)
    rows = [
        [index, "t", MODE, meta, None, payload]
        for index, (meta, payload) in enumerate(zip(metas, payloads, strict=True))
    ]
    origins = [["queue", source, "moved"]] * len(rows)
    lane = node.endpoint(source).all_lanes()[partition].lane_id
    head = [home.incarnation, lane, first, target, len(rows), origins, PUBLISHERS, pasts or {}, 1]
    home.send(wire.MOVE, head, wire.pack(rows))


def to(name: str) -> list[Any]:
    return ["queue", "default", name]


def moved(node: PublishNode, source: str) -> list[list[Any]]:
    """Take the answers: [first, upto, refused]."""
    home = node.home_of(source)
    found = [body[2:] for body in home.moved]
    home.moved.clear()
    return found


@pytest.fixture
def queues(make_publish_node: Any) -> PublishNode:
    """Give a node with a source and a target at different homes."""
    node: PublishNode = make_publish_node(2)
    node.queue("source", home=0)
    node.queue("target", home=1)
    return node


def test_rows_go_to_the_named_endpoint_with_their_origin(queues: PublishNode) -> None:
    move(queues, "source", to("target"), b"1", b"2")
    assert queues.payloads("target") == [b"1", b"2"]
    assert [row.origin for row in queues.stored("target")] == [["queue", "source", "moved"]] * 2
    assert moved(queues, "source") == [[1, 2, []]]
    assert [store[7] for store in queues.homes[1].stores] == [PUBLISHERS]
    number = wire.INTERNAL_PRODUCER | queues.lane("source")
    assert [(row.producer, row.sequence) for row in queues.stored("target")] == [(number, 1), (number, 2)]
    assert queues.router.stats()["spool"]["moved_messages"] == 2


def test_the_answer_comes_when_the_target_has_it_on_disk(queues: PublishNode) -> None:
    queues.homes[1].commits = False
    move(queues, "source", to("target"), b"1")
    assert moved(queues, "source") == []
    queues.commit()
    assert moved(queues, "source") == [[1, 1, []]]


def test_nobody_else_gets_it(queues: PublishNode) -> None:
    queues.queue("other", ">")
    subscriber = queues.client()
    subscriber.subscribe(">")
    move(queues, "source", to("target"), b"1")
    assert queues.stored("other") == []
    assert subscriber.rows() == []


@pytest.mark.parametrize(
    "target",
    [["queue", "default", "none"], ["queue", "none", "target"], ["topic-endpoint", "default", "target"]],
)
def test_without_a_target_everything_stays(queues: PublishNode, target: list[Any]) -> None:
    move(queues, "source", target, b"1", b"2")
    assert moved(queues, "source") == [[1, 2, [[1, errors.UNKNOWN_ENDPOINT], [2, errors.UNKNOWN_ENDPOINT]]]]


def test_the_target_admits_what_it_can_and_the_source_hears_of_the_rest(queues: PublishNode) -> None:
    queues.change("target", max_spool_usage_mb=1, reject_to_sender="never")
    move(queues, "source", to("target"), bytes(600_000), bytes(600_000), bytes(300_000))
    assert moved(queues, "source") == [[1, 3, [[2, errors.SPOOL_OVER_QUOTA]]]]
    assert [row.sequence for row in queues.stored("target")] == [1, 3]
    assert queues.endpoint("target").counters == {"spool_usage_exceeded": 1}


def test_a_source_that_comes_back_asks_again_and_nothing_is_doubled(queues: PublishNode) -> None:
    move(queues, "source", to("target"), b"1", b"2")
    queues.restart_worker(0)
    move(queues, "source", to("target"), b"1", b"2", b"3")
    assert moved(queues, "source") == [[1, 3, []]]
    assert queues.payloads("target") == [b"1", b"2", b"3"]


def test_a_source_that_comes_back_before_the_target_has_stored_it(queues: PublishNode) -> None:
    queues.homes[1].commits = False
    move(queues, "source", to("target"), b"1", b"2")
    queues.restart_worker(0)
    move(queues, "source", to("target"), b"2", b"3", first=2)
    assert moved(queues, "source") == []
    queues.commit()
    assert moved(queues, "source") == [[2, 3, []]]
    assert queues.payloads("target") == [b"1", b"2", b"3"]


def test_a_refusal_is_remembered(queues: PublishNode) -> None:
    queues.change("target", ingress_enabled=False)
    move(queues, "source", to("target"), b"1")
    queues.change("target", ingress_enabled=True)
    move(queues, "source", to("target"), b"2", first=2)
    queues.restart_router()
    move(queues, "source", to("target"), b"1", b"2")
    assert moved(queues, "source") == [[1, 2, [[1, errors.ENDPOINT_SHUTDOWN]]]]
    assert queues.payloads("target") == [b"2"]


def test_the_next_move_of_a_lane_asks_the_homes_nothing(queues: PublishNode) -> None:
    for first in range(1, 6):
        move(queues, "source", to("target"), b"x", first=first)
    assert len(queues.homes[0].gathers) == 1
    assert moved(queues, "source") == [[first, first, []] for first in range(1, 6)]


def test_moves_wait_until_all_homes_have_reported(queues: PublishNode) -> None:
    queues.silent.add(1)
    queues.restart_router()
    move(queues, "source", to("target"), b"1")
    assert moved(queues, "source") == []
    queues.homes[1].report()
    queues.settle()
    assert moved(queues, "source") == [[1, 1, []]]
    assert queues.payloads("target") == [b"1"]


def test_a_move_that_waits_for_the_homes_and_is_asked_again_is_done_once(queues: PublishNode) -> None:
    queues.silent.add(1)
    queues.restart_router()
    move(queues, "source", to("target"), b"1")
    move(queues, "source", to("target"), b"1")
    queues.validate()
    queues.homes[1].report()
    queues.settle()
    assert moved(queues, "source") == [[1, 1, []]]
    assert queues.payloads("target") == [b"1"]


@pytest.mark.parametrize("asks_again", [False, True])
def test_a_move_under_way_when_its_lane_gets_another_home_is_done_once(
    make_publish_node: Any, *, asks_again: bool
) -> None:
    """Both homes would be judged by what the target has, if nothing of the first one is there yet."""
    node: PublishNode = make_publish_node(3)
    node.queue("source", home=0)
    node.queue("target", home=1)
    before, gathering = node.homes[0], node.router.publishing.gathering
    asked: list[Any] = []
    gathering.ask = lambda number, then: asked.append(then)  # type: ignore[method-assign, assignment, misc]
    move(node, "source", to("target"), b"1")
    source = node.router.endpoints.lane(node.endpoint("source").lanes[0].lane_id)
    assert source is not None
    source[1].home = 2
    move(node, "source", to("target"), b"1", home=node.homes[2])
    if asks_again:  # it left before the lane did, and comes late
        move(node, "source", to("target"), b"1", home=before)
    for then in asked:
        then({}, node.now)
    node.settle()
    assert node.payloads("target") == [b"1"]
    assert before.moved == []
    assert len(node.homes[2].moved) == 1


def test_a_target_that_is_down_is_waited_for(queues: PublishNode) -> None:
    move(queues, "source", to("target"), b"1")
    queues.kill_worker(1)
    move(queues, "source", to("target"), b"2", first=2)
    assert moved(queues, "source") == [[1, 1, []]]
    queues.start_worker(1)
    assert moved(queues, "source") == [[2, 2, []]]
    assert queues.payloads("target") == [b"1", b"2"]


def test_a_source_that_is_deleted_meanwhile_is_not_answered(queues: PublishNode) -> None:
    queues.homes[1].commits = False
    move(queues, "source", to("target"), b"1")
    queues.drop("source")
    queues.commit()
    assert queues.homes[0].moved == []
    assert queues.payloads("target") == [b"1"]


def test_the_homes_forget_what_they_know_of_the_moves_of_a_source_that_is_deleted(
    queues: PublishNode,
) -> None:
    """The target stays, as a dead message queue does: each queue that is deleted would leave a record with it."""
    target = queues.homes[1].disk
    move(queues, "source", to("target"), b"1")
    queues.homes[1].commits = False
    move(queues, "source", to("target"), b"2", first=2)
    assert target.records
    queues.drop("source")
    queues.commit()
    assert queues.payloads("target") == [b"1", b"2"]
    assert target.records == {}


def test_a_partition_that_is_closed_gives_its_rows_to_the_others_whatever_the_quota(
    make_publish_node: Any,
) -> None:
    node = make_publish_node(2)
    node.queue("q", "a", home=[0, 1, 0], partition_count=3, access_type="non-exclusive", max_spool_usage_mb=1)
    body = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)
    publisher = node.publisher()
    publisher.publish(*[("a", body, MODE, [0, 0, None, f"k{n}"]) for n in range(100)])
    assert publisher.acked() == (100, [])
    closed = node.stored("q", 2)
    assert len(closed) > 10
    node.check_limits = lambda: None  # on its way a row counts twice
    lane = node.lane("q", 2)
    node.change("q", partition_count=2, homes=[0, 1, 0])
    endpoint = node.endpoint("q")
    (answer,) = [body[2:] for body in node.homes[0].moved]
    assert answer == [1, len(closed), []]
    fresh = [row for row in node.stored("q") if row.producer == wire.INTERNAL_PRODUCER | lane]
    assert len(fresh) == len(closed)
    node.homes[0].tell(lane)
    assert endpoint.bytes == 1_000_000


def test_what_comes_from_a_closed_partition_keeps_its_past_and_is_stored_once_whatever_the_count(
    make_publish_node: Any,
) -> None:
    """The answer to the first MOVE is lost with the router; when it is asked again there are fewer partitions."""
    node = make_publish_node(2)
    node.queue("q", "a", home=[1, 1, 1, 0], partition_count=4, access_type="non-exclusive")
    payloads = [b"k%d" % n for n in range(40)]
    node.publisher().publish(*[("a", key, MODE, [0, 0, None, key.decode()]) for key in payloads])
    closed, home = node.payloads("q", 3), node.homes[0]
    assert len(closed) > 3
    (segment,) = [segment for held in home.home.lanes for segment in held.lane.segments]
    home.loses = (wire.MOVED,)
    node.now += 5.0
    node.change("q", partition_count=3)
    there = [row for row in node.stored("q") if row.past is not None]
    assert sorted(row.payload for row in there) == sorted(closed)
    assert [row.past for row in there] == [[0, segment.stored_ms, 0, 0]] * len(closed)
    node.change("q", partition_count=2)
    node.restart_router()
    assert [body[2:] for body in node.homes[0].moved] == [[1, len(closed), []]]
    assert sorted(node.payloads("q")) == sorted(payloads)


@pytest.mark.parametrize("full", [1, 2])
def test_what_a_partition_holds_from_a_closed_one_is_not_refused_because_its_disk_is_full(
    make_publish_node: Any, full: int
) -> None:
    """Else its source would ask for it again, with other sequences, and it would be there twice."""
    node: PublishNode = make_publish_node(3)
    node.queue("q", "a", home=[1, 2, 0], partition_count=3, access_type="non-exclusive")
    payloads = [b"k%d" % n for n in range(40)]
    node.publisher().publish(*[("a", key, MODE, [0, 0, None, key.decode()]) for key in payloads])
    closed, home = node.payloads("q", 2), node.homes[0]
    home.loses = (wire.MOVED,)
    node.change("q", partition_count=2)
    node.homes[full].disk.spool.room_bytes = 0
    node.restart_router()
    assert node.router.stats()["spool"]["homes_full"] == [full]
    assert [body[2:] for body in node.homes[0].moved] == [[1, len(closed), []]]
    assert sorted(node.payloads("q")) == sorted(payloads)


def test_a_move_that_is_held_in_part_is_refused_the_rest_and_does_not_wait(make_publish_node: Any) -> None:
    """One partition of the target stored its row, the other one lost it with the router, and takes none now."""
    node: PublishNode = make_publish_node(3)
    node.queue("source", home=0)
    node.queue("target", home=[1, 2], access_type="non-exclusive", partition_count=2)
    keys = sorted(("a", "b", "c", "d"), key=lambda key: zlib.crc32(key.encode()) % 2)
    first, second = keys[-1], keys[0]
    node.homes[1].commits = False
    move(node, "source", to("target"), b"1", b"2", keys=[second, first])
    assert node.payloads("target") == [b"2"]
    node.restart_router()
    node.homes[1].commits = True
    node.change("target", ingress_enabled=False)
    move(node, "source", to("target"), b"1", b"2", keys=[second, first])
    assert moved(node, "source") == [[1, 2, [[1, errors.ENDPOINT_SHUTDOWN]]]]
    assert node.payloads("target") == [b"2"]
