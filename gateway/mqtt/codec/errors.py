"""What a packet may break: the reason codes of MQTT, our table of rules, and the error that names one of them.

Each rule is a statement of the OASIS specification, in our words, with its number in both versions: `MQTT-1.5.4-2`
where the statement has one, a section where it has none. Reading and writing look at the same rules: what may not be
read is not written either. Everything here ends a connection: `MQTT-4.13.1-1` and `MQTT-4.8.0-1` say so. What a server
refuses without an end (a filter that a client has no right to) is not the business of a codec.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class ReasonCode(IntEnum):
    """The reason codes of 5.0, section 2.4; where one code has several names, that of the end of a connection."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


#: The return codes that 3.1.1 has for a refused CONNECT, by the reason of 5.0; for others it has only the end.
RETURN_CODES: Final = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}

#: So many characters are told of what was found, which may be a topic of 65,535 bytes.
FOUND_MAX: Final = 200

MALFORMED: Final = ReasonCode.MALFORMED_PACKET
PROTOCOL: Final = ReasonCode.PROTOCOL_ERROR


class Rule(NamedTuple):
    """One statement of the specification that a packet can break.

    Attributes:
        code: why the connection ends, for 5.0. Where no code is given there: malformed is what cannot be taken apart,
            a protocol error what can but is not allowed, and a more telling code comes before both.
        statement: where it stands in 5.0.
        statement_3: where it stands in 3.1.1; empty where that version has no such rule.
        sentence: what it demands.
    """

    code: ReasonCode
    statement: str
    statement_3: str
    sentence: str


# What any packet is made of.
TRUNCATED: Final = Rule(
    MALFORMED,
    "MQTT-4.13.1-1",
    "MQTT-4.8.0-1",
    "every field ends within its packet, and a property within its section",
)
TRAILING: Final = Rule(MALFORMED, "MQTT-4.13.1-1", "MQTT-4.8.0-1", "a packet ends with its last field")
PADDED_INTEGER: Final = Rule(
    MALFORMED, "MQTT-1.5.5-1", "", "a variable byte integer takes as few bytes as its value needs"
)
LONG_INTEGER: Final = Rule(
    MALFORMED, "section 1.5.5", "section 2.2.3", "a variable byte integer has four bytes at most"
)
ILL_FORMED_TEXT: Final = Rule(
    MALFORMED, "MQTT-1.5.4-1", "MQTT-1.5.3-1", "text is well-formed UTF-8 without surrogates"
)
NULL_CHARACTER: Final = Rule(MALFORMED, "MQTT-1.5.4-2", "MQTT-1.5.3-2", "text has no U+0000")
LONG_FIELD: Final = Rule(
    MALFORMED, "section 1.5.4", "section 1.5.3", "text and binary data have 65,535 bytes at most"
)
RESERVED_FLAGS: Final = Rule(
    MALFORMED,
    "MQTT-2.1.3-1",
    "MQTT-2.2.2-2",
    "reserved flags of a fixed header have the values that are listed",
)
UNKNOWN_TYPE: Final = Rule(MALFORMED, "section 2.1.2", "section 2.2.1", "a packet is of a type that exists")
WRONG_SENDER: Final = Rule(
    PROTOCOL, "section 2.1.2", "section 2.2.1", "a packet goes in a direction that its type may go"
)
TOO_LARGE: Final = Rule(
    ReasonCode.PACKET_TOO_LARGE,
    "MQTT-3.2.2-15",
    "section 2.2.3",
    "no packet is larger than its receiver said",
)
PACKET_IDENTIFIER: Final = Rule(
    PROTOCOL,
    "MQTT-2.2.1-3",
    "MQTT-2.3.1-1",
    "what is to be acknowledged has a packet identifier that is not 0",
)
REASON: Final = Rule(
    PROTOCOL, "section 2.4", "MQTT-3.9.3-2", "a reason code is one of those of its packet and of its sender"
)

