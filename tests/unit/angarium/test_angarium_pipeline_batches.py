"""What a writer of batches counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium.pipeline.dataset.batches import BatchWriter
from angarium.pipeline.dataset.files import LocalFiles
from angarium.pipeline.dataset.journal import Change

if TYPE_CHECKING:
    from pathlib import Path


class DecidedWriter(BatchWriter):
    """Finds every batch decided, with five messages: what Spark writes is tested with Spark."""

    def _write(self, rows: Any, name: str) -> Change:
        return Change(name, "", (), (), 5)


def test_a_batch_that_runs_again_is_counted_once(tmp_path: Path) -> None:
    """Spark runs the last batch of a stream again if it was stopped before it noted the end."""
    writer = DecidedWriter(LocalFiles(tmp_path), "job", levels=1, directories_max=10)
    rows: Any = None
    for batch in (0, 1, 1, 2):
        writer.write(rows, batch)
    assert (writer.messages, writer.batches) == (15, 3)
