"""Every figure of a report, against a plain computation over the same messages."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

from angarium import errors
from angarium.pipeline.report.facts import facts
from angarium.pipeline.report.figures import collect_figures, fitting_width
from angarium.pipeline.report.job import ReportOptions, report_on
from angarium.pipeline.report.sequences import largest_gaps, publishers, runs
from angarium.spark.schema import NAMES, schema
from cluster.commands.cli import run
from cluster.commands.pipeline.report_view import summary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(300)]

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WINDOW_S = 60
LATE_MS = 500
HOSTILE = "<script>alert(1)</script>/\u202e\x1b[31m[red]"


def message(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(NAMES)
    return found | {"queue": "q", "payload": b"", "spooled_timestamp": START, "topic": "t"} | values


def frame(spark: SparkSession, messages: list[dict[str, Any]]) -> DataFrame:
    rows = [tuple(one[name] for name in NAMES) for one in messages]
    return spark.createDataFrame(rows, schema())


def some_messages(count: int) -> list[dict[str, Any]]:
    chance = random.Random(5)
    made = []
    for number in range(count):
        spooled = START + timedelta(milliseconds=number * 400)
        latency = chance.choice((-30, 0, 5, 20, 20, 90, 400, 700))
        dead = chance.choice((None, None, None, None, "expired", "redeliveries", "rejected", "moved"))
        made.append(
            message(
                topic=HOSTILE if number % 7 == 0 else f"shop/{int(chance.random() ** 2 * 6)}",
                queue="q" if dead is None else "#DEAD_MSG_QUEUE",
                payload=bytes(chance.randrange(2000)),
                spooled_timestamp=spooled,
                sender_timestamp=None if number % 11 == 0 else spooled - timedelta(milliseconds=latency),
                sender_id=chance.choice((None, "p1", "p2", "p3")),
                ttl_ms=chance.choice((None, 1000)),
                redelivered=number % 13 == 0,
                origin_kind=dead and "queue",
                origin_endpoint=dead and "q",
                origin_reason=dead,
            )
        )
    return made


def latency(one: dict[str, Any]) -> int | None:
    if one["sender_timestamp"] is None:
        return None
    taken: timedelta = one["spooled_timestamp"] - one["sender_timestamp"]
    return round(taken / timedelta(milliseconds=1))


def quantile(values: Sequence[int], share: float) -> int | None:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def plain(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures of a cell in plain Python."""
    latencies = [latency(one) for one in messages]
    timed = [value for value in latencies if value is not None]
    usable = [value for value in timed if value >= 0]
    sizes = [len(one["payload"]) for one in messages]
    reasons = Counter(one["origin_reason"] for one in messages)
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    times = [int(one["spooled_timestamp"].timestamp() * 1000) for one in messages]
    return {
        "messages": len(messages),
        "bytes": sum(sizes),
        "timed": len(timed),
        "negative": sum(value < 0 for value in timed),
        "untimed": latencies.count(None),
        "late": sum(value > LATE_MS for value in timed),
        "with_ttl": sum(one["ttl_ms"] is not None for one in messages),
        **{reason: reasons[reason] for reason in ("expired", "redeliveries", "rejected", "moved")},
        "redelivered": sum(one["redelivered"] for one in messages),
        "numbered": 0,
        "size_min_bytes": min(sizes),
        "size_max_bytes": max(sizes),
        "latency_min_ms": min(timed, default=None),
        "latency_max_ms": max(usable, default=None),
        "first": min(times),
        "last": max(times),
        **{f"size_{name}_bytes": quantile(sizes, share) for name, share in shares},
        **{f"latency_{name}_ms": quantile(usable, share) for name, share in shares},
    }


def by(messages: list[dict[str, Any]], key: Any) -> dict[Any, list[dict[str, Any]]]:
    found = defaultdict(list)
    for one in messages:
        found[key(one)].append(one)
    return found


def window(one: dict[str, Any]) -> int:
    return int(one["spooled_timestamp"].timestamp()) // WINDOW_S * WINDOW_S * 1000


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    return some_messages(900)


class Report(NamedTuple):
    """What the command makes."""

    figures: dict[str, Any]
    page: str
    tables: Path


