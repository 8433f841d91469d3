"""Sessions and QoS 1 to clients: what the specifications demand of a server; 5.0 where no version is named."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from gateway.mqtt.clients.client import ClientState
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from gateway.mqtt.sessions.session import IN_FLIGHT_MAX
from gateway.mqtt.sessions.shares import BIND_AGAIN_S
from gateway.mqtt.sessions.unacknowledged import IDS
from tests.unit.gateway.clients.conversation import Conversation, filters_of
from tests.unit.gateway.clients.sessions_of_tests import KEPT, again, payloads, row, subscribed, twice

BOTH = pytest.mark.parametrize("version", [V3, V5])


def queued(version: int = V5, **fields: Any) -> Conversation:
    """Give a client that gets `a` with QoS 1."""
    return subscribed(Conversation(version).here(**fields), Subscription("a", 1))


# -- QoS 1 -----------------------------------------------------------------------------------------------


@BOTH
def test_a_message_is_deleted_when_it_is_acknowledged(version: int) -> None:
    """[MQTT-4.3.2-2] [MQTT-4.3.2-3]; 3.1.1 [MQTT-4.3.2-1]."""
    talk = queued(version)
    talk.node_brings((1, row("x")), (2, row("y")))
    first, second = talk.hears()
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.qos, first.dup, first.payload) == (1, False, b"x")
    assert 0 != first.packet_id != second.packet_id != 0
    assert talk.node.accepted == []
    talk.says(PubAck(second.packet_id))
    assert talk.node.accepted == [2]
    talk.says(PubAck(first.packet_id))
    assert talk.node.accepted == [2, 1]


def test_a_puback_with_an_error_ends_the_message_too() -> None:
    """Section 4.3.2: the receiver has taken ownership, or will not have it; it is not sent again [MQTT-4.4.0-2]."""
    talk = queued()
    talk.node_brings((1, row()))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    talk.says(PubAck(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert talk.node.accepted == [1]


@BOTH
def test_what_is_completed_is_over_on_the_next_connection_too(version: int) -> None:
    """[MQTT-4.4.0-1]: nobody waits for that to be written, so it is when the connection ends."""
    talk = subscribed(Conversation(version).here(**KEPT[version]), Subscription("a", 2))
    talk.node_brings((1, twice("x")))
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id))
    talk.node_works()
    talk.says(PubComp(packet_id))
    talk.client.lost("", talk.now)
    ((operation, wish),) = talk.node.last
    assert operation == "session.keep"
    talk.node.session.kept(wish)
    new = again(talk)
    new.welcome()
    new.node_does_all()
    assert new.hears() == []


@BOTH
@pytest.mark.parametrize(
    ("qos", "answers"),
    [
        (1, [PubRec]),
        (1, [PubComp]),
        (2, [PubAck]),
        (2, [PubComp]),
        (2, [PubRec, PubAck]),
    ],
)
@pytest.mark.parametrize("topic_filter", ["a", "$share/crew/a"])
def test_an_answer_to_another_qos_ends_the_connection(
    version: int, qos: int, answers: list[type[PubAck | PubRec | PubComp]], topic_filter: str
) -> None:
    """[MQTT-4.13.1-1]; 3.1.1 [MQTT-4.8.0-1]."""
    talk = subscribed(Conversation(version).here(**KEPT[version]), Subscription(topic_filter, qos))
    window = None if topic_filter == "a" else talk.node.shared[f"#mqtt/{topic_filter}"]
    talk.node_brings((1, twice("x") if qos > 1 else row("x")), window=window)
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    *good, wrong = answers
    for one in good:
        talk.says(one(packet_id))
        talk.node_works()
        talk.hears()
    talk.says(wrong(packet_id))
    talk.ends_with(ReasonCode.PROTOCOL_ERROR if version == V5 else None)


@BOTH
def test_a_puback_for_nothing_is_passed_over(version: int) -> None:
    talk = queued(version)
    talk.node_brings((1, row()))
    talk.says(PubAck(77), PubAck(77))
    assert talk.client.state is ClientState.HERE
    assert talk.node.accepted == []


def test_a_message_that_was_published_with_qos_0_comes_with_it_and_is_done_with() -> None:
    """[MQTT-3.8.4-8]."""
    talk = queued()
    talk.node_brings((1, row("x", flags=wire.MODE_DIRECT)))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    assert (packet.qos, packet.packet_id) == (0, 0)
    assert talk.node.accepted == [1]


@pytest.mark.requirement("R243")
@pytest.mark.parametrize(
    ("receive_max", "granted"), [(None, IN_FLIGHT_MAX), (1, 1), (7, 7), (65_535, IN_FLIGHT_MAX)]
)
def test_no_more_is_on_its_way_than_the_client_takes(receive_max: int | None, granted: int) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2]: the credit of the flow, which an acknowledgement renews and nothing else."""
    talk = queued(properties=Properties(receive_maximum=receive_max))
    window = talk.node.window
    assert window is not None
    assert window.granted_messages == granted
    talk.node_brings(*[(one, row()) for one in range(1, granted + 1)])
    assert not window.can_renew()
    for packet in talk.hears():
        assert isinstance(packet, Publish)
        talk.says(PubAck(packet.packet_id))
    assert window.renew() is not None
    assert window.granted_messages == 2 * granted


