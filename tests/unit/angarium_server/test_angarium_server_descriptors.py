"""Descriptors: as many as are wanted, or as the system allows, and never fewer than there were."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import resource, sys
sys.path[:0] = {path!r}
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from angarium_server.connections.descriptors import raise_descriptors
print(raise_descriptors({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "given", "after"),
    [(100, 300, 200, 200, 200), (100, 300, 500, 300, 300), (200, 300, 150, 150, 200)],
)
def test_the_limit_is_raised_as_far_as_the_system_lets(
    soft: int, hard: int, wanted: int, given: int, after: int
) -> None:
    text = ASK.format(path=sys.path, soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == [str(given), str(after)]
