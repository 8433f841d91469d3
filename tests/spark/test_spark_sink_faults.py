"""Exactly once whatever breaks: tasks that die with their rows staged, drivers killed around the commit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from queue_contents import drained

from angarium import AngariumError, blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(480)]

DRIVER = Path(__file__).with_name("sink_driver.py")
FILES, ROWS = 4, 1_000
RUN_TIMEOUT_S = 150


def write_files(folder: Path) -> None:
    """Write FILES files, which are as many batches, with ROWS numbers each."""
    folder.mkdir()
    for number in range(FILES):
        numbers = [b"%d" % one for one in range(number * ROWS, (number + 1) * ROWS)]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"payload": pa.array(numbers, pa.binary())}), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes files by their age, and these are equally old


def run_driver(arguments: list[str], faults: str) -> int:
    """Run the driver until it ends, or dies of its fault; give its status."""
    environment = {
        **os.environ,
        "ANGARIUM_SINK_FAULTS": faults,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[2]), str(DRIVER.parent)]),
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    print(faults, done.returncode, done.stdout[-2_000:], done.stderr[-5_000:])
    return done.returncode


def published(client: blocking.Client, queue: str) -> list[int]:
    return sorted(int(one) for one in drained(client, queue))


def kill_when_staged(node: Node, client: blocking.Client, queue: str, kills: list[tuple[int, str]]) -> None:
    """Kill processes of a node when so many rows are staged."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    for rows, role in kills:
        while staged(client, queue) < rows and time.monotonic() < deadline:
            time.sleep(0.01)
        node.kill(role)


def staged(client: blocking.Client, queue: str) -> int:
    with contextlib.suppress(AngariumError):  # the router is away just now
        return int(client.show_queue(queue)["messages"])
    return 0


def test_processes_of_the_node_that_die_cost_no_row(spark: SparkSession, node: Node) -> None:
    """A worker and the router die while two tasks stage rows."""
    frame = spark.range(0, 60_000, 1, 4).selectExpr("cast(cast(id as string) as binary) as payload")
    with blocking.connect(node.url) as client, ThreadPoolExecutor(1) as pool:
        client.create_queue("node-faults")
        kills = [(2_000, "worker"), (20_000, "router"), (40_000, "worker")]
        killing = pool.submit(kill_when_staged, node, client, "node-faults", kills)
        frame.write.format("angarium").mode("append").options(url=node.url, queue="node-faults").save()
        killing.result()
    with blocking.connect(node.url, retry_for_s=RUN_TIMEOUT_S) as client:
        assert published(client, "node-faults") == list(range(60_000))


def test_every_row_arrives_once_whatever_dies(java: None, node: Node, tmp_path: Path) -> None:
    """The driver dies before a commit and behind one; a task dies with its rows staged, another one is run twice."""
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    write_files(files)
    with blocking.connect(node.url) as client:
        client.create_queue("faults")
        arguments = [node.url, str(files), str(checkpoint), "faults"]
        assert run_driver(arguments, "before:1") != 0
        assert published(client, "faults") == list(range(ROWS))
        assert run_driver(arguments, "after:1") != 0
        assert published(client, "faults") == list(range(ROWS, 2 * ROWS))
        assert run_driver(arguments, "task:2 twin:3") == 0
        assert published(client, "faults") == list(range(2 * ROWS, FILES * ROWS))
