"""Limits hold while lanes go from one home to another: what is there counts once, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from cluster import objects
from router.ground.config import SpoolLimits
from router.operators import describe_endpoints
from tests.unit.router.limited_publishing import codes, rows
from tests.unit.router.publish_rig import answer_to, ask

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher, PublishNode

pytestmark = pytest.mark.requirement("R171", "R172", "R173", "R182")


class Handover:
    """A queue whose home, worker 1, leaves; its new one, worker 0, has not read the spool yet."""

    def __init__(self, node: PublishNode, **attributes: Any) -> None:
        self.node = node
        node.queue("q", "a", home=1, **attributes)
        self.lane = node.lane("q")
        self.publisher: Publisher = node.publisher()

    def begin(self) -> None:
        self.node.put("queue", "q", homes=[0])

    def end_old(self) -> None:
        """Worker 1 is let go."""
        self.node.router.scaling.begin(1, self.node.now)
        self.node.settle()
        assert len(self.node.router.shards.shards) == 1
        if 1 in self.node.homes:
            self.node.kill_worker(1)

    def take_over(self) -> None:
        """Worker 0 has everything, and says so."""
        self.node.hand_over()

    def publish(self, count: int) -> list[int]:
        self.publisher.publish(*rows(count))
        return codes(self.publisher)


@pytest.fixture
def handover(make_publish_node: Any) -> Handover:
    return Handover(make_publish_node(2), max_spool_usage_mb=1)


def test_what_the_old_home_told_counts_until_the_new_one_has_it(handover: Handover) -> None:
    assert handover.publish(60) == []
    handover.begin()
    assert handover.publish(41) == [errors.SPOOL_OVER_QUOTA]
    handover.end_old()
    assert handover.publish(1) == [errors.SPOOL_OVER_QUOTA]
    assert handover.node.endpoint("q").messages == 100
    handover.take_over()
    assert handover.node.endpoint("q").messages == 100
    assert handover.publish(1) == [errors.SPOOL_OVER_QUOTA]
    handover.node.consume("q", 3)
    assert handover.publish(3) == []


def test_what_was_on_its_way_to_the_old_home_counts_too(handover: Handover) -> None:
    handover.node.homes[1].commits = False
    handover.publish(60)
    handover.begin()
    handover.publish(41)
    handover.node.homes[1].commit()
    assert codes(handover.publisher) == [errors.SPOOL_OVER_QUOTA]
    assert handover.publish(1) == [errors.SPOOL_OVER_QUOTA]
    handover.end_old()
    handover.take_over()
    assert len(handover.node.stored("q")) == 100


@pytest.mark.requirement("R163")
def test_the_new_home_gets_nothing_while_the_old_one_has_not_stored_what_came_before(
    handover: Handover,
) -> None:
    node = handover.node
    node.queue("other", "b", home=0)
    elsewhere = node.publisher("elsewhere")
    node.homes[1].commits = False
    handover.publish(2)
    handover.begin()
    handover.publish(2)
    elsewhere.publish("b")
    assert elsewhere.acked() == (1, []), "others are not held up"
    assert len(node.homes[0].stores) == 1, "that of others"
    node.homes[1].commit()
    assert handover.publisher.acked() == (4, [])
    handover.end_old()
    handover.take_over()
    assert len(node.stored("q")) == 4


def expect_all_after_the_old_home_died(handover: Handover) -> None:
    """Kill the old home with what it had; the publisher sends its four messages again, and each is stored once."""
    node = handover.node
    node.kill_worker(1)
    handover.end_old()
    handover.take_over()
    again = handover.publisher.reopen()
    again.publish(*rows(4), first=1)
    assert again.acked() == (4, [])
    assert node.sequences("q") == [1, 2, 3, 4]


@pytest.mark.requirement("R190")
def test_what_was_lost_with_the_old_home_is_not_taken_for_what_the_new_one_stored(handover: Handover) -> None:
    node = handover.node
    node.homes[1].commits = False
    handover.publish(2)
    handover.begin()
    handover.publish(2)
    expect_all_after_the_old_home_died(handover)


@pytest.mark.requirement("R177", "R190")
def test_a_refusal_that_was_lost_with_the_old_home_is_not_taken_for_stored(handover: Handover) -> None:
    node = handover.node
    node.change("q", ingress_enabled=False)
    node.homes[1].commits = False
    handover.publish(2)
    node.change("q", ingress_enabled=True)
    handover.begin()
    handover.publish(2)
    expect_all_after_the_old_home_died(handover)


def test_others_go_on_when_the_old_home_left_without_storing_what_it_had(handover: Handover) -> None:
    node = handover.node
    other = node.publisher("other")
    node.homes[1].commits = False
    handover.publish(2)
    handover.begin()
    other.publish(*rows(2))
    node.kill_worker(1)
    handover.end_old()
    assert other.acked() == (2, [])


def test_what_a_worker_stored_and_did_not_say_before_it_died_may_be_there(handover: Handover) -> None:
    node = handover.node
    other = node.publisher("other")
    node.homes[1].commits = False
    handover.publish(60)
    node.homes[1].commit_silently()
    handover.begin()
    node.kill_worker(1)
    handover.end_old()
    assert handover.publisher.client.closed_with() == errors.SHARD_UNAVAILABLE
    other.publish(*rows(41))
    assert codes(other) == [errors.SPOOL_OVER_QUOTA]
    handover.take_over()
    assert len(node.stored("q")) == 100


def test_what_a_worker_did_not_store_counts_no_more_when_all_is_known(handover: Handover) -> None:
    node = handover.node
    node.homes[1].commits = False
    handover.publish(60)
    handover.begin()
    node.kill_worker(1)
    handover.end_old()
    handover.take_over()
    assert node.endpoint("q").messages == 0
    assert len(node.router.publishing.usage.files) == 0


def test_a_router_that_was_not_there_admits_nothing_before_all_is_counted(handover: Handover) -> None:
    handover.publish(60)
    handover.begin()
    handover.end_old()
    handover.node.restart_router()
    client = handover.node.client()
    number = ask(client, "producer.open", name="other", window=255, resume=False)
    assert answer_to(client, number) is None, "what a producer stored is not known either"
    handover.take_over()
    assert answer_to(client, number) is not None
    publisher = handover.node.publisher()
    publisher.publish(*rows(41), first=publisher.last + 1)
    assert codes(publisher) == [errors.SPOOL_OVER_QUOTA]
    assert len(handover.node.stored("q")) == 100


def test_a_new_home_that_begins_anew_is_waited_for(handover: Handover) -> None:
    """It had told all, and its successor has to count again."""
    node = handover.node
    handover.publish(60)
    handover.begin()
    handover.end_old()
    node.lets_adopt = True
    node.now += 1.0
    for _ in range(2):
        node.homes[0].tick()
    node.lets_adopt = False
    node.restart_worker(0)
    handover.publisher.publish(*rows(41))
    assert handover.publisher.acked() == (0, [])
    handover.take_over()
    assert codes(handover.publisher) == [errors.SPOOL_OVER_QUOTA]


@pytest.mark.requirement("R190")
def test_what_a_producer_stored_is_asked_again_of_who_took_the_lane_over_meanwhile(
    handover: Handover,
) -> None:
    """The new home has answered before it had the lane, and the old one has parted with it when it answers."""
    node = handover.node
    handover.publisher.publish("a")
    client = handover.publisher.client
    node.kill_worker(1)
    number = ask(client, "producer.open", name="p", window=255, resume=False)
    handover.begin()
    node.start_worker(1)
    assert answer_to(client, number) is None
    handover.take_over()
    again = handover.publisher.reopen()
    assert again.last == 1
    again.publish("a", first=1)
    assert again.acked() == (1, [])
    assert len(node.stored("q")) == 1


def test_a_lane_that_is_deleted_meanwhile_holds_nobody_up(handover: Handover) -> None:
    handover.begin()
    handover.end_old()
    handover.node.restart_router()
    handover.node.queue("r", "a")
    client = handover.node.client()
    number = ask(client, "producer.open", name="other", window=255, resume=False)
    assert answer_to(client, number) is None
    handover.node.drop("q")
    handover.node.router.publishing.sweep(handover.node.now, handover.node.router.flows.ends.at_home)
    handover.node.settle()
    assert answer_to(client, number) is not None
    publisher = handover.node.publisher("other")
    publisher.publish("a")
    assert publisher.acked() == (1, [])


def test_a_retired_partition_is_not_empty_because_its_new_home_has_not_read_it(
    make_publish_node: Any,
) -> None:
    node = make_publish_node(2)
    node.queue("q", "a", access_type="non-exclusive", partition_count=2, homes=[0, 1])
    publisher = node.publisher()
    publisher.publish(*rows(60))
    lane = node.endpoint("q").lanes[1].lane_id
    held = len(node.disks[1].lanes[lane])
    assert held
    node.put("queue", "q", partition_count=1, homes=[0, 0])
    node.homes[0].tell(lane)
    assert [one["lane_id"] for one in next(describe_endpoints([node.endpoint("q")], 1.0))["lanes"]][1:] == [
        lane
    ]
    assert node.endpoint("q").messages == 60


def test_spool_files_of_the_old_home_are_used_until_others_tell_them(make_publish_node: Any) -> None:
    node = make_publish_node(2, spool=SpoolLimits(max_files=2))
    handover = Handover(node)
    assert handover.publish(10) == []
    files = node.router.publishing.usage.files
    assert len(files) == 1
    handover.begin()
    handover.end_old()
    assert len(files) == 1
    assert handover.publish(10) == [], "the second"
    assert len(files) == 2
    for _ in range(4):
        assert handover.publish(200) == []
    assert handover.publish(1) == [errors.SPOOL_FILES_EXCEEDED]
    handover.take_over()
    assert len(files) == 2
    node.consume("q", 10)
    assert len(files) == 1
    assert handover.publish(1) == []


def test_a_home_is_settled_when_it_has_confirmed_its_lanes(make_publish_node: Any) -> None:
    node = make_publish_node(2)

    def settled() -> list[int]:
        told: list[int] = node.router.stats()["spool"]["homes_settled"]
        return told

    assert settled() == [0, 1]
    node.homes[1].holds = (wire.LANES_CONFIRM,)
    node.queue("q", "a", home=1)
    assert settled() == [0]
    node.homes[1].report()
    assert settled() == [0, 1]
    node.kill_worker(1)
    assert settled() == [0]


def test_a_worker_that_was_to_leave_and_is_wanted_again_is_a_home_again(make_publish_node: Any) -> None:
    """Its process has not been stopped by then, so it does not announce itself anew."""
    node = make_publish_node(2)
    node.queue("q", "a", home=1)
    publisher = node.publisher()
    publisher.publish("a")
    node.put("queue", "q", homes=[0])
    for workers in (1, 2):
        node.router.scaling.begin(workers, node.now)
        node.settle()
    node.hand_over()
    node.queue("r", "b", home=1)
    publisher.publish("a", "b", "b")
    assert publisher.acked() == (4, [])
    assert (len(node.stored("q")), len(node.stored("r"))) == (2, 2)


def test_who_waits_for_a_home_that_leaves_before_it_has_confirmed_is_answered(make_publish_node: Any) -> None:
    """It was down when the queue was made, and its lanes have another home when it would come back."""
    node = make_publish_node(2)
    node.kill_worker(1)
    attributes = objects.complete("queue", {"id": 1, "homes": [1], "subscriptions": ["a"]})
    answers: list[str] = []
    put = node.router.operators.put_object
    put("queue", "default", "q", attributes, node.now, lambda: answers.append("made"))
    put("queue", "default", "q", {**attributes, "homes": [0]}, node.now)
    node.settle()
    assert answers == []
    node.router.scaling.begin(1, node.now)
    node.settle()
    assert answers == ["made"]
