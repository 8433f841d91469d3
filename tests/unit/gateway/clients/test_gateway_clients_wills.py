"""Wills: what the node is given of them, and which ends leave them to be published; 5.0 where no version is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium import errors, wire
from angarium.errors import error_for
from angarium.message import HEADER_KEYS, unpack_properties
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec.connect import Will
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.subscribe import Subscribe, Subscription
from gateway.mqtt.messages import publish_properties, qos_of
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames import gateways

BOTH = pytest.mark.parametrize("version", [V3, V5])
SETTINGS = Settings(session_expiry_max_s=100)
WILL = Will("t", b"gone")


def given(version: int, will: Will, **fields: object) -> gateways.Will:
    """Give the will that the node is given."""
    talk = Conversation(version, SETTINGS).connect(will=will, **fields)
    found = talk.node.login.will
    assert found is not None
    return found


@BOTH
@pytest.mark.parametrize(("qos", "mode"), [(0, wire.MODE_DIRECT), (1, wire.MODE_PERSISTENT)])
@pytest.mark.parametrize("retain", [False, True])
def test_the_node_is_given_the_message(version: int, qos: int, mode: int, retain: bool) -> None:
    """[MQTT-3.1.2-7] [MQTT-3.1.2-11] [MQTT-3.1.2-14] [MQTT-3.1.2-15]."""
    found = given(version, Will("$P2P/QUE/q", b"gone", qos, retain))
    assert (found.topic, found.payload, found.delay_s) == ("#P2P/QUE/q", b"gone", 0)
    assert found.flags == mode | (wire.FLAG_RETAIN if retain else 0)


def test_one_of_3_1_1_with_qos_2_comes_to_subscribers_as_such() -> None:
    """Nobody acknowledges it, so nothing more is needed for it than for QoS 1."""
    found = given(V3, Will("t", b"", 2))
    assert qos_of(found.row(found.properties)) == 2


def test_its_properties_are_those_of_a_message() -> None:
    """Section 3.1.3.2."""
    said = Properties(
        payload_format_indicator=1,
        message_expiry_interval=5,
        content_type="text",
        response_topic="answers",
        correlation_data=b"\xff",
        user_properties=(("a", "1"), ("b", "2"), ("a", "3")),
        will_delay_interval=7,
    )
    found = given(V5, Will("t", b"", properties=said))
    told = publish_properties(found.row(found.properties))
    assert told == Properties(
        payload_format_indicator=1,
        message_expiry_interval=5,
        content_type="text",
        response_topic="answers",
        correlation_data=b"\xff",
        user_properties=(("a", "1"), ("b", "2"), ("a", "3")),
    )
    assert unpack_properties(found.properties)[HEADER_KEYS["sender_id"]] == "c"


@pytest.mark.parametrize(
    ("delay_s", "expiry_s", "least"),
    [(7, 60, 7), (60, 7, 7), (60, None, 0), (None, 60, 0), (1_000, 0xFFFF_FFFF, 100)],
)
def test_its_delay_is_not_longer_than_the_session(
    delay_s: int | None, expiry_s: int | None, least: int
) -> None:
    """[MQTT-3.1.3-9]."""
    will = Will("t", b"", properties=Properties(will_delay_interval=delay_s))
    found = given(V5, will, clean_start=False, properties=Properties(session_expiry_interval=expiry_s))
    assert found.delay_s == least


@pytest.mark.parametrize("clean", [False, True])
def test_the_node_is_told_who_begins_anew(clean: bool) -> None:
    assert Conversation().connect(clean_start=clean).node.login.is_clean is clean


def test_who_has_none_gives_none() -> None:
    assert Conversation().connect().node.login.will is None


@BOTH
def test_who_disconnects_has_it_dropped(version: int) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3]; 3.1.1 [MQTT-3.1.2-10] [MQTT-3.14.4-3]."""
    talk = Conversation(version).here(will=WILL)
    talk.says(Disconnect())
    assert talk.node.has_left
    assert talk.node.will_within_s is None


@pytest.mark.parametrize(
    "code", [ReasonCode.DISCONNECT_WITH_WILL, ReasonCode.UNSPECIFIED_ERROR, ReasonCode.QUOTA_EXCEEDED]
)
def test_who_disconnects_with_another_reason_leaves_it(code: ReasonCode) -> None:
    """Section 3.14.2.1."""
    talk = Conversation().here(will=WILL)
    talk.says(Disconnect(code))
    assert talk.node.will_within_s == 0


@BOTH
def test_a_disconnect_that_waits_for_an_answer_counts_if_the_connection_breaks_meanwhile(
    version: int,
) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3]; 3.1.1 [MQTT-3.1.2-10] [MQTT-3.14.4-3]."""
    talk = Conversation(version).here(will=WILL)
    taken = talk.says(Subscribe(1, (Subscription("a"),)), Disconnect())
    assert taken == [True, False]
    is_lost(talk)
    assert talk.node.has_left
    assert talk.node.will_within_s is None


def test_the_time_that_such_a_disconnect_gives_the_session_holds() -> None:
    talk = Conversation().here(will=WILL, properties=Properties(session_expiry_interval=60))
    talk.says(Subscribe(1, (Subscription("a"),)), Disconnect(4, Properties(session_expiry_interval=7)))
    is_lost(talk)
    assert talk.node.last[-1] == ("session.change", {"expiry_s": 7})
    assert talk.node.will_within_s == 7


def is_lost(talk: Conversation) -> None:
    talk.client.lost("the connection was closed", talk.now)


def is_silent(talk: Conversation) -> None:
    talk.now += 100
    talk.client.tick(talk.now)


def is_malformed(talk: Conversation) -> None:
    talk.says_bytes(b"\xc1\0")


def is_ended(talk: Conversation) -> None:
    talk.client.end(error_for(errors.SHUTTING_DOWN), talk.now)


ENDS = pytest.mark.parametrize("end", [is_lost, is_silent, is_malformed, is_ended])


@BOTH
@ENDS
def test_any_other_end_leaves_it(version: int, end: Callable[[Conversation], None]) -> None:
    """[MQTT-3.1.2-8]; 3.1.1 [MQTT-3.1.2-8]."""
    talk = Conversation(version).here(will=WILL, keep_alive=10, clean_start=True)
    end(talk)
    assert talk.node.has_left
    assert talk.node.will_within_s == 0


@ENDS
def test_it_waits_within_the_time_of_the_session(end: Callable[[Conversation], None]) -> None:
    kept = Properties(session_expiry_interval=60)
    talk = Conversation().here(will=WILL, keep_alive=10, properties=kept)
    end(talk)
    assert talk.node.will_within_s == 60


@pytest.mark.parametrize("expiry_s", [0, 7])
def test_a_disconnect_can_change_that_time(expiry_s: int) -> None:
    talk = Conversation().here(will=WILL, properties=Properties(session_expiry_interval=60))
    talk.says(Disconnect(4, Properties(session_expiry_interval=expiry_s)))
    assert talk.node.will_within_s == expiry_s


def test_without_the_right_to_a_session_nothing_is_waited_for() -> None:
    talk = Conversation().connect(will=WILL, properties=Properties(session_expiry_interval=60))
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_receive_guaranteed=False))
    is_lost(talk)
    assert talk.node.will_within_s == 0


def test_who_was_never_told_that_he_is_in_leaves_none() -> None:
    talk = Conversation().connect(will=WILL)
    is_lost(talk)
    assert talk.node.has_left
    assert talk.node.will_within_s is None
