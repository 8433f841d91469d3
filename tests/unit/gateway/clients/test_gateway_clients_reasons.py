"""Every error code of ours as MQTT says it."""

from __future__ import annotations

import pytest

from angarium import errors
from gateway.mqtt.clients import rules
from gateway.mqtt.clients.reasons import fitting, reason_of
from gateway.mqtt.codec.errors import RETURN_CODES, ReasonCode, Rule
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender, check_reason

ANSWERS = (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PUBACK, PacketType.PUBREC)
#: Each reason, and some of the codes that it is for.
NAMED = {
    errors.UNAUTHORIZED: 0x86,
    errors.PUBLISH_DENIED: 0x87,
    errors.SUBSCRIBE_DENIED: 0x87,
    errors.CLIENT_NAME_IN_USE: 0x85,
    errors.VPN_UNAVAILABLE: 0x88,
    errors.TOO_MANY_CLIENTS: 0x97,
    errors.CONNECT_RATE_EXCEEDED: 0x9F,
    errors.SHUTTING_DOWN: 0x8B,
    errors.DISCONNECTED_BY_OPERATOR: 0x98,
    errors.TAKEN_OVER: 0x8E,
    errors.KEEPALIVE_TIMEOUT: 0x8D,
    errors.MESSAGE_TOO_LARGE: 0x95,
    errors.INVALID_FILTER: 0x8F,
    errors.INVALID_TOPIC: 0x90,
}


@pytest.mark.parametrize("kind", [*ANSWERS, PacketType.DISCONNECT])
def test_every_code_is_a_reason_that_its_packet_has(kind: PacketType) -> None:
    """[MQTT-3.2.2-8] [MQTT-3.9.3-2] [MQTT-3.11.3-2] [MQTT-3.4.2-1] [MQTT-3.14.2-1]."""
    for code in errors.ERRORS:
        check_reason(kind, fitting(reason_of(code), kind), V5, Sender.SERVER)


@pytest.mark.parametrize("reason", list(ReasonCode))
def test_what_ends_a_connection_can_be_said_before_and_after_the_connack(reason: ReasonCode) -> None:
    for kind in (PacketType.CONNACK, PacketType.DISCONNECT):
        said = fitting(reason, kind)
        check_reason(kind, said, V5, Sender.SERVER)
        assert said >= 0x80 or said == reason


def test_a_reason_that_a_packet_has_is_said_as_it_is() -> None:
    for code, reason in NAMED.items():
        assert reason_of(code) == reason
    assert fitting(ReasonCode.SESSION_TAKEN_OVER, PacketType.DISCONNECT) == 0x8E


def test_a_refusal_is_never_said_as_a_success() -> None:
    successes = (errors.NO_SUBSCRIPTION_MATCH, errors.SUBSCRIPTION_NOT_FOUND)
    for kind in ANSWERS:
        for code in errors.ERRORS:
            assert fitting(reason_of(code), kind) >= 0x80 or code in successes


def test_3_1_1_has_one_code_for_a_subscription() -> None:
    """3.1.1 [MQTT-3.9.3-2]."""
    assert {fitting(reason_of(code), PacketType.SUBACK, V3) for code in errors.ERRORS} == {0x80}


def test_3_1_1_has_a_return_code_for_a_connect_or_none() -> None:
    """3.1.1 [MQTT-3.2.2-6]: an unspecified error is what no return code stands for."""
    said = {fitting(reason_of(code), PacketType.CONNACK, V3) for code in errors.ERRORS}
    assert said <= RETURN_CODES.keys() | {ReasonCode.UNSPECIFIED_ERROR}
    assert ReasonCode.SERVER_UNAVAILABLE in said


def test_each_rule_says_where_it_stands() -> None:
    all_rules = [value for value in vars(rules).values() if isinstance(value, Rule)]
    assert len(all_rules) > 10
    for rule in all_rules:
        assert rule.statement.startswith(("MQTT-", "section "))
        assert rule.code >= 0x80
        assert rule.sentence
