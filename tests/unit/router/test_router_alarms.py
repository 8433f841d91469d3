"""Operators hear when something fills up, is full, and is empty enough again: once each, whatever happens between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from cluster import objects
from cluster.security.passwords import hash_password
from router.ground.alarms import Alarms, Watched
from router.ground.config import RouterConfig, SpoolLimits
from router.ground.ground import Outbox
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode


class WatchedThings:
    """Things of a node with a limit of 100, set at 80 and clear at 60."""

    WATCHED = Watched("X_HIGH", "has things")

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.alarms = Alarms(RouterConfig(), SpoolLimits(), self.outbox.event)

    def __call__(self, value: int, limit: int = 100) -> list[str]:
        self.alarms.look(self.WATCHED, self.alarms.node, value, limit)
        return self.told()

    def exceed(self) -> list[str]:
        self.alarms.exceeded(self.WATCHED, self.alarms.node, 100)
        return self.told()

    def told(self) -> list[str]:
        found = [effect.event["event"] for effect in self.outbox.effects]  # type: ignore[union-attr]
        self.outbox.effects.clear()
        self.alarms.validate()
        return found


def test_an_alarm_tells_each_thing_once_until_the_value_was_below_the_clear_value() -> None:
    watched = WatchedThings()
    assert [watched(value) for value in (80, 81, 100, 61, 60, 81)] == [[], ["X_HIGH"], [], [], [], []]
    assert watched.exceed() == ["X_EXCEEDED"]
    assert watched.exceed() == []
    assert watched(60) == []
    assert watched.exceed() == []
    assert watched(59) == ["X_HIGH_CLEAR"]
    assert watched.exceed() == ["X_EXCEEDED"]
    assert watched(81) == ["X_HIGH"]


def test_a_limit_may_be_exceeded_by_one_large_thing_before_it_is_near() -> None:
    watched = WatchedThings()
    assert watched.exceed() == ["X_EXCEEDED"]
    assert watched(59) == []
    assert watched.exceed() == ["X_EXCEEDED"]


def test_an_alarm_ends_with_its_limit_and_a_limit_of_one_raises_none() -> None:
    watched = WatchedThings()
    watched(90)
    assert watched(90, limit=1_000) == ["X_HIGH_CLEAR"]
    watched(90)
    assert watched(90, limit=0) == ["X_HIGH_CLEAR"]
    assert watched(1, limit=1) == []


# -- clients -------------------------------------------------------------------------------------------------


#: Events of every client.
COMINGS = ("CLIENT_CONNECT", "CLIENT_DISCONNECT")


def alarms(node: WiredNode) -> list[dict[str, Any]]:
    """Give the events, but for those of every client."""
    return [one for one in node.events if one["event"] not in COMINGS]


def names(node: WiredNode) -> list[str]:
    """Take the names of these events."""
    found = [one["event"] for one in alarms(node)]
    node.events.clear()
    return found


def refused(node: WiredNode, address: str = "127.0.0.1", **hello: Any) -> int | None:
    client = node.connection(address)
    client.send(wire.HELLO, {"version": 1, **hello})
    return client.closed_with()


def leave(*clients: FakeClient) -> None:
    for client in clients:
        client.send(wire.BYE, [])


def test_each_client_comes_and_goes_with_one_event(make_node: Any) -> None:
    node = make_node(1)
    client = node.client(client_name="pair")
    (came,) = node.events
    assert (came["event"], came["client"], came["severity"]) == ("CLIENT_CONNECT", "pair", "info")
    assert came["text"] == "client pair connected from 127.0.0.1 as default"
    leave(client)
    assert [one["event"] for one in node.events] == list(COMINGS)


def test_a_storm_of_connections_raises_events_only_for_those_that_are_let_in(make_node: Any) -> None:
    rows = snapshot(("username", "default", "far", {"password": hash_password("right")}))
    node = make_node(1, rows, connects_per_second=1, connect_burst=3)
    ends = [refused(node, "10.0.0.9", username="far", password="right") for _ in range(50)]
    assert ends.count(errors.CONNECT_RATE_EXCEEDED) == 47
    assert [one["event"] for one in node.events] == ["CLIENT_CONNECT"] * 3


def test_clients_of_the_node_are_watched(make_node: Any) -> None:
    node = make_node(1, max_connections=5)
    clients = [node.client() for _ in range(4)]
    assert names(node) == []
    clients.append(node.client())
    assert names(node) == ["SYSTEM_CLIENT_CONNECTIONS_HIGH"]
    for _ in range(3):
        assert refused(node) == errors.TOO_MANY_CLIENTS
    assert names(node) == ["SYSTEM_CLIENT_CONNECTIONS_EXCEEDED"]
    leave(*clients[:2])
    assert refused(node) is None
    assert names(node) == []
    leave(*clients[2:])
    assert names(node) == ["SYSTEM_CLIENT_CONNECTIONS_HIGH_CLEAR"]


def test_clients_of_a_message_vpn_are_watched_by_its_own_thresholds(make_node: Any) -> None:
    thresholds = {"event_connection_count_set_percent": 40, "event_connection_count_clear_percent": 20}
    node = make_node(1, snapshot(("vpn", "", "default", {"max_connection_count": 5, **thresholds})))
    clients = [node.client() for _ in range(3)]
    assert names(node) == ["VPN_CONNECTIONS_HIGH"]
    clients += [node.client(), node.client()]
    assert [refused(node), refused(node)] == [errors.TOO_MANY_CLIENTS] * 2
    (event,) = alarms(node)
    assert (event["event"], event["vpn"], event["scope"]) == (
        "VPN_CONNECTIONS_EXCEEDED",
        "default",
        "VPN",
    )
    assert "5" in event["text"]
    names(node)
    leave(*clients[:4])
    assert names(node) == []
    leave(clients[4])
    assert names(node) == ["VPN_CONNECTIONS_HIGH_CLEAR"]


def test_clients_of_a_username_are_watched(make_node: Any) -> None:
    node = make_node(
        1,
        snapshot(
            ("profile", "default", "few", {"max_connection_count_per_client_username": 2}),
            ("username", "default", "ann", {"client_profile": "few"}),
        ),
    )
    clients = [node.client(username="ann"), node.client(username="ann")]
    (event,) = alarms(node)
    assert (event["event"], event["username"]) == ("VPN_CLIENT_USERNAME_CONNECTIONS_HIGH", "ann")
    names(node)
    assert refused(node, username="ann") == errors.TOO_MANY_CONNECTIONS
    assert names(node) == ["VPN_CLIENT_USERNAME_CONNECTIONS_EXCEEDED"]
    leave(*clients)
    assert names(node) == ["VPN_CLIENT_USERNAME_CONNECTIONS_HIGH_CLEAR"]


def test_subscriptions_of_a_message_vpn_are_watched(make_node: Any) -> None:
    node = make_node(1, snapshot(("vpn", "", "default", {"max_subscription_count": 10})))
    one, other = node.client(), node.client()
    one.subscribe(*[f"a/{n}" for n in range(4)])
    other.subscribe(*[f"b/{n}" for n in range(4)])
    assert names(node) == []
    other.subscribe("b/4")
    assert names(node) == ["VPN_SUBSCRIPTIONS_HIGH"]
    one.subscribe("a/5", "a/6", "a/7")
    assert names(node) == ["VPN_SUBSCRIPTIONS_EXCEEDED"]
    leave(other)
    assert names(node) == ["VPN_SUBSCRIPTIONS_HIGH_CLEAR"]


def test_a_client_that_is_refused_subscriptions_is_told_of_once(make_node: Any) -> None:
    node = make_node(1, snapshot(("profile", "default", "default", {"max_subscription_count": 5})))
    client = node.client(client_name="greedy")
    client.subscribe(*[f"a/{n}" for n in range(9)])
    client.subscribe("b")
    (event,) = alarms(node)
    assert (event["event"], event["client"]) == ("CLIENT_MAX_SUBSCRIPTIONS_EXCEEDED", "greedy")
    names(node)
    client.unsubscribe("a/0", "a/1")
    client.subscribe("b", "c", "d")
    assert names(node) == [], "three of five are not few"
    client.unsubscribe("a/2", "b", "c")
    client.subscribe("e", "f", "g", "h")
    assert names(node) == ["CLIENT_MAX_SUBSCRIPTIONS_EXCEEDED"]


def test_a_raised_limit_ends_the_alarm_with_the_next_client(make_node: Any) -> None:
    node = make_node(1, snapshot(("vpn", "", "default", {"max_connection_count": 2})))
    node.client()
    node.client()
    assert names(node) == ["VPN_CONNECTIONS_HIGH"]
    attributes = objects.complete("vpn", {"max_connection_count": 100})
    node.router.operators.put_object("vpn", "", "default", attributes, node.now)
    node.client()
    assert names(node) == ["VPN_CONNECTIONS_HIGH_CLEAR"]
