"""Queues that change their number of partitions: what is sent again is stored once, whatever was on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher, PublishNode

KEYS = [f"key-{number}" for number in range(12)]
BOTH = {"access_type": "non-exclusive"}


def keyed(keys: list[str]) -> list[Any]:
    return [("a", key.encode(), wire.MODE_PERSISTENT, [0, 0, None, key]) for key in keys]


def everything(node: PublishNode) -> list[int]:
    """Give the sequences that were ever stored, in all lanes."""
    return sorted(sequence for disk in node.disks.values() for _, _, sequence in disk.log)


@pytest.fixture
def parted(make_publish_node: Any) -> PublishNode:
    """Give a node with a queue whose first two partitions have different homes."""
    node: PublishNode = make_publish_node(2)
    node.queue("q", "a", home=[0, 1, 0, 1, 0], partition_count=2, **BOTH)
    return node


@pytest.fixture
def publisher(parted: PublishNode) -> Publisher:
    return parted.publisher()


@pytest.mark.requirement("R190")
@pytest.mark.parametrize("rows", [keyed(KEYS), ["a"] * 12], ids=["with-keys", "without-keys"])
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_what_was_stored_under_another_number_is_acknowledged_and_not_stored_again(
    parted: PublishNode, publisher: Publisher, rows: list[Any], count: int
) -> None:
    publisher.publish(*rows)
    assert publisher.acked() == (12, [])
    parted.change("q", partition_count=count)
    parted.restart_router()
    again = publisher.reopen()
    again.publish(*rows, *keyed(["new"]), first=1)
    assert again.acked() == (13, [])
    assert everything(parted) == list(range(1, 14))


@pytest.mark.requirement("R177")
def test_what_was_refused_under_another_number_is_refused_again(
    parted: PublishNode, publisher: Publisher
) -> None:
    parted.change("q", ingress_enabled=False)
    publisher.publish(*keyed(KEYS))
    upto, nacks = publisher.acked()
    parted.change("q", ingress_enabled=True, partition_count=5)
    again = publisher.reopen()
    again.publish(*keyed(KEYS), first=1)
    assert again.acked() == (upto, nacks)
    assert len(nacks) == 12
    assert everything(parted) == []


def test_a_partition_that_was_closed_long_ago_is_still_asked(
    parted: PublishNode, publisher: Publisher
) -> None:
    publisher.publish(*keyed(KEYS))
    for count in (5, 1, 3, 1):
        parted.change("q", partition_count=count)
    parted.restart_router()
    again = publisher.reopen()
    again.publish(*keyed(KEYS), first=1)
    assert again.acked() == (12, [])
    assert everything(parted) == list(range(1, 13))


def test_while_something_of_before_is_not_on_disk_nothing_new_is_stored(
    parted: PublishNode, publisher: Publisher
) -> None:
    parted.queue("other", "b", home=0)
    elsewhere = parted.publisher("elsewhere")
    parted.hold()
    publisher.publish(*keyed(KEYS))
    parted.homes[1].commit()
    parted.change("q", partition_count=5)
    publisher.publish(*keyed(KEYS))
    elsewhere.publish("b")
    assert len(parted.homes[0].waiting) == 2, "others are not held up"
    assert parted.homes[1].stores[1:] == []
    assert parted.router.stats()["spool"]["rounds_waiting"] == 1
    parted.commit()
    assert publisher.acked() == (24, [])
    assert elsewhere.acked() == (1, [])
    assert sorted(parted.sequences("q")) == list(range(1, 25))


def test_a_message_that_was_lost_on_its_way_is_not_taken_for_one_that_was_stored_later(
    parted: PublishNode, publisher: Publisher
) -> None:
    """Without waiting 13 would be stored under 5 in the lane in which 1, lost with home and router, belongs under 5."""
    parted.hold()
    publisher.publish(*keyed(KEYS))
    parted.homes[1].commit()
    parted.change("q", partition_count=5)
    publisher.publish(*keyed(KEYS))
    parted.homes[1].commit()
    parted.restart_router()
    parted.commit()
    again = publisher.reopen()
    again.publish(*keyed(KEYS), *keyed(KEYS), first=1)
    assert again.acked() == (24, [])
    assert everything(parted) == list(range(1, 25))


def test_who_waits_and_loses_its_session_is_stored_when_it_comes_back(
    parted: PublishNode, publisher: Publisher
) -> None:
    parted.hold()
    publisher.publish(*keyed(KEYS))
    parted.change("q", partition_count=3)
    publisher.publish(*keyed(KEYS))
    (session,) = parted.router.sessions
    parted.router.sessions.close(session, errors.error_for(errors.INTERNAL), parted.now)
    parted.commit()
    again = publisher.reopen()
    assert again.last == 12
    again.publish(*keyed(KEYS), *keyed(KEYS), first=1)
    assert again.acked() == (24, [])
    assert everything(parted) == list(range(1, 25))


def test_a_queue_that_is_deleted_meanwhile_holds_nobody_up(parted: PublishNode, publisher: Publisher) -> None:
    parted.queue("other", "a", home=1)
    parted.hold()
    publisher.publish(*keyed(KEYS))
    parted.change("q", partition_count=3)
    publisher.publish(*keyed(KEYS))
    parted.drop("q")
    parted.commit()
    assert publisher.acked() == (24, [])
    assert parted.sequences("other") == list(range(1, 25))


def test_a_home_that_is_down_is_waited_for(parted: PublishNode, publisher: Publisher) -> None:
    parted.kill_worker(0)
    publisher.publish(*keyed(KEYS))
    parted.change("q", partition_count=3)
    publisher.publish(*keyed(KEYS))
    assert publisher.told() == []
    parted.start_worker(0)
    assert publisher.acked() == (24, [])
    assert everything(parted) == list(range(1, 25))


def test_direct_messages_wait_for_nobody(parted: PublishNode, publisher: Publisher) -> None:
    parted.hold()
    publisher.publish(*keyed(KEYS))
    parted.change("q", partition_count=3)
    parted.client().publish("a")
    waiting = [body for home in parted.homes.values() for body in home.waiting]
    assert [body[3] for body in waiting].count(None) == 1
    parted.commit()
