"""Reading an archive with Spark, whatever its directories are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.pipeline.archives import read_archive

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]


def test_directories_add_no_column_and_private_files_no_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a/b", 1), ("a/c", 2)], "topic string, position bigint")
    rows.write.parquet(str(tmp_path / "date=2026-01-02" / "topic_1=a"))
    rows.write.parquet(str(tmp_path / "date=2026-01-03" / "topic_1=a" / "topic_2=b"))
    rows.write.parquet(str(tmp_path / "_angarium" / "staging"))
    found = read_archive(spark, str(tmp_path))
    assert found.columns == ["topic", "position"]
    assert found.count() == 4


def test_a_missing_and_an_empty_archive_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="nowhere does not exist") as caught:
        read_archive(spark, str(tmp_path / "nowhere"))
    assert caught.value.code == errors.ARCHIVE_NOT_FOUND
    with pytest.raises(errors.NotFoundError, match="holds no messages"):
        read_archive(spark, str(tmp_path))
