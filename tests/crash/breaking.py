"""How a campaign breaks a node: each fault is one real thing done to real processes, and undone after a while.

Only processes of the node that the campaign started are touched, by pid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from tests.crash.watched import processes_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from angarium_server.testing import Node

ROLES = ("worker", "worker", "worker", "router", "router", "controller", "supervisor")
#: A stop of more than five seconds is taken for a hang; both sides of that are tried.
STOP_S = (0.2, 7.0)
FULL_S = (0.5, 3.0)
#: What is left free on a full disk: less than a page.
LEFT_BYTES = 2_048
_BALLAST = "ballast"
#: strace attaches and the next sync comes within this time.
_INJECTION_S = 2.0


class Breaker:
    """Does faults of the chosen kinds to a node."""

    def __init__(
        self,
        node: Node,
        kinds: list[str],
        rng: random.Random,
        disk: Path | None,
        roles: Sequence[str] = ROLES,
    ) -> None:
        """Choose by `rng` only, so that a seed tells what was done; `disk` is the small file system.

        A role that is named more often among `roles` is hit more often; a supervisor is killed, never stopped.
        """
        self._node = node
        self._roles = roles
        self._rng = rng
        self._disk = disk
        doing: dict[str, Callable[[], str]] = {
            "kill": self._kill,
            "stop": self._stop,
            "enospc": self._fill,
            "eio": self._fail_sync,
        }
        self._doing = [doing[kind] for kind in kinds]
        #: What was done -> how often.
        self.done: dict[str, int] = {}

    def break_something(self) -> str:
        """Do one fault, and give what it was."""
        what = self._rng.choice(self._doing)()
        self.done[what] = self.done.get(what, 0) + 1
        return what

    def _pid_of(self, role: str) -> int | None:
        """Give a process of a role that runs now, or None."""
        pids = [row["pid"] for row in processes_of(self._node) if row["role"] == role and row["pid"]]
        return self._rng.choice(pids) if pids else None

    def _kill(self) -> str:
        role = self._rng.choice(self._roles)
        if role == "supervisor":
            self._node.kill_all()
            time.sleep(self._rng.uniform(0.0, 1.0))
            self._node.start()
        else:
            pid = self._pid_of(role)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return f"kill {role}"

    def _stop(self) -> str:
        role = self._rng.choice([role for role in self._roles if role != "supervisor"])
        pid = self._pid_of(role)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(self._rng.uniform(*STOP_S))
            with contextlib.suppress(ProcessLookupError):  # a hung process is replaced
                os.kill(pid, signal.SIGCONT)
        return f"stop {role}"

    def _fill(self) -> str:
        """Leave no room on the disk of the node for a while."""
        assert self._disk is not None
        ballast = self._disk / _BALLAST
        try:
            free = shutil.disk_usage(self._disk).free
            with ballast.open("wb") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(0, free - LEFT_BYTES))
            time.sleep(self._rng.uniform(*FULL_S))
        finally:
            ballast.unlink(missing_ok=True)
        return "enospc"

    def _fail_sync(self) -> str:
        """Let the next sync of a worker fail, as a dying disk does: the process may not go on after that."""
        pid = self._pid_of("worker")
        if pid is None:
            return "eio"
        inject = "inject=fdatasync,fsync,msync:error=EIO:when=1"
        command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", inject, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(_INJECTION_S)
        tracer.terminate()
        tracer.wait()
        return "eio"


def lacking(kinds: list[str], disk: Path | None) -> dict[str, str]:
    """Give the kinds that cannot be done here, with the reason."""
    reasons: dict[str, str] = {}
    if "eio" in kinds and shutil.which("strace") is None:
        reasons["eio"] = "strace is not installed"
    if "enospc" in kinds and disk is None:
        reasons["enospc"] = "no file system can be mounted here"
    return reasons


def describe(counts: dict[str, int]) -> dict[str, Any]:
    """Give what was done, sorted, for the verdict."""
    return dict(sorted(counts.items()))
