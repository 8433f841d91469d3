"""The compiled build: what may be compiled, all of it made C, and a share that is built and passes its tests.

`scripts/test --compiled` runs what is in tests/unit and tests/simulation on all of it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: The connections, and what leaves for them; and tests of them.
SHARE = (
    "angarium_server/connections/turns.py",
    "angarium_server/connections/zmtp.py",
    "router/ground/ground.py",
    "router/delivery/egress.py",
)
TESTS = (
    "tests/unit/angarium_server/test_angarium_server_zmtp.py",
    "tests/unit/angarium_server/test_angarium_server_turns.py",
    "tests/unit/router/test_router_egress.py",
    "tests/unit/router/test_router_joining.py",
)


@pytest.fixture(scope="module")
def compiling() -> Any:
    path = f"{os.path.dirname(__file__)}/../../deploy/compiling.py"
    spec = importlib.util.spec_from_file_location("compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_module_that_is_compiled_has_what_would_become_something_else(compiling: Any, root: Path) -> None:
    assert compiling.refusals(root, compiling.MODULES) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Row(msgspec.Struct, array_like=True):\n    index: int", "Row is a class of msgspec"),
        ("class Row(Base, frozen=True):\n    index: int", "Row has the option frozen"),
        ("class Pair(NamedTuple, Generic[T]):\n    first: T", "Pair is a NamedTuple with type parameters"),
        ("@functools.total_ordering\nclass Rank:\n    pass", "Rank is decorated with total_ordering"),
    ],
)
def test_a_class_that_would_lose_something_is_refused(
    compiling: Any, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "module.py").write_text(text)
    (found,) = compiling.refusals(tmp_path, ["module.py"])
    assert reason in found
    with pytest.raises(SystemExit, match="module of its own"):
        compiling.compile_into(tmp_path, tmp_path, ["module.py"])


@pytest.mark.long  # so it does for scripts/test --compiled
@pytest.mark.slow
def test_all_of_it_becomes_c(
    compiling: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interpreter and mypy take, mypyc may refuse: that a whole number is put where a float was."""
    monkeypatch.chdir(root)
    made = compiling.to_c(root, tmp_path)
    assert len(made) == len(compiling.MODULES) + 1
    assert all(os.path.getsize(source) for one in made for source in one.sources)


@pytest.mark.long
@pytest.mark.timeout(600)  # on a loaded machine: a compiler
def test_a_share_of_it_passes_its_tests(compiling: Any, root: Path, tmp_path: Path) -> None:
    compiling.copy_project(root, tmp_path)
    made = compiling.compile_into(tmp_path, tmp_path, SHARE, optimize="0")
    assert len(made) == len(SHARE) + 1, made
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path}/sdk"}
    look = (
        "from angarium_server import launch; from angarium_server.connections import zmtp;"
        "print(zmtp.__file__, launch.is_compiled())"
    )
    found = subprocess.check_output(
        [sys.executable, "-P", "-c", look], env=environment, cwd=tmp_path, text=True, timeout=300
    )
    assert found.startswith(str(tmp_path / "angarium_server/connections/zmtp."))
    assert found.endswith(".so True\n")
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
