"""Clients of MQTT and our own exchange messages through a real node, with the libraries that applications use."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING

import aiomqtt
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

import angarium
from angarium import blocking
from gateway.mqtt.codec.kinds import V3
from gateway.mqtt.codec.publish import Publish
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, place_of, properties_of, publish_properties
from tests.integration.mqtt_node import PASSWORD, mqtt_node, orders_url
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

#: Enough for several rounds, and for both workers.
MANY = 3_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


@pytest.mark.requirement("R234")
@pytest.mark.parametrize("version", [4, 5])
def test_messages_of_mqtt_reach_our_subscribers_in_order(node: Node, version: int) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url, version=version) as theirs:
        subscription = ours.subscribe("plant/>")
        for number in range(MANY):
            theirs.publish(f"plant/{number % 7}", b"%d" % number)
        seen = [subscription.receive(LIMIT_S) for _ in range(MANY)]
    by_topic: dict[str, list[int]] = {}
    for message in seen:
        by_topic.setdefault(message.topic, []).append(int(message.payload))
    assert by_topic == {f"plant/{at}": list(range(at, MANY, 7)) for at in range(7)}
    assert {message.sender_id for message in seen} == {seen[0].sender_id} != {None}


@pytest.mark.requirement("R234")
@pytest.mark.parametrize("version", [4, 5])
def test_our_messages_reach_subscribers_of_mqtt_in_order(node: Node, version: int) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url, version=version) as theirs:
        theirs.subscribe("line/#", "line/+/never")
        ours.publish_many((f"line/{number % 5}", b"%d" % number) for number in range(MANY))
        ours.publish("line", b"the level itself")
        seen = theirs.receive_many(MANY + 1)
    assert ("line", b"the level itself") in seen
    for at in range(5):
        own = [int(payload) for topic, payload in seen if topic == f"line/{at}"]
        assert own == list(range(at, MANY, 5))


@pytest.mark.requirement("R234")
def test_messages_go_between_clients_of_mqtt_of_both_versions(node: Node) -> None:
    with Paho(node.mqtt_url, "old", version=4) as old, Paho(node.mqtt_url, "new", version=5) as new:
        old.subscribe("to/old")
        new.subscribe("to/new")
        for number in range(100):
            old.publish("to/new", b"%d" % number)
            new.publish("to/old", b"%d" % number)
        expected = [b"%d" % number for number in range(100)]
        assert [payload for _, payload in new.receive_many(100)] == expected
        assert [payload for _, payload in old.receive_many(100)] == expected


@pytest.mark.requirement("R36")
def test_nothing_of_mqtt_is_elided_also_where_the_profile_allows_it(node: Node) -> None:
    """Neither what a client of MQTT publishes, nor what one gets: eliding is not in that protocol."""
    node.run("profile", "update", "default", "--set", "eliding=true", "--set", "eliding_delay_ms=60000")
    numbers = [b"%d" % number for number in range(20)]
    with (
        blocking.connect(node.url) as ours,
        blocking.connect(node.url) as screen,
        Paho(node.mqtt_url) as publisher,
        Paho(node.mqtt_url) as reader,
    ):
        subscription = screen.subscribe("price/*")
        reader.subscribe("price/+")
        for number in numbers:
            publisher.publish("price/theirs", number)
        assert [subscription.receive(LIMIT_S).payload for _ in numbers] == numbers
        assert [payload for _, payload in reader.receive_many(len(numbers))] == numbers
        for number in numbers:
            ours.publish("price/ours", number, eliding=True)
        ours.publish("price/last")
        assert [payload for _, payload in reader.receive_many(len(numbers) + 1)] == [*numbers, b""]
        shown = [subscription.receive(LIMIT_S).payload for _ in range(2)]
        assert shown == [numbers[0], b""], (
            "the screen of one of ours shows the first, and waits for a newer one"
        )
    node.run("profile", "update", "default", "--set", "eliding=false", "--set", "eliding_delay_ms=0")


@pytest.mark.requirement("R242")
def test_topics_of_the_system_are_hidden_from_wildcards_and_parents_are_not(node: Node) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url) as theirs:
        theirs.subscribe("#", "+/parent/#", "$own/+")
        for topic in ("$own/1", "$own/1/2", "a/parent", "a/parent/b/c"):
            ours.publish(topic, b"x")
        ours.publish("$other", b"x")
        wait_for(theirs.messages.qsize, lambda seen: seen == 3)
        assert {topic for topic, _ in theirs.receive_many(3)} == {"$own/1", "a/parent", "a/parent/b/c"}
        ours.publish("last", b"x")
        assert theirs.receive().topic == "last"


def test_after_unsubscribing_nothing_comes_any_more(node: Node) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url) as theirs:
        theirs.subscribe("first/#", "last")
        ours.publish("first/1", b"1")
        assert theirs.receive().payload == b"1"
        assert not theirs.unsubscribe("first/#")[0].is_failure
        ours.publish("first/2", b"2")
        ours.publish("last", b"3")
        assert theirs.receive().payload == b"3"
        assert theirs.messages.empty()


def test_a_client_that_wants_nothing_of_its_own_gets_what_others_send(node: Node) -> None:
    options = SubscribeOptions(noLocal=True)
    with Paho(node.mqtt_url) as one, Paho(node.mqtt_url) as other:
        one.subscribe("talk", options=options)
        one.publish("talk", b"mine")
        other.publish("talk", b"theirs")
        assert one.receive().payload == b"theirs"


@pytest.mark.requirement("R244")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_bridge_of_mosquitto_gets_nothing_back_and_what_is_retained_as_it_was_published(
    node: Node, qos: int
) -> None:
    """It was refused in words that it does not know, and tried the same again for ever."""
    topic = f"bridged/{qos}"
    with Raw(node.mqtt_url, V3) as bridge, Raw(node.mqtt_url) as other:
        assert not bridge.connect(f"bridge-{qos}", is_bridge=True).code
        assert not other.connect().code
        assert bridge.subscribe(f"{topic}/#", qos=qos) == (qos,)
        assert other.subscribe(topic) == (0,)
        bridge.say(Publish(topic, b"own"))
        (came,) = other.come(1)
        assert (came.payload, came.retain) == (b"own", False)
        other.say(Publish(topic, b"kept", qos, packet_id=qos, retain=True))
        (came,) = bridge.come(1)
        assert (came.payload, came.qos, came.retain) == (b"kept", qos, True)
        other.say(Publish(topic, b"", retain=True))
        (came,) = bridge.come(1)
        assert (came.payload, came.retain) == (b"", True)


def test_what_5_0_says_of_a_message_is_what_our_clients_read_and_the_other_way_round(node: Node) -> None:
    said = publish_properties(
        UserProperty=[("colour", "red"), ("size", "9")],
        ContentType="text/plain",
        CorrelationData=b"order 7",
        ResponseTopic="answers/7",
        MessageExpiryInterval=60,
        PayloadFormatIndicator=1,
    )
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url, "sender") as theirs:
        subscription = ours.subscribe("told")
        theirs.publish("told", b"x", properties=said)
        message = subscription.receive(LIMIT_S)
        assert message.properties == {"colour": "red", "size": "9"}
        assert (message.content_type, message.correlation_id) == ("text/plain", "order 7")
        assert (message.reply_to, message.sender_id, message.ttl_ms) == ("answers/7", "sender", 60_000)
        theirs.subscribe("back", "told")
        theirs.publish("told", b"x", properties=said)
        heard = properties_of(theirs.receive())
        assert (heard.PayloadFormatIndicator, heard.MessageExpiryInterval) == (1, 60)
        ours.publish(
            "back", b"y", properties={"n": "1"}, correlation_id="c", content_type="a/b", reply_to="r"
        )
        heard = properties_of(theirs.receive())
        assert heard.UserProperty == [("n", "1")]
        assert (heard.ContentType, heard.CorrelationData, heard.ResponseTopic) == ("a/b", b"c", "r")


def test_a_client_of_mqtt_answers_our_requests(node: Node) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url) as theirs:
        theirs.subscribe("ask")

        def answer() -> None:
            request = properties_of(theirs.receive())
            assert request.ResponseTopic.startswith("$P2P/INB/")
            reply = publish_properties(CorrelationData=request.CorrelationData)
            theirs.publish(request.ResponseTopic, b"yes", properties=reply)

        answering = Thread(target=answer)
        answering.start()
        assert ours.request("ask", b"well?", timeout_s=LIMIT_S).payload == b"yes"
        answering.join(LIMIT_S)


def test_every_subscriber_of_mqtt_gets_a_message_and_only_one_of_ours_where_they_share(node: Node) -> None:
    """MQTT knows no deliver-to-one; a share is drawn among clients of both kinds."""
    with Paho(node.mqtt_url) as first, Paho(node.mqtt_url) as second, blocking.connect(node.url) as ours:
        for one in (first, second):
            one.subscribe("both", "$share/crew/tasks/#")
        ours.publish("both", b"x")
        assert first.receive().payload == second.receive().payload == b"x"
        for number in range(200):
            ours.publish("tasks/1", b"%d" % number)
        wait_for(lambda: first.messages.qsize() + second.messages.qsize(), lambda seen: seen == 200)
        parts = [one.receive_many(one.messages.qsize()) for one in (first, second)]
    assert sorted(int(payload) for part in parts for _, payload in part) == list(range(200))
    assert min(map(len, parts)) > 40, "each is as likely"


def test_an_address_is_that_of_a_message_vpn(node: Node) -> None:
    with (
        Paho(orders_url(node), username="alice", password=PASSWORD) as there,
        Paho(node.mqtt_url) as here,
        blocking.connect(node.url, vpn="orders", username="alice", password=PASSWORD) as ours,
    ):
        there.subscribe("a/#")
        here.subscribe("#")
        ours.publish("a", b"in orders")
        here.publish("a", b"in default")
        assert there.receive().payload == b"in orders"
        assert here.receive().payload == b"in default"


def test_a_client_of_asyncio_works_as_well(node: Node) -> None:
    async def run() -> list[bytes]:
        host, port = place_of(node.mqtt_url)
        async with aiomqtt.Client(host, port) as theirs, angarium.connect(node.url) as ours:
            await theirs.subscribe("a/+/c")
            await ours.publish("a/b/c", b"1")
            await theirs.publish("a/x/c", b"2")
            seen = []
            async for message in theirs.messages:
                assert isinstance(message.payload, bytes)
                seen.append(message.payload)
                if len(seen) == 2:
                    return seen
        raise AssertionError

    assert sorted(asyncio.run(asyncio.wait_for(run(), LIMIT_S))) == [b"1", b"2"]


def test_much_for_many_clients_takes_several_turns_and_stays_in_order(node: Node) -> None:
    expected = [b"%d" % number for number in range(MANY)]
    with blocking.connect(node.url) as ours, ExitStack() as ends:
        theirs = [ends.enter_context(Raw(node.mqtt_url)) for _ in range(12)]
        for one in theirs:
            one.connect()
            assert one.subscribe("much/#") == (0,)
        for _ in range(2):
            ours.publish_many(("much/1", payload) for payload in expected)
            for one in theirs:
                assert [*islice(one.payloads(), MANY)] == expected
