"""Gateways at the router: who may come, whose clients may be attached, and as whom."""

from __future__ import annotations

import time
from typing import Any

import pytest

from angarium import errors, wire
from angarium_server.connections.tls import Certificate
from angarium_server.tokens.config import TokenIssuer
from angarium_server.tokens.keys import load_rows, read_document
from cluster import objects
from cluster.security import passwords
from router.access.issuers import Issuers
from tests.token_issuer import AUDIENCE, ISSUER, TokenMaker, handmade
from tests.unit.router.publish_rig import request
from tests.unit.router.wired_gateway import IDENTITY, NEAR, FakeAttached, FakeGateway, says
from tests.unit.router.wired_node import WiredNode, snapshot

FAR = "10.9.9.9"
STORED = passwords.hash_password("right")
BRIDGE = {"name": "b", "vpn": "default", "node": "n", "node_id": "id-n", "incarnation": 1}
ROWS = snapshot(
    ("vpn", "", "sales", {}),
    (
        "acl",
        "default",
        "near",
        {"client_connect_default": "disallow", "client_connect_exceptions": ["10.1.0.0/16"]},
    ),
    ("profile", "default", "two", {"max_connection_count_per_client_username": 2}),
    ("username", "default", "default", {}),
    ("username", "sales", "default", {}),
    ("username", "default", "alice", {"password": STORED}),
    ("username", "default", "near", {"password": STORED, "acl_profile": "near"}),
    ("username", "default", "two", {"client_profile": "two"}),
)


@pytest.fixture
def node() -> Any:
    made = WiredNode(2, ROWS, identity=IDENTITY)
    yield made
    made.validate()


@pytest.fixture
def gateway(node: WiredNode) -> FakeGateway:
    made = FakeGateway(node)
    assert made.welcome
    return made


def refused(client: FakeAttached, **fields: Any) -> int | None:
    client.attach(**fields)
    return client.closed_with()


# -- the session of a gateway --------------------------------------------------------------------------------


def test_a_gateway_is_no_client_and_has_large_windows(node: WiredNode) -> None:
    welcome = FakeGateway(node, index=3).welcome
    assert welcome["client_name"] == "#gateway/mqtt/3"
    assert (welcome["rounds"], welcome["bytes"]) == (4_096, 32 << 20)
    assert list(node.router.operators.clients(None, node.now)) == []
    assert len(node.router.sessions) == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"behalf": {"secret": "guessed"}}, errors.UNAUTHORIZED),
        ({"behalf": None, "password": "inside"}, errors.UNAUTHORIZED),
        ({"gateway": None}, errors.MALFORMED_FRAME),
        ({"gateway": says(name="")}, errors.MALFORMED_FRAME),
        ({"gateway": says(name="a/b")}, errors.MALFORMED_FRAME),
        ({"gateway": says(index=-1)}, errors.MALFORMED_FRAME),
        ({"vpn": "nowhere"}, errors.VPN_NOT_ALLOWED),
    ],
)
def test_which_gateway_may_not_come(node: WiredNode, fields: dict[str, Any], code: int) -> None:
    client = node.connection("")
    hello = {
        "version": 1,
        "username": wire.GATEWAY_USERNAME,
        "behalf": {"secret": "inside"},
        "gateway": says(),
    }
    client.send(wire.HELLO, {**hello, **fields})
    assert client.closed_with() == code


def test_no_client_has_the_name_of_a_gateway(node: WiredNode) -> None:
    client = node.connection()
    client.send(wire.HELLO, {"version": 1, "client_name": "#gateway/mqtt/0"})
    assert client.closed_with() == errors.INVALID_CLIENT_NAME


def test_a_successor_takes_the_place_of_a_gateway_process(node: WiredNode, gateway: FakeGateway) -> None:
    assert FakeGateway(node, incarnation=2).welcome
    assert gateway.closed_with() == errors.KEEPALIVE_TIMEOUT
    assert FakeGateway(node, incarnation=1).closed_with() == errors.CLIENT_NAME_IN_USE
    assert FakeGateway(node, index=1).welcome
    assert FakeGateway(node, "sales").welcome


