"""What one client may have on its way through the node, so that who is dear holds up nobody for long."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import wire
from angarium.errors import NOT_CONNECTED, error_for
from angarium_server.frames.gateways import CostlyFrame
from gateway.gathering import WINDOW_FIRST, WINDOW_MAX, Windows
from tests.unit.gateway.played_router import Gateway
from tests.unit.gateway.wired_gateways import NodeOfGateways, WiredGateway
from tests.unit.router.wired_node import snapshot

#: So many levels, each with a wildcard or not, are 2,048 filters.
LEVELS = 11


def publish(client: Any, most: int = 10_000) -> int:
    """Let a client publish as much as it may; give how much that is."""
    count = 0
    while count < most and client.has_room():
        client.publish(f"t/{count}", 0, None, None, b"")
        count += 1
    return count


def rounds(gateway: Gateway) -> list[tuple[int, bool, int]]:
    """Take the rounds that were sent: number, whether it asks to be answered, rows."""
    heads = [wire.unpack(frames[1]) for frames in gateway.sent() if frames[0] == wire.PUBLISH]
    return [(number, flush, sum(rows for _, rows in parts)) for number, _, flush, parts in heads]


def test_a_client_has_few_under_way_and_more_when_these_cost_nothing() -> None:
    gateway = Gateway()
    client, guest = gateway.opened("c")
    window = WINDOW_FIRST
    while window < WINDOW_MAX:
        assert publish(client) == window
        gateway.turn()
        ((number, is_asked_for, rows),) = rounds(gateway)
        assert (is_asked_for, rows) == (True, window)
        assert not client.has_room()
        gateway.says(wire.RETIRED, [number])
        assert guest.take() == [("may_go_on",)]
        window *= 2
    for _ in range(2):
        assert publish(client) == WINDOW_MAX
        gateway.turn()
        gateway.says(wire.RETIRED, [rounds(gateway)[-1][0]])


def test_lone_messages_ask_for_no_answers() -> None:
    gateway = Gateway()
    clients = [gateway.opened(name)[0] for name in "abc"]
    for _ in range(WINDOW_FIRST // 2 - 1):
        for client in clients:
            assert publish(client, 1) == 1
        gateway.turn()
    assert not any(is_asked_for for _, is_asked_for, _ in rounds(gateway))
    publish(clients[0], 1)
    gateway.turn()
    assert [is_asked_for for _, is_asked_for, _ in rounds(gateway)] == [True]


def test_who_is_in_a_dear_round_publishes_one_by_one_until_it_costs_nothing() -> None:
    gateway = Gateway()
    (dear, told), (other, _) = gateway.opened("dear"), gateway.opened("other")
    assert publish(dear, 3) == 3
    gateway.turn()
    ((number, _, _),) = rounds(gateway)
    gateway.says(CostlyFrame.operation, [number])
    gateway.turn()
    ((last, is_asked_for, rows),) = rounds(gateway)
    assert (is_asked_for, rows) == (True, 0), "it asks when that round is done"
    assert not dear.has_room()
    assert publish(other) == WINDOW_FIRST
    gateway.turn()
    gateway.says(wire.RETIRED, [last])
    assert told.take() == [("may_go_on",)]
    for expected in (1, 2, 4):
        assert publish(dear) == expected
        gateway.turn()
        gateway.says(wire.RETIRED, [rounds(gateway)[-1][0]])


def test_a_client_that_has_left_is_not_told() -> None:
    gateway = Gateway()
    client, guest = gateway.opened("c")
    publish(client)
    gateway.turn()
    client.leave()
    gateway.turn()
    gateway.says(wire.RETIRED, [1])
    assert guest.take() == []


def test_the_next_session_begins_anew() -> None:
    gateway = Gateway()
    client, _ = gateway.opened("c")
    publish(client)
    gateway.line.lose(error_for(NOT_CONNECTED, "gone"), gateway.now)
    gateway.advance(5.0)
    gateway.welcome()
    other, _ = gateway.opened("d")
    assert publish(other) == WINDOW_FIRST


class Publisher:
    """What windows keep of a client."""

    def __init__(self) -> None:
        self.unretired, self.window, self.is_full = 0, WINDOW_FIRST, False


_STEPS = st.lists(st.tuples(st.sampled_from(["publish", "leave", "costly", "retire"]), st.integers(0, 20)))


@given(_STEPS)
def test_nobody_has_more_than_it_may_nor_waits_for_ever(steps: list[tuple[str, int]]) -> None:
    windows, clients = Windows(), [Publisher() for _ in range(3)]
    gathered = last = told = 0
    for step, value in [*steps, ("leave", 0), ("retire", 0)]:
        client = clients[value % 3]
        if step == "publish" and windows.may_publish(client):
            windows.add(client)
            gathered += 1
        elif step == "leave" and gathered:
            last, gathered = last + 1, 0 * windows.leave(last + 1, gathered)
        elif step == "costly":
            assert windows.costly(told + 1) == (told < last)
        elif step == "retire":
            told = last
            assert all(windows.may_publish(one) for one in windows.retired(last))
        windows.validate()
        assert all(one.unretired <= max(one.window, WINDOW_MAX) for one in clients)
    assert all(one.unretired == 0 for one in clients)


@pytest.mark.parametrize("is_dear", [True, False])
def test_the_node_tells_what_is_dear(is_dear: bool) -> None:
    node = NodeOfGateways(1, snapshot(("username", "default", "default", {})))
    gateway = WiredGateway(node)
    (client, _), subscriber = gateway.open("c"), node.client()
    patterns = ["/".join(levels) for levels in product("x*", repeat=LEVELS if is_dear else 3)]
    for at in range(0, len(patterns), 200):
        subscriber.subscribe(*patterns[at : at + 200])
    for _ in range(3):
        for name in "abcd":
            client.publish("/".join(["x"] * (LEVELS - 1)) + f"/{name}", 0, None, None, b"")
        gateway.settle()
    assert client.unretired == 0 or not is_dear
    assert (client.window < WINDOW_FIRST) is is_dear


def test_who_asked_about_a_message_is_told_of_the_round_that_it_left_in() -> None:
    windows, client, told = Windows(), Publisher(), list[tuple[str, int]]()
    for at, topic in enumerate("aabab"):
        if at in (1, 2, 4):
            windows.report(client, topic, lambda code, name=f"{topic}{at}": told.append((name, code)))  # type: ignore[misc]
        windows.add(client)
    assert windows.are_reported(2)
    assert not windows.are_reported(1)
    for number, rows in ((1, 2), (2, 2), (3, 1)):
        assert windows.are_reported(rows)
        windows.leave(number, rows)
        windows.validate()
    for code, (number, topic) in enumerate(((1, "b"), (3, "a"), (2, "b"), (4, "b"), (3, "b"), (1, "a"))):
        for _, refused in windows.refused(number, topic):
            refused(code)
    assert told == [("b2", 2), ("b4", 4), ("a1", 5)]
    windows.retired(3)
    assert not windows.refused(3, "b")
