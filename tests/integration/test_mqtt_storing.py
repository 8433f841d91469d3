"""Clients of MQTT publish with QoS 1 to a real node: what is acknowledged is stored, and what is not has a reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiomqtt
import msgspec
import pytest

import angarium
from angarium import blocking
from gateway.mqtt.codec import V3, V5, ReasonCode
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, place_of, publish_properties
from tests.integration.mqtt_node import PASSWORD, RECEIVE_MAX, mqtt_node, orders_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])
#: More than may be unacknowledged, so that the window moves on.
MANY = 1_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


def create(node: Node, name: str, *filters: str, vpn: str = "default", **attributes: object) -> None:
    """Create a queue."""
    values = [f"--set={key}={value}" for key, value in attributes.items()]
    node.run("queue", "create", name, "--vpn", vpn, *values, *[f"--subscription={one}" for one in filters])


def take(node: Node, queue: str, count: int) -> list[angarium.GuaranteedMessage]:
    """Take so many messages of a queue, and see that there are no more."""
    with blocking.connect(node.url) as client, client.consume(queue) as flow:
        found = [flow.receive(LIMIT_S) for _ in range(count)]
        for message in found:
            message.accept()
        with pytest.raises(angarium.AngariumError):
            flow.receive(0.3)
        return found


def answers(client: Raw, *packets: Publish) -> list[tuple[int, int]]:
    """Publish, and give packet ids and reasons of the answers as they come."""
    client.say(*packets)
    found = [client.next() for _ in packets]
    assert all(isinstance(one, PubAck) for one in found), found
    return [(one.packet_id, one.code) for one in found if isinstance(one, PubAck)]


def message(number: int, topic: str, payload: bytes = b"x") -> Publish:
    return Publish(topic, payload, qos=1, packet_id=number)


@pytest.mark.requirement("R235")
@pytest.mark.parametrize("version", [pytest.param(V3, marks=pytest.mark.long), V5])
def test_what_is_acknowledged_is_in_the_queue_in_order(node: Node, version: int) -> None:
    queue = f"orders-{version}"
    create(node, queue, f"{queue}/>")
    with Paho(node.mqtt_url, f"c{version}", version=version) as theirs:
        sent = [theirs.client.publish(f"{queue}/{number % 3}", b"%d" % number, 1) for number in range(MANY)]
        for one in sent:
            one.wait_for_publish(LIMIT_S)
    stored = take(node, queue, MANY)
    assert [int(one.payload) for one in stored] == list(range(MANY))
    assert {one.sender_id for one in stored} == {f"c{version}"}


def test_properties_reach_a_consumer_of_ours(node: Node) -> None:
    create(node, "typed", "typed/>")
    with Paho(node.mqtt_url) as theirs:
        given = publish_properties(
            UserProperty=[("k", "v")], ContentType="text/plain", MessageExpiryInterval=60
        )
        theirs.client.publish("typed/1", b"x", 1, properties=given).wait_for_publish(LIMIT_S)
    (stored,) = take(node, "typed", 1)
    assert (stored.properties, stored.content_type) == ({"k": "v"}, "text/plain")
    assert 50_000 < stored.ttl_ms <= 60_000


def test_direct_subscribers_get_it_too(node: Node) -> None:
    with blocking.connect(node.url) as ours, Paho(node.mqtt_url) as theirs, Raw(node.mqtt_url) as sender:
        subscription = ours.subscribe("copy/>")
        theirs.subscribe("copy/#")
        sender.connect("sender")
        assert answers(sender, message(1, "copy/1")) == [(1, R.SUCCESS)]
        assert subscription.receive(LIMIT_S).topic == "copy/1"
        copy = theirs.receive()
        assert (copy.topic, copy.qos) == ("copy/1", 0)


@BOTH
def test_a_message_that_nobody_wants_is_acknowledged_as_such(node: Node, version: int) -> None:
    with Raw(node.mqtt_url, version) as client:
        client.connect("lonely")
        told = R.NO_MATCHING_SUBSCRIBERS if version == V5 else R.SUCCESS
        assert answers(client, message(7, "nobody/1"), message(8, "nobody/2")) == [(7, told), (8, told)]


@pytest.mark.requirement("R235")
def test_a_full_queue_refuses_and_the_others_are_answered_in_order(node: Node) -> None:
    create(node, "small", "small/>", max_spool_usage_mb=1)
    create(node, "large", "large/>")
    with Raw(node.mqtt_url) as client:
        client.connect("filling")
        payload = b"x" * 60_000
        found = answers(
            client,
            *[message(number, "small/1" if number % 2 else "large/1", payload) for number in range(1, 61)],
        )
    assert [packet_id for packet_id, _ in found] == list(range(1, 61))
    assert {code for packet_id, code in found if packet_id % 2 == 0} == {R.SUCCESS}
    small = [code for packet_id, code in found if packet_id % 2]
    stored = small.count(R.SUCCESS)
    assert 10 < stored < 20
    assert small == [R.SUCCESS] * stored + [R.QUOTA_EXCEEDED] * (30 - stored)
    assert len(take(node, "small", stored)) == stored


@pytest.mark.requirement("R235")
def test_a_refusal_ends_a_connection_of_3_1_1_which_has_no_word_for_it(node: Node) -> None:
    with Raw(node.mqtt_url, V3) as client:
        client.connect("old")
        client.say(message(1, "nobody/1"), message(2, "$P2P/QUE/there-is-none"), message(3, "nobody/1"))
        assert client.next() == PubAck(1)
        assert client.next() is None


@pytest.mark.requirement("R235")
def test_refusals_have_reasons(node: Node) -> None:
    with Raw(orders_url(node)) as client:
        client.connect("alice-1", username="alice", password=PASSWORD.encode())
        found = answers(
            client,
            message(1, "nobody/1"),
            message(2, "secret/1"),
            message(3, "$P2P/QUE/there-is-none"),
            message(4, "x" * 300),
            message(5, "nobody/1"),
        )
        told = [R.NO_MATCHING_SUBSCRIBERS, R.NOT_AUTHORIZED, R.TOPIC_NAME_INVALID, R.TOPIC_NAME_INVALID]
        assert found == list(enumerate([*told, R.NO_MATCHING_SUBSCRIBERS], 1))


def test_a_client_whose_profile_forbids_it_is_refused(node: Node) -> None:
    node.run("profile", "create", "direct-only", "--set=allow_guaranteed_send=false")
    node.run("username", "create", "sensor", "--set=client_profile=direct-only")
    with Raw(node.mqtt_url) as client:
        client.connect("sensor-1", username="sensor")
        assert answers(client, message(1, "nobody/1")) == [(1, R.NOT_AUTHORIZED)]
        node.run("profile", "update", "direct-only", "--set=allow_guaranteed_send=true")
        assert answers(client, message(2, "nobody/1")) == [(2, R.NO_MATCHING_SUBSCRIBERS)]


@pytest.mark.requirement("R236")
@BOTH
@pytest.mark.parametrize("is_clean", [True, False])
def test_qos_2_is_stored_once_however_often_it_comes(node: Node, version: int, *, is_clean: bool) -> None:
    """With a session that is kept and without one; on the same connection and on the next one."""
    name = f"twice/{version}/{is_clean}"
    queue = name.replace("/", "-")
    create(node, queue, name)
    given = Properties(session_expiry_interval=60) if version == V5 and not is_clean else NONE
    publish = Publish(name, b"x", qos=2, packet_id=1)
    with Raw(node.mqtt_url, version) as client:
        assert client.connect(queue, clean_start=is_clean, properties=given).properties.maximum_qos is None
        client.say(publish)
        assert client.next() == PubRec(1)
        client.say(msgspec.structs.replace(publish, dup=True))
        assert client.next() == PubRec(1)
        if is_clean:
            client.say(PubRel(1))
            assert client.next() == PubComp(1)
    if not is_clean:
        with Raw(node.mqtt_url, version) as client:
            assert client.connect(queue, clean_start=False, properties=given).session_present
            client.say(msgspec.structs.replace(publish, dup=True))
            assert client.next() == PubRec(1)
            client.say(PubRel(1), PubRel(1))
            assert client.next() == PubComp(1)
            client.say(PubRel(2), Publish(name, b"y", qos=2, packet_id=1), PubRel(2))
            found = [client.next() for _ in range(3)]
            assert PubRec(1) in found
    assert [one.payload for one in take(node, queue, 1 if is_clean else 2)] == [b"x", b"y"][
        : 1 if is_clean else 2
    ]


def published_twice(numbers: Iterable[int]) -> list[Publish]:
    return [Publish("nobody", b"", qos=2, packet_id=one) for one in numbers]


@pytest.mark.requirement("R243")
def test_5_0_may_have_receive_max_messages_before_their_pubcomp_and_one_more_ends_it(node: Node) -> None:
    """[MQTT-3.3.4-7]."""
    with Raw(node.mqtt_url) as client:
        assert client.connect("many").properties.receive_maximum == RECEIVE_MAX
        client.say(*published_twice(range(1, RECEIVE_MAX + 1)))
        recs = [client.next() for _ in range(RECEIVE_MAX)]
        assert [one.packet_id for one in recs if isinstance(one, PubRec)] == [*range(1, RECEIVE_MAX + 1)]
        client.say(PubRel(1))
        assert client.next() == PubComp(1)
        client.say(message(1, "nobody"))
        assert client.next() == PubAck(1, R.NO_MATCHING_SUBSCRIBERS)
        client.say(*published_twice([1]))
        assert client.next() == PubRec(1, R.NO_MATCHING_SUBSCRIBERS)
        client.say(message(200, "nobody"))
        end = client.next()
        assert isinstance(end, Disconnect)
        assert end.code == R.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.requirement("R243")
@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_client_has_as_many_messages_before_its_pubcomp_as_it_takes(node: Node, expiry_s: int) -> None:
    """[MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-3]: a PUBREC makes no room, and a ping is answered meanwhile."""
    topic = f"few/{expiry_s}"
    given = Properties(receive_maximum=2, session_expiry_interval=expiry_s)
    with Raw(node.mqtt_url) as few, Paho(node.mqtt_url) as gives:
        few.connect(topic.replace("/", "-"), properties=given)
        assert few.subscribe(topic, qos=2) == (2,)
        for number in range(4):
            gives.client.publish(topic, b"%d" % number, 2).wait_for_publish(LIMIT_S)
        first, second = few.come(2)
        for one in (first, second):
            few.say(PubRec(one.packet_id))
            assert few.next() == PubRel(one.packet_id)
        few.say(PingReq())
        assert few.next() == PingResp()
        few.say(PubComp(second.packet_id))
        (third,) = few.come(1)
        few.say(PubRec(third.packet_id, R.UNSPECIFIED_ERROR))
        (fourth,) = few.come(1)
        assert [one.payload for one in (first, second, third, fourth)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.requirement("R236")
def test_paho_gets_with_qos_2_what_paho_publishes_with_it(node: Node) -> None:
    with (
        Paho(node.mqtt_url, "exact-out", keeps=True, version=V3) as takes,
        Paho(node.mqtt_url, "exact-in") as gives,
    ):
        takes.client.subscribe("exact/#", 2)
        assert [one.value for one in takes.answers.get(timeout=LIMIT_S)] == [2]
        for number in range(MANY // 10):
            gives.client.publish("exact/1", b"%d" % number, qos=2)
        found = [takes.messages.get(timeout=LIMIT_S) for _ in range(MANY // 10)]
        assert [one.payload for one in found] == [b"%d" % number for number in range(MANY // 10)]
        assert {one.qos for one in found} == {2}


@pytest.mark.requirement("R232")
def test_aiomqtt_publishes_and_waits(node: Node) -> None:
    create(node, "awaited", "awaited/>")

    async def publish() -> None:
        host, port = place_of(node.mqtt_url)
        async with aiomqtt.Client(host, port) as client:
            await asyncio.gather(*[client.publish(f"awaited/{number}", b"x", 1) for number in range(100)])

    asyncio.run(publish())
    assert len({one.topic for one in take(node, "awaited", 100)}) == 100
