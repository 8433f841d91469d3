"""What the project promises about itself: its language, its packages, its commands for developers."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Parts of scripts that others source.
SOURCED = {"environment", "java"}
SCRIPTS = sorted(
    path
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
    if path.is_file() and path.name not in SOURCED
)


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = table["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[ ;]", one)[0] for one in requirements}


@pytest.mark.requirement("R206")
def test_everything_that_runs_is_python() -> None:
    """The packages hold nothing that is built, and no source in another language."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = packages["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    foreign = [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyi", ".pyc", ".typed"} and path.name != "py.typed"
    ]
    assert foreign == []


@pytest.mark.requirement("R207")
def test_the_packages_that_run_a_node_are_dependencies() -> None:
    assert {"pyzmq", "msgpack", "lmdb", "click", "psutil"} <= names(project()["dependencies"])


@pytest.mark.requirement("R208")
def test_the_packages_that_run_the_tests_are_an_extra() -> None:
    assert {"pytest", "pytest-xdist"} <= names(project()["optional-dependencies"]["test"])


def test_every_dependency_has_an_upper_bound() -> None:
    """A new major version comes in by a change of ours, not by surprise; stubs change nothing that runs."""
    extras = project()["optional-dependencies"].values()
    every = [*project()["dependencies"], *(one for extra in extras for one in extra)]
    assert [one for one in every if "<" not in one and not one.startswith("types-")] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_started_and_says_what_it_is_for(script: Path) -> None:
    assert os.access(script, os.X_OK), f"chmod +x {script.relative_to(ROOT)}"
    first, second = script.read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("#!/usr/bin/env ")
    assert len(second.strip('#" ')) > 20


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_script_is_well_formed_and_stops_at_the_first_failure(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    if "bash" not in text.splitlines()[0]:
        pytest.skip("it is Python")
    assert "set -euo pipefail" in text
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_no_two_test_modules_have_one_name() -> None:
    """Outside packages a module is its file name, and the second one of a name is not collected."""
    modules = [
        path.name for path in (ROOT / "tests").rglob("*.py") if not (path.parent / "__init__.py").exists()
    ]
    assert sorted({one for one in modules if modules.count(one) > 1} - {"conftest.py"}) == []
