"""Credit of a flow."""

from __future__ import annotations

from typing import Any

import pytest

from angarium_server.frames.settings import FlowOptions
from node.endpoints.flow import Flow


def flow(*, browser: bool = False, **options: Any) -> Flow:
    made = Flow(1, is_browser=browser, selector=None, matches=None, options=FlowOptions(**options))
    made.limit_unacked(10)
    return made


@pytest.mark.parametrize(
    ("messages", "bytes_", "sent", "size", "out", "room"),
    [
        (5, 100, 0, 0, 0, 5),
        (5, 100, 3, 10, 3, 2),
        (5, 100, 5, 10, 0, 0),
        (50, 100, 3, 99, 0, 10),
        (50, 100, 3, 100, 0, 0),
        (50, 100, 3, 101, 0, 0),
        (50, 100, 9, 10, 9, 1),
        (50, 100, 12, 10, 12, 0),
        (0, 100, 0, 0, 0, 0),
        (5, 0, 0, 0, 0, 0),
    ],
)
def test_room_is_the_least_of_credit_and_limit(
    messages: int, bytes_: int, sent: int, size: int, out: int, room: int
) -> None:
    one = flow()
    one.grant(messages, bytes_)
    one.sent(sent, size)
    if out:
        one.out.add(1, out)
    assert one.room() == room


def test_a_browser_is_limited_by_its_credit_only() -> None:
    one = flow(browser=True)
    one.grant(100, 1000)
    assert one.room() == 100


def test_a_flow_that_is_handed_off_has_no_room() -> None:
    one = flow()
    one.grant(100, 1000)
    one.closing_at = 5.0
    assert one.room() == 0


@pytest.mark.parametrize(("asked", "limit"), [(None, 10), (3, 3), (30, 10), (0, 10), (-1, 10)])
def test_a_flow_lowers_the_limit_of_the_endpoint_or_leaves_it(asked: int | None, limit: int) -> None:
    assert flow(max_unacked=asked).unacked_max == limit


def test_totals_never_fall() -> None:
    one = flow()
    one.grant(5, 50)
    one.grant(3, 70)
    assert (one.messages_granted, one.bytes_granted) == (5, 70)
    assert one.room_bytes() == 70
