"""Writes the batches of a stream into an archive: each once, however often Spark runs it and whenever it is killed.

Spark runs a batch again until it has noted that it is done, with the same range of messages. The first run that comes
to its end decides the batch (`angarium.pipeline.dataset.journal`); every later one finds that and only finishes it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from angarium.pipeline.dataset import checkpoint, journal, layout
from angarium.pipeline.dataset.files import PARQUET, walk
from angarium.pipeline.dataset.journal import STAGING, Change

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from angarium.pipeline.dataset.files import Entry, Files

#: Spark runs its newest batch again and none before it.
KEPT_BATCHES: Final = 2


class BatchWriter:
    """Writes the batches of one checkpoint."""

    def __init__(
        self, files: Files, job_id: str, checkpoint: str, *, levels: int, directories_max: int
    ) -> None:
        """Write into an archive, for one job with its checkpoint; topics beyond `directories_max` share one."""
        self._files = files
        self._checkpoint = checkpoint
        self._prefix = f"batch-{job_id}-"
        self._levels = levels
        self._directories_max = directories_max
        #: Directories by topic that the archive has; empty until the first batch.
        self._known: set[str] | None = None
        #: Messages and batches that this object has brought into the archive.
        self.messages = 0
        self.batches = 0
        #: The newest batch that is counted in both: Spark may run one again, after a stop.
        self._counted = -1
        #: Whether a batch is on its way into the archive now.
        self.is_busy = False

    def recover(self, *, is_alone: bool) -> None:
        """Finish what was decided before, remove what was not, and mend what a power cut left of Spark's notes."""
        journal.recover(self._files)
        journal.sweep(self._files, self._prefix, is_alone=is_alone)
        newest = checkpoint.newest_planned(self._files, self._checkpoint)
        for batch in () if newest is None else range(max(newest - KEPT_BATCHES + 1, 0), newest + 1):
            if journal.decided(self._files, self._name(batch)) is not None:
                checkpoint.note_done(self._files, self._checkpoint, batch)
            elif batch == newest:
                checkpoint.drop_torn_range(self._files, self._checkpoint, batch)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Bring a batch into the archive, unless it is there; when this returns it is durable."""
        self.is_busy = True
        try:
            change = self._write(rows, batch)
        finally:
            self.is_busy = False
        if batch > self._counted:
            self._counted = batch
            self.messages += change.messages
            self.batches += 1

    def _write(self, rows: DataFrame, batch: int) -> Change:
        name = self._name(batch)
        change = journal.decided(self._files, name) or self._stage(rows, name, batch)
        journal.finish(self._files, change)
        old = [one.name for one in journal.changes(self._files, self._prefix) if one.name < name]
        journal.forget(self._files, old[: 1 - KEPT_BATCHES])
        return change

    def _name(self, batch: int) -> str:
        return f"{self._prefix}{batch:012d}"

    def _stage(self, rows: DataFrame, name: str, batch: int) -> Change:
        """Write a batch aside and decide it; give the decision, which may be another run's."""
        staging = f"{STAGING}/{name}-{uuid.uuid4().hex}"
        messages = self._write_aside(rows, staging)
        change = Change(name, staging, self._moves(staging, name), (), messages)
        # Spark does not wait until its notes are on disk. If a power cut took the range of a batch that is decided,
        # Spark would plan another one under the same number, and what that has more would be taken for archived.
        self._files.sync([checkpoint.range_file(self._checkpoint, batch)])
        if journal.decide(self._files, change):
            return change
        self._files.remove(staging)
        other = journal.decided(self._files, name)
        assert other is not None, name
        return other

    def _write_aside(self, rows: DataFrame, staging: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        columns = layout.columns_for(self._levels)
        counted = Observation()
        (
            rows.observe(counted, F.count(F.lit(1)).alias("messages"))
            .withColumns(self._bounded(columns))
            .write.partitionBy(*columns)
            .mode("overwrite")
            .options(**PARQUET)
            .parquet(self._files.url(staging))
        )
        return int(counted.get["messages"])

    def _bounded(self, columns: dict[str, Column]) -> dict[str, Column]:
        """Once there are as many directories as there may be, have Spark make no others to begin with."""
        known = self._directories() - {layout.others_directory(self._levels)}
        if len(known) < self._directories_max:
            return columns
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        names = [name for name in columns if name != layout.DATE]
        parts = [part for name in names for part in (F.lit(f"{name}="), columns[name], F.lit("/"))]
        is_known = F.concat(*parts[:-1]).isin(sorted(known))
        return columns | {
            name: F.when(is_known, columns[name]).otherwise(F.lit(layout.OTHERS)) for name in names
        }

    def _moves(self, staging: str, name: str) -> tuple[tuple[str, str], ...]:
        """Say where each staged file goes."""
        staged = list(walk(self._files, staging))
        known = self._directories()
        topics = {entry: self._topic_directory(entry, staging) for entry in staged}
        place = layout.within_bound(topics.values(), sorted(known), self._directories_max, self._levels)
        known.update(place.values())
        moves = []
        for number, entry in enumerate(staged):
            date = entry.path.removeprefix(f"{staging}/").partition("/")[0]
            folder = "/".join(filter(None, (date, place[topics[entry]])))
            moves.append((entry.path, f"{folder}/{name}-{number:05d}.parquet"))
        return tuple(moves)

    def _topic_directory(self, entry: Entry, staging: str) -> str:
        inside = entry.path.removeprefix(f"{staging}/").rpartition("/")[0]
        return inside.partition("/")[2]

    def _directories(self) -> set[str]:
        if self._known is None:
            dates = (one.path for one in self._files.entries("") if one.name.startswith(f"{layout.DATE}="))
            found = (topic for date in dates for topic in self._below(date, self._levels))
            self._known = {path.partition("/")[2] for path in found}
        return self._known

    def _below(self, path: str, levels: int) -> list[str]:
        if levels == 0:
            return [path]
        inside = [entry.path for entry in self._files.entries(path) if entry.is_directory]
        return [deeper for one in inside for deeper in self._below(one, levels - 1)]
