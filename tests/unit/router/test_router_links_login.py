"""Who may come as a neighbour, and what the others are told: login of links, state machines only."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster import objects
from tests.unit.router.wired_mesh import SECRET, gated_node, link_hello, make_node


class TestLogin:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"cluster": "other"}, errors.CLUSTER_MISMATCH),
            ({"node": "n"}, errors.LINK_TO_OWN_NODE),
            ({"node_id": "id-n"}, errors.LINK_TO_OWN_NODE),
            ({"password": "guessed"}, errors.LINK_UNAUTHORIZED),
            ({"password": None}, errors.LINK_UNAUTHORIZED),
            ({"password": ""}, errors.LINK_UNAUTHORIZED),
            ({"username": "default"}, errors.LINK_UNAUTHORIZED),
            ({"node": "z"}, errors.LINK_NOT_ALLOWED),
            ({"node": "off"}, errors.LINK_NOT_ALLOWED),
            ({"node": "a"}, errors.LINK_INITIATOR_MISMATCH),
            ({"vpn": "none"}, errors.VPN_NOT_ALLOWED),
            ({"version": 2}, errors.UNSUPPORTED_VERSION),
        ],
    )
    def test_who_may_not_come_is_told_why(self, changes: dict[str, Any], code: int) -> None:
        node = gated_node()
        stranger = node.connection("10.0.0.1")
        stranger.send(wire.HELLO, link_hello("x", **changes))
        assert stranger.closed_with() == code
        assert not node.router.links.sessions
        told = [event for event in node.events if event["event"] == "SYSTEM_LINK_REFUSED"]
        expected = [] if changes.get("username") else [code]
        assert [event["code"] for event in told] == expected

    def test_a_refusal_that_comes_again_is_one_event(self) -> None:
        node = gated_node()
        for _ in range(5):
            node.connection("10.0.0.1").send(wire.HELLO, link_hello("x", cluster="other"))
        assert len([event for event in node.events if event["event"] == "SYSTEM_LINK_REFUSED"]) == 1

    def test_a_node_without_secret_lets_no_neighbour_in(self) -> None:
        node = make_node("n", ["x"], secret="")
        stranger = node.connection("10.0.0.1")
        stranger.send(wire.HELLO, link_hello("x", password=""))
        assert stranger.closed_with() == errors.LINK_UNAUTHORIZED

    def test_links_only_have_their_username_and_no_client_has_their_name(self) -> None:
        node = gated_node()
        client = node.connection("10.0.0.1")
        client.send(wire.HELLO, {"version": 1, "username": wire.LINK_USERNAME, "password": SECRET})
        assert client.closed_with() == errors.LINK_UNAUTHORIZED
        client = node.connection()
        client.send(wire.HELLO, {"version": 1, "client_name": "#link/x"})
        assert client.closed_with() == errors.INVALID_CLIENT_NAME

    def test_another_node_of_that_name_is_refused_while_the_first_is_there(self) -> None:
        node = gated_node()
        first = node.connection("10.0.0.1")
        first.send(wire.HELLO, link_hello("x"))
        second = node.connection("10.0.0.2")
        second.send(wire.HELLO, link_hello("x", node_id="another"))
        assert second.closed_with() == errors.LINK_EXISTS
        assert first.closed_with() is None
        assert node.events[-1]["code"] == errors.LINK_EXISTS

    def test_a_successor_of_the_link_process_takes_its_place(self) -> None:
        node = gated_node()
        first = node.connection("10.0.0.1")
        first.send(wire.HELLO, link_hello("x"))
        second = node.connection("10.0.0.1")
        second.send(wire.HELLO, link_hello("x", incarnation=2))
        assert first.closed_with() == errors.KEEPALIVE_TIMEOUT
        late = node.connection("10.0.0.1")
        late.send(wire.HELLO, link_hello("x", incarnation=1))
        assert late.closed_with() == errors.LINK_EXISTS

    def test_a_link_session_is_no_client(self) -> None:
        node = gated_node()
        neighbour = node.connection("10.0.0.1")
        neighbour.send(wire.HELLO, link_hello("x"))
        assert list(node.router.operators.clients(None, node.now)) == []
        assert node.router.stats()["sessions"] == 0
        manager = node.client()
        assert manager.subscribe("a", client="#link/x")[0][0] != 0
        neighbour.send(wire.SUBSCRIBE, [1, [["a", 0]], None])
        neighbour.received.popleft()  # WELCOME
        operation, answer = neighbour.take()
        while operation != wire.SUBACK:
            operation, answer = neighbour.take()
        assert (
            answer[1][0][0] == errors.MAX_SUBSCRIPTIONS_EXCEEDED or answer[1][0][0] == errors.SUBSCRIBE_DENIED
        )

    def test_deleting_or_disabling_the_link_ends_its_session(self) -> None:
        for change in ("delete", "disable"):
            node = gated_node()
            neighbour = node.connection("10.0.0.1")
            neighbour.send(wire.HELLO, link_hello("x"))
            operators = node.router.operators
            if change == "delete":
                operators.drop_object("link", "", "x", node.now)
            else:
                operators.put_object("link", "", "x", objects.complete("link", {"enabled": False}), node.now)
            node.settle()
            assert neighbour.closed_with() == errors.LINK_NOT_ALLOWED


def test_a_handshake_that_fails_is_counted_each_time_and_told_once_a_minute() -> None:
    node = gated_node()
    for _ in range(3):
        node.router.handshake.handshake_failed("another key", node.now)
    node.now += 61.0
    node.router.handshake.handshake_failed("another key", node.now)
    node.settle()
    told = [event for event in node.events if event["event"] == "SYSTEM_CLIENT_HANDSHAKE_FAILED"]
    assert [event["code"] for event in told] == [errors.HANDSHAKE_FAILED] * 2
    assert node.router.stats()["errors"] == {str(errors.HANDSHAKE_FAILED): 4}
