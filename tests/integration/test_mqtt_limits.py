"""What clients of MQTT cost at most: sizes, filters, silence, a reader that is slow, and packets that are none."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from angarium import blocking
from angarium_server.testing import Node
from gateway.mqtt.codec import ReasonCode, write
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, place_of
from tests.integration.mqtt_node import (
    KEEPALIVE_MAX_S,
    PACKET_BYTES_MAX,
    RECEIVE_MAX,
    TOPIC_ALIAS_MAX,
    clients,
    counted,
    mqtt_node,
)
from tests.share import short
from tests.unit.gateway.websocket_client import frame, request
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

#: More than waits for a client of the default profile, which has 20,000 work units of 2 KiB, and for its socket.
FLOOD, PAYLOAD_BYTES = short(1_500, long=3_000), 30_000
#: Of 40 MB that waited, when a minute is over.
KEPT_BYTES_MAX, GIVE_BACK_S = 16 << 20, 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("mqtt")) as node:
        yield node


@pytest.fixture
def others(node: Node) -> Iterator[None]:
    """Two who exchange messages before and after, undisturbed by what a test does to a third."""
    with Paho(node.mqtt_url, "calm") as reader, Paho(node.mqtt_url, version=4) as writer:
        reader.subscribe("calm/#")
        writer.publish("calm/1", b"before")
        assert reader.receive().payload == b"before"
        yield
        writer.publish("calm/2", b"after")
        assert reader.receive().payload == b"after"
        assert reader.ends.empty()


def ending(raw: Raw) -> int:
    """Give the code of the DISCONNECT that comes next, and see that the connection ends."""
    told = raw.next()
    assert isinstance(told, Disconnect), told
    assert raw.next() is None
    return told.code


@pytest.mark.requirement("R243")
@pytest.mark.requirement("R242")
@pytest.mark.usefixtures("others")
def test_a_packet_has_a_largest_size_which_5_0_is_told(node: Node) -> None:
    with Raw(node.mqtt_url) as large, Raw(node.mqtt_url) as watching:
        assert large.connect("large").properties.maximum_packet_size == PACKET_BYTES_MAX
        watching.connect("watching")
        watching.subscribe("size")
        frame_bytes = len(write(Publish("size", b"x" * 60_000), 5)) - 60_000
        fits = Publish("size", b"x" * (PACKET_BYTES_MAX - frame_bytes))
        large.say(fits)
        assert watching.next() == fits
        large.say(Publish("size", b"x" * (PACKET_BYTES_MAX - frame_bytes + 1)))
        assert ending(large) == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.requirement("R243")
def test_a_client_gets_no_packet_that_is_larger_than_it_takes(node: Node) -> None:
    with Raw(node.mqtt_url) as small, blocking.connect(node.url) as ours:
        small.connect("small", properties=Properties(maximum_packet_size=200))
        small.subscribe("size")
        ours.publish("size", b"x" * 300)
        ours.publish("size", b"y" * 100)
        assert next(iter(small.payloads())) == b"y" * 100
        wait_for(lambda: counted(node, "small", "packet-too-large"), lambda seen: seen == 1)


@pytest.mark.requirement("R243")
def test_5_0_is_told_how_many_messages_and_topic_aliases_it_may_have(node: Node) -> None:
    with Raw(node.mqtt_url) as raw, blocking.connect(node.url) as ours:
        told = raw.connect("bounded").properties
        assert (told.receive_maximum, told.topic_alias_maximum) == (RECEIVE_MAX, TOPIC_ALIAS_MAX)
        with ours.subscribe("aliases/last") as mine:
            ours.flush()
            raw.say(Publish("aliases/last", properties=Properties(topic_alias=TOPIC_ALIAS_MAX)))
            assert mine.receive(LIMIT_S).topic == "aliases/last"


@pytest.mark.requirement("R243")
def test_topics_are_aliases_for_who_takes_them(node: Node) -> None:
    topic = "aliases/of/a/long/topic"
    with Raw(node.mqtt_url) as takes, Raw(node.mqtt_url) as takes_none, blocking.connect(node.url) as ours:
        takes.connect("takes", properties=Properties(topic_alias_maximum=1))
        takes_none.connect("takes-none")
        for raw in (takes, takes_none):
            raw.say(Subscribe(7, (Subscription("aliases/#"), Subscription("stored/#", 1))))
            assert isinstance(raw.next(), SubAck)
        for number in range(3):
            ours.publish(topic, b"%d" % number)
        assert [_named(takes.next()) for _ in range(3)] == [(topic, 1), ("", 1), ("", 1)]
        assert [_named(takes_none.next()) for _ in range(3)] == [(topic, None)] * 3
        ours.publish("stored/too", b"", mode="persistent")
        ours.publish("stored/too", b"", mode="persistent")
        assert [_named(takes.next()) for _ in range(2)] == [("stored/too", None)] * 2


def _named(packet: object) -> tuple[str, int | None]:
    assert isinstance(packet, Publish)
    return packet.topic, packet.properties.topic_alias


@pytest.mark.requirement("R233")
@pytest.mark.usefixtures("others")
def test_filters_of_a_client_have_a_limit_and_those_within_it_work(node: Node) -> None:
    """The limit is that of its client profile; of one packet only so many are looked at."""
    node.run("profile", "update", "default", "--set", "max_subscription_count=20")
    try:
        with Raw(node.mqtt_url) as many:
            many.connect("many")
            codes = many.subscribe(*(f"many/{number}" for number in range(30)))
            assert codes == (0,) * 20 + (ReasonCode.QUOTA_EXCEEDED,) * 10
            many.say(Publish("many/29", b"no"), Publish("many/19", b"yes"))
            assert next(iter(many.payloads())) == b"yes"
    finally:
        node.run("profile", "update", "default", "--set", "max_subscription_count=5000")
    with Raw(node.mqtt_url) as many:
        many.connect("many")
        assert many.subscribe(*(f"m/{number}" for number in range(1_000))) == (0,) * 1_000
        many.say(Subscribe(1, tuple(Subscription(f"n/{number}") for number in range(1_001))))
        assert ending(many) == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.requirement("R242")
@pytest.mark.parametrize("text", ["a*", "a/b*/c", "a/>", "!a"])
def test_a_filter_that_would_mean_more_to_us_is_refused(node: Node, text: str) -> None:
    with Raw(node.mqtt_url) as raw:
        raw.connect()
        assert raw.subscribe(text, "plain") == (ReasonCode.TOPIC_FILTER_INVALID, 0)


@pytest.mark.requirement("R245")
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("version", [4, 5])
def test_who_is_silent_for_longer_than_it_said_is_gone(node: Node, version: int) -> None:
    with Raw(node.mqtt_url, version) as silent, Raw(node.mqtt_url, version) as pinging:
        pinging.connect("pinging", keep_alive=1)
        began = time.monotonic()
        silent.connect("silent", keep_alive=1)
        pinging.say(PingReq())
        told = silent.next()
        assert time.monotonic() - began >= 1.5
        if version == 5:
            assert isinstance(told, Disconnect)
            assert told.code == ReasonCode.KEEP_ALIVE_TIMEOUT
            assert silent.next() is None
        else:
            assert told is None
        assert isinstance(pinging.next(), PingResp)
    wait_for(lambda: set(clients(node)), lambda seen: not seen & {"silent", "pinging"})


@pytest.mark.requirement("R245")
@pytest.mark.usefixtures("others")
def test_a_packet_that_takes_longer_than_the_keep_alive_is_no_silence_as_long_as_it_comes(node: Node) -> None:
    """A large message over a slow network: its client cannot say anything else meanwhile."""
    packet = write(Publish("slow/1", bytes(1_000), 1, packet_id=7), 5)
    with Raw(node.mqtt_url) as slow:
        slow.connect("slow", keep_alive=1)
        for at in range(0, len(packet), 150):
            time.sleep(0.4)
            slow.socket.sendall(packet[at : at + 150])
        answer = slow.next()
        assert isinstance(answer, PubAck)
        assert answer.packet_id == 7
        slow.socket.sendall(packet[:150])
        told = slow.next()
        assert isinstance(told, Disconnect)
        assert told.code == ReasonCode.KEEP_ALIVE_TIMEOUT


#: What a client says after its CONNECT, and the reason for which its connection ends.
BAD = {
    "a second connect": (write(Connect(client_id="again"), 5), ReasonCode.PROTOCOL_ERROR),
    "a packet of type 0": (b"\x00\x00", ReasonCode.MALFORMED_PACKET),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\xff", ReasonCode.MALFORMED_PACKET),
    "a topic that is no UTF-8": (b"\x30\x05\x00\x02\xc3\x28\x00", ReasonCode.MALFORMED_PACKET),
    "a wildcard in a topic": (b"\x30\x06\x00\x03a/#\x00", ReasonCode.TOPIC_NAME_INVALID),
    "QoS 3": (b"\x36\x06\x00\x01a\x00\x01\x00", ReasonCode.MALFORMED_PACKET),
    "a packet of servers": (write(ConnAck(), 5), ReasonCode.PROTOCOL_ERROR),
    "no filter": (b"\x82\x03\x00\x01\x00", ReasonCode.PROTOCOL_ERROR),
    "flags of SUBSCRIBE": (b"\x80\x07\x00\x01\x00\x00\x01a\x00", ReasonCode.MALFORMED_PACKET),
    "U+0000 in a topic": (b"\x30\x06\x00\x03a\x00b\x00", ReasonCode.MALFORMED_PACKET),
    "a surrogate in a topic": (b"\x30\x06\x00\x03\xed\xa0\x80\x00", ReasonCode.MALFORMED_PACKET),
    "no topic": (b"\x30\x03\x00\x00\x00", ReasonCode.PROTOCOL_ERROR),
    "a topic that ends behind its packet": (b"\x30\x03\x00\x09a", ReasonCode.MALFORMED_PACKET),
    "a ping with a body": (b"\xc0\x01\x00", ReasonCode.MALFORMED_PACKET),
    "PUBLISH with packet identifier 0": (b"\x32\x06\x00\x01a\x00\x00\x00", ReasonCode.PROTOCOL_ERROR),
    "SUBSCRIBE with packet identifier 0": (
        b"\x82\x07\x00\x00\x00\x00\x01a\x00",
        ReasonCode.PROTOCOL_ERROR,
    ),
    "flags of DISCONNECT": (b"\xe1\x00", ReasonCode.MALFORMED_PACKET),
}
#: The same of what only 5.0 has: properties, options and authentication.
BAD_IN_5_0 = {
    "topic alias 0": (b"\x30\x07\x00\x01a\x03\x23\x00\x00", ReasonCode.TOPIC_ALIAS_INVALID),
    "a topic alias beyond what was granted": (
        b"\x30\x07\x00\x01a\x03\x23" + (TOPIC_ALIAS_MAX + 1).to_bytes(2, "big"),
        ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    "the greatest topic alias": (b"\x30\x07\x00\x01a\x03\x23\xff\xff", ReasonCode.TOPIC_ALIAS_INVALID),
    "a topic alias of no topic": (b"\x30\x06\x00\x00\x03\x23\x00\x05", ReasonCode.PROTOCOL_ERROR),
    "a property twice": (b"\x30\x08\x00\x01a\x04\x01\x00\x01\x00", ReasonCode.PROTOCOL_ERROR),
    "a property of other packets": (
        b"\x30\x09\x00\x01a\x05\x11\x00\x00\x00\x01",
        ReasonCode.MALFORMED_PACKET,
    ),
    "properties that end behind their packet": (b"\x30\x04\x00\x01a\x7f", ReasonCode.MALFORMED_PACKET),
    "a subscription identifier in a PUBLISH": (
        b"\x30\x06\x00\x01a\x02\x0b\x01",
        ReasonCode.PROTOCOL_ERROR,
    ),
    "subscription identifier 0": (
        b"\x82\x09\x00\x01\x02\x0b\x00\x00\x01a\x00",
        ReasonCode.PROTOCOL_ERROR,
    ),
    "reserved options": (b"\x82\x07\x00\x01\x00\x00\x01a\xc0", ReasonCode.MALFORMED_PACKET),
    "retain handling 3": (b"\x82\x07\x00\x01\x00\x00\x01a\x30", ReasonCode.PROTOCOL_ERROR),
    "no local of what is shared": (
        b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04",
        ReasonCode.PROTOCOL_ERROR,
    ),
    "authentication that nobody asked for": (b"\xf0\x00", ReasonCode.PROTOCOL_ERROR),
}
#: What a client says first, and the code of the CONNACK that it gets; None: no word.
BAD_FIRST = {
    "a message": (b"\x30\x04\x00\x01a\x00", None),
    "a ping": (b"\xc0\x00", None),
    "an end": (b"\xe0\x00", None),
    "a CONNECT of a quarter of a gigabyte": (b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05", 0x95),
    "another protocol": (b"\x10\x0d\x00\x04MQTX\x05\x02\x00\x3c\x00\x00\x00", None),
    "version 6": (b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x00", 0x84),
    "3.1": (b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x00", 1),
    "a reserved flag": (b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x3c\x00\x00\x00", 0x81),
    "U+0000 in its identifier": (b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01\x00", 0x81),
    "a will with QoS 3": (
        b"\x10\x13\x00\x04MQTT\x05\x1e\x00\x3c\x00\x00\x00\x00\x00\x01w\x00\x00",
        0x81,
    ),
}


@pytest.mark.requirement("R247")
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", BAD_FIRST)
def test_who_begins_badly_is_closed_with_the_code_or_without_a_word(node: Node, name: str) -> None:
    data, code = BAD_FIRST[name]
    with socket.create_connection(place_of(node.mqtt_url), timeout=LIMIT_S) as stranger:
        stranger.sendall(data)
        heard = b"".join(iter(lambda: stranger.recv(100), b""))
    assert heard[:1] == (b"" if code is None else b"\x20"), heard
    assert code is None or heard[3] == code


@pytest.mark.requirement("R247")
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_packet_ends_its_client_with_the_reason(node: Node, name: str) -> None:
    data, reason = BAD[name]
    with Raw(node.mqtt_url) as bad, Raw(node.mqtt_url, 4) as old:
        bad.connect("bad")
        bad.socket.sendall(data)
        assert ending(bad) == reason
        old.connect("old")
        old.socket.sendall(
            data.replace(write(Connect(client_id="again"), 5), write(Connect(version=4, client_id="a"), 4))
        )
        assert old.next() is None


@pytest.mark.requirement("R247")
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", BAD_IN_5_0)
def test_a_packet_that_is_bad_in_5_0_ends_its_client_with_the_reason(node: Node, name: str) -> None:
    data, reason = BAD_IN_5_0[name]
    with Raw(node.mqtt_url) as bad:
        bad.connect("bad")
        bad.socket.sendall(data)
        assert ending(bad) == reason


@pytest.mark.long
@pytest.mark.requirement("R243")
@pytest.mark.usefixtures("others")
def test_all_65_535_packet_identifiers_may_be_under_way_in_3_1_1_and_are_answered_in_order(
    node: Node,
) -> None:
    """It cannot be told fewer; it reads nothing before it has said all."""
    with Raw(node.mqtt_url, 4) as hasty:
        hasty.connect("hasty")
        for first in range(1, 65_536, 5_000):
            identifiers = range(first, min(first + 5_000, 65_536))
            hasty.say(*(Publish("nobody", b"", qos=1, packet_id=one) for one in identifiers))
        for one in range(1, 65_536):
            assert hasty.next() == PubAck(one)


@pytest.mark.long
@pytest.mark.requirement("R242")
@pytest.mark.usefixtures("others")
def test_who_goes_on_to_subscribe_beyond_the_limit_is_refused_each_time_and_disturbs_nobody(
    node: Node,
) -> None:
    node.run("profile", "update", "default", "--set", "max_subscription_count=5000")
    with Raw(node.mqtt_url) as greedy:
        greedy.connect("greedy")
        for packet in range(20):
            codes = greedy.subscribe(*(f"greedy/{packet}/{number}" for number in range(1_000)))
            assert set(codes) == {0 if packet < 5 else ReasonCode.QUOTA_EXCEEDED}


@pytest.mark.long
@pytest.mark.requirement("R247")
def test_a_websocket_of_frames_of_one_byte_is_read_and_others_have_their_turn(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 40
    packets = write(Connect(client_id="tiny"), 5) + write(Publish("tiny", payload), 5)
    with Node(tmp_path / "data", workers=1, mqtt="ws://127.0.0.1:0") as node, Paho(node.mqtt_url) as reader:
        reader.subscribe("tiny", "calm")
        with socket.create_connection(place_of(node.mqtt_url), timeout=LIMIT_S) as tiny:
            tiny.sendall(
                request(Origin=None) + b"".join(frame(packets[at : at + 1]) for at in range(len(packets)))
            )
            reader.publish("calm", b"undisturbed")
            assert {bytes(reader.receive().payload) for _ in range(2)} == {payload, b"undisturbed"}


@pytest.mark.requirement("R242")
@pytest.mark.usefixtures("others")
def test_a_filter_may_have_128_levels_and_250_bytes(node: Node) -> None:
    deep, long = "+" + "/" * 127, "b" * 250
    with Raw(node.mqtt_url) as raw:
        raw.connect("deep")
        assert raw.subscribe(deep, long, deep + "/", long + "b") == (
            0,
            0,
            *[ReasonCode.TOPIC_FILTER_INVALID] * 2,
        )
        raw.say(Publish(deep.replace("+", "x"), b"deep"), Publish(long, b"long"))
        assert {next(iter(raw.payloads())) for _ in range(2)} == {b"deep", b"long"}


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f", b"\x00" * 100]
)
def test_who_speaks_another_protocol_gets_no_word(node: Node, data: bytes) -> None:
    with Raw(node.mqtt_url) as stranger:
        stranger.socket.sendall(data)
        assert stranger.next() is None


@pytest.mark.requirement("R246")
@pytest.mark.usefixtures("others")
def test_a_reader_that_is_slow_loses_its_own_and_nobody_else_does(node: Node) -> None:
    """What it lost is counted, and with what it got makes all; the newest are those that it got.

    With QoS 1 it loses nothing: that waits in its queue.
    """
    with (
        Raw(node.mqtt_url, receive_bytes=8_192) as slow,
        Paho(node.mqtt_url) as quick,
        blocking.connect(node.url) as ours,
    ):
        slow.connect("slow", keep_alive=0)
        slow.say(Subscribe(7, (Subscription("flood/#"), Subscription("safe/#", 1))))
        assert isinstance(slow.next(), SubAck)
        quick.subscribe("flood/#")
        for number in range(FLOOD):
            ours.publish("flood/1", struct.pack(">I", number) + bytes(PAYLOAD_BYTES - 4))
            if number % 10 == 0:
                ours.publish("safe/1", b"%d" % number, mode="persistent")
            if number % 100 == 99:  # the quick one keeps up, and so all reaches the gateway
                assert [struct.unpack(">I", payload[:4])[0] for _, payload in quick.receive_many(100)] == [
                    *range(number - 99, number + 1)
                ]
        ours.publish("flood/end", b"")
        seen: list[int] = []
        safe: list[int] = []
        is_over = False
        while not is_over or len(safe) < FLOOD // 10:
            packet = slow.next()
            assert isinstance(packet, Publish)
            if packet.qos:
                slow.say(PubAck(packet.packet_id))
                safe.append(int(packet.payload))
            elif packet.payload:
                seen.append(struct.unpack(">I", packet.payload[:4])[0])
            else:
                is_over = True
        assert safe == [*range(0, FLOOD, 10)]
        assert seen == sorted(seen)
        assert seen[-1] == FLOOD - 1
        assert len(seen) < FLOOD
        wait_for(lambda: counted(node, "slow", "transmit-congestion"), lambda lost: len(seen) + lost == FLOOD)
        slow.say(PingReq())
        assert isinstance(slow.next(), PingResp)


def test_what_waited_for_a_reader_that_went_is_given_back(tmp_path: Path) -> None:
    with mqtt_node(tmp_path) as node:
        pid = node.process("mqtt")["pid"]
        before = resident_bytes(pid)

        def grown() -> int:
            return resident_bytes(pid) - before

        with Raw(node.mqtt_url, receive_bytes=8_192) as deaf, blocking.connect(node.url) as ours:
            deaf.connect("deaf", keep_alive=0)
            deaf.subscribe("deaf/#")
            for _ in range(FLOOD):
                ours.publish("deaf/1", bytes(PAYLOAD_BYTES))
            wait_for(grown, lambda size: size > KEPT_BYTES_MAX, "a backlog")
        wait_for(grown, lambda size: size < KEPT_BYTES_MAX, "memory given back", GIVE_BACK_S)


def resident_bytes(pid: int) -> int:
    """Give what a process has for itself."""
    found = psutil.Process(pid).memory_info()
    return int(found.rss - found.shared)


def test_what_comes_right_behind_a_connect_waits_for_the_login(node: Node) -> None:
    with Raw(node.mqtt_url) as hasty, Paho(node.mqtt_url) as reader:
        reader.subscribe("quick")
        hasty.say(
            Connect(client_id="hasty"), Publish("quick", b"x"), Subscribe(1, (Subscription("a"),)), PingReq()
        )
        assert {type(hasty.next()) for _ in range(3)} == {ConnAck, SubAck, PingResp}
        assert reader.receive().payload == b"x"


@pytest.mark.requirement("R245")
def test_5_0_is_told_what_it_did_not_choose_itself(node: Node) -> None:
    """A keep alive that is shorter than asked for, a client id, what it may not ask for, and a topic for answers."""
    with Raw(node.mqtt_url) as lazy, Raw(node.mqtt_url) as brisk:
        told = lazy.connect(keep_alive=0, properties=Properties(request_response_information=1)).properties
        assert told.server_keep_alive == KEEPALIVE_MAX_S
        assert told.assigned_client_identifier in clients(node)
        assert (told.maximum_qos, told.retain_available) == (None, None)
        assert told.response_information is not None
        assert told.response_information.startswith("$P2P/INB/")
        told = brisk.connect("brisk", keep_alive=10).properties
        assert (told.server_keep_alive, told.assigned_client_identifier, told.response_information) == (
            None,
        ) * 3


@pytest.mark.requirement("R245")
@pytest.mark.parametrize("wants", [0, 1])
def test_reasons_come_in_words_for_those_who_want_words(node: Node, wants: int) -> None:
    with Raw(node.mqtt_url) as raw:
        raw.connect("raw", properties=Properties(request_problem_information=wants))
        alias = Properties(topic_alias=60_000)
        raw.say(Subscribe(1, (Subscription("a*"),)), Publish("a", b"", properties=alias))
        refused, ended = raw.next(), raw.next()
        assert isinstance(refused, SubAck)
        assert isinstance(ended, Disconnect)
        for one in (refused, ended):
            assert bool(one.properties.reason_string) == bool(wants)


@pytest.mark.requirement("R245")
def test_a_message_has_the_identifiers_of_all_subscriptions_that_match_and_comes_once(node: Node) -> None:
    with Raw(node.mqtt_url) as raw, blocking.connect(node.url) as ours:
        raw.connect("raw")
        for number, text in ((7, "a/#"), (8, "a/+"), (9, "b")):
            identified = Properties(subscription_identifiers=(number,))
            raw.say(Subscribe(number, (Subscription(text),), identified))
            assert isinstance(raw.next(), SubAck)
        for topic in ("a/1", "b", "a/1/2"):
            ours.publish(topic, topic.encode())
        found = {}
        for _ in range(3):
            message = raw.next()
            assert isinstance(message, Publish)
            found[message.topic] = set(message.properties.subscription_identifiers)
        assert found == {"a/1": {7, 8}, "b": {9}, "a/1/2": {7}}