def test_a_packet_identifier_is_used_once_at_a_time_and_order_is_kept() -> None:
    """[MQTT-2.2.1-4] [MQTT-4.6.0-6]: who has the same one waits, and those behind him, too."""
    talk = queued()
    talk.node_brings((1, row("first")), (2, row("second")))
    assert payloads(talk) == [("first", 2, False), ("second", 3, False)]
    talk.node_brings((1 + IDS, row("same")), (5 + IDS, row("behind")))
    talk.says(PubAck(3))
    assert payloads(talk) == []
    talk.says(PubAck(2))
    assert payloads(talk) == [("same", 2, False), ("behind", 6, False)]
    assert talk.node.accepted == [2, 1]


def test_what_a_client_cannot_have_is_deleted_and_counted() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]."""
    talk = queued(properties=Properties(maximum_packet_size=30))
    talk.node_brings((1, row("x" * 30)), (2, row("", topic="a#b")), (3, row("y")))
    assert [payload for payload, _, _ in payloads(talk)] == ["y"]
    assert talk.node.accepted == [1, 2]
    assert talk.node.counts == {"discard.packet-too-large": 1, "discard.topic-not-mqtt": 1}


def test_who_takes_nothing_is_ended() -> None:
    talk = queued()
    talk.takes_more = False
    talk.node_brings((1, row()))
    talk.ends_with(ReasonCode.QUOTA_EXCEEDED)


def test_the_expiry_is_what_is_left_of_it() -> None:
    """[MQTT-3.3.2-6]."""
    talk = queued()
    for position, waited_ms in enumerate([0, 5, 1_500, 59_998], 1):
        talk.node_brings((position, row(ttl_ms=60_000)), waited_ms=waited_ms)
    talk.node_brings((5, row(ttl_ms=60_000)), waited_ms=70_000, counts=[1])
    told = [one.properties.message_expiry_interval for one in talk.hears() if isinstance(one, Publish)]
    assert told == [60, 60, 59, 1, 0], "what was sent before comes again"


@BOTH
def test_what_has_expired_while_it_waited_for_its_client_is_deleted_and_counted(version: int) -> None:
    """[MQTT-3.3.2-5]: nobody was sent it yet."""
    talk = queued(version)
    talk.client.begin_retained()
    talk.node_brings((1, row("old", ttl_ms=1_000)), (2, row("new", ttl_ms=60_000)), (3, row("for ever")))
    talk.time_ms += 1_000
    talk.client.end_retained(talk.now)
    assert [payload for payload, *_ in payloads(talk)] == ["new", "for ever"]
    assert talk.node.accepted == [1]
    assert talk.node.counts == {"discard.message-expired": 1}


# -- options of subscriptions ----------------------------------------------------------------------------


def test_a_copy_has_the_identifiers_of_all_subscriptions_that_match() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4]."""
    talk = Conversation().here()
    subscribed(talk, Subscription("a", 1), properties=Properties(subscription_identifiers=(7,)))
    subscribed(talk, Subscription("a/#", 1), properties=Properties(subscription_identifiers=(8,)))
    subscribed(talk, Subscription("b", 1))
    talk.node_brings((1, row()), (2, row(topic="a/x")), (3, row(topic="b")))
    told = [one.properties.subscription_identifiers for one in talk.hears() if isinstance(one, Publish)]
    assert told == [(7, 8), (8,), ()]


