"""Runs `angarium` commands as a shell would: real processes, of which none is left behind.

They are forked by a process of the installation, which has imported them already, and so are the processes of a node
that `run` starts. `up` in the background is started as a shell does, and with --long whatever goes on there but `sub`.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.acceptance.installation import clean_environment
from tests.share import is_long
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command_server import CommandServer

#: The command that is tried: that of the installation, which conftest.py fills in.
COMMAND: list[str] = []
#: The same as a program that has them forked, which conftest.py fills in.
QUICK: list[str] = []
#: What forks commands of the installation, which conftest.py fills in.
SERVERS: list[CommandServer] = []
#: Generous: a loaded machine is slow, a hang is not the machine's fault.
TIMEOUT_S = 60.0


def background(name: str) -> list[str]:
    """Give how a command is started that is not waited for."""
    return COMMAND if is_long() or name == "up" else QUICK


class Shell:
    """Runs commands against one data directory, and owns the processes it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "angarium-data"
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {**clean_environment(), "ANGARIUM_DATA": str(self.data), "ANGARIUM_YES": "1"}

    def start(self, *arguments: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return self._start([*background(arguments[0]), *arguments], stdin)

    def _start(self, command: list[str], stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> Finished:
        done = self.ask(*arguments, stdin=stdin)
        return _finished(arguments, done.returncode, done.stdout, done.stderr, status)

    def ask(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command that may fail."""
        return SERVERS[0].run(
            arguments, environment=self.environment, timeout_s=TIMEOUT_S, stdin=stdin, cwd=self.folder
        )

    def finish(self, process: subprocess.Popen[bytes], *, status: int = 0) -> Finished:
        out, err = process.communicate(timeout=TIMEOUT_S)
        return _finished(process.args, process.returncode, out, err, status)

    def subscribe(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a `sub` and give it when its subscriptions are in effect."""
        ready = self.folder / f"ready-{len(self._started)}"
        ready.unlink(missing_ok=True)
        process = self._start([*QUICK, "sub", *arguments, "--ready-file", str(ready)])
        self.wait_for_file(ready, process)
        return process

    def wait_for_file(self, ready: Path, process: subprocess.Popen[bytes]) -> None:
        def seen() -> bool:
            assert process.poll() is None, process.communicate()[1].decode()
            return ready.exists()

        wait_until(seen, f"{ready.name}")

    def clear(self) -> None:
        """End what a test left behind, and fail if there was something."""
        left = [process for process in self._started if process.poll() is None]
        for process in left:
            process.kill()
        for process in self._started:
            process.communicate(timeout=TIMEOUT_S)
        self._started.clear()
        assert [process.args for process in left] == []


def _finished(arguments: Any, found: int, out: bytes, err: bytes, status: int) -> Finished:
    assert found == status, f"{arguments} ended with {found}\n{out!r}\n{err.decode()}"
    return Finished(out, err.decode())


class Finished:
    """What a command printed."""

    def __init__(self, out: bytes, err: str) -> None:
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def object(self) -> dict[str, Any]:
        (found,) = self.rows
        return found
