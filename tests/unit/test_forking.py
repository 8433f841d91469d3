"""Processes that share tests are forks of one that has collected them, and one that dies is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests import forking
from tests.conftest import pytest_xdist_getremotemodule

def pytest_xdist_setupnodes(config):
    forking.collect(config)
"""
MODULE = """
import os, pathlib, signal
with open("imported", "a") as file:
    print(os.getpid(), file=file)

def test_first(worker_id, tmp_path):
    print("said", worker_id)
    assert tmp_path.parent.name == f"popen-{worker_id}"
    pathlib.Path(__name__).write_text(str(os.getppid()))

def test_last():
    assert __name__ != "test_wrong", "as it should be"
"""
DYING = """

def test_dying():
    died = pathlib.Path("died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_tests_are_collected_once_and_a_process_that_dies_is_one_failure(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, text in {"right": MODULE, "wrong": MODULE, "dying": MODULE + DYING}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    plugins = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:anyio"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-rA", *plugins],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk")])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    assert "2 failed, 6 passed" in done.stdout
    assert "as it should be" in done.stdout
    assert "crashed while running 'test_dying.py::test_dying'" in done.stdout
    assert done.stdout.count("\nsaid gw") == 3
    imported = Counter((tmp_path / "imported").read_text().split())
    # Whoever takes the place of the one that died collects on its own.
    assert list(imported.values()) == [3, 3]
    assert {(tmp_path / f"test_{name}").read_text() for name in ("right", "wrong")} == {next(iter(imported))}
