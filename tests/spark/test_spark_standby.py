"""A stream of Spark from a queue to a queue goes on by its checkpoint when the node that has both fails over."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from angarium import AngariumError, Message
from cluster.admin.client import Admin
from tests.integration.etcd_servers import needs_etcd
from tests.integration.pair_hosts import Pair
from tests.spark.queue_contents import drained

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium import blocking

pytestmark = [
    pytest.mark.requirement("R221", "R271"),
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(480),
]

MESSAGES: Final = 4_000
RUN_S: Final = 240.0


def written(pair: Pair) -> int:
    """Count what the queue holds, with what is staged for it."""
    with contextlib.suppress(AngariumError, OSError, StopIteration):  # nobody is the primary just now
        with Admin(pair.primary.data) as admin:
            found = admin.call("endpoints.show", kind="queue", vpn="default", name="out")
        return int(found["messages_spooled"])
    return 0


def all_is_committed(query: StreamingQuery) -> bool:
    """Wait for the batches that are under way; false if the query has failed."""
    try:
        query.processAllAvailable()
    except PySparkException:
        return False
    return True


def publish(client: blocking.Client, start: int, end: int) -> None:
    messages = (Message("#P2P/QUE/in", b"%d" % number, mode="persistent") for number in range(start, end))
    client.publish_many(messages)


def test_each_message_of_a_stream_is_written_once_over_a_fail_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whoever runs the query starts it again when it has failed, as a scheduler does."""
    needs_etcd()
    with Pair(tmp_path / "pair") as pair, pair.client() as client:
        for queue in ("in", "out"):
            client.create_queue(queue)
        publish(client, 0, MESSAGES // 2)
        given = {
            "url": ",".join(pair.urls),
            "username": "app",
            "passwordFile": str(pair.folder / "password"),
            "caFile": str(pair.ca_file),
        }
        rows = spark.readStream.format("angarium").options(
            **given, queue="in", group="job", maxMessagesPerTrigger="300"
        )
        writing = rows.load().select("payload").writeStream.format("angarium").options(**given, queue="out")
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        deadline, is_over = time.monotonic() + RUN_S, False
        query = writing.start()
        try:
            while written(pair) < MESSAGES or not all_is_committed(query):
                assert time.monotonic() < deadline, f"{written(pair)} rows are written"
                if not is_over and written(pair):
                    pair.fail_over()
                    publish(client, MESSAGES // 2, MESSAGES)
                    is_over = True
                if not query.isActive:
                    with pytest.raises(PySparkException):
                        query.awaitTermination()
                    query = writing.start()
                time.sleep(0.05)
        finally:
            query.stop()
        assert sorted(map(int, drained(client, "out"))) == list(range(MESSAGES))
