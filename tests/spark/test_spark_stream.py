"""Queues read as streams by a real Spark from a real node: each message once, whatever happens in between."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from angarium import Message, blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

RUN_S = 60


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


class Job:
    """A query that can be run again from its checkpoint; it remembers the rows of every batch that it was given."""

    def __init__(self, spark: SparkSession, node: Node, folder: Path, **given: str) -> None:
        self.batches: list[tuple[int, list[Row]]] = []
        self.on_batch: Callable[[DataFrame, int], None] = lambda frame, number: None
        self._spark = spark
        self._given = {"url": node.url, **given}
        self._checkpoint = str(folder / "checkpoint")

    def start(self, **more: str) -> StreamingQuery:
        """Read what there is now; `more` are options that differ this time."""
        frame = self._spark.readStream.format("angarium").options(**self._given, **more).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        return writer.trigger(availableNow=True).start()

    def run(self, **more: str) -> StreamingQuery:
        query = self.start(**more)
        try:
            assert query.awaitTermination(RUN_S), query.status
        finally:
            query.stop()
        return query

    def failure(self, **more: str) -> str:
        with pytest.raises(PySparkException) as caught:
            self.run(**more)
        return str(caught.value)

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.batches for row in rows]

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches.append((number, frame.collect()))
        self.on_batch(frame, number)


def publish(client: blocking.Client, queue: str, count: int, first: int = 0, **options: Any) -> None:
    producer = client.producer()
    topic = f"#P2P/QUE/{queue}"
    messages = (
        Message(topic, str(first + at).encode(), mode="persistent", sequence_number=first + at, **options)
        for at in range(count)
    )
    assert not producer.publish_many(messages).refused
    producer.close()


def numbers(rows: Sequence[Row]) -> list[int]:
    return [int(row.payload) for row in rows]


def left(client: blocking.Client, queue: str) -> int:
    messages: int = client.show_queue(queue)["messages"]
    return messages


def has(node: Node, client: blocking.Client, queue: str, messages: int) -> None:
    """See that a queue has so many messages; its figures follow what happened."""
    node.wait_for(f"{messages} messages in {queue}", lambda status: left(client, queue) == messages, RUN_S)


def test_a_stream_goes_on_where_it_was_and_deletes_what_is_done(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("steps")
    job = Job(spark, node, tmp_path, queue="steps", maxMessagesPerTrigger="400")
    publish(client, "steps", 1000)
    query = job.run()
    assert [len(rows) for _, rows in job.batches] == [400, 400, 200]
    assert numbers(job.rows) == list(range(1000))
    assert [row.position for row in job.rows] == list(range(1, 1001))
    assert {(row.queue, row.topic) for row in job.rows} == {("steps", "#P2P/QUE/steps")}
    has(node, client, "steps", 0)
    (source,) = query.recentProgress[0]["sources"]
    newest, end = (json.loads(source[name])["endpoints"] for name in ("latestOffset", "endOffset"))
    lag = {key: one["positions"]["0"] - end[key]["positions"]["0"] for key, one in newest.items()}
    assert [*lag.values()] == [600]
    publish(client, "steps", 50, 1000)
    job.run()
    assert numbers(job.rows) == list(range(1050))


def test_a_batch_that_fails_is_read_again_exactly_and_nothing_is_deleted_before(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("again")
    publish(client, "again", 300)
    job = Job(spark, node, tmp_path, queue="again", maxMessagesPerTrigger="200")

    def fail(frame: DataFrame, number: int) -> None:
        raise RuntimeError("the disk is full")

    job.on_batch = fail
    for there in (300, 310):
        assert "the disk is full" in job.failure()
        has(node, client, "again", there)
        publish(client, "again", 10, there)
    job.on_batch = lambda frame, number: None
    job.run()
    first, second, third, *_ = [rows for _, rows in job.batches]
    assert first == second == third
    assert len(first) == 200
    assert sorted({*numbers(job.rows)}) == list(range(320))
    has(node, client, "again", 0)


@pytest.mark.long  # a snapshot reads partitions and queues
def test_partitions_and_queues_are_read_side_by_side(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("parts", access_type="non-exclusive", partition_count=3)
    client.create_queue("whole")
    for at in range(10):
        publish(client, "parts", 60, at * 60, partition_key=str(at))
    publish(client, "whole", 400)
    job = Job(spark, node, tmp_path, queue="parts,whole", maxMessagesPerPartition="100")
    tasks: list[int] = []
    job.on_batch = lambda frame, number: tasks.append(frame.rdd.getNumPartitions())
    job.run()
    by_lane: dict[tuple[str, int], list[Row]] = {}
    for row in job.rows:
        by_lane.setdefault((row.queue, row.partition), []).append(row)
    assert set(by_lane) == {("parts", 0), ("parts", 1), ("parts", 2), ("whole", 0)}
    for rows in by_lane.values():
        assert sorted(row.position for row in rows) == list(range(1, len(rows) + 1))
    assert sorted(numbers([row for row in job.rows if row.queue == "parts"])) == list(range(600))
    assert tasks == [sum(-(-len(rows) // 100) for rows in by_lane.values())]


def test_columns_are_what_is_asked_for(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("narrow")
    publish(client, "narrow", 3, properties={"n": 1})
    job = Job(spark, node, tmp_path, queue="narrow", columns="payload,user_properties,position")
    job.run()
    assert [row.asDict() for row in job.rows][1:] == [
        {"payload": b"1", "user_properties": {"n": "1"}, "position": 2},
        {"payload": b"2", "user_properties": {"n": "1"}, "position": 3},
    ]


def test_topic_filters_get_a_durable_queue_of_their_own(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    job = Job(spark, node, tmp_path, topics="alarms/>,!alarms/test", startingPosition="latest")
    job.run()
    for topic in ("alarms/a", "alarms/test", "other"):
        client.publish(topic, b"1", mode="persistent")
    job.run()
    assert [row.topic for row in job.rows] == ["alarms/a"]
    (queue,) = {row.queue for row in job.rows}
    assert queue.startswith("spark/")
    shown = client.show_queue(queue)
    assert (shown["attributes"]["durable"], shown["attributes"]["owner"]) == (True, "default")


@pytest.mark.long  # the queue of topic filters begins with the latest
def test_a_new_query_begins_where_it_is_told_to(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("begin")
    publish(client, "begin", 5)
    with client.reader_group("begin", "g") as group:
        assert group.positions()[0].next == 6
        group.release()
    latest = Job(spark, node, tmp_path / "latest", queue="begin", group="g", startingPosition="latest")
    latest.run()
    publish(client, "begin", 2, 5)
    latest.run()
    assert numbers(latest.rows) == [5, 6]
    client.reader_group("begin", "g").release()
    old = Job(spark, node, tmp_path / "t", queue="begin", group="g", startingPosition="2020-01-01T00:00:00Z")
    old.run()
    assert numbers(old.rows) == list(range(5))


def test_messages_that_an_operator_deletes_under_a_query_are_an_error_or_left_out(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("purged")
    publish(client, "purged", 10)
    job = Job(spark, node, tmp_path, queue="purged")

    def fail(frame: DataFrame, number: int) -> None:
        raise RuntimeError("not yet")

    job.on_batch = fail
    job.failure()
    node.run("queue", "purge", "purged")
    job.on_batch = lambda frame, number: None
    error = job.failure()
    assert "40440" in error
    assert "10 messages of queue 'purged', partition 0, positions 1 to 10" in error
    publish(client, "purged", 5, 10)
    job.run(failOnDataLoss="false")
    found = [(number, row.position) for number, rows in job.batches[1:] for row in rows]
    assert found == [(1, position) for position in range(11, 16)]


def test_what_is_wrong_names_its_option(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    def failure(name: str, **given: str) -> str:
        return Job(spark, node, tmp_path / name, **given).failure()

    client.create_queue("right")
    publish(client, "right", 1)
    assert "option queue: it is missing" in failure("none")
    assert "option maxmessages: it is unknown; did you mean maxMessagesPer" in failure(
        "unknown", queue="right", maxmessages="5"
    )
    assert "option queue: queue 'nowhere'" in failure("missing", queue="nowhere")
    assert "option columns" in failure("columns", queue="right", columns="payload,size")
    secret = "open sesame"
    wrong = failure("password", queue="right", username="nobody", password=secret)
    assert "option username: nobody" in wrong
    assert secret not in wrong
    with client.reader_group("right", "another"):
        leased = failure("leased", queue="right")
        assert "option group: queue 'right'" in leased
        assert "'another'" in leased


def test_a_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    for queue in ("here", "there"):
        client.create_queue(queue)
        publish(client, queue, 2)
    job = Job(spark, node, tmp_path)
    job.run(queue="here")
    assert "the checkpoint is not of what this query reads: it is of queue 'here'" in job.failure(
        queue="there"
    )
    client.delete_queue("here")
    client.create_queue("here")
    assert "a queue 'here' that was deleted" in job.failure(queue="here")


@pytest.mark.long
def test_partitions_that_come_and_go_while_a_query_runs_lose_and_double_nothing(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    client.create_queue("moving", access_type="non-exclusive", partition_count=2)
    job = Job(spark, node, tmp_path, queue="moving", maxMessagesPerTrigger="150")
    published = 0

    def more() -> None:
        nonlocal published
        for key in range(10):
            publish(client, "moving", 40, published, partition_key=str(key))
            published += 40

    more()
    sizes = iter(("5", "1", "3"))

    def change(frame: DataFrame, number: int) -> None:
        size = next(sizes, None)
        if size is not None:
            node.run("queue", "update", "moving", "--set", f"partition_count={size}")
            more()

    job.on_batch = change
    for _ in range(8):
        job.run()
        if len(job.rows) >= 1600:
            break
    job.run()
    assert sorted(numbers(job.rows)) == list(range(1600))
    has(node, client, "moving", 0)


@pytest.mark.long  # one that ends does so with each batch
def test_a_query_that_goes_on_deletes_a_batch_when_spark_commits_it(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    """Spark commits a batch when it plans the next one."""
    client.create_queue("running")
    publish(client, "running", 5)
    rows: list[int] = []
    frame = spark.readStream.format("angarium").options(url=node.url, queue="running").load()
    writer = frame.writeStream.foreachBatch(lambda batch, number: rows.extend(numbers(batch.collect())))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds").start()
    try:
        node.wait_for("the first batch", lambda status: len(rows) == 5, RUN_S)
        has(node, client, "running", 5)
        publish(client, "running", 3, 5)
        node.wait_for("the second batch", lambda status: len(rows) == 8, RUN_S)
        has(node, client, "running", 3)
    finally:
        query.stop()
    assert rows == list(range(8))


@pytest.mark.long  # test_reader_groups.py reads while they are killed
def test_a_worker_and_a_router_that_are_killed_under_a_query_cost_no_message(
    spark: SparkSession, node: Node, client: blocking.Client, tmp_path: Path
) -> None:
    """What the driver asks and the tasks read goes on when the process is replaced; the query notices nothing."""
    client.create_queue("killed")
    publish(client, "killed", 6_000)
    job = Job(spark, node, tmp_path, queue="killed", maxMessagesPerTrigger="1000", minPartitions="2")
    kills = {1: ("worker", 0), 2: ("worker", 1), 3: ("router", 0)}

    def kill(frame: DataFrame, number: int) -> None:
        if number in kills:
            node.kill(*kills[number])

    job.on_batch = kill
    job.run()
    assert sorted(numbers(job.rows)) == list(range(6_000))
    has(node, client, "killed", 0)
