"""The controller admits nodes: what a JOIN is answered, and what is kept when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from angarium import errors
from cluster.controller.switchboard import effects as c
from cluster.join import tokens
from cluster.join.frames import Admission, Wish, prove
from cluster.security.authority import create_request
from tests.unit.cluster.controller_world import FINGERPRINT, World

SECRET = "correct horse battery staple"
ADDRESS = "tls://10.0.0.2:55555"
#: 2031-05-04T10:00:00Z, the time of the world, in ms.
NOW_MS = int(datetime(2031, 5, 4, 10, tzinfo=UTC).timestamp()) * 1_000


def world(*, urls: tuple[str, ...] = ("tcp://127.0.0.1:1", "tls://0.0.0.0:55555")) -> World:
    made = World(node="a", secret=SECRET)
    made.do(
        made.controller.node_news(
            {"node": "a", "url": urls[0], "urls": urls, "processes": [], "events": []}, made.now
        )
    )
    return made


@pytest.fixture(scope="module")
def request_pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return create_request(tmp_path_factory.mktemp("key") / "node.key", "b")


def wish(text: str, request: str, **given: Any) -> Wish:
    token = tokens.read(text)
    more = {"node": "b", "addresses": [ADDRESS], **given}
    return Wish(token_id=token.id, token_secret=token.secret, request=request, wants_certificate=True, **more)


def said(made: World, what: Wish | bytes) -> tuple[bool, Any]:
    """Give what the stranger hears."""
    content = what if isinstance(what, bytes) else msgspec.msgpack.encode(what)
    seen = made.question("cluster.join", wish=content, address="10.0.0.2")
    (answer,) = [effect for effect in seen if isinstance(effect, c.Answer)]
    return answer.ok, msgspec.msgpack.decode(answer.value, type=Admission) if answer.ok else answer.value


def links(made: World) -> dict[str, Any]:
    return {name: link for (_, name), link in made.catalog.of_kind("link").items()}


def events(made: World) -> list[str]:
    return [effect.event["event"] for effect in made.effects if isinstance(effect, c.Record)]


@pytest.mark.requirement("R285")
def test_a_token_leads_here_and_admits_a_node_with_all_that_it_needs(request_pem: str) -> None:
    made = world()
    made.ask(
        "objects.create", kind="link", name="c", vpn=None, attributes={"addresses": ["tls://10.0.0.3:1"]}
    )
    token = made.ask("cluster.token.create")
    assert token["addresses"] == ["tls://10.0.0.9:55555"]
    assert tokens.read(token["token"]).fingerprint == FINGERPRINT
    ok, admission = said(made, wish(token["token"], request_pem, server_name="host-b"))
    assert ok
    assert (admission.node, admission.cluster, admission.secret) == ("a", "trains", SECRET)
    assert (admission.authority, admission.certificate) == ("ca", "signed for 10.0.0.2")
    assert [(one.node, one.addresses) for one in admission.neighbours] == [("c", ["tls://10.0.0.3:1"])]
    assert (links(made)["b"]["addresses"], links(made)["b"]["server_name"]) == ([ADDRESS], "host-b")
    assert made.ask("cluster.token.list")[0]["nodes"] == ["b"]
    assert "SYSTEM_CLUSTER_JOINED" in events(made)
    assert "SYSTEM_CLUSTER_TOKEN_CREATED" in events(made)


@pytest.mark.requirement("R285")
def test_the_use_is_kept_before_the_link_and_both_before_the_answer(request_pem: str) -> None:
    made = world()
    token = made.ask("cluster.token.create")["token"]
    seen = made.question("cluster.join", wish=msgspec.msgpack.encode(wish(token, request_pem)), address="")
    order = [type(effect) for effect in seen if isinstance(effect, c.UseVault | c.Commit | c.Answer)]
    assert order == [c.UseVault, c.Commit, c.Answer]
    assert made.kept_tokens[0].used.keys() == {"b"}


@pytest.mark.requirement("R285")
def test_a_join_that_broke_between_the_token_and_the_link_is_repeated(request_pem: str) -> None:
    made = world()
    token = made.ask("cluster.token.create")["token"]
    made.store_refuses = True
    assert not said(made, wish(token, request_pem))[0]
    assert links(made) == {}
    # The controller was killed there: the next one knows the tokens as they were kept.
    after = World(node="a", secret=SECRET, tokens=made.kept_tokens)
    assert said(after, wish(token, request_pem))[0]
    assert said(after, wish(token, request_pem))[0]
    assert set(links(after)) == {"b"}
    assert after.ask("cluster.token.list")[0]["uses"] == 1


def test_what_cannot_be_signed_or_kept_uses_up_nothing(request_pem: str) -> None:
    made = world()
    token = made.ask("cluster.token.create")["token"]
    made.vault_refuses = errors.error_for(errors.DISK_FULL, "no room")
    assert said(made, wish(token, request_pem)) == (False, [errors.DISK_FULL, "no room"])
    with pytest.raises(errors.UnavailableError):
        made.ask("cluster.token.create")
    made.vault_refuses = None
    assert made.ask("cluster.token.list")[0]["uses"] == 0
    assert said(made, wish(token, request_pem))[0]


@pytest.mark.requirement("R285")
def test_names_that_are_taken_and_nodes_that_nobody_reaches_are_refused(request_pem: str) -> None:
    made = world()
    made.ask("objects.create", kind="link", name="c", vpn=None, attributes={"addresses": [ADDRESS]})
    token = made.ask("cluster.token.create")["token"]
    for given, code in (
        ({"node": "a"}, errors.OBJECT_EXISTS),
        ({"node": "c"}, errors.OBJECT_EXISTS),
        ({"addresses": []}, errors.INVALID_ARGUMENT),
        ({"addresses": ["tcp://10.0.0.2:1"]}, errors.INVALID_ARGUMENT),
        ({"node": "a/b"}, errors.INVALID_ARGUMENT),
        ({"version": 2}, errors.UNSUPPORTED_VERSION),
        ({"cluster": "ships"}, errors.CLUSTER_MISMATCH),
    ):
        ok, value = said(made, wish(token, request_pem, **given))
        assert (ok, value[0]) == (False, code), given
    assert made.ask("cluster.token.list")[0]["uses"] == 0
    assert set(links(made)) == {"c"}


@pytest.mark.requirement("R285")
def test_nobody_joins_under_the_name_of_an_operators_certificate(request_pem: str) -> None:
    made = world()
    attributes = {"certificate_name": "anna", "enabled": False}
    made.ask("objects.create", kind="operator", name="ops", vpn=None, attributes=attributes)
    token = made.ask("cluster.token.create")["token"]
    ok, value = said(made, wish(token, request_pem, node="anna"))
    assert (ok, value[0]) == (False, errors.OBJECT_EXISTS)
    assert made.ask("cluster.token.list")[0]["uses"] == 0
    assert said(made, wish(token, request_pem))[0]


def test_a_request_without_its_key_and_what_is_no_join_are_refused(request_pem: str) -> None:
    made = world()
    token = made.ask("cluster.token.create")["token"]
    forged = request_pem.replace(request_pem[60:64], "AAAA")
    assert said(made, wish(token, forged))[1][0] == errors.INVALID_ARGUMENT
    for content in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"node": "x" * 65}),
        msgspec.msgpack.encode([1]),
        b"\x91" * 5_000,
    ):
        assert said(made, content)[1][0] == errors.MALFORMED_FRAME
    assert events(made).count("SYSTEM_CLUSTER_JOIN_REFUSED") == 6
    assert "SECRET" not in repr(made.effects)


def test_who_guesses_is_counted_and_no_event_has_a_secret(request_pem: str) -> None:
    made = world()
    token = tokens.read(made.ask("cluster.token.create")["token"])
    guess = token._replace(secret=b"g" * 16)
    assert said(made, wish(guess.text(), request_pem))[1][0] == errors.JOIN_REFUSED
    made.hello("router")
    assert made.controller._own_stats()["joins_refused"] == 1
    told = repr([effect.event for effect in made.effects if isinstance(effect, c.Record)])
    assert token.secret.hex() not in told
    assert repr(token.secret)[2:-1] not in told
    assert SECRET not in told


def member(node: str = "c", **given: Any) -> Wish:
    more = {"cluster": "trains", "to": "a", "time_ms": NOW_MS, "addresses": ["tls://10.0.0.3:1"], **given}
    return prove(Wish(node=node, **more), SECRET)


@pytest.mark.requirement("R285")
def test_a_member_makes_its_link_again_and_again_and_takes_it_away() -> None:
    made = world()
    for _ in "12":
        assert said(made, member()) == (True, Admission(node="a"))
    assert links(made)["c"]["addresses"] == ["tls://10.0.0.3:1"]
    taken = said(made, member(addresses=["tls://10.0.0.4:1"]))
    assert taken[1][0] == errors.OBJECT_EXISTS
    for _ in "12":
        assert said(made, member(wish="leave"))[0]
    assert links(made) == {}
    assert "SYSTEM_CLUSTER_LEFT" in events(made)


def test_the_queue_of_a_link_takes_nothing_more_for_a_member_that_is_going_to_leave() -> None:
    made = world()
    said(made, member())

    def takes() -> Any:
        return made.catalog.show("queue", "default", "#link/c")["ingress_enabled"]

    for _ in "12":
        assert said(made, member(wish="part"))[0]
        assert takes() is False
    assert set(links(made)) == {"c"}
    assert said(made, member(wish="stay"))[0]
    assert takes() is True
    assert said(made, member("d", wish="part"))[0], "a node without a link has nothing to shut"


@pytest.mark.requirement("R285")
def test_nobody_else_makes_or_takes_away_a_link() -> None:
    made = world()
    said(made, member())
    for wrong in (
        msgspec.structs.replace(member(wish="leave"), proof=b""),
        prove(msgspec.structs.replace(member(wish="leave"), proof=b""), "another secret"),
        member(wish="leave", to="b"),
        member(wish="leave", time_ms=NOW_MS - 700_000),
    ):
        assert not said(made, wrong)[0]
    assert set(links(made)) == {"c"}


def test_a_node_without_tls_says_how_to_get_it() -> None:
    made = world(urls=("tcp://127.0.0.1:55555",))
    with pytest.raises(errors.InvalidRequestError) as caught:
        made.ask("cluster.token.create")
    assert "angarium keys create" in caught.value.detail
    assert "angarium up --listen tls://" in caught.value.detail


def test_an_operator_ends_a_token(request_pem: str) -> None:
    made = world()
    token = made.ask("cluster.token.create", uses=5, expires_s=60, addresses=["tls://a.example:1"])
    assert token["addresses"] == ["tls://a.example:1"]
    assert "token" not in made.ask("cluster.token.list")[0]
    made.ask("cluster.token.delete", id=token["id"])
    assert made.kept_tokens == []
    assert said(made, wish(token["token"], request_pem))[1][0] == errors.JOIN_REFUSED