@pytest.mark.parametrize("operation", [wire.ATTACHED, wire.COUNTED])
def test_nobody_else_speaks_for_clients(node: WiredNode, operation: bytes) -> None:
    client = node.client()
    client.send(operation, [])
    assert client.closed_with() == errors.UNKNOWN_OPERATION


def test_the_frames_of_a_gateway_have_no_rate_of_their_own(node: WiredNode, gateway: FakeGateway) -> None:
    limit = node.config.control_frames_per_second
    for _ in range(3 * limit):
        gateway.count()
    assert gateway.closed_with() is None
    greedy, modest = gateway.attach(), gateway.attach()
    for _ in range(3 * limit):
        greedy.say(wire.PING, [1])
    assert greedy.closed_with() == errors.CONTROL_RATE_EXCEEDED
    assert modest.closed_with() is None


def test_what_clients_publish_goes_out_in_rounds_of_the_gateway(
    node: WiredNode, gateway: FakeGateway
) -> None:
    native = node.client()
    native.subscribe("t/>")
    client = gateway.attach()
    client.subscribe("t/1", deliver_always=True)
    gateway.publish("t/1", "t/2")
    assert native.topics() == ["t/1", "t/2"]
    assert gateway.topics() == ["t/1"]


# -- who is attached -----------------------------------------------------------------------------------------


