"""Acknowledged, and no endpoint took it: exactly those messages are named by the acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from router.sessions.producer import join_ranges

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher, PublishNode

pytestmark = pytest.mark.requirement("R277")


def named(publisher: Publisher) -> list[int]:
    """Take what was told: the sequences that no endpoint took."""
    ranges = [one for body in publisher.told() for one in body[4]]
    return [first + offset for first, count in ranges for offset in range(count)]


def test_what_no_queue_wants_is_named_with_or_without_direct_subscribers(spooling: PublishNode) -> None:
    spooling.queue("q", "taken")
    subscriber = spooling.client()
    subscriber.subscribe("direct")
    publisher = spooling.publisher()
    publisher.publish("taken", "direct", "taken", "nobody", "nobody")
    assert named(publisher) == [2, 4, 5]
    publisher.publish("taken")
    assert named(publisher) == []
    publisher.publish("direct")
    assert named(publisher) == [7]
    assert len(subscriber.payloads()) == 2


def test_a_round_that_nobody_wants_is_one_range(spooling: PublishNode) -> None:
    publisher = spooling.publisher()
    publisher.publish(*["nobody"] * 100)
    (body,) = publisher.told()
    assert body[1:] == [100, [], 0, [[1, 100]]]


def test_rounds_that_are_told_together_make_one_range(make_publish_node: Any) -> None:
    node = make_publish_node(1)
    node.queue("q", "taken")
    publisher = node.publisher()
    node.hold()
    publisher.publish("taken", "nobody")
    publisher.publish("nobody", "nobody")
    publisher.publish("nobody", "taken")
    node.commit()
    assert [body[4] for body in publisher.told()] == [[[2, 4]]]


def test_sequences_may_have_gaps(spooling: PublishNode) -> None:
    spooling.queue("q", "taken")
    publisher = spooling.publisher()
    publisher.publish("nobody", "taken", "nobody", "nobody", indices=[0, 4, 5, 9])
    assert named(publisher) == [1, 6, 10]
    publisher.publish("nobody", "nobody", indices=[0, 3], first=20)
    assert named(publisher) == [20, 23]


def test_rounds_cut_by_worker_are_judged_as_a_whole(make_publish_node: Any) -> None:
    node = make_publish_node(3)
    node.queue("q", *[f"t/{number}" for number in range(0, 60, 2)])
    publisher = node.publisher()
    publisher.publish(*[f"t/{number}" for number in range(60)])
    assert named(publisher) == [number + 1 for number in range(1, 60, 2)]


def test_refused_messages_are_refused_and_not_named(spooling: PublishNode) -> None:
    spooling.queue("down", "a", ingress_enabled=False)
    publisher = spooling.publisher()
    publisher.publish("a", "nobody", "#P2P/QUE/none")
    (body,) = publisher.told()
    assert [nack[:2] for nack in body[2]] == [[1, errors.ENDPOINT_SHUTDOWN], [3, errors.UNKNOWN_ENDPOINT]]
    assert body[4] == [[2, 1]]


def test_what_the_profile_refuses_for_want_of_a_match_is_not_named(spooling: PublishNode) -> None:
    spooling.change_profile(reject_no_subscription_match=True)
    subscriber = spooling.client()
    subscriber.subscribe("direct")
    publisher = spooling.publisher()
    publisher.publish("nobody", "direct")
    (body,) = publisher.told()
    assert [nack[:2] for nack in body[2]] == [[1, errors.NO_SUBSCRIPTION_MATCH]]
    assert body[4] == [[2, 1]], "a direct subscriber is a match, and no queue"


def test_what_every_endpoint_leaves_out_without_telling_is_named(spooling: PublishNode) -> None:
    spooling.queue("closed", "a", "b", ingress_enabled=False, reject_to_sender="never")
    spooling.queue("open", "b")
    publisher = spooling.publisher()
    publisher.publish("a", "b")
    assert named(publisher) == [1]
    assert spooling.sequences("open") == [2]


def test_what_an_exception_keeps_out_is_named(spooling: PublishNode) -> None:
    spooling.queue("q", "animals/f*", "!animals/fox")
    publisher = spooling.publisher()
    publisher.publish("animals/frog", "animals/fox")
    assert named(publisher) == [2]


def test_what_is_sent_again_is_named_unless_an_endpoint_may_have_it(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    publisher.publish("a", "nobody")
    again = publisher.reopen()
    again.publish("a", "nobody", "nobody", first=1)
    assert named(again) == [2, 3]
    assert spooling.sequences("q") == [1]
    spooling.change("q", subscriptions=[])
    later = again.reopen()
    later.publish("a", "nobody", first=1)
    assert named(later) == [2], "the queue has the first one"


def test_neighbours_become_one_range() -> None:
    assert join_ranges([], [(1, 1), (2, 1), (4, 2), (6, 1)]) == [(1, 2), (4, 3)]
    assert join_ranges([(1, 2)], [(3, 1), (5, 1)]) == [(1, 3), (5, 1)]
    assert join_ranges([(7, 1)], []) == [(7, 1)]
