"""What open consoles may cost the messages of a node, and the CPU time of its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CONSOLES: Final = 10
SHARE: Final = 0.02
#: How long it is looked at; passwords are compared before that.
LOOK_S: Final = 30.0


def cpu_s(pids: list[int]) -> float:
    """Give the CPU time of processes so far."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9
