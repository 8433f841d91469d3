"""PUBLISH with QoS 1 of a client, and its PUBACK: what the specifications demand of a server, a statement each."""

from __future__ import annotations

import msgspec
import pytest

from angarium import errors, wire
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import row_of
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])


def message(
    number: int, topic: str = "t", payload: bytes = b"x", *, dup: bool = False, qos: int = 1
) -> Publish:
    return Publish(topic, payload, qos=qos, packet_id=number, dup=dup)


def few(receive_max: int) -> Settings:
    return Settings(receive_max=receive_max)


@BOTH
def test_a_message_is_given_to_the_node_to_be_stored_and_acknowledged_when_it_is(version: int) -> None:
    """[MQTT-4.3.2-4]: PUBACK has the packet identifier of the PUBLISH whose ownership was accepted."""
    talk = Conversation(version).here()
    assert talk.says(message(9)) == [True]
    assert talk.node.stored == [("t", *row_of(message(9), "c"), b"x")]
    assert talk.node.stored[0][1] & wire.FLAG_MODE == wire.MODE_PERSISTENT
    assert talk.node.published == []
    assert talk.hears() == []
    talk.node_stores()
    assert talk.hears() == [PubAck(9)]


@BOTH
def test_acknowledgements_have_the_order_of_the_messages(version: int) -> None:
    """[MQTT-4.6.0-2]; they come in one piece."""
    talk = Conversation(version).here()
    talk.says(*[message(number) for number in (5, 3, 65_535, 1)])
    sent: list[bytes] = []
    send = talk.send

    def listen(connection_id: bytes, data: bytes) -> None:
        sent.append(data)
        send(connection_id, data)

    talk.send = listen  # type: ignore[method-assign]
    talk.node_stores()
    assert talk.hears() == [PubAck(number) for number in (5, 3, 65_535, 1)]
    assert len(sent) == 1


@BOTH
def test_a_message_that_comes_again_is_one_more(version: int) -> None:
    """Section 4.3.2: after the PUBACK a server treats every PUBLISH as a new one, whatever DUP says."""
    talk = Conversation(version).here()
    talk.says(message(1, dup=True))
    talk.node_stores()
    talk.says(message(1))
    talk.node_stores()
    assert talk.hears() == [PubAck(1), PubAck(1)]
    assert talk.node.stored[0] == talk.node.stored[1]


@BOTH
def test_a_message_that_nobody_wanted_is_accepted(version: int) -> None:
    """Section 3.4.2.1; 3.1.1 has no word for it."""
    talk = Conversation(version).here()
    talk.says(message(1))
    talk.node_stores(refused={1: errors.NO_SUBSCRIPTION_MATCH})
    code = R.NO_MATCHING_SUBSCRIBERS if version == V5 else R.SUCCESS
    assert talk.hears() == [PubAck(1, code)], "without words, for it is no refusal"
    assert talk.finished is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errors.SPOOL_OVER_QUOTA, R.QUOTA_EXCEEDED),
        (errors.DISK_FULL, R.QUOTA_EXCEEDED),
        (errors.PUBLISH_DENIED, R.NOT_AUTHORIZED),
        (errors.UNKNOWN_ENDPOINT, R.TOPIC_NAME_INVALID),
        (errors.LOW_PRIORITY_CONGESTION, R.IMPLEMENTATION_SPECIFIC_ERROR),
        (errors.INTERNAL, R.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_5_0_is_told_why_the_node_refuses(code: int, reason: ReasonCode) -> None:
    """[MQTT-3.4.2-1]."""
    talk = Conversation().here()
    talk.says(message(1), message(2), message(3))
    talk.node_stores(refused={2: code})
    heard = talk.hears()
    assert [(one.packet_id, one.code) for one in heard if isinstance(one, PubAck)] == [
        (1, 0),
        (2, reason),
        (3, 0),
    ]
    assert isinstance(heard[1], PubAck)
    assert heard[1].properties.reason_string == errors.ERRORS[code].text
    assert talk.finished is None


@pytest.mark.parametrize(
    "given", [Properties(request_problem_information=0), Properties(maximum_packet_size=20)]
)
def test_no_words_for_who_wants_none_or_has_no_room_for_them(given: Properties) -> None:
    """[MQTT-3.1.2-29] [MQTT-3.4.2-2]."""
    talk = Conversation(settings=Settings(topic_alias_max=0)).here(properties=given)
    talk.says(message(1))
    talk.node_stores(refused={1: errors.SPOOL_OVER_QUOTA})
    assert talk.hears() == [PubAck(1, R.QUOTA_EXCEEDED)]


def test_3_1_1_is_told_a_refusal_by_the_end_behind_what_is_stored() -> None:
    """3.1.1 [MQTT-3.3.5-2] speaks of what is not authorized; the rest is no other to a client."""
    talk = Conversation(V3).here()
    talk.says(message(1), message(2), message(3))
    talk.node_stores(refused={2: errors.SPOOL_OVER_QUOTA})
    assert talk.hears() == [PubAck(1)]
    talk.ends_with(None)


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize(
    ("topic", "counter", "reason"),
    [
        ("secret/a", "discard.publish-topic-acl", R.NOT_AUTHORIZED),
        ("x" * 251, "discard.topic-parse-error", R.TOPIC_NAME_INVALID),
    ],
)
def test_what_is_refused_at_once_is_answered_in_its_turn(
    version: int, topic: str, counter: str, reason: ReasonCode
) -> None:
    talk = Conversation(version).here()
    talk.says(message(1), message(2, topic), message(3))
    assert [row[0] for row in talk.node.stored] == ["t", "t"]
    assert talk.node.counts == {counter: 1}
    assert talk.hears() == []
    talk.node_stores()
    told = [(one.packet_id, one.code) for one in talk.hears() if isinstance(one, PubAck)]
    if version == V5:
        assert told == [(1, 0), (2, reason), (3, 0)]
    else:
        assert told == [(1, 0)]
        talk.ends_with(None)


def test_who_may_send_no_guaranteed_messages_is_refused_those_alone() -> None:
    talk = Conversation().connect()
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_send_guaranteed=False))
    talk.says(message(1), Publish("t", b"x"))
    assert len(talk.node.published) == 1
    talk.node_stores()
    assert talk.hears_one().code == R.NOT_AUTHORIZED


