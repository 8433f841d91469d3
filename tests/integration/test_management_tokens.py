"""Operators who come in with a token (JWT): whose counts, whose does not, and what is written down of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from cluster.commands import cli
from tests.integration.http_api import PASSWORD, Answer, Api, basic, logins, managed_node
from tests.integration.token_keys import KeyServer
from tests.token_issuer import ISSUER, TokenMaker, handmade, signed_with_public_key
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R258")]

AUDIENCE = "management"
OTHER = "https://other.example"
CONFIG = f"""
[management]
token_issuers = ["login"]
token_audience = ["{AUDIENCE}"]
token_claim = "who.id"
proxies = ["127.0.0.1"]

[[issuers]]
name = "login"
issuer = "{ISSUER}"
audience = ["angarium"]
jwks_url = "{{url}}"
refresh_min_s = 1

[[issuers]]
name = "clients"
issuer = "{OTHER}"
audience = ["angarium"]
keys_file = "{{file}}"
"""
MAKER = TokenMaker("ES256")


def claims(subject: str = "anna@example.com", **changed: Any) -> dict[str, Any]:
    return {"aud": AUDIENCE, "who": {"id": subject}, **changed}


@pytest.fixture(scope="module")
def server() -> Iterator[KeyServer]:
    made = KeyServer()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, server: KeyServer) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("tokens")
    keys = folder / "clients.pem"
    keys.write_bytes(MAKER.pem)
    with managed_node(folder, CONFIG.format(url=server.url, file=keys)) as running:
        for name, subject, *more in (
            ("anna", "anna@example.com", "--set", "role=viewer"),
            ("ben", "ben@example.com", "--set", "enabled=false"),
        ):
            running.run("operator", "create", name, "--set", f"token_subject={subject}", *more)
        yield running


def me(api: Api, token: str) -> Answer:
    return api.send("GET", "/api/v1/me", Authorization=f"Bearer {token}")


def test_an_operator_comes_in_with_a_token_and_has_the_rights_of_the_role(node: Node, api: Api) -> None:
    token = MAKER.token(**claims())
    assert me(api, token).value == {"name": "anna", "role": "viewer", "vpn": ""}
    assert me(api, token).status == 200
    way = {"Authorization": f"bearer {token}"}
    refused = api.send("POST", "/api/v1/operations/keys.reload", {}, **way)
    assert refused.code == errors.OPERATOR_DENIED
    (entry,) = [one for one in logins(node) if one["who"] == "anna"]
    assert (entry["outcome"], entry["address"], entry["role"]) == ("done", "127.0.0.1", "viewer")
    assert entry["asked"] == {"method": "token", "subject": "anna@example.com"}
    kept = "".join(path.read_text() for path in (node.data / "audit").glob("*.jsonl"))
    assert token not in kept
    assert token.rpartition(".")[2] not in kept


WRONG: dict[str, Any] = {
    "ended": lambda: MAKER.token(**claims(exp=int(time.time()) - 100)),
    "endless": lambda: MAKER.token(**claims(exp=None)),
    "of the future": lambda: MAKER.token(**claims(nbf=int(time.time()) + 1_000)),
    "for clients": lambda: MAKER.token(**claims(aud="angarium")),
    "for nobody": lambda: MAKER.token(**claims(aud=None)),
    "of an issuer for clients alone": lambda: MAKER.token(**claims(iss=OTHER)),
    "of a stranger": lambda: MAKER.token(**claims(iss="https://evil.example")),
    "of another key": lambda: TokenMaker("ES256", 77, MAKER.key_id).token(**claims()),
    "of an unknown key": lambda: TokenMaker("ES256", 77).token(**claims()),
    "not signed": lambda: handmade({"alg": "none"}, MAKER.claims(**claims())),
    "signed with the public key": lambda: signed_with_public_key(MAKER, MAKER.claims(**claims())),
    "of another kind of key": lambda: TokenMaker("RS256", 0, MAKER.key_id).token(**claims()),
    "without the claim": lambda: MAKER.token(aud=AUDIENCE),
    "with a number for a name": lambda: MAKER.token(**claims(who={"id": 7})),
    "of nobody": lambda: MAKER.token(**claims("nobody@example.com")),
    "of somebody disabled": lambda: MAKER.token(**claims("ben@example.com")),
    "no token": lambda: "abc",
    "nothing": lambda: "",
}


@pytest.mark.requirement("R259")
@pytest.mark.parametrize("kind", WRONG)
def test_any_other_token_is_refused_and_that_is_written_down(node: Node, api: Api, kind: str) -> None:
    token, before = WRONG[kind](), len(logins(node))
    address = (
        f"192.0.2.{list(WRONG).index(kind)}"  # what repeats from one address is counted, and not written
    )
    way = {"Authorization": f"Bearer {token}", "X_Forwarded_For": address}
    refused = api.send("GET", "/api/v1/me", **way)
    assert (refused.status, refused.code) == (401, errors.UNAUTHORIZED)
    assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
    assert refused.value["detail"]
    assert not token or token not in refused.body.decode()
    (entry,) = logins(node)[before:]
    assert (entry["outcome"], entry["who"], entry["address"]) == (errors.UNAUTHORIZED, "", address)
    assert entry["asked"]["method"] == "token"
    assert entry["asked"]["reason"] == refused.value["detail"]


def test_a_right_that_is_taken_away_is_gone_with_the_next_request(node: Node, api: Api) -> None:
    node.run("operator", "create", "carl", "--set", "token_subject=carl@example.com")
    token = MAKER.token(**claims("carl@example.com"))
    assert me(api, token).status == 200
    node.run("operator", "update", "carl", "--set", "enabled=false")
    assert me(api, token).code == errors.UNAUTHORIZED
    node.run("operator", "update", "carl", "--set", "enabled=true", "--set", "token_subject=other")
    assert me(api, token).code == errors.UNAUTHORIZED


def test_tokens_of_a_key_that_the_issuer_has_begun_to_use_are_taken(server: KeyServer, api: Api) -> None:
    new = TokenMaker("ES256", 78)
    server.makers = [new, MAKER]
    # The address is asked for unknown keys once a second.
    wait_until(lambda: me(api, new.token(**claims())).status == 200, "the new key")
    assert me(api, MAKER.token(**claims())).status == 200
    server.stop()
    try:
        assert me(api, new.token(**claims(jti="another"))).status == 200, "keys that are known go on"
    finally:
        server.start()


def test_tokens_of_a_new_key_with_the_name_of_the_one_before_are_taken(server: KeyServer, api: Api) -> None:
    new = TokenMaker("ES256", 79, MAKER.key_id)
    server.makers = [new]
    wait_until(lambda: me(api, new.token(**claims())).status == 200, "the new key")
    server.makers = [MAKER]
    wait_until(lambda: me(api, MAKER.token(**claims(jti="later"))).status == 200, "the key before")


def test_passwords_go_on_beside_tokens(node: Node, api: Api) -> None:
    assert api.get("/me").value["name"] == "admin"
    without = basic("anna", "")
    assert api.get("/me", Authorization=without).code == errors.UNAUTHORIZED, "she has none"
    assert me(api, PASSWORD).code == errors.UNAUTHORIZED


def test_a_command_shows_a_token(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(MAKER.token(**claims()))
    way = ["--management", node.management_url]
    assert cli.run(["queue", "list", *way, "--token-file", str(file)]) == 0
    monkeypatch.setenv("ANGARIUM_TOKEN_FILE", str(file))
    assert cli.run(["queue", "list", *way]) == 0
    capsys.readouterr()
    file.write_text("no.such.token")
    assert cli.run(["queue", "list", *way]) == 1
    told = capsys.readouterr().err
    assert f"error {errors.UNAUTHORIZED}" in told
    assert "no.such.token" not in told
    assert cli.run(["queue", "list", *way, "--token-file", str(file), "--operator", "admin"]) == 1
    assert "leave out --operator" in capsys.readouterr().err
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    named = ["--operator", "admin", "--operator-password-file", str(password)]
    assert cli.run(["queue", "list", *way, *named]) == 0, "who names an operator shows no token"
