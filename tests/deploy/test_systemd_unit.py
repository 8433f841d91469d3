"""The unit for systemd, as far as systemd itself judges it without running it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from cluster.supervisor import STOP_AFTER_S, STOP_ORDER

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


def test_it_has_limits_and_waits_for_an_ordered_stop(service: dict[str, str]) -> None:
    assert service["Type"] == "notify"
    for key in ("MemoryMax", "MemoryHigh", "TasksMax", "LimitNOFILE", "WatchdogSec"):
        assert re.fullmatch(r"\d+%?", service[key]), key
    assert int(service["TimeoutStopSec"]) > STOP_AFTER_S * len(STOP_ORDER)
    assert service["KillMode"] == "mixed", "the supervisor stops its processes in order"
    assert service["User"] == "angarium"
    assert "Environment" in service
    assert not re.search(r"(?i)secret|password|key", service["Environment"])
