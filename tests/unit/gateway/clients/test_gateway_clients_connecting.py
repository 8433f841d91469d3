"""CONNECT and CONNACK: what the specifications demand of a server, a statement each; 5.0 where no version is named."""

from __future__ import annotations

import pytest

from angarium import errors
from gateway.mqtt.clients.settings import Capabilities, Settings
from gateway.mqtt.codec.connect import ConnAck, Connect, Will
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation

R = ReasonCode
BOTH = pytest.mark.parametrize("version", [V3, V5])
#: A 5.0 CONNECT with an empty client identifier, up to its flags, which follow.
HEAD = b"\0\x04MQTT\x05"


@BOTH
def test_who_logs_in_is_answered_with_success_and_no_session(version: int) -> None:
    """[MQTT-3.1.4-5] [MQTT-3.2.2-2]; 3.1.1 [MQTT-3.1.4-4] [MQTT-3.2.2-1]."""
    talk = Conversation(version).connect()
    assert talk.hears() == []
    assert not talk.is_admitted
    answer = talk.welcome()
    assert (answer.code, answer.session_present) == (0, False)
    assert talk.is_admitted
    assert talk.client.name == "c"


@BOTH
def test_a_first_packet_that_is_no_connect_ends_the_connection(version: int) -> None:
    """[MQTT-3.1.0-1]: whatever the framing lets through, it is not acted upon."""
    talk = Conversation(version)
    assert talk.offers(PingReq())
    talk.ends_with(None)
    assert talk.attached is None


@BOTH
@pytest.mark.parametrize("is_here", [True, False])
def test_a_second_connect_ends_the_connection(version: int, is_here: bool) -> None:
    """[MQTT-3.1.0-2]: it is a protocol error."""
    talk = Conversation(version).connect()
    if is_here:
        talk.welcome()
    talk.waiting.append(Connect(version=version, client_id="c"))
    if not is_here:
        talk.welcome()
    talk.go_on()
    talk.ends_with(R.PROTOCOL_ERROR if version == V5 else None)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x10\x0d" + HEAD + b"\x03\0\0\0\0\0", R.MALFORMED_PACKET),  # the reserved flag
        (b"\x10\x0d" + b"\0\x04MQTT\x06" + b"\x02\0\0\0\0\0", R.UNSUPPORTED_PROTOCOL_VERSION),
        (b"\x10\x0d" + b"\0\x04MQTT\x03" + b"\x02\0\0\0\0\0", 1),
        (b"\x10\x0d" + b"\0\x04MQTX\x05" + b"\x02\0\0\0\0\0", None),
    ],
)
def test_a_connect_that_is_not_in_order_is_refused_in_the_words_of_its_version(
    data: bytes, code: int | None
) -> None:
    """[MQTT-3.1.4-1] [MQTT-3.2.2-7] [MQTT-3.1.2-1] [MQTT-3.1.2-2]; 3.1.1 [MQTT-3.1.2-2]."""
    version = V3 if code == 1 else V5
    talk = Conversation(version)
    talk.says_bytes(data)
    assert talk.finished
    assert [one.code for one in talk.hears() if isinstance(one, ConnAck)] == ([] if code is None else [code])


def test_the_node_is_told_who_logs_in() -> None:
    talk = Conversation().connect(client_id="sensor/1", username="alice", password=b"caf\xc3\xa9")
    login = talk.node.login
    assert (login.client_name, login.username, login.password) == ("sensor/1", "alice", "caf\u00e9")
    assert (login.address, login.certificate, login.sdk) == ("192.0.2.1", None, "mqtt 5")
    assert login.takes_over
    assert login.password_may_be_token


@BOTH
@pytest.mark.parametrize("username", [None, ""])
def test_who_gives_no_username_is_the_default_one(version: int, username: str | None) -> None:
    """3.1.2.8: the username flag may be 0; some libraries send an empty username instead."""
    talk = Conversation(version).connect(username=username)
    assert (talk.node.login.username, talk.node.login.password) == ("default", None)


def test_5_0_may_give_a_password_without_a_username() -> None:
    """Section 3.1.2.9: it allows a password without a username, 3.1.1 does not."""
    talk = Conversation().connect(password=b"token")
    assert (talk.node.login.username, talk.node.login.password) == ("default", "token")


