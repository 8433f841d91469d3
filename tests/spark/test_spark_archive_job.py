"""The job archive over files in place of queues: what it writes, runs again, merges, and finishes after a kill."""

from __future__ import annotations

import json
import random
import shutil
from threading import Event
from typing import TYPE_CHECKING

import pyarrow.dataset
import pyarrow.parquet
import pytest

from angarium import errors
from angarium.pipeline import archive as job_module
from angarium.pipeline.archive import ArchiveJob, archive
from angarium.pipeline.archives import read_archive
from angarium.pipeline.dataset import compaction, journal
from angarium.pipeline.dataset.files import LocalFiles, walk
from angarium.pipeline.dataset.progress import silent
from angarium.spark.schema import NAMES, schema
from tests.share import short

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

FILES = 5
ROWS = 50
#: Each of these characters makes a pattern of a path for readers of Spark.
ODD = "a [1]{b,c}*?\\d %41#"
TOPICS = ("orders/eu/1", "orders", "/x", "a b/ö*", "../y", "orders/_us")


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

    def acknowledge(self, start: str | None, end: str) -> None:
        self.acknowledged.append(end)

    def release(self) -> None:
        self.released += 1


@pytest.fixture(scope="module")
def messages(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a directory with FILES files of ROWS messages each, by rising position."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    topics = F.array(*(F.lit(topic) for topic in TOPICS))
    made = {
        "topic": F.get(topics, (F.col("id") % len(TOPICS)).cast("int")),
        "queue": F.lit("q"),
        "partition": F.lit(0),
        "position": F.col("id") + 1,
        "payload": F.encode(F.col("id").cast("string"), "UTF-8"),
        "spooled_timestamp": F.timestamp_seconds(F.lit(1_770_000_000) + F.col("id") * 550),
    }
    columns = [
        made.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema(NAMES)
    ]
    folder = tmp_path_factory.mktemp("messages") / "rows"
    spark.range(FILES * ROWS, numPartitions=FILES).select(*columns).write.parquet(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, messages: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an archive of all messages in two batches, which is copied by those who change it."""
    path = tmp_path_factory.mktemp("whole") / ODD
    archive(spark, ArchiveJob(path=str(path), queues=("q",), levels=0), source=FileSource(messages, 3))
    return path


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """Give a copy of it, checkpoint and all."""
    return shutil.copytree(whole, tmp_path / ODD)


def positions(path: Path) -> list[int]:
    """Give what a reader that knows nothing of us finds."""
    files = [str(path / entry.path) for entry in walk(LocalFiles(path))]
    table = pyarrow.dataset.dataset(files, format="parquet").to_table(columns=["position"])
    found: list[int] = sorted(table.column("position").to_pylist())
    return found


ALL = list(range(1, FILES * ROWS + 1))


def test_every_message_is_in_the_archive_once_by_day_and_topic(
    spark: SparkSession, messages: str, tmp_path: Path
) -> None:
    source = FileSource(messages, 3)
    done = archive(spark, ArchiveJob(path=str(tmp_path / "a"), queues=("q",), levels=2), source=source)
    assert (done.messages, done.batches) == (FILES * ROWS, 2)
    assert done.released
    assert source.released == 1
    assert json.loads(source.acknowledged[-1]) == {"logOffset": 1}
    assert positions(tmp_path / "a") == ALL
    folders = {str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").glob("date=*/*/*")}
    assert "date=2026-02-02/topic_1=orders/topic_2=eu" in folders
    assert "date=2026-02-03/topic_1=a~20b/topic_2=~C3~B6~2A" in folders
    read = read_archive(spark, str(tmp_path / "a"))
    assert read.columns == list(NAMES)
    assert {row.topic for row in read.select("topic").distinct().collect()} == set(TOPICS)


class LargeSource(FileSource):
    """The same with payloads that nothing makes smaller."""

    def rows(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        noise = random.Random(1).randbytes(200_000)
        return super().rows(spark).withColumn("payload", F.concat(F.lit(noise), "payload"))


def test_a_group_of_rows_is_as_large_as_wanted_however_large_messages_are(
    spark: SparkSession, messages: str, tmp_path: Path
) -> None:
    """Who reads Parquet needs memory for such a group, and a hundred messages of 8 MB were one."""
    job = ArchiveJob(path=str(tmp_path / "a"), queues=("q",), levels=0)
    wanted = "parquet.block.size"
    spark.conf.set(wanted, str(1 << 20))
    try:
        archive(spark, job, source=LargeSource(messages, 1))
    finally:
        spark.conf.unset(wanted)
    files = [
        pyarrow.parquet.ParquetFile(tmp_path / "a" / one.path) for one in walk(LocalFiles(tmp_path / "a"))
    ]
    groups = [file.metadata.row_group(at) for file in files for at in range(file.num_row_groups)]
    assert max(group.total_byte_size for group in groups) < 2 << 20
    assert sum(group.num_rows for group in groups) == FILES * ROWS


@pytest.mark.long  # so does one on the queues of a node, in test_spark_archive_queues.py
def test_a_second_run_goes_on_where_the_first_ended(spark: SparkSession, messages: str, copied: Path) -> None:
    source = FileSource(messages, FILES)
    (copied / job_module.JOBS / "q" / "acknowledged").unlink()
    done = archive(spark, ArchiveJob(path=str(copied), queues=("q",)), source=source)
    assert done.messages == 0
    assert source.acknowledged, "what an earlier run left unacknowledged is acknowledged at the start"
    assert positions(copied) == ALL


def test_a_batch_that_is_run_again_changes_nothing(spark: SparkSession, messages: str, copied: Path) -> None:
    """Spark lost its note that the last batch is done, as when it is killed just before it writes it."""
    before = sorted(entry.path for entry in walk(LocalFiles(copied)))
    for name in ("1", ".1.crc"):
        (copied / job_module.JOBS / "q" / "checkpoint" / "commits" / name).unlink()
    archive(spark, ArchiveJob(path=str(copied), queues=("q",), levels=0), source=FileSource(messages, 3))
    assert sorted(entry.path for entry in walk(LocalFiles(copied))) == before


def test_small_files_are_merged_and_every_message_stays(
    spark: SparkSession, messages: str, copied: Path
) -> None:
    job = ArchiveJob(path=str(copied), queues=("q",), levels=0, compact=True)
    done = archive(spark, job, source=FileSource(messages, 3))
    after = [entry.path for entry in walk(LocalFiles(copied))]
    assert done.files_before_compaction > done.files_after_compaction > 0
    assert len(after) == len({path.rpartition("/")[0] for path in after}) > 1
    assert positions(copied) == ALL
    assert read_archive(spark, str(copied)).columns == list(NAMES)
    assert archive(spark, job, source=FileSource(messages, 3)).files_before_compaction == 0


class DyingFiles(LocalFiles):
    """Files of a process that dies after a number of renames and removals."""

    def __init__(self, root: Path, steps: int) -> None:
        super().__init__(root)
        self._steps = steps

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def _step(self) -> None:
        if self._steps == 0:
            raise KeyboardInterrupt
        self._steps -= 1


def test_a_merge_that_was_killed_is_finished_and_readers_are_right_meanwhile(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    """The job dies after each number of steps of a change that was decided."""
    for steps in short((3,), long=(0, 1, 3, 5)):
        path = tmp_path / f"{steps} {ODD}"
        shutil.copytree(whole, path)
        with pytest.raises(KeyboardInterrupt):
            compaction.compact(spark, DyingFiles(path, steps), silent)
        read = read_archive(spark, str(path)).select("position").collect()
        assert sorted(row.position for row in read) == ALL, steps
        files = LocalFiles(path)
        assert len(journal.recover(files)) == 1, steps
        assert positions(path) == ALL, steps
        assert len(list(walk(files))) < len(list(walk(LocalFiles(whole))))


def test_a_checkpoint_of_other_queues_is_refused(spark: SparkSession, messages: str, whole: Path) -> None:
    job = ArchiveJob(path=str(whole), queues=("other",), name="q")
    with pytest.raises(errors.ConflictError, match=r"is that of q.*--name"):
        archive(spark, job, source=FileSource(messages, FILES))


def test_a_second_run_at_the_same_time_is_refused_and_takes_nothing_from_the_first(
    spark: SparkSession, messages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when the first one has a batch ready, and has not decided it."""
    job = ArchiveJob(path=str(tmp_path / "a"), queues=("q",), levels=0)
    create, told = LocalFiles.create, list[Exception]()

    def meddled(self: LocalFiles, path: str, text: str) -> bool:
        if path.startswith(journal.JOURNAL) and not told:
            told.append(ValueError("the second run was not refused"))
            try:
                archive(spark, job, source=FileSource(messages, FILES))
            except errors.AngariumError as error:
                told[0] = error
        return create(self, path, text)

    monkeypatch.setattr(LocalFiles, "create", meddled)
    archive(spark, job, source=FileSource(messages, FILES))
    assert positions(tmp_path / "a") == ALL
    with pytest.raises(errors.ConflictError, match="another run of this job is at work"):
        raise told[0]


def test_a_stream_that_is_told_to_stop_ends_with_nothing_half_done(
    spark: SparkSession, messages: str, tmp_path: Path
) -> None:
    stop = Event()
    source = FileSource(messages, 2)

    def show(done: int, total: int | None = None) -> None:
        if done:
            stop.set()

    job = ArchiveJob(path=str(tmp_path / "a"), queues=("q",), trigger="continuous", interval_s=0.01)
    done = archive(spark, job, show, stop, source=source)
    assert done.released
    found = positions(tmp_path / "a")
    assert 0 < len(found) == done.messages
    assert found == sorted(set(found))
    archive(spark, ArchiveJob(path=str(tmp_path / "a"), queues=("q",)), source=FileSource(messages, FILES))
    assert positions(tmp_path / "a") == ALL
