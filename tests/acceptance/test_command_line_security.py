"""A node with certificates, used from the command line: by clients, and by operators from afar."""

from __future__ import annotations

import re
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Whose certificate is believed.
TRUST = ("--ca-file", "authority.pem")
#: Who one is, as the operator of the node.
OPERATOR = ("--cert-file", "operator.pem", "--key-file", "operator.key")

CONFIGURATION = """
[router]
listen = ["tls://127.0.0.1:0"]
tls_cert_file = "node.pem"
tls_key_file = "node.key"

[admin]
listen = ["tls://127.0.0.1:0"]
tls_client_ca_file = "authority.pem"
operators = ["operator"]

[vpn.default.username.alice]
password_file = "alice.password"
"""


@pytest.fixture(scope="module")
def log_server() -> Iterator[socket.socket]:
    """Give a syslog server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)
        yield server


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, log_server: socket.socket
) -> Iterator[tuple[Shell, tuple[str, ...]]]:
    """Give a shell with a node that has certificates, and the options by which operators reach it from afar."""
    shell = Shell(tmp_path_factory.mktemp("secured"))
    (shell.folder / "elsewhere").mkdir()
    shell.run("keys", "create", "node")
    for name in ("operator", "stranger", "elsewhere/operator"):
        shell.run("keys", "create", name, "--client")
    (shell.folder / "alice.password").write_text("pretzel\n")
    (shell.folder / "node.toml").write_text(CONFIGURATION)
    syslog = f"udp://127.0.0.1:{log_server.getsockname()[1]}"
    shell.run("up", "--detach", "--config", "node.toml", "--workers", "1", "--syslog", syslog)
    try:
        log = (shell.data / "log" / "node.log").read_text()
        (url,) = re.findall(r"the admin API listens on (\S+)", log)
        yield shell, ("--admin-url", url, *TRUST)
    finally:
        shell.run("down")
        shell.clear()


@pytest.fixture
def shell(secured: tuple[Shell, tuple[str, ...]]) -> Shell:
    return secured[0]


@pytest.fixture
def afar(secured: tuple[Shell, tuple[str, ...]]) -> tuple[str, ...]:
    return secured[1]


def test_a_client_that_trusts_the_authority_and_has_a_password_gets_in(shell: Shell) -> None:
    shell.run("pub", "a", "x", *TRUST, "--user", "alice", "--password-file", "alice.password")


def test_a_client_that_trusts_another_authority_stays_out(shell: Shell) -> None:
    for trust in ((), ("--ca-file", "elsewhere/authority.pem")):
        ended = shell.run("pub", "a", "x", *trust, "--timeout", "1", status=1)
        assert ended.err.startswith("error 60006: ")


def test_the_authority_of_a_cluster_is_trusted_on_the_host_of_a_node_that_joined_it(shell: Shell) -> None:
    own = shell.data / "cluster" / "authority.pem"
    own.parent.mkdir(exist_ok=True)
    shutil.copy(shell.folder / "authority.pem", own)
    alice = ("--user", "alice", "--password-file", "alice.password")
    try:
        shell.run("pub", "a", "x", *alice)
        told = shell.run("pub", "a", "x", *alice, "--ca-file", "elsewhere/authority.pem", status=1).err
        assert told.startswith("error 60006: ")
        assert "--ca-file FILE" in told
    finally:
        own.unlink()


def test_an_operator_with_a_certificate_reaches_the_node_from_afar(
    shell: Shell, afar: tuple[str, ...]
) -> None:
    names = [row["name"] for row in shell.run("username", "list", *afar, *OPERATOR, "--json").rows]
    assert "alice" in names


def test_a_context_leads_an_operator_to_the_node(shell: Shell, afar: tuple[str, ...]) -> None:
    shell.run("context", "add", "far", *afar, *OPERATOR)
    assert "alice" in shell.run("username", "list", "--context", "far", "-o", "name").lines


def test_the_address_for_clients_is_said_to_be_none_for_operators(shell: Shell) -> None:
    url = shell.run("status", "--json").object["url"]
    told = shell.run("status", "--admin-url", url, *TRUST, *OPERATOR, status=1).err
    assert told.startswith(f"error 60003: Connect Failed: {url} is an address for clients")
    assert "--admin-url is that of [admin] listen" in told
    assert "is no address for operators" in shell.run("status", "--admin-url", "tcp://a:1", status=2).err


@pytest.mark.requirement("R42")
def test_events_go_to_a_syslog_server(shell: Shell, log_server: socket.socket) -> None:
    shell.run("queue", "create", "told")
    message = ""
    while "'told'" not in message:
        message = log_server.recv(65_536).decode()
    assert message.startswith("<134>1 ")
    assert " angarium - SYSTEM_CONFIG_CHANGE [angarium@0 " in message


@pytest.mark.requirement("R97")
def test_an_operator_fetches_a_backup_from_afar(shell: Shell, afar: tuple[str, ...], tmp_path: Path) -> None:
    operator = (*afar, *OPERATOR)
    client = (*TRUST, "--user", "alice", "--password-file", "alice.password")
    shell.run("queue", "create", "kept", *operator, "--subscription", "to/kept")
    shell.run("pub", "to/kept", "x", *client, "--mode", "persistent")
    file = tmp_path / "far.backup"
    for _ in range(2):
        made = shell.run("spool", "backup", str(file), *operator, "--json").object
        assert made["size_bytes"] == file.stat().st_size
        assert list((shell.data / "copies").iterdir()) == [], "what was fetched is gone there"
        file.rename(tmp_path / "kept.backup")
    other = Shell(tmp_path)
    other.run("spool", "restore", "kept.backup")
    other.run("up", "--detach", "--listen", "tcp://127.0.0.1:0")
    try:
        assert [row["topic"] for row in other.run("queue", "messages", "kept", "--json").rows] == ["to/kept"]
    finally:
        other.run("down")
        other.clear()


@pytest.mark.parametrize(
    ("name", "told"),
    [("stranger", "error 40101: "), ("elsewhere/operator", "error 60006: "), (None, "error 40018: ")],
)
def test_whoever_is_no_operator_is_kept_out(
    shell: Shell, afar: tuple[str, ...], name: str | None, told: str
) -> None:
    who = ("--cert-file", f"{name}.pem", "--key-file", f"{name}.key") if name else ()
    assert shell.run("status", *afar, *who, status=1).err.startswith(told)


def test_an_address_that_others_can_reach_needs_keys(tmp_path: Path) -> None:
    refused = Shell(tmp_path).run("up", "--listen", "tcp://0.0.0.0:0", status=1)
    assert refused.err.startswith("error 40017: ")
    assert "angarium keys create" in refused.err
