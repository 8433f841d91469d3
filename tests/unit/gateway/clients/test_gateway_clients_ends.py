"""How connections end, and that they go on as long as they should; 5.0 where no version is named."""

from __future__ import annotations

import math

import pytest

from angarium import errors
from angarium.errors import error_for
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec.connect import ConnAck
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.unit.gateway.clients.conversation import Conversation

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])


@BOTH
def test_a_ping_is_answered(version: int) -> None:
    """[MQTT-3.12.4-1]."""
    talk = Conversation(version).here()
    talk.says(PingReq())
    assert talk.hears() == [PingResp()]


@BOTH
def test_who_disconnects_is_gone_without_a_word(version: int) -> None:
    """[MQTT-3.14.4-1] [MQTT-3.14.4-2]; 3.1.1 [MQTT-3.14.4-1]."""
    talk = Conversation(version).here()
    talk.says(Disconnect())
    talk.ends_with(None)
    assert talk.node.has_left


def test_a_session_that_was_to_end_cannot_be_kept_in_the_end() -> None:
    """Section 3.14.2.2.2: it is a protocol error."""
    talk = Conversation().here()
    talk.says(Disconnect(0, Properties(session_expiry_interval=1)))
    talk.ends_with(R.PROTOCOL_ERROR)


def test_one_that_was_to_last_may_be_ended_or_kept_for_longer() -> None:
    for expiry_s in (0, 1_000):
        talk = Conversation().here(properties=Properties(session_expiry_interval=60))
        talk.says(Disconnect(0, Properties(session_expiry_interval=expiry_s)))
        talk.ends_with(None)


