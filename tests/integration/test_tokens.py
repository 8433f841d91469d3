"""Logins by token (JWT) at a real node: who comes in and as whom, what is refused, and what operators hear of it."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import zmq

import angarium
from angarium import blocking, errors, wire
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.integration.raw_client import RawClient, hello_header
from tests.token_issuer import AUDIENCE, ISSUER, TokenMaker, handmade, jwks, signed_with_public_key
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
CONFIG = f"""
[[issuers]]
name = "login"
issuer = "{ISSUER}"
audience = ["{AUDIENCE}"]
keys_file = "login.jwks"
algorithms = ["ES256", "RS256"]
clock_skew_s = 2
vpns = ["default", "orders"]
acl_profile_claim = "acl"

[[issuers]]
name = "guests"
issuer = "https://guests.example"
audience = ["{AUDIENCE}"]
keys_file = "guests.pem"
algorithms = ["EdDSA"]
unknown_usernames = true
acl_profile = "readers"

[vpn.default.acl.readers]
client_connect_default = "allow"
subscribe_topic_exceptions = ["news/>"]

[vpn.default.username.alice]
[vpn.default.username.off]
enabled = false
[vpn.orders.username.alice]
[vpn.default.username.default]
enabled = true
"""


class Served(NamedTuple):
    """A node with issuers."""

    node: Node
    maker: TokenMaker
    guests: TokenMaker
    folder: Path

    def connect(self, token: Any, **given: Any) -> blocking.Client:
        return blocking.connect(self.node.url, token=token, timeout_s=LIMIT_S, **given)

    def refused(self, token: Any, **given: Any) -> str:
        """Expect that a token is refused without a word, and give the reason that operators hear."""
        # Of each address one event a minute, so every attempt has an address of its own.
        with pytest.raises(errors.UnauthorizedError) as caught:
            self.connect(token, **given)
        assert (caught.value.code, caught.value.detail) == (errors.UNAUTHORIZED, "")
        return ""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tokens")
    maker, guests = TokenMaker("ES256"), TokenMaker("EdDSA", key_id=None)
    (folder / "login.jwks").write_bytes(jwks(maker, TokenMaker("RS256")))
    (folder / "guests.pem").write_bytes(guests.pem)
    (folder / "node.toml").write_text(CONFIG)
    with Node(folder / "data", workers=1, config=folder / "node.toml") as node:
        yield Served(node, maker, guests, folder)


@pytest.mark.requirement("R224")
def test_a_token_logs_in_as_whom_it_names(served: Served) -> None:
    with served.connect(served.maker.token()) as client, Admin(served.node.data) as admin:
        heard = client.subscribe("a")
        client.publish("a", b"x")
        assert heard.receive(LIMIT_S).payload == b"x"
        (row,) = [one for one in admin.call("clients.list") if one["name"] == client.name]
        assert (row["username"], row["vpn"]) == ("alice", "default")
    with served.connect(TokenMaker("RS256").token(), username="alice", vpn="orders") as client:
        assert client.connected


def test_a_function_gives_a_token_for_each_connection(served: Served) -> None:
    given: list[str] = []

    def sync() -> str:
        given.append("sync")
        return served.maker.token()

    async def asynchronous() -> str:
        given.append("async")
        return served.maker.token()

    async def test() -> None:
        async with angarium.connect(served.node.url, token=asynchronous) as client:
            assert client.connected

    with served.connect(sync) as client, Admin(served.node.data) as admin:
        served.node.kill("router")
        wait_until(lambda: given.count("sync") > 1 and client.connected, "the client coming back")
        assert admin.call("health")
    asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    assert given.count("async") == 1


@pytest.mark.requirement("R224")
def test_claims_and_issuers_choose_profiles_and_guests_need_no_username(served: Served) -> None:
    with served.connect(served.maker.token(acl="readers")) as client:
        with pytest.raises(errors.ForbiddenError):
            client.subscribe("secret")
        client.subscribe("news/a")
    guest = served.guests.token(iss="https://guests.example", sub="mary")
    with served.connect(guest) as client, served.connect(guest) as other, Admin(served.node.data) as admin:
        with pytest.raises(errors.ForbiddenError):
            client.subscribe("secret")
        other.subscribe("news/a")
        names = [one["username"] for one in admin.call("clients.list")]
        assert names.count("mary") == 2
        assert "mary" not in [one["name"] for one in admin.call("objects.list", kind="username")]
        # What changes for others changes for them.
        admin.call(
            "objects.update",
            kind="acl",
            name="readers",
            vpn="default",
            attributes={"subscribe_topic_exceptions": ["news/>", "secret"]},
        )
        client.subscribe("secret")


def test_a_guest_uses_queues_like_anybody(served: Served) -> None:
    guest = served.guests.token(iss="https://guests.example", sub="quentin", exp=int(time.time()) + 600)
    with Admin(served.node.data) as admin:
        admin.call(
            "objects.update",
            kind="acl",
            name="readers",
            vpn="default",
            attributes={
                "publish_topic_exceptions": ["guest/>"],
                "subscribe_topic_exceptions": ["news/>", "guest/>"],
            },
        )
    with served.connect(guest) as client:
        client.create_queue("guest-queue", subscriptions=["guest/>"])
        with client.producer() as producer:
            producer.publish("guest/1", b"kept")
        with client.consume("guest-queue") as flow:
            assert flow.receive(timeout_s=LIMIT_S).payload == b"kept"
    with served.connect(guest) as again, again.consume("guest-queue"):
        assert again.connected, "it is the owner of what it made"


@pytest.mark.requirement("R224")
def test_tokens_that_do_not_count_are_refused_with_one_text(served: Served) -> None:
    now = int(time.time())
    maker, stranger = served.maker, TokenMaker("ES256", 7, key_id=served.maker.key_id)
    head, claims, signature = maker.token().split(".")
    deep: list[Any] = functools.reduce(lambda inner, _: [inner], range(900), [])
    wrong = {
        "expired": maker.token(exp=now - 10),
        "not yet valid": maker.token(nbf=now + 60),
        "without an end": maker.token(exp=None),
        "another issuer": maker.token(iss="https://elsewhere.example"),
        "another audience": maker.token(aud="elsewhere"),
        "another key": stranger.token(),
        "a key that is not known": TokenMaker("ES256", 8).token(),
        "no signature": f"{head}.{claims}.",
        "half a signature": f"{head}.{claims}.{signature[:20]}",
        "algorithm none": handmade({"alg": "none"}, maker.claims()),
        "algorithm none, kid": handmade({"alg": "none", "kid": maker.key_id}, maker.claims(), b"x"),
        "HMAC with the public key": signed_with_public_key(maker, maker.claims()),
        "of another issuer's key": served.guests.token(header={"kid": maker.key_id}),
        "an algorithm that is not allowed": TokenMaker("ES384").token(),
        "unknown username": maker.token(sub="nobody"),
        "disabled username": maker.token(sub="off"),
        "profile that does not exist": maker.token(acl="none"),
        "garbage": "garbage",
        "dots": "...",
        "nothing in it": "e30.e30.e30",
        "deep": handmade({"alg": "ES256"}, {"iss": ISSUER, "x": deep}),
    }
    for what, token in wrong.items():
        print(what)
        served.refused(token)
    served.refused(maker.token(), username="bob")
    served.refused(maker.token(), vpn="elsewhere")
    with served.connect(maker.token()) as client:
        assert client.connected, "others come in as before"
    with Admin(served.node.data) as admin:
        told = [one["text"] for one in admin.call("events") if one["event"] == "SYSTEM_CLIENT_LOGIN_REFUSED"]
    assert told
    assert not [text for text in told if signature in text or head in text], "no token is in an event"


def test_a_token_that_is_too_large_is_refused_on_both_sides(served: Served) -> None:
    with pytest.raises(errors.InvalidRequestError, match="limit"):
        served.connect(served.maker.token(x="y" * 20_000))
    with pytest.raises(errors.InvalidRequestError, match="one of them"):
        served.connect("a.b.c", password="x")


def test_a_resume_token_does_not_stand_for_a_token(served: Served) -> None:
    """Who came by a token that is over must not go on with the resume token of that session."""
    with zmq.Context() as context:
        login = {"vpn": "default", "username": "alice", "client_name": "resumer"}
        with RawClient(context, served.node.url).hello(**login, jwt=served.maker.token()) as owner:
            token = owner.welcome["token"]
        with RawClient(context, served.node.url) as again:
            again.hello(**login, jwt=served.maker.token(), token=token)
            assert again.welcome["resumed"]
            token = again.welcome["token"]
        with RawClient(context, served.node.url) as thief:
            thief.send(wire.HELLO, hello_header(**login, jwt="a.b.c", token=token))
            assert thief.closed() == errors.UNAUTHORIZED

        def comes_from_this_host() -> dict[str, Any] | None:
            with RawClient(context, served.node.url) as local:
                local.send(wire.HELLO, hello_header(**login, token=token))
                frame = local.receive()
            if frame.operation == wire.CLOSED and frame.header[0] == errors.CLIENT_NAME_IN_USE:
                return None  # the node did not see the end of the one before yet
            assert frame.operation == wire.WELCOME, frame
            return dict(frame.header)

        # From this host the username has no password; but it is no resumption either.
        assert not wait_until(comes_from_this_host)["resumed"]


def test_keys_of_a_file_are_renewed_without_a_restart(served: Served) -> None:
    file = served.folder / "login.jwks"
    before, renewed = file.read_bytes(), TokenMaker("ES256", 20)
    with Admin(served.node.data) as admin:
        served.refused(renewed.token())
        try:
            file.write_bytes(jwks(renewed))
            admin.call("keys.reload")
            with served.connect(renewed.token()) as client:
                assert client.connected
            served.refused(served.maker.token())
            file.write_bytes(b"{}")
            admin.call("keys.reload")
            assert "SYSTEM_ISSUER_KEYS_UNUSABLE" in [one["event"] for one in admin.call("events")]
            with served.connect(renewed.token()) as client:
                assert client.connected, "the keys before stay"
        finally:
            file.write_bytes(before)
            admin.call("keys.reload")


def test_a_command_takes_the_token_from_a_file(served: Served) -> None:
    file = served.folder / "alice.token"
    file.write_text(served.maker.token() + "\n")
    served.node.run("pub", "a", "x", "--token-file", str(file))


@pytest.mark.requirement("R221", "R224")
def test_a_job_of_spark_takes_the_token_from_a_file(served: Served) -> None:
    pytest.importorskip("pyspark")
    from angarium.spark.connecting import open_client
    from angarium.spark.options import BATCH, WRITE, settings

    file = served.folder / "spark.token"
    given = {"url": served.node.url, "tokenfile": str(file)}
    for use in (BATCH, WRITE):
        file.write_text(served.maker.token() + "\n")
        with open_client(settings(use, given)) as client:
            assert client.connected
    file.write_text(served.maker.token(exp=int(time.time()) - 60))
    with pytest.raises(errors.UnauthorizedError, match=f"option tokenFile: {file}"):
        open_client(settings(BATCH, given))


@pytest.mark.requirement("R225")
def test_a_session_ends_with_its_token(served: Served) -> None:
    events: list[angarium.ClientEvent] = []
    token = served.maker.token(exp=int(time.time()) + 1)
    with served.connect(token, on_event=events.append) as client:
        wait_until(lambda: client.closed, "the session ends, and the same token begins no other one")
    codes = [(event.kind, event.code) for event in events]
    assert ("disconnected", errors.TOKEN_EXPIRED) in codes
    assert ("failed", errors.UNAUTHORIZED) in codes
    served.refused(token)


@pytest.mark.requirement("R225")
def test_a_session_goes_on_with_fresh_tokens(served: Served) -> None:
    given: list[float] = []
    events: list[angarium.ClientEvent] = []

    def fresh() -> str:
        given.append(time.monotonic())
        if len(given) == 2:
            raise OSError("the issuer has a moment of weakness")
        return served.maker.token(exp=int(time.time()) + 6)

    with served.connect(fresh, on_event=events.append) as client, Admin(served.node.data) as admin:
        heard = client.subscribe("renewed")
        time.sleep(15)  # far longer than one token is good
        client.publish("renewed", b"still here")
        assert heard.receive(LIMIT_S).payload == b"still here"
        assert admin.call("clients.show", name=client.name)["uptime_s"] > 14.0
    assert [event.kind for event in events if event.kind != "connected"] == []
    assert len(given) >= 3


@pytest.mark.requirement("R225")
def test_a_token_that_is_no_renewal_changes_nothing(served: Served) -> None:
    def renew(client: RawClient, number: int, token: str) -> tuple[int, Any]:
        client.send(wire.REQUEST, [number, "token.renew", {"jwt": token}])
        answer = client.receive_only(wire.ANSWER).header
        assert answer[0] == number
        return answer[1], answer[2]

    login = {"vpn": "default", "username": "", "client_name": "renewer"}
    with zmq.Context() as context, RawClient(context, served.node.url) as client:
        client.hello(**login, jwt=served.maker.token(exp=int(time.time()) + 30))
        assert 30_000 < client.welcome["token_ms"] <= 32_000
        wrong = [
            "garbage",
            served.maker.token(sub="bob"),
            TokenMaker("ES256", 9).token(),
            served.maker.token(exp=1),
        ]
        wrong.append(served.guests.token(iss="https://guests.example"))
        for number, token in enumerate(wrong, 1):
            assert renew(client, number, token) == (errors.UNAUTHORIZED, ""), number
        code, value = renew(client, 99, served.maker.token())
        assert code == 0
        assert 590_000 < value["ms"] <= 602_000
        code, _ = renew(client, 100, served.maker.token(acl="readers"))
        assert code == 0
        (answer,) = client.subscribe("secret/of/others")
        assert answer is not None, "the rights are those of the newest token"
        code, _ = renew(client, 101, served.maker.token(acl="none"))
        assert client.closed() == errors.CLIENT_CONNECT_DENIED
    with zmq.Context() as context, RawClient(context, served.node.url).hello() as other:
        code, _ = renew(other, 1, served.maker.token())
        assert code == errors.INVALID_ARGUMENT
        assert "token_ms" not in other.welcome