# Properties.
UNKNOWN_PROPERTY: Final = Rule(
    MALFORMED,
    "section 2.2.2.2",
    "section 2.3",
    "a packet has only properties that exist, and belong to its type",
)
DUPLICATE_PROPERTY: Final = Rule(
    PROTOCOL, "section 2.2.2.2", "", "a property comes once, unless it may come several times"
)
PROPERTY_VALUE: Final = Rule(
    PROTOCOL,
    "section 2.2.2.2",
    "",
    "a property has a value of those that it may have: a flag 0 or 1, a limit not 0",
)
TOPIC_ALIAS_ZERO: Final = Rule(ReasonCode.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8", "", "a topic alias is not 0")
RESPONSE_TOPIC: Final = Rule(
    ReasonCode.TOPIC_NAME_INVALID, "MQTT-3.3.2-14", "", "a response topic is a topic name: no wildcards"
)
AUTHENTICATION_METHOD: Final = Rule(
    PROTOCOL, "section 3.1.2.11.10", "", "authentication data come with an authentication method"
)

# CONNECT and CONNACK.
CONNECT_FIRST: Final = Rule(
    PROTOCOL, "MQTT-3.1.0-1", "MQTT-3.1.0-1", "the first packet of a client is a CONNECT"
)
SECOND_CONNECT: Final = Rule(PROTOCOL, "MQTT-3.1.0-2", "MQTT-3.1.0-2", "a client sends one CONNECT")
PROTOCOL_NAME: Final = Rule(
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    "MQTT-3.1.2-1",
    "MQTT-3.1.2-1",
    "the name of the protocol is MQTT",
)
PROTOCOL_VERSION: Final = Rule(
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    "MQTT-3.1.2-2",
    "MQTT-3.1.2-2",
    "the version is one that the server speaks: 4 (3.1.1) or 5 (5.0)",
)
CONNECT_RESERVED: Final = Rule(
    MALFORMED, "MQTT-3.1.2-3", "MQTT-3.1.2-3", "the reserved flag of a CONNECT is 0"
)
WILL_QOS_WITHOUT_WILL: Final = Rule(
    MALFORMED, "MQTT-3.1.2-11", "MQTT-3.1.2-13", "without a will its QoS is 0"
)
WILL_QOS: Final = Rule(MALFORMED, "MQTT-3.1.2-12", "MQTT-3.1.2-14", "the QoS of a will is 0, 1 or 2")
WILL_RETAIN_WITHOUT_WILL: Final = Rule(
    MALFORMED, "MQTT-3.1.2-13", "MQTT-3.1.2-15", "without a will its flag retain is 0"
)
PASSWORD_WITHOUT_USERNAME: Final = Rule(
    MALFORMED, "", "MQTT-3.1.2-22", "in 3.1.1 a password comes with a user name"
)
EMPTY_CLIENT_IDENTIFIER: Final = Rule(
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    "",
    "MQTT-3.1.3-8",
    "in 3.1.1 a client without an identifier asks for a clean session",
)
CONNACK_FIRST: Final = Rule(
    PROTOCOL, "MQTT-3.2.0-1", "MQTT-3.2.0-1", "a server sends nothing before its CONNACK, but for AUTH in 5.0"
)
SECOND_CONNACK: Final = Rule(PROTOCOL, "MQTT-3.2.0-2", "section 3.2", "a server sends one CONNACK")
CONNACK_RESERVED: Final = Rule(
    MALFORMED, "MQTT-3.2.2-1", "section 3.2.2.1", "the reserved flags of a CONNACK are 0"
)
SESSION_PRESENT: Final = Rule(
    PROTOCOL, "MQTT-3.2.2-6", "MQTT-3.2.2-4", "a refused connection has no session present"
)

# PUBLISH, topics and filters.
DUPLICATE_QOS_0: Final = Rule(MALFORMED, "MQTT-3.3.1-2", "MQTT-3.3.1-2", "the flag DUP is 0 for QoS 0")
QOS_3: Final = Rule(MALFORMED, "MQTT-3.3.1-4", "MQTT-3.3.1-4", "a PUBLISH has QoS 0, 1 or 2")
TOPIC_WILDCARD: Final = Rule(
    ReasonCode.TOPIC_NAME_INVALID, "MQTT-3.3.2-2", "MQTT-3.3.2-2", "a topic name has no wildcards"
)
EMPTY_TOPIC: Final = Rule(
    PROTOCOL,
    "MQTT-4.7.3-1",
    "MQTT-4.7.3-1",
    "a topic name has a character at least, or a PUBLISH a topic alias",
)
EMPTY_FILTER: Final = Rule(
    ReasonCode.TOPIC_FILTER_INVALID, "MQTT-4.7.3-1", "MQTT-4.7.3-1", "a topic filter has a character at least"
)
MULTI_LEVEL_WILDCARD: Final = Rule(
    ReasonCode.TOPIC_FILTER_INVALID,
    "MQTT-4.7.1-1",
    "MQTT-4.7.1-2",
    "# is the whole last level of a topic filter",
)
SINGLE_LEVEL_WILDCARD: Final = Rule(
    ReasonCode.TOPIC_FILTER_INVALID, "MQTT-4.7.1-2", "MQTT-4.7.1-3", "+ is a whole level of a topic filter"
)
SHARE_NAME: Final = Rule(
    ReasonCode.TOPIC_FILTER_INVALID,
    "MQTT-4.8.2-2",
    "",
    "$share/ is followed by a name without wildcards, a / and a topic filter",
)
SUBSCRIPTION_IDENTIFIER_SENT: Final = Rule(
    PROTOCOL, "MQTT-3.3.4-6", "", "a PUBLISH of a client has no subscription identifier"
)

# SUBSCRIBE, UNSUBSCRIBE and their answers.
NO_FILTERS: Final = Rule(PROTOCOL, "MQTT-3.8.3-2", "MQTT-3.8.3-3", "a SUBSCRIBE has a topic filter at least")
NO_LOCAL_SHARED: Final = Rule(
    PROTOCOL, "MQTT-3.8.3-4", "", "a shared subscription does not ask for the option no local"
)
SUBSCRIPTION_RESERVED: Final = Rule(
    MALFORMED, "MQTT-3.8.3-5", "MQTT-3-8.3-4", "reserved bits of the options of a subscription are 0"
)
SUBSCRIPTION_QOS: Final = Rule(
    PROTOCOL, "section 3.8.3.1", "MQTT-3-8.3-4", "a subscription asks for QoS 0, 1 or 2"
)
RETAIN_HANDLING: Final = Rule(PROTOCOL, "section 3.8.3.1", "", "the retain handling is 0, 1 or 2")
NO_FILTERS_TO_LEAVE: Final = Rule(
    PROTOCOL, "MQTT-3.10.3-2", "MQTT-3.10.3-2", "an UNSUBSCRIBE has a topic filter at least"
)
TOO_MANY_FILTERS: Final = Rule(
    ReasonCode.QUOTA_EXCEEDED,
    "section 4.13.1",
    "section 4.8",
    "a SUBSCRIBE or UNSUBSCRIBE has no more topic filters than the server looks at",
)
TOO_MANY_PROPERTIES: Final = Rule(
    ReasonCode.QUOTA_EXCEEDED,
    "section 4.13.1",
    "",
    "a packet has no more user properties than the server looks at",
)
NO_REASONS: Final = Rule(
    PROTOCOL,
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-5",
    "the answer to a SUBSCRIBE or UNSUBSCRIBE has a code for each filter",
)

# The end.
SESSION_EXPIRY_SENT: Final = Rule(
    PROTOCOL, "MQTT-3.14.2-2", "", "a DISCONNECT of a server has no session expiry interval"
)


class PacketError(Exception):
    """A packet breaks a rule, and its connection ends.

    Attributes:
        rule: which one.
        found: what was there instead.
        version: in which version its sender can be told why; 0 if it is not known to speak any.
    """

    def __init__(self, rule: Rule, found: str, version: int) -> None:
        self.rule = rule
        self.found = found if len(found) <= FOUND_MAX else f"{found[:FOUND_MAX]}..."
        self.version = version
        super().__init__(f"{rule.sentence} [{self.statement}]; found {self.found}")

    @property
    def code(self) -> ReasonCode:
        """The reason of the end."""
        return self.rule.code

    @property
    def statement(self) -> str:
        """The statement of the specification that is broken, in the version that is spoken."""
        at_home = self.rule.statement_3 if self.version == 4 else self.rule.statement
        return at_home or self.rule.statement or self.rule.statement_3
