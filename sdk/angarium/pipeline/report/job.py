"""The report of messages that are there: an archive, or what a queue holds.

`report_on` keeps the tables in Spark while the caller writes and shows them. `live` is the job for messages that come.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from angarium.pipeline.report.cells import cells
from angarium.pipeline.report.facts import facts
from angarium.pipeline.report.figures import TOP, Tables, causes_of, window_width
from angarium.pipeline.report.numbering import REORDER
from angarium.pipeline.report.sequences import largest_gaps, publishers, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

#: A message that took a minute has waited for something else than the network.
LATE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a user may choose of a report."""

    #: Width of a window in seconds; None: one with which all windows fit on a page.
    window_s: int | None = None
    late_ms: int = LATE_MS
    #: Topics and clients that are named.
    top: int = TOP
    #: Whether publishers number each topic on its own.
    by_topic: bool = False
    #: See `numbering`.
    reorder: int = REORDER


@contextlib.contextmanager
def report_on(messages: DataFrame, options: ReportOptions, *, read_once: bool) -> Iterator[Tables]:
    """Give the tables of a report; while the block runs Spark keeps what they come from.

    Args:
        messages: with the columns of `angarium.spark.schema`; all but two may be missing.
        options: what the user chose.
        read_once: whether to read the messages once and keep a narrow row of each, because they may be gone or others
            when they are read again, as those of a queue. An archive is read again where that is cheaper.

    Raises:
        InvalidRequestError: topic or spooled_timestamp is missing (INVALID_ARGUMENT).
    """
    with contextlib.ExitStack() as kept:
        found = facts(messages)
        if read_once:
            found = _keep(found, kept)
        width_s = options.window_s or window_width(found)
        numberings = _keep(runs(found, by_topic=options.by_topic, reorder=options.reorder), kept)
        yield Tables(
            cells=_keep(cells(found, width_s, options.late_ms), kept),
            publishers=publishers(numberings),
            gaps=largest_gaps(numberings),
            causes=_keep(causes_of(found), kept),
            window_s=width_s,
        )


def _keep(frame: DataFrame, kept: contextlib.ExitStack) -> DataFrame:
    frame.persist()
    kept.callback(frame.unpersist)
    return frame


def write_tables(tables: Tables, path: str) -> None:
    """Write each table as Parquet into a directory of its name; one that is there is replaced."""
    for name, table in tables.named().items():
        table.write.mode("overwrite").parquet(f"{path.rstrip('/')}/{name}")


def write_file(path: str, text: str) -> None:
    """Write a local file atomically: readers see the old one or all of the new one."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
