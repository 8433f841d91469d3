"""Bridges at the router: who may come, and what only they may say of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.topic import slot_of
from cluster import objects
from router.ground.config import Identity
from tests.unit.router.wired_node import WiredNode, snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient

IDENTITY = Identity(node_id="id-n", cluster="c", secret="outside", local_secret="inside")
ROWS = snapshot(
    ("vpn", "", "sales", {}),
    ("profile", "sales", "default", {"allow_bridge_connections": True}),
    ("username", "sales", "default", {}),
    ("link", "", "friend", {}),
)


@pytest.fixture
def node() -> Any:
    made = WiredNode(2, ROWS, name="n", identity=IDENTITY)
    yield made
    made.validate()


def says(**changes: Any) -> dict[str, Any]:
    return {"name": "b", "vpn": "default", "node": "n", "node_id": "id-n", "incarnation": 1, **changes}


def hello_far(remote: str = "sales", **changes: Any) -> dict[str, Any]:
    return {"version": 1, "vpn": remote, "bridge": says(**changes), "credit": [1 << 40, 1 << 40]}


def hello_own(**fields: Any) -> dict[str, Any]:
    header = {
        "version": 1,
        "username": wire.BRIDGE_USERNAME,
        "behalf": {"secret": "inside"},
        "bridge": says(),
    }
    return {**header, **fields}


def come(node: WiredNode, hello: dict[str, Any]) -> tuple[FakeClient, dict[str, Any]]:
    client = node.connection("")
    client.send(wire.HELLO, hello)
    operation, welcome = client.take()
    assert operation == wire.WELCOME, welcome
    return client, welcome


def refused(node: WiredNode, hello: dict[str, Any]) -> int | None:
    client = node.connection("")
    client.send(wire.HELLO, hello)
    return client.closed_with()


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (hello_far("default", vpn="sales"), errors.BRIDGE_NOT_ALLOWED),
        (hello_far(vpn="sales"), errors.BRIDGE_TO_ITSELF),
        (hello_far(node_id="id-other"), errors.BRIDGE_TO_ITSELF),
        (hello_far(node="friend", node_id="id-friend", vpn="sales"), errors.BRIDGE_TO_ITSELF),
        (hello_far("nowhere"), errors.UNAUTHORIZED),
        (hello_far(name=""), errors.MALFORMED_FRAME),
        (hello_own(behalf={"secret": "guessed"}), errors.UNAUTHORIZED),
        (hello_own(behalf={"secret": "outside"}), errors.UNAUTHORIZED),
        (hello_own(behalf={"secret": ""}), errors.UNAUTHORIZED),
        (hello_own(behalf=None, password="inside"), errors.UNAUTHORIZED),
        (hello_own(bridge=None), errors.MALFORMED_FRAME),
        (hello_own(vpn="nowhere"), errors.VPN_NOT_ALLOWED),
        ({"version": 1, "client_name": "#bridge/n/default/b"}, errors.INVALID_CLIENT_NAME),
    ],
)
def test_who_may_not_come_is_told_why(node: WiredNode, hello: dict[str, Any], code: int) -> None:
    assert refused(node, hello) == code


def test_a_refused_bridge_is_one_event_of_its_message_vpn(node: WiredNode) -> None:
    for _ in range(3):
        refused(node, hello_far("default", vpn="sales"))
    told = [event for event in node.events if event["event"] == "VPN_BRIDGE_REFUSED"]
    assert [(event["vpn"], event["code"]) for event in told] == [("default", errors.BRIDGE_NOT_ALLOWED)]


def test_the_far_session_is_a_client_that_is_told_of_the_node(node: WiredNode) -> None:
    _, welcome = come(node, hello_far())
    assert welcome["client_name"] == "#bridge/n/default/b"
    assert welcome["link"]["node_id"] == "id-n"
    (row,) = node.router.operators.clients("sales", node.now)
    assert row["name"] == "#bridge/n/default/b"


def test_the_own_session_is_no_client_and_has_large_windows(node: WiredNode) -> None:
    _, welcome = come(node, hello_own())
    assert (welcome["bytes"], welcome["producer_bytes"]) == (wire.LINK_BYTES, wire.LINK_WINDOW_BYTES)
    assert list(node.router.operators.clients(None, node.now)) == []
    assert len(node.router.sessions) == 0


@pytest.mark.parametrize("hello", [hello_far(), hello_own()])
def test_a_successor_takes_the_place_of_a_bridge_process(node: WiredNode, hello: dict[str, Any]) -> None:
    first, _ = come(node, hello)
    come(node, {**hello, "bridge": says(incarnation=2)})
    assert first.closed_with() == errors.KEEPALIVE_TIMEOUT
    assert refused(node, {**hello, "bridge": says(incarnation=1)}) == errors.CLIENT_NAME_IN_USE


def test_a_clock_that_is_set_has_bridges_of_other_hosts_come_anew(node: WiredNode) -> None:
    far = node.connection("127.0.0.1")  # of this host it needs no password, but has an address
    far.send(wire.HELLO, hello_far())
    client = node.client()
    own, _ = come(node, hello_own())
    node.router.closing.clock_was_set(-999, node.now)
    node.settle()
    assert far.closed_with() is None
    node.router.closing.clock_was_set(-1_000, node.now)
    node.settle()
    assert far.closed_with() == errors.NOT_CONNECTED
    assert client.closed_with() is own.closed_with() is None


def test_a_profile_that_allows_no_bridges_any_more_ends_them(node: WiredNode) -> None:
    client, _ = come(node, hello_far())
    profile = objects.complete("profile", {})
    node.router.operators.put_object("profile", "sales", "default", profile, node.now)
    node.settle()
    assert client.closed_with() == errors.BRIDGE_NOT_ALLOWED


def test_a_link_between_both_ends_ends_a_bridge(node: WiredNode) -> None:
    client, _ = come(node, hello_far(node="later", node_id="id-later", vpn="sales"))
    node.router.operators.put_object("link", "", "later", objects.complete("link", {}), node.now)
    node.settle()
    assert client.closed_with() == errors.BRIDGE_TO_ITSELF


TRAIL = [0, 0, None, [None, "a/x"]]


def test_what_a_bridge_publishes_says_where_it_has_been(node: WiredNode) -> None:
    subscriber = node.client(client_name="s")
    subscriber.subscribe("t/>")
    bridge, _ = come(node, hello_own())
    for _ in range(2):
        bridge.publish_raw([[0, "t/1", 0, TRAIL, None, b""]])
    assert [row[3] for row in subscriber.rows()] == [TRAIL, TRAIL]


@pytest.mark.requirement("R3")
def test_the_order_of_a_publisher_holds_when_a_bridge_comes_again(node: WiredNode) -> None:
    """What a busy worker still has of its first connection would come behind what the second one brings."""
    subscriber = node.client(client_name="s")
    subscriber.subscribe("t/>")
    table = node.router.shards.table
    topics = [f"t/{number}" for number in range(20)]
    slow, quick = (next(t for t in topics if table[slot_of(t)] == worker) for worker in (0, 1))
    first, _ = come(node, hello_own())
    node.pause(0)
    first.publish((slow, b"first"))
    second, _ = come(node, hello_own(bridge=says(incarnation=2)))
    second.publish((quick, b"second"))
    node.unpause(0)
    node.settle()
    assert subscriber.payloads() == [b"second"]


@pytest.mark.parametrize("count", [1, 20])
def test_a_client_cannot_say_where_a_message_has_been(node: WiredNode, count: int) -> None:
    """Nor can a bridge of another node, which is a client here; on the fast path and on the slow one."""
    for client in (node.client(), come(node, hello_far())[0]):
        client.subscribe("t")
        client.publish("t")
        client.publish_raw([[index, "t", 0, TRAIL, None, b""] for index in range(count)])
        assert client.closed_with() == errors.MALFORMED_FRAME
