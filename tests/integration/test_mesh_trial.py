"""`scripts/mesh`: nodes for trying out."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.mesh.trial import main, pairs_of

if TYPE_CHECKING:
    from pathlib import Path


def test_topologies() -> None:
    assert pairs_of("full", 3) == [(0, 1), (0, 2), (1, 2)]
    assert pairs_of("line", 4) == [(0, 1), (1, 2), (2, 3)]
    assert pairs_of("ring", 4) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert pairs_of("ring", 2) == [(0, 1)]


@pytest.mark.slow
def test_it_starts_nodes_joins_them_and_does_so_again_on_their_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> dict[str, Any]:
        main(["2", "--data", str(tmp_path / "mesh"), "--once", "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["links"] == [["node-1", "node-2"]]
        assert found["verdict"] == "up"
        return found

    # It takes the signal that ends it, where it is a program of its own.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    first = run()
    again = run()
    assert [node["url"] for node in again["nodes"]] == [node["url"] for node in first["nodes"]]