def test_no_local_keeps_what_the_client_has_sent_itself_from_it() -> None:
    """[MQTT-3.8.3-3]."""
    talk = subscribed(Conversation().here(), Subscription("a", 1, no_local=True), Subscription("b/#", 1))
    talk.node_brings(
        (1, row("own", sender="c")), (2, row("other", sender="d")), (3, row("b", "b", sender="c"))
    )
    assert [payload for payload, _, _ in payloads(talk)] == ["other", "b"]
    assert talk.node.accepted == [1]


@pytest.mark.parametrize("is_kept", [True, False])
def test_retain_is_as_it_was_published_if_the_client_wants_that(*, is_kept: bool) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    talk = subscribed(Conversation().here(), Subscription("a", 1, retain_as_published=is_kept))
    talk.node_brings((1, row(flags=wire.MODE_PERSISTENT | wire.FLAG_RETAIN)))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    assert packet.retain is is_kept


# -- sessions --------------------------------------------------------------------------------------------


@BOTH
def test_a_session_that_is_kept_is_there_again(version: int) -> None:
    """[MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-4.1.0-1]; 3.1.1 [MQTT-3.1.2-4] [MQTT-3.2.2-2]."""
    talk = Conversation(version).connect(**KEPT[version])
    assert not talk.welcome().session_present
    subscribed(talk, Subscription("a", 1), Subscription("b"))
    assert filters_of(talk.fanned_out) == ["b"]
    talk.client.lost("", talk.now)
    talk = again(talk)
    assert talk.welcome().session_present
    talk.node_does_all()
    assert filters_of(talk.fanned_out) == ["b"]
    assert talk.node.window is not None


def test_what_may_not_be_there_again_is_left_out_and_what_only_cannot_be_now_is_tried_again() -> None:
    """The client was told that its session is there, and MQTT has no way to say that a part of it is not."""
    talk = subscribed(Conversation().here(**KEPT[V5]), Subscription("a"), Subscription("b"))
    talk.client.lost("", talk.now)
    talk = again(talk)
    talk.welcome()
    talk.node_answers({"a": errors.SUBSCRIBE_DENIED})
    assert filters_of(talk.fanned_out) == ["b"]
    talk.client.lost("", talk.now)
    talk = again(talk)
    talk.welcome()
    talk.node_answers({"a": errors.MEMORY_EXCEEDED})
    talk.ends_with(ReasonCode.QUOTA_EXCEEDED)


@BOTH
def test_who_has_no_session_and_wants_none_that_is_kept_does_not_ask_for_it(version: int) -> None:
    talk = Conversation(version).connect()
    talk.node.session.error = errors.NOT_CONNECTED  # of who asks
    assert talk.welcome(new_session="#mqtt/c").session_present is False
    subscribed(talk, Subscription("a", 1))
    talk.node_brings((1, row("x")))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    talk.says(PubAck(packet.packet_id))
    assert talk.node.accepted == [1]


