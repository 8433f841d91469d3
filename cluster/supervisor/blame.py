"""Whether what a dead worker was at (`angarium_server.black_box`) has to do with its death.

A worker that is killed from outside, by an operator or for want of memory, is always at something while it is busy,
and whoever is busiest would be blamed. No step takes longer than a few milliseconds. So a kill from outside counts only
if the step had gone on for far longer; crashes and hangs always count, unless the process was stopped (SIGSTOP).

`cluster.supervisor.server` reads the note and the exit status.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from angarium_server.black_box import Note

#: A step that has gone on for so long is no ordinary one, whoever ends it.
LONG_STEP_S: Final = 1.0
#: A process that ends by these does what it was told.
_ASKED: Final = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class Death(NamedTuple):
    """How a worker ended."""

    #: As `subprocess` gives it: a signal is negative.
    status: int
    #: Whether it was killed because it gave no sign of life.
    is_hung: bool
    #: Whether it was stopped then, so somebody else kept it from living.
    was_stopped: bool
    #: Monotonic s.
    at: float


def how(status: int) -> str:
    """Say how a process ended."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # most of those for real time have no name
        return f"signal {-status}"


def is_to_blame(note: Note, death: Death) -> bool:
    """Tell whether a worker died of what it was at."""
    if death.was_stopped or death.status in _ASKED:
        return False
    if death.is_hung or death.status != -signal.SIGKILL:
        return True
    return death.at - note.since >= LONG_STEP_S


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped (SIGSTOP), and so did not hang by itself."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return line.rpartition(")")[2].split()[0] in ("T", "t")
