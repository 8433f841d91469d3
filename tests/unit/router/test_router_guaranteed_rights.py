"""Publish rules that change between a first sending and the next: what was stored keeps its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode


def test_what_endpoints_hold_is_acknowledged_although_it_is_forbidden_now(spooling: PublishNode) -> None:
    spooling.queue("q", "a", "b")
    subscriber = spooling.client()
    subscriber.subscribe("a", "b", "c")
    publisher = spooling.publisher()
    publisher.publish("a", "b", "a")
    spooling.restart_router()
    spooling.forbid("a")
    subscriber = spooling.client()
    subscriber.subscribe("a", "b", "c")
    again = publisher.reopen()
    again.publish("a", "b", "a", "a", "b", first=1)
    assert again.acked() == (5, [[4, errors.PUBLISH_DENIED]])
    assert spooling.sequences("q") == [1, 2, 3, 5]
    assert subscriber.topics() == ["b", "b"], "what is forbidden now reaches nobody"
    again.publish("a", "b")
    assert again.acked() == (7, [[6, errors.PUBLISH_DENIED]])


def test_what_some_hold_is_completed(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("near", "a", home=0)
    node.queue("far", "a", home=1)
    publisher = node.publisher()
    node.homes[1].commits = False
    publisher.publish("a")
    node.restart_router()
    node.forbid("a")
    node.commit()
    again = publisher.reopen()
    again.publish("a", "a", first=1)
    assert again.acked() == (2, [[2, errors.PUBLISH_DENIED]])
    assert (node.sequences("near"), node.sequences("far")) == ([1], [1])


def test_what_was_admitted_before_is_not_denied(spooling: PublishNode) -> None:
    """Something behind it is stored and does not say that it was refused: it was admitted under other rules."""
    spooling.queue("q", "a", "e/*", "!e/x")
    subscriber = spooling.client()
    publisher = spooling.publisher()
    publisher.publish("nowhere", "e/x", "a")
    spooling.forbid("nowhere", "e/x")
    subscriber.subscribe("nowhere")
    again = publisher.reopen()
    again.publish("nowhere", "e/x", "a", "e/x", first=1)
    assert again.acked() == (4, [[4, errors.PUBLISH_DENIED]])
    assert spooling.sequences("q") == [3]
    assert subscriber.topics() == []
    assert spooling.router.stats()["discards"]["publish-topic-acl"] == 3


def test_what_was_admitted_and_nobody_knows_of_is_denied(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    publisher.publish("a")
    spooling.drop("q")
    spooling.queue("q", "a")
    spooling.forbid("a")
    again = publisher.reopen()
    again.publish("a", first=1)
    assert again.acked() == (1, [[1, errors.PUBLISH_DENIED]])
    assert spooling.sequences("q") == []


def test_what_a_queue_holds_that_matches_no_more_is_not_denied(spooling: PublishNode) -> None:
    """A nack would say that it is nowhere."""
    spooling.queue("before", "a")
    publisher = spooling.publisher()
    publisher.publish("a")
    spooling.change("before", subscriptions=[])
    spooling.queue("now", "a")
    spooling.forbid("a")
    again = publisher.reopen()
    again.publish("a", first=1)
    assert again.acked() == (1, [])
    assert (spooling.sequences("before"), spooling.sequences("now")) == ([1], [1])


def test_a_refusal_of_before_keeps_its_code(spooling: PublishNode) -> None:
    spooling.queue("q", "a", "b", ingress_enabled=False)
    publisher = spooling.publisher()
    publisher.publish("a", "b")
    spooling.change("q", ingress_enabled=True)
    spooling.forbid("a")
    again = publisher.reopen()
    again.publish("a", "b", first=1)
    assert again.acked() == (2, [[1, errors.ENDPOINT_SHUTDOWN], [2, errors.ENDPOINT_SHUTDOWN]])


def test_rules_that_did_not_change_deny_as_ever(spooling: PublishNode) -> None:
    spooling.queue("q", ">")
    spooling.forbid("a")
    publisher = spooling.publisher()
    publisher.publish("a", "b")
    again = publisher.reopen()
    again.publish("a", "b", "a", "#P2P/INB/x/1", first=1)
    assert again.acked() == (4, [[1, errors.PUBLISH_DENIED], [3, errors.PUBLISH_DENIED]])
    assert spooling.sequences("q") == [2]


def test_what_was_stored_for_a_subscription_that_went_is_no_mismatch(spooling: PublishNode) -> None:
    spooling.change_profile(reject_no_subscription_match=True)
    spooling.queue("q", "a", "b")
    publisher = spooling.publisher()
    publisher.publish("a", "b")
    spooling.change("q", subscriptions=["b"])
    again = publisher.reopen()
    again.publish("a", "b", "a", first=1)
    assert again.acked() == (3, [[3, errors.NO_SUBSCRIPTION_MATCH]])
