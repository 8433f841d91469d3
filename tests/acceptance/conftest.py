"""The node that the acceptance tests share, and the shell in which they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Give a shell with a running node of two workers."""
    shell = Shell(tmp_path_factory.mktemp("node"))
    shell.run("up", "--detach", "--workers", "2", "--listen", "tcp://127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.run("down")


@pytest.fixture
def shell(node: Shell) -> Iterator[Shell]:
    yield node
    node.clear()
