"""Topic aliases for clients: whatever is sent or lost on the way, each knows the topic of what it gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.egress import UNSENT_BYTES_MAX, Egress
from gateway.mqtt.aliases import ALIAS_BYTES, AT_ONCE_PART, ONCE_PER_ALIAS, Aliases
from gateway.mqtt.codec import Parser, Sender, write
from gateway.mqtt.codec.connect import ConnAck
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.publish import Publish
from tests.unit.gateway.clients_of_tests import FakeClient, FakeOutlet
from tests.unit.gateway.random_packets import publishes

pytestmark = pytest.mark.requirement("R243")

#: Some that come again and again, one too short for an alias, and one that needs two bytes for its length.
TOPICS = ["plant/1/temperature", "plant/2/temperature", "plant/3", "a", "x" * 200]


class Reader:
    """A client of 5.0 that resolves aliases and minds the rules about them."""

    def __init__(self, aliases_max: int) -> None:
        self.aliases_max = aliases_max
        self.topics: dict[int, str] = {}
        self.sizes: list[int] = []
        self._parser = Parser(Sender.SERVER, version=V5)
        self._parser.feed(write(ConnAck(), V5))

    def reads(self, data: bytes) -> list[Publish]:
        packets = self._parser.feed(data)
        assert self._parser.fault is None, self._parser.fault
        assert not self._parser.waiting_bytes
        return [self._resolved(one) for one in packets if isinstance(one, Publish)]

    def _resolved(self, packet: Publish) -> Publish:
        self.sizes.append(len(write(packet, V5)))
        alias = packet.properties.topic_alias
        if alias is None:
            return packet
        assert 1 <= alias <= self.aliases_max, "[MQTT-3.1.2-26]"
        if packet.topic:
            self.topics[alias] = packet.topic
        properties = msgspec.structs.replace(packet.properties, topic_alias=None)
        return msgspec.structs.replace(packet, topic=self.topics[alias], properties=properties)


def packet(topic: str, payload: bytes = b"", **more: Any) -> bytes:
    return write(Publish(topic, payload, **more), V5)


def test_a_topic_with_an_alias_is_left_out_from_the_second_message_on() -> None:
    aliases, reader = Aliases(1, 0), Reader(1)
    sent = [aliases.shorten(packet(TOPICS[0], b"x")) for _ in range(4)]
    whole = len(packet(TOPICS[0], b"x"))
    assert [len(one) - whole for one in sent] == [3, *[3 - len(TOPICS[0])] * 3]
    assert [one.topic for one in reader.reads(b"".join(sent))] == [TOPICS[0]] * 4
    other = packet(TOPICS[1])
    assert aliases.shorten(other) == aliases.shorten(other) == other


def test_no_packet_gets_larger_than_its_client_takes() -> None:
    """It might with the alias that it begins; with one that is known it gets smaller."""
    large, small = packet(TOPICS[0], b"x" * 100), packet(TOPICS[0])
    aliases = Aliases(1, len(large))
    assert [aliases.shorten(large) for _ in range(3)] == [large] * 3
    assert len(aliases.shorten(small)) > len(small)
    assert len(aliases.shorten(large)) < len(large)


def test_topics_that_come_once_cost_some_aliases_at_most_and_short_ones_none() -> None:
    at_once = 2
    aliases, reader = Aliases(at_once * AT_ONCE_PART, 0), Reader(at_once * AT_ONCE_PART)
    first = [f"first/number/{number}" for number in range(at_once)]
    assert [
        one.topic for one in reader.reads(b"".join(aliases.shorten(packet(one)) for one in first))
    ] == first
    for number in range(10 * ONCE_PER_ALIAS):
        assert aliases.shorten(packet(f"once/number/{number}")) == packet(f"once/number/{number}")
        aliases.validate()
    for _ in range(3):
        assert aliases.shorten(packet("a")) == packet("a")
    both = [packet(topic) for topic in TOPICS[:2] * 3]
    assert [one.topic for one in reader.reads(aliases.shorten(b"".join(both)))] == TOPICS[:2] * 3
    assert reader.topics == dict(enumerate(first + TOPICS[:2], 1))


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), publishes(V5, Sender.SERVER), st.booleans()), max_size=30),
    st.integers(1, 3),
    st.sampled_from([0, 40, 60, 230]),
)
def test_who_resolves_aliases_reads_what_was_written(
    wanted: list[tuple[str, Publish, bool]], aliases_max: int, packet_bytes_max: int
) -> None:
    """Any packets, in pieces of any number; none gets larger than the client takes, and few get larger at all."""
    aliases, reader = Aliases(aliases_max, packet_bytes_max), Reader(aliases_max)
    written, sent, piece = [], [], b""
    for topic, made, is_last in wanted:
        properties = msgspec.structs.replace(made.properties, topic_alias=None)
        one = msgspec.structs.replace(made, topic=topic, properties=properties)
        data = write(one, V5)
        if packet_bytes_max and len(data) > packet_bytes_max:
            continue
        written.append(one)
        piece += data
        if is_last:
            sent.append(aliases.shorten(piece))
            piece = b""
        aliases.validate()
    sent.append(aliases.shorten(piece))
    assert reader.reads(b"".join(sent)) == written
    assert all(size <= packet_bytes_max for size in reader.sizes) or not packet_bytes_max
    whole = sum(len(write(one, V5)) for one in written)
    assert sum(map(len, sent)) <= whole + ALIAS_BYTES * aliases_max


class Client(FakeClient):
    """A client that takes aliases."""

    def __init__(self) -> None:
        super().__init__(queue_units=1)
        self.aliases = Aliases(2, 0)

    def sent(self, data: bytes) -> bytes:
        return self.aliases.shorten(data)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "guaranteed", "room"]), st.sampled_from(TOPICS)), max_size=60)
)
def test_what_is_lost_on_the_way_takes_no_alias_with_it(steps: list[tuple[str, str]]) -> None:
    """Of the way out, which loses the oldest messages of who reads slowly."""
    client, outlet, reader = Client(), FakeOutlet(), Reader(2)
    egress = Egress(outlet, 1 << 20)
    size = UNSENT_BYTES_MAX // 3
    for number, (step, topic) in enumerate(steps):
        data = packet(topic, f"{topic} {number} ".encode().ljust(size if number % 4 == 0 else 20))
        if step == "put":
            egress.put(client, [data], 0.0)
        elif step == "guaranteed":
            egress.put_guaranteed(client, data, 0.0)
        else:
            for connection_id in outlet.leave_all():
                egress.on_room(connection_id, 0.0)
        egress.validate()
    while outlet.awaited:
        for connection_id in outlet.leave_all():
            egress.on_room(connection_id, 0.0)
    got = reader.reads(outlet.sent.get(client.connection_id, b""))
    assert all(one.payload.decode().split()[0] == one.topic for one in got)
    lost = client.counts["discard.transmit-congestion"]
    assert len(got) + lost == sum(step != "room" for step, _ in steps)
