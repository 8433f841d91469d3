"""What an MQTT client may break that the bytes of a packet do not show: what was agreed, and what is built.

As in the codec, a rule is a statement of the specification, and `PacketError` says who broke which.
"""

from __future__ import annotations

from typing import Final

from gateway.mqtt.codec.errors import ReasonCode, Rule

# CONNECT.
NO_WILL: Final = Rule(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    "section 3.1.4",
    "section 3.1.4",
    "this server takes no will",
)
WILL_TOPIC: Final = Rule(
    ReasonCode.TOPIC_NAME_INVALID,
    "section 3.1.3.3",
    "section 3.1.3.2",
    "the topic of a will is one that there is here",
)
WILL_QOS: Final = Rule(
    ReasonCode.QOS_NOT_SUPPORTED,
    "MQTT-3.2.2-12",
    "",
    "a will has no higher QoS than the server supports",
)
WILL_RETAIN: Final = Rule(
    ReasonCode.RETAIN_NOT_SUPPORTED,
    "MQTT-3.2.2-13",
    "",
    "a will is not retained where nothing is",
)
METHOD: Final = Rule(
    ReasonCode.BAD_AUTHENTICATION_METHOD,
    "MQTT-4.12.0-1",
    "",
    "clients authenticate by username and password, or a client certificate",
)
USERNAME: Final = Rule(
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    "section 3.1.3.5",
    "section 3.1.3.4",
    "a username is one that a client may have",
)
PASSWORD: Final = Rule(
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    "section 3.1.3.6",
    "section 3.1.3.5",
    "a password is text in UTF-8",
)

# PUBLISH.
QOS: Final = Rule(
    ReasonCode.QOS_NOT_SUPPORTED,
    "MQTT-3.2.2-11",
    "section 3.3.1.2",
    "a client publishes with no higher QoS than the server supports",
)
RETAIN: Final = Rule(
    ReasonCode.RETAIN_NOT_SUPPORTED,
    "MQTT-3.2.2-14",
    "section 3.3.1.3",
    "a client retains no message where the server does not",
)
RECEIVE_MAXIMUM: Final = Rule(
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
    "MQTT-3.3.4-7",
    "",
    "a client has no more messages unacknowledged than the server takes",
)
ALIAS: Final = Rule(
    ReasonCode.TOPIC_ALIAS_INVALID,
    "MQTT-3.3.2-9",
    "",
    "a topic alias is not above the maximum of the server",
)
UNKNOWN_ALIAS: Final = Rule(
    ReasonCode.PROTOCOL_ERROR,
    "section 3.3.4",
    "",
    "a topic alias without a topic was given one before",
)
MESSAGE_SIZE: Final = Rule(
    ReasonCode.PACKET_TOO_LARGE,
    "MQTT-3.2.2-15",
    "section 3.3.3",
    "a message is not larger than the client profile allows",
)
RELEASE: Final = Rule(
    ReasonCode.PROTOCOL_ERROR,
    "MQTT-4.3.3-4",
    "MQTT-4.3.3-1",
    "PUBREL answers PUBREC",
)
ACKNOWLEDGEMENT: Final = Rule(
    ReasonCode.PROTOCOL_ERROR,
    "MQTT-4.13.1-1",
    "MQTT-4.8.0-1",
    "PUBACK answers QoS 1, and PUBREC and PUBCOMP QoS 2",
)

# The rest.
NO_METHOD: Final = Rule(
    ReasonCode.PROTOCOL_ERROR,
    "MQTT-4.12.0-7",
    "",
    "a client that named no authentication method sends no AUTH",
)
SESSION_EXPIRY: Final = Rule(
    ReasonCode.PROTOCOL_ERROR,
    "section 3.14.2.2.2",
    "",
    "a session that was to end with its connection does so",
)
SILENCE: Final = Rule(
    ReasonCode.KEEP_ALIVE_TIMEOUT,
    "MQTT-3.1.2-22",
    "MQTT-3.1.2-24",
    "a client says something within one and a half times its keep alive",
)
ANSWER_SIZE: Final = Rule(
    ReasonCode.PACKET_TOO_LARGE,
    "MQTT-3.1.2-24",
    "",
    "an answer is not larger than its client takes",
)
