"""SUBSCRIBE and UNSUBSCRIBE: what the specifications demand of a server; 5.0 where no version is named."""

from __future__ import annotations

import msgspec
import pytest

from angarium import errors, wire
from gateway.mqtt.clients.settings import REQUESTS_MAX, Capabilities, Settings
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import FILTERS_MAX, SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.unit.gateway.clients.conversation import INBOX, RIGHTS, Conversation, filters_of

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])


def subscribe(*filters: str, packet_id: int = 1, qos: int = 0, properties: Properties = NONE) -> Subscribe:
    return Subscribe(packet_id, tuple(Subscription(one, qos) for one in filters), properties)


def subscribed(talk: Conversation, *filters: str) -> Conversation:
    """Subscribe to topic filters that are granted."""
    talk.says(subscribe(*filters))
    talk.node_does_all()
    assert set(talk.hears_one().codes) == {0}
    return talk


@BOTH
def test_a_subscribe_is_answered_when_it_is_in_force(version: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2]; 3.1.1 the same."""
    talk = Conversation(version).here()
    talk.says(subscribe("a/+", packet_id=77))
    assert talk.node.asked == (wire.SUBSCRIBE, ["a/*"])
    assert talk.hears() == []
    assert talk.fanned_out == set()
    talk.node_answers()
    assert talk.hears() == [SubAck(77, (0,))]
    assert filters_of(talk.fanned_out) == ["a/+"]


@BOTH
def test_each_topic_filter_has_its_code_in_its_place(version: int) -> None:
    """[MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT-3.8.4-5]; 3.1.1 [MQTT-3.8.4-4] [MQTT-3.9.3-1]."""
    talk = Conversation(version).here()
    talk.says(subscribe("a", "b", "c", "d*"))
    talk.node_answers({"b": errors.SUBSCRIBE_DENIED, "c": errors.MAX_SUBSCRIPTIONS_EXCEEDED})
    if version == V5:
        expected: tuple[int, ...] = (0, R.NOT_AUTHORIZED, R.QUOTA_EXCEEDED, R.TOPIC_FILTER_INVALID)
    else:
        expected = (0, 0x80, 0x80, 0x80)
    assert talk.hears_one().codes == expected
    assert filters_of(talk.fanned_out) == ["a"]
    assert talk.node.in_force == {"a"}


@BOTH
@pytest.mark.parametrize("asked", [0, 1, 2])
@pytest.mark.parametrize("is_able", [True, False])
def test_what_is_granted_is_the_least_of_what_is_asked_and_what_there_is(
    version: int, asked: int, *, is_able: bool
) -> None:
    """[MQTT-3.8.4-7] [MQTT-3.8.4-8] [MQTT-3.2.2-10]; 3.1.1 [MQTT-3.8.4-6]."""
    talk = Conversation(version).connect()
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_receive_guaranteed=is_able))
    talk.says(subscribe("a", qos=asked))
    talk.node_does_all()
    granted = asked if is_able else 0
    assert talk.hears_one().codes == (granted,)
    assert filters_of(talk.fanned_out) == ([] if granted else ["a"])
    assert [*talk.node.session.filters] == (["a"] if granted else [])


@pytest.mark.parametrize("refused", ["a", "a/>"])
def test_a_wildcard_below_a_level_is_two_filters_of_the_node_both_or_neither(refused: str) -> None:
    talk = Conversation().here()
    talk.says(subscribe("a/#"))
    assert talk.node.asked == (wire.SUBSCRIBE, ["a", "a/>"])
    talk.node_answers({refused: errors.SUBSCRIBE_DENIED})
    assert talk.hears_one().codes == (R.NOT_AUTHORIZED,)
    assert talk.node.asked == (wire.UNSUBSCRIBE, [({"a", "a/>"} - {refused}).pop()])
    talk.node_answers()
    assert talk.node.in_force == set()
    assert talk.fanned_out == set()
    assert talk.hears() == []


def test_what_is_given_back_is_not_what_another_topic_filter_needs() -> None:
    talk = subscribed(Conversation().here(), "a")
    talk.says(subscribe("a/#"))
    assert talk.node.asked == (wire.SUBSCRIBE, ["a/>"])
    talk.node_answers({"a/>": errors.SUBSCRIBE_DENIED})
    assert talk.node.asked is None
    assert talk.node.in_force == {"a"}
    assert filters_of(talk.fanned_out) == ["a"]


def test_a_filter_of_the_node_stays_as_long_as_some_topic_filter_needs_it() -> None:
    talk = subscribed(Conversation().here(), "a", "a/#")
    talk.says(Unsubscribe(2, ("a",)))
    assert talk.hears_one().codes == (0,)
    assert talk.node.in_force == {"a", "a/>"}
    talk.says(Unsubscribe(3, ("a/#",)))
    talk.node_answers()
    assert talk.node.in_force == set()


def test_the_same_topic_filter_twice_in_a_packet_is_granted_twice_and_there_once() -> None:
    """[MQTT-3.8.4-5]: as if they had come one after the other."""
    talk = Conversation().here()
    talk.says(Subscribe(1, (Subscription("a", no_local=True), Subscription("a"))))
    assert talk.node.asked == (wire.SUBSCRIBE, ["a"])
    talk.node_answers()
    assert talk.hears_one().codes == (0, 0)
    (subscription,) = talk.fanned_out
    assert not subscription.options.no_local


def test_a_bridge_of_3_1_1_has_the_options_that_it_cannot_say_but_for_what_it_shares() -> None:
    """Nobody else would get what it sends and is drawn for itself."""
    talk = subscribed(Conversation(V3).here(is_bridge=True), "a", "$share/crew/b")
    (subscription,) = talk.fanned_out
    assert subscription.options == Subscription("a", 0, no_local=True, retain_as_published=True)
    assert talk.client._subscribing is not None
    (member,) = talk.client._subscribing.needing("#share/crew/b")
    assert not member.options.no_local


@BOTH
def test_subscribing_again_replaces_the_subscription(version: int) -> None:
    """[MQTT-3.8.4-3]; 3.1.1 the same."""
    talk = subscribed(Conversation(version).here(), "a/#")
    again = Subscription("a/#", retain_as_published=version == V5)
    given = Properties(subscription_identifiers=(9,)) if version == V5 else NONE
    talk.says(Subscribe(2, (again,), given))
    assert talk.node.asked is None
    assert talk.hears() == [SubAck(2, (0,))]
    (subscription,) = talk.fanned_out
    assert (subscription.options, subscription.identifier) == (again, 9 if version == V5 else None)


def test_an_identifier_is_of_all_topic_filters_of_its_packet() -> None:
    """[MQTT-3.8.2-1] and section 3.8.2.1.2."""
    talk = Conversation().here()
    talk.says(subscribe("a", "b", properties=Properties(subscription_identifiers=(7,))))
    talk.node_answers()
    assert [one.identifier for one in talk.fanned_out] == [7, 7]


def test_without_an_identifier_the_one_before_is_gone() -> None:
    talk = Conversation().here()
    talk.says(subscribe("a", properties=Properties(subscription_identifiers=(7,))))
    talk.node_answers()
    talk.says(subscribe("a"))
    assert [one.identifier for one in talk.fanned_out] == [None]


@BOTH
def test_an_unsubscribe_stops_at_once_and_is_answered_when_the_node_has_stopped(version: int) -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4]; 3.1.1 the same."""
    talk = subscribed(Conversation(version).here(), "a", "A")
    talk.says(Unsubscribe(8, ("a",)))
    assert filters_of(talk.fanned_out) == ["A"]
    assert talk.hears() == []
    talk.node_answers()
    assert talk.hears() == [UnsubAck(8, (0,) if version == V5 else ())]


