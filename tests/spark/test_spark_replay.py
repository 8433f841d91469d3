"""The job replay: the order of what it sends, its plan, and that each message is sent once."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from angarium import blocking, errors
from angarium.pipeline import replay_plan
from angarium.pipeline.replay import ReplayJob, replay
from angarium.pipeline.selection import AT, JOB, Selection, in_order, moment, select
from angarium.spark.schema import NAMES, schema
from tests.share import short

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]

LIMIT_S = 60.0


def archived(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Give messages as an archive has them; `spooled_timestamp` in seconds since 1970."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    fields = schema(NAMES).add(JOB, "string")
    made = [{"partition": 0, "topic": "t", JOB: "", **row} for row in rows]
    given = (
        f"topic string, queue string, partition int, position bigint, spooled_timestamp double, {JOB} string"
    )
    names = given.replace(",", "").split()[::2]
    frame = spark.createDataFrame([tuple(row[name] for name in names) for row in made], given)
    frame = frame.withColumn("spooled_timestamp", F.timestamp_seconds("spooled_timestamp"))
    columns = [
        (F.col(field.name) if field.name in names else F.lit(None)).cast(field.dataType).alias(field.name)
        for field in fields
    ]
    return frame.select(*columns)


def test_a_partition_keeps_its_order_whatever_the_clock_did_and_queues_are_merged_by_time(
    spark: SparkSession,
) -> None:
    """The clock of the node went back an hour after position 2 of queue a."""
    times = {"a": [100.0, 4000.0, 401.0, 402.0, 5000.0], "b": [50.0, 3999.0, 4001.0, 6000.0]}
    rows = [
        {"queue": queue, "position": at + 1, "spooled_timestamp": time}
        for queue, some in times.items()
        for at, time in enumerate(some)
    ]
    found = [(row.queue, row.position) for row in in_order(archived(spark, rows[::-1])).collect()]
    assert found == [
        ("b", 1),
        ("a", 1),
        ("b", 2),
        ("a", 2),
        ("a", 3),
        ("a", 4),
        ("b", 3),
        ("a", 5),
        ("b", 4),
    ]


def test_a_queue_that_was_made_again_comes_behind_the_one_before(spark: SparkSession) -> None:
    """Checkpoints b and c are of the second queue of that name, and the clock went back between them."""
    lives = {"a": [(1, 100.0), (2, 101.0), (12_000, 102.0)], "b": [(1, 200.0), (2, 203.0)], "c": [(3, 201.0)]}
    rows = [
        {"queue": "q", "position": position, "spooled_timestamp": time, JOB: job}
        for job, some in lives.items()
        for position, time in some
    ]
    found = in_order(archived(spark, rows[::-1])).collect()
    assert [row.position for row in found] == [1, 2, 12_000, 1, 2, 3]
    assert [row[AT] for row in found] == [100e6, 101e6, 102e6, 200e6, 203e6, 203e6]


@pytest.mark.long  # the order of a replay in files shows it
def test_the_latest_time_so_far_is_known_across_the_pieces_of_a_partition(spark: SparkSession) -> None:
    """Positions that far apart are walked by different tasks."""
    positions = [1, 2, 9_999, 10_001, 25_000, 40_000]
    times = [9.0, 1.0, 2.0, 3.0, 12.0, 4.0]
    rows = [
        {"queue": "a", "position": position, "spooled_timestamp": time}
        for position, time in zip(positions, times, strict=True)
    ]
    found = in_order(archived(spark, rows[::-1])).collect()
    assert [row.position for row in found] == positions
    assert [row[AT] for row in found] == [9e6, 9e6, 9e6, 9e6, 12e6, 12e6]


def test_messages_are_chosen_by_time_topic_and_queue(spark: SparkSession) -> None:
    start = moment("2026-03-01").timestamp()
    rows = [
        {"queue": queue, "position": at + 1, "spooled_timestamp": start + at * 3600.0, "topic": topic}
        for queue in ("a", "b")
        for at, topic in enumerate(["x/1", "x/2", "y/1", "$S/1"])
    ]
    frame = archived(spark, rows)

    def chosen(**values: Any) -> list[tuple[str, int]]:
        return sorted((row.queue, row.position) for row in select(frame, Selection(**values)).collect())

    since, until = moment("2026-03-01T01:00"), moment("2026-03-01T03:00")
    assert chosen(since=since, until=until, queues=("a",)) == [("a", 2), ("a", 3)]
    assert chosen(topics=("x/*", "$S/>"), queues=("b",)) == [("b", 1), ("b", 2), ("b", 4)]
    assert len(chosen(topics=(">",))) == 6


MESSAGES = short(1250, long=2000)
#: A file is a task, and four of them a batch: the smallest replay that has several of both.
FILE_MESSAGES = 250


@pytest.fixture(scope="module")
def archive_path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give an archive of one queue, its files and rows in no order."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    start = moment("2026-03-01").timestamp()
    rows = [
        {"queue": "q", "position": at + 1, "spooled_timestamp": start + at / 500, "topic": f"o/{at % 7}"}
        for at in range(MESSAGES)
    ]
    frame = (
        archived(spark, rows)
        .drop(JOB)
        .withColumn("payload", F.encode(F.col("position").cast("string"), "UTF-8"))
    )
    path = tmp_path_factory.mktemp("replayed") / "of [1]{a,b}*?"  # Spark would look for what fits
    frame.repartition(3).orderBy(F.rand(1)).write.parquet(str(path))
    return str(path)


def consumed(client: blocking.Client, queue: str, count: int) -> list[int]:
    """Give the positions that messages had in the archive, in the order in which a consumer gets them."""
    flow = client.consume(queue)
    try:
        found = [int(flow.receive(timeout_s=LIMIT_S).payload) for _ in range(count)]
        with pytest.raises(errors.TimeoutExpiredError):
            flow.receive(timeout_s=0.2)
        return found
    finally:
        flow.close()


@pytest.mark.long  # so do those of a replay that is cut off, below
def test_messages_come_to_a_queue_in_their_order_and_once(
    spark: SparkSession, node: Node, archive_path: str
) -> None:
    told: list[int] = []
    job = ReplayJob(path=archive_path, queue="again", options={"url": node.url}, file_messages=FILE_MESSAGES)
    with blocking.connect(node.url) as client:
        client.create_queue("again")
        done = replay(spark, job, lambda done, total=None: told.append(done))
        assert (done.messages, done.finished) == (MESSAGES, True)
        assert done.batches > 1
        assert told[-1] == MESSAGES
        assert consumed(client, "again", MESSAGES) == list(range(1, MESSAGES + 1))
        once_more = replay(spark, job)
        assert (once_more.messages, once_more.messages_before) == (0, MESSAGES)
        assert consumed(client, "again", 0) == []


def test_a_replay_that_is_cut_off_goes_on_and_sends_nothing_twice(
    spark: SparkSession, node: Node, archive_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is with the node, but the job dies before it has noted so."""
    job = ReplayJob(
        path=archive_path, topic_prefix="again/", options={"url": node.url}, file_messages=FILE_MESSAGES
    )

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with blocking.connect(node.url) as client:
        client.create_queue("by topic", subscriptions=["again/o/>"])
        with monkeypatch.context() as patch:
            patch.setattr(replay_plan, "mark_done", die)
            with pytest.raises(KeyboardInterrupt):
                replay(spark, job)
        assert replay(spark, job).messages == MESSAGES
        assert consumed(client, "by topic", MESSAGES) == list(range(1, MESSAGES + 1))


