"""Clients, usernames and Message VPNs are charged for what they make the node keep, in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from angarium_server.costs import subscription_bytes
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

pytestmark = pytest.mark.requirement("R279")

#: Costs forty times as much as a short filter.
DEAR = "/".join(["{}", *"abcdefghij" * 10, "*"])


def _node(
    *, client: int = 1 << 30, username: int = 1 << 30, vpn: int = 1 << 30, workers: int = 1
) -> WiredNode:
    profile = {"max_memory_bytes": client, "max_memory_bytes_per_client_username": username}
    rows = snapshot(
        ("profile", "default", "small", profile),
        ("username", "default", "ann", {"client_profile": "small"}),
        ("username", "default", "ben", {"client_profile": "small"}),
    )
    rows[0][3]["max_memory_bytes"] = vpn
    return WiredNode(workers, rows)


def _login(node: WiredNode, name: str, username: str) -> FakeClient:
    return node.client(username=username, client_name=name)


def _subscribe_until_refused(client: FakeClient, prefix: str = "") -> tuple[int, str]:
    """Subscribe to dear filters; gives how many there are, and why there are no more."""
    for number in range(1_000):
        (answer,) = client.subscribe(DEAR.format(f"{prefix}{number}"))
        if answer is not None:
            assert answer[0] == errors.MEMORY_EXCEEDED
            return number, str(answer[1])
    raise AssertionError("nothing was refused")


def _events(node: WiredNode) -> list[str]:
    return [event["event"] for event in node.events if "MEMORY" in event["event"]]


def _described(node: WiredNode, name: str) -> dict[str, Any]:
    session = node.router.sessions.find("default", name)
    assert session is not None
    return session.describe(node.now)


def test_a_client_may_take_what_its_profile_allows() -> None:
    node = _node(client=300_000)
    greedy, other = _login(node, "greedy", "ann"), _login(node, "other", "ann")
    count, detail = _subscribe_until_refused(greedy)
    assert 5 < count < 15
    assert detail == "client profile small allows 300000 bytes"
    assert _described(node, "greedy")["memory_bytes"] == count * subscription_bytes(
        DEAR.format(0), DEAR.format(0), 1
    )
    assert other.subscribe(DEAR.format("other")) == [None]
    assert greedy.subscribe("a/b") == [None]  # there is room for something small
    assert _events(node) == ["CLIENT_MAX_MEMORY_EXCEEDED"]
    node.router.validate()


def test_the_clients_of_a_username_may_take_so_much_together() -> None:
    node = _node(username=300_000)
    first, second, other = _login(node, "a1", "ann"), _login(node, "a2", "ann"), _login(node, "b", "ben")
    assert first.subscribe(*[DEAR.format(number) for number in range(8)]) == [None] * 8
    count, detail = _subscribe_until_refused(second, "x")
    assert count < 8
    assert detail == "username ann may take 300000 bytes"
    assert other.subscribe(DEAR.format("other")) == [None]
    node.router.validate()
    assert _events(node) == ["VPN_CLIENT_USERNAME_MEMORY_HIGH", "VPN_CLIENT_USERNAME_MEMORY_EXCEEDED"]


def test_a_message_vpn_may_take_so_much() -> None:
    node = _node(vpn=300_000)
    _, detail = _subscribe_until_refused(_login(node, "a", "ann"))
    assert detail == "Message VPN default may take 300000 bytes"
    assert _login(node, "b", "ben").subscribe(DEAR.format("other"))[0][0] == errors.MEMORY_EXCEEDED
    assert _events(node) == ["VPN_MEMORY_HIGH", "VPN_MEMORY_EXCEEDED"]


def test_what_was_taken_comes_back_with_an_unsubscribe_and_with_the_end_of_the_client() -> None:
    node = _node(username=300_000, vpn=300_000)
    client = _login(node, "a", "ann")
    count, _ = _subscribe_until_refused(client)
    assert client.unsubscribe(DEAR.format(0)) == [None]
    assert client.subscribe(DEAR.format("again")) == [None]
    assert node.router.stats()["memory_bytes"] > 200_000
    assert node.router.freed_bytes > 20_000
    client.send(b"B", [])
    assert client.closed_with() == 0
    assert node.router.stats()["memory_bytes"] == 0
    assert node.router.freed_bytes > 200_000
    assert all(worker.freed_bytes > 200_000 for worker in node.workers.values())
    assert _events(node)[-2:] == ["VPN_MEMORY_HIGH_CLEAR", "VPN_CLIENT_USERNAME_MEMORY_HIGH_CLEAR"]
    assert _subscribe_until_refused(_login(node, "b", "ann"))[0] == count
    node.router.validate()


def test_a_filter_with_wildcards_is_charged_for_each_worker_that_holds_it() -> None:
    costs = []
    for workers in (1, 3):
        node = _node(workers=workers)
        client = _login(node, "a", "ann")
        client.subscribe(DEAR.format("a"))
        costs.append(_described(node, "a")["memory_bytes"])
    assert 2.5 < costs[1] / costs[0] < 3
