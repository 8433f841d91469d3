"""A broker started for a benchmark: its process, its address, its cost, and its end.

A broker listens on loopback on a port of its own and keeps everything in a directory that the caller gives.
It runs until `stop`; only processes that were started here are ended, by pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.commands.bench.process import Task

ROOT: Final = Path(__file__).resolve().parents[2]
#: RabbitMQ takes 5 to 10 s on an idle machine.
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.05
_OUTPUT_BYTES_MAX: Final = 3_000


class BrokerFailedError(Exception):
    """A broker or a client did not do what a benchmark needs; the text ends with what it printed."""

    @property
    def summary(self) -> str:
        """What happened, and the last line that was printed."""
        lines = str(self).strip().splitlines()
        return " ... ".join(dict.fromkeys((lines[0], lines[-1])))


class Broker:
    """One broker; subclasses say how it is found and started."""

    #: As in `--peers` and in the rows.
    name = ""
    #: The module of its clients.
    client_module = ""
    #: What installs it.
    install = ""
    #: What a confirmed message has behind it; empty for a broker that is used for direct messages.
    durability = ""
    #: Where its clients have an SDK of ours from, if not from the environment.
    sdk: tuple[Path, ...] = ()

    def __init__(self, directory: Path) -> None:
        """Describe a broker that keeps everything in a directory."""
        self.directory = directory / self.name
        self.url = ""
        #: Where it listens, once it was started.
        self._port = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        raise NotImplementedError

    def version(self) -> str:
        """Give its version and that of its client."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and return when clients can connect."""
        raise NotImplementedError

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return peer_python()

    def module_of(self, _task: Task) -> str:
        """Give the module of the client that does a task."""
        return self.client_module

    def settle(self, prefix: str) -> None:
        """Wait, once the subscribers of a run are ready, until whoever publishes with its prefix reaches them."""

    def stop(self) -> None:
        """End what was started, the newest first."""
        while self._processes:
            end_tree(self._processes.pop())

    def strike(self) -> None:
        """Kill what clients are connected to (SIGKILL) and see to it that it starts again at the same address."""
        for one in self._processes:
            for process in tree_of(one.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            one.wait(STOP_TIMEOUT_S)
        self._processes.clear()
        self.start()

    def own_port(self) -> int:
        """Give the port of loopback that clients connect to, the same whenever it starts."""
        self._port = self._port or free_port()
        return self._port

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Give its processes by role."""
        return {"broker": [process for one in self._processes for process in tree_of(one.pid)]}

    def cpu_s(self) -> dict[str, float]:
        """Give the CPU seconds, user and system, that each role has taken so far."""
        return {role: sum(map(_cpu_of, processes)) for role, processes in self.roles().items()}

    def rss_bytes(self) -> dict[str, int]:
        """Give the resident memory of each role."""
        return {role: sum(map(_rss_of, processes)) for role, processes in self.roles().items()}

    def launch(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Start a process of it; what it prints goes to its log."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env={**os.environ, **(environment or {})},
                )
            )

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the newest process lives.

        Raises:
            BrokerFailedError: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            status = self._processes[-1].poll()
            if status is not None or time.monotonic() >= deadline:
                cause = (
                    f"not within {START_TIMEOUT_S:g} s" if status is None else f"ended with status {status}"
                )
                raise self.failure(f"{what}: {cause}")
            time.sleep(_LOOK_INTERVAL_S)

    def failure(self, what: str) -> BrokerFailedError:
        """Give an error with what it printed last."""
        output = self.log_file.read_bytes()[-_OUTPUT_BYTES_MAX:].decode(errors="replace")
        return BrokerFailedError(f"{self.name}: {what}\n{output}")

    @property
    def log_file(self) -> Path:
        """What its processes print."""
        return self.directory / "output.log"


def free_port() -> int:
    """Give a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether somebody accepts connections on a port of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def peer_directory() -> Path:
    """Give the environment of the peers' clients, whether it exists or not."""
    return Path(os.environ.get("ANGARIUM_BENCH_VENV") or ROOT / ".venv-bench")


def peer_python() -> str:
    """Give the interpreter of the peers' clients."""
    return str(peer_directory() / "bin" / "python")


PEER_CLIENTS_INSTALL: Final = (
    "python3 -m venv .venv-bench && .venv-bench/bin/pip install -r benchmarks/peers.txt"
)


def peer_packages(*names: str) -> dict[str, str]:
    """Give the versions of installed packages of the peers' environment; what is missing is not in it."""
    if not Path(peer_python()).exists():
        return {}
    script = (
        "import sys, importlib.metadata as m\n"
        "known = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "[print(name, known[name]) for name in sys.argv[1:] if name in known]"
    )
    done = subprocess.run([peer_python(), "-c", script, *names], capture_output=True, text=True, check=False)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def output_of(*command: str) -> str:
    """Give what a command prints, or nothing if it fails."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def tree_of(pid: int) -> list[psutil.Process]:
    """Give a process and all its descendants that live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Ask a process of ours to end, and make sure that it and its descendants are gone."""
    descendants = tree_of(process.pid)[1:]
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not end within {STOP_TIMEOUT_S:g} s", file=sys.stderr)
    for one in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    _, left = psutil.wait_procs(descendants, timeout=STOP_TIMEOUT_S)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.kill()
    process.wait()


def _cpu_of(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _rss_of(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
