"""How fast this machine is at the moment: bounds that are promised for an idle one have to grow with its load."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A process that was killed is back within so many starts: its back-off, its start, and what it is told.
_STARTS = 8


def back_within_s(idle_s: float = 3.0) -> float:
    """Give how long a killed process may be away: what is promised for an idle machine, or longer on a busy one."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import router.server, node.home.server"], check=True, cwd=ROOT)
    return max(idle_s, _STARTS * (time.monotonic() - started))
