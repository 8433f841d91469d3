"""What processes use, by the meter and by psutil."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from cluster.controller.meter import Meter

#: Both look one after the other, and the kernel counts in ticks of a hundredth of a second.
NEAR_S = 0.1


def test_memory_and_uptime_are_those_that_psutil_gives() -> None:
    own = psutil.Process()
    found = Meter().measure([own.pid])[own.pid]
    assert found["rss_bytes"] == pytest.approx(own.memory_info().rss, rel=0.05)
    assert found["uptime_s"] == pytest.approx(time.time() - own.create_time(), abs=5)
    assert found["cpu_percent"] == 0.0


def test_the_share_of_a_core_is_that_since_the_last_measurement() -> None:
    meter, pid = Meter(), os.getpid()
    meter.measure([pid])
    began, cpu_began = time.monotonic(), time.process_time()
    while time.process_time() < cpu_began + 0.3:
        pass
    found = meter.measure([pid])[pid]["cpu_percent"]
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    assert found * took_s / 100 == pytest.approx(cpu_s, abs=NEAR_S)


def test_who_does_not_live_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    meter = Meter()
    assert meter.measure([ended.pid]) == {}
    ended.wait()
    assert meter.measure([ended.pid]) == {}