@BOTH
def test_a_password_that_is_no_text_is_refused(version: int) -> None:
    """Section 3.1.3.6 lets it be binary; the node has none that is."""
    talk = Conversation(version).connect(username="alice", password=b"\xff")
    assert talk.attached is None
    talk.ends_with(R.BAD_USER_NAME_OR_PASSWORD if version == V5 else 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("username", ["#gateway", "#link", "#bridge", "x" * 190])
def test_a_username_that_no_client_has_is_refused_before_the_node_is_asked(username: str) -> None:
    talk = Conversation().connect(username=username, password=b"x")
    assert talk.attached is None
    talk.ends_with(R.BAD_USER_NAME_OR_PASSWORD)


@pytest.mark.parametrize(
    ("code", "in_5_0", "in_3_1_1"),
    [
        (errors.UNAUTHORIZED, R.BAD_USER_NAME_OR_PASSWORD, 4),
        (errors.CLIENT_CONNECT_DENIED, R.NOT_AUTHORIZED, 5),
        (errors.INVALID_CLIENT_NAME, R.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (errors.CLIENT_NAME_IN_USE, R.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (errors.VPN_UNAVAILABLE, R.SERVER_UNAVAILABLE, 3),
        (errors.SHUTTING_DOWN, R.SERVER_UNAVAILABLE, 3),
        (errors.TOO_MANY_CLIENTS, R.QUOTA_EXCEEDED, 3),
        (errors.CONNECT_RATE_EXCEEDED, R.CONNECTION_RATE_EXCEEDED, 3),
        (errors.INTERNAL, R.IMPLEMENTATION_SPECIFIC_ERROR, None),
    ],
)
def test_who_is_not_let_in_is_told_why_and_closed(
    code: int, in_5_0: ReasonCode, in_3_1_1: int | None
) -> None:
    """[MQTT-3.2.2-7] [MQTT-3.2.2-6]; 3.1.1 [MQTT-3.2.2-5], and without a CONNACK if no code fits: [MQTT-3.2.2-6]."""
    for version, expected in ((V5, in_5_0), (V3, in_3_1_1)):
        talk = Conversation(version).connect()
        talk.node_refuses(code)
        talk.ends_with(expected)  # type: ignore[arg-type]


def test_a_client_is_in_the_message_vpn_that_its_token_names() -> None:
    """The carrier has shown the token there; who came to one listener may be in several Message VPNs."""
    talk = Conversation().connect(username="alice", password=b"token")
    talk.node.vpn = "sales"
    talk.welcome()
    assert talk.client.vpn == "sales"


@BOTH
def test_nothing_is_done_of_what_a_refused_client_sent_behind_its_connect(version: int) -> None:
    """[MQTT-3.1.4-6]; 3.1.1 [MQTT-3.1.4-5]."""
    talk = Conversation(version).connect()
    talk.says(Publish("t", b"x"), PingReq())
    talk.node_refuses(errors.UNAUTHORIZED)
    assert talk.node.published == []
    assert [type(one) for one in talk.hears()] == [ConnAck]
    assert talk.says(PingReq()) == [True]
    assert talk.hears() == []


@BOTH
def test_packets_may_be_sent_behind_a_connect_at_once_and_are_done_in_their_order(version: int) -> None:
    """Section 3.1.4: clients need not wait for the CONNACK."""
    talk = Conversation(version).connect()
    assert talk.says(Publish("a", b"1"), PingReq(), Publish("b", b"2")) == [False, False, False]
    assert talk.node.published == []
    talk.welcome()
    assert [row[0] for row in talk.node.published] == ["a", "b"]
    assert talk.hears() == [PingResp()]


def test_they_wait_for_room_as_well_if_there_is_none_then() -> None:
    talk = Conversation().connect()
    talk.says(Publish("a", b"1"), Publish("a", b"2"))
    talk.node.is_full = True
    talk.welcome()
    assert talk.says(Publish("a", b"3")) == [False]
    assert talk.is_paused
    assert talk.awaited == 0
    talk.finds_room()
    assert [row[4] for row in talk.node.published] == [b"1", b"2", b"3"]
    assert not talk.is_paused


@BOTH
def test_a_client_without_an_identifier_is_given_one(version: int) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]; 3.1.1 [MQTT-3.1.3-6], which does not say it."""
    talk = Conversation(version).connect(client_id="")
    assert talk.node.login.client_name == ""
    answer = talk.welcome("n/default/7")
    expected = "n/default/7" if version == V5 else None
    assert answer.properties.assigned_client_identifier == expected
    assert talk.client.name == "n/default/7"


def test_a_client_with_an_identifier_is_given_no_other() -> None:
    assert Conversation().connect(client_id="x").welcome("x").properties.assigned_client_identifier is None


def test_5_0_is_told_what_is_granted() -> None:
    """[MQTT-3.2.2-9] and sections 3.2.2.3.3 to 3.2.2.3.13."""
    settings = Settings(packet_bytes_max=5_000, receive_max=7, topic_alias_max=9)
    assert Conversation(settings=settings).connect().welcome().properties == Properties(
        receive_maximum=7,
        maximum_packet_size=5_000,
        topic_alias_maximum=9,
    )


def test_what_is_built_later_is_said_by_leaving_it_out() -> None:
    """A property that would say what holds without it is none."""
    can = Capabilities(qos_max=2, retain=True, wills=True, sessions=True)
    talk = Conversation(settings=Settings(capabilities=can))
    talk.connect(properties=Properties(session_expiry_interval=60))
    told = talk.welcome().properties
    assert (told.maximum_qos, told.retain_available, told.session_expiry_interval) == (None, None, None)
    no_retain = Conversation(settings=Settings(capabilities=Capabilities(retain=False))).connect().welcome()
    assert no_retain.properties.retain_available == 0
    one = Conversation(settings=Settings(capabilities=Capabilities(qos_max=0))).connect().welcome()
    assert one.properties.maximum_qos == 0


def test_3_1_1_is_told_nothing_more() -> None:
    assert Conversation(V3).connect().welcome() == ConnAck(0, session_present=False, properties=NONE)


@pytest.mark.parametrize(
    ("asked", "told"), [(None, None), (0, None), (60, None), (101, 100), (0xFFFF_FFFF, 100)]
)
def test_a_client_is_told_for_how_long_its_session_is_kept_if_that_is_shorter(
    asked: int | None, told: int | None
) -> None:
    """Section 3.2.2.3.2: the server says so if it uses another value than the client asked for."""
    settings = Settings(session_expiry_max_s=100)
    talk = Conversation(settings=settings).connect(properties=Properties(session_expiry_interval=asked))
    assert talk.welcome().properties.session_expiry_interval == told


def test_where_sessions_are_kept_they_are_for_as_long_as_is_configured() -> None:
    settings = Settings(session_expiry_max_s=100, capabilities=Capabilities(sessions=True))
    talk = Conversation(settings=settings).connect(properties=Properties(session_expiry_interval=1_000))
    assert talk.welcome().properties.session_expiry_interval == 100


def test_the_largest_packet_is_not_above_the_largest_message_of_the_client() -> None:
    talk = Conversation().connect()
    talk.node.message_bytes_max = 1_000
    assert talk.welcome().properties.maximum_packet_size == 1_000


def test_who_may_not_share_is_told_that_nothing_is_shared() -> None:
    """Section 3.2.2.3.13."""
    rights = RIGHTS.__class__(
        **{name: getattr(RIGHTS, name) for name in RIGHTS.__struct_fields__} | {"may_share": False}
    )
    assert Conversation().connect().welcome(rights=rights).properties.shared_subscription_available == 0


@pytest.mark.parametrize(("asked", "told"), [(None, None), (0, None), (1, "$P2P/INB/n/0123456789ab")])
def test_the_topic_for_responses_is_told_to_who_asks_for_it(asked: int | None, told: str | None) -> None:
    """[MQTT-3.1.2-28]."""
    talk = Conversation().connect(properties=Properties(request_response_information=asked))
    assert talk.welcome().properties.response_information == told


@pytest.mark.parametrize(
    ("asked", "longest", "told", "holds"),
    [
        (60, 0, None, 60),
        (0, 0, None, 0),
        (60, 100, None, 60),
        (100, 100, None, 100),
        (200, 100, 100, 100),
        (0, 100, 100, 100),
    ],
)
def test_a_keep_alive_that_is_too_long_is_replaced_and_told(
    asked: int, longest: int, told: int | None, holds: int
) -> None:
    """[MQTT-3.2.2-21] [MQTT-3.2.2-22]."""
    talk = Conversation(settings=Settings(keepalive_max_s=longest)).connect(keep_alive=asked)
    assert talk.welcome().properties.server_keep_alive == told
    assert talk.client.terms.keep_alive_s == holds


def test_3_1_1_keeps_its_own_keep_alive_because_it_cannot_be_told_another() -> None:
    """3.1.1 [MQTT-3.1.2-24]."""
    talk = Conversation(V3, Settings(keepalive_max_s=100)).here(keep_alive=200)
    assert talk.client.terms.keep_alive_s == 200


def test_an_authentication_method_is_refused() -> None:
    """[MQTT-4.12.0-1]."""
    talk = Conversation().connect(properties=Properties(authentication_method="SCRAM-SHA-1"))
    assert talk.attached is None
    talk.ends_with(R.BAD_AUTHENTICATION_METHOD)


def test_auth_of_who_named_no_method_ends_the_connection() -> None:
    """[MQTT-4.12.0-7]."""
    talk = Conversation().here()
    talk.says(Auth(0x19, Properties(authentication_method="SCRAM-SHA-1")))
    talk.ends_with(R.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("will", "can", "code"),
    [
        (Will("t", b""), Capabilities(wills=False), R.IMPLEMENTATION_SPECIFIC_ERROR),
        (Will("t/" * 126, b""), Capabilities(), R.TOPIC_NAME_INVALID),
        (Will("t", b"", qos=1), Capabilities(qos_max=0), R.QOS_NOT_SUPPORTED),
        (Will("t", b"", retain=True), Capabilities(retain=False), R.RETAIN_NOT_SUPPORTED),
        (Will("t", b"", qos=2), Capabilities(qos_max=1), R.QOS_NOT_SUPPORTED),
    ],
)
def test_a_will_that_cannot_be_published_is_refused(will: Will, can: Capabilities, code: ReasonCode) -> None:
    """[MQTT-3.2.2-12] [MQTT-3.2.2-13]."""
    talk = Conversation(settings=Settings(capabilities=can)).connect(will=will)
    assert talk.attached is None
    talk.ends_with(code)


def test_a_will_of_3_1_1_is_refused_by_the_end_because_no_return_code_says_it() -> None:
    """3.1.1 [MQTT-3.2.2-6]."""
    talk = Conversation(V3).connect(will=Will("t/" * 126, b""))
    talk.ends_with(None)


def test_a_reason_is_told_in_words_to_who_wants_words() -> None:
    """[MQTT-3.1.2-29] lets a CONNACK have words in any case; who wants none is told none."""
    for wants, is_told in ((None, True), (1, True), (0, False)):
        talk = Conversation().connect(properties=Properties(request_problem_information=wants))
        talk.node_refuses(errors.TOO_MANY_CLIENTS, "of this\0 kind")
        told = talk.hears_one().properties.reason_string
        assert (told is not None) == is_told
        assert not is_told or "of this kind" in told


def test_words_are_left_out_where_the_packet_would_be_too_large() -> None:
    """[MQTT-3.2.2-19] [MQTT-3.1.2-24]."""
    talk = Conversation().connect(properties=Properties(maximum_packet_size=30))
    talk.node_refuses(errors.TOO_MANY_CLIENTS)
    talk.ends_with(R.QUOTA_EXCEEDED)


def test_a_client_that_takes_no_connack_is_refused() -> None:
    """[MQTT-3.1.2-24] leaves nothing else."""
    talk = Conversation().connect(client_id="", properties=Properties(maximum_packet_size=20))
    assert talk.welcome("a name of more than twenty bytes").code == R.PACKET_TOO_LARGE
    assert talk.finished
    assert not talk.is_admitted


@BOTH
def test_a_connection_that_is_lost_during_its_login_leaves_nothing_at_the_node(version: int) -> None:
    talk = Conversation(version).connect()
    talk.client.lost("the connection was closed", talk.now)
    assert talk.node.is_over
    assert talk.finished is None


def test_a_client_that_disconnects_during_its_login_does_so_when_it_is_here() -> None:
    talk = Conversation().connect()
    talk.says(Publish("t", b"x"), Disconnect())
    talk.welcome()
    talk.ends_with(None)
    assert len(talk.node.published) == 1


def test_a_fault_behind_a_connect_is_told_behind_the_connack() -> None:
    """[MQTT-3.14.0-1]."""
    talk = Conversation().connect()
    talk.says(Subscribe(1, (Subscription("a"),)))
    talk.says_bytes(b"\xc0\x01x")
    assert talk.finished is None
    talk.welcome()
    talk.ends_with(R.MALFORMED_PACKET)
