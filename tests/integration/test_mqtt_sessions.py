"""Sessions of MQTT clients at a real node: QoS 1 to them, and what waits for them while they are away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import angarium.blocking
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.integration.mqtt_clients import Raw
from tests.integration.mqtt_node import mqtt_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

KEPT = Properties(session_expiry_interval=300)
BOTH = pytest.mark.parametrize("version", [V3, V5])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def url(node: Node) -> str:
    return str(node.ready["mqtt"][0])


def subscribe(raw: Raw, *filters: str, qos: int = 1) -> tuple[int, ...]:
    raw.say(Subscribe(9, tuple(Subscription(one, qos) for one in filters)))
    answer = raw.next()
    assert isinstance(answer, SubAck), answer
    return answer.codes


def publish(node: Node, topic: str, *payloads: str) -> None:
    """Publish guaranteed messages with the SDK."""
    with angarium.blocking.connect(node.url) as client:
        for one in payloads:
            client.publish(topic, one.encode(), mode="persistent")


def come(raw: Raw, count: int) -> list[Publish]:
    found = [raw.next() for _ in range(count)]
    assert all(isinstance(one, Publish) for one in found), found
    return found  # type: ignore[return-value]


def kept(version: int) -> dict[str, Any]:
    """Say CONNECT so that the session stays."""
    return {"clean_start": False, "properties": KEPT} if version == V5 else {"clean_start": False}


@BOTH
def test_a_message_comes_with_qos_1_and_is_acknowledged_once(node: Node, version: int) -> None:
    with Raw(url(node), version) as raw:
        assert not raw.connect(f"one{version}").session_present
        assert subscribe(raw, f"one{version}/#") == (1,)
        publish(node, f"one{version}/a", "x", "y")
        first, second = come(raw, 2)
        assert [first.payload, second.payload] == [b"x", b"y"]
        assert (first.qos, first.dup) == (1, False)
        assert first.packet_id != second.packet_id
        raw.say(PubAck(first.packet_id), PubAck(second.packet_id))


@BOTH
def test_what_comes_while_a_client_is_away_waits_in_order(node: Node, version: int) -> None:
    name = f"away{version}"
    with Raw(url(node), version) as raw:
        assert not raw.connect(name, **kept(version)).session_present
        assert subscribe(raw, f"{name}/+") == (1,)
    payloads = [str(one) for one in range(300)]
    publish(node, f"{name}/a", *payloads)
    with Raw(url(node), version) as raw:
        assert raw.connect(name, **kept(version)).session_present
        found = []
        for _ in payloads:
            (one,) = come(raw, 1)
            found.append(one.payload.decode())
            raw.say(PubAck(one.packet_id))
        assert found == payloads
