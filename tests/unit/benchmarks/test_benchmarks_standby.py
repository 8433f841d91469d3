"""What a standby costs: which rows there are, what they are judged by, and what is said where there is no etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import standby
from benchmarks.brokers.hosts import Hosts
from benchmarks.direct import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Row

RATE = 100.0


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Give the rows of a run in which the one with two hosts is half as fast, and joins in half of the time."""

    def measure(run: standby.Standby) -> None:
        for what in standby.COMPARED:
            run._note(run._hosts, what, RATE / 2)
            run._note(run._alone, what, RATE)
        run._note(run._hosts, standby.JOIN, standby.LIMITS[standby.JOIN][0] / 2)
        run._note(run._hosts, standby.REQUESTS, 2 * standby.LIMITS[standby.REQUESTS][0])

    monkeypatch.setattr(Hosts, "missing", lambda _: "")
    monkeypatch.setattr(standby.Standby, "_measure", measure)
    return standby.Standby(tmp_path, Settings()).run()


def test_each_figure_is_judged_by_its_own_target(measured: list[Row]) -> None:
    met = {row.name: row.met for row in measured}
    assert len(met) == len(measured) == 9
    assert [name for name, is_met in met.items() if not is_met] == [
        f"{standby.DIRECT}, with a standby, against without a standby",
        "requests to etcd of both hosts, against 10 requests/s",
    ]


def test_without_etcd_every_row_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hosts, "missing", lambda _: "etcd")
    rows = standby.Standby(tmp_path, Settings(rows="publish")).run()
    assert {row.install for row in rows} == {"apt-get install etcd-server"}
    assert all("publish" in row.name and not row.ours and row.met is None for row in rows)
