"""A report of messages that come: the same figures as of an archive, batch by batch, each message once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import angarium.spark
from angarium import Message, blocking, errors
from angarium.pipeline.dataset import files
from angarium.pipeline.report.figures import collect_figures
from angarium.pipeline.report.job import ReportOptions, report_on
from angarium.pipeline.report.live import LiveOptions, LiveReport, follow
from angarium.spark.schema import schema
from cluster.commands.cli import run
from cluster.commands.pipeline import report

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from angarium.pipeline.report.figures import Tables
    from angarium_server.testing import Node

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(300)]

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAMES = ("topic", "queue", "payload", "sender_timestamp", "spooled_timestamp", "sender_id", "sequence_number")


def rows(numbers: list[int], at_s: float = 0.0, client: str = "p") -> list[tuple[Any, ...]]:
    made = []
    for place, number in enumerate(numbers):
        spooled = START + timedelta(seconds=at_s + place)
        sent = START + timedelta(milliseconds=number)
        made.append((f"t/{number % 3}", "q", b"%d" % number, sent, spooled, client, number))
    return made


def frame(spark: SparkSession, messages: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(messages, schema(NAMES))


def live_report(spark: SparkSession, tmp_path: Path, **values: Any) -> LiveReport:
    return LiveReport(spark, ReportOptions(window_s=60), LiveOptions(checkpoint=str(tmp_path), **values))


class Cells:
    """What a report has counted, in one read."""

    def __init__(self, tables: Tables) -> None:
        cells = [name for name in tables.cells.columns if name not in ("sizes", "latencies")]
        self.cells = sorted((row.asDict() for row in tables.cells.select(*cells).collect()), key=str)

    @property
    def messages(self) -> int:
        return sum(cell["messages"] for cell in self.cells)

    @property
    def windows(self) -> dict[int, int]:
        """Messages by second at which their window began, -1 for no window."""
        found: Counter[int] = Counter()
        for cell in self.cells:
            start = cell["start"]
            second = -1 if start is None else round(start.astimezone(UTC).timestamp() - START.timestamp())
            found[second] += cell["messages"]
        return dict(found)


class Found(Cells):
    """What a report has, in three reads."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.publishers = {row["client"]: row.asDict() for row in tables.publishers.collect()}
        self.gaps = {tuple(row) for row in tables.gaps.collect()}


def step(live: LiveReport, messages: DataFrame, batch: int) -> tuple[Cells, int]:
    with live.step(messages, batch) as (tables, behind):
        return Cells(tables), behind


@pytest.mark.long  # what comes from a queue is counted below, and once if its batch is repeated
def test_batches_add_up_to_the_report_of_all_and_a_repeated_one_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = rows([1, 2, 4, 7]), rows([3, 3, 8, 10], at_s=70) + rows([1], at_s=75, client="other")
    live = live_report(spark, tmp_path)
    with live.step(frame(spark, first), 0):
        pass
    with live.step(frame(spark, second), 1):
        pass
    # The driver died after the state was written and before Spark knew: another one runs the batch again.
    with live_report(spark, tmp_path).step(frame(spark, second), 1) as (tables, behind):
        found = Found(tables)
    with report_on(frame(spark, first + second), ReportOptions(window_s=60), read_once=False) as tables:
        expected = Found(tables)
    assert (found.cells, found.publishers, found.gaps) == (expected.cells, expected.publishers, expected.gaps)
    assert behind == 0
    figures = found.publishers["p"]
    assert (figures["missing"], figures["duplicates"], figures["out_of_order"]) == (3, 1, 1)


def test_what_is_behind_the_watermark_is_what_its_window_lacks(spark: SparkSession, tmp_path: Path) -> None:
    """The window of the first one is open, though the message itself is older than the watermark."""
    live = live_report(spark, tmp_path, watermark_s=100.0)
    step(live, frame(spark, rows([1], at_s=240)), 0)
    found, behind = step(live, frame(spark, rows([2], at_s=130) + rows([3], at_s=50)), 1)
    assert (found.windows, behind) == ({240: 1, 120: 1, -1: 1}, 1)


def test_a_batch_is_on_disk_before_spark_is_told_that_it_is_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its messages are deleted at the node; and a file that a power cut left empty is read as no figures."""
    synced: set[Path] = set()
    monkeypatch.setattr(files, "_sync", synced.add)
    with live_report(spark, tmp_path).step(frame(spark, rows([1, 2, 3])), 0):
        made = set((tmp_path / "report" / "0").rglob("*.parquet"))
        folders = {folder for path in made for folder in list(path.parents)[:3]}
        assert {path.parent.name for path in made} == {"cells", "causes", "ledgers", "meta"}
        assert synced >= made | folders | {tmp_path}


def test_a_report_goes_on_by_the_rules_that_it_was_begun_with_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Messages of a minute would be taken for those of ten seconds, and a publisher for one that begins again."""
    live, options = LiveOptions(checkpoint=str(tmp_path)), ReportOptions(window_s=60)
    step(LiveReport(spark, options, live), frame(spark, rows([1])), 0)
    for other, why in (
        ({"window_s": 10}, r"begun with --window 60, not with --window 10 .go on with --window 60"),
        ({"late_ms": 500}, r"with --late-after 60, not with --late-after 0\.5"),
        ({"by_topic": True}, r"without --sequence-per-topic, not with --sequence-per-topic"),
        ({"reorder": 9}, r"with --reorder 1000, not with --reorder 9"),
    ):
        with pytest.raises(errors.InvalidRequestError, match=why):
            step(LiveReport(spark, replace(options, **other), live), frame(spark, rows([2])), 1)


