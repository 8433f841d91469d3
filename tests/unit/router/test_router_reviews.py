"""An object changes that many sessions are under: some are reviewed in each step, and the answer comes last."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from cluster import objects
from router import operators as operators_module
from tests.unit.router.wired_node import WiredNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.router.wired_node import FakeClient

DENIED = {"client_connect_default": "allow", "subscribe_topic_default": "disallow"}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[WiredNode]:
    monkeypatch.setattr(operators_module, "REVIEWS_PER_STEP", 2)
    made = WiredNode(2)
    yield made
    made.validate()


@pytest.fixture
def clients(node: WiredNode) -> list[FakeClient]:
    return [node.client() for _ in range(5)]


def put(node: WiredNode, done: list[str], kind: str, **attributes: Any) -> None:
    made = objects.complete(kind, attributes)
    node.router.operators.put_object(kind, "default", "default", made, node.now, lambda: done.append(kind))
    node.settle()


def may_not(clients: list[FakeClient]) -> list[bool]:
    """Tell who may not subscribe to another topic."""
    return [client.subscribe("t") != [None] for client in clients]


def step(node: WiredNode) -> float:
    wake = node.router.operators.tick(node.now)
    node.settle()
    return wake


def test_some_have_their_new_rights_in_each_step_and_the_answer_comes_last(
    node: WiredNode, clients: list[FakeClient]
) -> None:
    done: list[str] = []
    put(node, done, "acl", **DENIED)
    assert may_not(clients) == [True, True, False, False, False]
    assert step(node) == node.now
    assert may_not(clients) == [True, True, True, True, False]
    assert done == []
    assert step(node) == math.inf
    assert all(may_not(clients))
    assert done == ["acl"]


def test_who_comes_meanwhile_has_them_at_once(node: WiredNode, clients: list[FakeClient]) -> None:
    put(node, [], "acl", **DENIED)
    assert may_not([node.client()]) == [True]


def test_who_ends_meanwhile_is_not_missed(node: WiredNode, clients: list[FakeClient]) -> None:
    done: list[str] = []
    put(node, done, "acl", **DENIED)
    node.router.unreachable(clients[4].routing_id, 0, node.now, blocked=False)
    assert step(node) == node.now
    assert step(node) == math.inf
    assert done == ["acl"]


def test_changes_that_come_together_are_answered_in_their_order_when_both_are_in_force(
    node: WiredNode, clients: list[FakeClient]
) -> None:
    done: list[str] = []
    put(node, done, "acl", **DENIED)
    put(node, done, "profile", max_subscription_count=0)
    put(node, done, "username", enabled=False)
    while step(node) < math.inf:
        pass
    assert done == ["acl", "profile", "username"]
    assert [client.closed_with() for client in clients] == [errors.USERNAME_SHUTDOWN] * 5


def test_an_object_that_goes_takes_all_of_its_sessions_in_the_same_step(
    node: WiredNode, clients: list[FakeClient]
) -> None:
    done: list[str] = []
    put(node, [], "acl", **DENIED)
    node.router.operators.drop_object("username", "default", "default", node.now, lambda: done.append("gone"))
    node.settle()
    assert done == ["gone"]
    assert [client.closed_with() for client in clients] == [errors.USERNAME_SHUTDOWN] * 5
    assert step(node) == node.now
    assert step(node) == math.inf
