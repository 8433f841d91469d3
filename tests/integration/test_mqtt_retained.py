"""Retained messages and clients of MQTT on a real node, with the libraries that applications use."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

import angarium
from angarium import blocking
from gateway.mqtt.codec import V3, V5
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, place_of, properties_of
from tests.integration.mqtt_node import mqtt_node
from tests.share import short
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R239")]

#: More than one page of what is retained.
MANY = short(2_100, long=3_000)
PAYLOAD = bytes(200)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


def kept(node: Node, pattern: str) -> dict[str, bytes]:
    """Give what is retained as a client of ours reads it."""

    async def read() -> dict[str, bytes]:
        async with angarium.connect(node.url) as client:
            return {message.topic: message.payload async for message in client.retained(pattern)}

    return asyncio.run(read())


def is_kept(node: Node, expected: dict[str, bytes], pattern: str) -> None:
    wait_for(lambda: kept(node, pattern), lambda seen: seen == expected, f"{expected} is retained")


@pytest.mark.parametrize("version", [4, 5])
def test_what_a_client_retains_comes_first_to_who_subscribes_later(node: Node, version: int) -> None:
    with Paho(node.mqtt_url, version=version) as one:
        # A node that has just begun keeps nothing with QoS 0 before its homes are there, and what is stored shows that.
        one.client.publish(f"first{version}/a", b"old", 1, retain=True).wait_for_publish(LIMIT_S)
        one.subscribe(f"behind{version}")
        one.publish(f"first{version}/a", b"kept", retain=True)
        one.publish(f"first{version}/a", b"live")
        one.publish(f"behind{version}", b"")
        assert one.receive().topic == f"behind{version}", (
            "who subscribes from here on gets nothing of what was said"
        )
        is_kept(node, {f"first{version}/a": b"kept"}, f"first{version}/>")
        with Paho(node.mqtt_url, version=version) as other:
            other.subscribe(f"first{version}/#")
            message = other.receive()
            assert (message.payload, message.retain, message.qos) == (b"kept", True, 0)
            one.publish(f"first{version}/a", b"now", retain=True)
            message = other.receive()
            assert (message.payload, message.retain) == (b"now", False)
            one.publish(f"first{version}/a", b"", retain=True)
            assert other.receive().payload == b""
        is_kept(node, {}, f"first{version}/>")
        with Paho(node.mqtt_url, version=version) as third:
            third.subscribe(f"first{version}/#", "end")
            one.publish("end", b"")
            assert third.receive().topic == "end"


@pytest.mark.parametrize("version", [V3, V5])
def test_a_message_comes_with_its_qos_but_no_higher_one_than_was_granted(node: Node, version: int) -> None:
    """[MQTT-3.8.4-8]; a client that takes one at a time gets all, and what comes live behind it."""
    name = f"qos{version}"
    with Paho(node.mqtt_url) as gives, Raw(node.mqtt_url, version) as takes:
        for qos in range(3):
            gives.client.publish(f"{name}/{qos}", b"kept", qos, retain=True).wait_for_publish(LIMIT_S)
        is_kept(node, {f"{name}/{qos}": b"kept" for qos in range(3)}, f"{name}/>")
        takes.connect(name, properties=Properties(receive_maximum=1) if version == V5 else NONE)
        for granted in (1, 2):
            assert takes.subscribe(f"{name}/+", qos=granted) == (granted,)
            found = [acknowledged(takes) for _ in range(3)]
            gives.client.publish(f"{name}/live", b"live", 1).wait_for_publish(LIMIT_S)
            found.append(acknowledged(takes))
            assert [(one.topic[-1], one.qos, one.retain) for one in found] == [
                ("0", 0, True),
                ("1", 1, True),
                ("2", granted, True),
                ("e", 1, False),
            ]


def acknowledged(client: Raw) -> Publish:
    """Take a message, and say what is to be said."""
    (message,) = client.come(1)
    if message.qos == 1:
        client.say(PubAck(message.packet_id))
    elif message.qos == 2:
        client.say(PubRec(message.packet_id))
        assert client.next() == PubRel(message.packet_id)
        client.say(PubComp(message.packet_id))
    return message


def test_our_retained_messages_reach_clients_of_mqtt_and_theirs_reach_ours(node: Node) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url) as theirs:
        ours.publish("both/ours", b"1", retain=True, ttl_ms=60_000, properties={"colour": "red"})
        theirs.publish("both/theirs", b"2", retain=True)
        is_kept(node, {"both/ours": b"1", "both/theirs": b"2"}, "both/>")
        theirs.subscribe("both/#")
        seen = {message.topic: message for message in (theirs.receive(), theirs.receive())}
        assert {topic: message.payload for topic, message in seen.items()} == {
            "both/ours": b"1",
            "both/theirs": b"2",
        }
        assert all(message.retain for message in seen.values())
        assert properties_of(seen["both/ours"]).UserProperty == [("colour", "red")]


def test_the_expiry_of_a_message_is_less_what_it_has_been_kept(node: Node) -> None:
    """[MQTT-3.3.2-6], and the same for our clients."""
    with blocking.connect(node.url) as ours:
        ours.publish("aged", b"1", retain=True, ttl_ms=60_000)

        def left_ms() -> int:
            (message,) = [*ours.retained("aged"), None][:1]
            return 60_000 if message is None else message.ttl_ms

        seen = wait_for(left_ms, lambda left: left < 58_000, "two seconds pass")
    with Paho(node.mqtt_url) as theirs:
        theirs.subscribe("aged")
        assert properties_of(theirs.receive()).MessageExpiryInterval <= (seen + 999) // 1000


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_a_client_says_whether_a_subscription_begins_with_what_is_retained(
    node: Node, handling: int, first: int, second: int
) -> None:
    with Paho(node.mqtt_url) as theirs:
        theirs.publish(f"handling{handling}", b"kept", retain=True)
        is_kept(node, {f"handling{handling}": b"kept"}, f"handling{handling}")
        for expected in (first, second):
            theirs.subscribe(f"handling{handling}", options=SubscribeOptions(retainHandling=handling))
            theirs.subscribe("mark")
            theirs.publish("mark", b"")
            seen: list[str] = []
            while seen[-1:] != ["mark"]:
                seen.append(theirs.receive().topic)
            assert seen == [f"handling{handling}"] * expected + ["mark"]
            theirs.unsubscribe("mark")


def test_the_flag_of_live_messages_is_kept_for_who_asks_for_it(node: Node) -> None:
    with Paho(node.mqtt_url) as theirs:
        theirs.subscribe("flag", options=SubscribeOptions(retainAsPublished=True))
        theirs.publish("flag", b"1", retain=True)
        theirs.publish("flag", b"2")
        assert [theirs.receive().retain for _ in range(2)] == [True, False]


def test_shared_subscriptions_get_nothing_that_is_retained(node: Node) -> None:
    with Paho(node.mqtt_url) as theirs:
        theirs.publish("shared/a", b"kept", retain=True)
        is_kept(node, {"shared/a": b"kept"}, "shared/>")
        theirs.subscribe("$share/g/shared/#")
        theirs.publish("shared/a", b"live")
        message = theirs.receive()
        assert (message.payload, message.retain) == (b"live", False)


def test_a_retained_message_has_the_identifier_of_its_subscription(node: Node) -> None:
    with Paho(node.mqtt_url) as theirs, Raw(node.mqtt_url) as raw:
        theirs.publish("named/a", b"kept", retain=True)
        is_kept(node, {"named/a": b"kept"}, "named/>")
        raw.connect("raw")
        raw.say(Subscribe(1, (Subscription("named/+"),), Properties(subscription_identifiers=(7,))))
        assert isinstance(raw.next(), SubAck)
        message = raw.next()
        assert isinstance(message, Publish)
        assert message.retain
        assert message.properties.subscription_identifiers == (7,)


class States:
    """Publishes the states of many topics, each one higher than the one before, until told to stop."""

    def __init__(self, node: Node, prefix: str, topics: int, *, retain: bool = True) -> None:
        self.last: dict[str, int] = {}
        self._stop = threading.Event()
        self._names = [f"{prefix}/{number}" for number in range(topics)]
        self._retain = retain
        self._node = node
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        number = 0
        with blocking.connect(self._node.url) as client:
            while not self._stop.is_set():
                for name in self._names:
                    number += 1
                    client.publish(name, b"%d" % number, retain=self._retain)
                    self.last[name] = number
                client.flush()
                self._stop.wait(0.05)  # slower than the slowest machine: who is behind loses messages

    def __enter__(self) -> States:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)


def test_nothing_is_missed_and_nothing_comes_twice_while_publishing_goes_on(node: Node) -> None:
    """Each topic counts up: who subscribes at any time gets a state, and all that follow it, each once."""
    clients = 12
    with States(node, "busy", 40) as states:
        wait_for(lambda: len(states.last), lambda seen: seen == 40, "each topic has a state")
        subscribers = [
            Paho(node.mqtt_url, f"busy{number}", version=4 + number % 2) for number in range(clients)
        ]
        try:
            for subscriber in subscribers:
                assert not subscriber.connect().is_failure
                subscriber.subscribe("busy/#")
            wait_for(
                lambda: min(one.messages.qsize() for one in subscribers), lambda seen: seen > 200, "messages"
            )
            states.__exit__()
            for subscriber in subscribers:
                check_states(subscriber, states.last)
        finally:
            for subscriber in subscribers:
                subscriber.__exit__()


def check_states(subscriber: Paho, last: dict[str, int]) -> None:
    """Take messages until the last of each topic is there; each topic is complete, in order, and has one retained."""
    seen: dict[str, list[Any]] = {}
    while any(topic not in seen or int(seen[topic][-1].payload) != number for topic, number in last.items()):
        message = subscriber.receive()
        seen.setdefault(message.topic, []).append(message)
    for messages in seen.values():
        numbers = [int(message.payload) for message in messages]
        assert numbers == list(range(numbers[0], numbers[-1] + 1, 40))
        assert not any(message.retain for message in messages[1:])


def test_many_pages_come_once_to_many_clients_in_the_order_of_topics(node: Node) -> None:
    with blocking.connect(node.url) as ours:
        for number in range(MANY):
            ours.publish(f"many/{number:05}", PAYLOAD, retain=True)
        ours.flush()
    wait_for(lambda: len(kept(node, "many/>")), lambda seen: seen == MANY, "all are retained")
    clients = [Paho(node.mqtt_url) for _ in range(short(3, long=5))]
    try:
        for client in clients:
            client.connect()
            client.client.subscribe("many/#")
        for client in clients:
            seen = [client.receive() for _ in range(MANY)]
            assert [message.topic for message in seen] == [f"many/{number:05}" for number in range(MANY)]
            assert all(message.retain and message.payload == PAYLOAD for message in seen)
    finally:
        for client in clients:
            client.__exit__()


def test_aiomqtt_gets_what_is_retained(node: Node) -> None:
    async def scenario() -> tuple[bytes, bool]:
        host, port = place_of(node.mqtt_url)
        async with aiomqtt.Client(host, port) as client:
            await client.publish("aio/a", b"kept", retain=True)
            await asyncio.to_thread(is_kept, node, {"aio/a": b"kept"}, "aio/>")
            await client.subscribe("aio/#")
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                return message.payload, message.retain
        raise AssertionError

    assert asyncio.run(asyncio.wait_for(scenario(), LIMIT_S)) == (b"kept", True)
