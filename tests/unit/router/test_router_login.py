"""HELLO: who may connect, under which name, and what a changed object means for who is here."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from angarium import errors, wire
from cluster.security.passwords import hash_password
from router.access.failed_logins import ADDRESSES_MAX, NAMES_MAX
from router.access.handshake import DummyLogin
from router.router import SWEEP_INTERVAL_S
from router.sessions.hello import Hello
from tests.garbage import uncollected
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

SECRET = hash_password("right")
#: A username that may come from other hosts.
EVERYWHERE = snapshot(("username", "default", "bob", {"password": SECRET}))


def _refused(node: WiredNode, *, address: str = "127.0.0.1", **hello: Any) -> int | None:
    client = node.connection(address)
    client.send(wire.HELLO, {"version": 1, **hello})
    return client.closed_with()


def _login(node: WiredNode, address: str, **hello: Any) -> int | None:
    return _refused(node, address=address, username="bob", password="right", **hello)


def _told(node: WiredNode) -> list[dict[str, Any]]:
    return [event for event in node.events if event["event"] == "SYSTEM_CLIENT_LOGIN_REFUSED"]


@pytest.fixture
def guarded(make_node: Any) -> WiredNode:
    rows = snapshot(
        ("username", "default", "bob", {"password": SECRET}),
        ("username", "default", "off", {"enabled": False}),
        ("vpn", "", "closed", {"enabled": False}),
        ("username", "closed", "open", {}),
        ("username", "closed", "bob", {"password": SECRET}),
        ("vpn", "", "small", {"max_connection_count": 2}),
        ("username", "small", "default", {}),
        ("profile", "default", "once", {"max_connection_count_per_client_username": 1}),
        ("username", "default", "once", {"client_profile": "once"}),
        (
            "acl",
            "default",
            "office",
            {"client_connect_default": "disallow", "client_connect_exceptions": ["10.1.0.0/16"]},
        ),
        ("username", "default", "office", {"acl_profile": "office", "password": SECRET}),
    )
    made = make_node(1, rows)
    assert isinstance(made, WiredNode)
    return made


def test_a_password_is_compared_with_its_scrypt_hash(guarded: WiredNode) -> None:
    assert guarded.client(username="bob", password="right")
    assert _refused(guarded, username="bob", password="wrong") == errors.UNAUTHORIZED
    assert _refused(guarded, username="bob") == errors.UNAUTHORIZED
    assert guarded.router.stats()["errors"] == {str(errors.UNAUTHORIZED): 2}


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [("bob", "right", None), ("bob", "wrong", errors.UNAUTHORIZED), ("nobody", "wrong", errors.UNAUTHORIZED)],
)
def test_logins_with_one_password_share_its_comparison_and_no_more(
    guarded: WiredNode, monkeypatch: pytest.MonkeyPatch, username: str, password: str, code: int | None
) -> None:
    """A service starts forty clients at once; nobody learns by it whether a username exists."""
    held: list[Any] = []
    verified = guarded.router.handshake.password_verified
    monkeypatch.setattr(
        guarded.router.handshake, "password_verified", lambda *call, **value: held.append((call, value))
    )
    logins = [guarded.connection() for _ in range(40)]
    for login in logins:
        login.send(wire.HELLO, {"version": 1, "username": username, "password": password})
    other = guarded.connection()
    other.send(wire.HELLO, {"version": 1, "username": username, "password": "other"})
    assert len(held) == 1, "one at a time"
    assert all(not login.received for login in logins)
    ((ticket, now), value) = held.pop()
    verified(ticket, now, **value)
    guarded.settle()
    if code is None:
        assert all(login.take()[0] == wire.WELCOME for login in logins)
    else:
        assert [login.closed_with() for login in logins] == [code] * 40
    ((ticket, now), value) = held.pop()
    assert not other.received
    verified(ticket, now, **value)
    guarded.settle()
    assert other.closed_with() == errors.UNAUTHORIZED
    assert guarded.router.stats()["password_checks"] == 2


def test_an_unknown_username_is_refused_like_a_wrong_password(guarded: WiredNode) -> None:
    assert _refused(guarded, username="nobody", password="x") == errors.UNAUTHORIZED


@pytest.mark.parametrize("password", ["x", None])
def test_nothing_is_left_of_a_login_as_an_unknown_username(guarded: WiredNode, password: str | None) -> None:
    with uncollected():
        assert _refused(guarded, username="nobody", password=password) == errors.UNAUTHORIZED
        assert not [one for one in gc.get_objects() if isinstance(one, Hello | DummyLogin)]


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"vpn": "closed", "username": "open"}, errors.VPN_UNAVAILABLE),
        ({"version": 2}, errors.UNSUPPORTED_VERSION),
        ({"client_name": "x" * 161}, errors.INVALID_CLIENT_NAME),
        ({"client_name": "a\0b"}, errors.INVALID_CLIENT_NAME),
        ({"local_priority": 5}, errors.MALFORMED_FRAME),
        ({"credit": [-1, 0]}, errors.MALFORMED_FRAME),
        ({"username": 7}, errors.MALFORMED_FRAME),
    ],
)
def test_a_login_that_cannot_be_says_why(guarded: WiredNode, hello: dict[str, Any], code: int) -> None:
    assert _refused(guarded, **hello) == code


@pytest.mark.requirement("R284")
@pytest.mark.parametrize(
    ("address", "hello", "reason"),
    [
        ("127.0.0.1", {"username": "nobody"}, "no such username"),
        ("127.0.0.1", {"username": "bob"}, "wrong password"),
        ("127.0.0.1", {"username": "off"}, "error 40310"),
        ("127.0.0.1", {"vpn": "nowhere"}, "error 40309"),
        ("127.0.0.1", {"vpn": "closed", "username": "bob"}, "wrong password"),
        ("10.2.2.3", {"username": "office"}, "error 40301"),
        ("10.2.2.3", {"username": "default"}, "for this host only"),
    ],
)
def test_every_refused_login_gets_one_answer_and_the_event_says_why(
    guarded: WiredNode, address: str, hello: dict[str, Any], reason: str
) -> None:
    answers = []
    for more in ({"password": "guess"}, {"password": "guess", "token": b"x" * 40}):
        client = guarded.connection(address)
        client.send(wire.HELLO, {"version": 1, **hello, **more})
        answers.append(client.take())
        client = guarded.connection("127.0.0.77")
        client.send(wire.HELLO, {"version": 1, "username": "nobody", "password": "guess"})
        answers.append(client.take())
    assert answers == [(wire.CLOSED, [errors.UNAUTHORIZED, ""])] * 4
    told = next(event for event in _told(guarded) if event["address"] == address)
    assert reason in told["text"]
    assert told["severity"] == "warning"
    assert "guess" not in str(_told(guarded))


@pytest.mark.requirement("R284")
def test_who_guesses_is_one_event_a_minute_with_count_and_a_few_names(guarded: WiredNode) -> None:
    for number in range(40):
        _refused(guarded, address="192.0.2.7", username=f"user-{number}", password="guess")
        guarded.advance(1)  # it has to wait more and more
    assert [event["count"] for event in _told(guarded)] == [1]
    guarded.advance(61)
    first, then = _told(guarded)
    assert (first["address"], then["address"]) == ("192.0.2.7", "192.0.2.7")
    assert then["count"] == 39
    assert then["usernames"] == [f"user-{number}" for number in range(1, 6)]
    guarded.advance(200)
    assert len(_told(guarded)) == 2
    _refused(guarded, address="192.0.2.7", username="again", password="guess")
    assert [event["count"] for event in _told(guarded)] == [1, 39, 1]


def test_a_reason_that_is_new_for_an_address_is_told_at_once(guarded: WiredNode) -> None:
    """Who mends one thing after the other sees what is wrong next."""
    for wrong in ({"username": "off"}, {"username": "off"}, {"username": "bob"}, {"username": "nobody"}):
        _refused(guarded, address="127.0.0.7", **wrong)
        guarded.advance(1)
    told = [event["text"].partition("; ")[2] for event in _told(guarded)]
    assert [("40310" in one, "no password" in one, "no such username" in one) for one in told] == [
        (True, False, False),
        (True, True, False),
        (False, False, True),
    ]
    assert [event["count"] for event in _told(guarded)] == [1, 2, 1]
    for number in range(30):
        _refused(guarded, address="127.0.0.7", username="off", vpn=f"vpn-{number}")
    assert len(_told(guarded)) <= 3 + NAMES_MAX
    guarded.advance(61)
    assert sum(event["count"] for event in _told(guarded)) == 34


@pytest.mark.requirement("R284")
def test_very_many_addresses_that_guess_are_told_together(make_node: Any) -> None:
    node = make_node(1)
    for number in range(ADDRESSES_MAX + 50):
        _refused(node, address=f"2001:db8:0:{number:x}::1", username="nobody")
    assert len(_told(node)) == ADDRESSES_MAX + 1
    node.advance(61)
    assert (_told(node)[-1]["address"], _told(node)[-1]["count"]) == ("other addresses", 49)


def test_limits_and_a_disabled_vpn_are_told_only_to_who_has_the_password(guarded: WiredNode) -> None:
    assert _refused(guarded, vpn="closed", username="bob", password="right") == errors.VPN_UNAVAILABLE
    assert _refused(guarded, vpn="closed", username="bob", password="wrong") == errors.UNAUTHORIZED


def test_a_username_without_password_is_for_this_host_only(guarded: WiredNode) -> None:
    assert _refused(guarded, address="192.0.2.7") == errors.UNAUTHORIZED
    assert guarded.client(address="192.0.2.7", username="bob", password="right")
    assert guarded.client(address="::1")


def test_the_acl_decides_over_addresses(guarded: WiredNode) -> None:
    assert guarded.client(address="10.1.2.3", username="office", password="right")
    assert _refused(guarded, address="10.2.2.3", username="office", password="right") == errors.UNAUTHORIZED


def test_connection_limits_of_vpn_and_profile_hold(guarded: WiredNode) -> None:
    first = guarded.client(vpn="small")
    guarded.client(vpn="small")
    assert _refused(guarded, vpn="small") == errors.TOO_MANY_CLIENTS
    first.send(wire.BYE, [])
    guarded.client(vpn="small")
    guarded.client(username="once")
    assert _refused(guarded, username="once") == errors.TOO_MANY_CONNECTIONS


def test_a_client_name_is_used_once_at_a_time(guarded: WiredNode) -> None:
    first = guarded.client(client_name="app")
    assert _refused(guarded, client_name="app") == errors.CLIENT_NAME_IN_USE
    guarded.client(client_name="app", vpn="small")
    first.send(wire.BYE, [])
    guarded.client(client_name="app")


def test_a_flood_of_connects_from_one_address_is_refused_and_others_connect(make_node: Any) -> None:
    node = make_node(1, EVERYWHERE, connects_per_second=10, connect_burst=20)
    for _ in range(20):
        assert _login(node, address="10.0.0.9") is None
    assert _login(node, address="10.0.0.9") == errors.CONNECT_RATE_EXCEEDED
    assert _login(node, address="10.0.0.8") is None
    node.advance(1)
    assert _login(node, address="10.0.0.9") is None


@pytest.mark.requirement("R230")
@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.4.5.6", "::1", "::ffff:127.0.0.1"])
def test_connects_of_this_host_have_no_rate(make_node: Any, address: str) -> None:
    node = make_node(1, EVERYWHERE, connects_per_second=1, connect_burst=2)
    for _ in range(50):
        assert _login(node, address=address) is None


@pytest.mark.requirement("R230")
def test_connects_have_no_rate_that_no_operator_has_set(make_node: Any) -> None:
    node = make_node(1, EVERYWHERE, connect_burst=5)
    for _ in range(50):
        assert _login(node, address="10.0.0.9") is None


@pytest.mark.requirement("R230")
def test_who_resumes_does_not_count_as_a_connect_and_needs_no_password(make_node: Any) -> None:
    """After a restart of the router all clients of a host come back at once."""
    node = make_node(1, EVERYWHERE, connects_per_second=1, connect_burst=10)
    tokens = {}
    for number in range(10):
        client = node.connection(address="10.0.0.9")
        welcome = client.hello(client_name=f"app-{number}", username="bob", password="right")
        tokens[number] = welcome["token"]
    checks = node.router.stats()["password_checks"]
    assert checks >= 1
    for number, token in tokens.items():
        client = node.connection(address="10.0.0.9")
        assert client.hello(client_name=f"app-{number}", username="bob", token=token)["resumed"]
    assert node.router.stats()["password_checks"] == checks
    assert _login(node, address="10.0.0.9", token=b"x" * 40) == errors.CONNECT_RATE_EXCEEDED


@pytest.mark.requirement("R231")
def test_a_node_that_is_full_tells_nobody_which_usernames_exist(make_node: Any) -> None:
    rows = snapshot(
        ("username", "default", "bob", {"password": SECRET}),
        ("username", "default", "off", {"enabled": False}),
        ("username", "default", "open", {}),
    )
    node = make_node(1, rows, max_connections=1)
    client = node.client()
    for username in ("bob", "off", "open", "nobody"):
        for said in ({}, {"password": "wrong"}):
            code = _refused(node, address="10.0.0.9", username=username, **said)
            assert code == errors.TOO_MANY_CLIENTS, username
    client.send(wire.BYE, [])
    assert _refused(node, username="nobody") == errors.UNAUTHORIZED


def test_a_token_renews_authentication_and_name_within_the_resume_time(guarded: WiredNode) -> None:
    first = guarded.connection()
    welcome = first.hello(username="bob", password="right", client_name="app")
    first.send(wire.BYE, [])
    guarded.advance(50)
    again = guarded.connection()
    resumed = again.hello(username="bob", token=welcome["token"], client_name="app")
    assert resumed["resumed"]
    assert resumed["client_name"] == "app"
    again.send(wire.BYE, [])
    guarded.advance(61)
    assert _refused(guarded, username="bob", token=welcome["token"], client_name="app") == errors.UNAUTHORIZED


def test_a_resumed_session_replaces_one_whose_loss_was_not_noticed(guarded: WiredNode) -> None:
    first = guarded.connection()
    welcome = first.hello(client_name="app")
    first.subscribe("a")
    second = guarded.connection()
    second.hello(client_name="app", token=welcome["token"])
    assert first.closed_with() == errors.KEEPALIVE_TIMEOUT
    assert list(guarded.router.operators.subscriptions(None, "app")) == []


@pytest.mark.parametrize(
    "change", [{"password": hash_password("new")}, {"password": SECRET, "enabled": False}]
)
def test_a_changed_or_disabled_username_voids_the_token(guarded: WiredNode, change: dict[str, Any]) -> None:
    from cluster import objects

    first = guarded.connection()
    welcome = first.hello(username="bob", password="right", client_name="app")
    first.send(wire.BYE, [])
    guarded.router.operators.put_object(
        "username", "default", "bob", objects.complete("username", change), guarded.now
    )
    assert _refused(guarded, username="bob", token=welcome["token"], client_name="app") == errors.UNAUTHORIZED


def test_a_token_is_of_one_session_and_an_old_one_throws_nobody_out(guarded: WiredNode) -> None:
    """A name that is connected, again and again: only the token of its newest session is good."""
    first = guarded.connection().hello(username="bob", password="right", client_name="app")
    second = guarded.connection()
    welcome = second.hello(username="bob", token=first["token"], client_name="app")
    assert welcome["token"] != first["token"]
    second.subscribe("a")
    guarded.advance(1)
    second.send(wire.PONG, [1])
    old = {"username": "bob", "client_name": "app", "token": first["token"]}
    assert _refused(guarded, **old) == errors.UNAUTHORIZED
    assert _refused(guarded, **old, password="right") == errors.CLIENT_NAME_IN_USE
    assert second.closed_with() is None
    second.send(wire.BYE, [])
    assert _refused(guarded, **old) == errors.UNAUTHORIZED
    assert guarded.connection().hello(**{**old, "token": welcome["token"]})["resumed"]


def test_who_has_not_got_its_new_token_comes_back_with_the_one_before(guarded: WiredNode) -> None:
    """The connection is lost with the WELCOME: nothing came from the new session yet."""
    welcome = guarded.connection().hello(username="bob", password="right", client_name="app")
    hello = {"username": "bob", "client_name": "app", "token": welcome["token"]}
    guarded.advance(1)
    guarded.connection().hello(**hello)
    assert guarded.connection().hello(**hello)["resumed"]


def test_a_forged_token_is_refused(guarded: WiredNode) -> None:
    welcome = guarded.connection().hello(username="bob", password="right", client_name="app")
    forged = bytes([welcome["token"][0] ^ 1]) + welcome["token"][1:]
    for token in (forged, b"", b"x" * 16, b"\xff" * 900):
        assert _refused(guarded, username="bob", token=token, client_name="app") == errors.UNAUTHORIZED


def test_every_client_has_an_inbox_that_no_other_may_subscribe_to(guarded: WiredNode) -> None:
    one, two = guarded.connection(), guarded.connection()
    inbox = one.hello()["inbox"]
    assert inbox != two.hello()["inbox"]
    assert two.subscribe(inbox)[0][0] == errors.RESERVED_TOPIC
    assert two.subscribe("#P2P/INB/>")[0][0] == errors.RESERVED_TOPIC
    assert two.subscribe("#P2P/>")[0][0] == errors.RESERVED_TOPIC
    assert one.subscribe(inbox) == [None]


def _put(node: WiredNode, kind: str, name: str, **attributes: Any) -> None:
    from cluster import objects

    node.router.operators.put_object(kind, "default", name, objects.complete(kind, attributes), node.now)
    node.settle()


def test_shutting_a_username_ends_its_sessions(node: WiredNode) -> None:
    client = node.client()
    _put(node, "username", "default", enabled=False)
    assert client.closed_with() == errors.USERNAME_SHUTDOWN


@pytest.mark.requirement("R57")
def test_an_acl_that_changes_is_in_force_for_the_next_message_and_subscription(node: WiredNode) -> None:
    client: FakeClient = node.client()
    client.subscribe(">")
    _put(
        node,
        "acl",
        "default",
        client_connect_default="allow",
        publish_topic_default="allow",
        publish_topic_exceptions=["secret/>"],
        subscribe_topic_default="allow",
        subscribe_topic_exceptions=["secret/>"],
    )
    client.publish(("secret/1", b"no"), ("open", b"yes"))
    assert client.payloads() == [b"yes"]
    assert client.notices() == [[errors.PUBLISH_DENIED, "secret/1", 1, 1]]
    assert client.subscribe("secret/2")[0][0] == errors.SUBSCRIBE_DENIED
    assert client.subscribe("*/2")[0][0] == errors.SUBSCRIBE_DENIED
    assert client.subscribe("open/2") == [None]
    _put(node, "acl", "default", client_connect_default="allow", publish_topic_default="allow")
    client.publish(("secret/1", b"yes"))
    assert client.payloads() == [b"yes"]
    assert node.router.shards.rules == {}


def test_exceptions_may_hold_the_username(make_node: Any) -> None:
    rows = snapshot(
        (
            "acl",
            "default",
            "own",
            {
                "client_connect_default": "allow",
                "publish_topic_exceptions": ["from/$client-username/>"],
                "subscribe_topic_exceptions": ["to/$client-username"],
            },
        ),
        ("username", "default", "ann", {"acl_profile": "own"}),
        ("username", "default", "eve", {"acl_profile": "own"}),
    )
    node = make_node(1, rows)
    everybody, ann, eve = node.client(), node.client(username="ann"), node.client(username="eve")
    everybody.subscribe("from/>")
    ann.publish(("from/ann/1", b"1"), ("from/eve/1", b"2"))
    eve.publish(("from/ann/1", b"3"), ("from/eve/1", b"4"))
    assert everybody.payloads() == [b"1", b"4"]
    assert len(ann.notices()) == len(eve.notices()) == 1
    assert ann.subscribe("to/ann", "to/eve")[0] is None
    assert eve.subscribe("to/ann")[0][0] == errors.SUBSCRIBE_DENIED


def test_share_names_have_a_list_of_their_own(make_node: Any) -> None:
    rows = snapshot(
        (
            "acl",
            "default",
            "shares",
            {
                "client_connect_default": "allow",
                "subscribe_topic_default": "allow",
                "subscribe_share_name_default": "disallow",
                "subscribe_share_name_exceptions": ["team*"],
            },
        ),
        ("username", "default", "ann", {"acl_profile": "shares"}),
    )
    ann = make_node(1, rows).client(username="ann")
    assert ann.subscribe("#share/team1/a") == [None]
    assert ann.subscribe("#share/other/a")[0][0] == errors.SHARE_NAME_DENIED


def test_subscription_limits_of_profile_and_vpn_hold(make_node: Any) -> None:
    rows = snapshot(
        ("profile", "default", "few", {"max_subscription_count": 2}),
        ("username", "default", "few", {"client_profile": "few"}),
    )
    node = make_node(1, rows)
    client = node.client(username="few")
    answers = client.subscribe("a", "b", "c")
    assert answers[:2] == [None, None]
    assert answers[2][0] == errors.MAX_SUBSCRIPTIONS_EXCEEDED
    assert client.subscribe("a") == [None]
    client.unsubscribe("a")
    assert client.subscribe("c") == [None]


@pytest.mark.parametrize(
    "text", ["", "a" * 251, "/".join("a" * 129), "a\0b", "#share/g", "#share/g/", "#share", "#noexport/"]
)
def test_a_filter_that_cannot_be_is_refused(node: WiredNode, text: str) -> None:
    code = node.client().subscribe(text)[0]
    assert code is None or code[0] in (errors.INVALID_FILTER, errors.INVALID_SHARE_NAME)
    if text not in ("#share",):
        assert code is not None


def test_a_client_at_its_limit_resumes_in_place_of_its_own_dead_session(guarded: WiredNode) -> None:
    welcome = guarded.connection().hello(username="once", client_name="app")
    resumed = guarded.connection().hello(username="once", client_name="app", token=welcome["token"])
    assert resumed["resumed"]
    assert _refused(guarded, username="once") == errors.TOO_MANY_CONNECTIONS


def test_a_token_does_not_take_a_name_from_another_username(guarded: WiredNode) -> None:
    first = guarded.connection()
    welcome = first.hello(client_name="app")
    first.send(wire.BYE, [])
    other = guarded.client(username="bob", password="right", client_name="app")
    assert _refused(guarded, client_name="app", token=welcome["token"]) == errors.CLIENT_NAME_IN_USE
    assert other.closed_with() is None


def test_nothing_of_a_client_stays_when_it_may_not_resume_any_more(node: WiredNode) -> None:
    """Nobody else comes or goes meanwhile."""
    authenticator = node.router.handshake._authenticator
    for number in range(3):
        node.client(client_name=f"c{number}").send(wire.BYE, [])
    assert len(authenticator._left) == 3
    node.advance(node.router.config.resume_ms / 1000 + 2 * SWEEP_INTERVAL_S)
    assert not authenticator._left
