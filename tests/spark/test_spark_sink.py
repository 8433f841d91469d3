"""Rows of Spark published: what arrives is what was written; what cannot be published fails the batch, and is named."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from angarium import blocking
from tests.spark.queue_contents import drained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


def save(frame: DataFrame, node: Node, **given: str) -> None:
    frame.write.format("angarium").mode("append").options(url=node.url, **given).save()


def failure(work: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value)


def numbers(spark: SparkSession, rows: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, tasks)


def test_rows_arrive_at_a_queue_once_each_and_in_order_per_task(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("sink")
    frame = (
        numbers(spark, 12_000)
        .selectExpr("cast(id as string) as n")
        .selectExpr("cast(n as binary) as payload")
    )
    save(frame, node, queue="sink", delivery="at-least-once")
    found = [int(one) for one in drained(client, "sink")]
    assert sorted(found) == list(range(12_000))
    for start in range(0, 12_000, 4_000):
        task = [one for one in found if start <= one < start + 4_000]
        assert task == sorted(task)


def test_columns_become_what_a_message_has(spark: SparkSession, node: Node, client: blocking.Client) -> None:
    client.create_queue("columns", subscriptions=["columns/>"])
    frame = numbers(spark, 1, 1).selectExpr(
        "'columns/a' as topic",
        "cast('p' as binary) as payload",
        "timestamp_millis(1700000000123) as sender_timestamp",
        "'non-persistent' as delivery_mode",
        "4 as priority",
        "'c' as correlation_id",
        "'r/1' as reply_to",
        "7L as sequence_number",
        "60000L as ttl_ms",
        "map('n', '5', 't', 'x') as user_properties",
        "map('n', 'int') as user_property_types",
        "'elsewhere' as queue",
        "12L as position",
    )
    save(frame, node, delivery="at-least-once")
    with client.consume("columns", max_messages=1) as flow:
        message = flow.receive(20.0)
    assert (message.topic, message.payload, message.mode) == ("columns/a", b"p", "non-persistent")
    assert (message.sender_timestamp_ms, message.priority) == (1_700_000_000_123, 4)
    assert (message.correlation_id, message.reply_to, message.sequence_number) == ("c", "r/1", 7)
    assert message.properties == {"n": 5, "t": "x"}


def test_direct_rows_go_to_who_listens_now(spark: SparkSession, node: Node, client: blocking.Client) -> None:
    subscription = client.subscribe("live/>")
    frame = numbers(spark, 500).selectExpr("concat('live/', id % 7) as topic", "cast(id as string) as n")
    save(frame.selectExpr("topic", "cast(n as binary) as payload"), node, delivery="direct")
    found: Counter[int] = Counter()
    for message in subscription:
        found[int(message.payload)] += 1
        if len(found) == 500:
            break
    assert set(found.values()) == {1}


def test_a_null_topic_fails_the_batch_and_names_its_row(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 10, 1).selectExpr("if(id = 6, null, 'a/b') as topic")
    assert "row 7 of task 0: its topic is NULL" in failure(lambda: save(frame, node))


def test_a_long_topic_is_named(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 20, 1).selectExpr("repeat('x', 240 + int(id)) as topic")
    text = failure(lambda: save(frame, node))
    assert "error 40004" in text
    assert "row 12 of task 0 (topic 'xxx" in text, "the first one of many"


def test_a_queue_that_is_not_there_is_named(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 3, 1).selectExpr("cast('p' as binary) as payload")
    text = failure(lambda: save(frame, node, queue="nowhere", delivery="at-least-once"))
    assert "row 1 of task 0 (queue 'nowhere')" in text
    assert "error 40404" in text


def test_a_payload_over_the_limit_of_the_queue_is_named_and_the_batch_can_be_run_again(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("small", max_message_bytes=1_000)
    frame = numbers(spark, 5, 1).selectExpr("cast(repeat('x', if(id = 3, 2000, 10)) as binary) as payload")
    text = failure(lambda: save(frame, node, queue="small", delivery="at-least-once"))
    assert "row 4 of task 0 (queue 'small')" in text
    save(frame.limit(3), node, queue="small", delivery="at-least-once")


def test_a_column_that_no_message_has_is_an_error_before_anything_is_sent(
    spark: SparkSession, node: Node
) -> None:
    frame = numbers(spark, 3).selectExpr("'a' as topic", "id as colour")
    assert "unknown columns colour" in failure(lambda: save(frame, node))


def test_a_wrong_password_is_said_and_not_shown(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 1, 1).selectExpr("'a/b' as topic")
    text = failure(lambda: save(frame, node, username="nobody", password="open-sesame"))
    assert "Unauthorized" in text
    assert "open-sesame" not in text


def test_nothing_is_replaced(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 1, 1).selectExpr("'a/b' as topic")
    writing = frame.write.format("angarium").option("url", node.url).mode("overwrite")
    assert "mode overwrite" in failure(writing.save)


def test_a_batch_that_fails_publishes_nothing_and_can_be_run_again(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    """What the other tasks staged is published by nobody."""
    client.create_queue("whole", max_message_bytes=1_000)
    sizes = numbers(spark, 300).selectExpr("cast(repeat('x', if(id = 250, 2000, 10)) as binary) as payload")
    text = failure(lambda: save(sizes, node, queue="whole"))
    assert "row 51 of task 2 (queue 'whole')" in text
    assert drained(client, "whole") == []
    save(sizes.where("length(payload) < 1000"), node, queue="whole")
    assert len(drained(client, "whole")) == 299


def test_a_full_queue_is_named(spark: SparkSession, node: Node, client: blocking.Client) -> None:
    client.create_queue("full", max_spool_usage_mb=1)
    frame = numbers(spark, 3_000, 1).selectExpr("cast(repeat('x', 1000) as binary) as payload")
    text = failure(lambda: save(frame, node, queue="full"))
    assert "(queue 'full')" in text
    assert "error 50310" in text


def test_what_the_profile_forbids_is_named(spark: SparkSession, node: Node) -> None:
    node.run("profile", "create", "mute", "--set", "allow_guaranteed_send=false")
    node.run("username", "create", "mute", "--set", "client_profile=mute")
    frame = numbers(spark, 3, 1).selectExpr("'a/b' as topic")
    text = failure(lambda: save(frame, node, username="mute"))
    assert "error 40312" in text
    assert "option username: mute" in text


def test_the_rows_of_all_tasks_are_published_in_the_order_of_the_tasks(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("order")
    frame = numbers(spark, 3_000).selectExpr("cast(cast(id as string) as binary) as payload")
    save(frame, node, queue="order")
    assert [int(one) for one in drained(client, "order")] == list(range(3_000))


def test_a_data_frame_that_says_which_batch_it_is_is_published_once(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("batches")
    frame = numbers(spark, 100).selectExpr("cast('p' as binary) as payload")
    for batch in ("0", "0", "1", "0"):
        save(frame, node, queue="batches", sinkId="jobs", batchId=batch)
    assert len(drained(client, "batches")) == 200


@pytest.mark.long  # the name of a sink is shown by unit tests
def test_a_foreach_batch_that_begins_anew_is_another_sink(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    """Its batches begin at 0 again, and with the name alone would be taken for those that were committed."""
    client.create_queue("each")
    numbers(spark, 40, 1).selectExpr("cast('p' as binary) as payload").write.parquet(str(tmp_path / "files"))

    def publish(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            save(frame, node, queue="each", sinkId="each", batchId=str(batch))

    for checkpoint in ("a", "b"):
        rows = spark.readStream.schema("payload binary").parquet(str(tmp_path / "files"))
        writing = rows.writeStream.foreachBatch(publish).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination(60)
    assert len(drained(client, "each")) == 80
