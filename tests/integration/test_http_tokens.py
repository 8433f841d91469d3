"""Tokens at the gateway for HTTP: a good one is of whom it names, and a wrong one lets nobody in as somebody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server.testing import Node
from tests.integration.http_api import Web
from tests.token_issuer import ISSUER, TokenMaker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

MAKER = TokenMaker("ES256")
USERNAMES = """
[vpn.default.username.default]
enabled = true
[vpn.default.username.anna]
[vpn.default.username.ben]
[vpn.default.profile.one]
max_connection_count_per_client_username = 1
[vpn.default.username.single]
client_profile = "one"
[vpn.default.queue.jobs]
permission = "consume"
"""
ISSUERS = f"""
[[issuers]]
name = "login"
issuer = "{ISSUER}"
audience = ["angarium"]
keys_file = "login.pem"
"""
WRONG = {
    "no token": "rubbish",
    "of another key": TokenMaker("ES256", 77, MAKER.key_id).token(sub="anna"),
    "of a stranger": MAKER.token(sub="anna", iss="https://evil.example"),
    "of nobody": MAKER.token(sub="nobody"),
    "ended": MAKER.token(sub="anna", exp=1),
}


@pytest.fixture(scope="module", params=[ISSUERS, ""], ids=["with issuers", "without"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("http")
    (folder / "login.pem").write_bytes(MAKER.pem)
    file = folder / "node.toml"
    file.write_text(USERNAMES + request.param)
    with Node(folder / "data", workers=1, http="http://127.0.0.1:0", config=file) as running:
        yield running


@pytest.mark.requirement("R255")
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_token_is_refused_also_where_nobody_needs_a_password(node: Node, kind: str) -> None:
    web = Web(node)
    refused = web.post("/v1/topics/a", Authorization=f"Bearer {WRONG[kind]}")
    assert (refused.status, refused.code) == (401, errors.UNAUTHORIZED)
    assert web.post("/v1/topics/a").status == 204, "who shows nothing is let in"
    web.close()


@pytest.mark.requirement("R255")
def test_a_good_token_is_whom_it_names_and_so_are_receipts(node: Node) -> None:
    """What anna has on lease is not settled by ben, nor by whoever has no token; it is by her next token."""
    web = Web(node)
    anna, ben = (f"Bearer {MAKER.token(sub=name)}" for name in ("anna", "ben"))
    if "issuers" not in (node.data.parent / "node.toml").read_text():
        assert web.post("/v1/topics/a", Authorization=anna).code == errors.UNAUTHORIZED
        web.close()
        return
    assert web.post("/v1/queues/jobs", b"hello", Authorization=anna).status == 204
    clients = [json.loads(line) for line in node.run("client", "list", "--json").splitlines()]
    assert "anna" in {one["username"] for one in clients if one["sdk"] == "http"}
    (message,) = web.post("/v1/queues/jobs/receive?wait=20", Authorization=anna).value["messages"]
    body = json.dumps({"accepted": [message["receipt"]]}).encode()
    said = {"Content_Type": "application/json"}
    for other in ({"Authorization": ben}, {}):
        assert web.post("/v1/queues/jobs/settle", body, **said, **other).value["unknown"]
    later = f"Bearer {MAKER.token(sub='anna', jti='next')}"
    assert web.post("/v1/queues/jobs/settle", body, **said, Authorization=later).value == {"unknown": []}
    web.close()


@pytest.mark.requirement("R255")
def test_a_renewed_token_is_served_though_its_username_may_have_one_connection(node: Node) -> None:
    """It was refused until the client of the token before had left, which is never beside a stream of events."""
    if "issuers" not in (node.data.parent / "node.toml").read_text():
        return
    web = Web(node)
    tokens = [MAKER.token(sub="single", jti=f"{number}") for number in range(3)]
    for token in (*tokens, tokens[0]):
        assert web.post("/v1/topics/a", Authorization=f"Bearer {token}").status == 204
    other = MAKER.token(sub="single", jti="4", scope="less")
    refused = web.post("/v1/topics/a", Authorization=f"Bearer {other}")
    assert (refused.status, refused.code) == (503, errors.TOO_MANY_CONNECTIONS), "it may mean other rights"
    web.close()
