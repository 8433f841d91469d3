"""Processes that wait for their places: which are there, which are taken, what becomes of the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cluster.supervisor.warm import WarmProcesses

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R265")]

LIMIT_S = 60.0
ROUTER, WORKER = ("router", 0), ("worker", 1)
#: Echoes what it is told.
ECHO = "import sys; print(sys.stdin.readline().strip(), flush=True)"


class Starter:
    """Starts programs that echo in place of those of a node."""

    def __init__(self, program: str = ECHO) -> None:
        self._program = program
        self.started: list[tuple[str, str, str]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, role: str, command: list[str], level: str, stdin: int, /) -> subprocess.Popen[bytes]:
        self.started.append((role, command[-1], level))
        process = subprocess.Popen([sys.executable, "-c", self._program], stdin=stdin, stdout=subprocess.PIPE)
        self.processes.append(process)
        return process


def test_each_place_has_its_process_once() -> None:
    starter = Starter()
    with WarmProcesses(starter) as warm:
        warm.fill([ROUTER, WORKER], "INFO")
        assert starter.started == [("router", "0", "INFO"), ("worker", "1", "INFO")]
        taken = warm.take(WORKER, ["--incarnation", "7"], "INFO")
        assert taken is starter.processes[1]
        assert taken.stdout is not None
        with taken.stdout as said:
            assert said.read() == b'["--incarnation", "7"]\n'
        assert taken.wait(LIMIT_S) == 0
        assert warm.take(WORKER, [], "INFO") is None
        assert warm.take(("link", 3), [], "INFO") is None
    assert starter.processes[0].poll() == -9, "who was not taken does not stay"
    assert starter.processes[0].stdout is not None
    starter.processes[0].stdout.close()


def test_one_that_has_died_is_not_used() -> None:
    starter = Starter("")
    with WarmProcesses(starter) as warm:
        warm.fill([ROUTER], "INFO")
        starter.processes[0].wait(LIMIT_S)
        assert warm.take(ROUTER, [], "INFO") is None
    assert starter.processes[0].stdout is not None
    starter.processes[0].stdout.close()


def test_another_level_of_the_log_needs_another_process() -> None:
    starter = Starter()
    with WarmProcesses(starter) as warm:
        warm.fill([ROUTER], "INFO")
        assert warm.take(ROUTER, [], "DEBUG") is None
    assert starter.processes[0].poll() == -9
    assert starter.processes[0].stdout is not None
    starter.processes[0].stdout.close()


def test_what_cannot_be_started_is_missing() -> None:
    def refuse(*_: object) -> subprocess.Popen[bytes]:
        raise OSError("no more processes")

    with WarmProcesses(refuse) as warm:
        warm.fill([ROUTER], "INFO")
        assert warm.take(ROUTER, [], "INFO") is None
