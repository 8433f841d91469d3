"""Every rule of the codec, broken by bytes: the connection ends with its reason code and its statement.

The bytes are written by hand, because our own writers refuse most of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from gateway.mqtt.codec import connect, control, errors, fields, packets, properties
from gateway.mqtt.codec.connect import ConnAck, Connect, Will
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq
from gateway.mqtt.codec.errors import PacketError, ReasonCode, Rule
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender
from gateway.mqtt.codec.parser import Parser
from gateway.mqtt.codec.properties import TABLE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.unit.gateway.streams import begun

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT, SERVER = Sender.CLIENT, Sender.SERVER


def frame(first: int, body: bytes) -> bytes:
    return bytes([first]) + fields.variable_integer(len(body)) + body


def connect_of(flags: int, rest: bytes, version: int = V5, name: bytes = b"MQTT") -> bytes:
    """Write a CONNECT; `rest` is what follows the keep alive."""
    return frame(0x10, len(name).to_bytes(2, "big") + name + bytes([version, flags, 0, 60]) + rest)


def publish_of(topic: bytes, rest: bytes, first: int = 0x30) -> bytes:
    return frame(first, len(topic).to_bytes(2, "big") + topic + rest)


def subscribe_of(text: bytes, options: int, version: int = V5) -> bytes:
    section = b"\0" if version == V5 else b""
    return frame(0x82, b"\0\x01" + section + len(text).to_bytes(2, "big") + text + bytes([options]))


def unsubscribe_of(text: bytes, version: int = V5) -> bytes:
    section = b"\0" if version == V5 else b""
    return frame(0xA2, b"\0\x01" + section + len(text).to_bytes(2, "big") + text)


class Case(NamedTuple):
    """Bytes that break a rule; a CONNECT or CONNACK begins its stream, anything else comes later."""

    rule: Rule
    data: bytes
    version: int = V5
    sender: Sender = CLIENT


CASES = [
    # A length that lies, everywhere where there is one.
    Case(errors.TRUNCATED, publish_of(b"", b"")[:1] + b"\x02\0\x05"),
    Case(errors.TRUNCATED, b"\x30\x02\0\x05", V3),
    Case(errors.TRUNCATED, b"\x32\x04\0\x01t\0", V3),
    Case(errors.TRUNCATED, publish_of(b"t", b"")),
    Case(errors.TRUNCATED, publish_of(b"t", b"\x05\x01\x01")),
    Case(errors.TRUNCATED, publish_of(b"t", b"\x02\x02\0\0\0\0")),
    Case(errors.TRUNCATED, publish_of(b"t", b"\x04\x03\0\x05abcde")),
    Case(errors.TRUNCATED, frame(0x10, b"\0\x04MQ")),
    Case(errors.TRUNCATED, connect_of(0x06, b"\0\0\x01c\0\0\x01t")),
    Case(errors.TRUNCATED, connect_of(0x82, b"\0\x01c", V3)),
    Case(errors.TRUNCATED, frame(0x40, b"\x01")),
    Case(errors.TRUNCATED, frame(0x82, b"\0\x01\0\0\x01t")),
    Case(errors.TRUNCATED, frame(0xF0, b"\x18")),
    Case(errors.TRUNCATED, frame(0x20, b"\0"), V5, SERVER),
    Case(errors.TRAILING, connect_of(0x02, b"\0\0\x01cX")),
    Case(errors.TRAILING, connect_of(0x02, b"\0\x01cX", V3)),
    Case(errors.TRAILING, frame(0xC0, b"X")),
    Case(errors.TRAILING, frame(0x40, b"\0\x01\0"), V3),
    Case(errors.TRAILING, frame(0x40, b"\0\x01\0\0X")),
    Case(errors.TRAILING, frame(0xE0, b"\0"), V3),
    Case(errors.TRAILING, frame(0xE0, b"\0\0X")),
    Case(errors.TRAILING, frame(0xB0, b"\0\x01\0"), V3, SERVER),
    Case(errors.TRAILING, frame(0xD0, b"X"), V3, SERVER),
    Case(errors.PADDED_INTEGER, b"\xc0\x80\x00"),
    Case(errors.PADDED_INTEGER, b"\x30\x85\x80\x00\0\x01t\0p"),
    Case(errors.PADDED_INTEGER, b"\x10\x8e\x00\0\x04MQTT\x05\x02\0\0\0\0\x01c"),
    Case(errors.PADDED_INTEGER, publish_of(b"t", b"\x80\x00")),
    Case(errors.PADDED_INTEGER, frame(0x82, b"\0\x01\x03\x0b\x81\x00\0\x01t\0")),
    Case(errors.LONG_INTEGER, b"\xc0\x80\x80\x80\x80\x01"),
    Case(errors.LONG_INTEGER, b"\xc0\xff\xff\xff\xff", V3),
    Case(errors.LONG_INTEGER, publish_of(b"t", b"\xff\xff\xff\xff\x7f")),
    # Text.
    Case(errors.ILL_FORMED_TEXT, publish_of(b"\xed\xa0\x80", b"\0")),
    Case(errors.ILL_FORMED_TEXT, publish_of(b"\xed\xbf\xbf", b""), V3),
    Case(errors.ILL_FORMED_TEXT, publish_of(b"\xc0\x80", b"\0")),
    Case(errors.ILL_FORMED_TEXT, publish_of(b"\xf4\x90\x80\x80", b"\0")),
    Case(errors.ILL_FORMED_TEXT, publish_of(b"t", b"\x04\x03\0\x01\xff")),
    Case(errors.ILL_FORMED_TEXT, connect_of(0x02, b"\0\0\x01\xff")),
    Case(errors.NULL_CHARACTER, publish_of(b"a\0b", b"\0")),
    Case(errors.NULL_CHARACTER, publish_of(b"a\0b", b""), V3),
    Case(errors.NULL_CHARACTER, publish_of(b"t", b"\x07\x26\0\x01\0\0\x01v")),
    Case(errors.NULL_CHARACTER, connect_of(0x82, b"\0\x01c\0\x01\0", V3)),
    # Fixed headers.
    *[Case(errors.RESERVED_FLAGS, frame(first, b"\0\x01")) for first in (0x41, 0x52, 0x60, 0x6A, 0x78)],
    *[Case(errors.RESERVED_FLAGS, frame(first, b""), V3) for first in (0xC1, 0xE8)],
    *[Case(errors.RESERVED_FLAGS, frame(first, b"\0\x01\0\0\x01t\0")) for first in (0x80, 0x83, 0xA0, 0xAA)],
    Case(errors.RESERVED_FLAGS, frame(0xF1, b"")),
    Case(errors.RESERVED_FLAGS, connect_of(0x02, b"\0\0\x01c").replace(b"\x10", b"\x11", 1)),
    Case(errors.RESERVED_FLAGS, frame(0x21, b"\0\0\0"), V5, SERVER),
    Case(errors.RESERVED_FLAGS, frame(0xD2, b""), V5, SERVER),
    Case(errors.UNKNOWN_TYPE, frame(0x00, b"")),
    Case(errors.UNKNOWN_TYPE, frame(0xF0, b""), V3),
    *[Case(errors.WRONG_SENDER, frame(first, b"\0\0")) for first in (0x90, 0xB0, 0xD0)],
    *[Case(errors.WRONG_SENDER, frame(first, b"\0\0"), V5, SERVER) for first in (0x82, 0xA2, 0xC0)],
    Case(errors.WRONG_SENDER, frame(0xE0, b""), V3, SERVER),
    Case(errors.PACKET_IDENTIFIER, publish_of(b"t", b"\0\0\0", 0x32)),
    Case(errors.PACKET_IDENTIFIER, publish_of(b"t", b"\0\0", 0x34), V3),
    Case(errors.PACKET_IDENTIFIER, frame(0x40, b"\0\0")),
    Case(errors.PACKET_IDENTIFIER, frame(0x62, b"\0\0"), V3),
    Case(errors.PACKET_IDENTIFIER, frame(0x82, b"\0\0\0\0\x01t\0")),
    Case(errors.PACKET_IDENTIFIER, frame(0xA2, b"\0\0\0\0\x01t")),
    Case(errors.REASON, frame(0x40, b"\0\x01\x92")),
    Case(errors.REASON, frame(0x62, b"\0\x01\x10")),
    Case(errors.REASON, frame(0xE0, b"\x8b")),
    Case(errors.REASON, frame(0xF0, b"")),
    Case(errors.REASON, frame(0xE0, b"\x04"), V5, SERVER),
    Case(errors.REASON, frame(0x90, b"\0\x01\0\x03"), V5, SERVER),
    Case(errors.REASON, frame(0x90, b"\0\x01\x8f"), V3, SERVER),
    Case(errors.REASON, frame(0x20, b"\0\x8b\0"), V5, SERVER),
    Case(errors.REASON, frame(0x20, b"\0\x06"), V3, SERVER),
    # Properties.
    Case(errors.UNKNOWN_PROPERTY, publish_of(b"t", b"\x02\x04\0")),
    Case(errors.UNKNOWN_PROPERTY, publish_of(b"t", b"\x03\x21\0\x01")),
    Case(errors.UNKNOWN_PROPERTY, publish_of(b"t", b"\x02\xff\x7f")),
    Case(errors.UNKNOWN_PROPERTY, publish_of(b"t", b"\x02\xa6\x00")),
    Case(errors.UNKNOWN_PROPERTY, frame(0xA2, b"\0\x01\x02\x0b\x01\0\x01t")),
    Case(errors.DUPLICATE_PROPERTY, publish_of(b"t", b"\x04\x01\0\x01\0")),
    Case(errors.DUPLICATE_PROPERTY, frame(0x82, b"\0\x01\x04\x0b\x01\x0b\x01\0\x01t\0")),
    Case(errors.PROPERTY_VALUE, publish_of(b"t", b"\x02\x01\x02")),
    Case(errors.PROPERTY_VALUE, frame(0x82, b"\0\x01\x02\x0b\x00\0\x01t\0")),
    Case(errors.PROPERTY_VALUE, connect_of(0x02, b"\x03\x21\0\0\0\x01c")),
    Case(errors.PROPERTY_VALUE, connect_of(0x02, b"\x05\x27\0\0\0\0\0\x01c")),
    Case(errors.PROPERTY_VALUE, connect_of(0x02, b"\x02\x17\x02\0\x01c")),
    Case(errors.PROPERTY_VALUE, frame(0x20, b"\0\0\x02\x24\x02"), V5, SERVER),
    Case(errors.TOPIC_ALIAS_ZERO, publish_of(b"t", b"\x03\x23\0\0")),
    Case(errors.RESPONSE_TOPIC, publish_of(b"t", b"\x06\x08\0\x03a/#")),
    Case(errors.AUTHENTICATION_METHOD, connect_of(0x02, b"\x04\x16\0\x01x\0\x01c")),
    Case(errors.AUTHENTICATION_METHOD, frame(0xF0, b"\x18\0")),
    # CONNECT and CONNACK.
    Case(errors.PROTOCOL_NAME, connect_of(0x02, b"\0\x01c", V3, b"HTTP")),
    Case(errors.PROTOCOL_NAME, connect_of(0x02, b"\0\x01c", V3, b"mqtt")),
    Case(errors.PROTOCOL_VERSION, connect_of(0x02, b"\0\x01c", 3, b"MQIsdp"), V3),
    Case(errors.PROTOCOL_VERSION, connect_of(0x02, b"\0\x01c", 6)),
    Case(errors.PROTOCOL_VERSION, connect_of(0x02, b"\0\x01c", 0x7F)),
    Case(errors.PROTOCOL_VERSION, connect_of(0x02, b"\0\x01c", 0x85), V3),
    Case(errors.PROTOCOL_VERSION, connect_of(0x02, b"\0\x01c", 0x83, b"MQIsdp"), V3),
    Case(errors.CONNECT_RESERVED, connect_of(0x03, b"\0\x01c", 0x84), V3),
    Case(errors.CONNECT_RESERVED, connect_of(0x03, b"\0\x01c", V3)),
    Case(errors.CONNECT_RESERVED, connect_of(0x03, b"\0\0\x01c")),
    Case(errors.WILL_QOS_WITHOUT_WILL, connect_of(0x0A, b"\0\0\x01c")),
    Case(errors.WILL_QOS_WITHOUT_WILL, connect_of(0x12, b"\0\x01c", V3)),
    Case(errors.WILL_QOS, connect_of(0x1E, b"\0\0\x01c\0\0\x01t\0\0")),
    Case(errors.WILL_QOS, connect_of(0x1E, b"\0\x01c\0\x01t\0\0", V3)),
    Case(errors.WILL_RETAIN_WITHOUT_WILL, connect_of(0x22, b"\0\0\x01c")),
    Case(errors.PASSWORD_WITHOUT_USERNAME, connect_of(0x42, b"\0\x01c\0\x01p", V3), V3),
    Case(errors.EMPTY_CLIENT_IDENTIFIER, connect_of(0x00, b"\0\0", V3), V3),
    Case(errors.TOPIC_WILDCARD, connect_of(0x06, b"\0\0\x01c\0\0\x03a/#\0\0")),
    Case(errors.EMPTY_TOPIC, connect_of(0x06, b"\0\0\x01c\0\0\0\0\0")),
    Case(errors.CONNACK_RESERVED, frame(0x20, b"\x02\0\0"), V5, SERVER),
    Case(errors.SESSION_PRESENT, frame(0x20, b"\x01\x87\0"), V5, SERVER),
    Case(errors.SESSION_PRESENT, frame(0x20, b"\x01\x05"), V3, SERVER),
    # PUBLISH and topics.
    Case(errors.DUPLICATE_QOS_0, publish_of(b"t", b"\0", 0x38)),
    Case(errors.DUPLICATE_QOS_0, publish_of(b"t", b"", 0x39), V3),
    Case(errors.QOS_3, publish_of(b"t", b"\0\x01\0", 0x36)),
    Case(errors.QOS_3, publish_of(b"t", b"\0\x01", 0x3F), V3),
    *[Case(errors.TOPIC_WILDCARD, publish_of(topic, b"\0")) for topic in (b"a/+", b"#", b"a+b", b"a#")],
    Case(errors.TOPIC_WILDCARD, publish_of(b"a/+/b", b""), V3),
    Case(errors.EMPTY_TOPIC, publish_of(b"", b"\0")),
    Case(errors.EMPTY_TOPIC, publish_of(b"", b""), V3),
    Case(errors.SUBSCRIPTION_IDENTIFIER_SENT, publish_of(b"t", b"\x02\x0b\x01")),
    Case(errors.EMPTY_FILTER, subscribe_of(b"", 0)),
    Case(errors.EMPTY_FILTER, unsubscribe_of(b"", V3), V3),
    *[
        Case(errors.MULTI_LEVEL_WILDCARD, subscribe_of(text, 0))
        for text in (b"a#", b"#/a", b"a/#/b", b"##", b"a/b#", b"$share/g/a#")
    ],
    Case(errors.MULTI_LEVEL_WILDCARD, subscribe_of(b"a#", 0, V3), V3),
    Case(errors.MULTI_LEVEL_WILDCARD, unsubscribe_of(b"#a")),
    *[
        Case(errors.SINGLE_LEVEL_WILDCARD, subscribe_of(text, 0))
        for text in (b"a+", b"+a", b"a/b+/c", b"++", b"+/+a", b"+b")
    ],
    Case(errors.SINGLE_LEVEL_WILDCARD, unsubscribe_of(b"sport+", V3), V3),
    *[
        Case(errors.SHARE_NAME, subscribe_of(text, 0))
        for text in (
            b"$share",
            b"$share/",
            b"$share/g",
            b"$share/g/",
            b"$share//a",
            b"$share/g+/a",
            b"$share/#/a",
        )
    ],
    # SUBSCRIBE, UNSUBSCRIBE and their answers.
    Case(errors.NO_FILTERS, frame(0x82, b"\0\x01\0")),
    Case(errors.NO_FILTERS, frame(0x82, b"\0\x01"), V3),
    Case(errors.NO_LOCAL_SHARED, subscribe_of(b"$share/g/a", 0x04)),
    *[Case(errors.SUBSCRIPTION_RESERVED, subscribe_of(b"a", options)) for options in (0x40, 0x80, 0xC1)],
    *[
        Case(errors.SUBSCRIPTION_RESERVED, subscribe_of(b"a", options, V3), V3)
        for options in (0x04, 0x08, 0x10)
    ],
    Case(errors.SUBSCRIPTION_QOS, subscribe_of(b"a", 0x03)),
    Case(errors.SUBSCRIPTION_QOS, subscribe_of(b"a", 0x03, V3), V3),
    Case(errors.RETAIN_HANDLING, subscribe_of(b"a", 0x30)),
    Case(errors.NO_FILTERS_TO_LEAVE, frame(0xA2, b"\0\x01\0")),
    Case(errors.NO_FILTERS_TO_LEAVE, frame(0xA2, b"\0\x01"), V3),
    Case(errors.TOO_MANY_FILTERS, frame(0x82, b"\0\x01\0" + b"\0\x01a\0" * 1_001)),
    Case(errors.TOO_MANY_FILTERS, frame(0xA2, b"\0\x01" + b"\0\x01a" * 1_001), V3),
    Case(
        errors.TOO_MANY_PROPERTIES,
        frame(0x30, b"\0\x01a" + fields.variable_integer(5_005) + b"\x26\0\0\0\0" * 1_001),
    ),
    Case(errors.NO_REASONS, frame(0x90, b"\0\x01\0"), V5, SERVER),
    Case(errors.NO_REASONS, frame(0xB0, b"\0\x01\0"), V5, SERVER),
    Case(errors.SESSION_EXPIRY_SENT, frame(0xE0, b"\0\x05\x11\0\0\0\0"), V5, SERVER),
]
#: Rules about the order of a stream, its bounds and what is only written; each has a test of its own below.
ELSEWHERE = {
    errors.TOO_LARGE,
    errors.LONG_FIELD,
    errors.CONNECT_FIRST,
    errors.SECOND_CONNECT,
    errors.CONNACK_FIRST,
    errors.SECOND_CONNACK,
}


def rules() -> Iterator[tuple[str, Rule]]:
    for name, value in vars(errors).items():
        if isinstance(value, Rule):
            yield name, value


def parser_for(case: Case) -> Parser:
    if case.data[0] >> 4 in (1, 2):
        return Parser(case.sender, version=0 if case.sender is CLIENT else case.version)
    return begun(case.sender, case.version)


def names(case: Case) -> str:
    found = next(name for name, rule in rules() if rule is case.rule)
    return f"{found}-{case.version}-{case.data.hex()[:24]}"


@pytest.mark.parametrize("case", CASES, ids=names)
def test_a_broken_rule_ends_the_connection(case: Case) -> None:
    for size in (1, len(case.data)):
        parser = parser_for(case)
        for at in range(0, len(case.data), size):
            assert parser.feed(case.data[at : at + size]) == []
        assert parser.fault is not None, "it was taken for legal"
        assert parser.fault.rule is case.rule
        assert parser.fault.code is case.rule.code
        assert case.rule.sentence in str(parser.fault)
        assert parser.fault.statement in str(parser.fault)
        assert parser.feed(packets.write(PingReq(), V5)) == []
        assert parser.waiting_bytes == 0


def test_every_rule_is_broken_by_a_case() -> None:
    broken = {case.rule for case in CASES} | ELSEWHERE
    assert [name for name, rule in rules() if rule not in broken] == []


def test_every_rule_has_a_statement_and_no_two_are_the_same() -> None:
    every = [rule for _, rule in rules()]
    assert len({rule.sentence for rule in every}) == len(every)
    for rule in every:
        for statement in (rule.statement, rule.statement_3):
            assert not statement or statement.startswith(("MQTT-", "section "))
        assert rule.statement or rule.statement_3


def test_a_fault_names_the_statement_of_the_version_that_is_spoken() -> None:
    first, second = begun(version=V5), begun(version=V3)
    first.feed(publish_of(b"a\0b", b"\0"))
    second.feed(publish_of(b"a\0b", b""))
    assert first.fault is not None
    assert second.fault is not None
    assert (first.fault.statement, second.fault.statement) == ("MQTT-1.5.4-2", "MQTT-1.5.3-2")


def test_a_client_begins_with_connect() -> None:
    parser = Parser(CLIENT)
    assert parser.feed(b"G") == []
    assert parser.fault is not None
    assert parser.fault.rule is errors.CONNECT_FIRST
    assert connect.refusal(parser.fault.code, parser.fault.version) == b""


def test_a_client_sends_one_connect() -> None:
    parser = begun()
    parser.feed(packets.write(Connect(client_id="c"), V5)[:1])
    assert parser.fault is not None
    assert parser.fault.rule is errors.SECOND_CONNECT


def test_a_server_begins_with_connack_or_asks_for_authentication() -> None:
    auth = Auth(0x18, Properties(authentication_method="m"))
    parser = Parser(SERVER, version=V5)
    assert parser.feed(packets.write(auth, V5) + packets.write(ConnAck(), V5)) == [auth, ConnAck()]
    early = Parser(SERVER, version=V5)
    early.feed(packets.write(Publish("t"), V5))
    assert early.fault is not None
    assert early.fault.rule is errors.CONNACK_FIRST


def test_a_server_sends_one_connack() -> None:
    parser = begun(SERVER)
    parser.feed(packets.write(ConnAck(), V5))
    assert parser.fault is not None
    assert parser.fault.rule is errors.SECOND_CONNACK


def test_what_follows_a_disconnect_is_not_read() -> None:
    parser = begun()
    goodbye = Disconnect()
    assert parser.feed(packets.write(goodbye, V5) + packets.write(Publish("t"), V5)) == [goodbye]
    assert parser.feed(packets.write(Publish("t"), V5)) == []
    assert parser.fault is None


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (connect_of(0x02, b"\0\x01c", 3, b"MQIsdp"), b"\x20\x02\x00\x01"),
        (connect_of(0x02, b"\0\x01c", 2), b"\x20\x02\x00\x01"),
        (connect_of(0x02, b"\0\x01c", 6), b"\x20\x03\x00\x84\x00"),
        (connect_of(0x00, b"\0\0", V3), b"\x20\x02\x00\x02"),
        (connect_of(0x03, b"\0\0\x01c"), b"\x20\x03\x00\x81\x00"),
        (connect_of(0x03, b"\0\x01c", V3), b""),
        (connect_of(0x02, b"\0\x01c", V3, b"HTTP"), b""),
    ],
)
def test_a_connect_that_is_refused_is_answered_in_its_version(data: bytes, answer: bytes) -> None:
    """3.1.1 has return codes for some reasons, and for the others the end alone; 3.1 understands those of 3.1.1."""
    parser = Parser(CLIENT)
    parser.feed(data)
    assert parser.fault is not None
    assert connect.refusal(parser.fault.code, parser.fault.version) == answer


def test_a_client_of_5_0_without_an_identifier_may_keep_its_session() -> None:
    """The server assigns one [MQTT-3.1.3-6]; a password without a user name is legal there as well."""
    parser = Parser(CLIENT)
    wanted = Connect(client_id="", clean_start=False, password=b"p")
    assert parser.feed(packets.write(wanted, V5)) == [wanted]


def test_an_accepted_connection_ends_with_a_disconnect_in_5_0_and_without_in_3_1_1() -> None:
    assert control.farewell(ReasonCode.MALFORMED_PACKET, V5) == b"\xe0\x01\x81"
    assert control.farewell(ReasonCode.MALFORMED_PACKET, V3) == b""
    told = Properties(reason_string="no")
    assert control.farewell(ReasonCode.MALFORMED_PACKET, V5, told) == b"\xe0\x07\x81\x05\x1f\x00\x02no"


def test_every_code_of_a_rule_may_be_said_at_the_end_of_a_connection() -> None:
    for name, rule in rules():
        if rule.code is not ReasonCode.UNSUPPORTED_PROTOCOL_VERSION and rule.statement:
            assert control.farewell(rule.code, V5), name


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("text", ["+", "#", "+/#", "/", "//", "a/+/#", "/#", "/+", "$SYS/#", "a b", "\ufeff"])
def test_legal_filters_are_read(text: str, version: int) -> None:
    packet = Subscribe(1, (Subscription(text),))
    assert begun(version=version).feed(packets.write(packet, version)) == [packet]


def test_shared_filters_are_no_grammar_of_3_1_1() -> None:
    packet = Subscribe(1, (Subscription("$share/a", 1),))
    assert begun(version=V3).feed(packets.write(packet, V3)) == [packet]


def test_a_filter_that_only_looks_shared_is_an_ordinary_one() -> None:
    packet = Subscribe(
        1, (Subscription("$shared/g/a", no_local=True), Subscription("share/g", no_local=True))
    )
    assert begun().feed(packets.write(packet, V5)) == [packet]


#: A value of each type that every property of that type may have.
VALUES = {
    properties.BYTE: b"\1",
    properties.TWO_BYTES: b"\0\1",
    properties.FOUR_BYTES: b"\0\0\0\1",
    properties.VARIABLE: b"\1",
    properties.TEXT: b"\0\1a",
    properties.BINARY: b"\0\1a",
    properties.PAIR: b"\0\1a\0\1b",
}


@pytest.mark.parametrize("kind", list(PacketType))
def test_a_property_is_read_where_it_belongs_and_nowhere_else(kind: PacketType) -> None:
    """Each row of the table in each packet, by bytes that differ in the property alone."""
    for row in TABLE:
        section = bytes([row.identifier]) + VALUES[row.data_type]
        needs_method = row.name == "authentication_data" or kind is PacketType.AUTH
        if needs_method and row.name != "authentication_method":
            section += b"\x15\0\x01m"
        fault = fault_of(kind, bytes([len(section)]) + section)
        if kind in row.places:
            assert fault is None, row.name
        else:
            assert fault is not None, row.name
            assert fault.code == ReasonCode.MALFORMED_PACKET


def fault_of(kind: PacketType, section: bytes) -> PacketError | None:
    """Give the fault of a packet with these properties."""
    bodies = {
        PacketType.CONNECT: b"\0\x04MQTT\x05\x02\0\0" + section + b"\0\x01c",
        PacketType.WILL: b"\0\x04MQTT\x05\x06\0\0\0\0\x01c" + section + b"\0\x01t\0\0",
        PacketType.CONNACK: b"\0\0" + section,
        PacketType.PUBLISH: b"\0\x01t" + section,
        PacketType.SUBSCRIBE: b"\0\x01" + section + b"\0\x01t\0",
        PacketType.SUBACK: b"\0\x01" + section + b"\0",
        PacketType.UNSUBSCRIBE: b"\0\x01" + section + b"\0\x01t",
        PacketType.UNSUBACK: b"\0\x01" + section + b"\0",
        PacketType.DISCONNECT: b"\0" + section,
        PacketType.AUTH: b"\x18" + section,
    }
    kind_sent = PacketType.CONNECT if kind is PacketType.WILL else kind
    body = bodies.get(kind, b"\0\x01\0" + section if kind.name.startswith("PUB") else section)
    flags = 2 if kind in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
    data = frame(kind_sent << 4 | flags, body)
    servers = {
        PacketType.CONNACK,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.PINGRESP,
        PacketType.PUBLISH,
    }
    sender = SERVER if kind in servers else CLIENT
    is_first = kind_sent in (PacketType.CONNECT, PacketType.CONNACK)
    parser = Parser(sender, version=V5 if sender is SERVER else 0) if is_first else begun(sender)
    found = parser.feed(data)
    assert bool(found) != bool(parser.fault)
    return parser.fault


@pytest.mark.parametrize(
    ("packet", "rule"),
    [
        (Publish("a/+"), errors.TOPIC_WILDCARD),
        (Publish("t", qos=1), errors.PACKET_IDENTIFIER),
        (Publish("t", qos=3, packet_id=1), errors.QOS_3),
        (Publish("t", dup=True), errors.DUPLICATE_QOS_0),
        (Publish("t\0"), errors.NULL_CHARACTER),
        (Publish("t\ud800"), errors.ILL_FORMED_TEXT),
        (Publish("t" * 65_536), errors.LONG_FIELD),
        (Publish("t", properties=Properties(topic_alias=0)), errors.TOPIC_ALIAS_ZERO),
        (Publish("t", properties=Properties(receive_maximum=1)), errors.UNKNOWN_PROPERTY),
        (Publish("t", properties=Properties(response_topic="+")), errors.RESPONSE_TOPIC),
        (Publish("t", properties=Properties(subscription_identifiers=(2**28,))), errors.LONG_INTEGER),
        (Subscribe(1, ()), errors.NO_FILTERS),
        (Subscribe(0, (Subscription("a"),)), errors.PACKET_IDENTIFIER),
        (Subscribe(1, (Subscription("a#"),)), errors.MULTI_LEVEL_WILDCARD),
        (Subscribe(1, (Subscription("$share/g/a", no_local=True),)), errors.NO_LOCAL_SHARED),
        (
            Subscribe(1, (Subscription("a"),), Properties(subscription_identifiers=(1, 2))),
            errors.DUPLICATE_PROPERTY,
        ),
        (Unsubscribe(1, ()), errors.NO_FILTERS_TO_LEAVE),
        (SubAck(1, ()), errors.NO_REASONS),
        (SubAck(1, (3,)), errors.REASON),
        (UnsubAck(1, (1,)), errors.REASON),
        (ConnAck(0x87, session_present=True), errors.SESSION_PRESENT),
        (Disconnect(0x18), errors.REASON),
        (Auth(0x18), errors.AUTHENTICATION_METHOD),
        (Connect(will=Will("", b"")), errors.EMPTY_TOPIC),
        (Connect(will=Will("t", b"", qos=3)), errors.WILL_QOS),
        (Connect(version=V3, clean_start=False), errors.EMPTY_CLIENT_IDENTIFIER),
    ],
    ids=str,
)
def test_what_would_break_a_rule_is_not_written(packet: packets.Packet, rule: Rule) -> None:
    with pytest.raises(PacketError) as raised:
        packets.write(packet, V5)
    assert raised.value.rule is rule
