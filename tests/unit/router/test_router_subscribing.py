"""A request with many filters is done in steps: its session waits, in order, and nobody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from router.subscriptions.subscriptions import STEP_MAX

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode

MANY = wire.MAX_FILTERS_PER_REQUEST

pytestmark = pytest.mark.requirement("R278")


@pytest.fixture
def small_steps(node: WiredNode) -> WiredNode:
    node.router.subscriptions.step_max = 10
    _step(node)
    return node


def _step(node: WiredNode) -> None:
    node.router.tick(node.now)
    node.settle()


def _offer(client: FakeClient, operation: bytes, header: Any, *batches: bytes) -> bool:
    """Send a frame once, as a socket brings it, in a turn of its own."""
    node = client.node
    taken = node.router.client_frames(client.routing_id, [operation, wire.pack(header), *batches], node.now)
    _step(node)
    return taken


def _filters(count: int, name: str = "devices") -> list[list[Any]]:
    return [[f"{name}/{at}/*", 0] for at in range(count)]


def _count(client: FakeClient) -> int:
    return len(client.node.router.sessions.by_routing_id[client.routing_id].subscriptions)


def test_a_step_is_small_enough_for_everybody() -> None:
    assert STEP_MAX < MANY, "the largest request takes several"


def test_a_request_takes_several_steps_and_is_answered_as_a_whole(small_steps: WiredNode) -> None:
    client = small_steps.client()
    assert _offer(client, wire.SUBSCRIBE, [1, [*_filters(24), ["", 0]], None])
    for done in (10, 20):
        assert _count(client) == done
        assert client.take() == (b"", None)
        small_steps.validate()
        _step(small_steps)
    assert client.take() == (
        wire.SUBACK,
        [1, [*[None] * 24, [errors.INVALID_FILTER, "'' has 0 bytes, allowed are 1 to 250"]]],
    )
    assert small_steps.router.tick(small_steps.now) > small_steps.now, "there is nothing more to do"


def test_what_its_session_sends_next_waits_and_what_others_send_does_not(small_steps: WiredNode) -> None:
    client, other = small_steps.client(), small_steps.client()
    other.subscribe("news")
    _step(small_steps)
    assert _offer(client, wire.SUBSCRIBE, [1, _filters(15), None])
    batch = wire.pack([[0, "news", 0, None, None, b"late"]])
    late = (wire.PUBLISH, [1, 0, False, [[0, 1]]], batch)
    assert not _offer(client, *late)
    other.publish(("news", b"early"))
    assert other.payloads() == [b"early"]
    _step(small_steps)
    assert _offer(client, *late)
    assert client.take() == (wire.SUBACK, [1, [None] * 15])
    assert other.payloads() == [b"late"]


def test_a_client_that_is_busy_is_alive(small_steps: WiredNode) -> None:
    client = small_steps.client()
    session = small_steps.router.sessions.by_routing_id[client.routing_id]
    _offer(client, wire.SUBSCRIBE, [1, _filters(15), None])
    small_steps.now += 2
    assert not _offer(client, wire.PING, [1])
    assert session.last_heard == small_steps.now


def test_unsubscribing_takes_steps_too(small_steps: WiredNode) -> None:
    client, publisher = small_steps.client(), small_steps.client()
    client.send(wire.SUBSCRIBE, [1, _filters(25), None])
    client.received.clear()
    _step(small_steps)
    assert _offer(client, wire.UNSUBSCRIBE, [2, _filters(25), None])
    assert _count(client) == 15
    publisher.publish("devices/9/x", "devices/10/x")
    assert client.topics() == ["devices/10/x"]
    _step(small_steps)
    _step(small_steps)
    assert client.take() == (wire.SUBACK, [2, [None] * 25])
    assert len(small_steps.router.interest) == 0
    small_steps.validate()


def test_whoever_asks_for_one_filter_does_not_wait_for_those_who_ask_for_many() -> None:
    """A username has one turn, however many sessions it has."""
    from tests.unit.router.wired_node import WiredNode, snapshot

    node = WiredNode(rows=snapshot(("username", "default", "many", {}), ("username", "default", "one", {})))
    node.router.subscriptions.step_max = 64
    _step(node)
    busy = [node.client(username="many") for _ in range(20)]
    for client in busy:
        _offer(client, wire.SUBSCRIBE, [1, _filters(MANY, client.routing_id.hex()), None])
    one = node.client(username="one")
    _offer(one, wire.SUBSCRIBE, [1, [["a/*", 0]], None])
    _step(node)
    assert one.take() == (wire.SUBACK, [1, [None]])
    for _ in range(20 * MANY // 64):
        _step(node)
    assert [client.take() for client in busy] == [(wire.SUBACK, [1, [None] * MANY])] * 20
    node.validate()


def test_a_client_that_leaves_in_the_middle_leaves_nothing(small_steps: WiredNode) -> None:
    client = small_steps.client()
    _offer(client, wire.SUBSCRIBE, [1, _filters(100), None])
    small_steps.router.unreachable(client.routing_id, 0, small_steps.now, blocked=False)
    for _ in range(3):
        _step(small_steps)
        small_steps.validate()
    router = small_steps.router
    assert (len(router.interest), router.subscriptions.count, router.memory.bytes) == (0, 0, 0)
    assert client.take() == (b"", None)


def test_a_manager_hears_that_its_target_left_in_the_middle(small_steps: WiredNode) -> None:
    from cluster import objects

    manager, target = small_steps.client(), small_steps.client(client_name="target")
    attributes = objects.complete("username", {"subscription_manager": True})
    small_steps.router.operators.put_object("username", "default", "default", attributes, small_steps.now)
    assert _offer(manager, wire.SUBSCRIBE, [1, _filters(30), "target"])
    assert _count(target) == 10
    small_steps.router.unreachable(target.routing_id, 0, small_steps.now, blocked=False)
    for _ in range(3):
        _step(small_steps)
    operation, (number, answers) = manager.take()
    assert (operation, number) == (wire.SUBACK, 1)
    assert answers[:10] == [None] * 10
    assert [answer[0] for answer in answers[10:]] == [errors.UNKNOWN_CLIENT_NAME] * 20
    small_steps.validate()


def test_long_filters_take_more_of_a_step_than_short_ones(small_steps: WiredNode) -> None:
    client = small_steps.client()
    long = ["/".join([f"{at:02}", *["x"] * 120, "*"]) for at in range(10)]
    _offer(client, wire.SUBSCRIBE, [1, [[text, 0] for text in long], None])
    assert _count(client) == 3


def test_filters_of_endpoints_are_judged_in_the_same_turns(small_steps: WiredNode) -> None:
    client = small_steps.client()
    router = small_steps.router
    texts = [text for text, _ in _filters(24)]
    wish = {"name": "q", "attributes": {"subscriptions": texts}}
    assert _offer(client, wire.REQUEST, [1, "endpoint.create", wish])
    session = router.sessions.by_routing_id[client.routing_id]
    for is_busy in (True, True, False):
        assert session.is_busy is is_busy
        assert len(router.asks) == (0 if is_busy else 1)
        small_steps.validate()
        _step(small_steps)
    refused = {"name": "q", "attributes": {"subscriptions": [*texts[:12], "", *texts]}}
    assert _offer(client, wire.REQUEST, [2, "endpoint.create", refused])
    assert session.is_busy
    _step(small_steps)
    assert not session.is_busy
    assert client.take() == (wire.ANSWER, [2, errors.INVALID_FILTER, "'' has 0 bytes, allowed are 1 to 250"])
