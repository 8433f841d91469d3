"""The layout of an archive, for readers.

An archive is a directory of Parquet files, `date=YYYY-MM-DD/topic_1=.../...` by the day on which a message was
spooled and the leading levels of its topic. Any reader of Parquet can read it: unfinished files have names that begin
with `_`, which Spark, Arrow and others skip. The columns in the files are those of the schema
of `angarium.spark`; the directories are for finding things only, and the column `topic` has the whole topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.pipeline.dataset import journal
from angarium.pipeline.dataset.files import files_of, literal, walk
from angarium.pipeline.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Parquet without these is no archive of messages.
_NEEDED: Final = frozenset({"topic", "queue", "partition", "position"})


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Give the messages of an archive, with the columns of the schema and no others.

    A column that files of the archive do not have is NULL.

    Args:
        spark: a session.
        path: directory of the archive, on any file system that Spark knows.

    Raises:
        NotFoundError: there is no such directory, no message in it, or other Parquet than an archive
            (ARCHIVE_NOT_FOUND).
    """
    from angarium.spark.schema import NAMES, schema

    paths = archive_paths(spark, path)
    columns = _columns_in(spark, path, paths)
    if not columns >= _NEEDED:
        missing = ", ".join(sorted(_NEEDED - columns))
        raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{path} holds Parquet without {missing}")
    return spark.read.schema(schema(NAMES)).option("recursiveFileLookup", "true").parquet(*paths)


def read_rows(spark: SparkSession, path: str) -> DataFrame:
    """Give the rows of any directory of Parquet files, with the columns that any of the files has.

    A column is there only if the files have it, which is what a comparison must know. The names of an archive's
    directories are no columns; of other directories they are, as for anybody who reads Parquet.

    Raises:
        NotFoundError: there is no such directory, or no Parquet in it (ARCHIVE_NOT_FOUND).
        UnavailableError: files of the directory do not go together, or cannot be read (SPARK_FAILED).
    """
    with spark_errors(path):
        reader = spark.read.option("mergeSchema", "true")
        paths = archive_paths(spark, path)
        files = reader.option("recursiveFileLookup", "true").parquet(*paths)
        if files.columns and not _NEEDED.issubset(files.columns):
            reader = spark.read.option("mergeSchema", "true").option("recursiveFileLookup", "false")
            files = reader.parquet(*paths)
    if not files.columns:
        raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{path} holds no messages")
    return files


def archive_paths(spark: SparkSession, path: str) -> list[str]:
    """Give what Spark is to read: the archive, or its files one by one while a change of it is not finished.

    What is no archive has no changes; what is not there may be a pattern of paths.
    """
    files = files_of(spark, path)
    unfinished = [change for change in journal.changes(files) if not journal.is_done(files, change)]
    if not unfinished:
        return [literal(path) if files.exists("") else path]
    sources = (source for change in unfinished for source, _ in change.moves)
    staged = {source for source in sources if files.exists(source)}
    found = journal.visible((entry.path for entry in walk(files)), unfinished, staged)
    return [literal(files.url(one)) for one in found]


def _columns_in(spark: SparkSession, path: str, paths: list[str]) -> set[str]:
    """Give the columns of one file of an archive, which one Spark chooses."""
    from pyspark.errors import AnalysisException

    try:
        return set(spark.read.option("recursiveFileLookup", "true").parquet(*paths).columns)
    except AnalysisException as error:
        condition = error.getCondition()
        if condition == "PATH_NOT_FOUND":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{path} does not exist") from None
        if condition == "UNABLE_TO_INFER_SCHEMA":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{path} holds no messages") from None
        raise
