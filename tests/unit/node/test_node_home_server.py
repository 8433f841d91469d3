"""The shell of a home: it is looked at when something came or is due, and not in each turn of its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium_server.black_box import BlackBox
from node.home.home import HomeLimits
from node.home.server import IDLE_S, HomeServer
from node.home.spool.folders import SpoolDirectory
from tests.unit.node.pretended_process import PretendedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HomeServer]:
    directory = SpoolDirectory(tmp_path, 1 << 26, "", None)
    limits = HomeLimits(ack_delay_ms=20, write_delay_ms=50, selector_ms_per_s=0)
    home = HomeServer(PretendedProcess(tmp_path), directory, limits, lambda _frames: None, BlackBox())  # type: ignore[arg-type]
    while not home.is_ready:
        home.tick(0.0)
    ticks: list[float] = []
    tick = home._home.tick

    def counted(now: float, wall_ms: int) -> float | None:
        ticks.append(now)
        return tick(now, wall_ms)

    monkeypatch.setattr(home._home, "tick", counted)
    home.ticks = ticks  # type: ignore[attr-defined]
    yield home
    home.close()


def ticks(home: HomeServer, *times: float) -> list[float]:
    """Give the times at which the home was looked at."""
    counted: list[float] = home.ticks  # type: ignore[attr-defined]
    counted.clear()
    for now in times:
        home.tick(now)
    return [*counted]


def test_a_home_that_has_nothing_to_do_is_looked_at_now_and_then(home: HomeServer) -> None:
    ticks(home, *[1.0] * 9)
    later = 1.0 + 2 * IDLE_S
    assert ticks(home, 1.0, 1.0 + IDLE_S / 2, later, later) == [later]


@pytest.mark.parametrize("what", ["a frame", "a request", "the disk"])
def test_a_home_is_looked_at_when_something_comes(home: HomeServer, what: str) -> None:
    ticks(home, *[1.0] * 9)
    assert ticks(home, 1.0) == []
    if what == "a frame":
        home.handle([b"?", b""])
    elif what == "a request":
        home.request("spool.show", {})
    else:
        home._wake()
        home._woken()
    assert ticks(home, 1.0) == [1.0]
