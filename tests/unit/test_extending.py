"""docs/extending.md: its changes fit the code, are few, and pass the checks. `tests/integration` runs the result."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.extending_page import changes, extend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.requirement("R217")
def test_what_the_page_adds_fits_and_passes_the_checks(tmp_path: Path) -> None:
    written = sorted(extend(tmp_path))
    for check in (("check", "-q"), ("format", "-q", "--check")):
        command = [sys.executable, "-m", "ruff", *check, "--no-cache", *written]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("section", "files_max", "lines_max"),
    [("An attribute", 3, 5), ("A metric", 3, 5), ("A kind of process", 3, 5)],
)
def test_what_is_declared_once_takes_few_lines(section: str, files_max: int, lines_max: int) -> None:
    found = list(changes(section))
    assert 0 < len({change.path for change in found}) <= files_max
    assert sum(change.added for change in found) <= lines_max
