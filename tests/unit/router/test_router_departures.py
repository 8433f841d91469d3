"""A client that leaves with many subscriptions is gone at once, and what it leaves behind goes step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import wire
from router.subscriptions.subscriptions import STEP_MAX

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode

STEPS = 4
MANY = STEPS * STEP_MAX
FLAG_DTO = wire.FLAG_DTO

pytestmark = pytest.mark.requirement("R278", "R279")


def _subscribe(client: FakeClient, filters: list[str]) -> None:
    for at in range(0, len(filters), wire.MAX_FILTERS_PER_REQUEST):
        answers = client.subscribe(*filters[at : at + wire.MAX_FILTERS_PER_REQUEST])
        assert answers == [None] * len(answers)


def _filters(count: int) -> list[str]:
    return [f"devices/{at}/*" for at in range(count)]


def _leave(node: WiredNode, filters: list[str]) -> None:
    client = node.client()
    _subscribe(client, filters)
    node.router.tick(node.now)  # a step begins
    client.send(wire.BYE, [])
    node.router.tick(node.now)  # another one


def test_limits_are_free_at_once_and_filters_go_step_by_step(node: WiredNode) -> None:
    router, vpn = node.router, node.router.directory.vpns["default"]
    _leave(node, _filters(MANY))
    assert router.subscriptions.count == vpn.subscriptions == len(vpn.shapes) == router.memory.bytes == 0
    for step in range(1, STEPS):
        assert len(router.interest) == MANY - step * STEP_MAX
        node.validate()
        assert (router.tick(node.now) == node.now) == (step < STEPS - 1), (
            "it says whether there is more to do"
        )
        node.settle()
    assert len(router.interest) == len(node.workers[0]._matching) == 0


def test_who_left_gets_nothing_while_its_filters_are_still_there(node: WiredNode) -> None:
    staying, publisher = node.client(), node.client()
    shared = "#share/group/devices/0/x"
    _subscribe(staying, [shared, "devices/1/x"])
    _leave(node, [shared, "devices/1/x", *_filters(MANY)])
    assert len(node.router.subscriptions.departures) > STEP_MAX
    publisher.publish(*["devices/0/x"] * 20, *[("devices/1/x", b"", FLAG_DTO)] * 20)
    assert sorted(staying.topics()) == ["devices/0/x"] * 20 + ["devices/1/x"] * 20


def test_who_comes_back_is_subscribed_although_its_predecessor_is_not_done_leaving(node: WiredNode) -> None:
    _leave(node, _filters(MANY))
    again, publisher = node.client(), node.client()
    _subscribe(again, _filters(100))
    publisher.publish("devices/7/x")
    node.advance(1.0)
    publisher.publish("devices/99/x")
    assert again.topics() == ["devices/7/x", "devices/99/x"]
    assert len(node.router.interest) == 100


def test_who_subscribes_takes_as_much_away_as_he_adds(node: WiredNode) -> None:
    """Clients that come and go faster than steps are done leave nothing that piles up."""
    _leave(node, _filters(MANY))
    left = len(node.router.subscriptions.departures)
    other = node.client()
    _subscribe(other, [f"other/{at}" for at in range(STEP_MAX)])
    assert len(node.router.subscriptions.departures) <= left - STEP_MAX
