"""The command line over the management API: the same output as on the host of the node."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.admin.client import Admin
from cluster.admin.http import HttpOperator, address_fault
from cluster.commands import cli
from cluster.data.node_file import read_node_file
from tests.acceptance import terminal as terminals
from tests.acceptance.command_shell import Shell
from tests.integration.http_api import PASSWORD, managed_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium_server.testing import Node

    Run = Callable[[str], tuple[int, str, str]]

pytestmark = pytest.mark.slow

#: What each of them prints does not depend on when it is asked.
SEEING = """
vpn list
vpn show default
username list --json
profile show default
acl list -o name
queue list
queue list --json
queue show orders
queue show orders --json
queue messages orders --json
message show orders 1
message show orders 1 --json
queue show none
queue messages none
topic-endpoint list --json
template list
link list
bridge list
webhook list
operator list
operator show admin --json
client list
client show nobody
subscription list --json
gateway list
cluster status --json
config export
events --limit 3
queue list --vpn none
"""
#: Each is done on either way, in a Message VPN of its own, and has to print the same.
CHANGING = """
vpn create W
queue create a/b --vpn W --subscription 'a/>' --set max_spool_usage_mb=10
queue create target --vpn W
queue update a/b --vpn W --set max_spool_usage_mb=11
queue update a/b --vpn W --set max_spool_usage_mb=x
queue update a/b --vpn W --set nothing=1
queue show a/b --vpn W --json
queue copy a/b target --vpn W
queue purge a/b --vpn W --yes
queue purge none --vpn W --yes
queue delete a/b --vpn W --yes
queue delete a/b --vpn W --yes
username create u --vpn W --set enabled=false
username update u --vpn W --password-file PASSWORD
username show u --vpn W --json
acl create deny --vpn W
profile create p --vpn W --set max_connection_count_per_client_username=3
template create t --vpn W --set name_filter='x/>'
topic-endpoint create te --vpn W
client disconnect nobody --vpn W
"""


def commands(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("management")) as running:
        running.run("queue", "create", "orders")
        running.run("pub", "--queue", "orders", "héllo", "--property", "n=1")
        yield running


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    return file


@pytest.fixture
def here(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(line: str) -> tuple[int, str, str]:
        status = cli.run([*shlex.split(line), "--data", str(node.data)])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def over_http(node: Node, password: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    way = [
        "--management",
        node.management_url,
        "--operator",
        "admin",
        "--operator-password-file",
        str(password),
    ]

    def run(line: str) -> tuple[int, str, str]:
        status = cli.run([*shlex.split(line), *way])
        return (status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("line", commands(SEEING))
def test_what_a_command_shows_is_the_same_over_http(line: str, here: Run, over_http: Run) -> None:
    assert _timeless(over_http(line)) == _timeless(here(line))


def _timeless(said: tuple[int, str, str]) -> tuple[int, str, str]:
    """Give it without how long the node has been up: a second may pass between two commands."""
    status, out, err = said
    return status, re.sub(r'"uptime_s":[\d.]+', '"uptime_s":N', out), err


def test_what_a_command_changes_is_the_same_over_http(here: Run, over_http: Run, password: Path) -> None:
    for line in commands(CHANGING):
        line = line.replace("PASSWORD", str(password))
        status, *texts = over_http(re.sub(r"\bW\b", "away", line))
        expected = here(re.sub(r"\bW\b", "here", line))
        assert (status, *[_unnumbered(text.replace("away", "here")) for text in texts]) == (
            expected[0],
            *map(_unnumbered, expected[1:]),
        ), line


def _unnumbered(text: str) -> str:
    """Give a text without numbers: the node gives each queue its own, and homes in turn."""
    return re.sub(r"\d+", "N", text)


def test_a_command_says_what_is_missing(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], password: Path
) -> None:
    assert cli.run(["status", "--management", node.management_url]) == 1
    assert "--operator and --operator-password-file" in capsys.readouterr().err
    assert cli.run(["status", "--management", "tcp://127.0.0.1:1"]) == 2
    assert "is no address of a management API" in capsys.readouterr().err
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    way = ["--operator", "admin", "--operator-password-file"]
    assert cli.run(["status", "--management", node.management_url, *way, str(wrong)]) == 1
    assert f"error {errors.UNAUTHORIZED}" in capsys.readouterr().err
    assert cli.run(["status", "--management", "http://127.0.0.1:1", *way, str(password)]) == 1
    assert f"error {errors.CONNECT_FAILED}" in capsys.readouterr().err


def test_a_context_has_the_address_and_the_operator(
    node: Node,
    password: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = ["context", "add", "far", "--management", node.management_url, "--operator", "viewer"]
    assert cli.run([*made, "--operator-password-file", str(password)]) == 0
    assert cli.run(["queue", "show", "orders", "--context", "far"]) == 0
    capsys.readouterr()
    assert cli.run(["queue", "create", "mine", "--context", "far"]) == 1
    assert f"error {errors.OPERATOR_DENIED}" in capsys.readouterr().err


def test_the_password_is_asked_for_on_a_terminal_and_never_shown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "COMMAND", [str(Path(sys.executable).with_name("angarium"))])
    way = ("--management", node.management_url, "--operator", "admin")
    for given, told, status in ((PASSWORD, "orders", 0), ("wrong", f"error {errors.UNAUTHORIZED}", 1)):
        with terminals.terminal(Shell(node.data), "queue", "list", *way) as shown:
            shown.wait_for("Password of operator admin: ")
            shown.press(f"{given}\n")
            text = shown.end(status)
        assert told in text
        assert given not in text


def test_what_is_something_else_is_told(node: Node) -> None:
    health = read_node_file(node.data).health
    with (
        Admin(admin_url=health, operator=HttpOperator("admin", PASSWORD)) as admin,
        pytest.raises(errors.ConnectionLostError, match="is something else"),
    ):
        admin.call("status")
    assert address_fault("http://127.0.0.1:8090") == ""
    for text in ("http://127.0.0.1", "ftp://a:1", "http://a:1/x", "http://u@a:1", "http://[::1", "x"):
        assert address_fault(text), text