@BOTH
def test_an_unsubscribe_from_nothing_is_answered_too(version: int) -> None:
    """[MQTT-3.10.4-5] [MQTT-3.11.3-1] [MQTT-3.10.4-6]."""
    talk = subscribed(Conversation(version).here(), "b")
    talk.says(Unsubscribe(8, ("a", "b", "b", "b*")))
    talk.node_answers()
    answer = talk.hears_one()
    none = R.NO_SUBSCRIPTION_EXISTED
    assert answer.packet_id == 8
    assert answer.codes == ((none, 0, none, none) if version == V5 else ())


def test_an_unsubscribe_that_the_node_does_not_do_says_so() -> None:
    talk = subscribed(Conversation().here(), "a")
    talk.says(Unsubscribe(8, ("a",)))
    talk.node_answers({"a": errors.CONTROLLER_UNAVAILABLE})
    assert talk.hears_one().codes == (R.IMPLEMENTATION_SPECIFIC_ERROR,)
    assert talk.fanned_out == set()


@BOTH
def test_packets_are_done_one_after_the_other_in_their_order(version: int) -> None:
    talk = Conversation(version).here()
    talk.says(subscribe("a", packet_id=1), Unsubscribe(2, ("a",)), subscribe("a", packet_id=3))
    assert talk.hears() == []
    talk.node_does_all()
    assert [one.packet_id for one in talk.hears()] == [1, 2, 3]  # type: ignore[union-attr]
    assert filters_of(talk.fanned_out) == ["a"]
    assert talk.node.in_force == {"a"}


