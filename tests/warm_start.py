"""Starts the nodes of tests without starting an interpreter for each of their processes.

Four fifths of the CPU time of a start go into importing modules, which is the same each time. `up` is a fork of the
process that runs the commands (`tests.command_server`), and a router, a worker, or whatever else the supervisor starts
is a fork of a process that has imported all of them. It is a child of the supervisor, with arguments, environment and
descriptors as usual, so that it can be killed, waited for, and die with it.

What is not tried here is that an interpreter finds our modules, and how much memory a process takes. A test of that
uses the fixture `cold_start` (tests/conftest.py) or `cold`; the installed command in tests/acceptance is started as
usual.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

import msgspec

from angarium_server import launch, testing
from angarium_server.memory.memory import FreedMemory
from cluster.roster.table import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.command_server import CommandServer

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_BYTES_MAX: Final = 1 << 18
#: How long a new process waits until it is a child of the supervisor.
_ADOPTION_S: Final = 5.0


def _imports(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Give what says which modules are imported, and how; a path that is named twice says nothing more."""
    return {
        name: tuple(dict.fromkeys(value.split(os.pathsep)))
        for name, value in environment.items()
        if name.startswith("PYTHON")
    }


#: What the command server imports.
_IMPORTS: Final = _imports(launch.environment())


def import_roles() -> None:
    """Import what the processes of a node run, and make once what each would make for itself.

    Their programs themselves are imported again when they are run.
    """
    import_module("cluster.supervisor.server")
    for role in ROLES.values():
        launch.import_program(role.module)
    _prepare(msgspec.Struct)
    FreedMemory()


def _prepare(kind: type[msgspec.Struct]) -> None:
    """Have msgspec evaluate the types of all fields that are decoded somewhere, which was a fifth of a start."""
    for one in kind.__subclasses__():
        with contextlib.suppress(NameError, TypeError):  # of what nobody decodes
            msgspec.msgpack.Decoder(one)
        _prepare(one)


#: How a node starts elsewhere.
_start_cold: Final = testing._start_process


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Have nodes started as usual meanwhile: an interpreter for each process."""
    warm = testing._start_process
    testing._start_process = _start_cold
    try:
        yield
    finally:
        testing._start_process = warm


def start_warm(
    server: CommandServer, command: list[str], log: BinaryIO, environment: dict[str, str]
) -> testing.Started:
    """Start a node, in place of `testing._start_process`; as usual where other code than ours is to be imported."""
    start = launch.command()
    if command[: len(start)] != start or _imports(environment) != _IMPORTS:
        return _start_cold(command, log, environment)
    return WarmNode(server, command[len(start) :], log, environment)


class WarmNode:
    """A supervisor that the command server has forked, as `testing.Node` uses it."""

    def __init__(
        self, server: CommandServer, arguments: list[str], log: BinaryIO, env: dict[str, str]
    ) -> None:
        self.pid, self._told = server.start(arguments, log, env)
        self._end = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Give its exit code if it has ended."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("up", timeout or 0.0)
            self._ended()
        assert self.returncode is not None
        return self.returncode

    def _ended(self) -> None:
        with self._told:
            _, *status = self._told.recv(100).split()
        os.close(self._end)
        # Who is killed says nothing.
        self.returncode = int(status[0]) if status else -signal.SIGKILL

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)


class _Child:
    """A process of a node, as the supervisor uses it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_children(told: int) -> None:
    """Have the supervisor, which this process becomes, start its children by forks of a process beside it.

    A fork of the supervisor itself would have its sockets, its log and its signal handlers.
    """
    supervisor = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        os.close(told)
        ours.close()
        _fork_for(supervisor, theirs)
    theirs.close()
    popen: Any = subprocess.Popen
    start = launch.module_command("")[:-1]

    def start_child(command: list[str], **options: Any) -> Any:
        if command[: len(start)] != start:
            return popen(command, **options)
        ours.send(json.dumps([command[len(start) :], dict(options["env"]), options["umask"]]).encode())
        return _Child(int(ours.recv(100)))

    subprocess.Popen = start_child  # type: ignore[assignment,misc]


def _fork_for(supervisor: int, requests: socket.socket) -> NoReturn:
    """Fork for each request of a supervisor, until it has ended.

    The process between ends at once, so that the new one is adopted by the supervisor, who has asked the kernel for it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while request := requests.recv(_REQUEST_BYTES_MAX):
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(read)
                os.close(write)
                requests.close()
                _become(json.loads(request), supervisor)
            os.write(write, b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(os.read(read, 100))
        os.close(read)
        os.close(write)
    os._exit(0)


def _become(request: tuple[list[str], dict[str, str], int], supervisor: int) -> NoReturn:
    """Be the process that a command line says."""
    arguments, environment, umask = request
    deadline = time.monotonic() + _ADOPTION_S
    while os.getppid() != supervisor and time.monotonic() < deadline:
        time.sleep(0.0005)
    os.setpgid(0, 0)
    if umask >= 0:
        os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    status: Any = 1
    try:
        launch._run_module()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - told as by the interpreter, which is not left in the usual way
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else status is not None)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
