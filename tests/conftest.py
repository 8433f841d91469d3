"""The order in which the folders of tests run: the longest modules first, so that no process ends long after others.

And what every test begins with.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from angarium.errors import AngariumError
from angarium_server import testing
from cluster.admin.client import Admin
from cluster.commands import cli
from cluster.security import passwords
from tests import forking, share
from tests.command_server import PASSWORD_COST, CommandServer
from tests.warm_start import cold, start_warm

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS: Final = Path(__file__).resolve().parent
#: Modules here take up to a minute each; processes that share the tests take one module at a time. Folders that stand
#: together are mixed: simulations compute while integration tests wait.
LONG: Final = (
    ("spark",),
    ("failover",),
    ("acceptance",),
    ("deploy",),
    ("mesh",),
    ("crash",),
    ("attack",),
    ("integration", "simulation"),
)
#: How the names of modules begin that stay together: a session of Spark, and what runs commands of the installation,
#: with the node that they go to.
TOGETHER: Final = ("tests/spark/", "tests/acceptance/test_command_line", "tests/acceptance/test_")
#: Objects that are made before garbage is looked for: of the CPU time of a simulation a fifth went into looking.
GC_THRESHOLDS: Final = (20_000, 10, 10)
#: Commands that ask a node once, which are about objects and clients.
ASKING: Final = frozenset(name for section in ("Objects", "Clients") for name in cli.SECTIONS[section])
#: Runs the commands of all processes that share the tests.
COMMANDS: Final = CommandServer()


@pytest.fixture(scope="session", autouse=True)
def commands() -> Iterator[CommandServer]:
    """Give what runs the commands of `testing.Node`, whose polling would cost an interpreter for each look."""
    server = COMMANDS if forking.has_collected() else CommandServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_run_command", functools.partial(_run_command, server))
        patch.setattr(testing, "_start_process", functools.partial(start_warm, server))
        yield server
    if server is not COMMANDS:
        server.close()


def _run_command(
    server: CommandServer, arguments: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command of `testing.Node`; `angarium status --json`, of which most are, is a question asked from here.

    So are others that ask the node once and print what it says, but where several threads would print at once.
    """
    if arguments[:-1] != ["status", "--json", "--data"]:
        if arguments[0] in ASKING and threading.current_thread() is threading.main_thread():
            return _run_here(arguments, environment)
        return server.run_text(arguments, environment)
    try:
        with Admin(arguments[-1]) as admin:
            return subprocess.CompletedProcess(arguments, 0, json.dumps(admin.call("status")), "")
    except AngariumError as error:
        return subprocess.CompletedProcess(arguments, 1, "", f"{error}\n")


def _run_here(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which costs a fifth of a fork and what it changes in its memory."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(passwords, "COST", PASSWORD_COST),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = cli.run(arguments)
    printed, told = (one.buffer.getvalue().decode() for one in (out, err))
    return subprocess.CompletedProcess(arguments, status, printed, told)


@pytest.fixture
def cold_start() -> Iterator[None]:
    """Have the nodes of a test started as usual: an interpreter for each process."""
    with cold():
        yield


@pytest.fixture(autouse=True)
def loud() -> None:
    """Undo what a command of ours did that ran in this process before: it says in its own words what is logged."""
    logging.getLogger("angarium").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True, scope="module")
def tidy() -> Iterator[None]:
    """Never look again at what a module leaves behind: that makes garbage dear for all that follow."""
    yield
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Look for garbage seldom; thousands of tests are made next. And have programs that tests start hear Ctrl-C.

    A shell has what it starts in the background ignore it, and every process that comes of that as well.
    """
    share.begin(with_all=config.getoption("--long"))
    gc.set_threshold(*GC_THRESHOLDS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Collect once what several processes share, and start once what runs commands for them."""
    COMMANDS.begin(testing._environment())
    forking.collect(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_getremotemodule() -> Any:
    """Say what xdist has its processes run."""
    return forking.remote_module()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what ran commands for all, which no fork of this process does."""
    if not hasattr(config, "workerinput"):
        COMMANDS.close()


def pytest_collection_finish() -> None:
    """Never look again at what stays to the end: all modules and all tests."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs marathons too."""
    parser.addoption("--long", action="store_true", help="run marathons too: tests that are marked as long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by folder, long ones first, and leave marathons out."""
    _sort(items)
    if not config.getoption("--long"):
        marathons = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=marathons)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole modules, and one of them all modules that share what is dear to start."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            return next((start for start in TOGETHER if start in module), str(module))

    return Scheduling(config, log)


def _sort(items: list[pytest.Item]) -> None:
    """Sort by folder; within one, or several that are mixed, the modules of each keep their order."""
    modules: dict[str, list[Path]] = {}
    for path in dict.fromkeys(item.path for item in items):
        modules.setdefault(path.relative_to(TESTS).parts[0], []).append(path)
    ranks = {folder: rank for rank, folders in enumerate(LONG) for folder in folders}
    places = {
        path: (ranks.get(folder, len(LONG)), at / len(paths))
        for folder, paths in modules.items()
        for at, path in enumerate(paths)
    }
    items.sort(key=lambda item: places[item.path])