def test_those_for_which_the_node_is_asked_nothing_hold_nobody_up() -> None:
    talk = Conversation().here()
    talk.says(
        subscribe("a"), Unsubscribe(2, ("x",)), subscribe("y*", packet_id=3), subscribe("a", packet_id=4)
    )
    talk.node_answers()
    assert [one.packet_id for one in talk.hears()] == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_only_some_of_them_wait_here_and_the_others_on_the_connection() -> None:
    talk = Conversation().here()
    packets = [subscribe(f"t{number}", packet_id=number + 1) for number in range(REQUESTS_MAX + 2)]
    assert talk.says(*packets) == [True] * (REQUESTS_MAX + 1) + [False]
    assert talk.says(PingReq()) == [False]
    talk.node_answers()
    talk.node_does_all()
    heard = talk.hears()
    assert heard.count(PingResp()) == 1
    heard.remove(PingResp())
    assert [one.packet_id for one in heard] == [one.packet_id for one in packets]  # type: ignore[union-attr]


def test_a_ping_does_not_wait_for_a_subscribe() -> None:
    """[MQTT-3.12.4-1]."""
    talk = Conversation().here()
    talk.says(subscribe("a"), PingReq())
    assert talk.hears() == [PingResp()]


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_behind_a_subscribe_waits_until_that_is_in_force(version: int, qos: int) -> None:
    """No rule, but servers do so, and applications that do not wait for the SUBACK get their own messages there."""
    talk = Conversation(version).here()
    talk.says(subscribe("a"), Publish("a", b"x", qos, packet_id=9 if qos else 0))
    assert not talk.node.published + talk.node.stored
    assert talk.is_paused
    talk.node_answers()
    assert len(talk.node.published + talk.node.stored) == 1
    assert not talk.is_paused


@BOTH
def test_a_disconnect_behind_a_subscribe_waits_until_that_is_in_force(version: int) -> None:
    """So that a session that is kept has the subscription, whoever leaves without having waited for the SUBACK."""
    talk = Conversation(version).here()
    talk.says(subscribe("a"), Disconnect())
    assert talk.finished is None
    assert talk.is_paused
    talk.node_answers()
    assert isinstance(talk.hears_one(), SubAck)
    talk.ends_with(None)


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_a_packet_with_too_many_topic_filters_ends_the_connection(kind: type) -> None:
    talk = Conversation().here()
    texts = tuple(f"t{number}" for number in range(FILTERS_MAX + 1))
    talk.says(subscribe(*texts) if kind is Subscribe else Unsubscribe(1, texts))
    talk.ends_with(R.QUOTA_EXCEEDED)


def test_just_as_many_as_allowed_are_looked_at() -> None:
    talk = Conversation().here()
    talk.says(subscribe(*[f"t{number}" for number in range(FILTERS_MAX)]))
    talk.node_answers()
    assert talk.hears_one().codes == (0,) * FILTERS_MAX


