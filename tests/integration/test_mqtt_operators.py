"""What operators see of clients of MQTT and do to them, and who of them is let in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from angarium import blocking
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.control import Disconnect
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw
from tests.integration.mqtt_node import (
    PASSWORD,
    clients,
    counted,
    events,
    expect_clients,
    mqtt_node,
    orders_url,
)
from tests.waiting import expect_value, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


def alice(node: Node, name: str, version: int = 5) -> Paho:
    return Paho(orders_url(node), name, version=version, username="alice", password=PASSWORD)


@pytest.mark.requirement("R233")
def test_clients_are_listed_with_what_they_are_and_their_subscriptions(node: Node) -> None:
    with Paho(node.mqtt_url, "sensor-7") as one, Paho(node.mqtt_url, "old", version=4):
        one.subscribe("a/#", "b/+")
        expect_clients(node, "sensor-7", "old")
        found = clients(node)
        assert found["sensor-7"]["sdk"] == "mqtt 5"
        assert found["old"]["sdk"] == "mqtt 3.1.1"
        assert found["old"]["address"].startswith("127.0.0.1")
        table = node.run("client", "list").splitlines()
        assert all(text in table[0].lower() for text in ("address", "sdk"))
        assert all("127.0.0.1" in row and "mqtt" in row for row in table[1:])
        rows = map(json.loads, node.run("subscription", "list", "--json").splitlines())
        assert sorted(row["filter"] for row in rows if row["client"] == "sensor-7") == ["a", "a/>", "b/*"]
    expect_clients(node)


@pytest.mark.requirement("R233")
def test_an_operator_disconnects_one_and_the_others_stay(node: Node) -> None:
    with Paho(node.mqtt_url, "stays") as stays, Raw(node.mqtt_url) as goes:
        goes.connect("goes")
        expect_clients(node, "stays", "goes")
        node.run("client", "disconnect", "goes")
        told = goes.next()
        assert isinstance(told, Disconnect)
        assert told.code == ReasonCode.ADMINISTRATIVE_ACTION
        assert goes.next() is None
        expect_clients(node, "stays")
        wait_for(
            lambda: [row["event"] for row in events(node) if row.get("client") == "goes"],
            lambda names: names == ["CLIENT_CONNECT", "CLIENT_DISCONNECT"],
        )
        stays.subscribe("a")
        stays.publish("a", b"here")
        assert stays.receive().payload == b"here"


@pytest.mark.requirement("R233")
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_of_the_same_name_takes_over(node: Node, version: int) -> None:
    with Raw(node.mqtt_url, version) as old, Raw(node.mqtt_url, version) as new:
        assert old.connect("twin").code == 0
        assert new.connect("twin").code == 0
        if version == 5:
            told = old.next()
            assert isinstance(told, Disconnect)
            assert told.code == ReasonCode.SESSION_TAKEN_OVER
        assert old.next() is None
        new.subscribe("only/once")
        with blocking.connect(node.url) as ours:
            ours.publish("only/once", b"x")
        assert next(iter(new.payloads())) == b"x"
        expect_clients(node, "twin")


def test_a_client_of_ours_does_not_make_place(node: Node) -> None:
    with blocking.connect(node.url, client_name="native") as ours:
        with Raw(node.mqtt_url) as late:
            assert late.connect("native").code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            assert late.next() is None
        assert ours.connected


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("username", "password"), [("alice", "wrong"), ("alice", None), ("nobody", "x")])
def test_who_has_another_password_or_none_is_not_let_in(
    node: Node, username: str, password: str | None, version: int
) -> None:
    with Raw(orders_url(node), version) as stranger:
        given = None if password is None else password.encode()
        code = stranger.connect("s", username=username, password=given).code
        assert code == (ReasonCode.BAD_USER_NAME_OR_PASSWORD if version == 5 else 4)
        assert stranger.next() is None


@pytest.mark.parametrize("username", ["#gateway", "#link", "#bridge"])
def test_nobody_is_a_process_of_the_node_by_its_username(node: Node, username: str) -> None:
    with Raw(node.mqtt_url) as stranger:
        code = stranger.connect("s", username=username, password=b"x").code
        assert code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert stranger.next() is None


@pytest.mark.requirement("R233")
def test_a_changed_acl_profile_holds_for_clients_that_are_connected(node: Node) -> None:
    acl = ("acl", "update", "most", "--vpn", "orders", "--set")
    with alice(node, "publisher") as theirs, alice(node, "listener") as listener:
        assert listener.subscribe("secret/plan")[0].value == ReasonCode.NOT_AUTHORIZED
        assert not listener.subscribe("open/#")[0].is_failure
        theirs.publish("open/1", b"before")
        assert listener.receive().payload == b"before"
        node.run(*acl, "publish_topic_default=disallow")
        try:
            wait_for(lambda: denied_of(theirs, node), bool, "a message is denied")
            theirs.publish("open/3", b"denied for sure")
        finally:
            node.run(*acl, "publish_topic_default=allow")
        seen = set()
        while b"after" not in seen:
            theirs.publish("open/4", b"after")
            seen |= {payload for _, payload in listener.receive_many(listener.messages.qsize())}
        assert b"denied for sure" not in seen


def test_subscriptions_that_there_are_outlive_a_changed_acl_profile(node: Node) -> None:
    acl = ("acl", "update", "most", "--vpn", "orders", "--set")
    with alice(node, "publisher") as theirs, alice(node, "listener") as listener:
        assert not listener.subscribe("open/#")[0].is_failure
        node.run(*acl, "subscribe_topic_default=disallow", "--set", "subscribe_topic_exceptions=other/>")
        try:
            assert listener.subscribe("open/more")[0].value == ReasonCode.NOT_AUTHORIZED
            theirs.publish("open/1", b"still")
            assert listener.receive().payload == b"still"
        finally:
            node.run(*acl, "subscribe_topic_default=allow", "--set", "subscribe_topic_exceptions=secret/>")


def denied_of(theirs: Paho, node: Node) -> int:
    """Publish something, and give how often that was denied so far."""
    theirs.publish("open/2", b"another")
    return counted(node, "publisher", "publish-topic-acl", vpn="orders")


@pytest.mark.requirement("R233")
def test_a_username_that_is_disabled_ends_its_clients(node: Node) -> None:
    with Raw(orders_url(node)) as theirs, Paho(node.mqtt_url, "other") as other:
        assert theirs.connect("a", username="alice", password=PASSWORD.encode()).code == 0
        node.run("username", "update", "alice", "--vpn", "orders", "--set", "enabled=false")
        try:
            told = theirs.next()
            assert isinstance(told, Disconnect)
            assert told.code == ReasonCode.NOT_AUTHORIZED
            assert theirs.next() is None
            with Raw(orders_url(node)) as again:
                code = again.connect("a", username="alice", password=PASSWORD.encode()).code
                assert code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        finally:
            node.run("username", "update", "alice", "--vpn", "orders", "--set", "enabled=true")
        other.subscribe("a")
        other.publish("a", b"undisturbed")
        assert other.receive(LIMIT_S).payload == b"undisturbed"


def test_a_listener_of_a_message_vpn_that_does_not_exist_lets_nobody_in(node: Node) -> None:
    """As soon as it exists its clients come in."""
    node.run("vpn", "update", "orders", "--set", "enabled=false")
    try:
        with Raw(orders_url(node)) as theirs:
            code = theirs.connect("a", username="alice", password=PASSWORD.encode()).code
            assert code in (ReasonCode.SERVER_UNAVAILABLE, ReasonCode.NOT_AUTHORIZED)
    finally:
        node.run("vpn", "update", "orders", "--set", "enabled=true")

    def answer() -> int:
        with Raw(orders_url(node)) as theirs:
            return theirs.connect("a", username="alice", password=PASSWORD.encode()).code

    expect_value(answer, 0, "the client is let in")
