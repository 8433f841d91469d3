"""A real node for tests: start it, use it, break it, stop it. `angarium_server.pytest_plugin` has the fixture.

    def test_orders(angarium_node):
        with angarium.blocking.connect(angarium_node.url) as client:
            client.publish("orders/7", b"two pretzels")

`Node` is the same without pytest's help. A node runs as a process of its own, on a port that the system
chooses, with its data in a directory that the caller gives; when something fails, what the node printed is
shown. What is on disk stays there: `restart`, or another `Node` on the same directory, has the queues and their
messages, and the same port.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, Self
from urllib.parse import urlsplit

from angarium_server import launch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

#: A node is ready within two seconds on an idle machine; test machines are not idle.
READY_TIMEOUT_S: Final = 60.0
#: Longer than any bound of an orderly stop.
STOP_TIMEOUT_S: Final = 60.0
#: How long `wait_for` looks before it gives up.
WAIT_TIMEOUT_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.05
#: A look at the status runs a command: it is followed by so many times what it took, at most, so that the node has more
#: of the machine than who looks at it.
_REST: Final = 2
_REST_MAX_S: Final = 0.2
_OUTPUT_BYTES_MAX: Final = 20_000
_COMMAND_TIMEOUT_S: Final = 60.0
#: What the ready file calls addresses beside `url`.
_DOORS: Final = ("mqtt", "http", "management")

Row = dict[str, Any]


class NodeFailedError(AssertionError):
    """The node did not do what a test needs; the text ends with what it printed."""


class Node:
    """One node in processes of its own; a context manager that stops it."""

    def __init__(
        self,
        data: str | os.PathLike[str],
        *,
        workers: int = 2,
        listen: str | None = "tcp://127.0.0.1:0",
        mqtt: str | None = None,
        http: str | None = None,
        management: str | None = None,
        config: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
    ) -> None:
        """Describe a node; `start` or the context starts it.

        Args:
            data: its data directory; the same one again is the same node again.
            workers: its number of workers, if this is its first start.
            listen: where clients connect; None: as the configuration says.
            mqtt: where clients of MQTT connect; None: as the configuration says, which is nowhere without one.
            http: where clients of HTTP connect; None: as the configuration says, which is nowhere without one.
            management: where its management API is; None: as the configuration says, which is nowhere without one.
            config: its configuration file, if it has one.
            log_level: what its processes log.
        """
        self.data = Path(data)
        self.ready_file = self.data.with_name(f"{self.data.name}.ready.json")
        self.log_file = self.data.with_name(f"{self.data.name}.log")
        #: What the ready file said at the last start; empty before.
        self.ready: Row = {}
        self._command = launch.command("up", "--data", str(self.data), "--ready-file", str(self.ready_file))
        self._command += ["--workers", str(workers), "--log-level", log_level]
        if listen is not None:
            self._command += ["--listen", listen]
        if mqtt is not None:
            self._command += ["--mqtt", mqtt]
        if http is not None:
            self._command += ["--http", http]
        if management is not None:
            self._command += ["--management", management]
        if config is not None:
            self._command += ["--config", str(config)]
        self._process: Started | None = None
        self._ports = contextlib.ExitStack()
        weakref.finalize(self, self._ports.close)  # who stops a node need not start it again

    @property
    def url(self) -> str:
        """Give the address for clients."""
        return str(self.ready["url"])

    @property
    def mqtt_url(self) -> str:
        """Give the first address for clients of MQTT."""
        return str(self.ready["mqtt"][0])

    @property
    def http_url(self) -> str:
        """Give the first address for clients of HTTP."""
        return str(self.ready["http"][0])

    @property
    def management_url(self) -> str:
        """Give the first address of the management API."""
        return str(self.ready["management"][0])

    @property
    def pid(self) -> int:
        """Give the pid of the supervisor."""
        return int(self.ready["pid"])

    def start(self) -> Self:
        """Start the node and return when clients can connect.

        Raises:
            NodeFailedError: it ended, or is not ready in time.
        """
        assert self._process is None, "the node is started already"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        with self._ports:
            self._start()
        text = self.ready_file.read_text(encoding="utf-8")
        self.ready = json.loads(text) if text.strip() else self._kept()
        return self

    def _start(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = _start_process(self._command, log, _environment())
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready_file.exists():
            if self._process.poll() is not None:
                status = self._process.returncode
                self._process = None
                raise self._failure(f"the node ended with status {status} while starting")
            if time.monotonic() >= deadline:
                self.kill_all()
                raise self._failure(f"the node is not ready after {READY_TIMEOUT_S:g} s")
            time.sleep(_LOOK_INTERVAL_S)

    def _kept(self) -> Row:
        """Give where the node listens as its data directory says: on a full disk the ready file is empty."""
        kept = json.loads((self.data / "node.json").read_text(encoding="utf-8"))
        return {"url": kept["urls"][0]}

    def stop(self) -> None:
        """Stop the node in order; nothing happens if it does not run.

        Raises:
            NodeFailedError: it did not stop in time, or not with status 0.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self._failure(f"the node did not stop within {STOP_TIMEOUT_S:g} s") from None
        self._hold_ports()
        if status != 0:
            raise self._failure(f"the node stopped with status {status}")

    def restart(self) -> Self:
        """Stop the node in order, and start it again on its data.

        Raises:
            NodeFailedError: it did not stop, or is not ready in time.
        """
        self.stop()
        return self.start()

    def kill_all(self) -> None:
        """Kill the supervisor at once (SIGKILL); its children die with it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._hold_ports()

    def _hold_ports(self) -> None:
        """Hold where the node listened until it starts again: the system gives its ports to whoever asks for any."""
        for url in chain([self.url] if self.ready else (), *(self.ready.get(name, ()) for name in _DOORS)):
            place = urlsplit(url)
            if place.port:
                with contextlib.suppress(OSError):
                    self._ports.enter_context(_hold(place.hostname or "", place.port))

    def kill(self, role: str, index: int = 0, number: int = signal.SIGKILL) -> int:
        """Send a signal to the process of a role, as it is now, and give its pid."""
        pid = self.process(role, index)["pid"]
        if not pid:  # that would be the caller, with its group
            raise self._failure(f"there is no process {role}.{index} now")
        os.kill(pid, number)
        return int(pid)

    def run(self, *arguments: str) -> str:
        """Run an `angarium` command about this node's data directory and give what it printed.

        It asks no questions before it deletes something: the node is there to be thrown away.

        Raises:
            NodeFailedError: it failed.
        """
        done = _run_command([*arguments, "--data", str(self.data)], {**_environment(), "ANGARIUM_YES": "1"})
        if done.returncode != 0:
            raise self._failure(f"{' '.join(arguments)} ended with status {done.returncode}: {done.stderr}")
        return done.stdout

    def status(self) -> Row:
        """Give what `angarium status --json` prints."""
        found: Row = json.loads(self.run("status", "--json"))
        return found

    def process(self, role: str, index: int = 0) -> Row:
        """Give the row of one process."""
        rows = [row for row in self.status()["processes"] if (row["role"], row["index"]) == (role, index)]
        assert rows, f"the node has no {role}.{index}"
        found: Row = rows[0]
        return found

    def wait_for(self, what: str, condition: Callable[[Row], Any], timeout_s: float = WAIT_TIMEOUT_S) -> Row:
        """Look at the status until a condition holds for it, and give that status.

        Raises:
            NodeFailedError: it did not hold in time; the text has the last status.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            began = time.monotonic()
            try:
                status = self.status()
                if condition(status):
                    return status
                if time.monotonic() >= deadline:
                    raise self._failure(
                        f"{what} did not happen within {timeout_s:g} s; the status is {status}"
                    )
            except NodeFailedError:  # the controller itself may be away for a moment
                if time.monotonic() >= deadline:
                    raise
            time.sleep(max(_LOOK_INTERVAL_S, min(_REST * (time.monotonic() - began), _REST_MAX_S)))

    def output(self) -> str:
        """Give the end of what the node printed."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_bytes()[-_OUTPUT_BYTES_MAX:].decode(errors="replace")
        return ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(f"--- output of the node on {self.data} ---\n{self.output()}", file=sys.stderr)
        try:
            self.stop()
        finally:
            self._ports.close()
            self._remove_runtime_directory()

    def _remove_runtime_directory(self) -> None:
        """Remove what a node that was killed could not remove itself."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            node = json.loads((self.data / "node.json").read_text(encoding="utf-8"))
            runtime = Path(node["runtime"])
            if not _runs(node["pid"]) and runtime.name.startswith("angarium-"):
                shutil.rmtree(runtime, ignore_errors=True)

    def _failure(self, what: str) -> NodeFailedError:
        return NodeFailedError(f"{what}\n--- output of the node on {self.data} ---\n{self.output()}")


def _hold(host: str, port: int) -> socket.socket:
    """Bind and do not listen: that gets no connection, and makes way for who asks for its very port.

    Raises:
        OSError: somebody has it.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


class Started(Protocol):
    """What a test needs of a supervisor; a `subprocess.Popen` has all of it."""

    @property
    def returncode(self) -> int | None:
        """Give its exit code, or None while it runs."""

    def poll(self) -> int | None:
        """Look whether it has ended, and give its exit code."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and give its exit code."""

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def kill(self) -> None:
        """Send it SIGKILL."""


def _start_process(command: list[str], log: BinaryIO, environment: dict[str, str]) -> Started:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _run_command(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        launch.command(*arguments),
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        env=environment,
        check=False,
    )


def _environment() -> dict[str, str]:
    """Give the environment of our commands: what somebody set for their own node is not for one of a test."""
    return {name: value for name, value in launch.environment().items() if not name.startswith("ANGARIUM_")}


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
