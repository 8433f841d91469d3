"""What a writer of batches counts, and what is on disk before it decides one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