@pytest.mark.long  # what comes from a queue is counted below, and nothing of it is late
def test_old_windows_and_what_is_behind_the_watermark_are_in_the_totals_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    live = live_report(spark, tmp_path, windows_kept=2, watermark_s=100.0)
    first = rows([1]) + rows([2], at_s=60) + rows([3], at_s=180)
    found, behind = step(live, frame(spark, first), 0)
    assert (found.windows, behind) == ({-1: 2, 180: 1}, 0)
    second = rows([4], at_s=181) + rows([5], at_s=20) + rows([6], at_s=240)
    found, behind = step(live, frame(spark, second), 1)
    assert (found.windows, behind, found.messages) == ({-1: 3, 180: 2, 240: 1}, 1, 6)
    found, behind = step(live, frame(spark, rows([7], at_s=241)), 2)
    assert (found.windows, behind, found.messages) == ({-1: 3, 180: 2, 240: 2}, 1, 7)
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["1", "2"]


def test_what_is_in_no_window_any_more_is_no_window_that_was_busy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hours of it together would be the busiest window of all, and take most of the page."""
    old = [one for at_s in range(0, 600, 60) for one in rows([0, 3, 6], at_s=at_s)]
    live = live_report(spark, tmp_path, windows_kept=2)
    with live.step(frame(spark, [*old, *rows([9], at_s=30_000), *rows([12, 15], at_s=30_060)]), 0) as (
        tables,
        _,
    ):
        figures = collect_figures(tables)
        rated = {
            row["start"] and row["messages"]: row["messages_per_s"]
            for row in tables.named()["windows"].collect()
        }
    assert figures["topics"]["rows"][0]["messages"] == 33
    assert (
        figures["topics"]["rows"][0]["peak_messages_per_s"]
        == figures["clients"]["rows"][0]["peak_messages_per_s"]
    )
    assert figures["topics"]["rows"][0]["peak_messages_per_s"] == 2 / 60
    assert [one["messages"] for one in figures["windows"]] == [1, 2]
    assert figures["shown_window_s"] == 60
    assert rated == {None: None, 1: 1 / 60, 2: 2 / 60}


@pytest.mark.long  # the stream of a queue goes the same way
def test_a_stream_of_parquet_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    source, seen = tmp_path / "source", []
    options = LiveOptions(checkpoint=str(tmp_path / "of [1]{a,b}*?"), trigger_s=None)

    def show(tables: Tables, behind: int) -> None:
        totals = tables.cells.agg({"messages": "sum"}).first()
        assert totals is not None
        seen.append((totals[0], behind))

    for messages in (rows([1, 2, 3]), rows([4])):
        frame(spark, messages).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(schema(NAMES)).parquet(str(source))
        query = follow(stream, LiveReport(spark, ReportOptions(), options), options, show)
        assert query.awaitTermination(60)
        assert query.exception() is None
    assert seen == [(3, 0), (4, 0)]


def fill(node: Node, queue: str) -> None:
    """Make a queue with 99 messages of a publisher, who numbered 100."""
    with blocking.connect(node.url) as client:
        client.create_queue(queue, subscriptions=[f"{queue}/>"])
        producer = client.producer()
        producer.publish_many(
            Message(f"{queue}/{at % 2}", b"x" * at, mode="persistent", sender_id="p", sequence_number=at)
            for at in range(100)
            if at != 7
        )
        producer.close()


@pytest.mark.long  # test_spark_report.py has the command, and test_spark_snapshot.py such a queue
def test_a_queue_of_a_node_is_looked_through(
    spark: SparkSession, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    angarium.spark.register(spark)
    fill(node, "looked")
    assert run(["pipeline", "report", "--queue", "looked", "--url", node.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["totals"]["messages"], told["totals"]["bytes"]) == (99, sum(range(100)) - 7)
    topics = {row["topic"]: row["messages"] for row in told["topics"]["rows"]}
    assert topics == {"looked/0": 50, "looked/1": 49}
    assert told["sequences"]["totals"]["missing"] == 1


def test_a_second_run_of_the_same_report_is_refused(
    spark: SparkSession,
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would take the queue from the first one, and both would write the state of one batch."""
    monkeypatch.setattr(report, "_wait", lambda query, *_: query.stop())
    with blocking.connect(node.url) as client:
        client.create_queue("followed")
    wanted = ["--queue", "followed", "--follow", "--consume", "--checkpoint", str(tmp_path)]
    with files.LocalFiles(tmp_path).hold("running"):
        assert run(["pipeline", "report", *wanted, "--url", node.url]) == 1
    assert "error 40902" in capsys.readouterr().err


def test_the_stream_of_a_queue_is_taken_and_a_repeated_batch_counts_once(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    angarium.spark.register(spark)
    fill(node, "taken")
    options, seen = LiveOptions(checkpoint=str(tmp_path / "of [1]{a,b}*?"), trigger_s=None), []
    given = {"url": node.url, "queue": "taken"}
    messages = spark.read.format("angarium").options(**given).load()
    once = spark.createDataFrame(messages.collect(), messages.schema)
    stream = spark.readStream.format("angarium").options(**given).load()
    live = LiveReport(spark, ReportOptions(), options)
    query = follow(stream, live, options, lambda tables, _: seen.append(Found(tables)))
    assert query.awaitTermination(200)
    assert query.exception() is None
    assert seen[-1].messages == 99
    assert seen[-1].publishers["p"]["missing"] == 1
    # The driver died after the state was written and before Spark knew: another one runs the batch again.
    again, _ = step(LiveReport(spark, ReportOptions(), options), once, 0)
    assert again.cells == seen[-1].cells
