"""Sessions of MQTT clients at a real node: QoS 1 to them, and what waits for them while they are away."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium.blocking
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.subscribe import UnsubAck, Unsubscribe
from tests.integration.mqtt_clients import Paho, Raw
from tests.integration.mqtt_node import mqtt_node, publish
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node
    from gateway.mqtt.codec.publish import Publish

KEPT = Properties(session_expiry_interval=300)
BOTH = pytest.mark.parametrize("version", [V3, V5])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def url(node: Node) -> str:
    return str(node.ready["mqtt"][0])


def kept(version: int) -> dict[str, Any]:
    """Say CONNECT so that the session stays."""
    return {"clean_start": False, "properties": KEPT} if version == V5 else {"clean_start": False}


@BOTH
def test_a_message_comes_with_qos_1_and_is_acknowledged_once(node: Node, version: int) -> None:
    with Raw(url(node), version) as raw:
        assert not raw.connect(f"one{version}").session_present
        assert raw.subscribe(f"one{version}/#", qos=1) == (1,)
        publish(node, f"one{version}/a", "x", "y")
        first, second = raw.come(2)
        assert [first.payload, second.payload] == [b"x", b"y"]
        assert (first.qos, first.dup) == (1, False)
        assert first.packet_id != second.packet_id
        raw.say(PubAck(first.packet_id), PubAck(second.packet_id))


@pytest.mark.requirement("R237")
@pytest.mark.parametrize("version", [pytest.param(V3, marks=pytest.mark.long), V5])
def test_what_comes_while_a_client_is_away_waits_in_order(node: Node, version: int) -> None:
    name = f"away{version}"
    with Raw(url(node), version) as raw:
        assert not raw.connect(name, **kept(version)).session_present
        assert raw.subscribe(f"{name}/+", qos=1) == (1,)
    payloads = [str(one) for one in range(300)]
    publish(node, f"{name}/a", *payloads)
    with Raw(url(node), version) as raw:
        assert raw.connect(name, **kept(version)).session_present
        found = []
        for _ in payloads:
            (one,) = raw.come(1)
            found.append(one.payload.decode())
            raw.say(PubAck(one.packet_id))
        assert found == payloads


def connected(node: Node, name: str, version: int = V5, **more: Any) -> tuple[Raw, bool]:
    """Give a connection and whether its session was there; the gateway may be on its way back."""

    def tried() -> tuple[Raw, bool] | None:
        try:
            raw = Raw(url(node), version)
        except OSError:
            return None
        try:
            answer = raw.connect(name, **{**kept(version), **more})
        except (AssertionError, OSError):
            raw.socket.close()
            return None
        if answer.code:
            raw.socket.close()
            return None
        return raw, answer.session_present

    found: tuple[Raw, bool] = wait_until(tried, f"{name} is let in")
    return found


def unsettled(node: Node, name: str) -> list[Publish]:
    """Give a session `name` two messages that its client has and has not acknowledged, and end the connection."""
    raw, _ = connected(node, name)
    with raw:
        raw.subscribe(f"{name}/#", qos=1)
        publish(node, f"{name}/a", "x", "y")
        return raw.come(2)


@pytest.mark.requirement("R237")
def test_what_was_not_acknowledged_comes_again_with_dup_and_its_identifier(node: Node) -> None:
    first = unsettled(node, "again")
    raw, is_present = connected(node, "again")
    with raw:
        assert is_present
        assert [(one.payload, one.packet_id) for one in raw.come(2)] == [
            (one.payload, one.packet_id) for one in first
        ]


@pytest.mark.requirement("R238")
def test_who_takes_over_gets_what_the_other_has_not_acknowledged(node: Node) -> None:
    older, _ = connected(node, "two")
    with older:
        older.subscribe("two/#", qos=1)
        publish(node, "two/a", "1", "2")
        first, _ = older.come(2)
        older.say(PubAck(first.packet_id))
        publish(node, "two/a", "3")
        older.come(1)
        newer, is_present = connected(node, "two")
        with newer:
            assert is_present
            assert [(one.payload, one.dup) for one in newer.come(2)] == [(b"2", True), (b"3", True)]
            last = older.next()
            assert isinstance(last, Disconnect)
            assert last.code == ReasonCode.SESSION_TAKEN_OVER


@pytest.mark.requirement("R237")
@pytest.mark.requirement("R238")
def test_a_session_ends_when_its_time_is_over_or_its_client_says_so(node: Node) -> None:
    for name, connect_s, disconnect_s in (("late", 1, None), ("changed", 300, 1), ("over", 300, 0)):
        given = Properties(session_expiry_interval=connect_s)
        raw, _ = connected(node, name, properties=given)
        with raw:
            raw.subscribe(f"{name}/#", qos=1)
            raw.say(Disconnect(properties=Properties(session_expiry_interval=disconnect_s)))
            assert raw.next() is None
    wait_for(lambda: queues(node), lambda seen: not {"late", "changed", "over"} & seen, "the sessions end")


def queues(node: Node) -> set[str]:
    """Give the names of clients with a session."""
    rows = map(json.loads, node.run("queue", "list", "--json").splitlines())
    return {row["name"].removeprefix("#mqtt/") for row in rows}


@pytest.mark.requirement("R238")
def test_a_clean_start_throws_away_what_waited(node: Node) -> None:
    unsettled(node, "clean")
    raw, is_present = connected(node, "clean", clean_start=True)
    with raw:
        assert not is_present
        publish(node, "clean/a", "nobody wants it")
        assert raw.subscribe("clean/#", qos=1) == (1,)
        publish(node, "clean/a", "new")
        assert [one.payload for one in raw.come(1)] == [b"new"]


def test_subscriptions_with_qos_0_are_there_again(node: Node) -> None:
    raw, _ = connected(node, "zero")
    with raw:
        assert raw.subscribe("zero/#", qos=0) == (0,)
        assert raw.subscribe("one/#", qos=1) == (1,)
    publish(node, "zero/a", "missed")
    raw, _ = connected(node, "zero")
    with raw, angarium.blocking.connect(node.url) as client:
        # Being answered, it stands behind what is restored.
        raw.say(Unsubscribe(3, ("nothing",)))
        assert isinstance(raw.next(), UnsubAck)
        client.publish("zero/a", b"direct")
        assert [(one.payload, one.qos) for one in raw.come(1)] == [(b"direct", 0)]


def test_an_operator_ends_a_session_with_its_connection(node: Node) -> None:
    raw, _ = connected(node, "gone")
    with raw:
        raw.subscribe("gone/#", qos=1)
        node.run("queue", "delete", "#mqtt/gone")
        last = raw.next()
        assert isinstance(last, Disconnect)
        assert last.code == ReasonCode.ADMINISTRATIVE_ACTION


def test_a_client_of_paho_gets_what_came_while_it_was_away(node: Node) -> None:
    client = Paho(url(node), "paho", version=V3, keeps=True)
    with client:
        assert [reason.value for reason in client.subscribe("paho/#", options=1)] == [1]
    publish(node, "paho/a", *map(str, range(50)))
    client = Paho(url(node), "paho", version=V3, keeps=True)
    with client:
        assert client.receive_many(50) == [("paho/a", b"%d" % one) for one in range(50)]


@pytest.mark.requirement("R237")
@pytest.mark.slow
def test_what_waits_outlives_the_gateway_a_worker_and_the_node(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node:
        first = unsettled(node, "kept")
        node.kill("mqtt")
        raw, is_present = connected(node, "kept")
        with raw:
            assert is_present
            found = raw.come(2)
            assert [(one.payload, one.packet_id, one.dup) for one in found] == [
                (b"x", first[0].packet_id, True),
                (b"y", first[1].packet_id, True),
            ]
            raw.say(PubAck(found[0].packet_id))
            for index in range(2):
                node.kill("worker", index)
            publish(node, "kept/a", "z")
            assert [one.payload for one in raw.come(1)] == [b"z"]  # and nothing twice on one connection
        node.restart()
        raw, is_present = connected(node, "kept")
        with raw:
            assert is_present
            assert [(one.payload, one.dup) for one in raw.come(2)] == [(b"y", True), (b"z", True)]


@pytest.mark.long
@pytest.mark.slow
def test_what_was_acknowledged_to_its_publisher_comes_to_its_subscriber_whoever_dies(tmp_path: Path) -> None:
    """Both are clients of paho that come back by themselves; neither knows of the other or of us."""
    with mqtt_node(tmp_path) as node:
        getter, putter = (Paho(url(node), one, version=V3, keeps=True) for one in ("getter", "putter"))
        with getter, putter:
            for one in (getter, putter):
                one.client.reconnect_delay_set(1, 1)
            getter.subscribe("both/#", options=1)
            stored: set[int] = set()
            putter.client.on_publish = lambda _client, _data, number, _reason, _properties: stored.add(number)
            payloads = {}
            for number in range(300):
                payload = b"%d" % number
                payloads[putter.client.publish("both/a", payload, qos=1).mid] = payload
                if number in (75, 150, 225):
                    node.kill({75: "mqtt", 150: "worker", 225: "router"}[number])
                time.sleep(0.01)  # so that the kills meet messages of all stages
            wait_for(lambda: len(stored), lambda count: count == 300, "all are acknowledged")
            waited_for = {payloads[number] for number in stored}
            while waited_for:
                waited_for.discard(bytes(getter.receive().payload))
