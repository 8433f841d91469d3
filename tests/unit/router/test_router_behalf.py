"""HELLO on behalf of a client: what a process of the node may say of it, and who may not."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster.security import passwords
from router.ground.config import Identity
from tests.unit.router.wired_node import WiredNode, snapshot

LOCAL = Identity(node_id="id-n", secret="outside", local_secret="inside")
NEAR, FAR = "10.1.2.3", "10.9.9.9"
STORED = passwords.hash_password("right")


@pytest.fixture
def node() -> Any:
    only_near = {"client_connect_default": "disallow", "client_connect_exceptions": ["10.1.0.0/16"]}
    made = WiredNode(
        rows=snapshot(
            ("acl", "default", "near", {**only_near, "publish_topic_default": "allow"}),
            ("username", "default", "alice", {"password": STORED}),
            ("username", "default", "near", {"password": STORED, "acl_profile": "near"}),
            ("username", "default", "open", {}),
        ),
        identity=LOCAL,
        connects_per_second=1,
        connect_burst=2,
    )
    yield made
    made.validate()


def on_behalf(
    node: WiredNode, address: str, socket: str = "", secret: str = "inside", **hello: Any
) -> tuple[bytes, Any]:
    """Log in over a socket, and give the answer."""
    client = node.connection(socket)
    behalf = {"secret": secret, "address": address}
    client.send(wire.HELLO, {"version": 1, "credit": [1, 1], "behalf": behalf, **hello})
    return client.take()


def test_the_client_is_a_client_at_its_own_address(node: WiredNode) -> None:
    operation, welcome = on_behalf(node, NEAR, username="alice", password="right", client_name="c")
    assert operation == wire.WELCOME
    (row,) = node.router.operators.clients(None, node.now)
    assert (row["name"], row["address"], row["username"]) == ("c", NEAR, "alice")
    assert "link" not in welcome
    assert len(node.router.sessions) == 1


@pytest.mark.parametrize(
    ("address", "hello", "code"),
    [
        (NEAR, {"username": "near", "password": "right"}, None),
        (FAR, {"username": "near", "password": "right"}, errors.UNAUTHORIZED),
        (NEAR, {"username": "alice", "password": "wrong"}, errors.UNAUTHORIZED),
        (NEAR, {"username": "alice"}, errors.UNAUTHORIZED),
        ("127.0.0.1", {"username": "open"}, None),
        ("::1", {"username": "open"}, None),
        (NEAR, {"username": "open"}, errors.UNAUTHORIZED),
        (NEAR, {"username": "nobody", "password": "right"}, errors.UNAUTHORIZED),
        ("", {"username": "open"}, errors.MALFORMED_FRAME),
        ("somewhere", {"username": "open"}, errors.MALFORMED_FRAME),
        ("10.1.2.3/8", {"username": "open"}, errors.MALFORMED_FRAME),
    ],
)
def test_it_is_judged_by_its_address_and_what_it_knows(
    node: WiredNode, address: str, hello: dict[str, Any], code: int | None
) -> None:
    operation, body = on_behalf(node, address, **hello)
    assert (None if operation == wire.WELCOME else body[0]) == code


@pytest.mark.parametrize(
    ("socket", "secret"),
    [("", "outside"), ("", ""), ("", "Inside"), (FAR, "inside"), ("127.0.0.1", "inside")],
)
def test_nobody_else_says_where_a_client_is(node: WiredNode, socket: str, secret: str) -> None:
    """A right secret that comes over a network was stolen."""
    operation, body = on_behalf(node, "127.0.0.1", socket, secret, username="open")
    assert (operation, body[0]) == (wire.CLOSED, errors.UNAUTHORIZED)
    told = [event for event in node.events if event["event"] == "SYSTEM_CLIENT_LOGIN_REFUSED"]
    assert len(told) == 1
    assert len(node.router.sessions) == 0


def test_a_node_without_a_secret_takes_nobody_on_behalf() -> None:
    node = WiredNode(identity=Identity(node_id="id-n"))
    operation, body = on_behalf(node, "127.0.0.1", secret="")
    assert (operation, body[0]) == (wire.CLOSED, errors.UNAUTHORIZED)


def test_connects_are_counted_for_the_address_of_the_client(node: WiredNode) -> None:
    """One that connects too often keeps no other client of the same process out."""
    wish = {"username": "alice", "password": "right"}
    codes = [on_behalf(node, NEAR, **wish) for _ in range(3)]
    assert [operation for operation, _ in codes] == [wire.WELCOME, wire.WELCOME, wire.CLOSED]
    assert codes[-1][1][0] == errors.CONNECT_RATE_EXCEEDED
    assert on_behalf(node, FAR, **wish)[0] == wire.WELCOME
