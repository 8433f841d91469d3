"""Wills of MQTT clients at a real node with two gateway processes: every end of a connection, delays, and deaths."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode as PahoReason

from angarium import blocking
from angarium_server.testing import Node
from cluster.admin.client import Admin
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.connect import Will
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, properties_of
from tests.integration.mqtt_node import clients, events, expect_clients
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import paho.mqtt.client as paho

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R240")]

CONFIG: Final = """
[mqtt]
listen = ["tcp://127.0.0.1:0"]
processes = 2

[vpn.default.username.default]
enabled = true

[vpn.default.acl.most]
client_connect_default = "allow"
publish_topic_default = "allow"
publish_topic_exceptions = ["secret/>"]
subscribe_topic_default = "allow"

[vpn.default.username.guarded]
acl_profile = "most"
"""
BOTH = pytest.mark.parametrize("version", [V3, V5])
KEPT: Final = Properties(session_expiry_interval=300)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("wills")
    (folder / "node.toml").write_text(CONFIG)
    with Node(folder / "data", workers=2, config=folder / "node.toml") as running:
        yield running


def delayed(topic: str, delay_s: int, payload: bytes = b"gone") -> Will:
    return Will(topic, payload, 1, properties=Properties(will_delay_interval=delay_s))


class Watcher(Paho):
    """Who is told of the ends of others."""

    def __init__(self, node: Node, topic: str, qos: int = 0) -> None:
        super().__init__(node.mqtt_url, f"watcher-{topic.split('/')[0]}")
        self._topic, self._qos = topic, qos
        self._marker = f"marker {uuid.uuid4()}".encode()

    def __enter__(self) -> Watcher:
        super().__enter__()
        self.client.subscribe(self._topic, self._qos)
        self.answers.get(timeout=LIMIT_S)
        return self

    def has_nothing(self) -> None:
        """See that nothing came before what is published now."""
        topic = self._topic.replace("#", "marker")
        self.publish(topic, self._marker, qos=self._qos)
        assert bytes(self.receive().payload) == self._marker

    def receive(self, timeout_s: float = LIMIT_S) -> paho.MQTTMessage:
        """Give the next message but the marker of another one, which comes later to who is in another process."""
        while (message := super().receive(timeout_s)).payload[
            :6
        ] == b"marker" and message.payload != self._marker:
            pass
        return message


def is_lost(_node: Node, client: Raw) -> None:
    client.socket.close()


def is_silent(_node: Node, client: Raw) -> None:
    assert client.version == V3 or isinstance(client.next(), Disconnect)
    assert client.next() is None


def breaks_a_rule(_node: Node, client: Raw) -> None:
    client.socket.sendall(b"\xff\0")


def is_thrown_out(node: Node, _client: Raw) -> None:
    node.run("client", "disconnect", "doomed")


def is_replaced(node: Node, client: Raw) -> None:
    with Raw(node.mqtt_url, client.version) as newer:
        assert newer.connect("doomed").code == 0
        newer.say(Disconnect())


def says_so(_node: Node, client: Raw) -> None:
    client.say(Disconnect(ReasonCode.DISCONNECT_WITH_WILL if client.version == V5 else 0))


ENDS = [is_lost, is_silent, breaks_a_rule, is_thrown_out, is_replaced]


@pytest.mark.parametrize(
    ("version", "end"), [(V5, says_so), *((version, end) for version in (V3, V5) for end in ENDS)]
)
def test_it_is_published_once_after_every_end_but_a_normal_one(
    node: Node, version: int, end: Callable[[Node, Raw], None]
) -> None:
    with Watcher(node, "ends/#") as watcher, Raw(node.mqtt_url, version) as client:
        keep_alive = 1 if end is is_silent else 60
        assert client.connect("doomed", will=Will("ends/1", b"gone"), keep_alive=keep_alive).code == 0
        end(node, client)
        assert watcher.receive_many(1) == [("ends/1", b"gone")]
        watcher.has_nothing()


@BOTH
def test_after_a_normal_end_it_is_not(node: Node, version: int) -> None:
    with Watcher(node, "normal/#") as watcher, Raw(node.mqtt_url, version) as client:
        assert client.connect("normal", will=Will("normal/1", b"gone")).code == 0
        client.say(Disconnect())
        assert client.next() is None
        watcher.has_nothing()


def break_off(client: paho.Client) -> None:
    """End the connection of a client without a word, as a crash of its process does."""
    client.loop_stop()
    socket = client.socket()
    assert socket is not None
    socket.close()


def test_it_has_its_properties_and_is_retained(node: Node) -> None:
    """As a library says it: QoS 1, to a queue, and to who comes later."""
    doomed = Paho(node.mqtt_url, "library")
    properties = PahoProperties(PacketTypes.WILLMESSAGE)  # type: ignore[no-untyped-call]
    said: dict[str, Any] = {
        "PayloadFormatIndicator": 1,
        "MessageExpiryInterval": 600,
        "ContentType": "text/plain",
        "ResponseTopic": "answers",
        "CorrelationData": b"\xff",
        "UserProperty": [("a", "1"), ("a", "2")],
    }
    for name, value in said.items():
        setattr(properties, name, value)
    doomed.client.will_set("state/library", b"offline", 1, retain=True, properties=properties)
    with Watcher(node, "state/#", qos=1) as watcher:
        assert not doomed.connect().is_failure
        break_off(doomed.client)
        message = watcher.receive()
        assert (message.topic, bytes(message.payload), message.qos) == ("state/library", b"offline", 1)
        found = properties_of(message)
        assert {name: getattr(found, name) for name in said} == {
            **said,
            "MessageExpiryInterval": found.MessageExpiryInterval,
        }
        assert 500 < found.MessageExpiryInterval <= 600
    with Paho(node.mqtt_url, "later") as later:
        later.subscribe("state/#")
        late = later.receive()
        assert (bytes(late.payload), late.retain) == (b"offline", True)
    with blocking.connect(node.url) as ours:
        (kept,) = ours.retained("state/>")
        assert kept.sender_id == "library"


def test_a_library_ends_with_its_will(node: Node) -> None:
    doomed = Paho(node.mqtt_url, "says-so")
    doomed.client.will_set("said/1", b"gone", 1)
    with Watcher(node, "said/#", qos=1) as watcher:
        assert not doomed.connect().is_failure
        doomed.client.disconnect(reasoncode=PahoReason(PacketTypes.DISCONNECT, identifier=4))
        assert watcher.receive_many(1) == [("said/1", b"gone")]
        doomed.client.loop_stop()
        watcher.has_nothing()


def kill_gateway_of(node: Node, client: Raw) -> None:
    """Kill the process that a client is connected to, and wait until both are there again."""
    client.socket.settimeout(1.0)
    for index in (0, 1):
        killed = node.kill("mqtt", index)
        try:
            is_gone = client.next() is None
        except TimeoutError:
            is_gone = False
        wait_for(
            lambda index=index: node.process("mqtt", index),  # type: ignore[misc]
            lambda row, killed=killed: row["state"] == "ready" and row["pid"] != killed,  # type: ignore[misc]
            "the gateway is replaced",
        )
        if is_gone:
            return
    raise AssertionError("the client is still connected")


def test_it_is_published_when_the_gateway_is_killed(node: Node) -> None:
    """Nobody else is at that gateway, nor comes to it; who is told is a client of ours."""
    with blocking.connect(node.url) as ours, Raw(node.mqtt_url) as client:
        subscription = ours.subscribe("killed/>")
        assert client.connect("killed", will=Will("killed/1", b"gone", 1)).code == 0
        kill_gateway_of(node, client)
        message = subscription.receive(LIMIT_S)
        assert (message.topic, message.payload, message.sender_id) == ("killed/1", b"gone", "killed")
        ours.publish("killed/2", b"marker")
        assert subscription.receive(LIMIT_S).payload == b"marker"


def comes_back(node: Node, name: str, **more: Any) -> Raw:
    """Connect to the session that is kept; a gateway may be on its way back."""

    def tried() -> Raw | None:
        try:
            raw = Raw(node.mqtt_url)
        except OSError:
            return None
        try:
            if raw.connect(name, clean_start=False, properties=KEPT, **more).code == 0:
                return raw
        except (AssertionError, OSError):
            pass
        raw.socket.close()
        return None

    found: Raw = wait_until(tried, f"{name} is let in")
    return found


def wills(node: Node) -> tuple[int, int]:
    """Give how many wait, and how many were published so far."""
    with Admin(node.data) as admin:
        router = admin.call("stats", role="router")["router"]
        return router["wills_waiting"], router.get("wills_published", 0)


def test_who_comes_back_from_a_killed_gateway_cancels_it(node: Node) -> None:
    _, published = wills(node)
    client = comes_back(node, "saved", will=delayed("saved/1", 300))
    kill_gateway_of(node, client)
    client.socket.close()
    wait_for(lambda: wills(node), lambda seen: seen == (1, published), "the will waits")
    with comes_back(node, "saved") as again:
        assert wills(node) == (0, published)
        again.say(Disconnect())


@pytest.mark.parametrize(("delay_s", "expiry_s"), [(1, 300), (300, 1)])
def test_it_waits_for_its_delay_or_the_end_of_the_session(node: Node, delay_s: int, expiry_s: int) -> None:
    with Watcher(node, "late/#", qos=1) as watcher, Raw(node.mqtt_url) as client:
        kept = Properties(session_expiry_interval=expiry_s)
        assert client.connect("late", will=delayed("late/1", delay_s), properties=kept).code == 0
        began = time.monotonic()
        client.socket.close()
        assert watcher.receive_many(1) == [("late/1", b"gone")]
        assert time.monotonic() >= began + 0.9
        watcher.has_nothing()


def test_who_begins_anew_ends_the_session_of_the_will(node: Node) -> None:
    with Watcher(node, "anew/#") as watcher:
        with comes_back(node, "anew", will=delayed("anew/1", 300)) as client:
            client.socket.close()
        with Raw(node.mqtt_url) as again:
            assert again.connect("anew").code == 0
            assert watcher.receive_many(1) == [("anew/1", b"gone")]
            again.say(Disconnect())


def test_one_that_the_acl_profile_forbids_is_told_to_operators(node: Node) -> None:
    with Watcher(node, "secret/#") as watcher, Raw(node.mqtt_url) as client:
        assert client.connect("guarded", username="guarded", will=Will("secret/1", b"gone")).code == 0
        client.socket.close()
        found = wait_until(
            lambda: [row for row in events(node) if row["event"] == "CLIENT_WILL_REFUSED"],
            "operators are told",
        )
        assert [(row["client"], row["username"], row["code"]) for row in found] == [
            ("guarded", "guarded", 40302)
        ]
        watcher.has_nothing()


@pytest.mark.parametrize(("size", "code"), [(65_000, 0), (65_535, ReasonCode.PACKET_TOO_LARGE)])
def test_a_connect_has_no_more_than_64_kib_with_its_will(node: Node, size: int, code: int) -> None:
    with Raw(node.mqtt_url) as client:
        assert client.connect("large", will=Will("large", bytes(size))).code == code
        if not code:
            client.say(Disconnect())


def test_who_would_cost_too_much_is_refused(node: Node) -> None:
    profile = ("profile", "update", "default", "--set")
    with Raw(node.mqtt_url) as client:
        before = json.loads(node.run("profile", "show", "default", "--json"))["max_memory_bytes"]
        node.run(*profile, "max_memory_bytes=5000")
        try:
            assert client.connect("dear", will=Will("dear", bytes(5_000))).code == ReasonCode.QUOTA_EXCEEDED
        finally:
            node.run(*profile, f"max_memory_bytes={before}")


def test_it_is_published_after_the_router_was_replaced(node: Node) -> None:
    """The next one is given it when it lets the client in again, which is still connected."""
    client = Raw(node.mqtt_url)
    assert client.connect("outlives", will=Will("outlives/gone", b"gone", 1)).code == 0
    with Watcher(node, "outlives/#") as watcher:
        killed = node.kill("router")
        wait_for(lambda: node.process("router"), lambda row: row["state"] == "ready" and row["pid"] != killed)
        expect_clients(node, "outlives", "watcher-outlives")
        wait_for(lambda: clients(node)["watcher-outlives"]["subscriptions"], bool)
        client.socket.close()
        assert watcher.receive().payload == b"gone"


def test_a_node_that_stops_publishes_them_all(tmp_path: Path) -> None:
    """Also those that wait, since it does not keep them; a queue has them when it is back."""
    (tmp_path / "node.toml").write_text(CONFIG)
    with Node(tmp_path / "data", workers=1, config=tmp_path / "node.toml") as node:
        node.run("queue", "create", "wills", "--subscription", "wills/>")
        with Raw(node.mqtt_url) as here, comes_back(node, "kept", will=delayed("wills/2", 300)) as kept:
            assert here.connect("here", will=Will("wills/1", b"gone", 1)).code == 0
            kept.socket.close()
            wait_for(lambda: node.run("client", "list"), lambda seen: "kept" not in seen, "it has left")
            node.restart()
        found = node.run("consume", "wills", "--count", "2")
        assert sorted(line for line in found.splitlines() if "wills/" in line)
        assert "wills/1" in found
        assert "wills/2" in found
