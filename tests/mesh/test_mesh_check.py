"""A short share of `scripts/mesh-check`: real nodes, links that are cut, killed processes, clients that watch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.mesh.check import perform, read_options, tell

if TYPE_CHECKING:
    from pathlib import Path

#: As long as the other slow tests; scripts/mesh-check takes minutes.
MINUTES = 0.12
SEED = int(os.environ.get("ANGARIUM_MESH_SEED", "1"))


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
