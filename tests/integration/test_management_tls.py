"""The management API over TLS: whose certificate it shows, reload, and the command line that checks it."""

from __future__ import annotations

import shutil
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium import errors
from cluster.admin.client import Admin
from cluster.commands import cli
from tests.integration.certificates import Authority, Pair
from tests.integration.http_api import PASSWORD, Api, managed_node, place_of, received
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

LISTEN = "https://127.0.0.1:0"


class Secured(NamedTuple):
    """A node whose management process has a certificate of its own; its router has none."""

    node: Node
    authority: Authority
    pair: Pair
    folder: Path

    def api(self) -> Api:
        return Api(self.node.management_url, context=self.authority.client_context())

    def command(self, line: str, *more: str) -> int:
        """Run a command that takes this way, and give its exit code."""
        way = ("--management", self.node.management_url, "--operator", "admin")
        return cli.run(
            [*line.split(), *way, "--operator-password-file", str(self.folder / "password"), *more]
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("management")
    authority = Authority(folder / "authority")
    pair = authority.issue("node")
    config = f'[management]\ntls_cert_file = "{pair.cert}"\ntls_key_file = "{pair.key}"\nrequest_timeout_ms = 700\n'
    with managed_node(folder, config, LISTEN) as running:
        yield Secured(running, authority, pair, folder)


def shown_by(node: Node) -> str:
    """Give the certificate that new connections see."""
    return ssl.get_server_certificate(place_of(node), timeout=10)


def test_operators_come_in_by_tls_alone(secured: Secured) -> None:
    assert secured.node.management_url.startswith("https://")
    api = secured.api()
    assert api.do("operators.me").value["name"] == "admin"
    assert api.send("GET", "/api/v1/me", Host="any.name").status == 200, "the certificate says who it is"
    api.close()
    with socket.create_connection(place_of(secured.node), 10) as plain:
        plain.sendall(b"GET /api/v1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1 2" not in received(plain)


def test_old_versions_of_tls_are_refused(secured: Secured) -> None:
    context = secured.authority.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # or this side would not even ask
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    by_the_server = pytest.raises(ssl.SSLError, match=r"EOF|ALERT_PROTOCOL_VERSION")
    with socket.create_connection(place_of(secured.node), 10) as line, by_the_server:
        context.wrap_socket(line, server_hostname="127.0.0.1")


def test_who_never_shakes_hands_is_let_go_and_others_come_in_meanwhile(secured: Secured) -> None:
    silent = [socket.create_connection(place_of(secured.node), 10) for _ in range(20)]
    api = secured.api()
    assert api.do("operators.me").status == 200
    for one in silent:
        assert received(one) == b""
    api.close()


def test_the_command_line_checks_the_certificate(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = str(secured.authority.cert)
    assert secured.command("queue list", "--ca-file", trusted) == 0
    capsys.readouterr()
    stranger = Authority(tmp_path / "stranger")
    for untrusted in ((), ("--ca-file", str(stranger.cert))):
        assert secured.command("queue list", *untrusted) == 1
        told = capsys.readouterr().err
        assert f"error {errors.TLS_FAILED}" in told
        assert "--ca-file" in told
        assert PASSWORD not in told


def test_a_certificate_for_another_host_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("node", "DNS:elsewhere.example")
    config = f'[management]\ntls_cert_file = "{pair.cert}"\ntls_key_file = "{pair.key}"\n'
    with managed_node(tmp_path, config, LISTEN) as node:
        secured = Secured(node, authority, pair, tmp_path)
        assert secured.command("queue list", "--ca-file", str(authority.cert)) == 1
        assert f"error {errors.TLS_FAILED}" in capsys.readouterr().err


def test_a_renewed_certificate_is_shown_after_a_reload_and_a_damaged_one_changes_nothing(
    secured: Secured,
) -> None:
    early, before = secured.api(), shown_by(secured.node)
    assert early.do("operators.me").status == 200
    renewed = secured.authority.issue("renewed")
    shutil.copy(renewed.key, secured.pair.key)
    shutil.copy(renewed.cert, secured.pair.cert)
    assert shown_by(secured.node) == before, "nobody has asked for it yet"
    assert early.do("keys.reload").status == 200
    after = shown_by(secured.node)
    assert after != before
    assert early.do("operators.me").status == 200
    whole = secured.pair.cert.read_bytes()
    secured.pair.cert.write_bytes(whole[: len(whole) // 2])
    try:
        refused = early.do("keys.reload")
        assert (refused.status, refused.code) == (400, errors.INVALID_CONFIGURATION)
        assert str(secured.pair.cert) in refused.value["detail"]
        assert shown_by(secured.node) == after
    finally:
        secured.pair.cert.write_bytes(whole)
    early.close()


def test_a_process_that_is_replaced_shows_the_certificate_again(secured: Secured) -> None:
    shown = shown_by(secured.node)
    secured.node.kill("management")

    def is_back() -> bool:
        try:
            return shown_by(secured.node) == shown
        except OSError:
            return False

    wait_until(is_back, "the management process")


def test_without_one_of_its_own_it_shows_the_certificate_of_the_router(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("node")
    config = (
        '[router]\nlisten = ["tls://127.0.0.1:0"]\n'
        f'tls_cert_file = "{pair.cert}"\ntls_key_file = "{pair.key}"\n'
    )
    with managed_node(tmp_path, config, LISTEN) as node:
        secured = Secured(node, authority, pair, tmp_path)
        api = secured.api()
        assert api.do("operators.me").status == 200
        api.close()
        before = shown_by(node)
        renewed = authority.issue("renewed")
        shutil.copy(renewed.key, pair.key)
        shutil.copy(renewed.cert, pair.cert)
        with Admin(node.data) as admin:
            admin.call("keys.reload")
        assert shown_by(node) != before
        assert secured.command("status", "--ca-file", str(authority.cert)) == 0


def test_plain_http_is_for_this_host_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["up", "--data", str(tmp_path / "data"), "--management", "http://0.0.0.0:0"]
    assert cli.run(asked) != 0
    told = capfd.readouterr().err
    assert "https://0.0.0.0:0" in told
