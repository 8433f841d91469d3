"""Every figure of a home is explained in docs/metrics.md."""

from __future__ import annotations

from pathlib import Path

from tests.unit.node.driven_home import LANE, started

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_figure_of_the_spool_of_a_worker_is_explained() -> None:
    assert [name for name in started().home.stats() if f"`{name}`" not in PAGE] == []


def test_every_figure_of_a_lane_is_explained() -> None:
    figures = started().ask("endpoint.stats", lane_id=LANE)
    assert [name for name in figures if f"`{name}`" not in PAGE] == []
