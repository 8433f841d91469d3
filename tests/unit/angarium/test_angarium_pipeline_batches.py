"""What a writer of batches counts, and what is on disk before it decides one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium.pipeline.dataset import journal
from angarium.pipeline.dataset.batches import BatchWriter
from angarium.pipeline.dataset.files import LocalFiles, walk
from angarium.pipeline.dataset.journal import Change

if TYPE_CHECKING:
    from collections.abc import Iterable


class DecidedWriter(BatchWriter):
    """Finds every batch decided, with five messages: what Spark writes is tested with Spark."""

    def _write(self, rows: Any, batch: int) -> Change:
        return Change(str(batch), "", (), (), 5)


def test_a_batch_that_runs_again_is_counted_once(tmp_path: Path) -> None:
    """Spark runs the last batch of a stream again if it was stopped before it noted the end."""
    writer = DecidedWriter(LocalFiles(tmp_path), "job", "checkpoint", levels=1, directories_max=10)
    rows: Any = None
    for batch in (0, 1, 1, 2):
        writer.write(rows, batch)
    assert (writer.messages, writer.batches) == (15, 3)


class NotedFiles(LocalFiles):
    """Notes what is made to last, and the decisions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lasting: list[str] = []

    def create(self, path: str, text: str) -> bool:
        self.lasting.append(path)
        return super().create(path, text)

    def sync(self, paths: Iterable[str]) -> None:
        found = list(paths)
        self.lasting += found
        super().sync(found)


class StagedWriter(BatchWriter):
    """Writes one file aside, as Spark would."""

    def _write_aside(self, rows: Any, staging: str) -> int:
        path = Path(self._files.url(f"{staging}/date=2026-03-01/topic_1=a/part-0.parquet")[len("file:") :])
        path.parent.mkdir(parents=True)
        path.write_text(rows)
        return 1


def test_the_range_of_a_batch_lasts_before_the_batch_is_decided(tmp_path: Path) -> None:
    """Without it Spark would plan another range under that number, which would be taken for archived."""
    files = NotedFiles(tmp_path)
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "7").write_text("v1")
    writer = StagedWriter(files, "job", "checkpoint", levels=1, directories_max=10)
    rows: Any = "x"
    writer.write(rows, 7)
    (decision,) = (path for path in files.lasting if path.startswith(journal.JOURNAL))
    assert "checkpoint/offsets/7" in files.lasting[: files.lasting.index(decision)]
    assert [entry.path for entry in walk(files)] == [
        "date=2026-03-01/topic_1=a/batch-job-000000000007-00000.parquet"
    ]


def text_of(root: Path, place: str) -> str | None:
    path = root / "checkpoint" / place
    return path.read_text() if path.exists() else None


def cut_off(root: Path, texts: dict[str, str]) -> BatchWriter:
    """Give the writer of a job that brought batches 6 and 7 into the archive, with what is left of Spark's notes."""
    files = LocalFiles(root)
    writer = StagedWriter(files, "job", "checkpoint", levels=1, directories_max=10)
    for batch in (6, 7):
        files.create(f"checkpoint/offsets/{batch}", f"v1\n{{}}\n{batch}")
        rows: Any = "x"
        writer.write(rows, batch)
    for place, text in texts.items():
        files.create(f"checkpoint/{place}", text)
    return writer


@pytest.mark.parametrize("left", [None, "", "\0" * 29, "v1\n{}"])
def test_spark_gets_to_know_the_batches_whose_end_a_power_cut_made_it_forget(
    tmp_path: Path, left: str | None
) -> None:
    texts = {} if left is None else {"commits/7": left, "commits/.7.crc": "of what was"}
    cut_off(tmp_path, {"commits/6": "", **texts}).recover(is_alone=True)
    assert text_of(tmp_path, "commits/6") == 'v1\n{"nextBatchWatermarkMs":0}'
    assert text_of(tmp_path, "commits/7") == (
        "v1\n{}" if left == "v1\n{}" else 'v1\n{"nextBatchWatermarkMs":0}'
    )
    assert text_of(tmp_path, "commits/.7.crc") == ("of what was" if left == "v1\n{}" else None)


@pytest.mark.parametrize(("range_text", "is_left"), [("", False), ("\0\0", False), ("v1\n{}\n8", True)])
def test_a_batch_that_was_planned_and_did_not_run_is_planned_again_if_its_range_is_torn(
    tmp_path: Path, range_text: str, is_left: bool
) -> None:
    notes = {"commits/6": "v1\n{}", "commits/7": "v1\n{}"}
    cut_off(tmp_path, {**notes, "offsets/8": range_text}).recover(is_alone=True)
    assert (text_of(tmp_path, "offsets/8") is not None) is is_left
    assert text_of(tmp_path, "commits/8") is None
    assert text_of(tmp_path, "offsets/7") == "v1\n{}\n7"
    assert {place: text_of(tmp_path, place) for place in notes} == notes


def test_a_job_that_never_ran_has_nothing_to_mend(tmp_path: Path) -> None:
    BatchWriter(LocalFiles(tmp_path), "job", "checkpoint", levels=1, directories_max=10).recover(
        is_alone=True
    )
    assert not (tmp_path / "checkpoint").exists()
