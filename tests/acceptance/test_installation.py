"""The two wheels in a fresh environment: what they bring, and that nobody's modules get in their way."""

from __future__ import annotations

import re
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command_shell import Shell
from tests.acceptance.installation import ROOT, clean_environment, lend, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.installation import Installation

pytestmark = pytest.mark.slow

CLIENT = {"angarium", "msgpack", "msgspec"}
#: What somebody set for a node of their own.
THEIRS = {
    "ANGARIUM_CONFIG": "missing.toml",
    "ANGARIUM_CONTEXT": "prod",
    "ANGARIUM_ADMIN_URL": "tcp://prod:1",
}


@pytest.mark.requirement("R272")
def test_the_client_brings_two_packages_and_no_server(installation: Installation) -> None:
    client = installation.client
    assert set(client["distributions"]) == CLIENT
    assert not {"angarium_server", "cluster", "gateway", "node", "router", "storage", "lmdb", "click"} & set(
        client["modules"]
    )


@pytest.mark.requirement("R272")
def test_the_server_adds_one_package_of_ours(installation: Installation) -> None:
    server, client = set(installation.server["modules"]), set(installation.client["modules"])
    assert {name for name in server if name.startswith(("angarium", "pyspark"))} == {
        "angarium",
        "angarium_server",
        "pyspark_angarium",
    }
    assert "angarium_server" not in client
    assert not {"cluster", "gateway", "node", "router", "storage", "tests", "benchmarks"} & server


def test_a_client_without_the_server_names_no_module_that_is_missing(installation: Installation) -> None:
    """Every module of the SDK, those of its extras aside, is imported with the server's packages out of reach."""
    program = """
import importlib, pkgutil, sys
import angarium
for name in ("angarium_server", "cluster", "lmdb", "click", "psutil", "rich", "zmq"):
    sys.modules[name] = None
of_extras = ("angarium.spark", "angarium.pipeline", "angarium.opentelemetry")
for one in pkgutil.walk_packages(angarium.__path__, "angarium."):
    if not one.name.startswith(of_extras) and not one.name.endswith("__main__"):
        importlib.import_module(one.name)
"""
    run(installation.python, "-P", "-c", program)


@pytest.mark.requirement("R275")
def test_the_page_in_an_index_has_no_link_that_leads_nowhere(installation: Installation) -> None:
    program = "import importlib.metadata as m; print(m.metadata('{}')['Description'])"
    targets = []
    for name in ("angarium", "angarium-server"):
        page = run(installation.python, "-P", "-c", program.format(name))
        assert page.startswith("# ")
        targets += re.findall(r"\]\((.+?)\)", page)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_server_brings_the_files_of_its_console(installation: Installation) -> None:
    console = "cluster/management/console/static/"
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / console).rglob("*.*")}
    (wheel,) = installation.wheels.glob("angarium_server-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert there == {name.removeprefix("angarium_server/parts/") for name in names if console in name}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Give a working directory with modules of somebody else that have our names."""
    folder = tmp_path / "service"
    folder.mkdir()
    for name in ("cluster/__init__.py", "node/__init__.py", "router.py", "storage.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open('{path}.ran', 'w')\nraise RuntimeError('{name} ran')\n")
    return folder


@pytest.mark.requirement("R273")
def test_a_node_runs_in_a_directory_that_holds_modules_of_the_same_names(hostile: Path) -> None:
    shell = Shell(hostile)
    # A developer whose shell puts the working directory into the module search path is served as well.
    shell.environment["PYTHONPATH"] = str(hostile)
    shell.finish(shell.start("up", "--detach", "--workers", "1", "--listen", "tcp://127.0.0.1:0"))
    try:
        shell.run("queue", "create", "orders", "--subscription", "orders/>")
        shell.run("pub", "orders/1", "two pretzels", "--mode", "persistent")
        assert shell.run("consume", "orders", "--count", "1", "--raw").out == b"two pretzels\n"
        assert shell.run("status", "--json").object["errors"] == {}
    finally:
        shell.run("down")
    assert list(hostile.rglob("*.ran")) == []


@pytest.fixture(scope="module")
def with_pytest(installation: Installation) -> Installation:
    """Give the installation with pytest, which the server does not bring."""
    lend(installation.python, "pytest", "iniconfig", "packaging", "pluggy", "pygments")
    return installation


def run_pytest(installation: Installation, folder: Path, *options: str) -> str:
    done = subprocess.run(
        [str(installation.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=clean_environment() | THEIRS,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long  # test_how_to.py uses it as its page says
@pytest.mark.requirement("R273")
def test_the_fixture_gives_a_node_in_such_a_directory(with_pytest: Installation, hostile: Path) -> None:
    """Also where somebody set variables for a node of their own, which is none of the tests' business."""
    (hostile / "test_theirs.py").write_text(
        "import angarium.blocking\n\n\n"
        "def test_theirs(angarium_node):\n"
        "    with angarium.blocking.connect(angarium_node.url) as client:\n"
        "        client.publish('orders/1', b'two pretzels')\n"
        "    assert angarium_node.url.startswith('tcp://127.0.0.1:')\n"
        "    assert angarium_node.status()['sessions'] == 0\n"
    )
    assert "1 passed" in run_pytest(with_pytest, hostile)
    assert list(hostile.rglob("*.ran")) == []


def test_the_plugin_costs_a_test_run_that_does_not_use_it_next_to_nothing(
    with_pytest: Installation, tmp_path: Path
) -> None:
    """What is imported decides that, and it is the same on every machine: the plugin and its empty package."""
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    (tmp_path / "conftest.py").write_text(
        "import sys\n\n\ndef pytest_sessionfinish():\n"
        "    print('loaded', sorted(name for name in sys.modules if 'angarium' in name or name == 'zmq'))\n"
    )
    printed = run_pytest(with_pytest, tmp_path, "-s")
    assert "loaded ['angarium_server', 'angarium_server.pytest_plugin']" in printed


def test_another_version_of_the_client_is_refused_with_what_to_do(
    installation: Installation, tmp_path: Path
) -> None:
    """An older client stands before the installed one, as after a partial upgrade."""
    (tmp_path / "angarium").mkdir()
    (tmp_path / "angarium" / "__init__.py").touch()
    older = tmp_path / "angarium-0.0.9.dist-info"
    older.mkdir()
    (older / "METADATA").write_text("Metadata-Version: 2.4\nName: angarium\nVersion: 0.0.9\n")
    done = subprocess.run(
        [str(installation.command), "up"],
        env=clean_environment() | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"error 50330: .*; 0\.0\.9 is installed", done.stderr)
    assert "pip install" in done.stderr
    assert not (tmp_path / "angarium-data").exists()
