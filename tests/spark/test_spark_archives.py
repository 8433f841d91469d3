"""Reading an archive with Spark, whatever its directories are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium.pipeline.archives import read_archive
from angarium.pipeline.dataset import layout
from angarium.pipeline.dataset.files import ClusterFiles, LocalFiles, files_of, walk
from angarium.spark.schema import NAMES
from tests.share import short

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from angarium.pipeline.dataset.files import Files

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]


@pytest.mark.long  # test_spark_archive_job.py reads what it writes
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


ODD_TOPICS = (
    "orders/eu/7",
    "/x",
    "a b/ö*/c",
    "../..",
    "_a/~-",
    "__HIVE_DEFAULT_PARTITION__/x",
    "x" * 200 + "/y",
    "ü" * 100,
    "a=b/%41/[x]{y}^:?\"'\\",
    "A+B/c d",
    "tab\there/\x7f\x01",
    "a//b",
)


@pytest.mark.parametrize("levels", short([3], long=[0, 1, 3]))
def test_spark_puts_topics_where_the_rule_says(spark: SparkSession, levels: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    rows = spark.createDataFrame([(topic,) for topic in ODD_TOPICS], "topic string")
    columns = layout.columns_for(levels)
    rows = rows.withColumn("spooled_timestamp", F.timestamp_seconds(F.lit(1_772_323_199)))
    found = rows.select("topic", *(column.alias(name) for name, column in columns.items())).collect()
    assert {row.date for row in found} == {"2026-02-28"}
    for row in found:
        names = (f"{name}={row[name]}" for name in layout.level_columns(levels))
        assert "/".join(names) == layout.topic_directory(row.topic, levels)


def test_a_day_is_one_in_utc_whatever_the_zone_of_a_session(spark: SparkSession) -> None:
    """A program of somebody's own, or the session that it has, may have another zone than our commands."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    moments: dict[int | None, str] = {
        0: "1970-01-01",
        86_399: "1970-01-01",
        86_400: "1970-01-02",
        -1: "1969-12-31",
        None: layout.ABSENT,
    }
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        for name in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
            spark.conf.set("spark.sql.session.timeZone", name)
            frame = spark.createDataFrame([(one,) for one in moments], "at long")
            frame = frame.select(
                "at", F.timestamp_seconds("at").alias("spooled_timestamp"), F.lit("t").alias("topic")
            )
            found = frame.select("at", layout.columns_for(0)[layout.DATE].alias("date")).collect()
            assert {row["at"]: row["date"] for row in found} == moments
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.fixture(params=["local", "cluster"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    """Both kinds of files; the second works on this machine's through Spark's Java."""
    if request.param == "local":
        return files_of(spark, str(tmp_path))
    jvm: Any = spark.sparkContext._jvm
    root = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}")
    return ClusterFiles(spark, root.getFileSystem(jvm.org.apache.hadoop.conf.Configuration()), root)


def test_files_are_created_once_moved_and_removed(files: Files) -> None:
    assert files.create("a/one.json", "ö")
    assert not files.create("a/one.json", "two")
    assert files.read("a/one.json") == "ö"
    assert [(entry.path, entry.bytes) for entry in files.entries("a")] == [("a/one.json", 2)]
    files.move("a/one.json", "b/c=d ~2A/e.parquet")
    files.sync(["b/c=d ~2A/e.parquet"])
    assert files.entries("a") == []
    assert not files.exists("a/one.json")
    assert [entry.path for entry in walk(files)] == ["b/c=d ~2A/e.parquet"]
    with pytest.raises((OSError, errors.AngariumError)):
        files.move("a/one.json", "a/two.json")
    files.remove("b")
    files.remove("nowhere")
    assert files.entries("nowhere") == []
    assert list(walk(files)) == []


def test_what_a_run_keeps_for_itself_says_whether_that_is_so(files: Files) -> None:
    with files.hold("jobs/q/running") as is_alone:
        assert is_alone == isinstance(files, LocalFiles)


def test_a_file_system_that_spark_does_not_know_is_named(spark: SparkSession) -> None:
    with pytest.raises(errors.InvalidRequestError, match="nosuch://host/x"):
        files_of(spark, "nosuch://host/x")
