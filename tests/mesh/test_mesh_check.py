"""A short share of `scripts/mesh-check`: real nodes, links that are cut, killed processes, clients that watch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.mesh.check import MeshCheck, perform, read_options, tell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.history import History

#: As long as the other slow tests; scripts/mesh-check takes minutes.
MINUTES = 0.12
SEED = int(os.environ.get("ANGARIUM_MESH_SEED", "1"))


@pytest.mark.long  # simulation/mesh cuts and kills, integration/test_mesh_guaranteed.py real ones
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("R78", "R31", "R76", "R82", "R167", "R3", "R68")
def test_a_mesh_that_is_cut_and_killed_keeps_its_promises(tmp_path: Path) -> None:
    options = read_options(["--minutes", f"{MINUTES}", "--seed", f"{SEED}", "--data", str(tmp_path)])
    verdict = perform(options)
    tell(verdict)
    assert verdict["verdict"] == "good", verdict
    assert verdict["acknowledged"] > 200
    assert sum(verdict["faults"].values()) >= 3


def test_a_run_that_broke_off_is_bad_and_says_nothing_of_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(run: MeshCheck, _seconds: float) -> History:
        log = run.logs / "node-1.p1.log"
        log.write_text(
            '["sent", "node-1.p1", "guaranteed", 0, 0, "check/persistent/x/1", false, false, 1.0]\n'
            '["acknowledged", "node-1.p1", [0], 1.0]\n'
        )
        raise RuntimeError("no node")

    monkeypatch.setattr(MeshCheck, "run", break_off)
    verdict = perform(read_options(["--data", str(tmp_path)]))
    assert verdict["verdict"] == "bad"
    assert "no node" in verdict["troubles"][0]
    assert sum(verdict["checks"].values()) == 0
    assert (tmp_path / verdict["logs"]).is_dir()
