"""Runs `angarium` commands for tests without starting an interpreter for each, which costs more than the command.

A process that has imported every command waits for command lines and forks for each. So a command is a process of its
own, with arguments, environment, directory, standard files and an exit code.
What is not tried here is how a command is found and started: what gets signals or a terminal is started as usual, and
so is whatever tests that. `tests/warm_start.py` has `up`, and the processes of its node, come from here too.
This file is program and client, so that the commands can be those of another
environment.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REQUEST_BYTES_MAX = 1 << 18
#: Generous: a loaded machine is slow.
COMMAND_TIMEOUT_S = 90.0
#: Of the hash of a password that a command or a node makes.
PASSWORD_COST = 1 << 4
#: Before the path of a program, and its arguments, which is run in place of a command.
PROGRAM = "program"
#: Commands that need more than the server has, as Spark; they are imported when they are called.
_NOT_IMPORTED = ("cluster.commands.pipeline",)


class CommandServer:
    """The commands of one environment; the process that forks them starts with the first one."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = threading.Lock()

    def begin(self, environment: Mapping[str, str]) -> None:
        """Start the process now; forks of this one use it too."""
        self._start(environment)

    def run_text(
        self, arguments: list[str], environment: dict[str, str], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `testing.Node`."""
        done = self.run(arguments, environment=environment, timeout_s=COMMAND_TIMEOUT_S, stdin=stdin.encode())
        return subprocess.CompletedProcess(
            arguments, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def run(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        stdin: bytes = b"",
        cwd: str | os.PathLike[str] = ".",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command and give what it printed; its exit code is -1 if it died of a signal."""
        control = self._start(environment)
        request = _packed(arguments, environment, cwd, is_node=list(arguments[:1]) == ["up"])
        with contextlib.ExitStack() as stack:
            given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin)
            given.seek(0)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                fds = [one.fileno() for one in (given, out, err, theirs)]
                socket.send_fds(control, [request], fds)
                theirs.close()
                _, *status = _to_the_end(ours, arguments, timeout_s)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                list(arguments), status[0] if status else -1, out.read(), err.read()
            )

    def start(
        self, arguments: Sequence[str], log: BinaryIO, environment: Mapping[str, str]
    ) -> tuple[int, socket.socket]:
        """Start a node that writes to a log; gives its pid, and where it comes before its exit code."""
        control = self._start(environment)
        request = _packed(arguments, environment, ".", is_node=True)
        ours, theirs = socket.socketpair()
        with theirs, Path(os.devnull).open("rb") as nothing:
            fds = [one.fileno() for one in (nothing, log, log, theirs)]
            socket.send_fds(control, [request], fds)
        pid, _, _ = ours.recv(100, socket.MSG_PEEK).partition(b" ")
        return int(pid), ours

    def run_for(
        self,
        caller: socket.socket,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        standard: list[int],
    ) -> None:
        """Run one command with the standard files of a caller, which are closed here; it is told pid and exit code."""
        control = self._start(environment)
        request = _packed(arguments, environment, folder, is_node=list(arguments[:1]) == ["up"])
        socket.send_fds(control, [request], [*standard, caller.fileno()])
        for fd in standard:
            os.close(fd)

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.terminate()  # a fork may have it open still
            self._process.wait()

    def _start(self, environment: Mapping[str, str]) -> socket.socket:
        with self._starting:
            if self._control is None:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(
                        [self._python, "-P", __file__, str(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        # What is said of one node in variables is not said of what is forked for others.
                        env={name: value for name, value in environment.items() if name[:9] != "ANGARIUM_"},
                        stdin=subprocess.DEVNULL,
                    )
            return self._control


def _packed(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str],
    *,
    is_node: bool = False,
) -> bytes:
    return json.dumps([list(arguments), dict(environment), str(Path(cwd).resolve()), is_node]).encode()


def _to_the_end(ours: socket.socket, arguments: Sequence[str], timeout_s: float) -> list[int]:
    """Give pid and exit code of a command when it has ended."""
    deadline = time.monotonic() + timeout_s
    told = b""
    while True:
        # A poll, since a test may hold more descriptors than `select` knows.
        waiting = select.poll()
        waiting.register(ours, select.POLLIN)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if told:
                os.kill(int(told.split()[0]), signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout_s)
        data = ours.recv(100)
        if not data:
            assert told, f"nobody ran {arguments}"
            return [int(one) for one in told.split()]
        told += data


def _serve(control: socket.socket) -> None:
    """Fork for every request until nobody can send one any more."""
    from importlib import import_module

    from angarium_server import launch

    launch.find_parts()
    cli = import_module("cluster.commands.cli")
    for section in cli.SECTIONS.values():
        for entry in section.values():
            if not entry.module.startswith(_NOT_IMPORTED):
                import_module(entry.module)
    import_module("angarium.blocking")
    # A hash says what it cost, so a cheap one is compared as any other; usual ones were a twentieth of all CPU time.
    passwords: Any = import_module("cluster.security.passwords")
    passwords.COST = PASSWORD_COST
    # What has ended is no zombie, which others would take for a process that still ends.
    signal.signal(signal.SIGCHLD, _reap)
    warm_start: Any = None
    gc.freeze()  # a command copies no page only because it counts what is in it
    while True:
        request, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 4)
        if not request:
            return
        *command, is_node = json.loads(request)
        if is_node and warm_start is None:
            warm_start = _warm_start()
            warm_start.import_roles()
            gc.freeze()
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(cli, command, fds, warm_start if is_node else None)
        for fd in fds:
            os.close(fd)


def _warm_start() -> Any:
    """Import what is beside this file, also where our tests are not found."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("warm_start", Path(__file__).with_name("warm_start.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _reap(_number: int, _frame: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(cli: Any, command: list[Any], fds: list[int], warm_start: Any) -> None:
    """Be the command; one that is a node starts its processes warm."""
    arguments, environment, folder = command
    *standard, told = fds
    os.set_inheritable(told, False)
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    if warm_start is not None:
        warm_start.fork_children(told)
    os.write(told, b"%d " % os.getpid())
    status = 1
    try:
        status = _be_a_program(arguments) if arguments[:1] == [PROGRAM] else cli.run(arguments)
    except Exception:  # noqa: BLE001 - told as by the interpreter, which is not left in the usual way
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os.write(told, b"%d" % status)
        # Taking down every module of the server that is not ours alone would cost more than the command.
        os._exit(status)


def _be_a_program(arguments: list[str]) -> int:
    """Be a program of our tests, which has its client imported."""
    from runpy import run_path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    _, script, *sys.argv[1:] = arguments
    run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
