"""Has the processes that share the tests be forks of one that has collected them.

xdist starts an interpreter for each, and each imports and collects all tests again, for seven seconds of CPU time. Here
the controller collects, and what xdist takes for new interpreters are forks of it, which say at once what they have.
The rest is xdist's own, but that two messages tell of a test, not six. Of a process that dies the place is taken by one
that is started as usual.
"""

from __future__ import annotations

import ast
import atexit
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import xdist.remote
from _pytest.config import create_terminal_writer
from _pytest.junitxml import xml_key
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

_DISTRIBUTION: Final = "dsession"
#: Plugins of the controller alone, which a fork has too.
_OF_THE_CONTROLLER: Final = (_DISTRIBUTION, "terminaldistreporter", "terminalreporter")

_collected: pytest.Session | None = None
#: Whether the process that was started last is a fork.
_is_fork = False


def collect(config: pytest.Config) -> None:
    """Collect the tests of a run that is shared, before xdist starts processes, and fork these.

    If something cannot be collected, they are started as usual: each of them finds it again, and says what it is.
    """
    global _collected
    session: Any = config.pluginmanager.get_plugin("session")
    distribution = config.pluginmanager.get_plugin(_DISTRIBUTION)
    config.pluginmanager.subset_hook_caller("pytest_collection", [distribution])(session=session)
    failed, session.testsfailed = session.testsfailed, 0
    if failed:
        return
    _collected = session
    sys.stdout.flush()
    sys.stderr.flush()
    forks: list[Fork] = []
    for _ in config.option.tx:
        forks.append(Fork(config, forks))
    gateway_io.Popen2IOMaster = _taking(forks)  # type: ignore[misc]


def has_collected() -> bool:
    """Tell whether processes are forks of this one, or this one is such a fork."""
    return _collected is not None


def remote_module() -> ModuleType | None:
    """Give what the process runs that xdist has started last; None: what xdist says."""
    return sys.modules[__name__] if _is_fork else None


class Fork:
    """A fork of this process, as execnet uses a `subprocess.Popen` of an interpreter."""

    def __init__(self, config: pytest.Config, others: list[Fork]) -> None:
        told, stdin = os.pipe()
        stdout, tells = os.pipe()
        self.pid = os.fork()
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        if self.pid == 0:
            for one in (*others, self):
                one.stdin.close()
                one.stdout.close()
            _be_an_interpreter(config, told, tells)
        os.close(told)
        os.close(tells)

    def wait(self) -> int:
        """Wait until it has ended, and give its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


def _taking(forks: list[Fork]) -> Any:
    """Give what execnet makes to talk to a new interpreter: it takes one of the forks while there are some."""

    class ForkIO(gateway_io.Popen2IOMaster):
        def __init__(self, args: list[str], execmodel: Any) -> None:
            global _is_fork
            _is_fork = bool(forks)
            if forks:
                self.popen = fork = forks.pop(0)
                Popen2IO.__init__(self, fork.stdin, fork.stdout, execmodel=execmodel)
            else:
                super().__init__(args, execmodel)

    return ForkIO


def _be_an_interpreter(config: pytest.Config, told: int, tells: int) -> NoReturn:
    """Do what execnet has an interpreter do that it starts: run what comes on a line of standard input."""
    status = 1
    try:
        _capturing(config).stop_global_capturing()
        for number, fd in enumerate((told, tells)):
            os.dup2(fd, number)
            os.close(fd)
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(0, 4096)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        exec(ast.literal_eval(line.decode()), {})
        status = 0
    except BaseException:  # noqa: BLE001 - told as by an interpreter, which is not left in the usual way
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def work(channel: Any) -> None:
    """Run tests for the controller, as the module of xdist does that is run at this place in a new interpreter."""
    assert _collected is not None
    given, _, options, _ = channel.receive()
    session, config = _collected, _collected.config
    _leave_to_the_controller(config)
    os.environ["PYTEST_XDIST_WORKER"] = given["workerid"]
    config.workerinput, config.workeroutput = given, {}  # type: ignore[attr-defined]
    xdist.remote.setup_config(config, options["basetemp"])
    temporary = config._tmp_path_factory  # type: ignore[attr-defined]
    temporary._given_basetemp, temporary._basetemp = Path(options["basetemp"]), None
    _capturing(config).start_global_capturing()
    worker = _Terse(config, channel) if _is_terse(config) else xdist.remote.WorkerInteractor(config, channel)
    worker.pytest_sessionstart(session)
    worker.pytest_collection_finish(session)
    status = 2
    try:
        config.hook.pytest_runtestloop(session=session)
        status = int(session.testsfailed > 0)
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=status)
        config._ensure_unconfigure()


class _Terse(xdist.remote.WorkerInteractor):  # type: ignore[misc]
    """Tells the controller what it shows of a test: not that it begins, was prepared well, and was tidied up."""

    def pytest_runtest_logstart(self) -> None:
        pass

    def pytest_runtest_logfinish(self) -> None:
        pass

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed:
            report.keywords = {}
        if report.when == "call" or not report.passed:
            super().pytest_runtest_logreport(report)


def _is_terse(config: pytest.Config) -> bool:
    """Tell whether nobody asked for times or for a file of results, which have all parts of a test."""
    return not config.option.xmlpath and config.option.durations is None


def _leave_to_the_controller(config: pytest.Config) -> None:
    """Have nothing here that reports to the terminal or writes files about all tests."""
    for name in _OF_THE_CONTROLLER:
        config.pluginmanager.unregister(name=name)
    config.pluginmanager.register(_Silent(config), "terminalreporter")
    xml = config.stash.get(xml_key, None)
    if xml is not None:
        config.pluginmanager.unregister(xml)
        del config.stash[xml_key]


class _Silent:
    """Who reports to the terminal: nobody; but who writes there what all threads do has something to write to."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.__stderr__)


def _capturing(config: pytest.Config) -> Any:
    return config.pluginmanager.getplugin("capturemanager")


if __name__ == "__channelexec__":  # xdist has the source of this module run in each process
    from tests import forking

    forking.work(channel)  # type: ignore[name-defined] # noqa: F821
