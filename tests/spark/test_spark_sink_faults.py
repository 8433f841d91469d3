"""Exactly once whatever breaks: tasks that die with their rows staged, drivers killed around the commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from queue_contents import drained

from angarium import blocking

if TYPE_CHECKING:
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
        pq.write_table(pa.table({"payload": pa.array(numbers, pa.binary())}), folder / f"{number}.parquet")


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