def test_5_0_may_have_as_many_unacknowledged_as_it_was_told() -> None:
    """[MQTT-3.3.4-7]: one more ends it."""
    talk = Conversation(settings=few(3)).here()
    talk.says(message(1), message(2, "secret/a"), message(3))
    assert talk.finished is None
    talk.node_stores(1)
    assert talk.says(message(4)) == [True]
    talk.hears()
    talk.says(message(5))
    talk.ends_with(R.RECEIVE_MAXIMUM_EXCEEDED)


def test_qos_2_counts_until_pubcomp_together_with_qos_1() -> None:
    """[MQTT-3.3.4-7]: a refusal frees its place as PUBCOMP does, PUBREC does not."""
    talk = Conversation(settings=few(3)).here()
    talk.says(message(1, qos=2), message(2), message(3, "secret/a", qos=2))
    talk.node_stores()
    recs = [(one.packet_id, one.code) for one in talk.hears() if isinstance(one, PubRec)]
    assert recs == [(1, R.SUCCESS), (3, R.NOT_AUTHORIZED)]
    talk.says(message(2), message(3))
    talk.node_stores()
    assert talk.hears() == [PubAck(2), PubAck(3)]
    talk.says(PubRel(1), message(4, qos=2), message(5, qos=2), message(6, qos=2))
    talk.node_stores()
    assert talk.hears() == [PubComp(1), PubRec(4), PubRec(5), PubRec(6)]
    talk.says(message(7))
    talk.ends_with(R.RECEIVE_MAXIMUM_EXCEEDED)


def test_3_1_1_says_pubrel_behind_as_many_messages_as_it_likes() -> None:
    talk = Conversation(V3, few(2)).here()
    for number in range(1, 6, 2):
        talk.says(message(number, qos=2), message(number + 1, qos=2))
        talk.node_stores()
    assert talk.says(*[PubRel(number) for number in range(1, 7)])[-1]
    assert talk.hears()[6:] == [PubComp(number) for number in range(1, 7)]


def test_3_1_1_waits_beyond_that_and_nothing_behind_overtakes() -> None:
    talk = Conversation(V3, few(2)).here()
    assert talk.says(message(1), message(2)) == [True, True]
    assert not talk.offers(message(3))
    assert talk.offers(Publish("t", b"")), "it is for who has the connection to offer them in order"
    talk.node_stores(1)
    assert talk.offers(message(3))
    assert not talk.offers(message(4))


@BOTH
def test_messages_wait_while_the_node_has_no_room(version: int) -> None:
    talk = Conversation(version).here()
    talk.node.is_store_full = True
    assert not talk.offers(message(1))
    assert talk.offers(Publish("t", b"x")), "what is not stored has room of its own"
    talk.node.is_store_full = False
    assert talk.offers(message(1))
    assert len(talk.node.stored) == 1


def test_a_topic_alias_is_for_these_too_and_one_that_waits_does_not_count_twice() -> None:
    talk = Conversation().here()
    talk.says(Publish("a", b"", qos=1, packet_id=1, properties=Properties(topic_alias=1)))
    talk.says(Publish("", b"", qos=1, packet_id=2, properties=Properties(topic_alias=1)))
    assert [row[0] for row in talk.node.stored] == ["a", "a"]
