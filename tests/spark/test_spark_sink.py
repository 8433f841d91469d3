"""Rows of Spark published: what arrives is what was written; what cannot be published fails the batch, and is named."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from angarium import blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from angarium.testing import Node

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


def payloads(client: blocking.Client, queue: str, rows: int) -> list[bytes]:
    """Take so many messages from a queue, and see that it has no more."""
    assert client.show_queue(queue)["messages"] == rows
    found: list[bytes] = []
    flow = client.consume(queue, max_messages=rows)
    for message in flow:
        found.append(message.payload)
        if len(found) == rows:
            break
    flow.close()
    return found


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
    found = [int(one) for one in payloads(client, "sink", 12_000)]
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
    message = next(iter(client.consume("columns", max_messages=1)))
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
    frame = numbers(spark, 3, 1).selectExpr("repeat('x', 250 + int(id)) as topic")
    text = failure(lambda: save(frame, node))
    assert "error 40004" in text
    assert "row 2 of task 0 (topic 'xxx" in text


def test_a_queue_that_is_not_there_is_named(spark: SparkSession, node: Node) -> None:
    frame = numbers(spark, 3, 1).selectExpr("cast('p' as binary) as payload")
    text = failure(lambda: save(frame, node, queue="nowhere", delivery="at-least-once"))
    assert "row 1 of task 0 (queue 'nowhere')" in text
    assert "error 40029" in text


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
