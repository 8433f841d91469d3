"""The demonstration of the pipeline, with few rows: archived, replayed and archived again they are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 4_000


@pytest.mark.usefixtures("java")
def test_rows_are_the_same_after_archive_replay_and_archive_with_kills(faults: int, tmp_path: Path) -> None:
    if faults < 2:
        pytest.skip("ANGARIUM_SPARK_FAULTS=2 runs it: every step is tested alone, and this one takes minutes")
    options = [
        "--rows",
        str(ROWS),
        "--kills",
        str(faults),
        "--seed",
        "1",
        "--keep",
        str(tmp_path / "demo"),
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.demo", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["equal"]
    assert figures["compared"]["left_rows"] == figures["compared"]["right_rows"] == ROWS
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
