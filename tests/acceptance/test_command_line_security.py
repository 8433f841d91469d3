"""A node with keys, used from the command line: encryption for clients, keys for operators."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest
from command_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CONFIGURATION = """
[router]
listen = ["tcp://127.0.0.1:0"]
curve_secret_key_file = "node.key"

[admin]
listen = ["tcp://127.0.0.1:0"]
curve_secret_key_file = "node.key"
authorized_keys = ["{operator}"]

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
    """Give a shell with a node that has keys, and the options by which an operator reaches it from afar."""
    shell = Shell(tmp_path_factory.mktemp("secured"))
    for name in ("node", "stranger"):
        shell.run("keys", "curve", f"{name}.key")
    operator = shell.run("keys", "curve", "operator.key", "--json").object["public_key"]
    (shell.folder / "alice.password").write_text("pretzel\n")
    (shell.folder / "node.toml").write_text(CONFIGURATION.format(operator=operator))
    syslog = f"udp://127.0.0.1:{log_server.getsockname()[1]}"
    shell.run("up", "--detach", "--config", "node.toml", "--workers", "1", "--syslog", syslog)
    try:
        log = (shell.data / "log" / "node.log").read_text()
        (url,) = re.findall(r"the admin API listens on (\S+)", log)
        yield shell, ("--admin-url", url, "--server-key-file", "node.key.pub")
    finally:
        shell.run("down")
        shell.clear()


@pytest.fixture
def shell(secured: tuple[Shell, tuple[str, ...]]) -> Shell:
    return secured[0]


@pytest.fixture
def afar(secured: tuple[Shell, tuple[str, ...]]) -> tuple[str, ...]:
    return secured[1]


def test_a_client_with_the_key_of_the_node_and_a_password_gets_in(shell: Shell) -> None:
    key = ("--server-key-file", "node.key.pub")
    shell.run("pub", "a", "x", *key, "--user", "alice", "--password-file", "alice.password")


def test_a_client_without_the_key_or_with_another_one_is_kept_out(shell: Shell) -> None:
    for key in ((), ("--server-key-file", "stranger.key.pub")):
        ended = shell.run("pub", "a", "x", *key, "--timeout", "1", status=1)
        assert ended.err.startswith("error 60003: ")


def test_an_operator_with_a_key_reaches_the_node_from_afar(shell: Shell, afar: tuple[str, ...]) -> None:
    names = [
        row["name"]
        for row in shell.run("username", "list", *afar, "--key-file", "operator.key", "--json").rows
    ]
    assert "alice" in names


def test_the_address_for_clients_is_said_to_be_none_for_operators(
    shell: Shell, afar: tuple[str, ...]
) -> None:
    url = shell.run("status", "--json").object["url"]
    keys = ("--server-key-file", "node.key.pub", "--key-file", "operator.key")
    told = shell.run("status", "--admin-url", url, *keys, status=1).err
    assert told.startswith(f"error 60003: Connect Failed: {url} is an address for clients")
    assert "--admin-url is that of [admin] listen" in told


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
    operator = (*afar, "--key-file", "operator.key")
    client = ("--server-key-file", "node.key.pub", "--user", "alice", "--password-file", "alice.password")
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


def test_an_operator_without_a_known_key_is_kept_out(shell: Shell, afar: tuple[str, ...]) -> None:
    assert shell.run(
        "status", *afar, "--key-file", "stranger.key", "--timeout", "1", status=1
    ).err.startswith("error 4")
    assert shell.run("status", *afar, status=1).err.startswith("error 40018: ")


def test_an_address_that_others_can_reach_needs_keys(tmp_path: Path) -> None:
    refused = Shell(tmp_path).run("up", "--listen", "tcp://0.0.0.0:0", status=1)
    assert refused.err.startswith("error 40017: ")
    assert "angarium keys create" in refused.err
