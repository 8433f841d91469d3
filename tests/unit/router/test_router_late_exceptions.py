"""A queue that comes with exceptions while rounds are under way: what they were matched without counts all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium.topic import slot_of

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode


def topics_of(node: PublishNode, worker: int, count: int) -> list[str]:
    """Give topics that a worker matches."""
    table = node.router.shards.table
    names = (f"t/{number}" for number in range(1_000))
    return [name for name in names if table[slot_of(name)] == worker][:count]


@pytest.fixture
def node(make_publish_node: Any) -> PublishNode:
    """Give a node that has a queue for everything."""
    made: PublishNode = make_publish_node(2)
    made.queue("all", ">")
    return made


@pytest.mark.requirement("R122", "R126")
def test_what_was_matched_before_the_exception_is_kept_out(node: PublishNode) -> None:
    """The second round was matched at once, and waits for the first one, whose worker stands still."""
    (slow,), (unwanted, wanted) = topics_of(node, 1, 1), topics_of(node, 0, 2)
    publisher = node.publisher()
    node.pause(1)
    publisher.publish(slow)
    publisher.publish(unwanted, wanted)
    node.queue("q", f"!{unwanted}", ">")
    node.unpause(1)
    assert publisher.acked() == (3, [])
    assert [row.topic for row in node.stored("all")] == [slow, unwanted, wanted]
    assert [row.topic for row in node.stored("q")] == [slow, wanted]


@pytest.mark.requirement("R122", "R126")
def test_direct_messages_are_kept_out_too(node: PublishNode) -> None:
    (slow,), (unwanted, wanted) = topics_of(node, 1, 1), topics_of(node, 0, 2)
    client = node.client()
    node.pause(1)
    client.publish(slow)
    client.publish(unwanted, wanted)
    node.queue("q", f"!{unwanted}", ">")
    node.unpause(1)
    assert [row.topic for row in node.stored("q")] == [slow, wanted]


def test_who_is_kept_out_everywhere_matches_nothing(node: PublishNode) -> None:
    node.change_profile(reject_no_subscription_match=True)
    (slow,), (unwanted,) = topics_of(node, 1, 1), topics_of(node, 0, 1)
    publisher = node.publisher()
    node.pause(1)
    publisher.publish(slow)
    publisher.publish(unwanted)
    node.change("all", subscriptions=[">", "!t/*"])
    node.unpause(1)
    assert publisher.acked() == (2, [[n, errors.NO_SUBSCRIPTION_MATCH] for n in (1, 2)])


def test_what_is_sent_to_a_queue_by_name_is_not_kept_out(node: PublishNode) -> None:
    (slow,) = topics_of(node, 1, 1)
    publisher = node.publisher()
    node.pause(1)
    publisher.publish(slow)
    publisher.publish("#P2P/QUE/all")
    node.change("all", subscriptions=["!>"])
    node.unpause(1)
    assert [row.topic for row in node.stored("all")] == ["#P2P/QUE/all"]


def test_a_filter_counts_at_once_for_what_is_matched_later(node: PublishNode) -> None:
    (unwanted, wanted) = topics_of(node, 0, 2)
    node.queue("q", f"!{unwanted}", ">")
    node.publisher().publish(unwanted, wanted)
    assert [row.topic for row in node.stored("q")] == [wanted]
