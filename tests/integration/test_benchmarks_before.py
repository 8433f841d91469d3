"""The node of a checkout beside the node of another one, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 2


@pytest.mark.long  # nine processes for figures that mean nothing; tests/unit has the rules
def test_a_checkout_is_compared_with_itself(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ROOT.iterdir():
        (other / name.name).symlink_to(name)
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--before",
        str(other),
        "--rows",
        "direct 1->1, 128 B, publish_many",
    ]
    done = subprocess.run(
        [*command, "--repetitions", str(ROUNDS), "--seconds", "0.1", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rate, cost = [json.loads(line) for line in done.stdout.splitlines()]
    assert "error" not in rate, done.stderr
    assert rate["repetitions"] == ROUNDS
    assert rate["ours"] > 0 < rate["peer"]
    assert cost["ours"] > 0 < cost["peer"]
    assert str(other) in cost["versions"]["before"]
