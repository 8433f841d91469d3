"""What writers decide before anything is connected: where rows go, and what is wrong with columns and options."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from angarium import errors
from angarium.spark import sink
from angarium.spark.sink import StreamWriter, Writer, portions

pytestmark = pytest.mark.requirement("R221")

TOPIC, PAYLOAD = StructField("topic", StringType()), StructField("payload", BinaryType())
PLAIN = [TOPIC, PAYLOAD]


def field(name: str, kind: DataType) -> StructField:
    return StructField(name, kind)


def writer(columns: list[StructField] = PLAIN, *, overwrite: bool = False, **given: str) -> Writer:
    return Writer(given, StructType(columns), overwrite=overwrite)


def refused(columns: list[StructField] = PLAIN, *, overwrite: bool = False, **given: str) -> str:
    with pytest.raises(errors.InvalidRequestError) as caught:
        writer(columns, overwrite=overwrite, **given)
    return caught.value.detail


def test_rows_go_to_their_own_topics_by_default() -> None:
    assert writer().target.topic is None


def test_the_option_topic_is_for_all_rows() -> None:
    assert writer([PAYLOAD], topic="a/b").target.topic == "a/b"


def test_the_option_queue_is_for_all_rows() -> None:
    target = writer([PAYLOAD], queue="billing").target
    assert (target.topic, target.shown) == ("#P2P/QUE/billing", "queue 'billing'")


@pytest.mark.parametrize(
    ("columns", "given", "part"),
    [
        ([PAYLOAD], {}, "option topic: rows need a column topic"),
        (PLAIN, {"topic": "a", "queue": "b"}, "option queue: it is given beside topic"),
        (PLAIN, {"queue": "a,b"}, "option queue: 2 are given"),
        (
            PLAIN,
            {"queue": "a", "delivery": "direct"},
            "option queue: what is written to a queue is guaranteed",
        ),
        (PLAIN, {"delivery": "twice"}, "option delivery: it is 'twice', possible is"),
        (PLAIN, {"topik": "a"}, "option topik: it is unknown; did you mean topic"),
        (PLAIN, {"checkpointLocation": "/x"}, "option checkpointLocation: it is for writeStream"),
        ([TOPIC, field("colour", StringType())], {}, "unknown columns colour"),
        ([TOPIC, field("payload", StringType())], {}, "column payload is binary, not string"),
        ([TOPIC, field("priority", LongType())], {}, "column priority is int, not bigint"),
    ],
)
def test_what_is_wrong_is_named(columns: list[StructField], given: dict[str, Any], part: str) -> None:
    assert part in refused(columns, **given)


def test_nothing_is_replaced_by_messages() -> None:
    assert "overwrite" in refused(overwrite=True)


def test_a_stream_knows_the_options_that_are_sparks_own() -> None:
    given = {"checkpointLocation": "/x", "queryName": "q"}
    StreamWriter(given, StructType(PLAIN), overwrite=False)


def test_a_writer_travels_to_its_tasks() -> None:
    again = pickle.loads(pickle.dumps(writer(password="secret", topic="a")))
    assert again.settings["password"] == "secret"
    assert "secret" not in repr(again.settings)


def test_portions_are_bounded_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "PORTION_ROWS", 3)
    batches = [pa.RecordBatch.from_pydict({"n": list(range(rows))}) for rows in (7, 0, 2)]
    found = [portion.column("n").to_pylist() for portion in portions(iter(batches))]
    assert found == [[0, 1, 2], [3, 4, 5], [6], [0, 1]]


def test_a_task_without_rows_connects_to_nothing() -> None:
    written = writer(url="tcp://127.0.0.1:1").write(
        iter([pa.RecordBatch.from_pydict({"topic": pa.array([], pa.string())})])
    )
    assert written.rows == 0
