"""What is written is read as it was, in any pieces, one at a time and many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.codec import fields, packets, properties, publish
from gateway.mqtt.codec.connect import Connect
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender
from gateway.mqtt.codec.parser import Parser
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from tests.unit.gateway import random_packets
from tests.unit.gateway.streams import begun, read_one

if TYPE_CHECKING:
    from gateway.mqtt.codec.packets import Packet

pytestmark = pytest.mark.slow

SIDES = [(sender, version) for sender in Sender for version in (V3, V5)]
sides = pytest.mark.parametrize(("sender", "version"), SIDES)


@sides
@given(data=st.data())
def test_each_packet_is_read_as_it_was_written(sender: Sender, version: int, data: Any) -> None:
    packet: Packet = data.draw(
        random_packets.packets_of(sender, version)
        | random_packets.first_of(sender, version)
        | random_packets.disconnects(version, sender)
        if (sender, version) != (Sender.SERVER, V3)
        else random_packets.packets_of(sender, version) | random_packets.first_of(sender, version)
    )
    assert read_one(packets.write(packet, version), sender, version) == packet


def test_a_bridge_of_3_1_1_says_so_in_its_version() -> None:
    sent = Connect(version=V3, client_id="b", is_bridge=True)
    data = packets.write(sent, V3)
    assert data[8] == 0x84
    parser = Parser(Sender.CLIENT)
    assert parser.feed(data) == [sent]
    assert parser.version == V3


@sides
@given(data=st.data())
def test_a_stream_is_the_same_in_any_pieces(sender: Sender, version: int, data: Any) -> None:
    sent = [data.draw(random_packets.first_of(sender, version))]
    sent += data.draw(st.lists(random_packets.packets_of(sender, version), max_size=12))
    stream = b"".join(packets.write(packet, version) for packet in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = Parser(sender, version=version if sender is Sender.SERVER else 0)
    found: list[Packet] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += parser.feed(stream[begin:end])
    assert parser.fault is None
    assert found == sent
    assert parser.waiting_bytes == 0


@sides
@given(data=st.data())
def test_the_walk_reads_what_the_careful_way_reads(sender: Sender, version: int, data: Any) -> None:
    """The second time everything is known, and the walk takes it; whatever it takes is as the careful way has it."""
    sent = data.draw(st.lists(random_packets.publishes(version, sender), min_size=1, max_size=8))
    stream = b"".join(packets.write(packet, version) for packet in sent)
    parser = begun(sender, version)
    assert parser.feed(stream) == sent
    again = parser.feed(stream)
    assert again == sent
    short = [packet for packet in again if isinstance(packet, Publish) and is_walked(packet)]
    assert len({id(packet.topic) for packet in short}) == len({packet.topic for packet in short})


def is_walked(packet: Publish) -> bool:
    """Topics that are too long are not remembered, and properties that are too long are read with care each time."""
    section = properties.write_section(packet.properties, PacketType.PUBLISH)
    return len(packet.topic.encode()) <= 250 and len(section) < 128


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("version", [V3, V5])
def test_payloads_of_every_length_of_length_are_walked_or_read(size: int, version: int) -> None:
    parser = begun(Sender.CLIENT, version)
    packet = Publish("t", bytes(size), 1, 7)
    stream = packets.write(packet, version) * 3
    assert parser.feed(stream) == [packet] * 3
    assert parser.feed(stream) == [packet] * 3


def prepared(topic: str, payload: bytes, given_: Properties, version: int) -> publish.Message:
    section = properties.write_section(given_, PacketType.PUBLISH) if version == V5 else b""
    return publish.Message(fields.text(topic), section, payload, version)


@pytest.mark.parametrize("version", [V3, V5])
@given(data=st.data())
def test_a_message_is_prepared_once_and_framed_for_each_connection(version: int, data: Any) -> None:
    messages = data.draw(st.lists(random_packets.publishes(version, Sender.SERVER), min_size=1, max_size=5))
    expected = []
    frames = []
    for one in messages:
        alias = data.draw(st.none() | random_packets.identifiers) if version == V5 else None
        numbers = tuple(data.draw(st.lists(random_packets.numbers, max_size=2))) if version == V5 else ()
        given_ = msgspec.structs.replace(one.properties, topic_alias=None, subscription_identifiers=())
        message = prepared(one.topic or "t", one.payload, given_, version)
        extra = (publish.alias(alias) if alias else b"") + publish.subscription_identifiers(numbers)
        flags = one.qos << 1 | (publish.DUP if one.dup else 0) | one.retain
        frame = publish.frame(message, flags, extra)
        frames.append((frame, one.packet_id))
        mine = msgspec.structs.replace(given_, topic_alias=alias, subscription_identifiers=numbers)
        expected.append(msgspec.structs.replace(one, topic=one.topic or "t", properties=mine))
        assert frame[2] is one.payload
        assert publish.frame_size(frame, one.packet_id) == len(publish.pack([frames[-1]]))
    assert begun(Sender.SERVER, version).feed(publish.pack(frames)) == expected


def test_a_frame_for_many_connections_differs_by_the_packet_identifier_alone() -> None:
    message = prepared("plant/line", b"x" * 1000, NONE, V5)
    frame = publish.frame(message, 1 << 1)
    first, second = publish.pack([(frame, 1)]), publish.pack([(frame, 0xFFFE)])
    assert first.replace(b"plant/line\x00\x01", b"plant/line\xff\xfe") == second


def test_what_was_seen_is_bounded() -> None:
    parser = begun()
    seen = parser._seen
    for number in range(publish.SEEN_MAX + 10):
        given_ = Properties(correlation_data=b"%d" % number)
        parser.feed(packets.write(Publish(f"t/{number}", properties=given_), V5))
    assert parser.fault is None
    assert 1 < len(seen.topics) <= publish.SEEN_MAX
    assert 1 < len(seen.sections) <= publish.SEEN_MAX
    parser.feed(packets.write(Publish("l" * 300, properties=Properties(content_type="l" * 300)), V5))
    assert parser.fault is None
    assert max(map(len, seen.topics)) <= publish.SEEN_BYTES_MAX
    assert max(map(len, seen.sections)) <= publish.SEEN_BYTES_MAX


def test_every_type_of_packet_is_described_once() -> None:
    described = {PacketType.PUBLISH, *packets.LAYOUTS}
    assert described == set(PacketType) - {PacketType.WILL}
