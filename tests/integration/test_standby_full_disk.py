"""A host of a pair on a full disk: what it notes of itself is no reason to leave the node without a primary."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.manual_pair import LIMIT_S, acts_with, pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_MB: Final = 64


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system in memory, where the data directory of alpha will be."""
    place = tmp_path / "alpha"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "angarium-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.long
@pytest.mark.requirement("R264", "R281")
@pytest.mark.timeout(400)
def test_a_host_begins_as_the_primary_on_a_full_disk(disk: Path) -> None:
    with pair_of(disk.parent) as (alpha, _):
        alpha.up()
        alpha.run("standby", "promote")
        alpha.wait(acts_with(["alpha"]), "the primary")
        alpha.wait_ready()
        alpha.run("queue", "create", "q")
        alpha.run("pub", "q", "kept", "--queue")
        alpha.kill()
        with (disk / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
        alpha.start()
        wait_for(alpha.log, lambda said: said.count("is ready") == 2, "ready again", LIMIT_S, more=alpha.log)
        assert "kept" in alpha.run("consume", "q", "--count", "1")
