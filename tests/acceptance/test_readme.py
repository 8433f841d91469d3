"""Every command in a console block of the README runs, in order, in one shell, as a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: What a README may take; a command that hangs is ended.
TIMEOUT_S = 100


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    lines = [line for block in BLOCK.findall(readme()) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """Give a folder like a fresh copy of the project; its environment is the one of this test run."""
    for path in ROOT.iterdir():
        if path.name not in {".venv", ".git", "angarium-data"}:
            (tmp_path / path.name).symlink_to(path)
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f'export PATH="{binaries}:$PATH"\n')
    command = binaries / "angarium"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cluster.cli "$@"\n')
    command.chmod(0o755)
    yield tmp_path
    subprocess.run([command, "down"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)


@pytest.mark.slow
def test_every_command_of_the_readme_runs_and_prints_what_the_readme_says(copy: Path) -> None:
    lines = commands()
    assert lines, "the README has no console block"
    # `wait` gives the exit status of what ran in the background, so a failure there is seen too.
    script = "\n".join(["set -eu", *(line if line != "wait" else "wait $!" for line in lines)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    environment |= {"ANGARIUM_VENV": str(copy / ".venv"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for expected in OUTPUT.findall(readme()):
        printed = iter(done.stdout.splitlines())
        missing = [line for line in expected.splitlines() if line not in printed]
        assert missing == [], done.stdout


def test_the_python_of_the_readme_is_python() -> None:
    for block in PYTHON.findall(readme()):
        compile(block, "README.md", "exec")


def test_the_readme_starts_with_one_sentence() -> None:
    opening = readme().partition("\n\n")[2].partition("\n\n")[0]
    assert opening.count(". ") == 0
    assert opening.endswith(".")
