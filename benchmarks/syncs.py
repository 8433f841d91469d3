"""How often a broker syncs while it confirms messages: seen from outside, with strace, in a run of its own.

strace makes a broker slow, so the run that counts is not the run that is timed.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.brokers.server import Broker

_CALLS: Final = "fsync,fdatasync,msync,sync_file_range"
#: strace attaches to every thread of every process within this time.
_ATTACH_S: Final = 1.0
_DETACH_TIMEOUT_S: Final = 20.0


class SyncCount:
    """The system calls that made data durable during a block; None if they could not be counted."""

    def __init__(self) -> None:
        self.calls: int | None = None


@contextlib.contextmanager
def counting_syncs(broker: Broker) -> Iterator[SyncCount]:
    """Count the syncs of all processes of a broker during the block; needs strace and the right to trace."""
    found = SyncCount()
    strace = shutil.which("strace")
    if strace is None:
        yield found
        return
    pids = [str(process.pid) for processes in broker.roles().values() for process in processes]
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "calls"
        command = [strace, "-f", "-qq", "-e", f"trace={_CALLS}", "-o", str(output), "-p", ",".join(pids)]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(_ATTACH_S)
        try:
            yield found
        finally:
            tracer.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                tracer.wait(_DETACH_TIMEOUT_S)
            tracer.kill()
            tracer.wait()
        if output.exists():
            found.calls = _calls_in(output.read_text(errors="replace"))


def _calls_in(trace: str) -> int:
    """Count calls; one that was interrupted by another thread has two lines."""
    return sum("sync" in line and "resumed>" not in line for line in trace.splitlines())
