"""Queues read as tables by a real Spark from a real node: what is there, and nothing is removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.functions import col

from angarium import Message, blocking
from tests.share import some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def publish(client: blocking.Client, queue: str, count: int, **options: Any) -> None:
    producer = client.producer()
    messages = (
        Message(
            f"#P2P/QUE/{queue}",
            str(at).encode(),
            mode="persistent",
            sequence_number=at,
            correlation_id=f"c{at % 3}" if at % 4 else None,
            sender_timestamp_ms=1_767_225_600_000 + at,
            **options,
        )
        for at in range(count)
    )
    assert not producer.publish_many(messages).refused
    producer.close()


def table(spark: SparkSession, node: Node, **given: str) -> DataFrame:
    return spark.read.format("angarium").options(url=node.url, **given).load()


def test_a_queue_is_read_again_and_again_and_keeps_its_messages(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("look")
    publish(client, "look", 1_000, properties={"n": 1, "s": "x"})
    frame = table(spark, node, queue="look", minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.orderBy("position").collect()
    assert [row.position for row in rows] == list(range(1, 1_001))
    assert [int(row.payload) for row in rows] == list(range(1_000))
    assert rows[5].user_properties == {"n": "1", "s": "x"}
    assert rows[5].user_property_types == {"n": "int"}
    node.wait_for("all messages", lambda status: client.show_queue("look")["messages"] == 1_000)
    assert frame.where("sequence_number >= 990").count() == 10


def test_queues_partitions_and_an_empty_one_are_one_table(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("many", access_type="non-exclusive", partition_count=3)
    client.create_queue("single")
    client.create_queue("empty")
    for key in range(9):
        publish(client, "many", 10, partition_key=str(key))
    publish(client, "single", 5)
    frame = table(spark, node, queue="many,single,empty", columns="queue,partition,position,partition_key")
    counts = {
        (row["queue"], row["partition"]): row["count"]
        for row in frame.groupBy("queue", "partition").count().collect()
    }
    assert sum(counts.values()) == 95
    assert counts["single", 0] == 5
    assert frame.columns == ["queue", "partition", "position", "partition_key"]
    assert table(spark, node, queue="empty").count() == 0


def test_dead_messages_say_where_they_come_from(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("dead")
    client.create_queue("alive", dead_message_queue="dead")
    publish(client, "alive", 3)
    with client.consume("alive", ack="manual", max_messages=3) as flow:
        for _ in range(3):
            flow.receive(10.0).reject()
    node.wait_for("dead messages", lambda status: client.show_queue("dead")["messages"] == 3)
    rows = table(spark, node, queue="dead").collect()
    assert {(row.origin_kind, row.origin_endpoint, row.origin_reason) for row in rows} == {
        ("queue", "alive", "rejected")
    }


@pytest.mark.usefixtures("pushdown")
def test_filters_that_are_pushed_down_choose_what_spark_would(
    spark: SparkSession, node: Node, client: blocking.Client
) -> None:
    client.create_queue("filtered")
    publish(client, "filtered", 200)
    frame = table(spark, node, queue="filtered")
    local = spark.createDataFrame(frame.collect(), frame.schema)
    moment = datetime(2026, 1, 1, 0, 0, 0, 99_500, tzinfo=UTC)
    conditions = (
        col("correlation_id") == "c1",
        col("correlation_id").isin("c1", "c2", None),
        col("correlation_id") != "c1",
        col("correlation_id").isNull(),
        col("correlation_id").eqNullSafe("c2"),
        col("correlation_id").startswith("c"),
        (col("sequence_number") > 50) & (col("sequence_number") <= 60),
        col("sequence_number").isin(3, 5, 999),
        col("sender_timestamp") >= moment,
        col("sender_timestamp") < moment,
        (col("position") > 10) & (col("position") < 13),
        col("position") == 200,
        col("partition") == 1,
        col("queue") == "filtered",
        col("queue") != "filtered",
        col("delivery_mode") == "persistent",
        col("priority") == 4,
        col("priority").isNull(),
        (col("correlation_id") == "c1") | (col("sequence_number") == 2),
    )
    # A third has one of each kind; which go to the node, and as what, unit tests show of all.
    tried = some(conditions, of=3)
    verdicts = local.select("position", *tried).collect()
    for place, condition in enumerate(tried, 1):
        found = sorted(row.position for row in frame.where(condition).collect())
        assert found == sorted(row[0] for row in verdicts if row[place]), condition
    plan = frame.where("correlation_id = 'c1' AND position < 50")._jdf.queryExecution().toString()
    assert "Filter (" not in plan.split("== Physical Plan ==")[1]


def test_a_selector_is_an_option_too(spark: SparkSession, node: Node, client: blocking.Client) -> None:
    client.create_queue("selected")
    publish(client, "selected", 20, properties={"region": "eu"})
    assert table(spark, node, queue="selected", selector="region = 'eu' AND SequenceNumber < 7").count() == 7


def test_credentials_are_in_no_plan_and_no_error(
    spark: SparkSession, node: Node, client: blocking.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "open sesame"
    client.create_queue("secret")
    publish(client, "secret", 1)
    frame = table(spark, node, queue="secret", password=secret)
    assert frame.count() == 1
    frame.explain(extended=True)
    plans = capsys.readouterr().out + frame._jdf.queryExecution().toString()
    assert "Python" in plans
    assert secret not in plans
    with pytest.raises(PySparkException) as caught:
        table(spark, node, queue="nowhere", password=secret).count()
    assert "option queue: queue 'nowhere'" in str(caught.value)
    assert secret not in str(caught.value)


def test_what_is_wrong_names_its_option(spark: SparkSession, node: Node, client: blocking.Client) -> None:
    def failure(**given: str) -> str:
        with pytest.raises(PySparkException) as caught:
            table(spark, node, **given).count()
        return str(caught.value)

    client.create_queue("right")
    publish(client, "right", 1)
    assert "option queue: it is missing" in failure()
    assert "option selector: region =: it ends too early" in failure(queue="right", selector="region =")
    assert "option startingPosition: it is for readStream" in failure(
        queue="right", startingPosition="latest"
    )
    assert "column payload is binary, not string" in str(_schema_failure(spark, node))


def _schema_failure(spark: SparkSession, node: Node) -> Exception:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("angarium").schema("payload string").options(
            url=node.url, queue="right"
        ).load().count()
    return caught.value
