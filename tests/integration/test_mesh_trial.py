"""`scripts/mesh`: nodes for trying out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mesh.trial import Trial, pairs_of

ROOT = Path(__file__).resolve().parents[2]


def test_topologies() -> None:
    assert pairs_of("full", 3) == [(0, 1), (0, 2), (1, 2)]
    assert pairs_of("line", 4) == [(0, 1), (1, 2), (2, 3)]
    assert pairs_of("ring", 4) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert pairs_of("ring", 2) == [(0, 1)]


@pytest.mark.long
@pytest.mark.slow
def test_it_starts_nodes_joins_them_and_does_so_again_on_their_data(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.mesh.trial",
        "2",
        "--data",
        str(tmp_path / "mesh"),
        "--once",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["links"] == [["node-1", "node-2"]]
    assert found["verdict"] == "up"
    # The same once more, without an interpreter for each process.
    trial = Trial(tmp_path / "mesh", 2, workers=1)
    with trial.nodes[0], trial.nodes[1]:
        trial.join(pairs_of("full", 2))
        again = trial.describe(pairs_of("full", 2))
    assert [node["url"] for node in again["nodes"]] == [node["url"] for node in found["nodes"]]