@pytest.fixture(scope="module")
def report(
    spark: SparkSession, messages: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    """Give the report on an archive, which is made once for all: it takes half a minute of a busy machine."""
    folder = tmp_path_factory.mktemp("report")
    archive, page, tables = (folder / name for name in ("archive", "report.html", "tables"))
    frame(spark, messages).write.parquet(str(archive / "date=2026-03-01" / "topic_1=shop"))
    wanted = ["--window", str(WINDOW_S), "--late-after", str(LATE_MS / 1000), "--top", "3"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        sinks = ["--json", "--html", str(page), "--tables", str(tables)]
        assert run(["pipeline", "report", str(archive), *sinks, *wanted]) == 0
    return Report(json.loads(printed.getvalue()), page.read_text(encoding="utf-8"), tables)


@pytest.fixture
def figures(report: Report) -> dict[str, Any]:
    return report.figures


def test_totals_and_windows_are_what_plain_python_counts(
    figures: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    totals = dict(figures["totals"])
    assert totals.pop("span_s") == pytest.approx(899 * 0.4)
    assert totals == plain(messages)
    expected = {start: plain(found) for start, found in by(messages, window).items()}
    assert {one.pop("start_ms"): one for one in map(dict, figures["windows"])} == expected


@pytest.mark.parametrize("name", ["topic", "client"])
def test_the_busiest_are_named_and_the_rest_is_one_row(
    figures: dict[str, Any], messages: list[dict[str, Any]], name: str
) -> None:
    column = {"topic": "topic", "client": "sender_id"}[name]
    groups = by(messages, lambda one: one[column])
    found = figures[f"{name}s"]
    assert found["count"] == len(groups)
    assert len(found["rows"]) == 3
    rows = {}
    for row in map(dict, found["rows"]):
        peak = max(Counter(map(window, groups[row[name]])).values()) / WINDOW_S
        assert row.pop("peak_messages_per_s") == peak
        row.pop("peak_bytes_per_s")
        rows[row.pop(name)] = row
    assert rows == {key: plain(groups[key]) for key in rows}
    least_named = min(row["messages"] for row in rows.values())
    others = [one for one in messages if one[column] not in rows]
    assert all(len(group) <= least_named for key, group in groups.items() if key not in rows)
    assert found["rest"] == plain(others)
    for series in figures[f"{name}_windows"]:
        of_it = others if series["rest"] else groups[series[name]]
        counted = by(of_it, window)
        points = {start: (count, size) for start, count, size in series["points"]}
        assert points == {
            start: (len(group), sum(len(one["payload"]) for one in group)) for start, group in counted.items()
        }


def test_distributions_hold_each_message_once(
    figures: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    usable = [value for one in messages if (value := latency(one)) is not None and value >= 0]
    sizes = [len(one["payload"]) for one in messages]
    for name, values in (("latencies", usable), ("sizes", sizes)):
        assert sum(bar["messages"] for bar in figures[name]) == len(values)
        for bar in figures[name]:
            above = -1 if bar["above"] is None else bar["above"]
            assert bar["messages"] == sum(above < value <= bar["upto"] for value in values)


def test_moved_messages_are_counted_by_cause(figures: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    expected = Counter(one["origin_reason"] for one in messages if one["origin_reason"])
    found = {one["origin_reason"]: one for one in figures["causes"]}
    assert {reason: one["messages"] for reason, one in found.items()} == expected
    assert (found["expired"]["queue"], found["expired"]["origin_endpoint"]) == ("#DEAD_MSG_QUEUE", "q")


def numbered(client: str, number: int, at_s: float, **values: Any) -> dict[str, Any]:
    at = START + timedelta(seconds=at_s)
    return message(
        sender_id=client, sequence_number=number, spooled_timestamp=at, sender_timestamp=at, **values
    )


def test_gaps_duplicates_and_restarts_of_each_publisher(spark: SparkSession) -> None:
    lossy = [numbered("lossy", number, place) for place, number in enumerate((1, 2, 4, 3, 8, 9))]
    anew = [numbered("anew", number, place) for place, number in enumerate((1, 2, 3, 1, 2, 4))]
    doubled = [numbered("doubled", number, number) for number in (1, 2, 3)]
    again = [one | {"position": 9} for one in doubled[:2]] + [one | {"queue": "other"} for one in doubled]
    # A dead message is spooled in its second queue long after those that followed it.
    dead = [numbered("dead", number, number) for number in (1, 3, 4)]
    dead.append(
        numbered("dead", 2, 2) | {"origin_reason": "expired", "spooled_timestamp": START + timedelta(days=1)}
    )
    silent = [message(sender_id="silent"), message(sequence_number=5)]
    far = [numbered("far", number, place) for place, number in enumerate((0, 2**63 - 1, 0, 2**63 - 1))]
    found = runs(facts(frame(spark, [*lossy, *anew, *doubled, *again, *dead, *silent, *far]))).persist()
    names = ("runs", "numbered", "missing", "gaps", "duplicates", "out_of_order", "restarts", "highest")
    assert {row["client"]: tuple(row[name] for name in names) for row in publishers(found).collect()} == {
        "lossy": (1, 6, 3, 1, 0, 1, 0, 9),
        "anew": (2, 6, 1, 1, 0, 0, 1, 4),
        "doubled": (1, 3, 0, 0, 2, 0, 0, 3),
        "dead": (1, 4, 0, 0, 0, 0, 0, 4),
        "far": (2, 4, 2**53, 2, 0, 0, 1, 2**63 - 1),
    }
    gaps = (
        largest_gaps(found)
        .where("client != 'far'")
        .select("client", "missing", "first", "last", F.unix_millis("at"))
    )
    at_ms = int(START.timestamp() * 1000)
    assert {tuple(row) for row in gaps.collect()} == {
        ("lossy", 3, 5, 7, at_ms + 4000),
        ("anew", 1, 3, 3, at_ms + 5000),
    }
    found.unpersist()


def test_messages_without_numbers_say_nothing_about_numbering(figures: dict[str, Any]) -> None:
    """Neither of nobody, nor of a publisher that has a name and numbers nothing, anything is missing."""
    sequences = figures["sequences"]
    assert set(sequences["totals"].values()) == {0}
    assert (sequences["rows"], sequences["gaps"]) == ([], [])
    assert not any("numbering" in line for line in summary(figures))


@pytest.mark.long  # one numbering for all topics is counted the same way
def test_publishers_that_number_each_topic_on_its_own(spark: SparkSession) -> None:
    messages = [
        numbered("p", number, place, topic=topic)
        for place, (topic, number) in enumerate([("a", 1), ("b", 1), ("a", 2), ("b", 3)])
    ]
    found = publishers(runs(facts(frame(spark, messages)), by_topic=True)).orderBy("topic").collect()
    assert [(row["topic"], row["missing"], row["restarts"]) for row in found] == [("a", 0, 0), ("b", 1, 0)]


@pytest.mark.long  # unit tests have what is told of nothing
def test_nothing_to_report(spark: SparkSession) -> None:
    with report_on(frame(spark, []), ReportOptions(), read_once=True) as tables:
        assert collect_figures(tables)["totals"] == {"messages": 0}


def test_nothing_to_report_on(spark: SparkSession) -> None:
    with (
        pytest.raises(errors.InvalidRequestError, match="has no column topic, spooled_timestamp, only id"),
        report_on(spark.range(1), ReportOptions(), read_once=False),
    ):
        pass


def test_columns_that_the_data_lacks_are_taken_as_null(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", START), ("b", START)], "topic string, spooled_timestamp timestamp")
    found = facts(rows).collect()
    assert [(row["topic"], row["client"], row["sent"], row["size"]) for row in found] == [
        ("a", None, None, 0),
        ("b", None, None, 0),
    ]


def test_the_command_writes_a_page_and_all_tables(
    spark: SparkSession, report: Report, messages: list[dict[str, Any]]
) -> None:
    assert HOSTILE not in report.page
    assert "\\u003cscript\\u003ealert(1)" in report.page
    found = {path.name: spark.read.parquet(str(path)) for path in report.tables.iterdir()}
    assert found.keys() >= {
        "totals",
        "windows",
        "topics",
        "clients",
        "topic_windows",
        "causes",
        "sequences",
        "gaps",
    }
    assert found["topics"].count() == len({one["topic"] for one in messages})
    assert found["topic_windows"].agg({"messages": "sum"}).collect()[0][0] == len(messages)


@pytest.mark.parametrize(
    ("span_s", "least_s", "width_s"), [(0, 1, 1), (3600, 1, 30), (86400, 60, 600), (3600, 7, 21)]
)
def test_windows_fit_on_a_page(span_s: int, least_s: int, width_s: int) -> None:
    found = fitting_width(span_s, least_s)
    assert found % least_s == 0
    assert span_s / found < 240
    assert found == width_s
