"""The order in which the folders of tests run: the longest modules first, so that no process ends long after others.

And what every test begins with.
"""

from __future__ import annotations

import functools
import gc
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from angarium_server import testing
from tests import forking, share
from tests.command_server import CommandServer
from tests.warm_start import cold, start_warm

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS: Final = Path(__file__).resolve().parent
#: Modules here take up to a minute each; processes that share the tests take one module at a time.
LONG: Final = (
    "spark",
    "failover",
    "acceptance",
    "deploy",
    "mesh",
    "crash",
    "attack",
    "integration",
    "simulation",
)
#: Objects that are made before garbage is looked for: of the CPU time of a simulation a fifth went into looking.
GC_THRESHOLDS: Final = (20_000, 10, 10)
#: Runs the commands of all processes that share the tests.
COMMANDS: Final = CommandServer()


@pytest.fixture(scope="session", autouse=True)
def commands() -> Iterator[CommandServer]:
    """Give what runs the commands of `testing.Node`, whose polling would cost an interpreter for each look."""
    server = COMMANDS if forking.has_collected() else CommandServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_run_command", server.run_text)
        patch.setattr(testing, "_start_process", functools.partial(start_warm, server))
        yield server
    if server is not COMMANDS:
        server.close()


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
    """Sort the tests by folder, long ones first, and leave marathons out; within a folder the order stays."""
    items.sort(key=_rank)
    if not config.getoption("--long"):
        marathons = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=marathons)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole modules, and one of them all that share a session of Spark, whose start is dear."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            folder, _, _ = module.rpartition("/")
            return str(folder if folder.endswith("tests/spark") else module)

    return Scheduling(config, log)


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0]
    return LONG.index(folder) if folder in LONG else len(LONG)
