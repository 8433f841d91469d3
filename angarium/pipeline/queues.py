"""The queues that an archive is made of: the stream that reads them, and what the node is told besides.

The stream leases each queue for a reader group. Nothing here knows where messages go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


class QueueSource:
    """The queues or topic filters of a job, read by one reader group."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Read with the options of `format("angarium")`, `group` among them."""
        self._options = dict(options)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Give the stream."""
        return spark.readStream.format("angarium").options(**self._options).load()

    def acknowledge(self, end: str) -> None:
        """Say that all before a place is in the archive."""

    def release(self) -> None:
        """Give back the lease of the queues."""
