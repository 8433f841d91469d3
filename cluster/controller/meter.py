"""What the processes of a node use, from one read of /proc for each (proc(5), `/proc/pid/stat`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Of /proc/PID/stat, behind the name of the program: ticks in user and system mode, the tick of the start, pages.
_USER, _SYSTEM, _START, _PAGES = 11, 12, 19, 21
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class _Seen(NamedTuple):
    start: int
    cpu_ticks: int
    pages: int
    #: Seconds after the boot of the host.
    at: float


class Meter:
    """Measures what processes use; a CPU percentage is over the time since the last measurement."""

    def __init__(self) -> None:
        #: Exactly the pids of the last measurement that were alive.
        self._known: dict[int, _Seen] = {}

    def measure(self, pids: list[int]) -> dict[int, dict[str, Any]]:
        """Give rss_bytes, cpu_percent and uptime_s of each process that lives."""
        found = {pid: seen for pid in pids if (seen := _look(pid)) is not None}
        usage = {
            pid: {
                "rss_bytes": seen.pages * _PAGE_BYTES,
                "cpu_percent": _percent(self._known.get(pid), seen),
                "uptime_s": round(max(0.0, seen.at - seen.start / _TICKS_PER_S), 3),
            }
            for pid, seen in found.items()
        }
        self._known = found
        return usage


def _look(pid: int) -> _Seen | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    cpu_ticks = int(fields[_USER]) + int(fields[_SYSTEM])
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    return _Seen(int(fields[_START]), cpu_ticks, int(fields[_PAGES]), at)


def _percent(before: _Seen | None, seen: _Seen) -> float:
    """Give how much of a core it had since; a process that was not seen before, or is another one, none yet."""
    if before is None or before.start != seen.start or seen.at <= before.at:
        return 0.0
    return round(100 * (seen.cpu_ticks - before.cpu_ticks) / _TICKS_PER_S / (seen.at - before.at), 1)
