"""A gateway and a router that are killed, and a node that stops: what clients of MQTT hear, and that all comes back."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium import blocking
from angarium.errors import AngariumError
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw
from tests.integration.mqtt_node import PASSWORD, clients, expect_clients, mqtt_node, orders_url
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from angarium_server.testing import Node, Row

pytestmark = pytest.mark.slow


def ours(node: Node) -> blocking.Client | None:
    """Connect with the SDK; None if that cannot be yet."""
    try:
        return blocking.connect(node.url)
    except AngariumError:
        return None


def comes_back(node: Node, url: str) -> None:
    """See that clients are let in again, and that messages go both ways."""

    def connected() -> Paho | None:
        client = Paho(url, "again")
        try:
            reason = client.connect()
        except OSError:
            return None
        if reason.is_failure:
            client.__exit__()
            return None
        return client

    client = wait_until(connected, "a client is let in")
    try:
        with wait_until(lambda: ours(node), "our client is let in") as native:
            subscription = native.subscribe("to/us")
            client.subscribe("to/them")
            client.publish("to/us", b"1")
            native.publish("to/them", b"2")
            assert subscription.receive(LIMIT_S).payload == b"1"
            assert client.receive().payload == b"2"
    finally:
        client.__exit__()


def gateway(node: Node) -> Row:
    """Give the row of the gateway process."""
    return node.process("mqtt")


def test_a_gateway_that_is_killed_comes_back_where_it_was(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node, blocking.connect(node.url, client_name="ours") as ours:
        url = node.mqtt_url
        with Raw(url) as first, Raw(url) as second:
            for number, client in enumerate((first, second)):
                client.connect(f"c{number}")
                client.subscribe("a/#")
            expect_clients(node, "ours", "c0", "c1")
            killed = node.kill("mqtt")
            assert first.next() is None
            assert second.next() is None
        assert ours.connected, "nobody else has noticed"
        expect_clients(node, "ours")
        comes_back(node, url)
        assert node.process("mqtt")["pid"] != killed


def back_at(node: Node, killed: int) -> None:
    """Wait for another router."""
    wait_for(
        lambda: node.process("router"),
        lambda row: row["state"] == "ready" and row["pid"] != killed,
        "a router",
    )


@pytest.mark.requirement("R230")
def test_clients_of_mqtt_keep_their_connections_when_the_router_is_replaced(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node, Raw(node.mqtt_url) as new, Raw(node.mqtt_url, 4) as old:
        new.connect("new")
        old.connect("old")
        assert old.subscribe("a/#") == (0,)
        assert new.subscribe("$share/g/b") == (0,)
        gateway = node.process("mqtt")["pid"]
        killed = node.kill("router")
        new.say(PingReq())
        assert new.next() == PingResp(), "a client that pings is answered meanwhile"
        back_at(node, killed)
        expect_clients(node, "new", "old")
        wait_for(lambda: clients(node), lambda seen: all(row["subscriptions"] for row in seen.values()))
        new.say(Publish("a/1", b"1"))
        old.say(Publish("b", b"2"))
        assert (old.next(), new.next()) == (Publish("a/1", b"1"), Publish("b", b"2"))
        assert node.process("mqtt")["pid"] == gateway


def test_who_may_not_come_back_is_told_so(tmp_path: Path) -> None:
    """Its ACL profile was changed while there was no router; or a topic for its responses goes with the router."""
    with mqtt_node(tmp_path) as node, Raw(orders_url(node)) as alice, Raw(node.mqtt_url) as asks:
        alice.connect("alice", username="alice", password=PASSWORD.encode())
        assert alice.subscribe("open/#", "more/#") == (0, 0)
        asks.connect("asks", properties=Properties(request_response_information=1))
        router = node.process("router")["pid"]
        acl = ("acl", "update", "most", "--vpn", "orders", "--set")
        with standing_still(node.process("mqtt")["pid"]):
            node.kill("router")
            back_at(node, router)
            node.run(*acl, "subscribe_topic_exceptions=more/>")
        for client, code in [(alice, ReasonCode.NOT_AUTHORIZED), (asks, ReasonCode.SERVER_BUSY)]:
            told = client.next()
            assert isinstance(told, Disconnect)
            assert told.code == code
            assert client.next() is None
        comes_back(node, node.mqtt_url)


#: Clients that lose their router, those of them whose sessions are kept, and when all are back at the latest.
MANY, KEPT_MANY, BACK_S = 200, 40, 30.0


def let_in(url: str, numbers: Iterable[int], stack: ExitStack) -> dict[int, Raw]:
    """Connect clients all at once, each again and again until it is let in; the first ones keep their sessions."""
    here: dict[int, Raw] = {}
    deadline = time.monotonic() + BACK_S
    missing = [*numbers]
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} are not let in"
        tried = {number: stack.enter_context(Raw(url)) for number in missing}
        for number, client in tried.items():
            kept = Properties(session_expiry_interval=300 if number < KEPT_MANY else 0)
            client.say(Connect(client_id=f"c{number}", clean_start=False, properties=kept))
        answers = {number: client.next() for number, client in tried.items()}
        here |= {n: tried[n] for n, one in answers.items() if isinstance(one, ConnAck) and not one.code}
        missing = [number for number in missing if number not in here]
    return here


@pytest.mark.long
@pytest.mark.requirement("R230")
def test_many_clients_are_back_within_seconds_of_a_killed_router_and_their_sessions_go_on(
    tmp_path: Path,
) -> None:
    """Some have sessions that are kept, some such that end with their connections, all are still connected."""
    with mqtt_node(tmp_path) as node, ExitStack() as stack:
        first = let_in(node.mqtt_url, range(MANY), stack)
        for number in range(KEPT_MANY * 2):
            first[number].say(Subscribe(1, (Subscription(f"to/{number}", 1),)))
            assert first[number].next() == SubAck(1, (1,))
        back_at(node, node.kill("router"))
        wait_for(lambda: len(clients(node)), lambda seen: seen == MANY, "all are attached again", BACK_S)
        with wait_until(lambda: ours(node), "our client is let in") as native:
            for number in range(KEPT_MANY * 2):
                native.publish(f"to/{number}", b"%d" % number, mode="persistent")
        for number in range(KEPT_MANY * 2):
            message = first[number].next()
            assert isinstance(message, Publish)
            assert (message.payload, message.qos) == (b"%d" % number, 1)


def test_an_orderly_stop_is_told_and_what_was_published_before_arrives(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node, Raw(node.mqtt_url) as reader, Paho(node.mqtt_url) as other:
        reader.connect("reader")
        reader.subscribe("last/#")
        for number in range(500):
            other.publish(f"last/{number}", b"%d" % number)
        seen = [reader.next() for _ in range(500)]
        assert len(seen) == 500
        stopping = threading.Thread(target=node.stop)
        stopping.start()
        told = reader.next()
        assert isinstance(told, Disconnect)
        assert told.code == ReasonCode.SERVER_SHUTTING_DOWN
        assert reader.next() is None
        assert other.ends.get(timeout=LIMIT_S).value == ReasonCode.SERVER_SHUTTING_DOWN
        stopping.join(LIMIT_S)
        assert not stopping.is_alive()


@pytest.mark.long
def test_many_clients_hear_of_a_stop_and_none_holds_it_up(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node:
        clients = [Raw(node.mqtt_url) for _ in range(300)]
        try:
            for number, client in enumerate(clients):
                client.connect(f"c{number}")
            node.stop()
            codes = [packet.code for client in clients if isinstance(packet := client.next(), Disconnect)]
            assert codes == [ReasonCode.SERVER_SHUTTING_DOWN] * 300
        finally:
            for client in clients:
                client.socket.close()


@pytest.mark.long
def test_a_gateway_replaced_under_load_loses_nobody_but_its_own(tmp_path: Path) -> None:
    """Our own clients go on while gateways die again and again; the last one works."""
    with mqtt_node(tmp_path) as node, blocking.connect(node.url) as ours:
        subscription = ours.subscribe("steady/>")
        sent, killed = 0, set[int]()
        for _ in range(3):
            with Raw(node.mqtt_url) as client:
                assert client.connect("loud").code == 0
                killed.add(node.kill("mqtt"))
                for _ in range(100):
                    ours.publish("steady/1", b"%d" % sent)
                    sent += 1
            wait_for(lambda: gateway(node), lambda row: row["state"] == "ready" and row["pid"] not in killed)
        assert [int(subscription.receive(LIMIT_S).payload) for _ in range(sent)] == list(range(sent))
        comes_back(node, node.mqtt_url)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
def test_who_finds_no_room_waits_without_cost_and_goes_on(tmp_path: Path) -> None:
    """A router that stands still takes nothing; what waits for it is bounded, so its clients are not read."""
    payload, most, sent = bytes(60_000), 3_000, 0

    def flood() -> None:
        nonlocal sent
        for _ in range(most):
            raw.say(Publish("flood", payload))
            sent += 1
        raw.say(Publish("flood/end", b""))

    with mqtt_node(tmp_path) as node, Raw(node.mqtt_url) as raw, blocking.connect(node.url) as ours:
        end = ours.subscribe("flood/end")
        raw.connect("floods")
        sender = threading.Thread(target=flood)
        router, pid = node.process("router")["pid"], gateway(node)["pid"]
        with standing_still(router):  # for less than the five seconds after which it would be taken for hung
            sender.start()
            before = -1
            while sent != before:
                before = sent
                time.sleep(0.3)
            assert 0 < sent < most
            used_s = cpu_s(pid)
            time.sleep(1.0)
            assert cpu_s(pid) - used_s < 0.2
        assert end.receive(LIMIT_S) is not None
        sender.join(LIMIT_S)
        assert sent == most
