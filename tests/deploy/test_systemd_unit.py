"""The unit for systemd, as far as it can be tried without being run by systemd."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from angarium import blocking
from cluster.roster.table import STOP_ORDER
from cluster.supervisor.supervisor import STOP_AFTER_S

if TYPE_CHECKING:
    from pathlib import Path

NAME = "angarium@.service"
#: Of 10, in tenths: what is left is the network, other users' names and the host's resources.
EXPOSURE_MAX = 25


@pytest.fixture
def unit(deploy: Path) -> Path:
    return deploy / "systemd" / NAME


@pytest.fixture
def service(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, encoding="utf-8")
    return dict(parser["Service"])


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_systemd_has_nothing_to_say_against_it(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "angarium"
    program.write_text("#!/bin/sh\n", encoding="ascii")
    program.chmod(0o755)
    copy = tmp_path / NAME
    copy.write_text(
        unit.read_text(encoding="utf-8").replace("/opt/angarium/bin/angarium", str(program)), encoding="utf-8"
    )
    done = analyze("verify", str(copy))
    complaints = [line for line in done.stderr.splitlines() if "angarium" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


def test_a_node_gets_little_that_it_does_not_need(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges loaded units only")
    assert done.returncode == 0, done.stdout[-300:]


def test_it_has_limits_and_waits_for_an_ordered_stop(service: dict[str, str], deploy: Path) -> None:
    assert service["Type"] == "notify"
    for key in ("MemoryMax", "MemoryHigh", "TasksMax", "LimitNOFILE", "WatchdogSec"):
        assert re.fullmatch(r"\d+%?", service[key]), key
    longest_s = int(STOP_AFTER_S * len(STOP_ORDER))
    assert int(service["TimeoutStopSec"]) > longest_s
    page = (deploy.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"after `drain_ms` and {longest_s} s at the latest" in page
    assert service["KillMode"] == "mixed", "the supervisor stops its processes in order"
    assert service["User"] == "angarium"
    assert "Environment" in service
    assert not re.search(r"(?i)secret|password|key", service["Environment"])


@pytest.mark.slow
def test_a_node_that_is_started_as_the_unit_says_tells_its_manager(
    service: dict[str, str], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "berlin.toml").write_text(
        '[node]\nname = "berlin"\n[router]\nworkers = 1\nlisten = ["tcp://127.0.0.1:0"]\n', encoding="utf-8"
    )
    command = service["ExecStart"].replace("%i", "berlin").split()
    assert command[0] == service["ExecStartPre"].split()[0] == "/opt/angarium/bin/angarium"
    places = {
        "/var/lib/angarium/berlin": tmp_path / "data",
        "/etc/angarium/berlin.toml": tmp_path / "berlin.toml",
    }
    program = [
        sys.executable,
        "-P",
        "-m",
        "angarium_server",
        *(str(places.get(part, part)) for part in command[1:]),
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{tmp_path}")
        manager.settimeout(60.0)
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{tmp_path}", "WATCHDOG_USEC": "2000000"}
        environment["PYTHONPATH"] = str(root)
        node = subprocess.Popen(program, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)
        try:
            assert "READY=1" in heard_until(manager, "READY=1")
            (url,) = re.findall(
                r'"url": "(.+)"', (tmp_path / "data" / "node.json").read_text(encoding="utf-8")
            )
            with blocking.connect(url) as client:
                client.publish("is/ready", b"", mode="persistent")
            for child in psutil.Process(node.pid).children():
                assert "NOTIFY_SOCKET" not in child.environ()
            heard_until(manager, "WATCHDOG=1")
            node.send_signal(signal.SIGTERM)
            heard_until(manager, "STOPPING=1")
            assert node.wait(60.0) == 0
        finally:
            node.kill()
            node.wait()


def heard_until(manager: socket.socket, line: str) -> list[str]:
    """Give what a manager hears until a line comes."""
    heard: list[str] = []
    while line not in heard:
        assert len(heard) < 1_000
        heard += manager.recv(4_096).decode().splitlines()
    return heard