@BOTH
def test_a_malformed_packet_ends_the_connection(version: int) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1]; 3.1.1 [MQTT-4.8.0-1]."""
    talk = Conversation(version).here()
    talk.says_bytes(b"\x83\x05\0\x01\0\0\0")
    talk.ends_with(R.MALFORMED_PACKET if version == V5 else None)
    assert talk.node.has_left


@BOTH
def test_an_end_is_counted_by_the_reason_of_5_0_unless_it_is_the_clients_own(version: int) -> None:
    """3.1.1 is not told the reason, operators are."""
    broken, left = Conversation(version).here(), Conversation(version).here()
    broken.says_bytes(b"\x00\x00")
    left.says(Disconnect())
    assert (broken.ended, left.ended) == ([R.MALFORMED_PACKET], [])


@BOTH
def test_packets_before_a_broken_one_are_done(version: int) -> None:
    talk = Conversation(version).here()
    talk.says_bytes(b"\xc0\0\xc1\0")
    assert talk.hears()[0] == PingResp()
    assert talk.finished is not None


@BOTH
def test_a_packet_of_a_server_ends_the_connection(version: int) -> None:
    """Section 2.1.2; it does not come through the codec."""
    talk = Conversation(version).here()
    talk.offers(ConnAck())
    talk.ends_with(R.PROTOCOL_ERROR if version == V5 else None)


@BOTH
def test_nothing_is_said_or_done_after_the_end(version: int) -> None:
    """[MQTT-3.14.4-1]."""
    talk = Conversation(version).here()
    talk.says(Disconnect())
    for packet in (PingReq(), Publish("t", b"x"), Subscribe(1, (Subscription("a"),))):
        assert talk.offers(packet)
    talk.client.end(error_for(errors.SHUTTING_DOWN), talk.now)
    talk.client.lost("the connection was closed", talk.now)
    assert talk.client.tick(talk.now) == math.inf
    assert talk.hears() == []
    assert talk.node.published == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errors.TAKEN_OVER, R.SESSION_TAKEN_OVER),
        (errors.SHUTTING_DOWN, R.SERVER_SHUTTING_DOWN),
        (errors.DISCONNECTED_BY_OPERATOR, R.ADMINISTRATIVE_ACTION),
        (errors.SESSION_UNKNOWN, R.SERVER_BUSY),
        (errors.NODE_UNREACHABLE, R.SERVER_BUSY),
        (errors.TOKEN_EXPIRED, R.NOT_AUTHORIZED),
        (errors.USERNAME_SHUTDOWN, R.NOT_AUTHORIZED),
        (errors.EGRESS_BLOCKED, R.QUOTA_EXCEEDED),
        (errors.INTERNAL, R.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_whose_session_ends_at_the_node_is_told_why(code: int, reason: ReasonCode) -> None:
    """[MQTT-3.1.4-3] for the takeover; 3.1.1 [MQTT-3.1.4-2], where a server has no DISCONNECT."""
    talk = Conversation().here()
    talk.says(Subscribe(1, (Subscription("a"),)))
    talk.node_does_all()
    talk.node_ends(code, "the detail")
    assert not talk.node.has_left
    assert "the detail" in str(talk.hears()[-1].properties.reason_string)  # type: ignore[union-attr]
    assert talk.finished
    other = Conversation(V3).here()
    other.node_ends(code)
    other.ends_with(None)
    ended = Conversation().here()
    ended.node_ends(code)
    ended.ends_with(reason)


def test_a_session_that_ended_for_no_reason_that_is_known_is_one_to_try_again() -> None:
    talk = Conversation().here()
    talk.node.is_over = True
    talk.client.ended(None, talk.now)
    talk.ends_with(R.SERVER_BUSY)


@BOTH
def test_a_process_that_goes_down_says_so_and_leaves_nothing_at_the_node(version: int) -> None:
    talk = Conversation(version).here()
    talk.client.end(error_for(errors.SHUTTING_DOWN), talk.now)
    assert talk.node.has_left
    talk.ends_with(R.SERVER_SHUTTING_DOWN if version == V5 else None)


@BOTH
def test_during_a_login_it_says_so_with_the_connack(version: int) -> None:
    """[MQTT-3.14.0-1]."""
    talk = Conversation(version).connect()
    talk.client.end(error_for(errors.SHUTTING_DOWN), talk.now)
    assert talk.node.has_left
    talk.ends_with(R.SERVER_UNAVAILABLE if version == V5 else 3)  # type: ignore[arg-type]


@BOTH
def test_a_client_that_is_silent_for_one_and_a_half_times_its_keep_alive_is_gone(version: int) -> None:
    """[MQTT-3.1.2-22]; 3.1.1 [MQTT-3.1.2-24]."""
    talk = Conversation(version).here(keep_alive=10)
    begin = talk.now
    assert talk.client.tick(talk.now) == begin + 15
    talk.now = begin + 14.9
    assert talk.client.tick(talk.now) == begin + 15
    assert talk.finished is None
    talk.now = begin + 15
    assert talk.client.tick(talk.now) == math.inf
    talk.ends_with(R.KEEP_ALIVE_TIMEOUT if version == V5 else None)
    assert talk.node.has_left


@pytest.mark.parametrize("sign", ["packet", "bytes"])
def test_whatever_comes_of_it_shows_that_it_is_there(sign: str) -> None:
    talk = Conversation().here(keep_alive=10)
    begin = talk.now
    talk.now = begin + 14
    if sign == "packet":
        talk.says(Publish("t", b"x"))
    else:
        talk.client.heard(talk.now)
    assert talk.client.tick(begin + 15) == begin + 29


def test_a_message_that_is_offered_again_and_again_shows_it_too() -> None:
    """What is not read for want of room is not the silence of its sender."""
    talk = Conversation().here(keep_alive=10)
    talk.node.is_full = True
    for _ in range(5):
        talk.now += 14
        assert not talk.offers(Publish("t", b"x"))
        talk.client.tick(talk.now)
    assert talk.finished is None


def test_without_a_keep_alive_it_may_be_silent_for_ever() -> None:
    """Section 3.1.2.10."""
    talk = Conversation().here(keep_alive=0)
    assert talk.client.tick(talk.now + 1e9) == math.inf
    assert talk.finished is None


def test_the_keep_alive_of_the_server_counts_where_there_is_one() -> None:
    """[MQTT-3.2.2-21]."""
    talk = Conversation(settings=Settings(keepalive_max_s=10)).here(keep_alive=1_000)
    assert talk.client.tick(talk.now) == talk.now + 15


def test_the_time_of_its_login_does_not_count() -> None:
    talk = Conversation().connect(keep_alive=10)
    assert talk.client.tick(talk.now + 100) == math.inf
    talk.now += 100
    talk.welcome()
    assert talk.client.tick(talk.now) == talk.now + 15


def test_how_long_it_may_take_nothing_depends_on_its_keep_alive() -> None:
    assert Conversation().here(keep_alive=10).client.patience_s == 60
    assert Conversation().here(keep_alive=100).client.patience_s == 150


def test_what_waits_for_it_and_what_was_lost_is_said_to_the_node_as_long_as_it_is_there() -> None:
    talk = Conversation().here()
    client = talk.client
    client.count("discard.transmit-congestion", 3)
    client.queued = (2, 500)
    assert (talk.node.counts, talk.node.queued) == ({"discard.transmit-congestion": 3}, (2, 500))
    assert (client.queued, client.queue_units) == ((2, 500), 100)
    talk.says(Disconnect())
    client.count("discard.client-not-connected")
    client.queued = (0, 0)
    assert (client.queued, client.queue_units) == ((0, 0), 0)


def test_words_of_an_end_are_left_out_where_they_have_no_room() -> None:
    """[MQTT-3.14.2-3] [MQTT-3.1.2-24]."""
    talk = Conversation().here(properties=Properties(maximum_packet_size=25))
    talk.node_ends(errors.TAKEN_OVER)
    assert talk.hears() == [Disconnect(R.SESSION_TAKEN_OVER)]


def test_an_answer_of_the_node_behind_the_end_is_nothing() -> None:
    talk = Conversation().here()
    talk.says(Subscribe(1, (Subscription("a"),)))
    assert SubAck not in {type(one) for one in talk.hears()}
    talk.client.end(error_for(errors.TAKEN_OVER), talk.now)
    talk.ends_with(R.SESSION_TAKEN_OVER)
