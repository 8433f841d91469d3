"""PUBLISH of a client: what the specifications demand of a server, a statement each; 5.0 where no version is named."""

from __future__ import annotations

import msgspec
import pytest

from angarium import errors, wire
from gateway.mqtt.clients.settings import Capabilities, Settings
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import row_of
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])


def alias(number: int) -> Properties:
    return Properties(topic_alias=number)


@BOTH
def test_a_message_is_given_to_the_node_with_who_sent_it(version: int) -> None:
    talk = Conversation(version).here()
    publish = Publish("a/b", b"payload")
    assert talk.says(publish) == [True]
    assert talk.node.published == [("a/b", *row_of(publish, "c"), b"payload")]
    assert talk.hears() == []


def test_messages_have_the_order_in_which_they_came() -> None:
    """[MQTT-4.6.0-6]."""
    talk = Conversation().here()
    talk.says(*[Publish("t", b"%d" % number) for number in range(50)])
    assert [row[4] for row in talk.node.published] == [b"%d" % number for number in range(50)]


def test_an_address_is_published_to_under_its_name_here() -> None:
    talk = Conversation().here()
    talk.says(Publish("$P2P/QUE/q", b"x"))
    assert talk.node.published[0][0] == "#P2P/QUE/q"


@BOTH
@pytest.mark.parametrize(
    ("topic", "counter"),
    [
        ("secret/a", "discard.publish-topic-acl"),
        ("x" * 251, "discard.topic-parse-error"),
    ],
)
def test_a_message_that_is_not_allowed_is_dropped_and_counted(version: int, topic: str, counter: str) -> None:
    """3.1.1 [MQTT-3.3.5-2]: its client cannot be told, and need not be closed."""
    talk = Conversation(version).here()
    assert talk.says(Publish(topic, b"x"), Publish("allowed", b"x")) == [True, True]
    assert [row[0] for row in talk.node.published] == ["allowed"]
    assert talk.node.counts == {counter: 1}
    assert talk.hears() == []
    assert talk.finished is None


@BOTH
def test_a_message_that_nobody_has_room_for_is_to_be_offered_again(version: int) -> None:
    talk = Conversation(version).here()
    talk.node.is_full = True
    publish = Publish("t", b"x")
    assert not talk.offers(publish)
    talk.node.is_full = False
    assert talk.offers(publish)
    assert len(talk.node.published) == 1


@BOTH
def test_a_message_above_the_largest_of_the_client_profile_ends_the_connection(version: int) -> None:
    """[MQTT-3.2.2-15]: 5.0 was told the largest packet."""
    talk = Conversation(version).connect()
    talk.node.message_bytes_max = 1_000
    talk.welcome()
    talk.says(Publish("t", b"x" * 1_001))
    assert talk.node.published == []
    talk.ends_with(R.PACKET_TOO_LARGE if version == V5 else None)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_a_qos_that_there_is_not_ends_the_connection(version: int, qos: int) -> None:
    """[MQTT-3.2.2-11]; nobody is told in 3.1.1 which there is."""
    talk = Conversation(version, Settings(capabilities=Capabilities(qos_max=qos - 1))).here()
    talk.says(Publish("t", b"x", qos=qos, packet_id=1))
    assert talk.node.published == []
    talk.ends_with(R.QOS_NOT_SUPPORTED if version == V5 else None)


@BOTH
def test_a_message_to_be_retained_ends_the_connection_where_nothing_is(version: int) -> None:
    """[MQTT-3.2.2-14] and section 3.2.2.3.5."""
    talk = Conversation(version, Settings(capabilities=Capabilities(retain=False))).here()
    talk.says(Publish("t", b"x", retain=True))
    assert talk.node.published == []
    talk.ends_with(R.RETAIN_NOT_SUPPORTED if version == V5 else None)


def test_where_messages_are_retained_it_is_a_flag() -> None:
    talk = Conversation().here()
    talk.says(Publish("t", b"x", retain=True))
    assert talk.node.published[0][1] & wire.FLAG_RETAIN


def test_a_topic_alias_stands_for_the_topic_that_it_came_with_last() -> None:
    """[MQTT-3.3.2-12] and section 3.3.2.3.4."""
    talk = Conversation().here()
    talk.says(
        Publish("a", b"", properties=alias(1)),
        Publish("b", b"", properties=alias(32)),
        Publish("", b"", properties=alias(1)),
        Publish("c", b"", properties=alias(1)),
        Publish("", b"", properties=alias(1)),
        Publish("", b"", properties=alias(32)),
    )
    assert [row[0] for row in talk.node.published] == ["a", "b", "a", "c", "c", "b"]


def test_an_alias_is_of_the_message_as_mqtt_writes_it_and_refused_ones_count_too() -> None:
    talk = Conversation().here()
    talk.says(Publish("secret/a", b"", properties=alias(1)), Publish("", b"", properties=alias(1)))
    assert talk.node.counts["discard.publish-topic-acl"] == 2


def test_a_topic_alias_is_of_its_connection() -> None:
    """[MQTT-3.3.2-7]."""
    Conversation().here().says(Publish("a", b"", properties=alias(1)))
    other = Conversation().here()
    other.says(Publish("", b"", properties=alias(1)))
    other.ends_with(R.PROTOCOL_ERROR)


def test_a_topic_alias_above_the_maximum_ends_the_connection() -> None:
    """[MQTT-3.3.2-9] [MQTT-3.2.2-17]."""
    talk = Conversation(settings=Settings(topic_alias_max=5)).here()
    talk.says(Publish("a", b"", properties=alias(5)))
    talk.says(Publish("a", b"", properties=alias(6)))
    talk.ends_with(R.TOPIC_ALIAS_INVALID)


def test_without_a_maximum_there_are_none() -> None:
    """[MQTT-3.2.2-18]."""
    talk = Conversation(settings=Settings(topic_alias_max=0)).connect()
    assert talk.welcome().properties.topic_alias_maximum is None
    talk.says(Publish("a", b"", properties=alias(1)))
    talk.ends_with(R.TOPIC_ALIAS_INVALID)


@BOTH
def test_acknowledgements_of_what_was_never_sent_are_answered_so_that_the_client_can_forget(
    version: int,
) -> None:
    """Sections 3.6.2.1 and 3.7.2.1: the identifier is not found, which is no fault of itself."""
    talk = Conversation(version).here()
    talk.says(PubAck(1), PubRec(2), PubRel(3), PubComp(4))
    code = R.PACKET_IDENTIFIER_NOT_FOUND if version == V5 else 0
    assert talk.hears() == [PubRel(2, code), PubComp(3, code)]
    assert talk.finished is None


@pytest.mark.parametrize("may_receive", [True, False], ids=["with a session", "without one"])
def test_a_refusal_of_what_was_never_sent_is_not_answered(may_receive: bool) -> None:
    """Section 4.3.3: a PUBREC with 0x80 or above ends the exchange, and no PUBREL follows."""
    talk = Conversation().connect()
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_receive_guaranteed=may_receive))
    talk.hears()
    talk.says(PubRec(2, R.QUOTA_EXCEEDED))
    assert talk.hears() == []
    talk.says(PubRec(2))
    assert talk.hears() == [PubRel(2, R.PACKET_IDENTIFIER_NOT_FOUND)]


def test_other_refusals_have_a_counter_of_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation().here()
    monkeypatch.setattr(talk.node, "refusal_of", lambda topic, size: errors.UNKNOWN_ENDPOINT)
    talk.says(Publish("t", b"x"))
    assert talk.node.counts == {f"discard.refused-{errors.UNKNOWN_ENDPOINT}": 1}
