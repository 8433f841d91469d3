"""Exactly once whatever breaks in the node while tasks stage rows; test_spark_killed.py kills drivers and tasks."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from angarium import AngariumError, blocking
from tests.share import short
from tests.spark.queue_contents import drained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(480)]

RUN_TIMEOUT_S = 150
ROWS = short(30_000, long=60_000)


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


@pytest.mark.long  # tests/crash/test_stage_crash.py kills each of them while rows are staged
def test_processes_of_the_node_that_die_cost_no_row(spark: SparkSession, node: Node) -> None:
    """A worker and the router die while two tasks stage rows."""
    frame = spark.range(0, ROWS, 1, 4).selectExpr("cast(cast(id as string) as binary) as payload")
    with blocking.connect(node.url) as client, ThreadPoolExecutor(1) as pool:
        client.create_queue("node-faults")
        kills = [(ROWS // 30, "worker"), (ROWS // 3, "router"), (ROWS * 2 // 3, "worker")]
        killing = pool.submit(kill_when_staged, node, client, "node-faults", kills)
        frame.write.format("angarium").mode("append").options(url=node.url, queue="node-faults").save()
        killing.result()
    with blocking.connect(node.url, retry_for_s=RUN_TIMEOUT_S) as client:
        assert published(client, "node-faults") == list(range(ROWS))