@BOTH
def test_a_clean_start_ends_the_session_that_was_there(version: int) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.2.2-2]; 3.1.1 [MQTT-3.1.2-6] [MQTT-3.2.2-1]."""
    talk = subscribed(Conversation(version).here(**KEPT[version]), Subscription("a", 1))
    talk.client.lost("", talk.now)
    talk = again(talk, clean_start=True)
    assert not talk.welcome().session_present
    assert talk.node.session.filters == {}


def test_what_was_sent_and_not_acknowledged_comes_again_first_with_dup_and_its_identifier() -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.6.0-1]."""
    talk = subscribed(Conversation().here(**KEPT[V5]), Subscription("a", 1))
    talk.node_brings((4, row("x")), (5, row("y")))
    ((_, first, _), _) = payloads(talk)
    talk.client.lost("", talk.now)
    talk = again(talk)
    talk.welcome()
    talk.node_does_all()
    talk.node_brings((4, row("x")), (5, row("y")), (6, row("z")), counts=[1, 1, 0])
    assert payloads(talk) == [("x", first, True), ("y", first + 1, True), ("z", first + 2, False)]


@pytest.mark.parametrize("connections", [0, 1, 2])
@pytest.mark.parametrize("lowering", [Unsubscribe(2, ("a",)), Subscribe(2, (Subscription("a", 1),))])
def test_what_was_sent_with_qos_2_comes_again_with_that_whatever_is_subscribed_to_since(
    lowering: Subscribe | Unsubscribe, connections: int
) -> None:
    """It came again with QoS 1, so its client took it for the second time; [MQTT-3.10.4-3] [MQTT-4.4.0-1].

    The subscription ends on the same connection; or on the next one, before what was sent has come again, and it does
    so there, or on the one after that.
    """
    sent = (4, twice("x")), (5, row("y"))

    def come_back(talk: Conversation) -> Conversation:
        talk.client.lost("", talk.now)
        talk = again(talk)
        talk.welcome()
        talk.node_does_all()
        return talk

    def qos_of(talk: Conversation, *earlier: int) -> list[int]:
        talk.node_brings(*sent, counts=[*earlier])
        talk.node_does_all()
        return [one.qos for one in talk.hears() if isinstance(one, Publish)]

    talk = subscribed(Conversation().here(**KEPT[V5]), Subscription("a", 2))
    assert qos_of(talk, 0, 0) == [2, 1]
    if connections:
        talk = come_back(talk)
    talk.says(lowering)
    talk.node_does_all()
    assert len(talk.hears()) == 1
    if connections != 1:
        talk = come_back(talk)
    for _ in range(2):
        assert qos_of(talk, 1, 1) == [2, 1]
        talk = come_back(talk)
    assert qos_of(talk, 1, 1) == [2, 1]
    talk.node_brings((6, twice("z")))
    assert talk.hears_one().qos == 1, "what is sent after it is as it is granted"


def test_a_connection_that_ends_before_a_lower_qos_is_granted_is_no_exception() -> None:
    talk = subscribed(Conversation().here(**KEPT[V5]), Subscription("a", 2))
    talk.node_brings((4, twice("x")))
    talk.says(Subscribe(2, (Subscription("a", 1),)))
    talk.node_brings((5, twice("y")))
    assert [one.qos for one in talk.hears() if isinstance(one, Publish)] == [2, 2]
    talk.node_carries_out()
    talk.client.lost("", talk.now)
    talk = again(talk)
    talk.welcome()
    talk.node_does_all()
    talk.node_brings((4, twice("x")), (5, twice("y")), counts=[1, 1])
    assert [one.qos for one in talk.hears() if isinstance(one, Publish)] == [2, 2]


def test_a_subscription_that_is_there_again_with_its_qos_is_not_remembered_as_one_that_ended() -> None:
    """Libraries subscribe on each connection, and each note is a write to disk."""
    talk = subscribed(Conversation().here(**KEPT[V5]), Subscription("a", 2))
    talk.node_brings((4, twice("x")))
    talk.hears()
    for qos in (2, 1):
        talk.client.lost("", talk.now)
        talk = again(talk)
        talk.welcome()
        talk.node_does_all()
        before = talk.node.session.note
        subscribed(talk, Subscription("a", qos))
        talk.node_does_all()
        assert (talk.node.session.note == before) == (qos == 2)


