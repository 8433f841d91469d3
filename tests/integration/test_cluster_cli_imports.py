"""What the command line loads, seen in a process of its own: `--help` has to be there at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_help_loads_neither_the_sdk_nor_any_command() -> None:
    code = "import sys, cluster.cli; cluster.cli.run(['--help']); print(list(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    for module in ("zmq", "asyncio", "rich", "msgspec", "angarium", "cluster.commands.node", "cluster.admin"):
        assert f"'{module}'" not in done.stderr, module
