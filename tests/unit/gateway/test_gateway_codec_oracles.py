"""The codec against two others that were written without a look at it: `mqtt5` (5.0) and `zmqtt` (3.1.1 and 5.0).

What we write they read with the same values, and what they write of it we read as it was. What we take of mutated bytes
they take too. Both are laxer than the specification in places; the tests at the end pin where, and which statement says
that they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import mqtt5
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmqtt._internal.packets import codec as zmqtt

from gateway.mqtt.codec import errors, packets
from gateway.mqtt.codec.connect import Connect, Will
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V3, V5, Sender
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from tests.unit.gateway import random_packets
from tests.unit.gateway.streams import read_one

if TYPE_CHECKING:
    from gateway.mqtt.codec.packets import Packet

pytestmark = pytest.mark.slow

#: What mqtt5 says for a property that is not there, and does not write: the default of the specification.
DEFAULTS: Final = {
    "payload_format_indicator": 0,
    "session_expiry_interval": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "will_delay_interval": 0,
    "request_problem_information": 1,
    "request_response_information": 0,
    "retain_available": 1,
    "wildcard_subscription_available": 1,
    "subscription_identifier_available": 1,
    "shared_subscription_available": 1,
}
#: How mqtt5 calls our properties.
NAMES: Final = {
    "assigned_client_identifier": "assigned_client_id",
    "maximum_packet_size": "max_packet_size",
    "maximum_qos": "max_qos",
    "reason_string": "reason_str",
    "receive_maximum": "receive_max",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "response_information": "response_info",
    "subscription_identifier_available": "subscription_id_available",
    "topic_alias_maximum": "topic_alias_max",
}


def of_side(sender: Sender, version: int) -> st.SearchStrategy[Packet]:
    every = random_packets.packets_of(sender, version) | random_packets.first_of(sender, version)
    if (sender, version) == (Sender.SERVER, V3):
        return every
    return every | random_packets.disconnects(version, sender)


def set_properties(properties: Properties) -> dict[str, Any]:
    """Give what a packet says of properties, by our names."""
    return cast("dict[str, Any]", msgspec.to_builtins(properties, builtin_types=(bytes,)))


def plain(packet: Any) -> Any:
    """Give a packet without the properties that say what they say when they are not there."""
    if isinstance(packet, Connect) and packet.will:
        packet = msgspec.structs.replace(packet, will=plain(packet.will))
    given_ = getattr(packet, "properties", None)
    if given_ is None:
        return packet
    # In a DISCONNECT an absent session expiry interval is that of the CONNECT: 0 is something else.
    kept = {
        name: getattr(given_, name)
        for name in set_properties(given_)
        if getattr(given_, name) != DEFAULTS.get(name) or type(packet) is Disconnect
    }
    return msgspec.structs.replace(packet, properties=Properties(**kept))


def assert_mqtt5_says(one: Any, properties: Properties) -> None:
    for name in set_properties(properties):
        value = getattr(properties, name)
        if name == "subscription_identifiers":
            said = [one.subscription_id] if hasattr(one, "subscription_id") else one.subscription_ids
            assert tuple(said) == value
        elif name == "user_properties":
            assert tuple(one.user_properties) == value
        else:
            assert getattr(one, NAMES.get(name, name)) == value, name


@pytest.mark.parametrize("sender", list(Sender))
@given(data=st.data())
def test_mqtt5_reads_what_we_write_and_we_read_what_it_writes(sender: Sender, data: Any) -> None:
    packet: Any = data.draw(of_side(sender, V5))
    written = packets.write(packet, V5)
    theirs, size = mqtt5.read(memoryview(written))
    assert size == len(written)
    if hasattr(packet, "properties"):
        assert_mqtt5_says(theirs, packet.properties)
    if isinstance(packet, Connect) and packet.will:
        assert_mqtt5_says(theirs.will, packet.will.properties)
    if isinstance(packet, Publish):
        assert isinstance(theirs, mqtt5.PublishPacket)
        assert (theirs.topic, theirs.payload, theirs.packet_id or 0) == (
            packet.topic,
            packet.payload,
            packet.packet_id,
        )
        assert (theirs.qos, theirs.duplicate, theirs.retain) == (packet.qos, packet.dup, packet.retain)
    assert plain(read_one(theirs.write(), sender, V5)) == plain(packet)


@pytest.mark.parametrize(
    ("sender", "version"), [(sender, version) for sender in Sender for version in (V3, V5)]
)
@given(data=st.data())
def test_zmqtt_reads_what_we_write_and_we_read_what_it_writes(
    sender: Sender, version: int, data: Any
) -> None:
    packet: Any = data.draw(of_side(sender, version).filter(has_one_identifier))
    written = packets.write(packet, version)
    spoken: Any = "5.0" if version == V5 else "3.1.1"
    found = zmqtt.decode(written, version=spoken)
    assert found is not None
    theirs: Any = found[0]
    assert found[1] == len(written)
    if isinstance(packet, Publish):
        assert (theirs.topic, theirs.payload) == (packet.topic, packet.payload)
    given_ = getattr(packet, "properties", NONE)
    for name in set_properties(given_):
        if name == "subscription_identifiers":
            assert (theirs.properties.subscription_identifier,) == given_.subscription_identifiers
        else:
            assert getattr(theirs.properties, name) == getattr(given_, name), name
    assert read_one(zmqtt.encode(theirs, version=spoken), sender, version) == packet


def has_one_identifier(packet: Any) -> bool:
    """Whether zmqtt can say it: one subscription identifier at most."""
    return len(getattr(packet, "properties", NONE).subscription_identifiers) <= 1


#: Where mqtt5 takes what the specification forbids.
MQTT5_TAKES: Final = {
    errors.NULL_CHARACTER,
    errors.PACKET_IDENTIFIER,
    errors.REASON,
    errors.PROPERTY_VALUE,
    errors.RESPONSE_TOPIC,
    errors.AUTHENTICATION_METHOD,
    errors.CONNECT_RESERVED,
    errors.WILL_QOS_WITHOUT_WILL,
    errors.WILL_RETAIN_WITHOUT_WILL,
    errors.TOPIC_WILDCARD,
    errors.EMPTY_TOPIC,
    errors.SESSION_PRESENT,
    errors.DUPLICATE_QOS_0,
    errors.SUBSCRIPTION_IDENTIFIER_SENT,
    errors.EMPTY_FILTER,
    errors.MULTI_LEVEL_WILDCARD,
    errors.SINGLE_LEVEL_WILDCARD,
    errors.SHARE_NAME,
    errors.NO_FILTERS,
    errors.NO_LOCAL_SHARED,
    errors.SUBSCRIPTION_RESERVED,
    errors.NO_FILTERS_TO_LEAVE,
    errors.NO_REASONS,
    errors.SESSION_EXPIRY_SENT,
    errors.WRONG_SENDER,
    errors.TRUNCATED,
}


@pytest.mark.parametrize("sender", list(Sender))
@given(data=st.data())
def test_what_we_take_of_mutated_bytes_mqtt5_takes_with_the_same_meaning(sender: Sender, data: Any) -> None:
    mutated = mutate(packets.write(data.draw(of_side(sender, V5)), V5), data)
    ours = read_or_fault(mutated, sender, V5)
    if not isinstance(ours, PacketError):
        theirs = mqtt5_reads(mutated)
        assert theirs is not None, f"{mutated.hex()}: mqtt5 refuses {ours}"
        assert plain(read_one(theirs.write(), sender, V5)) == plain(ours)
    elif ours.rule not in MQTT5_TAKES and mutated[1:].isascii():
        # Of text that is not UTF-8 it may panic, so it is asked about ASCII alone.
        assert mqtt5_reads(mutated) is None, f"{mutated.hex()}: {ours}"


@pytest.mark.parametrize("sender", list(Sender))
@given(data=st.data())
def test_what_we_take_of_mutated_bytes_of_3_1_1_zmqtt_takes_with_the_same_meaning(
    sender: Sender, data: Any
) -> None:
    mutated = mutate(packets.write(data.draw(of_side(sender, V3)), V3), data)
    ours = read_or_fault(mutated, sender, V3)
    if not isinstance(ours, PacketError):
        found = zmqtt.decode(mutated, version="3.1.1")
        assert found is not None, f"{mutated.hex()}: zmqtt refuses {ours}"
        # A CONNECT may have become one of 5.0.
        version = getattr(ours, "version", V3)
        assert zmqtt.encode(found[0], version="5.0" if version == V5 else "3.1.1") == packets.write(
            ours, version
        )


def mutate(written: bytes, data: Any) -> bytes:
    """Change a byte or two behind the fixed header."""
    mutated = bytearray(written)
    header = 2 if written[1] < 0x80 else 3
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(header, max(header, len(written) - 1)))
        if at < len(written):
            mutated[at] = data.draw(st.one_of(st.integers(0, 255), st.just(written[at] ^ 1)))
    return bytes(mutated)


def read_or_fault(data: bytes, sender: Sender, version: int) -> Packet | PacketError:
    try:
        return read_one(data, sender, version)
    except PacketError as fault:
        return fault


def mqtt5_reads(data: bytes) -> mqtt5.Packet | None:
    """Give what mqtt5 reads, or None if it refuses."""
    try:
        packet, size = mqtt5.read(memoryview(data))
    except (IndexError, ValueError):
        return None
    return packet if size == len(data) else None


@pytest.mark.parametrize(
    ("statement", "rule", "data"),
    [
        ("MQTT-1.5.4-2", errors.NULL_CHARACTER, b"\x30\x06\x00\x03a\x00b\x00"),
        ("MQTT-2.2.1-3", errors.PACKET_IDENTIFIER, b"\x32\x06\x00\x01t\x00\x00\x00"),
        ("MQTT-3.3.1-2", errors.DUPLICATE_QOS_0, b"\x38\x04\x00\x01t\x00"),
        ("MQTT-3.3.2-2", errors.TOPIC_WILDCARD, b"\x30\x04\x00\x01#\x00"),
        ("MQTT-3.3.2-14", errors.RESPONSE_TOPIC, b"\x30\x08\x00\x01t\x04\x08\x00\x01+"),
        ("MQTT-3.1.2-3", errors.CONNECT_RESERVED, b"\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c"),
        ("MQTT-3.8.3-2", errors.NO_FILTERS, b"\x82\x03\x00\x01\x00"),
        ("MQTT-3.8.3-4", errors.NO_LOCAL_SHARED, b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04"),
        ("MQTT-3.8.3-5", errors.SUBSCRIPTION_RESERVED, b"\x82\x07\x00\x01\x00\x00\x01a\x40"),
        ("MQTT-4.7.1-1", errors.MULTI_LEVEL_WILDCARD, b"\x82\x08\x00\x01\x00\x00\x02a#\x00"),
        # A property that ends behind the length of its section: two fields claim the same bytes.
        ("MQTT-4.13.1-1", errors.TRUNCATED, b"\x30\x0c\x00\x01t\x04\x03\x00\x05abcde"),
    ],
)
def test_mqtt5_takes_what_a_statement_forbids(statement: str, rule: errors.Rule, data: bytes) -> None:
    """The statement is right, and so are we."""
    assert mqtt5_reads(data) is not None
    with pytest.raises(PacketError) as raised:
        read_one(data, Sender.CLIENT, V5)
    assert raised.value.rule is rule
    assert raised.value.statement == statement


@pytest.mark.parametrize(
    ("rule", "data", "version"),
    [
        (errors.PADDED_INTEGER, b"\xc0\x80\x00", V5),
        (errors.RESERVED_FLAGS, b"\x60\x02\x00\x01", V3),
        (errors.TRAILING, b"\xc0\x01X", V3),
        (errors.DUPLICATE_PROPERTY, b"\x30\x08\x00\x01t\x04\x01\x00\x01\x00", V5),
        (errors.NULL_CHARACTER, b"\x30\x05\x00\x03a\x00b", V3),
        (errors.UNKNOWN_PROPERTY, b"\x30\x07\x00\x01t\x03\x21\x00\x01", V5),
    ],
)
def test_zmqtt_takes_what_a_statement_forbids(rule: errors.Rule, data: bytes, version: int) -> None:
    """A client may trust its server more than a server its clients."""
    assert zmqtt.decode(data, version="5.0" if version == V5 else "3.1.1") is not None
    with pytest.raises(PacketError) as raised:
        read_one(data, Sender.CLIENT, version)
    assert raised.value.rule is rule


def test_an_authentication_that_is_short_of_its_properties_is_refused_by_both() -> None:
    """Section 3.15.2.1 lets AUTH leave out code and properties together, not the properties alone; zmqtt does."""
    assert mqtt5_reads(b"\xf0\x01\x18") is None
    with pytest.raises(PacketError):
        read_one(b"\xf0\x01\x18", Sender.CLIENT, V5)
    assert zmqtt.decode(b"\xf0\x01\x18", version="5.0") is not None


def test_a_will_crosses_with_every_field() -> None:
    will = Will("w", b"gone", 2, retain=True, properties=Properties(will_delay_interval=7))
    wanted = Connect(client_id="c", will=will, username="u", password=b"p", keep_alive=9)
    theirs, _ = mqtt5.read(memoryview(packets.write(wanted, V5)))
    assert isinstance(theirs, mqtt5.ConnectPacket)
    assert theirs.will is not None
    assert (theirs.client_id, theirs.username, theirs.password, theirs.keep_alive) == ("c", "u", b"p", 9)
    assert (theirs.will.topic, theirs.will.payload, theirs.will.qos) == ("w", b"gone", 2)
    assert (theirs.will.retain, theirs.will.will_delay_interval) == (True, 7)
