"""What is retained, to subscriptions with QoS 1 and 2: the QoS, the place among live messages, the acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import MqttSubscription
from gateway.mqtt.messages import row_of
from gateway.mqtt.sessions.unacknowledged import IDS_OF_RETAINED
from tests.unit.gateway.clients.conversation import Conversation
from tests.unit.gateway.clients.sessions_of_tests import KEPT, row, subscribed

if TYPE_CHECKING:
    from typing import Any

    from angarium.message import Row

pytestmark = pytest.mark.requirement("R239")

BOTH = pytest.mark.parametrize("version", [V3, V5])


def kept(topic: str, qos: int, sender: str = "other") -> Row:
    """Give a message that is retained."""
    flags, meta, properties = row_of(Publish(topic, qos=qos, retain=True), sender)
    return 0, topic, flags, meta, properties, b"kept"


class Reading:
    """A client, and what is read for its subscription to all topics."""

    def __init__(self, version: int = V5, qos: int = 2, options: Any = None, **fields: Any) -> None:
        wanted = options or Subscription("#", qos)
        self.talk = subscribed(Conversation(version).here(**fields), wanted)
        self.subscription = MqttSubscription(self.talk.client, wanted, None)
        self.talk.client.begin_retained()

    def gives(self, *rows: Row) -> list[Publish]:
        """Give rows to the client, and what it gets."""
        self.talk.client.take_retained(self.subscription, rows, self.talk.now)
        return self.gets()

    def ends(self) -> list[Publish]:
        self.talk.client.end_retained(self.talk.now)
        return self.gets()

    def gets(self) -> list[Publish]:
        self.talk.client.validate()
        found = self.talk.hears()
        assert all(isinstance(one, Publish) for one in found), found
        return [one for one in found if isinstance(one, Publish)]


@BOTH
@pytest.mark.parametrize("granted", [1, 2])
def test_each_message_comes_with_its_qos_but_no_higher_one_than_was_granted(
    version: int, granted: int
) -> None:
    """[MQTT-3.8.4-8] [MQTT-3.3.1-8]; 3.1.1 [MQTT-3.8.4-6]."""
    reading = Reading(version, granted)
    found = reading.gives(kept("a", 0), kept("b", 1), kept("c", 2))
    assert [(one.topic, one.qos, one.retain, one.dup) for one in found] == [
        ("a", 0, True, False),
        ("b", 1, True, False),
        ("c", granted, True, False),
    ]
    assert [one.packet_id in IDS_OF_RETAINED for one in found] == [False, True, True]
    assert found[1].packet_id != found[2].packet_id


def test_a_session_that_is_kept_gets_none_with_qos_2() -> None:
    (found,) = Reading(**KEPT[V5]).gives(kept("c", 2))
    assert found.qos == 1


def test_what_comes_of_queues_waits_until_all_is_sent_and_not_until_it_is_acknowledged() -> None:
    """[MQTT-3.3.4-9]: what waited before does not take the room of what is retained."""
    reading = Reading(properties=Properties(receive_maximum=1))
    talk = reading.talk
    talk.node_brings((1, row("live")))
    assert talk.hears() == []
    (first,) = reading.gives(kept("a", 1), kept("b", 2))
    assert talk.client.is_taking_retained
    assert reading.ends() == []
    talk.says(PubAck(first.packet_id))
    (second,) = reading.gets()
    assert (second.topic, second.qos) == ("b", 2)
    assert not talk.client.is_taking_retained
    talk.says(PubRec(second.packet_id))
    assert talk.hears() == [PubRel(second.packet_id)]
    talk.says(PubRec(second.packet_id))
    assert talk.hears() == [PubRel(second.packet_id)]
    talk.says(PubComp(second.packet_id))
    (live,) = reading.gets()
    assert (live.payload, live.retain) == (b"live", False)


def test_what_waits_for_acknowledgements_expires_and_is_told_what_is_left() -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]."""
    reading = Reading(properties=Properties(receive_maximum=1))
    short, long = row("short", ttl_ms=2_000), row("long", ttl_ms=60_000)
    (first,) = reading.gives(kept("a", 1), short, long)
    reading.talk.time_ms += 2_500
    reading.talk.says(PubAck(first.packet_id))
    (second,) = reading.gets()
    assert (second.payload, second.properties.message_expiry_interval) == (b"long", 58)


def test_a_refusal_makes_room_and_what_is_unknown_does_not() -> None:
    reading = Reading(properties=Properties(receive_maximum=1))
    (first,) = reading.gives(kept("a", 2), kept("b", 1))
    unknown = IDS_OF_RETAINED[-1]
    reading.talk.says(PubAck(unknown), PubComp(unknown), PubRec(unknown))
    assert reading.talk.hears() == [PubRel(unknown, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]
    reading.talk.says(PubRec(first.packet_id, ReasonCode.QUOTA_EXCEEDED))
    (second,) = reading.gets()
    assert second.topic == "b"


def test_what_a_client_cannot_have_is_left_out() -> None:
    """[MQTT-3.8.3-3] [MQTT-3.1.2-24]."""
    reading = Reading(
        options=Subscription("#", 1, no_local=True), properties=Properties(maximum_packet_size=40)
    )
    long = kept("b" * 40, 1)
    assert [one.topic for one in reading.gives(kept("a", 1, "c"), long, kept("a+", 1), kept("d", 1))] == ["d"]


def test_who_takes_nothing_of_it_is_ended() -> None:
    reading = Reading()
    reading.talk.takes_more = False
    reading.talk.client.take_retained(reading.subscription, [kept("a", 1)], reading.talk.now)
    reading.talk.ends_with(ReasonCode.QUOTA_EXCEEDED)
    assert not reading.talk.client.is_taking_retained
    reading.talk.client.end_retained(reading.talk.now)
