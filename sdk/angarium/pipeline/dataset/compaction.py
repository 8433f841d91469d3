"""Makes few large files of the many small ones that a stream leaves in an archive.

The files of one directory and one checkpoint are merged, never those of two, so what a directory and the name of a file
say stays true. A merge is a change of
the journal: readers find each message in the old files or in the new one, and what a kill cuts off is finished by the
next run. Work is cut into portions, so that a kill costs one of them.
"""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium.pipeline.dataset import journal
from angarium.pipeline.dataset.files import PARQUET, literal, walk
from angarium.pipeline.dataset.journal import STAGING, Change
from angarium.pipeline.dataset.layout import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from angarium.pipeline.dataset.files import Entry, Files
    from angarium.pipeline.dataset.progress import Show

#: The size that is best for readers, and that one task writes in a few seconds.
TARGET_BYTES: Final = 128 << 20
#: A file from this share of the target on is left as it is: merging it again and again would cost more than it gives.
_SMALL_SHARE: Final = 0.5
#: Merges of one change: what a kill can cost, and what the driver keeps busy.
PORTION_MERGES: Final = 16
_THREADS: Final = 2
PREFIX: Final = "compaction-"


class Merge(NamedTuple):
    """Files of one directory that become one."""

    directory: str
    paths: tuple[str, ...]
    #: The checkpoint that archived their messages; empty if their names do not say.
    job: str = ""

    def target(self, name: str, number: int) -> str:
        """Give the path of the merged file."""
        whose = f"-{self.job}" if self.job else ""
        return f"{self.directory}/{name}-{number:05d}{whose}.parquet".removeprefix("/")


class Compacted(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int


def compact(spark: SparkSession, files: Files, show: Show, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Merge the small files of an archive; one job at a time does so.

    Raises:
        UnavailableError: what is to replace files is missing (SPARK_FAILED); nothing was removed.
    """
    journal.recover(files)
    journal.sweep(files, PREFIX)
    journal.forget(files, [change.name for change in journal.changes(files, PREFIX)])
    merges = plan(walk(files), target_bytes)
    for at in range(0, len(merges), PORTION_MERGES):
        show(at, len(merges))
        _merge(spark, files, merges[at : at + PORTION_MERGES])
    return Compacted(sum(len(merge.paths) for merge in merges), len(merges))


def plan(found: Iterable[Entry], target_bytes: int) -> list[Merge]:
    """Say which files are merged: neighbours by name, up to the target; a lone small file stays."""
    merges: list[Merge] = []
    small = [entry for entry in found if entry.bytes < target_bytes * _SMALL_SHARE]
    group, paths, size = ("", ""), list[str](), 0
    for own, entry in sorted((_group(entry), entry) for entry in small):
        if own != group or size + entry.bytes > target_bytes:
            merges.append(Merge(group[0], tuple(paths), group[1]))
            group, paths, size = own, [], 0
        paths.append(entry.path)
        size += entry.bytes
    merges.append(Merge(group[0], tuple(paths), group[1]))
    return [merge for merge in merges if len(merge.paths) > 1]


def _group(entry: Entry) -> tuple[str, str]:
    """Give directory and checkpoint of a file."""
    found = re.match(JOB, entry.name)
    return entry.path.rpartition("/")[0], found[1] if found else ""


def _merge(spark: SparkSession, files: Files, merges: list[Merge]) -> None:
    """Do a portion as one change."""
    name = f"{PREFIX}{uuid.uuid4().hex}"
    staging = f"{STAGING}/{name}"
    with ThreadPoolExecutor(_THREADS) as pool:
        written = list(
            pool.map(
                lambda at: _write_aside(spark, files, merges[at].paths, f"{staging}/{at}"), range(len(merges))
            )
        )
    moves = tuple(
        (path, merge.target(name, number))
        for number, (merge, path) in enumerate(zip(merges, written, strict=True))
    )
    removals = tuple(path for merge in merges for path in merge.paths)
    change = Change(name, staging, moves, removals, 0)
    if not all(files.exists(path) for path in removals):
        # Somebody else merged them meanwhile.
        files.remove(staging)
        return
    journal.decide(files, change)
    journal.finish(files, change)
    journal.forget(files, [name])


def _write_aside(spark: SparkSession, files: Files, paths: tuple[str, ...], staging: str) -> str:
    """Write some files as one, by queue and position; give its path."""
    places = (literal(files.url(path)) for path in paths)
    rows = spark.read.option("mergeSchema", "true").parquet(*places)
    rows = rows.coalesce(1).sortWithinPartitions("queue", "partition", "position")
    rows.write.options(**PARQUET).parquet(files.url(staging))
    (written,) = walk(files, staging)
    return written.path
