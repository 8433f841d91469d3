"""The clock by which leases are counted: it goes on while the host sleeps, and nobody sets it."""

from __future__ import annotations

import time


def now() -> float:
    """Give seconds since the host was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
