"""Builds the two wheels and installs them where nothing of the repository can be found, once for a test run.

The client comes first and alone, so that what it brings is known; then the server beside it. Test processes that run at
the same time share the result. What the server requires is lent to it by our own environment, which pip takes as
installed; with --long it is unpacked, most of the time of it all.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

from tests.share import is_long

ROOT = Path(__file__).resolve().parents[2]
#: Third-party packages may have to be downloaded.
TIMEOUT_S = 240
_LOOK = """
import json, pkgutil
from importlib import metadata
print(json.dumps({
    "modules": sorted(one.name for one in pkgutil.iter_modules()),
    "distributions": {one.name: one.version for one in metadata.distributions()},
}))
"""


class Installation(NamedTuple):
    """A fresh environment with the two distributions in it."""

    folder: Path
    wheels: Path
    #: What `look` found when only the client was installed, and with the server.
    client: dict[str, Any]
    server: dict[str, Any]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "angarium"


def clean_environment() -> dict[str, str]:
    """Give our environment without what leads Python or `angarium` back to the repository."""
    unwanted = ("PYTHON", "ANGARIUM_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def shared_installation(folder: Path) -> Installation:
    """Make the installation in a folder, or take the one that another test process made there."""
    done = folder / "installation.json"
    with (folder / "installation.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(json.dumps(_install(folder)), encoding="utf-8")
    found = json.loads(done.read_text(encoding="utf-8"))
    return Installation(folder / "installed", folder / "wheels", found["client"], found["server"])


def _install(folder: Path) -> dict[str, Any]:
    wheels = folder / "wheels"
    # Our environment has what builds a wheel, and the pip that installs it: making both anew costs more than the rest.
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
    run(Path(sys.executable), "-m", "pip", *build, str(ROOT / "sdk"), str(ROOT))
    venv.create(folder / "installed")
    python = folder / "installed" / "bin" / "python"
    found: dict[str, Any] = {}
    for kind, name in (("client", "angarium"), ("server", "angarium-server")):
        if kind == "server" and not is_long():
            lend(python, *required(wheels) - found["client"]["distributions"].keys())
        install(python, "--find-links", str(wheels), name)
        found[kind] = json.loads(run(python, "-P", "-c", _LOOK))
    return found


def install(python: Path, *what: str) -> None:
    """Install something into the environment of an interpreter, which has no pip."""
    pip = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    run(Path(sys.executable), *pip, *what)


def required(wheels: Path) -> set[str]:
    """Give what the wheel of the server says that it requires, and what that does in turn."""
    (wheel,) = wheels.glob("angarium_server-*.whl")
    (place,) = (one for one in zipfile.Path(wheel).iterdir() if one.name.endswith(".dist-info"))
    todo = [("", line) for line in metadata.PathDistribution(place).requires or ()]
    found: set[str] = set()
    while todo:
        wanted, line = todo.pop()
        one = Requirement(line)
        left_out = one.marker is not None and not one.marker.evaluate({"extra": wanted})
        if left_out or one.name in found or one.name.startswith("angarium"):
            continue
        found.add(one.name)
        more = metadata.requires(one.name) or ()
        todo += [(extra, line) for extra in one.extras or ("",) for line in more]
    return found


def lend(python: Path, *names: str) -> None:
    """Let an interpreter import distributions of our own environment; looking them up and unpacking them is dear."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for name in names:
        found = metadata.distribution(name)
        for top in {
            file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))


def run(python: Path, *arguments: str) -> str:
    """Run Python outside of the repository and give what it printed."""
    done = subprocess.run(
        [str(python), *arguments],
        cwd="/",
        env=clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if "Could not find a version" in done.stderr and "CI" not in os.environ:
        pytest.skip("no package index can be reached, so nothing can be installed")
    assert done.returncode == 0, done.stderr
    return done.stdout
