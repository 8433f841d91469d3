"""Subscription managers: what they may do for other clients, and that it is never more than subscribing directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from tests.unit.router.publish_rig import request
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode
    from tests.unit.router.wired_node import FakeClient, WiredNode

BOSS = ("username", "default", "boss", {"subscription_manager": True})


@pytest.fixture
def node(make_node: Any) -> WiredNode:
    few = ("profile", "default", "few", {"max_subscription_count": 3})
    made: WiredNode = make_node(
        1, snapshot(BOSS, few, ("username", "default", "ward", {"client_profile": "few"}))
    )
    return made


@pytest.fixture
def boss(node: WiredNode) -> FakeClient:
    return node.client(username="boss", client_name="boss")


def level(node: WiredNode, client: FakeClient) -> float:
    """Give what a client may still ask for at this moment."""
    bucket = node.router.sessions.by_routing_id[client.routing_id].bucket
    assert bucket is not None
    return bucket.level


@pytest.mark.requirement("R63")
def test_subscribing_for_another_costs_the_manager_what_subscribing_for_itself_does(
    node: WiredNode, boss: FakeClient
) -> None:
    node.client(client_name="target")
    filters = [f"f/{n}" for n in range(100)]
    levels = [level(node, boss)]
    assert boss.subscribe(*filters) == [None] * 100
    levels.append(level(node, boss))
    assert boss.subscribe(*filters, client="target") == [None] * 100
    levels.append(level(node, boss))
    assert levels[0] - levels[1] == levels[1] - levels[2] > 0


@pytest.mark.requirement("R65")
def test_what_a_manager_added_counts_in_the_limit_of_its_client_and_can_be_removed_by_it(
    node: WiredNode, boss: FakeClient
) -> None:
    ward = node.client(username="ward", client_name="ward")
    assert boss.subscribe("a", "b", "c", client="ward") == [None] * 3
    assert ward.subscribe("d")[0][0] == errors.MAX_SUBSCRIPTIONS_EXCEEDED
    assert boss.subscribe("d", client="ward")[0][0] == errors.MAX_SUBSCRIPTIONS_EXCEEDED
    assert boss.subscribe("a", client="ward") == [None], "it has that one already"
    assert ward.unsubscribe("a") == [None]
    assert ward.subscribe("d") == [None]
    boss.publish("a", "b", "d")
    assert [row[1] for row in ward.rows()] == ["b", "d"]


@pytest.mark.requirement("R60")
def test_a_manager_has_no_control_over_guaranteed_messages_of_others(make_publish_node: Any) -> None:
    node: PublishNode = make_publish_node(1, snapshot(BOSS))
    node.queue("q", "a", owner="somebody", permission="no-access")
    boss = node.client(username="boss", client_name="boss")
    node.client(client_name="target")
    for filter_text in ("#P2P/QUE/q", "#P2P/QUE/*", "#P2P/>"):
        assert boss.subscribe(filter_text, client="target")[0][0] == errors.RESERVED_TOPIC
    assert boss.subscribe("b", client="q")[0][0] == errors.UNKNOWN_CLIENT_NAME
    filters = {"name": "q", "filters": ["b"]}
    assert request(boss, "endpoint.subscribe", **filters)[0] == errors.PERMISSION_DENIED
    assert request(boss, "endpoint.subscribe", **filters, for_client="target")[0] == errors.INVALID_ARGUMENT
    assert request(boss, "flow.bind", name="q")[0] == errors.PERMISSION_DENIED
    assert request(boss, "flow.bind", name="q", for_client="target")[0] == errors.INVALID_ARGUMENT
    assert request(boss, "producer.open", name="p", for_client="target")[0] == errors.INVALID_ARGUMENT