def test_options_are_those_of_the_session() -> None:
    talk = Conversation().here(**KEPT[V5])
    subscribed(
        talk, Subscription("a", 1, no_local=True), properties=Properties(subscription_identifiers=(7,))
    )
    talk.client.lost("", talk.now)
    talk = again(talk)
    talk.welcome()
    talk.node_does_all()
    talk.node_brings((1, row("own", sender="c")), (2, row("x")))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    assert packet.properties.subscription_identifiers == (7,)


@pytest.mark.parametrize(
    ("asked_s", "told_s", "last"),
    [
        (None, 60, []),
        (60, 60, [("session.change", {"expiry_s": 60})]),
        (500, 60, [("session.change", {"expiry_s": 100})]),
        (0, 60, [("session.close", {})]),
    ],
)
def test_a_disconnect_may_change_for_how_long_it_is_kept(
    asked_s: int | None, told_s: int, last: list[tuple[str, dict[str, int]]]
) -> None:
    """Section 3.14.2.2.2."""
    settings = Settings(session_expiry_max_s=100)
    given = Properties(session_expiry_interval=told_s)
    talk = Conversation(settings=settings).here(clean_start=False, properties=given)
    talk.says(Disconnect(properties=Properties(session_expiry_interval=asked_s)))
    assert talk.node.has_left
    assert talk.node.last == last


def test_a_session_that_was_kept_and_is_not_any_more_ends_with_the_connection() -> None:
    """Section 3.1.2.11.2: without an expiry interval it ends when the network connection is closed."""
    talk = Conversation().here(**KEPT[V5])
    talk.client.lost("", talk.now)
    talk = again(talk, properties=NONE)
    assert talk.welcome().session_present
    talk.client.lost("", talk.now)
    assert talk.node.last == [("session.close", {})]


@BOTH
def test_a_session_that_cannot_be_had_refuses_the_connection(version: int) -> None:
    talk = Conversation(version).connect(**KEPT[version])
    talk.node.session.error = errors.TOO_MANY_ENDPOINTS
    assert talk.welcome().code
    talk.ends_with(None)


# -- subscriptions ---------------------------------------------------------------------------------------


@BOTH
def test_a_filter_is_direct_or_in_the_queue_and_changes_from_one_to_the_other(version: int) -> None:
    """[MQTT-3.8.4-3]: a subscription with the same topic filter takes the place of the one before."""
    talk = queued(version)
    assert (filters_of(talk.fanned_out), talk.node.in_force, [*talk.node.session.filters]) == (
        [],
        set(),
        ["a"],
    )
    subscribed(talk, Subscription("a"))
    assert (filters_of(talk.fanned_out), talk.node.in_force, [*talk.node.session.filters]) == (
        ["a"],
        {"a"},
        [],
    )
    subscribed(talk, Subscription("a", 1))
    assert (filters_of(talk.fanned_out), talk.node.in_force, [*talk.node.session.filters]) == (
        [],
        set(),
        ["a"],
    )


