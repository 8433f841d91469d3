"""A program that archives a directory of Parquet, for tests that kill it: the job with another source than queues.

python archive_job.py ARCHIVE SOURCE FILES_PER_BATCH [--compact]
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from angarium.pipeline.archive import ArchiveJob, archive
from angarium.pipeline.session import SparkSettings, open_session
from angarium.spark.schema import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Two cores and little memory: the tests have a session of their own beside this.
CONF = {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "2"}


class FileSource:
    """Parquet files as a stream, a number of them in each batch."""

    def __init__(self, folder: str, files_per_batch: int) -> None:
        self._folder = folder
        self._files_per_batch = files_per_batch
        self.acknowledged: list[str] = []
        self.released = 0

    def rows(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(schema()).option("maxFilesPerTrigger", self._files_per_batch)
        return reader.parquet(self._folder)

    def acknowledge(self, end: str) -> None:
        self.acknowledged.append(end)

    def release(self) -> None:
        self.released += 1


def main() -> None:
    path, folder, files_per_batch, *more = sys.argv[1:]
    job = ArchiveJob(path=path, queues=("q",), levels=2, compact="--compact" in more)
    source = FileSource(folder, int(files_per_batch))
    with open_session("test", SparkSettings(master="local[2]", conf=CONF)) as spark:
        done = archive(spark, job, source=source)
    print(json.dumps({"messages": done.messages, "acknowledged": source.acknowledged}))


if __name__ == "__main__":
    main()
