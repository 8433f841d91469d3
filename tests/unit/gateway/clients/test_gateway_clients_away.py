"""A session whose client stays while the router is replaced: what it was in the middle of goes on."""

from __future__ import annotations

import pytest

from angarium import errors
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.sessions.note import State, pack
from gateway.session import Acknowledged
from tests.unit.gateway.clients.conversation import Conversation
from tests.unit.gateway.clients.sessions_of_tests import KEPT, payloads, row, subscribed

BOTH = pytest.mark.parametrize("version", [V3, V5])


def kept(version: int = V5) -> Conversation:
    return subscribed(Conversation(version).here(**KEPT[version]), Subscription("a", 2))


@BOTH
def test_nothing_is_sent_twice_on_one_connection_and_what_was_acknowledged_is_gone(version: int) -> None:
    talk = kept(version)
    talk.node_brings((1, row("1")), (2, row("2")))
    assert payloads(talk) == [("1", 2, False), ("2", 3, False)]
    talk.says(PubAck(2))
    talk.node.accepted.clear()  # the router has died before it heard that
    talk.router_is_replaced()
    talk.node_works()
    talk.node_brings((1, row("1")), (2, row("2")), (3, row("3")), counts=[1, 1, 0])
    assert payloads(talk) == [("3", 4, False)]
    assert talk.node.accepted == [1]
    talk.says(PubAck(3), PubAck(4))
    assert talk.node.accepted == [1, 2, 3]


def test_what_is_acknowledged_while_there_is_no_flow_comes_again_and_is_not_sent() -> None:
    talk = kept()
    talk.node_brings((1, row("1")))
    talk.hears()
    talk.router_is_replaced()
    talk.says(PubAck(2))
    assert talk.node.accepted == []
    talk.node_works()
    talk.node_brings((1, row("1")), counts=[1])
    assert (talk.hears(), talk.node.accepted) == ([], [1])


def test_a_session_that_ends_with_its_connection_is_bound_again() -> None:
    talk = subscribed(Conversation().here(), Subscription("a", 1))
    talk.router_is_replaced()
    assert [one[0] for one in talk.node.requests] == ["flow.bind"]
    talk.node_works()
    talk.node_brings((1, row("1")))
    assert payloads(talk) == [("1", 2, False)]


def test_a_session_without_a_queue_needs_nothing() -> None:
    talk = Conversation().here()
    talk.router_is_replaced()
    assert talk.node.requests == []


@BOTH
def test_what_it_publishes_with_qos_2_has_the_sequence_that_it_had(version: int) -> None:
    talk = kept(version)
    talk.says(Publish("t", b"x", qos=2, packet_id=5))
    talk.node_works()
    assert talk.node.own is not None
    before = talk.node.own
    talk.router_is_replaced()
    talk.node.session.last_sequence = before[0]  # one of its queues has it
    talk.node_works()
    assert talk.node.own == before
    talk.client.stored(Acknowledged(7, before[0], [], 0, []), talk.now)
    assert talk.hears() == [PubRec(5)]
    talk.says(PubRel(5))
    talk.node_works()
    assert talk.hears() == [PubComp(5)]


def test_a_note_that_was_under_way_is_written_again() -> None:
    talk = kept()
    talk.says(Publish("t", b"x", qos=2, packet_id=5))
    talk.node_carries_out()  # the producer
    assert [one[0] for one in talk.node.requests] == ["session.keep"]
    talk.router_is_replaced()
    asked = [one[0] for one in talk.node.requests]
    assert asked == ["session.note", "producer.open", "flow.bind", "session.keep"]
    talk.node_works()
    assert talk.node.own is not None
    assert talk.node.session.note == pack(State(2, {5: 1}))


def test_who_finds_what_another_connection_has_written_is_taken_over() -> None:
    """The router before had let that in and died before it told this one; the next one took this one first."""
    talk = kept()
    talk.router_is_replaced()
    talk.node.session.note = pack(State(9, {7: 8}))
    talk.node_works()
    (told,) = talk.hears()
    assert isinstance(told, Disconnect)
    assert told.code == ReasonCode.SESSION_TAKEN_OVER
    assert talk.node.session.note == pack(State(9, {7: 8}))


def test_who_shares_is_a_member_again_if_it_still_may_be() -> None:
    talk = subscribed(Conversation().here(), Subscription("$share/g/a", 1), Subscription("$share/h/b", 1))
    talk.router_is_replaced()
    talk.node_works()
    assert [*talk.node.shared] == ["#mqtt/$share/g/a", "#mqtt/$share/h/b"]
    talk.router_is_replaced()
    talk.node.session.refused = {"$share/h/b": errors.SHARED_SUBSCRIPTION_DENIED}
    talk.node_works()
    (told,) = talk.hears()
    assert isinstance(told, Disconnect)
    assert told.code == ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED


def test_what_is_shared_and_on_its_way_is_not_sent_again() -> None:
    talk = subscribed(Conversation().here(), Subscription("$share/g/a", 1))
    window = talk.node.shared["#mqtt/$share/g/a"]
    talk.node_brings((1, row("1")), window=window)
    ((_, packet_id, _),) = payloads(talk)
    talk.router_is_replaced()
    talk.node_works()
    talk.node_brings((1, row("1")), counts=[1], window=talk.node.shared["#mqtt/$share/g/a"])
    assert talk.hears() == []
    talk.says(PubAck(packet_id))
    assert talk.node.accepted_shared == [("#mqtt/$share/g/a", 1)]


def test_who_is_not_connected_yet_ends() -> None:
    talk = Conversation().connect(**KEPT[V5])
    assert not talk.client.away(talk.now)