def test_a_shared_subscription_is_joined_by_the_client_itself() -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-3]: the node chooses among all who share."""
    talk = Conversation().here()
    talk.says(subscribe("$share/g/a/#"))
    assert talk.node.asked == (wire.SUBSCRIBE, ["#share/g/a", "#share/g/a/>"])
    talk.node_answers()
    assert talk.hears_one().codes == (0,)
    assert talk.fanned_out == set()
    talk.client.delivered([(0, "a/b", 0, None, None, b"x")], "#share/g/a/>", talk.now)
    assert talk.delivered == [(["$share/g/a/#"], ["a/b"])]


def test_messages_of_a_shared_subscription_that_is_left_are_given_to_nobody() -> None:
    talk = subscribed(Conversation().here(), "$share/g/a")
    talk.says(Unsubscribe(2, ("$share/g/a",)))
    talk.client.delivered([(0, "a", 0, None, None, b"x")], "#share/g/a", talk.now)
    assert talk.delivered == []


def test_messages_to_the_inbox_are_for_who_subscribed_to_it() -> None:
    talk = Conversation().here()
    talk.client.delivered([(0, INBOX, 0, None, None, b"x")], None, talk.now)
    assert talk.delivered == []
    subscribed(talk, "$P2P/INB/n/0123456789ab")
    talk.client.delivered([(0, INBOX, 0, None, None, b"x")], None, talk.now)
    assert talk.delivered == [(["$P2P/INB/n/0123456789ab"], [INBOX])]


@pytest.mark.parametrize("is_built", [True, False])
def test_where_nothing_may_be_shared_it_is_refused_as_such(is_built: bool) -> None:
    """Section 3.2.2.3.13: 0x9E."""
    talk = Conversation(settings=Settings(capabilities=Capabilities(shared_subscriptions=is_built))).connect()
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_share=not is_built))
    talk.says(subscribe("$share/g/a"))
    assert talk.hears_one().codes == (R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,)
    assert talk.node.asked is None


@pytest.mark.parametrize(("wants", "is_told"), [(None, True), (0, False)])
def test_the_reason_of_a_refusal_is_told_in_words_to_who_wants_them(wants: int | None, is_told: bool) -> None:
    """[MQTT-3.1.2-29]."""
    talk = Conversation().here(properties=Properties(request_problem_information=wants))
    talk.says(subscribe("a"))
    talk.node_answers({"a": errors.SUBSCRIBE_DENIED})
    assert talk.hears_one().properties.reason_string == ("Subscription ACL Denied" if is_told else None)


def test_the_words_are_left_out_where_the_answer_would_be_too_large() -> None:
    """[MQTT-3.9.2-1]."""
    talk = Conversation().here(client_id="c", properties=Properties(maximum_packet_size=25))
    talk.says(subscribe("a"))
    talk.node_answers({"a": errors.SUBSCRIBE_DENIED})
    assert talk.hears() == [SubAck(1, (R.NOT_AUTHORIZED,))]


def test_an_answer_that_is_too_large_without_them_ends_the_connection() -> None:
    """[MQTT-3.1.2-24]."""
    talk = Conversation().here(properties=Properties(maximum_packet_size=25))
    talk.says(subscribe(*[f"t{number}" for number in range(30)]))
    talk.node_answers()
    talk.ends_with(R.PACKET_TOO_LARGE)


@BOTH
def test_who_leaves_takes_its_subscriptions_along(version: int) -> None:
    talk = subscribed(Conversation(version).here(), "a", "b/#")
    talk.says(subscribe("c"), Unsubscribe(3, ("a",)))
    talk.client.lost("the connection was closed", talk.now)
    assert talk.fanned_out == set()
    assert talk.node.is_over


@pytest.mark.parametrize(("handling", "new", "again"), [(0, ["a"], ["a"]), (1, ["a"], []), (2, [], [])])
def test_a_client_says_when_a_subscription_begins_with_what_is_retained(
    handling: int, new: list[str], again: list[str]
) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]."""
    talk = Conversation().here()
    for expected in (new, again):
        talk.says(Subscribe(1, (Subscription("a", retain_handling=handling),)))
        talk.node_does_all()
        assert talk.read == expected
        talk.read.clear()
    talk.says(Unsubscribe(2, ("a",)))
    talk.node_does_all()
    talk.says(Subscribe(3, (Subscription("a", retain_handling=handling),)))
    talk.node_does_all()
    assert talk.read == new


def test_each_subscribe_of_3_1_1_begins_with_what_is_retained() -> None:
    """3.1.1 [MQTT-3.8.4-3]."""
    talk = Conversation(V3).here()
    for _ in range(2):
        subscribed(talk, "a", "b")
    assert talk.read == ["a", "b"] * 2


def test_what_the_node_has_nothing_of_is_not_read() -> None:
    talk = Conversation(V3).here()
    talk.node.may_be_retained = False
    subscribed(talk, "a")
    assert talk.read == []
    subscribed(talk, "a")  # it was in force before, so the node was not asked
    assert talk.read == ["a"]
    talk.read.clear()
    talk.node.may_be_retained = True
    subscribed(talk, "b")
    assert talk.read == ["b"]


def test_what_is_shared_or_refused_does_not_begin_with_what_is_retained() -> None:
    """Section 4.8.2."""
    talk = Conversation().here()
    talk.says(subscribe("$share/g/a", "b", "c"))
    talk.node_answers({"b": errors.SUBSCRIBE_DENIED})
    assert talk.read == ["c"]


def test_who_is_not_subscribed_any_more_is_not_given_what_is_retained() -> None:
    talk = subscribed(Conversation().here(), "a", "b", "c")
    talk.says(Unsubscribe(2, ("b",)))
    assert talk.left == ["b"]
    talk.says(subscribe("a"))
    talk.node_does_all()
    assert talk.left == ["b", "a"]
    talk.client.lost("gone", talk.now)
    assert sorted(talk.left) == ["a", "a", "b", "c"]
