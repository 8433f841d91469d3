"""Shared subscriptions with QoS 1 and 2: a client as one of those who take from a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors, wire
from gateway.mqtt.clients.client import ClientState
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription, UnsubAck, Unsubscribe
from gateway.mqtt.sessions import shares
from gateway.mqtt.sessions.shares import BIND_AGAIN_S, SHARES_MAX
from gateway.mqtt.sessions.unacknowledged import IDS, IN_FLIGHT_BYTES_MAX
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation
from tests.unit.gateway.clients.sessions_of_tests import KEPT, again, payloads, row, subscribed, twice

if TYPE_CHECKING:
    from angarium.client.protocol.flow_window import FlowWindow

TEXT = "$share/crew/a/#"
QUEUE = f"#mqtt/{TEXT}"


def member(qos: int = 1, **fields: Any) -> Conversation:
    """Give a client that shares `a/#`."""
    return subscribed(Conversation().here(**fields), Subscription(TEXT, qos))


def window_of(talk: Conversation, name: str = QUEUE) -> FlowWindow:
    return talk.node.shared[name]


def test_it_takes_from_the_queue_and_what_it_acknowledges_is_deleted() -> None:
    talk = member()
    assert talk.node.in_force == set()
    talk.node_brings((7, row("x")), (9, row("y")), counts=[0, 1], window=window_of(talk))
    first, second = talk.hears()
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert [(one.payload, one.qos, one.dup) for one in (first, second)] == [(b"x", 1, False), (b"y", 1, True)]
    assert IDS < first.packet_id != second.packet_id > IDS
    talk.says(PubAck(second.packet_id), PubAck(second.packet_id), PubAck(1))
    assert talk.node.accepted_shared == [(QUEUE, 9)]
    talk.says(PubAck(first.packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert talk.node.accepted_shared == [(QUEUE, 9), (QUEUE, 7)]


def test_what_was_published_with_qos_0_comes_with_it_and_is_done_with() -> None:
    talk = member()
    talk.node_brings((1, row("x", flags=wire.MODE_DIRECT)), window=window_of(talk))
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    assert (packet.qos, packet.packet_id) == (0, 0)
    assert talk.node.accepted_shared == [(QUEUE, 1)]


# -- with QoS 2, sessions that are kept ------------------------------------------------------------------------


def keeper() -> Conversation:
    """Give a member whose session is kept."""
    return member(2, **KEPT[5])


def held(talk: Conversation) -> list[int]:
    return talk.node.session.holdings[QUEUE][1]


def returned(talk: Conversation) -> Conversation:
    """Give the same member on its next connection."""
    new = again(talk)
    new.welcome()
    new.node_does_all()
    return new


def test_a_message_is_sent_when_it_is_held_and_deleted_before_it_is_released() -> None:
    talk = keeper()
    talk.node_brings((7, twice("x")), window=window_of(talk))
    assert talk.hears() == []
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    assert held(talk) == [7]
    talk.says(PubRec(packet_id), PubComp(packet_id))
    assert talk.hears() == []
    talk.node_works()
    assert talk.hears() == [PubRel(packet_id)]
    assert (held(talk), talk.node.session.done) == ([], {7})
    talk.says(PubRec(packet_id))
    assert talk.hears() == [PubRel(packet_id)]
    assert window_of(talk).held_messages == 1
    talk.says(PubComp(packet_id))
    assert window_of(talk).held_messages == 0
    assert talk.node.accepted_shared == [], "it is not settled besides"


def test_what_somebody_else_has_is_not_sent_and_what_the_client_refuses_is_deleted() -> None:
    talk = keeper()
    talk.node.session.taken_by_others = {7}
    talk.node_brings((7, twice("x")), (8, twice("y")), window=window_of(talk))
    talk.node_works()
    ((payload, packet_id, _),) = payloads(talk)
    assert payload == "y"
    assert window_of(talk).held_messages == 1
    talk.says(PubRec(packet_id, ReasonCode.QUOTA_EXCEEDED))
    talk.node_works()
    assert talk.hears() == []
    assert (held(talk), talk.node.session.done) == ([], {8})


def test_who_refuses_a_message_twice_is_not_told_that_it_is_released() -> None:
    """Section 4.3.3: a PUBREC with 0x80 or above ends the exchange, and no PUBREL follows."""
    talk = keeper()
    talk.node_brings((7, twice("x")), window=window_of(talk))
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    refusal = PubRec(packet_id, ReasonCode.QUOTA_EXCEEDED)
    talk.says(refusal, refusal)
    talk.node_works()
    talk.says(refusal)
    assert talk.hears() == []
    assert (held(talk), talk.node.session.done) == ([], {7})


def test_a_refused_message_that_comes_again_before_it_is_deleted_takes_no_room_for_good() -> None:
    talk = keeper()
    talk.node_brings((7, twice("x")), window=window_of(talk))
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id, ReasonCode.QUOTA_EXCEEDED))
    talk.node_brings((7, twice("x")), counts=[1], window=window_of(talk))
    talk.node_works()
    assert talk.hears() == []
    assert window_of(talk).held_messages == 0


def test_the_next_connection_goes_on_with_what_is_held_and_with_what_is_released() -> None:
    talk = keeper()
    talk.node_brings((1, twice("x")), (2, twice("y")), window=window_of(talk))
    talk.node_works()
    (_, first, _), (_, second, _) = payloads(talk)
    talk.says(PubRec(first))
    talk.node_works()
    new = returned(talk)
    assert new.hears() == [PubRel(first)]
    new.node_brings((2, twice("y")), (3, twice("z")), window=window_of(new))
    new.node_works()
    assert payloads(new)[:1] == [("y", second, True)]
    assert held(new) == [2, 3]
    new.says(PubComp(first), PubRec(second))
    new.node_works()
    assert PubRel(second) in new.hears()
    assert held(new) == [3]


def test_what_is_completed_is_over_on_the_next_connection_too() -> None:
    """[MQTT-4.4.0-1]: nobody waits for that to be written, so it is when the connection ends."""
    talk = keeper()
    talk.node_brings((1, twice("x")), window=window_of(talk))
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id))
    talk.node_works()
    talk.says(PubComp(packet_id))
    talk.client.lost("", talk.now)
    ((operation, wish),) = talk.node.last
    assert (operation, wish["share"], wish["note"], wish["held"]) == ("session.keep", QUEUE, b"", [])


def test_what_was_not_sent_is_not_held_for_who_has_gone() -> None:
    talk = keeper()
    talk.node_brings((1, twice("x")), window=window_of(talk))
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id))
    talk.node_brings((2, twice("y")), window=window_of(talk))
    talk.client.lost("", talk.now)
    ((_, wish),) = talk.node.last
    assert (wish["held"], wish["done"]) == ([], [1])


def test_what_is_held_no_more_is_released() -> None:
    talk = keeper()
    talk.node_brings((1, twice("x")), window=window_of(talk))
    talk.node_works()
    ((_, packet_id, _),) = payloads(talk)
    note, _ = talk.node.session.holdings[QUEUE]
    talk.node.session.holdings[QUEUE] = note, []
    new = returned(talk)
    assert new.hears() == [PubRel(packet_id)]


def test_who_leaves_finishes_what_is_held_on_the_next_connection_too() -> None:
    talk = keeper()
    talk.node_brings((1, twice("x")), (2, twice("y")), window=window_of(talk))
    talk.node_works()
    (_, first, _), (_, second, _) = payloads(talk)
    talk.says(Unsubscribe(2, (TEXT,)))
    talk.node_does_all()
    assert isinstance(talk.hears_one(), UnsubAck)
    assert (held(talk), TEXT in talk.node.session.filters) == ([1, 2], False)
    talk.says(PubRec(first))
    talk.node_works()
    assert talk.hears() == [PubRel(first)]
    new = returned(talk)
    assert new.hears() == [PubRel(first)]
    window = window_of(new)
    new.node_brings((2, twice("y")), (3, twice("z")), window=window)
    new.node_works()
    assert payloads(new) == [("y", second, True)], "what is new is for others"
    assert window.flow == 0
    new.says(PubComp(first), PubRec(second))
    new.node_works()
    assert new.hears() == [PubRel(second)]
    new.says(PubComp(second))
    new.node_works()
    assert new.node.session.holdings[QUEUE] == (b"", [])
    assert new.node.session.note == b""


def test_who_leaves_before_anything_was_sent_has_nothing_left_to_finish() -> None:
    """The queue stayed among those that are left: its client was ended with the router, as if it held something."""
    talk = keeper()
    talk.node_brings((7, twice("x")), window=window_of(talk))
    talk.says(Unsubscribe(2, (TEXT,)))
    talk.node_does_all()
    assert isinstance(talk.hears_one(), UnsubAck)
    assert talk.node.session.holdings[QUEUE] == (b"", [])
    assert talk.node.session.note == b""
    assert talk.client.away(talk.now)


def test_what_a_flow_brings_again_while_it_is_asked_for_is_asked_for_again() -> None:
    talk = keeper()
    old = window_of(talk)
    talk.node_brings((7, twice("x")), window=old)
    talk.node_ends_flow(errors.HOME_NOT_READY, window=old)
    talk.now += BIND_AGAIN_S
    talk.client.tick(talk.now)
    operation, wish, done, _ = talk.node.requests.pop(0)
    assert (operation, wish["held"]) == ("session.keep", [7])
    talk.node_works()
    talk.node_brings((7, twice("x")), counts=[1], window=window_of(talk))
    done([7], None, talk.now)
    assert talk.hears() == []
    talk.node_works()
    assert [payload for payload, _, _ in payloads(talk)] == ["x"]
    assert held(talk) == [7]


# -- sessions that end with their connections --------------------------------------------------------------------


def test_with_qos_2_a_message_is_done_with_when_it_is_completed() -> None:
    talk = member(2, properties=Properties(receive_maximum=2))
    window = window_of(talk)
    talk.node_brings((1, twice("x")), (2, row("y")), window=window)
    first, second = talk.hears()
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert [(one.payload, one.qos) for one in (first, second)] == [(b"x", 2), (b"y", 1)]
    for _ in range(2):
        talk.says(PubRec(first.packet_id))
        assert talk.hears_one() == PubRel(first.packet_id)
    assert talk.node.accepted_shared == []
    assert window.held_messages == 2, "it counts until its end"
    talk.says(PubComp(first.packet_id), PubComp(first.packet_id))
    assert talk.node.accepted_shared == [(QUEUE, 1)]
    assert window.held_messages == 1


def test_a_refused_message_is_done_with_and_an_unknown_one_is_told_so() -> None:
    talk = member(2)
    talk.node_brings((1, twice("x")), window=window_of(talk))
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert talk.hears() == []
    assert talk.node.accepted_shared == [(QUEUE, 1)]
    talk.says(PubRec(packet_id))
    assert talk.hears_one() == PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


def test_a_completed_message_makes_room_for_what_waits() -> None:
    talk = Conversation().here(properties=Properties(receive_maximum=1))
    subscribed(talk, Subscription("b", 1), Subscription(TEXT, 2))
    talk.node_brings((1, twice("shared")), window=window_of(talk))
    ((_, packet_id, _),) = payloads(talk)
    talk.node_brings((1, row("own")))
    talk.says(PubRec(packet_id))
    assert talk.hears() == [PubRel(packet_id)]
    talk.says(PubComp(packet_id))
    assert [payload for payload, _, _ in payloads(talk)] == ["own"]


def test_a_released_message_that_a_flow_brings_again_is_not_sent_again() -> None:
    talk = member(2)
    old = window_of(talk)
    talk.node_brings((5, twice("x")), window=old)
    ((_, packet_id, _),) = payloads(talk)
    talk.says(PubRec(packet_id))
    talk.node_ends_flow(errors.HOME_NOT_READY, window=old)
    talk.now += BIND_AGAIN_S
    talk.client.tick(talk.now)
    talk.node_works()
    talk.node_brings((5, twice("x")), counts=[1], window=window_of(talk))
    assert talk.hears() == [PubRel(packet_id)]
    talk.says(PubComp(packet_id))
    assert talk.node.accepted_shared == [(QUEUE, 5)]


def test_who_may_not_receive_guaranteed_messages_shares_directly() -> None:
    talk = Conversation().connect()
    talk.welcome(rights=msgspec.structs.replace(RIGHTS, may_receive_guaranteed=False))
    talk.says(Subscribe(1, (Subscription(TEXT, 1),)))
    talk.node_does_all()
    assert talk.hears_one().codes == (0,)
    assert talk.node.in_force == {"#share/crew/a", "#share/crew/a/>"}


def test_a_queue_that_the_node_refuses_is_no_subscription() -> None:
    talk = Conversation().here()
    talk.node.session.refused[TEXT] = errors.SHARE_NAME_DENIED
    talk.says(Subscribe(1, (Subscription(TEXT, 1), Subscription("b", 1))))
    talk.node_does_all()
    assert talk.hears_one().codes == (ReasonCode.NOT_AUTHORIZED, 1)
    assert talk.node.shared == {}
    talk.says(Unsubscribe(2, (TEXT,)))
    talk.node_does_all()
    assert talk.hears_one().codes == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)


def test_who_unsubscribes_gives_the_flow_back_at_once() -> None:
    talk = member()
    window = window_of(talk)
    talk.node_brings((1, row("x")), window=window)
    (packet,) = talk.hears()
    talk.says(Unsubscribe(2, (TEXT,)))
    talk.node_does_all()
    assert window.flow == 0
    assert talk.credit.given_bytes == 0
    assert talk.hears() == [UnsubAck(2, (0,))]
    assert isinstance(packet, Publish)
    talk.says(PubAck(packet.packet_id))
    assert talk.node.accepted_shared == []


def test_a_change_of_options_keeps_the_flow_and_one_of_the_qos_does_not() -> None:
    talk = member()
    window = window_of(talk)
    talk = subscribed(talk, Subscription(TEXT, 1), properties=Properties(subscription_identifiers=(5,)))
    assert window_of(talk) is window
    talk.node_brings((1, row("x")), window=window)
    (packet,) = talk.hears()
    assert isinstance(packet, Publish)
    assert packet.properties.subscription_identifiers == (5,)
    subscribed(talk, Subscription(TEXT, 0))
    assert window.flow == 0
    assert talk.node.in_force == {"#share/crew/a", "#share/crew/a/>"}
    subscribed(talk, Subscription(TEXT, 1))
    assert window_of(talk).flow
    assert talk.node.in_force == set()


def test_all_queues_together_bring_no_more_than_the_client_takes() -> None:
    """[MQTT-3.3.4-9]; what was acknowledged of one makes room for the other first."""
    talk = Conversation().here(properties=Properties(receive_maximum=2))
    subscribed(talk, Subscription("b", 1), Subscription(TEXT, 1))
    assert talk.node.window is not None
    assert talk.node.window.granted_messages == window_of(talk).granted_messages == 2
    talk.node_brings((1, row("own 1")), (2, row("own 2")))
    talk.node_brings((1, row("shared 1")), (2, row("shared 2")), window=window_of(talk))
    one, two = talk.hears()
    assert isinstance(one, Publish)
    assert isinstance(two, Publish)
    talk.node_brings((3, row("own 3")))
    assert talk.hears() == []
    talk.says(PubAck(one.packet_id))
    ((payload, third, _),) = payloads(talk)
    assert payload == "shared 1"
    talk.says(PubAck(third))
    assert [payload for payload, _, _ in payloads(talk)] == ["own 3"]
    talk.says(PubAck(two.packet_id))
    assert [payload for payload, _, _ in payloads(talk)] == ["shared 2"]


def test_what_waits_for_room_is_given_back_with_its_flow() -> None:
    talk = Conversation().here(properties=Properties(receive_maximum=1))
    subscribed(talk, Subscription("b", 1), Subscription(TEXT, 1))
    talk.node_brings((1, row("own")))
    talk.node_brings((1, row("shared")), window=window_of(talk))
    ((payload, packet_id, _),) = payloads(talk)
    assert payload == "own"
    talk.says(Unsubscribe(2, (TEXT,)))
    talk.node_does_all()
    talk.hears()
    talk.says(PubAck(packet_id))
    assert talk.hears() == []


def test_many_bytes_in_flight_make_the_next_wait() -> None:
    talk = member()
    large = "x" * (IN_FLIGHT_BYTES_MAX // 2)
    talk.node_brings(*((at, row(large)) for at in range(1, 4)), window=window_of(talk))
    first, _ = talk.hears()
    assert isinstance(first, Publish)
    talk.says(PubAck(first.packet_id))
    assert len(talk.hears()) == 1


def test_a_message_that_a_flow_brings_again_is_not_sent_twice() -> None:
    talk = member()
    old = window_of(talk)
    talk.node_brings((5, row("x")), (6, row("y")), window=old)
    (_, packet_id, _), (_, other, _) = payloads(talk)
    talk.node_brings((5, row("x")), counts=[1], window=old)
    assert talk.hears() == []
    assert old.held_messages == 2, "it counts once"
    talk.node_ends_flow(errors.HOME_NOT_READY, window=old)
    (at,) = talk.wakes
    assert at == talk.now + BIND_AGAIN_S
    talk.now = at
    talk.client.tick(talk.now)
    talk.node_works()
    assert window_of(talk) is not old
    talk.node_brings((5, row("x")), (7, row("z")), counts=[1, 0], window=window_of(talk))
    assert [payload for payload, _, _ in payloads(talk)] == ["z"]
    talk.says(PubAck(other))
    assert talk.node.accepted_shared == []  # another member may have it by now
    talk.says(PubAck(packet_id))
    assert talk.node.accepted_shared == [(QUEUE, 5)]


def test_a_queue_that_an_operator_deletes_ends_the_connection() -> None:
    talk = member()
    talk.node_ends_flow(errors.UNKNOWN_ENDPOINT, window=window_of(talk))
    talk.ends_with(ReasonCode.ADMINISTRATIVE_ACTION)
    assert talk.credit.given_bytes == 0


def test_a_session_that_is_kept_is_a_member_again_when_it_comes_back() -> None:
    talk = member(**KEPT[5])
    assert talk.node.session.shared_for_s == {TEXT: 60}
    assert talk.node.session.filters == {TEXT: ((), 1, 0)}
    back = again(talk)
    assert back.welcome().session_present
    back.node_does_all()
    back.node_brings((3, row("x")), counts=[1], window=window_of(back))
    ((payload, _, is_again),) = payloads(back)
    assert (payload, is_again) == ("x", True)
    back.says(Unsubscribe(2, (TEXT,)))
    back.node_does_all()
    assert back.node.session.filters == {}


def test_a_member_whose_share_is_refused_when_it_comes_back_stays_without_it() -> None:
    back = again(member(**KEPT[5]))
    back.node.session.refused[TEXT] = errors.SUBSCRIBE_DENIED
    assert back.welcome().session_present
    back.node_does_all()
    assert back.client.state is ClientState.HERE
    assert back.node.shared == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errors.CONTROL_RATE_EXCEEDED, ReasonCode.MESSAGE_RATE_TOO_HIGH),
        (errors.CONTROLLER_UNAVAILABLE, ReasonCode.SERVER_BUSY),
    ],
)
def test_a_member_for_whom_the_node_has_no_time_when_it_comes_back_is_to_come_again(
    code: int, reason: ReasonCode
) -> None:
    """It was told that its session is there; without its share nobody would tell it that nothing comes."""
    back = again(member(**KEPT[5]))
    back.node.session.refused[TEXT] = code
    assert back.welcome().session_present
    back.ends_with(reason)


def test_a_share_that_the_session_cannot_keep_is_left() -> None:
    talk = Conversation().here(**KEPT[5])
    talk.says(Subscribe(1, (Subscription(TEXT, 1),)))
    talk.node_carries_out()
    talk.node.session.refused[TEXT] = errors.MAX_SUBSCRIPTIONS_EXCEEDED
    talk.node_does_all()
    assert talk.hears_one().codes == (ReasonCode.QUOTA_EXCEEDED,)
    assert talk.node.shared == {}
    del talk.node.session.refused[TEXT], talk.node.session.shared_for_s[TEXT]
    subscribed(talk, Subscription(TEXT, 1))
    assert TEXT in talk.node.session.shared_for_s, "it is asked for again"


def test_a_client_shares_so_many_queues_at_most() -> None:
    talk = Conversation().here()
    wanted = tuple(Subscription(f"$share/crew/{at}", 1) for at in range(SHARES_MAX + 2))
    talk.says(Subscribe(1, wanted))
    talk.node_does_all()
    assert talk.hears_one().codes == (*[1] * SHARES_MAX, *[ReasonCode.QUOTA_EXCEEDED] * 2)
    talk.says(Subscribe(2, wanted[-1:]))
    assert talk.hears_one().codes == (ReasonCode.QUOTA_EXCEEDED,)
    talk.says(Unsubscribe(3, ("$share/crew/0",)))
    talk.node_does_all()
    talk.hears()
    subscribed(talk, wanted[-1])


def test_a_message_that_is_too_large_or_has_no_name_in_mqtt_is_done_with() -> None:
    talk = Conversation().here(properties=Properties(maximum_packet_size=100))
    subscribed(talk, Subscription(TEXT, 1))
    talk.node_brings((1, row("x" * 100)), (2, row("y", topic="a/+")), window=window_of(talk))
    assert talk.hears() == []
    assert talk.node.counts == {"discard.packet-too-large": 1, "discard.topic-not-mqtt": 1}
    assert talk.node.accepted_shared == [(QUEUE, 1), (QUEUE, 2)]


def test_packet_identifiers_begin_again_and_pass_over_those_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "IDS_OF_SHARES", range(IDS + 1, IDS + 6))
    talk = member()
    talk.node_brings((1, row("first")), window=window_of(talk))
    ((_, first, _),) = payloads(talk)
    seen = []
    for at in range(2, 12):
        talk.node_brings((at, row()), window=window_of(talk))
        ((_, packet_id, _),) = payloads(talk)
        seen.append(packet_id)
        talk.says(PubAck(packet_id))
    assert first == IDS + 1
    assert seen == [IDS + 2, IDS + 3, IDS + 4, IDS + 5] * 2 + [IDS + 2, IDS + 3]
