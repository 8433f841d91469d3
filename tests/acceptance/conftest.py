"""The installation that the acceptance tests try, the node that they share, and the shell in which they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance import command_shell
from tests.acceptance.command_shell import Shell
from tests.acceptance.document import Desk
from tests.acceptance.installation import Installation, shared_installation
from tests.acceptance.quick_commands import QuickCommands
from tests.command_server import CommandServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def installation(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Installation]:
    """Give both wheels, installed into an environment of their own; every command runs from there."""
    own = tmp_path_factory.getbasetemp()
    made = shared_installation(own if worker_id == "master" else own.parent)
    command_shell.COMMAND[:] = [str(made.command)]
    command_shell.SERVERS[:] = [CommandServer(str(made.python))]
    # What it imports before the first commands and the first node is in no test's time.
    Shell(tmp_path_factory.mktemp("first")).run("up", "--help")
    yield made
    command_shell.SERVERS[0].close()


@pytest.fixture(scope="session", autouse=True)
def quick(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder with an `angarium` that has the installation fork, as elsewhere in these tests."""
    with QuickCommands(tmp_path_factory.mktemp("q"), command_shell.SERVERS[0]) as commands:
        command_shell.QUICK[:] = [str(commands.folder / "angarium")]
        yield commands.folder


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory, installation: Installation) -> Iterator[Shell]:
    """Give a shell with a running node of two workers; it ends with these tests, since a node is never quite idle."""
    shell = Shell(tmp_path_factory.mktemp("node"))
    shell.run("up", "--detach", "--workers", "2", "--listen", "tcp://127.0.0.1:0")
    try:
        # One test makes the first password; the others go on without one.
        shell.run("username", "update", "default", "--set", "enabled=true")
        yield shell
    finally:
        shell.run("down")


@pytest.fixture
def shell(node: Shell) -> Iterator[Shell]:
    yield node
    node.clear()


@pytest.fixture
def desk(tmp_path: Path, installation: Installation) -> Iterator[Desk]:
    """Give a place where pages of the documentation are read, command by command."""
    desk = Desk(tmp_path, installation.folder / "bin")
    yield desk
    desk.clear()


@pytest.fixture
def quick_desk(desk: Desk, installation: Installation, quick: Path) -> Desk:
    """Give such a place whose `angarium` is that one."""
    desk.use(installation.folder / "bin", instead=quick)
    return desk
