"""Messages that move are in two endpoints for a moment, and count once: a full node can move its dead messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from router.ground.config import SpoolLimits
from tests.unit.router.limited_publishing import BODY, codes, rows

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher, PublishNode

SIZE = len(BODY) + wire.SPOOL_OVERHEAD_BYTES
FILE = 1


class Full:
    """100 messages in a queue, which fill what there is; some of them move to another one."""

    def __init__(self, node: PublishNode, **source: Any) -> None:
        self.node = node
        node.queue("source", "a", home=0, **source)
        node.queue("target", "b", home=1)
        self.publisher: Publisher = node.publisher()
        self.publisher.publish(*rows(100))
        assert codes(self.publisher) == []
        self.usage = node.router.publishing.usage
        self.lane = node.lane("source")

    def ask(self, count: int, first: int = 1, file: int | None = FILE) -> None:
        home = self.node.homes[0]
        batch = [[index, "t", wire.MODE_PERSISTENT, None, None, BODY] for index in range(count)]
        target = ["queue", "default", "target"]
        if file is not None:
            home.note_moving(self.lane, (first, count, count * SIZE))
        head = [home.incarnation, self.lane, first, target, count, None, {}, {}, file]
        home.send(wire.MOVE, head, wire.pack(batch))

    def finish(self, count: int) -> None:
        """What was acknowledged is deleted."""
        self.node.homes[0].note_moving(self.lane, None)
        self.node.consume("source", count)

    def refused(self) -> list[Any]:
        found = [refused for _, _, _, _, refused in self.node.homes[0].moved]
        self.node.homes[0].moved.clear()
        return found

    def publish(self, topic: str = "b", count: int = 1) -> list[int]:
        self.publisher.publish(*rows(count, topic))
        return codes(self.publisher)


def full(make: Any, what: str) -> Full:
    node = make(2, spool=SpoolLimits(max_usage_mb=1) if what == "node" else SpoolLimits())
    if what == "vpn":
        node.change_vpn(max_spool_usage_mb=1)
    return Full(node)


@pytest.mark.requirement("R171", "R172")
@pytest.mark.parametrize("what", ["node", "vpn"])
def test_a_full_node_moves_what_it_has_and_takes_nothing_more(make_publish_node: Any, what: str) -> None:
    one = full(make_publish_node, what)
    assert one.publish() == [errors.SPOOL_OVER_QUOTA]
    for first in (1, 11, 21):
        one.ask(10, first)
        assert one.refused() == [[]]
        assert one.usage.node.bytes == 100 * SIZE
        assert one.publish() == [errors.SPOOL_OVER_QUOTA]
        one.finish(10)
        assert one.usage.node.bytes == 100 * SIZE
        assert one.publish() == [errors.SPOOL_OVER_QUOTA]
    assert (one.node.endpoint("source").messages, one.node.endpoint("target").messages) == (70, 30)
    one.node.consume("target", 2)
    assert one.publish(count=3) == [errors.SPOOL_OVER_QUOTA]


@pytest.mark.requirement("R182")
def test_moved_messages_stay_in_their_spool_file(make_publish_node: Any) -> None:
    one = Full(make_publish_node(2, spool=SpoolLimits(max_files=1)))
    assert one.publish() == [errors.SPOOL_FILES_EXCEEDED], "the other home has no file"
    one.ask(10)
    assert one.refused() == [[]]
    assert {row.file for row in one.node.stored("target")} == {FILE}
    one.finish(10)
    one.node.consume("source", 90)
    assert len(one.usage.files) == 1
    one.node.consume("target", 10)
    assert len(one.usage.files) == 0
    assert one.publish() == []


def test_a_file_that_was_freed_meanwhile_is_one_more(make_publish_node: Any) -> None:
    node = make_publish_node(2, spool=SpoolLimits(max_files=1))
    node.silent.add(1)
    one = Full(node)
    node.restart_worker(1)
    one.ask(10, file=77)
    node.homes[1].report()
    assert one.refused() == [[[sequence, errors.SPOOL_FILES_EXCEEDED] for sequence in range(1, 11)]]


@pytest.mark.requirement("R171", "R173")
def test_what_the_target_refuses_goes_on_counting_at_the_source(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.node.change("target", max_message_bytes=len(BODY), ingress_enabled=False)
    one.ask(10)
    assert one.refused() == [[[sequence, errors.ENDPOINT_SHUTDOWN] for sequence in range(1, 11)]]
    assert one.usage.node.bytes == 100 * SIZE
    one.node.homes[0].note_moving(one.lane, None)
    one.node.homes[0].tell(one.lane)
    assert one.publish("a") == [errors.SPOOL_OVER_QUOTA]


def test_what_is_purged_meanwhile_is_not_taken_off_twice(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.ask(10)
    one.node.homes[0].note_moving(one.lane, (1, 4, 4 * SIZE))
    one.node.consume("source", 6)
    assert one.usage.node.bytes == 100 * SIZE, (
        "94, of which 4 are at the target too, with 6 that are there only"
    )
    one.finish(4)
    assert one.usage.node.bytes == 100 * SIZE


def test_messages_that_are_gone_at_the_source_before_they_are_judged_are_new(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.node.silent.add(1)
    one.node.restart_router()
    one.usage = one.node.router.publishing.usage
    one.ask(10)
    one.node.homes[0].note_moving(one.lane, (1, 4, 4 * SIZE))
    one.node.consume("source", 6)
    one.node.homes[1].report()
    assert one.refused() == [[[sequence, errors.SPOOL_OVER_QUOTA] for sequence in range(7, 11)]]


def test_a_source_that_comes_back_asks_again_and_counts_once(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.node.homes[1].commits = False
    one.ask(10)
    one.node.restart_worker(0)
    assert one.usage.node.bytes == 100 * SIZE
    one.ask(10)
    assert one.usage.node.bytes == 100 * SIZE
    one.node.commit()
    assert one.refused() == [[]]
    one.finish(10)
    assert one.usage.node.bytes == 100 * SIZE
    assert len(one.node.stored("target")) == 10


def test_a_new_router_counts_once_what_is_asked_for_again(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.ask(10)
    one.node.restart_router()
    one.usage = one.node.router.publishing.usage
    one.ask(10)
    assert one.usage.node.bytes == 100 * SIZE
    one.finish(10)
    assert one.usage.node.bytes == 100 * SIZE


@pytest.mark.parametrize("name", ["source", "target"])
def test_endpoints_that_are_deleted_meanwhile_take_their_messages_along(
    make_publish_node: Any, name: str
) -> None:
    one = full(make_publish_node, "node")
    one.ask(10)
    one.node.drop(name)
    assert one.usage.node.bytes == {"source": 10, "target": 100}[name] * SIZE
    one.node.router.publishing.validate()


def test_copies_are_new_messages(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.ask(1, file=None)
    assert one.refused() == [[[1, errors.SPOOL_OVER_QUOTA]]]
    one.node.consume("source", 1)
    one.ask(1, 2, file=None)
    assert one.refused() == [[]]
    assert one.usage.node.bytes == 100 * SIZE


def test_what_took_no_quota_needs_room(make_publish_node: Any) -> None:
    """A last-value queue counts nowhere."""
    node = make_publish_node(2, spool=SpoolLimits(max_usage_mb=1))
    node.queue("other", "c", home=0)
    filler = node.publisher("filler")
    filler.publish(*rows(95, "c"))
    one = Full(node, max_spool_usage_mb=0)
    one.ask(10)
    assert one.refused() == [[[sequence, errors.SPOOL_OVER_QUOTA] for sequence in range(6, 11)]]
    assert one.usage.node.bytes == 100 * SIZE


def test_a_queue_that_takes_quota_from_now_on_is_counted_right(make_publish_node: Any) -> None:
    one = full(make_publish_node, "node")
    one.ask(10)
    one.node.change("source", max_spool_usage_mb=0)
    one.node.homes[0].tell(one.lane)
    assert one.usage.node.bytes == 10 * SIZE
    one.node.change("source", max_spool_usage_mb=5000)
    one.node.homes[0].tell(one.lane)
    assert one.usage.node.bytes == 11 * SIZE, "rather too much: the last value is on its way too"
    one.finish(1)
    assert one.usage.node.bytes == 10 * SIZE


@pytest.mark.requirement("R173")
def test_a_partition_that_is_closed_adds_nothing_to_its_queue(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("q", "a", access_type="non-exclusive", partition_count=2, homes=[0, 1], max_spool_usage_mb=1)
    publisher = node.publisher()
    publisher.publish(*rows(100))
    lane = node.endpoint("q").lanes[1].lane_id
    account = node.router.publishing.usage.account(node.endpoint("q"))
    node.check_limits = lambda: None  # on its way a row counts twice
    node.homes[0].commits = False
    node.put("queue", "q", access_type="non-exclusive", partition_count=1, homes=[0, 1], max_spool_usage_mb=1)
    node.homes[1].tell(lane)
    assert node.homes[0].waiting, "the MOVE is at its new home, which has not stored it"
    assert (account.messages, account.bytes) == (100, 100 * SIZE)
    node.commit()
    node.homes[1].tell(lane)
    assert lane not in node.disks[1].lanes or not node.disks[1].lanes[lane]
    assert (account.messages, account.bytes) == (100, 100 * SIZE)
    node.consume("q", 1)
    publisher.publish(*rows(2))
    assert codes(publisher) == [errors.SPOOL_OVER_QUOTA]
