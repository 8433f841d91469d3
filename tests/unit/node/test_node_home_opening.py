"""A start that takes long says how far it is: to the supervisor often, to the log now and then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from node.home.spool import folders as opening
from node.home.spool.folders import StartNews, open_own
from storage.spool import Table, open_spool

if TYPE_CHECKING:
    from pathlib import Path

MAP_BYTES = 64 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_supervisor_hears_several_times_a_second_and_the_log_every_few_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, told = Clock(), list[str]()
    news = StartNews(told.append, clock)
    for step in range(12_000):
        news.tell(f"step {step}")
        clock.now += 0.001
    assert told[0] == "step 0"
    assert 40 <= len(told) <= 12 / opening.TELL_INTERVAL_S
    assert len(caplog.records) == 2


def test_a_short_start_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []
    StartNews(told.append, Clock()).tell("reading lanes")
    assert told == ["reading lanes"]
    assert not caplog.records


def test_the_check_of_a_large_index_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TELL_INTERVAL_S", 0.0)
    spool = open_spool(tmp_path / "spool", MAP_BYTES)
    for start in range(0, 20_000, 1_000):
        rows = range(start, start + 1_000)
        spool.commit([(Table.SEGMENTS, row.to_bytes(16, "big"), bytes(100)) for row in rows])
    spool.close()
    told: list[str] = []
    open_own(tmp_path / "spool", MAP_BYTES, StartNews(told.append)).close()
    assert told
    assert all(text.startswith("checking the spool: ") for text in told)


def test_a_spool_that_another_process_has_is_waited_for_with_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPEN_TRIES", 3)
    monkeypatch.setattr(opening, "OPEN_RETRY_S", 0.0)
    monkeypatch.setattr(opening, "TELL_INTERVAL_S", 0.0)
    holder = open_spool(tmp_path / "spool", MAP_BYTES)
    told: list[str] = []
    with pytest.raises(errors.UnavailableError, match="50320"):
        open_own(tmp_path / "spool", MAP_BYTES, StartNews(told.append))
    assert told == ["waiting for the spool, attempt 1", "waiting for the spool, attempt 2"]
    holder.close()


def test_a_damaged_spool_is_not_waited_for(tmp_path: Path) -> None:
    open_spool(tmp_path / "spool", MAP_BYTES).close()
    (tmp_path / "spool" / "data.mdb").write_bytes(b"nonsense" * 1_000)
    told: list[str] = []
    with pytest.raises(errors.UnavailableError, match="50322"):
        open_own(tmp_path / "spool", MAP_BYTES, StartNews(told.append))
    assert not told
