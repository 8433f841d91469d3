"""Parquet of messages as it is on disk: an archive of ours, or a directory that somebody else wrote.

`angarium.pipeline.archives.read_archive` gives every column of the schema, whether a file has it or not. Here a column
is there only if the files have it, which is what a comparison must know. The names of an archive's directories are no
columns; of other directories they are, as for anybody who reads Parquet.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.pipeline.archives import archive_paths
from angarium.pipeline.failures import clear_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

#: Files with these are of an archive: their directories repeat what is in them.
_ARCHIVED: Final = frozenset({"topic", "queue", "partition", "position"})


def read_rows(spark: SparkSession, path: str) -> DataFrame:
    """Give the rows of a directory of Parquet files, with the columns that any of the files has.

    Raises:
        NotFoundError: there is no such directory, or no Parquet in it (ARCHIVE_NOT_FOUND).
        UnavailableError: files of the directory do not go together, or cannot be read (SPARK_FAILED).
    """
    with spark_errors(path):
        reader = spark.read.option("mergeSchema", "true")
        files = reader.option("recursiveFileLookup", "true").parquet(*archive_paths(spark, path))
        if files.columns and not _ARCHIVED.issubset(files.columns):
            files = (
                spark.read.option("mergeSchema", "true").option("recursiveFileLookup", "false").parquet(path)
            )
    if not files.columns:
        raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{path} holds no messages")
    return files


@contextlib.contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises in the block into one of our errors; `what` is a path, or what is read.

    Raises:
        NotFoundError: a path is not there, or there is no Parquet (ARCHIVE_NOT_FOUND).
        AngariumError: anything else that Spark says (SPARK_FAILED), or an error of ours that it wrapped.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition == "PATH_NOT_FOUND":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{what} does not exist") from None
        if condition == "UNABLE_TO_INFER_SCHEMA":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{what} holds no messages") from None
        raise clear_failure(error) from None
