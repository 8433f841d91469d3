"""Drivers die around the commit of a sink, and tasks with rows staged; in a Java of their own too.

A whole archive job dies as well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from angarium import blocking
from angarium.pipeline.archive import JOBS
from tests.spark.queue_contents import archived, drained, left_in, publish
from tests.spark.sink_driver import FAULTS, NAME, FaultySource, deliver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = 4_000
#: Two cores and little memory: other tests have a session of their own beside this.
SPARK = (
    "--master",
    "local[2]",
    "--conf",
    "spark.driver.memory=600m",
    "--conf",
    "spark.sql.shuffle.partitions=2",
    # As in conftest; the tutorial runs with what Spark does by default.
    "--conf",
    "spark.ui.enabled=false",
    "--conf",
    "spark.sql.codegen.wholeStage=false",
    "--conf",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "--conf",
    "spark.sql.adaptive.enabled=false",
)
LIMIT_S = 400.0
DRIVER = Path(__file__).with_name("sink_driver.py")
FILES, ROWS = 4, 1_000


def command(node: Node, path: Path, *arguments: str) -> list[str]:
    start = [
        sys.executable,
        "-P",
        "-m",
        "angarium_server",
        "pipeline",
        "archive",
        str(path),
        "--url",
        node.url,
        "--json",
    ]
    return [*start, *SPARK, *arguments]


def run(node: Node, path: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command(node, path, *arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_messages_are_archived_once_however_often_the_job_is_killed(
    java: None, node: Node, tmp_path: Path, faults: int
) -> None:
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
    for _ in range(faults):
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


def write_files(folder: Path) -> None:
    """Write FILES files, which are as many batches, with ROWS numbers each."""
    folder.mkdir()
    for number in range(FILES):
        numbers = [b"%d" % one for one in range(number * ROWS, (number + 1) * ROWS)]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"payload": pa.array(numbers, pa.binary())}), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes files by their age, and these are equally old


def run_driver(arguments: list[str], faults: str, python: str) -> int:
    """Run the driver until it ends, or dies of its fault; give its status."""
    environment = {
        **os.environ,
        "ANGARIUM_SINK_FAULTS": faults,
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(faults, done.returncode, done.stdout[-2_000:], done.stderr[-5_000:])
    return done.returncode


def published(client: blocking.Client, queue: str) -> list[int]:
    return sorted(int(one) for one in drained(client, queue))


@pytest.mark.long  # crash/test_stage_crash.py has commits, test_spark_sink.py batches that fail
def test_every_row_arrives_once_whatever_fails(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """The Python of a task dies with its rows staged; another task is run twice, and its query ends behind a commit.

    Each time another query goes on from the checkpoint, as another driver does.
    """
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    write_files(files)
    spark.dataSource.register(FaultySource)
    arguments = (node.url, str(files), str(checkpoint), "fails")
    with blocking.connect(node.url) as client:
        client.create_queue("fails")
        with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
            deliver(spark, NAME, *arguments, **{FAULTS: "task:0"})
        assert published(client, "fails") == []
        with pytest.raises(StreamingQueryException, match="the driver is dead"):
            deliver(spark, NAME, *arguments, **{FAULTS: "twin:1 after:2"})
        assert published(client, "fails") == list(range(3 * ROWS))
        deliver(spark, "angarium", *arguments)
        assert published(client, "fails") == list(range(3 * ROWS, FILES * ROWS))


@pytest.mark.long
def test_every_row_arrives_once_whatever_dies(
    spark: SparkSession, python: str, node: Node, tmp_path: Path, faults: int
) -> None:
    """A task dies with its rows staged, another one is run twice, the driver dies behind a commit, and before one.

    Another driver, which has none of it, goes on.
    """
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    write_files(files)
    with blocking.connect(node.url) as client:
        client.create_queue("faults")
        arguments = [node.url, str(files), str(checkpoint), "faults"]
        assert run_driver(arguments, "task:0 twin:1 after:2", python) != 0
        assert published(client, "faults") == list(range(3 * ROWS))
        if faults > 1:
            assert run_driver(arguments, "before:3", python) != 0
            assert published(client, "faults") == []
        deliver(spark, "angarium", *arguments)
        assert published(client, "faults") == list(range(3 * ROWS, FILES * ROWS))