@BOTH
def test_what_is_refused_for_the_session_is_refused(version: int) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.9.3-1]."""
    talk = Conversation(version).here()
    talk.node.session.refused = {"b": errors.SUBSCRIBE_DENIED}
    talk.says(Subscribe(1, tuple(Subscription(one, 1) for one in "abc")))
    talk.node_does_all()
    assert talk.hears_one().codes == (1, ReasonCode.NOT_AUTHORIZED if version == V5 else 0x80, 1)
    assert [*talk.node.session.filters] == ["a", "c"]


def test_many_filters_go_in_pieces_and_are_answered_together() -> None:
    """[MQTT-3.8.4-6]."""
    talk = Conversation().here()
    many = [f"t/{number}" for number in range(50)]
    subscribed(talk, *[Subscription(one, 1) for one in many])
    assert [*talk.node.session.filters] == many
    talk.says(Unsubscribe(2, tuple(many[:40])))
    talk.node_does_all()
    assert talk.hears() == [UnsubAck(2, (0,) * 40)]
    assert [*talk.node.session.filters] == many[40:]


def test_of_a_topic_filter_that_is_there_twice_the_last_one_counts() -> None:
    talk = Conversation().here()
    talk.says(
        Subscribe(1, (Subscription("a", 1), Subscription("a", 0), Subscription("b", 0), Subscription("b", 1)))
    )
    talk.node_does_all()
    assert talk.hears() == [SubAck(1, (1, 0, 0, 1))]
    assert (talk.node.in_force, [*talk.node.session.filters]) == ({"a"}, ["b"])


@BOTH
def test_an_unsubscribe_that_the_node_cannot_carry_out_ends_the_connection(version: int) -> None:
    """Else it would be answered as if it had."""
    talk = queued(version)
    talk.says(Unsubscribe(2, ("a",)))
    talk.node_cannot(errors.CONTROLLER_UNAVAILABLE)
    talk.ends_with(ReasonCode.SERVER_BUSY if version == V5 else None)


def test_inboxes_are_direct_shared_or_not() -> None:
    talk = Conversation().here()
    inbox = "$P2P/INB/n/0123456789ab"
    talk.says(Subscribe(1, (Subscription(f"$share/g/{inbox}", 1), Subscription(inbox, 1))))
    talk.node_does_all()
    assert talk.hears_one().codes == (0, 0)
    assert talk.node.session.filters == {}


# -- the flow --------------------------------------------------------------------------------------------


def test_a_flow_that_ends_for_a_while_is_bound_again_and_nothing_is_sent_twice() -> None:
    """[MQTT-4.4.0-1]: at no other time than a reconnect."""
    talk = queued()
    talk.node_brings((1, row("x")), (2, row("y")), (3, row("z")))
    talk.hears()
    talk.node_ends_flow(errors.HOME_NOT_READY)
    talk.says(PubAck(2 + 1))
    (at,) = talk.wakes
    assert at == talk.now + BIND_AGAIN_S
    talk.now = at
    talk.client.tick(talk.now)
    talk.node_works()
    assert talk.node.accepted == []
    talk.node_brings((1, row("x")), (2, row("y")), (3, row("z")), (4, row("new")), counts=[1, 1, 1, 0])
    assert payloads(talk) == [("new", 5, False)]
    assert talk.node.accepted == [2]
    talk.says(PubAck(2))
    assert talk.node.accepted == [2, 1]


def test_a_message_that_one_flow_brings_twice_is_accepted_once() -> None:
    talk = queued()
    talk.node_brings((1, row("x")))
    talk.node_brings((1, row("x")), counts=[1])
    assert payloads(talk) == [("x", 2, False)]
    talk.says(PubAck(2))
    assert talk.node.accepted == [1]
    assert talk.node.window
    assert talk.node.window.held_messages == 0


def test_a_flow_that_cannot_be_bound_now_is_tried_again() -> None:
    talk = Conversation().here()
    talk.says(Subscribe(1, (Subscription("a", 1),)))
    talk.node_carries_out()
    talk.node_cannot(errors.HOME_NOT_READY)
    assert talk.client.state is ClientState.HERE
    talk.now = talk.wakes.pop()
    talk.client.tick(talk.now)
    talk.node_works()
    talk.node_brings((1, row("x")))
    assert talk.hears()[-1:] != []


@BOTH
def test_who_has_no_session_any_more_is_ended(version: int) -> None:
    talk = queued(version)
    talk.node_ends_flow(errors.UNKNOWN_ENDPOINT, "queue #mqtt/c was deleted")
    talk.ends_with(ReasonCode.ADMINISTRATIVE_ACTION if version == V5 else None)


@pytest.mark.parametrize("how", ["lost", "disconnect", "flow"])
def test_credit_is_given_back(how: str) -> None:
    talk = queued()
    assert talk.credit.given_bytes > 0
    if how == "lost":
        talk.client.lost("", talk.now)
    elif how == "disconnect":
        talk.says(Disconnect())
    else:
        talk.node_ends_flow(errors.HOME_NOT_READY)
    assert talk.credit.given_bytes == 0
