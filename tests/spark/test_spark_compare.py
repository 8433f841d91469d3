"""Two archives are compared row for row, as multisets, on a real Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium.pipeline import compare as job
from angarium.pipeline.archives import read_rows
from angarium.pipeline.dataset import journal
from angarium.pipeline.dataset.files import files_of
from angarium.spark.schema import ARRIVAL, NAMES, schema
from cluster.commands.cli import run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS = ("topic", "queue", "partition", "position", "payload", "sender_timestamp", "spooled_timestamp")
PROPERTIES = ("user_properties", "user_property_types")


def message(number: int, **values: Any) -> dict[str, Any]:
    return {
        "topic": f"a/{number % 3}",
        "queue": "left",
        "partition": 0,
        "position": number + 1,
        "payload": b"%d" % number,
        "sender_timestamp": datetime.fromtimestamp(1_760_000_000 + number, UTC),
        "spooled_timestamp": datetime.fromtimestamp(1_760_000_001 + number, UTC),
        "user_properties": {"region": "eu", "amount": str(number)},
        "user_property_types": {"amount": "int"},
        **values,
    }


def frame(spark: SparkSession, rows: list[dict[str, Any]], leave_out: tuple[str, ...] = ()) -> DataFrame:
    names = [name for name in (*COLUMNS, *PROPERTIES) if name not in leave_out]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema(names))


@pytest.mark.long  # the command does so with what arrived elsewhere
def test_what_differs_in_arrival_and_order_only_is_equal(spark: SparkSession) -> None:
    left = [message(number) for number in range(50)] * 2
    right = [
        row | {"queue": "right", "position": 900 - place, "spooled_timestamp": None}
        for place, row in enumerate(reversed(left))
    ]
    found = job.compare(frame(spark, left), frame(spark, right))
    assert found.equal
    assert (found.left_rows, found.right_rows) == (100, 100)
    assert set(found.columns.ignored) == ARRIVAL & set(COLUMNS)


def test_missing_added_and_more_frequent_rows_are_counted_as_a_counter_does(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = [1, 1, 1, 2, 3, 4, 4], [1, 2, 2, 2, 3, 5]
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    frame(spark, [message(number) for number in left]).write.parquet(one)
    frame(spark, [message(number, queue="other") for number in right]).write.parquet(two)
    assert run(["pipeline", "compare", one, two, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["left_rows"], found["right_rows"]) == ("differs", 7, 6)
    ours, theirs = Counter(left), Counter(right)
    assert found["only_left"] == sum((ours - theirs).values()) == 4
    assert found["only_right"] == sum((theirs - ours).values()) == 3
    assert found["counted_differently"] == 2
    groups = {(one["topic"], one["day"]): (one["only_left"], one["only_right"]) for one in found["groups"]}
    assert groups == {("a/1", "2025-10-09"): (4, 0), ("a/2", "2025-10-09"): (0, 3)}
    samples = [(one["left"], one["right"], one["payload"]["start"]) for one in found["samples"]]
    assert sorted(samples) == [(0, 1, b"5".hex()), (1, 3, b"2".hex()), (2, 0, b"4".hex()), (3, 1, b"1".hex())]
    assert found["samples"][0]["user_properties"]["region"] == "eu"
    assert found["samples"][0]["sender_timestamp"].startswith("2025-10-09T08:53:2")


def compare(spark: SparkSession, column: str, *pairs: tuple[Any, Any]) -> job.Comparison:
    """Compare pairs, each of a message of its own, in one comparison: it takes a second."""
    sides = zip(*pairs, strict=True)
    return job.compare(
        *(frame(spark, [message(at, **{column: one}) for at, one in enumerate(side)]) for side in sides)
    )


@pytest.mark.long  # one comparison counts rows as all do
def test_maps_with_other_entries_differ_and_have_no_order(spark: SparkSession) -> None:
    pairs: list[tuple[Any, Any]] = [
        ({"a": "1", "b": None}, {"a": "1"}),
        ({"a": "1"}, {"a": "2"}),
        ({}, None),
        ({"a": "b"}, {"b": "a"}),
    ]
    in_another_order = ({"a": "1", "b": None}, {"b": None, "a": "1"})
    found = compare(spark, "user_properties", *pairs, in_another_order)
    assert (found.only_left, found.only_right) == (len(pairs), len(pairs))


@pytest.mark.long  # one comparison counts rows as all do
def test_payloads_that_differ_in_the_last_byte_differ_and_null_is_no_empty_one(spark: SparkSession) -> None:
    start = [b"x" * (length - 1) for length in (64, 65, 5000)]
    pairs: list[tuple[Any, Any]] = [(b"", None), *((one + b"a", one + b"b") for one in start)]
    equal = [(one + b"a", one + b"a") for one in start]
    found = compare(spark, "payload", *pairs, *equal)
    assert (found.only_left, found.only_right) == (len(pairs), len(pairs))


@pytest.mark.long  # unit tests have the columns that are compared
def test_a_column_that_one_side_lacks_differs_unless_it_is_taken_as_null(spark: SparkSession) -> None:
    without = [message(1, user_properties=None, user_property_types=None)]
    left, right = frame(spark, without), frame(spark, without, leave_out=PROPERTIES)
    found = job.compare(left, right)
    assert not found.equal
    assert found.columns.only_left == PROPERTIES
    assert (found.only_left, found.only_right) == (0, 0)
    assert job.compare(left, job.fill_missing(right, left.schema)).equal
    with_some = frame(spark, [message(1)])
    assert not job.compare(with_some, job.fill_missing(right, with_some.schema)).equal


@pytest.mark.long  # test_spark_archive_job.py reads one
def test_an_archive_is_read_with_the_columns_that_its_files_have(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, [message(1)])
    rows.write.parquet(str(tmp_path / "archive" / "date=2025-10-09" / "topic_1=a"))
    rows.drop("queue").write.parquet(str(tmp_path / "other" / "day=1"))
    assert set(read_rows(spark, str(tmp_path / "archive")).columns) == {*COLUMNS, *PROPERTIES} < set(NAMES)
    assert "day" in read_rows(spark, str(tmp_path / "other")).columns
    with pytest.raises(errors.NotFoundError, match="nowhere does not exist"):
        read_rows(spark, str(tmp_path / "nowhere"))


def test_an_archive_whose_compaction_was_cut_off_has_each_message_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The merged file is in its place, and the job was killed before it removed what that replaces."""
    rows = frame(spark, [message(number) for number in range(4)]).coalesce(1)
    for part in ("old", "new"):
        rows.write.parquet(str(tmp_path / part))
        (written,) = (tmp_path / part).glob("*.parquet")
        (tmp_path / "archive").mkdir(exist_ok=True)
        written.rename(tmp_path / "archive" / f"{part}.parquet")
    staging = f"{journal.STAGING}/merge"
    (tmp_path / "archive" / staging).mkdir(parents=True)
    moves = ((f"{staging}/0", "new.parquet"),)
    files = files_of(spark, str(tmp_path / "archive"))
    assert files.create(
        f"{journal.JOURNAL}/merge.json",
        json.dumps(asdict(journal.Change("merge", staging, moves, ("old.parquet",), 4))),
    )
    assert read_rows(spark, str(tmp_path / "archive")).count() == 4


def test_the_command_ends_as_diff_does(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where rows differ it ends with 1, as above."""
    one = str(tmp_path / "one")
    frame(spark, [message(number) for number in range(9)]).write.parquet(one)
    assert run(["pipeline", "compare", one, one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert run(["pipeline", "compare", one, str(tmp_path / "none")]) == 2
    assert "error 40430" in capsys.readouterr().err
    assert run(["pipeline", "compare", one, one, "--ignore", "payloads"]) == 2
    assert "no column payloads to leave out" in capsys.readouterr().err
