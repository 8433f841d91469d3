"""Starts the nodes of tests without starting an interpreter for each of their processes.

Four fifths of the CPU time of a start go into importing modules, which is the same each time. `up` is a fork of the
process that runs the commands (`tests.command_server`), and a router, a worker, or whatever else the supervisor starts
is a fork of a process that has imported all of them; so is the node of a host of a pair, and one that is detached. It
is a child of who starts it, with arguments, environment and descriptors as usual, so that it can be killed, waited for,
and die with it.

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
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, NoReturn

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
#: Workers that are forked before a node asks for them.
_WAITING_MAX: Final = 4


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
    handshake: Any = import_module("router.access.handshake")
    handshake.DUMMY_HASH = import_module("cluster.security.passwords").unfitting()
    import_module("encodings.idna")
    launch.look_at_types()
    FreedMemory()


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


class _Child(contextlib.AbstractContextManager["_Child"]):
    """A process of a node, as the supervisor uses it, or a node, as the host of a pair does."""

    def __init__(self, pid: int, stdin: BinaryIO | None) -> None:
        self.pid = pid
        self.stdin = stdin
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
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def __exit__(self, *_: object) -> None:
        if self.stdin is not None:
            self.stdin.close()
        self.wait()


def fork_children(told: int | None = None) -> None:
    """Have this process, which becomes a command, start programs of ours by forks of what it was before.

    A fork of the command itself would have its sockets, its log and its signal handlers. What it starts first are the
    processes of a node: these wait for that already. All others are forked by a process beside it.
    """
    command = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    waiting = _processes_at_first()
    first, beside = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    for number in range(waiting + 1):
        if os.fork() == 0:
            if told is not None:
                os.close(told)
            (ours, requests), others = (first, beside) if number < waiting else (beside, first)
            for one in (ours, *others):
                one.close()
            if number < waiting:
                _wait_to_become(command, requests)
            _fork_for(command, requests)
    for pair in (first, beside):
        pair[1].close()
    popen, posix_spawn = _ordinary
    start = launch.command()[:-1]

    def fork(
        program: list[str], fds: Mapping[int, int], environment: Mapping[str, str], **options: Any
    ) -> int:
        nonlocal waiting
        request = _Request(program, list(fds), dict(environment), **options)
        ours = first[0] if waiting > 0 else beside[0]
        waiting -= 1
        socket.send_fds(ours, [json.dumps(request).encode()], list(fds.values()))
        return int(ours.recv(100))

    def start_child(command: list[str], **options: Any) -> Any:
        if command[: len(start)] != start:
            return popen(command, **options)
        mask, program = options.get("umask", -1), command[len(start) :]
        if options["stdin"] != subprocess.PIPE:
            return _Child(fork(program, {}, options["env"], umask=mask), None)
        read, write = os.pipe()
        pid = fork(program, {0: read}, options["env"], umask=mask)
        os.close(read)
        return _Child(pid, os.fdopen(write, "wb"))

    def spawn(path: str, command: list[str], environment: Mapping[str, str], **options: Any) -> int:
        if command[: len(start)] != start:
            return int(posix_spawn(path, command, environment, **options))
        _, (_, _, log, flags, mode), _ = options["file_actions"]
        fd = os.open(log, flags, mode)
        pid = fork(command[len(start) :], {1: fd, 2: fd}, environment, setsid=options["setsid"])
        os.close(fd)
        return pid

    subprocess.Popen = start_child  # type: ignore[assignment,misc]
    os.posix_spawn = spawn  # type: ignore[assignment]


#: What starts programs of others.
_ordinary: Final[tuple[Any, Any]] = (subprocess.Popen, os.posix_spawn)


class _Request(NamedTuple):
    """What process a command wants."""

    #: `angarium_server` or `angarium_server.launch`, and its arguments.
    program: list[str]
    #: As which the descriptors are known that come with it.
    fds: list[int]
    environment: dict[str, str]
    umask: int = -1
    setsid: bool = False


def _processes_at_first() -> int:
    """Give how many processes this command starts soon: controller, router and workers of a node, or a node."""
    arguments = sys.argv[1:]
    if "--detach" in arguments:
        return 1
    _, _, after = " ".join(arguments).partition("--workers ")
    workers = after.partition(" ")[0]
    return 2 + (min(int(workers), _WAITING_MAX) if workers.isdigit() else 2)


def _wait_to_become(command: int, requests: socket.socket) -> NoReturn:
    """Become the process of one request of a command, or end with it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
    if not data:
        os._exit(0)
    _prctl(_PR_SET_PDEATHSIG, 0)
    requests.send(b"%d" % os.getpid())
    requests.close()
    _become(_Request(*json.loads(data)), fds, command)


def _fork_for(command: int, requests: socket.socket) -> NoReturn:
    """Fork for each request of a command, until it has ended.

    The process between ends at once, so that the new one is adopted by the command, who has asked the kernel for it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
        if not data:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(read)
                os.close(write)
                requests.close()
                _become(_Request(*json.loads(data)), fds, command)
            os.write(write, b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(os.read(read, 100))
        for fd in (read, write, *fds):
            os.close(fd)


def _become(request: _Request, fds: list[int], parent: int) -> NoReturn:
    """Be the process that a command line says."""
    deadline = time.monotonic() + _ADOPTION_S
    while os.getppid() != parent and time.monotonic() < deadline:
        time.sleep(0.0005)
    if request.setsid:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for number, fd in zip(request.fds, fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if request.umask >= 0:
        os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    program, *sys.argv[1:] = request.program
    status: Any = 1
    try:
        if program == "angarium_server":
            fork_children()
            status = import_module("cluster.commands.cli").run(sys.argv[1:])
        else:
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