def test_a_second_replay_at_the_same_time_is_refused_and_the_first_sends_all_once(
    spark: SparkSession, node: Node, archive_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when the first one has its messages in order, and no plan yet."""
    job = ReplayJob(path=archive_path, queue="one run", options={"url": node.url}, file_messages=MESSAGES)
    save, told = replay_plan.save, list[Exception]()

    def meddled(*given: Any) -> None:
        if not told:
            told.append(ValueError("the second run was not refused"))
            try:
                replay(spark, job)
            except errors.AngariumError as error:
                told[0] = error
        save(*given)

    monkeypatch.setattr(replay_plan, "save", meddled)
    with blocking.connect(node.url) as client:
        client.create_queue("one run")
        assert replay(spark, job).messages == MESSAGES
        assert consumed(client, "one run", MESSAGES) == list(range(1, MESSAGES + 1))
    with pytest.raises(errors.ConflictError, match="another run of this job is at work"):
        raise told[0]


@pytest.mark.long  # unit tests have slices, and when each may leave
def test_a_replay_that_keeps_time_takes_as_long_as_it_did(
    spark: SparkSession, node: Node, archive_path: str
) -> None:
    """Four seconds of messages, twice as fast: the last slice leaves at two seconds or later."""
    job = ReplayJob(
        path=archive_path,
        selection=Selection(topics=("o/1",)),
        queue="timed",
        speed=2.0,
        options={"url": node.url},
    )
    with blocking.connect(node.url) as client:
        client.create_queue("timed")
        started = time.monotonic()
        done = replay(spark, job)
        assert time.monotonic() - started >= 1.0
        assert done.batches >= 2
        expected = [at + 1 for at in range(MESSAGES) if at % 7 == 1]
        assert consumed(client, "timed", len(expected)) == expected


@pytest.mark.long  # the archive is stopped, and the command asks for the target
def test_a_stop_ends_after_a_batch_and_a_wrong_target_is_named(
    spark: SparkSession, node: Node, archive_path: str
) -> None:
    stop = Event()
    stop.set()
    job = ReplayJob(path=archive_path, queue="nowhere", options={"url": node.url})
    done = replay(spark, job, stop=stop)
    assert (done.messages, done.finished) == (0, False)
    with pytest.raises(errors.AngariumError, match=r"error 40404: .*nowhere"):
        replay(spark, job)
    nothing = ReplayJob(path=archive_path, selection=Selection(topics=("x",)), options={"url": node.url})
    with pytest.raises(errors.NotFoundError, match="has no such messages"):
        replay(spark, nothing)
