"""Filters that overlap too much are refused: of a client, and of all clients of a Message VPN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode

pytestmark = pytest.mark.requirement("R278")

LIMIT = 3
OVERLAPPING = ["*/a", "a/*", "*/*"]


@pytest.fixture
def limited(make_node: Any) -> WiredNode:
    made: WiredNode = make_node(
        1, snapshot(("profile", "default", "default", {"max_overlapping_filters": LIMIT}))
    )
    return made


def _codes(answers: list[Any]) -> list[int | None]:
    return [None if one is None else one[0] for one in answers]


def _events(node: WiredNode) -> list[str]:
    return [event["event"] for event in node.events if "OVERLAPPING" in event["event"]]


def _full(node: WiredNode) -> FakeClient:
    client = node.client()
    assert client.subscribe(*OVERLAPPING) == [None] * LIMIT
    return client


def test_a_filter_of_one_kind_too_many_is_refused_and_told_once(limited: WiredNode) -> None:
    client = _full(limited)
    answers = client.subscribe("a*/b", "b*/c")
    assert _codes(answers) == [errors.OVERLAPPING_FILTERS] * 2
    assert answers[0][1] == "the client profile allows 3"
    assert _events(limited) == ["CLIENT_OVERLAPPING_FILTERS_EXCEEDED"]
    assert limited.router.stats()["errors"][str(errors.OVERLAPPING_FILTERS)] == 2
    limited.validate()


def test_what_adds_no_kind_is_never_refused(limited: WiredNode) -> None:
    client = _full(limited)
    more = ["*/b", "b/*", "plain", "other/plain", *OVERLAPPING]
    assert client.subscribe(*more) == [None] * len(more)


def test_other_clients_have_their_own(limited: WiredNode) -> None:
    _full(limited)
    assert limited.client().subscribe("x*/y") == [None]


def test_a_kind_that_goes_makes_room_and_may_be_told_again(limited: WiredNode) -> None:
    client = _full(limited)
    assert _codes(client.subscribe("a*/b")) == [errors.OVERLAPPING_FILTERS]
    client.unsubscribe(*OVERLAPPING)
    assert client.subscribe("a*/b", "ab*/b", "abc*/b") == [None] * LIMIT
    assert _codes(client.subscribe("*/b")) == [errors.OVERLAPPING_FILTERS]
    assert _events(limited) == ["CLIENT_OVERLAPPING_FILTERS_EXCEEDED"] * 2


def test_share_names_are_kinds_too(limited: WiredNode) -> None:
    client = limited.client()
    assert client.subscribe(*[f"#share/{name}/a" for name in "xyz"]) == [None] * LIMIT
    assert _codes(client.subscribe("#share/w/a")) == [errors.OVERLAPPING_FILTERS]
    assert client.subscribe("#share/x/b") == [None]


def test_the_clients_of_a_message_vpn_share_its_limit(make_node: Any) -> None:
    rows = snapshot()
    rows[0][3]["max_overlapping_filters"] = LIMIT
    node: WiredNode = make_node(1, rows)
    first, second = node.client(), node.client()
    assert first.subscribe(*OVERLAPPING) == [None] * LIMIT
    assert second.subscribe("*/b", "x") == [None] * 2
    (answer,) = second.subscribe("a*/b")
    assert answer == [errors.OVERLAPPING_FILTERS, "Message VPN default allows 3"]
    assert _events(node) == ["VPN_OVERLAPPING_FILTERS_HIGH", "VPN_OVERLAPPING_FILTERS_EXCEEDED"]
    first.send(b"B", [])
    assert second.subscribe("a*/b") == [None]
    assert _events(node)[2:] == ["VPN_OVERLAPPING_FILTERS_HIGH_CLEAR"]