def test_an_attached_client_is_a_client_at_its_own_address(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.client()
    client.attach(NEAR, username="alice", password="right", client_name="c")
    operation, welcome = client.take()
    assert operation == wire.WELCOME
    assert set(welcome) == {
        "session",
        "client_name",
        "username",
        "inbox",
        "token",
        "resumed",
        "max_message_bytes",
        "rights",
        "new_session",
    }
    assert welcome["username"] == "alice"
    (row,) = node.router.operators.clients(None, node.now)
    assert [row[name] for name in ("name", "address", "username", "sdk")] == ["c", NEAR, "alice", "mqtt 5"]
    assert len(node.router.sessions) == 1


def test_it_is_told_what_it_may(gateway: FakeGateway) -> None:
    client = gateway.client()
    client.attach()
    _, welcome = client.take()
    allowed, exceptions, units, *may = welcome["rights"]
    assert (allowed, exceptions, may) == (True, [], [True, True, True])
    assert units == 20_000


def test_a_client_without_a_name_is_given_one(gateway: FakeGateway) -> None:
    names = set()
    for _ in range(2):
        client = gateway.client()
        client.attach()
        names.add(client.take()[1]["client_name"])
    assert len(names) == 2


@pytest.mark.parametrize(
    ("address", "fields", "code"),
    [
        (NEAR, {"username": "near", "password": "right"}, None),
        (FAR, {"username": "near", "password": "right"}, errors.UNAUTHORIZED),
        (NEAR, {"username": "alice", "password": "wrong"}, errors.UNAUTHORIZED),
        (NEAR, {"username": "nobody", "password": "right"}, errors.UNAUTHORIZED),
        (NEAR, {}, errors.UNAUTHORIZED),
        ("127.0.0.1", {}, None),
        ("127.0.0.1", {"client_name": "a" * 161}, errors.INVALID_CLIENT_NAME),
        ("127.0.0.1", {"vpn": "sales"}, errors.OTHER_VPN),
        ("127.0.0.1", {"username": "#bridge", "bridge": BRIDGE}, errors.UNAUTHORIZED),
        ("127.0.0.1", {"username": "#link"}, errors.UNAUTHORIZED),
        ("127.0.0.1", {"username": "#gateway", "gateway": says(index=9)}, errors.UNAUTHORIZED),
        ("127.0.0.1", {"bridge": BRIDGE}, errors.MALFORMED_FRAME),
        ("127.0.0.1", {"password": "a" * 129}, errors.MALFORMED_FRAME),
        ("", {}, errors.MALFORMED_FRAME),
    ],
)
def test_it_is_judged_like_any_other(
    gateway: FakeGateway, address: str, fields: dict[str, Any], code: int | None
) -> None:
    client, other = gateway.client(), gateway.attach()
    client.attach(address, **fields)
    assert client.closed_with() == code
    assert other.closed_with() is None


def test_a_gateway_shows_for_each_client_that_it_is_one(gateway: FakeGateway) -> None:
    assert refused(gateway.client(), behalf={"secret": "guessed"}) == errors.UNAUTHORIZED
    client = gateway.client()
    client.send(wire.HELLO, {"version": 1})
    assert client.closed_with() == errors.MALFORMED_FRAME


def test_limits_are_told(gateway: FakeGateway) -> None:
    for name in ("a", "b"):
        gateway.attach(username="two", client_name=name)
    assert refused(gateway.client(), username="two", client_name="c") == errors.TOO_MANY_CONNECTIONS


def test_connects_count_for_the_address_of_the_client() -> None:
    node = WiredNode(rows=ROWS, identity=IDENTITY, connects_per_second=1, connect_burst=1)
    gateway = FakeGateway(node)
    wish = {"username": "alice", "password": "right"}
    assert [refused(gateway.client(), address=NEAR, **wish) for _ in range(2)] == [
        None,
        errors.CONNECT_RATE_EXCEEDED,
    ]
    assert refused(gateway.client(), address=FAR, **wish) is None
    node.validate()


def test_a_client_whose_gateway_died_while_he_logged_in_is_nobody(
    node: WiredNode, gateway: FakeGateway
) -> None:
    client = gateway.client()
    inside = [
        wire.HELLO,
        wire.pack(
            {
                "version": 1,
                "username": "alice",
                "password": "right",
                "behalf": {"secret": "inside", "address": NEAR},
            }
        ),
    ]
    node.router.client_frames(gateway.routing_id, [wire.ATTACHED, client.inside, *inside], node.now)
    node.router.unreachable(gateway.routing_id, 0, node.now, blocked=False)
    node.settle()
    assert client.closed_with() == errors.SESSION_UNKNOWN
    assert len(node.router.sessions) == 0


def test_a_certificate_that_the_gateway_was_shown_names_the_client() -> None:
    node = WiredNode(rows=ROWS, identity=IDENTITY, tls_username="common-name")
    gateway = FakeGateway(node)
    gateway.attach(NEAR, behalf={"certificate": Certificate("alice")}, client_name="c")
    (row,) = node.router.operators.clients(None, node.now)
    assert row["username"] == "alice"
    behalf = {"certificate": Certificate("alice")}
    assert refused(gateway.client(), behalf=behalf, username="near") == errors.CERTIFICATE_USERNAME


# -- tokens --------------------------------------------------------------------------------------------------


@pytest.fixture
def trusting(node: WiredNode) -> TokenMaker:
    """Give who makes tokens that the node trusts; they may name a Message VPN."""
    maker = TokenMaker()
    settings: dict[str, Any] = {
        "name": "login",
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "keys_file": "keys",
        "vpn_claim": "vpn",
        "vpns": ["*"],
    }
    issuers = node.router.handshake.issuers = Issuers([TokenIssuer(**settings)])
    issuers.put_keys({"login": load_rows(read_document(maker.pem))})
    node.router.ground.wall_offset_ms = int((time.time() - node.now) * 1000)
    return maker


@pytest.mark.parametrize("username", ["default", "alice"])
def test_a_password_may_be_a_token(
    node: WiredNode, gateway: FakeGateway, trusting: TokenMaker, username: str
) -> None:
    client = gateway.client()
    token = trusting.token(vpn="default")
    assert len(token) > 128
    client.attach(NEAR, {"password_may_be_token": True}, username=username, password=token, client_name="c")
    assert client.take()[0] == wire.WELCOME
    assert node.router.operators.client("default", "c", node.now)["username"] == "alice"
    node.router.ground.wall_offset_ms += 700_000
    node.advance(1)
    assert client.closed_with() == errors.TOKEN_EXPIRED


@pytest.mark.parametrize(
    ("fields", "changed", "code"),
    [
        ({"username": "near"}, {}, errors.UNAUTHORIZED),
        ({"behalf": {}}, {}, errors.MALFORMED_FRAME),
        ({}, {"iss": "https://elsewhere.example"}, errors.UNAUTHORIZED),
        ({}, {"exp": 1}, errors.UNAUTHORIZED),
        ({}, {"vpn": "sales", "sub": "default"}, errors.OTHER_VPN),
        ({}, {"vpn": "nowhere"}, errors.UNAUTHORIZED),
    ],
)
@pytest.mark.usefixtures("node")
def test_a_token_that_is_not_good_here(
    gateway: FakeGateway, trusting: TokenMaker, fields: dict[str, Any], changed: dict[str, Any], code: int
) -> None:
    token = trusting.token(**{"vpn": "default", **changed})
    wish = {"behalf": {"password_may_be_token": True}, "password": token, **fields}
    assert refused(gateway.client(), address=NEAR, **wish) == code


@pytest.mark.requirement("R225")
def test_a_session_is_not_renewed_by_a_token_for_another_message_vpn(
    node: WiredNode, trusting: TokenMaker
) -> None:
    client = node.connection()
    assert client.hello(username="", jwt=trusting.token(vpn="default"))
    elsewhere = trusting.token(vpn="sales")
    assert request(client, "token.renew", jwt=elsewhere)[0] == errors.UNAUTHORIZED
    assert request(client, "token.renew", jwt=trusting.token(vpn=["sales", "default"]))[0] == 0


def test_a_password_that_only_looks_like_a_token_is_compared(
    node: WiredNode, gateway: FakeGateway, trusting: TokenMaker
) -> None:
    password = handmade({"alg": "none"}, {"iss": "me"})
    stored = {"password": passwords.hash_password(password)}
    node.router.operators.put_object(
        "username", "default", "odd", objects.complete("username", stored), node.now
    )
    behalf = {"password_may_be_token": True}
    assert trusting
    assert refused(gateway.client(), address=NEAR, behalf=behalf, username="odd", password=password) is None
    assert (
        refused(gateway.client(), address=NEAR, behalf=behalf, username="odd", password=password * 9)
        is not None
    )


# -- newer wins ----------------------------------------------------------------------------------------------


def test_a_newer_client_of_the_same_name_takes_over(node: WiredNode, gateway: FakeGateway) -> None:
    other = FakeGateway(node, index=1)
    older = gateway.attach(client_name="c")
    older.subscribe("t", deliver_always=True)
    newer = other.attach(client_name="c")
    assert older.closed_with() == errors.TAKEN_OVER
    assert newer.closed_with() is None
    assert [row["subscriptions"] for row in list(node.router.operators.clients(None, node.now))] == [0]
    assert len(node.router.interest) == 0


def test_at_a_limit_it_takes_its_own_place(gateway: FakeGateway) -> None:
    for name in ("a", "b", "b", "a"):
        gateway.attach(username="two", client_name=name)


@pytest.mark.parametrize(
    "fields",
    [{"username": "alice", "password": "right"}, {"behalf": {"takes_over": False}}],
)
def test_who_may_not_take_over(gateway: FakeGateway, fields: dict[str, Any]) -> None:
    older = gateway.attach(client_name="c")
    assert refused(gateway.client(), client_name="c", **fields) == errors.CLIENT_NAME_IN_USE
    assert older.closed_with() is None


def test_a_native_client_keeps_its_name(node: WiredNode, gateway: FakeGateway) -> None:
    native = node.client(client_name="c")
    assert refused(gateway.client(), client_name="c") == errors.CLIENT_NAME_IN_USE
    native.send(wire.BYE, [])
    gateway.attach(client_name="c")
    late = node.connection()
    late.send(wire.HELLO, {"version": 1, "client_name": "c"})
    assert late.closed_with() == errors.CLIENT_NAME_IN_USE


# -- frames --------------------------------------------------------------------------------------------------


def test_a_fault_of_ours_that_a_client_led_to_costs_that_client(
    node: WiredNode, gateway: FakeGateway
) -> None:
    """The shell names who has sent what led to it."""
    client, other = gateway.attach(), gateway.attach()
    node.router.fail(client.routing_id, errors.error_for(errors.INTERNAL), node.now)
    node.settle()
    assert (client.closed_with(), other.closed_with(), gateway.closed_with()) == (errors.INTERNAL, None, None)


@pytest.mark.parametrize("frames", [[b""], [b"1234567", wire.PING, b""], [b"123456789", wire.PING, b""]])
def test_a_frame_that_names_nobody_ends_the_gateway(gateway: FakeGateway, frames: list[bytes]) -> None:
    gateway.send_raw([wire.ATTACHED, *frames])
    assert gateway.closed_with() == errors.MALFORMED_FRAME


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([wire.PING, wire.pack([1])], errors.SESSION_UNKNOWN),
        ([wire.SUBSCRIBE, wire.pack([1, [["t", 1]], None])], errors.SESSION_UNKNOWN),
        ([], errors.SESSION_UNKNOWN),
        ([wire.HELLO, b"\xc1"], errors.MALFORMED_FRAME),
    ],
)
def test_who_is_not_attached_is_told(gateway: FakeGateway, frames: list[bytes], code: int) -> None:
    client = gateway.client()
    gateway.send_raw([wire.ATTACHED, client.inside, *frames])
    assert client.closed_with() == code
    assert gateway.closed_with() is not None or gateway.attach()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([], errors.MALFORMED_FRAME),
        ([wire.PING], errors.MALFORMED_FRAME),
        ([wire.ATTACHED, b"\0" * 8, wire.PING, b"\x91\1"], errors.UNKNOWN_OPERATION),
        ([wire.COUNTED, b"\x91\x90"], errors.UNKNOWN_OPERATION),
        ([wire.HELLO, b"\x80"], errors.ALREADY_LOGGED_IN),
        ([wire.SUBSCRIBE, b"\xc1"], errors.MALFORMED_FRAME),
    ],
)
def test_what_a_client_says_wrong_ends_it_alone(gateway: FakeGateway, frames: list[bytes], code: int) -> None:
    client, other = gateway.attach(), gateway.attach()
    gateway.send_raw([wire.ATTACHED, client.inside, *frames])
    assert client.closed_with() == code
    assert other.subscribe("t", deliver_always=True) == [None]
    assert gateway.closed_with() is None


