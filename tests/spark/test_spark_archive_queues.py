"""`angarium pipeline archive` as a user calls it, on queues of a real node: each message once, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors
from angarium.pipeline import archive as job_module
from angarium.pipeline.archive import ArchiveJob, archive
from tests.spark.queue_contents import archived, left_in, publish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

LIMIT_S = 200.0


def test_what_comes_later_is_archived_by_the_next_run_and_consumers_get_the_queue_back(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    job = ArchiveJob(path=str(tmp_path / "a"), queues=("later",), options={"url": node.url})
    with blocking.connect(node.url) as client:
        client.create_queue("later", subscriptions=["later/>"])
        publish(client, "later", range(100))
        assert archive(spark, job).messages == 100
        publish(client, "later", range(100, 130))
        assert archive(spark, job).messages == 30
        assert sorted(int(row["payload"]) for row in archived(tmp_path / "a")) == list(range(130))
        publish(client, "later", range(130, 140))
        with client.consume("later") as flow:
            assert flow.receive(timeout_s=LIMIT_S).payload == b"130"


@pytest.mark.long  # test_spark_stream.py has a queue that is made for filters
def test_topic_filters_are_archived_from_a_queue_that_is_made_and_kept_for_them(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    job = ArchiveJob(path=str(tmp_path / "a"), topics=("filtered/>",), options={"url": node.url})
    first = archive(spark, job)
    assert (first.messages, first.released) == (0, True)
    with blocking.connect(node.url) as client:
        publish(client, "filtered", range(50))
    assert archive(spark, job).messages == 50
    assert len(archived(tmp_path / "a")) == 50


def test_a_job_that_was_cut_off_before_it_acknowledged_does_so_when_it_begins_again(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease was ended meanwhile: what is in the archive is planned again, and nothing else goes."""
    job = ArchiveJob(path=str(tmp_path / "a"), queues=("cut",), options={"url": node.url})
    with blocking.connect(node.url) as client:
        client.create_queue("cut", subscriptions=["cut/>"])
        publish(client, "cut", range(100))
        with monkeypatch.context() as patch:
            patch.setattr(job_module, "acknowledge_once", lambda *_: None)
            archive(spark, dataclasses.replace(job, trigger="once"))
        assert left_in(client, "cut") == 100
        publish(client, "cut", range(100, 120))
        assert archive(spark, job).messages == 20
        assert left_in(client, "cut") == 0
    assert sorted(int(row["payload"]) for row in archived(tmp_path / "a")) == list(range(120))


def test_what_was_consumed_before_it_was_archived_is_told_also_if_the_last_batch_is_to_be_acknowledged(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was cut off, its lease ended, and a consumer took the batch once more and three messages behind it."""
    job = ArchiveJob(path=str(tmp_path / "a"), queues=("taken",), options={"url": node.url})
    with blocking.connect(node.url) as client:
        client.create_queue("taken", subscriptions=["taken/>"])
        publish(client, "taken", range(10))
        with monkeypatch.context() as patch:
            patch.setattr(job_module, "acknowledge_once", lambda *_: None)
            archive(spark, dataclasses.replace(job, trigger="once"))
        publish(client, "taken", range(10, 20))
        with client.consume("taken") as flow:
            for _ in range(13):
                flow.receive(timeout_s=LIMIT_S).accept()
        for _ in range(2):
            with pytest.raises(
                errors.NotFoundError, match=r"error 40440: .*3 messages .* positions 11 to 20"
            ):
                archive(spark, job)
        accepting = dataclasses.replace(job, options={**job.options, "failOnDataLoss": "false"})
        assert archive(spark, accepting).messages == 7
        assert left_in(client, "taken") == 0


@pytest.mark.parametrize("left", [None, pytest.param("", marks=pytest.mark.long)], ids=["gone", "empty"])
def test_a_batch_of_which_a_power_cut_took_the_note_that_it_is_done_is_done(
    spark: SparkSession, node: Node, tmp_path: Path, left: str | None
) -> None:
    """Spark does not wait until its notes are on disk; the archive has the batch, and the queue does not any more."""
    queue = f"power-{left is None}"
    job = ArchiveJob(path=str(tmp_path / "a"), queues=(queue,), options={"url": node.url})
    with blocking.connect(node.url) as client:
        client.create_queue(queue, subscriptions=[f"{queue}/>"])
        publish(client, queue, range(100))
        assert archive(spark, job).messages == 100
        notes = tmp_path / "a" / "_angarium" / "jobs" / queue / "checkpoint" / "commits"
        newest = max((one for one in notes.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name))
        (notes / f".{newest.name}.crc").unlink(missing_ok=True)
        newest.unlink()
        if left is not None:
            newest.write_text(left)
        publish(client, queue, range(100, 120))
        assert archive(spark, job).messages == 20
        assert left_in(client, queue) == 0
    assert sorted(int(row["payload"]) for row in archived(tmp_path / "a")) == list(range(120))


@pytest.mark.parametrize(
    ("queue", "options", "text"),
    [
        ("nowhere", {}, "error 40404: .*option queue: queue 'nowhere'"),
        ("later", {"username": "nobody"}, "error 40101: .*option username: nobody"),
        ("later", {"levle": "1"}, "error 40018: .*option levle: it is unknown"),
    ],
)
def test_what_is_refused_is_one_line_that_names_it(
    spark: SparkSession, node: Node, tmp_path: Path, queue: str, options: dict[str, str], text: str
) -> None:
    job = ArchiveJob(path=str(tmp_path / "a"), queues=(queue,), options={"url": node.url, **options})
    with pytest.raises(errors.AngariumError, match=text) as caught:
        archive(spark, job)
    assert len(str(caught.value).splitlines()) == 1
