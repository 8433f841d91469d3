"""What the command line and a process of a node load, seen in a process of its own: they have to be there at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_help_loads_neither_the_sdk_nor_any_command() -> None:
    code = "import sys; from cluster.commands import cli; cli.run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    for module in (
        "zmq",
        "asyncio",
        "rich",
        "msgspec",
        "angarium",
        "cluster.commands.node.node",
        "cluster.admin.client",
    ):
        assert module not in done.stderr.split(), module


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "router.server",
        "node.server",
        "cluster.supervisor.server",
        "cluster.controller.server",
        "cluster.link.__main__",
    ],
)
def test_a_process_of_a_node_loads_neither_the_client_nor_asyncio(module: str) -> None:
    """They would be a third of the CPU time of its start."""
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert module in loaded
    assert {"asyncio", "angarium.client.client", "cryptography"}.isdisjoint(loaded)


@pytest.mark.slow
def test_only_commands_about_certificates_load_their_library() -> None:
    code = "import sys, cluster.commands.cli; cluster.commands.cli.command_tree(); print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "cluster.commands.node.node" in loaded
    assert "cryptography" not in loaded