def test_whom_operators_have_named_needs_no_password(node: WiredNode, gateway: FakeGateway) -> None:
    named = {"needs_password": False}
    assert refused(gateway.client(), address="127.0.0.1", username="alice") == errors.UNAUTHORIZED
    assert gateway.attach("127.0.0.1", behalf=named, username="alice", client_name="c")
    assert [one["username"] for one in list(node.router.operators.clients(None, node.now))] == ["alice"]
    for username in (
        "nobody",
        "near",
    ):  # all else is judged as ever: it exists, and its ACL lets it in from there
        assert refused(gateway.client(), address="127.0.0.1", behalf=named, username=username) == (
            errors.UNAUTHORIZED
        )


@pytest.mark.parametrize("secret", ["guessed", ""])
@pytest.mark.parametrize("address", ["", FAR])
def test_nobody_else_comes_without_a_password(node: WiredNode, secret: str, address: str) -> None:
    client = node.connection(address)
    behalf = {"secret": secret, "address": "127.0.0.1", "needs_password": False}
    client.send(wire.HELLO, {"version": 1, "username": "alice", "behalf": behalf})
    assert client.closed_with() == errors.UNAUTHORIZED


PAGE = {"is_foreign_page": True}


def test_a_page_of_another_site_shows_who_it_is(node: WiredNode, gateway: FakeGateway) -> None:
    here = {"address": "127.0.0.1", "behalf": PAGE}
    for username in ("default", "alice", "nobody"):
        assert refused(gateway.client(), **here, username=username) == errors.CROSS_ORIGIN
    assert node.router.counters.errors[errors.CROSS_ORIGIN] == 3
    (told,) = (one for one in node.events if one["event"] == "SYSTEM_CLIENT_LOGIN_REFUSED")
    assert "a page of another site" in told["text"]
    assert gateway.attach("127.0.0.1", username="default", password="any")
    assert refused(gateway.client(), **here, username="default", password="any") == errors.UNAUTHORIZED
    assert gateway.attach("127.0.0.1", behalf=PAGE, username="alice", password="right")
