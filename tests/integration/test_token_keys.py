"""Keys of an issuer at an address: a real HTTP server that renews them, is slow, talks nonsense, or is gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.integration.certificates import Authority
from tests.integration.token_keys import KeyServer
from tests.token_issuer import AUDIENCE, ISSUER, TokenMaker
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
jwks_url = "{{url}}"
ca_file = "{{ca_file}}"
refresh_s = 10
refresh_min_s = 1
timeout_s = 1

[vpn.default.username.alice]
"""


@pytest.fixture
def server() -> Iterator[KeyServer]:
    made = KeyServer()
    try:
        yield made
    finally:
        made.stop()


def started(folder: Path, server: KeyServer, ca_file: str = "") -> Node:
    folder.mkdir(exist_ok=True)
    (folder / "node.toml").write_text(CONFIG.format(url=server.url, ca_file=ca_file))
    return Node(folder / "data", workers=1, config=folder / "node.toml")


def comes_in(node: Node, maker: TokenMaker) -> bool:
    try:
        blocking.connect(node.url, token=maker.token(), timeout_s=LIMIT_S).close()
    except errors.UnauthorizedError:
        return False
    return True


@pytest.mark.requirement("R224")
def test_keys_are_fetched_and_renewed_by_the_first_token_that_needs_it(
    tmp_path: Path, server: KeyServer
) -> None:
    old, new = server.makers[0], TokenMaker("ES256", 30)
    with started(tmp_path, server) as node:
        assert comes_in(node, old)
        assert not comes_in(node, new), "nobody has published that key"
        time.sleep(1.1)
        server.makers = [new, old]
        assert comes_in(node, new), "the login waits for the keys"
        assert comes_in(node, old)
        before = server.asked
        stranger = TokenMaker("ES256", 31)
        for _ in range(20):
            assert not comes_in(node, stranger)
        assert server.asked - before <= 6, "strangers do not decide how often the address is asked"
        with Admin(node.data) as admin:
            assert admin.call("stats")["controller"]["issuer_fetches"] >= 2


@pytest.mark.requirement("R224")
@pytest.mark.parametrize("key_id", [None, "the one"])
def test_a_new_key_without_a_name_of_its_own_is_fetched_too(
    tmp_path: Path, server: KeyServer, key_id: str | None
) -> None:
    """Nobody with a token of it came in before the address was asked again, an hour later without a word."""
    old, new = [TokenMaker("ES256", number, key_id) for number in (34, 35)]
    server.makers = [old]
    with started(tmp_path, server) as node:
        assert comes_in(node, old)
        time.sleep(1.1)
        server.makers = [new]
        assert comes_in(node, new), "the login waits for the keys"
        assert not comes_in(node, old)
        before = server.asked
        stranger = TokenMaker("ES256", 36, key_id)
        for _ in range(20):
            assert not comes_in(node, stranger)
        assert server.asked - before <= 6, "strangers do not decide how often the address is asked"


@pytest.mark.requirement("R224")
@pytest.mark.parametrize(
    "mood",
    [
        "gone",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("huge", "slow", "drip", "wrong", "error", "redirect")
        ),
    ],
)
def test_old_keys_go_on_when_the_address_does_not(tmp_path: Path, server: KeyServer, mood: str) -> None:
    maker, stranger = server.makers[0], TokenMaker("ES256", 31)
    with started(tmp_path, server) as node, Admin(node.data) as admin:
        assert comes_in(node, maker)
        server.stop() if mood == "gone" else setattr(server, "mood", mood)
        time.sleep(1.1)
        began = time.monotonic()
        assert not comes_in(node, stranger)
        assert time.monotonic() - began < 20.0
        assert comes_in(node, maker)
        wait_until(
            lambda: admin.call("stats")["controller"]["issuer_fetches_failed"], "the failure is counted"
        )
        names = [one["event"] for one in admin.call("events")]
        assert names.count("SYSTEM_ISSUER_KEYS_UNUSABLE") == 1
        node.restart()
        assert comes_in(node, maker), "keys are kept over a restart"
        new = TokenMaker("ES256", 32)
        server.mood, server.makers = "serve", [new]
        if mood == "gone":
            server.start()
        wait_until(lambda: comes_in(node, new), "the address is asked again")


def test_kept_keys_of_another_address_do_not_count(tmp_path: Path, server: KeyServer) -> None:
    maker = server.makers[0]
    with started(tmp_path, server) as node:
        assert comes_in(node, maker)
    other = KeyServer()
    try:
        other.makers = [TokenMaker("ES256", 33)]
        with started(tmp_path, other) as node:
            assert not comes_in(node, maker)
            wait_until(lambda: comes_in(node, other.makers[0]), "those of the new address do")
    finally:
        other.stop()


def unusable(admin: Admin) -> list[str]:
    """Give the texts of the events about keys that could not be had."""
    return [one["text"] for one in admin.call("events") if one["event"] == "SYSTEM_ISSUER_KEYS_UNUSABLE"]


@pytest.mark.requirement("R224")
def test_keys_come_over_tls_from_a_server_of_an_authority_of_ones_own(tmp_path: Path) -> None:
    """And from no other one: whoever could put keys there could make tokens."""
    own, wrong = Authority(tmp_path / "own"), Authority(tmp_path / "wrong")
    server = KeyServer(own.issue("login").server_context())
    old, new, forged = server.makers[0], TokenMaker("ES256", 34), TokenMaker("ES256", 35)
    try:
        with started(tmp_path / "node", server, str(own.cert)) as node, Admin(node.data) as admin:
            assert comes_in(node, old)
            time.sleep(1.1)
            server.makers = [new]
            assert comes_in(node, new), "keys are renewed over TLS"
            assert not comes_in(node, old)
            assert unusable(admin) == []
            for context in (wrong.issue("login"), own.issue("elsewhere", "DNS:elsewhere.example")):
                server.context, server.makers = context.server_context(), [forged]
                time.sleep(1.1)
                assert not comes_in(node, forged)
            assert comes_in(node, new), "the keys before stay"
            assert "certificate verify failed" in unusable(admin)[0]
            server.context = own.issue("again").server_context()
            server.makers = [forged, new]
            wait_until(lambda: comes_in(node, forged), "the right server is believed again")
    finally:
        server.stop()


@pytest.mark.requirement("R224")
def test_without_its_authority_a_server_of_keys_is_not_believed(tmp_path: Path) -> None:
    server = KeyServer(Authority(tmp_path / "own").issue("login").server_context())
    try:
        with started(tmp_path / "node", server) as node, Admin(node.data) as admin:
            assert not comes_in(node, server.makers[0])
            assert server.asked == 0, "nothing is asked of somebody unknown"
            assert "certificate verify failed" in unusable(admin)[0]
    finally:
        server.stop()
