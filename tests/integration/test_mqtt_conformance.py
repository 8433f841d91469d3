"""Statements of the MQTT specifications on a real gateway that no other file shows (docs/mqtt-conformance.md)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from gateway.mqtt.codec import V3, V5, ReasonCode
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.integration.mqtt_clients import Raw
from tests.integration.mqtt_node import PASSWORD, mqtt_node, orders_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("version", [V3, V5])
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


@pytest.fixture
def two(node: Node, version: int) -> Iterator[tuple[Raw, Raw]]:
    """Two clients that are connected, with the version of the test."""
    with Raw(node.mqtt_url, version) as one, Raw(node.mqtt_url, version) as other:
        one.connect("one")
        other.connect("other")
        yield one, other


def kept(version: int) -> dict[str, Any]:
    """What a CONNECT says that wants its session kept."""
    given = Properties(session_expiry_interval=60) if version == V5 else NONE
    return {"clean_start": False, "properties": given}


def stored(client: Raw, *packets: Publish) -> None:
    """Publish with QoS 1, and wait for what says that it is stored."""
    for one in packets:
        client.say(one)
        answer = client.next()
        assert isinstance(answer, PubAck)
        assert answer.packet_id == one.packet_id


def message(topic: str, payload: bytes = b"x", **more: Any) -> Publish:
    return Publish(topic, payload, **{"qos": 1, "packet_id": 1, **more})


# -- CONNECT and CONNACK ---------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "name", [LETTERS[start : start + 23] for start in range(0, len(LETTERS), 23)] + ["a"]
)
def test_a_client_identifier_may_have_23_letters_and_digits(node: Node, version: int, name: str) -> None:
    with Raw(node.mqtt_url, version) as client:
        assert client.connect(name).code == 0


def test_each_client_without_an_identifier_gets_one_of_its_own(node: Node) -> None:
    with Raw(node.mqtt_url) as one, Raw(node.mqtt_url) as other:
        given = [client.connect("").properties.assigned_client_identifier for client in (one, other)]
        assert all(given)
        assert given[0] != given[1]
        one.say(PingReq())
        assert one.next() == PingResp(), "the other one has not taken its place"


def test_3_1_1_without_an_identifier_has_a_clean_session_or_is_refused(node: Node) -> None:
    with Raw(node.mqtt_url, V3) as clean, Raw(node.mqtt_url, V3) as kept_one:
        assert clean.connect("").code == 0
        kept_one.socket.sendall(b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x3c\x00\x00")
        answer = kept_one.next()
        assert isinstance(answer, ConnAck)
        assert answer.code == 2
        assert kept_one.next() is None


@BOTH
def test_session_present_says_whether_there_was_one(node: Node, version: int) -> None:
    name = f"present{version}"
    found = []
    for clean in (False, False, True, False):
        with Raw(node.mqtt_url, version) as client:
            found.append(client.connect(name, **{**kept(version), "clean_start": clean}).session_present)
            client.say(Disconnect())
            assert client.next() is None
    assert found[:3] == [False, True, False]
    assert found[3] == (version == V5), "3.1.1 has none behind a clean session"


@BOTH
def test_the_second_connection_of_an_identifier_ends_the_first_one(node: Node, version: int) -> None:
    with Raw(node.mqtt_url, version) as first, Raw(node.mqtt_url, version) as second:
        first.connect("twin")
        assert second.connect("twin").code == 0
        told = first.next()
        if version == V5:
            assert isinstance(told, Disconnect)
            assert told.code == ReasonCode.SESSION_TAKEN_OVER
            told = first.next()
        assert told is None


def test_who_is_refused_has_nothing_done_of_what_came_behind_its_connect(node: Node) -> None:
    with Raw(orders_url(node)) as watching, Raw(orders_url(node)) as refused:
        watching.connect("watching", username="alice", password=PASSWORD.encode())
        assert watching.subscribe("behind/#") == (0,)
        wrong = Connect(client_id="wrong", username="alice", password=b"no")
        refused.say(wrong, Publish("behind/refused", b""))
        answer = refused.next()
        assert isinstance(answer, ConnAck)
        assert answer.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert refused.next() is None
        watching.say(Publish("behind/end", b""))
        assert [one.topic for one in watching.come(1)] == ["behind/end"]


# -- PUBLISH ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("granted", [0, 1])
def test_dup_of_a_publisher_is_not_passed_on(two: tuple[Raw, Raw], version: int, granted: int) -> None:
    one, other = two
    topic = f"dup/{version}/{granted}"
    other.subscribe(topic, qos=granted)
    stored(one, message(topic, dup=True))
    assert [(came.dup, came.qos) for came in other.come(1)] == [(False, granted)]


@BOTH
def test_text_and_topics_are_passed_on_as_they_are(two: tuple[Raw, Raw], version: int) -> None:
    """A byte order mark, empty levels, spaces, capitals and what has two ways to be written."""
    one, other = two
    names = ["\ufeffraw", "/raw", "raw/", "raw", "RAW", "ra w", "raw//x", "r\u00e4w", "ra\u0308w"]
    assert set(other.subscribe(*names)) == {0}
    for name in names:
        one.say(Publish(name, name.encode()))
    found = other.come(len(names))
    assert [came.topic for came in found] == names
    assert [came.payload.decode() for came in found] == names


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on_unaltered_and_in_their_order(node: Node, qos: int) -> None:
    given = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/\u00e4",
        correlation_data=b"\x00\xff\xfe",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3"), ("", "")),
    )
    with Raw(node.mqtt_url) as client:
        client.connect(f"props{qos}")
        client.subscribe(f"props/{qos}", qos=qos)
        client.say(message(f"props/{qos}", qos=qos, packet_id=1 if qos else 0, properties=given))
        came: list[Publish] = []
        while not came:
            packet = client.next()
            assert packet is not None
            came += [packet] if isinstance(packet, Publish) else []
        assert came[0].properties == given


def test_what_has_expired_is_not_delivered_any_more(node: Node) -> None:
    with Raw(node.mqtt_url) as away:
        away.connect("expiring", **kept(V5))
        assert away.subscribe("expiring", qos=1) == (1,)
    with Raw(node.mqtt_url) as sender:
        sender.connect("sender")
        soon, late = Properties(message_expiry_interval=1), Properties(message_expiry_interval=60)
        stored(sender, message("expiring", b"old", properties=soon))
        time.sleep(1.1)  # the time that the message has
        stored(sender, message("expiring", b"new", properties=late))
    with Raw(node.mqtt_url) as back:
        back.connect("expiring", **kept(V5))
        (came,) = back.come(1)
        assert came.payload == b"new"
        assert came.properties.message_expiry_interval in range(50, 61)


@BOTH
def test_of_filters_that_overlap_the_highest_qos_counts(two: tuple[Raw, Raw], version: int) -> None:
    one, other = two
    assert other.subscribe(f"over/{version}/#", qos=1) == (1,)
    assert other.subscribe(f"over/{version}/+", qos=2) == (2,)
    one.say(message(f"over/{version}/a", qos=2))
    (came,) = other.come(1)
    assert came.qos == 2
    other.say(PubRec(came.packet_id), PingReq())
    assert {type(other.next()) for _ in range(2)} == {PubRel, PingResp}, "it comes once"


# -- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------------------


@BOTH
def test_answers_have_the_identifier_and_a_code_for_each_filter(two: tuple[Raw, Raw], version: int) -> None:
    client, _ = two
    filters = [("ids/0", 0), ("ids/*", 0), ("ids/2", 2), ("ids/1", 1)]
    client.say(Subscribe(65_535, tuple(Subscription(*one) for one in filters)))
    given = client.next()
    assert isinstance(given, SubAck)
    refused = ReasonCode.TOPIC_FILTER_INVALID if version == V5 else 0x80
    assert (given.packet_id, given.codes) == (65_535, (0, refused, 2, 1))
    client.say(Unsubscribe(513, ("ids/0", "ids/none", "ids/+")))
    answer = client.next()
    assert isinstance(answer, UnsubAck)
    assert answer.packet_id == 513
    if version == V5:
        none = ReasonCode.NO_SUBSCRIPTION_EXISTED
        assert answer.codes == (0, none, none), "wildcards are compared, not matched"


@BOTH
def test_subscribing_again_replaces_the_subscription(two: tuple[Raw, Raw], version: int) -> None:
    """What is retained comes again, and nothing comes twice."""
    one, other = two
    topic = f"again/{version}"
    stored(one, message(topic, b"kept", retain=True))
    for granted in (0, 1, 0):
        assert other.subscribe(topic, qos=granted) == (granted,)
        (came,) = other.come(1)
        assert (came.payload, came.retain, came.qos) == (b"kept", True, granted)
        if came.qos:
            other.say(PubAck(came.packet_id))
        stored(one, message(topic, b"live"))
        (came,) = other.come(1)
        assert (came.payload, came.retain, came.qos) == (b"live", False, granted)
        if came.qos:
            other.say(PubAck(came.packet_id))
    other.say(PingReq())
    assert other.next() == PingResp()


@BOTH
def test_what_is_on_its_way_is_completed_after_an_unsubscribe(two: tuple[Raw, Raw], version: int) -> None:
    one, other = two
    topic = f"leaving/{version}"
    other.subscribe(topic, qos=2)
    one.say(message(topic, qos=2))
    (came,) = other.come(1)
    other.say(Unsubscribe(9, (topic,)))
    assert isinstance(other.next(), UnsubAck)
    other.say(PubRec(came.packet_id))
    assert other.next() == PubRel(came.packet_id)
    other.say(PubComp(came.packet_id), PingReq())
    assert other.next() == PingResp()


# -- QoS 2 and sessions ----------------------------------------------------------------------------------


def test_after_a_refused_pubrec_its_identifier_is_that_of_a_new_message(node: Node) -> None:
    with Raw(orders_url(node)) as client:
        client.connect("refused", username="alice", password=PASSWORD.encode())
        assert client.subscribe("open/1") == (0,)
        client.say(message("secret/1", qos=2, packet_id=7))
        answer = client.next()
        assert isinstance(answer, PubRec)
        assert (answer.packet_id, answer.code) == (7, ReasonCode.NOT_AUTHORIZED)
        client.say(message("open/1", b"new", qos=2, packet_id=7))
        found = [client.next() for _ in range(2)]
        assert {type(one) for one in found} == {PubRec, Publish}


@BOTH
def test_pubrel_comes_again_until_pubcomp_and_publish_does_not(node: Node, version: int) -> None:
    name = f"released{version}"
    with Raw(node.mqtt_url, version) as takes, Raw(node.mqtt_url, version) as gives:
        gives.connect(f"gives{version}")
        takes.connect(name, **kept(version))
        assert takes.subscribe(name, qos=2) == (2,)
        gives.say(message(name, qos=2))
        (came,) = takes.come(1)
        takes.say(PubRec(came.packet_id))
        assert takes.next() == PubRel(came.packet_id)
    with Raw(node.mqtt_url, version) as takes:
        assert takes.connect(name, **kept(version)).session_present
        assert takes.next() == PubRel(came.packet_id)
        takes.say(PubComp(came.packet_id), PingReq())
        assert takes.next() == PingResp()
    with Raw(node.mqtt_url, version) as takes:
        assert takes.connect(name, **kept(version)).session_present
        takes.say(PingReq())
        assert takes.next() == PingResp(), "it is over, on the next connection too"


def test_a_message_on_its_way_does_not_expire(node: Node) -> None:
    """As long as the connection lasts."""
    with Raw(node.mqtt_url) as takes, Raw(node.mqtt_url) as gives:
        gives.connect("gives")
        takes.connect("unexpired", **kept(V5))
        assert takes.subscribe("unexpired", qos=2) == (2,)
        gives.say(message("unexpired", qos=2, properties=Properties(message_expiry_interval=1)))
        (came,) = takes.come(1)
        time.sleep(1.1)  # the time that the message had
        takes.say(PubRec(came.packet_id))
        assert takes.next() == PubRel(came.packet_id)
        takes.say(PubComp(came.packet_id), PingReq())
        assert takes.next() == PingResp()


@BOTH
def test_what_is_retained_outlives_the_session_of_its_publisher(two: tuple[Raw, Raw], version: int) -> None:
    one, other = two
    topic = f"outlives/{version}"
    stored(one, message(topic, b"kept", retain=True))
    one.say(Disconnect())
    assert one.next() is None
    stored(other, message(topic, b"not to be retained"))
    other.subscribe(topic)
    (came,) = other.come(1)
    assert (came.payload, came.retain) == (b"kept", True)
