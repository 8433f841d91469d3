"""`angarium pipeline archive` as a user calls it, on queues of a real node: each message once, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from angarium import Message, blocking, errors
from angarium.pipeline.archive import JOBS, ArchiveJob, archive
from angarium.pipeline.files import LocalFiles, walk
from angarium.pipeline.queues import QueueSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from angarium.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

MESSAGES = 6000
#: Two cores and little memory: other tests have a session of their own beside this.
SPARK = (
    "--master",
    "local[2]",
    "--conf",
    "spark.driver.memory=600m",
    "--conf",
    "spark.sql.shuffle.partitions=2",
)
LIMIT_S = 200.0


def command(node: Node, path: Path, *arguments: str) -> list[str]:
    start = [sys.executable, "-m", "cluster.cli", "pipeline", "archive", str(path), "--url", node.url]
    return [*start, *SPARK, *arguments]


def run(node: Node, path: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command(node, path, *arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def archived(path: Path) -> list[dict[str, Any]]:
    """Give what a reader that knows nothing of us finds."""
    files = [str(path / entry.path) for entry in walk(LocalFiles(path))]
    columns = ["queue", "partition", "position", "topic", "payload"]
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(files).to_table(columns=columns).to_pylist()
    return rows


def publish(client: blocking.Client, topic: str, numbers: range) -> None:
    producer = client.producer()
    producer.publish_many(
        Message(f"{topic}/{at % 5}", str(at).encode(), mode="persistent", partition_key=str(at % 50))
        for at in numbers
    )
    producer.close()


@pytest.mark.timeout(400)
def test_messages_are_archived_once_however_often_the_job_is_killed(node: Node, tmp_path: Path) -> None:
    """Two queues, one of them with partitions; the job dies at random instants, then goes on until it is done."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    path = tmp_path / "archive"
    with blocking.connect(node.url) as client:
        client.create_queue("plain", subscriptions=["k/plain/>"])
        client.create_queue(
            "parted", subscriptions=["k/parted/>"], partition_count=3, access_type="non-exclusive"
        )
        for name in ("plain", "parted"):
            publish(client, f"k/{name}", range(MESSAGES // 2))
    what = ("--queue", "plain", "--queue", "parted", "--batch-messages", "700", "--name", "both", "--compact")
    for _ in range(2):
        killed = subprocess.Popen(
            command(node, path, *what), start_new_session=True, stdout=subprocess.DEVNULL
        )
        wait_for_a_plan(path / JOBS / "both" / "checkpoint" / "offsets", killed)
        time.sleep(chance.uniform(0, 4))
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    done = run(node, path, *what)
    assert done["released"]
    rows = archived(path)
    places = {(row["queue"], row["partition"], row["position"]) for row in rows}
    assert len(rows) == len(places) == MESSAGES
    for name in ("plain", "parted"):
        found = sorted(int(row["payload"]) for row in rows if row["queue"] == name)
        assert found == list(range(MESSAGES // 2))
    assert list((path / "_angarium" / "staging").iterdir()) == []
    with blocking.connect(node.url) as client:
        assert (left_in(client, "plain"), left_in(client, "parted")) == (0, 0)


def wait_for_a_plan(offsets: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a job has planned something that was not there, or has ended; a kill before that shows nothing."""
    before = set(offsets.glob("*"))
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and set(offsets.glob("*")) == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def left_in(client: blocking.Client, queue: str) -> int:
    """Count what is in a queue that nobody has leased."""
    with client.reader_group(queue, "count") as group:
        messages = sum(one.messages for one in group.positions().values())
        group.release()
    return messages


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
        assert client.consume("later").receive(timeout_s=LIMIT_S).payload == b"130"


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
            patch.setattr(QueueSource, "acknowledge", lambda *_: None)
            archive(spark, dataclasses.replace(job, trigger="once"))
        assert left_in(client, "cut") == 100
        publish(client, "cut", range(100, 120))
        assert archive(spark, job).messages == 20
        assert left_in(client, "cut") == 0
    assert sorted(int(row["payload"]) for row in archived(tmp_path / "a")) == list(range(120))


@pytest.mark.parametrize(
    ("queue", "options", "text"),
    [
        ("nowhere", {}, "error 50314: .*option queue: queue 'nowhere'"),
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
