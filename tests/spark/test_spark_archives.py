"""Reading an archive with Spark, whatever its directories are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.pipeline.archives import read_archive
from angarium.spark.schema import NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]


def test_directories_add_no_column_and_private_files_no_row(spark: SparkSession, tmp_path: Path) -> None:
    columns = "topic string, queue string, partition int, position bigint"
    rows = spark.createDataFrame([("a/b", "q", 0, 1), ("a/c", "q", 0, 2)], columns)
    rows.write.parquet(str(tmp_path / "date=2026-01-02" / "topic_1=a"))
    rows.write.parquet(str(tmp_path / "date=2026-01-03" / "topic_1=a" / "topic_2=b"))
    rows.write.parquet(str(tmp_path / "_angarium" / "staging"))
    found = read_archive(spark, str(tmp_path))
    assert found.columns == list(NAMES)
    assert found.count() == 4
    assert found.filter("payload is null and position < 3").count() == 4


def test_other_parquet_is_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(errors.NotFoundError, match="Parquet without partition, position, queue, topic"):
        read_archive(spark, str(tmp_path / "other"))


def test_a_missing_and_an_empty_archive_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="nowhere does not exist") as caught:
        read_archive(spark, str(tmp_path / "nowhere"))
    assert caught.value.code == errors.ARCHIVE_NOT_FOUND
    with pytest.raises(errors.NotFoundError, match="holds no messages"):
        read_archive(spark, str(tmp_path))
