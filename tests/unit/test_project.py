"""What the project promises about itself: its language, its packages, its commands for developers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import angarium
import angarium_server
from angarium_server.launch import is_compiled

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "sdk"
#: Parts of scripts that others source.
SOURCED = {"environment", "java", "packages"}
SCRIPTS = sorted(
    path
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
    if path.is_file() and path.name not in SOURCED
)


def project(folder: Path = ROOT) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = table["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[ ;]", one)[0] for one in requirements}


#: What the page of a report has a browser run, on the machine of its reader.
FOR_BROWSERS = {
    "sdk/angarium/pipeline/report/report.css",
    "sdk/angarium/pipeline/report/report.js",
}
#: The same of the console, whose own test looks at each file (test_cluster_management_console.py).
CONSOLE = "cluster/management/console/static/"
FOLDERS = ["sdk", "angarium_server", "cluster", "gateway", "node", "router", "storage"]
#: No text of ours is longer, but source of another language in a string would be.
TEXT_LINES_MAX = 40


@pytest.mark.requirement("R206")
@pytest.mark.skipif(is_compiled(), reason="this copy is compiled in place")
def test_everything_that_runs_is_python() -> None:
    """The packages hold nothing that is built, and no source in another language but for browsers."""
    others = {"pyproject.toml", "README.md", "LICENSE", "py.typed"}
    foreign = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyi", ".pyc"} and path.name not in others
    }
    assert {path for path in foreign if not path.startswith(CONSOLE)} == FOR_BROWSERS


@pytest.mark.requirement("R206")
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_other_language_hides_in_a_string(folder: str) -> None:
    """What is not Python stands in a file of its own, where its reader and its tools find it."""
    long = [
        f"{path.relative_to(ROOT)}:{text.lineno}"
        for path in (ROOT / folder).rglob("*.py")
        for text in long_texts(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert long == []


def long_texts(module: ast.Module) -> list[ast.Constant]:
    """Give the strings that are too long for a text, but for docstrings, which are expressions on their own."""
    docstrings, long = set(), []
    for one in ast.walk(module):
        if isinstance(one, ast.Expr):
            docstrings.add(one.value)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one not in docstrings:
            long += [one] if one.value.count("\n") > TEXT_LINES_MAX else []
    return long


@pytest.mark.requirement("R207")
def test_the_packages_that_run_a_node_are_dependencies() -> None:
    assert {"pyzmq", "msgpack", "lmdb", "click", "psutil"} <= names(project()["dependencies"])


@pytest.mark.requirement("R208")
def test_the_packages_that_run_the_tests_are_an_extra() -> None:
    assert {"pytest", "pytest-xdist"} <= names(project()["optional-dependencies"]["test"])


def test_every_dependency_has_an_upper_bound() -> None:
    """A new major version comes in by a change of ours, not by surprise; stubs change nothing that runs."""
    for table in (project(), project(SDK)):
        every = [
            *table["dependencies"],
            *(one for extra in table["optional-dependencies"].values() for one in extra),
        ]
        outside = [one for one in every if not one.startswith(("types-", "angarium"))]
        assert [one for one in outside if "<" not in one] == []


def test_the_two_distributions_have_one_version_and_need_each_other_in_it() -> None:
    version = project()["version"]
    assert project(SDK)["version"] == angarium.__version__ == angarium_server.__version__ == version
    assert f"angarium=={version}" in project()["dependencies"]
    assert project()["optional-dependencies"]["spark"] == [f"angarium[spark]=={version}"]
    assert project(SDK)["optional-dependencies"]["server"] == [f"angarium-server=={version}"]


@pytest.mark.requirement("R275")
def test_both_distributions_say_what_they_are_and_under_which_licence() -> None:
    assert (ROOT / "LICENSE").read_bytes() == (SDK / "LICENSE").read_bytes()
    for table in (project(), project(SDK)):
        assert table["license"] == "Apache-2.0"
        assert table["authors"] == [{"name": "The Angarium developers"}]
        assert table["classifiers"]
        assert table["keywords"]
        assert {"Homepage", "Documentation", "Changelog", "Issues"} <= table["urls"].keys()


def test_what_both_distributions_depend_on_has_the_same_range() -> None:
    ours = set(project()["dependencies"])
    assert [one for one in project(SDK)["dependencies"] if one not in ours] == []


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


def locked(name: str) -> dict[str, set[str]]:
    """Give what a file of deploy/lock names: package -> its versions; one, or one for each kind of machine."""
    text = (ROOT / "deploy" / "lock" / name).read_text(encoding="utf-8").replace("\\\n", "")
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        package, _, rest = line.partition("==")
        assert "--hash=sha256:" in rest, f"{package} has no hash"
        found.setdefault(package, set()).add(rest.split()[0])
    return found


@pytest.mark.parametrize(
    ("name", "extras"), [("server.txt", []), ("development.txt", ["test", "check", "docs", "spark"])]
)
def test_the_lock_has_a_version_of_everything_that_is_asked_for(name: str, extras: list[str]) -> None:
    found = locked(name)
    for folder in (ROOT, ROOT / "sdk"):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        known = project["project"].get("optional-dependencies", {})
        asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
        asked += [one for extra in extras for one in known.get(extra, [])]
        for requirement in map(Requirement, asked):
            if not requirement.name.startswith("angarium"):
                versions = found[canonicalize_name(requirement.name)]
                assert all(requirement.specifier.contains(one) for one in versions), requirement
    assert not {one for one in found if one.startswith("angarium")}, "ours are not in it"


def ensure_venv(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Call what the scripts call before they install something, on an environment in a folder."""
    program = f'source "{ROOT}/scripts/environment"; ensure_venv'
    return subprocess.run(
        ["bash", "-euc", program],
        env={**os.environ, "ANGARIUM_VENV": str(folder), "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.requirement("R274")
def test_an_environment_without_pip_is_made_again(tmp_path: Path) -> None:
    """What makes it stands for the module `venv`, which would take seconds to install a pip."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\nset -e\n[ "$1 $2" = "-m venv" ]\nmkdir "$3" "$3/bin"\nln -s /bin/true "$3/bin/python"\n'
    )
    python.chmod(0o755)
    assert ensure_venv(tmp_path / "venv", str(python)).returncode == 0
    assert [path.name for path in (tmp_path / "venv").rglob("*")] == ["bin", "python"], (
        "nothing of the old one"
    )


def test_an_environment_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    """Debian's python3 without python3-venv fails half-way, and says which package is missing."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nmkdir -p "{tmp_path}/venv/bin"\nexit 1\n')
    python.chmod(0o755)
    done = ensure_venv(tmp_path / "venv", str(python))
    assert done.returncode == 1
    assert "install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()
