"""Record batches become rows: what a message has is in its row, and what is wrong names its row."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from angarium import errors
from angarium.message import DeliveryMode, Message
from angarium.spark.rows import Place, Target, check_sizes, rows_of

pytestmark = pytest.mark.requirement("R221")

_TEXTS = pa.map_(pa.string(), pa.string())
_TYPES = {
    "payload": pa.binary(),
    "sender_timestamp": pa.timestamp("us", "UTC"),
    "priority": pa.int32(),
    "class_of_service": pa.int32(),
    "ttl_ms": pa.int64(),
    "delay_ms": pa.int64(),
    "sequence_number": pa.int64(),
    "user_properties": _TEXTS,
    "user_property_types": _TEXTS,
    "dmq_eligible": pa.bool_(),
    "eliding": pa.bool_(),
    "deliver_to_one": pa.bool_(),
    "is_reply": pa.bool_(),
}
BY_TOPIC = Place(Target(None), 1, 3)


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def view(row: Any) -> Message:
    """Give the message whose row this is, as a receiver sees it."""
    message = Message("x")
    message._row = row
    return message


def refused(batch: pa.RecordBatch, place: Place = BY_TOPIC) -> errors.AngariumError:
    with pytest.raises(errors.InvalidRequestError) as caught:
        rows_of(batch, place)
    return caught.value


def test_topics_and_payloads_alone_are_rows_without_anything_else() -> None:
    rows = rows_of(batch_of(topic=["a", "b"], payload=[b"1", None]), BY_TOPIC)
    assert rows == [(0, "a", 1, None, None, b"1"), (0, "b", 1, None, None, b"")]


def test_a_batch_without_rows_is_no_rows() -> None:
    assert rows_of(batch_of(topic=[], payload=[]), BY_TOPIC) == []


def test_every_column_of_a_message_arrives() -> None:
    row = rows_of(
        batch_of(
            topic=["a/b"],
            payload=[b"p"],
            sender_timestamp=[1_700_000_000_123_000],
            delivery_mode=["non-persistent"],
            priority=[7],
            class_of_service=[3],
            ttl_ms=[5_000],
            delay_ms=[60],
            correlation_id=["c"],
            reply_to=["r/1"],
            application_message_id=["id"],
            application_message_type=["type"],
            sender_id=["s"],
            sequence_number=[9],
            content_type=["text/plain"],
            content_encoding=["gzip"],
            partition_key=["k"],
            user_properties=[[("n", "5"), ("t", "x"), ("nothing", None)]],
            user_property_types=[[("n", "int")]],
            dmq_eligible=[True],
            eliding=[True],
            deliver_to_one=[True],
            is_reply=[True],
        ),
        BY_TOPIC,
    )[0]
    expected = Message(
        "a/b",
        b"p",
        mode=DeliveryMode.NON_PERSISTENT,
        cos=3,
        dto=True,
        eliding=True,
        dmq_eligible=True,
        is_reply=True,
        priority=7,
        ttl_ms=5_000,
        delay_ms=60,
        partition_key="k",
        properties={"n": 5, "t": "x", "nothing": None},
        correlation_id="c",
        reply_to="r/1",
        sender_id="s",
        sender_timestamp_ms=1_700_000_000_123,
        sequence_number=9,
        application_message_id="id",
        application_message_type="type",
        content_type="text/plain",
        content_encoding="gzip",
    )
    assert row[:4] == expected.row[:4]
    assert row[5] == b"p"
    assert view(row)._decoded() == expected._decoded()


def test_what_is_null_in_one_row_only_is_what_a_message_has_by_default() -> None:
    rows = rows_of(
        batch_of(
            topic=["a", "b"],
            priority=[None, 1],
            class_of_service=[None, 2],
            sequence_number=[None, 4],
            dmq_eligible=[None, True],
            delivery_mode=[None, "persistent"],
            user_properties=[None, [("x", "y")]],
        ),
        BY_TOPIC,
    )
    assert rows[0] == (0, "a", 1, None, None, b"")
    assert (view(rows[1]).priority, view(rows[1]).cos, view(rows[1]).sequence_number) == (1, 2, 4)
    assert (view(rows[1]).dmq_eligible, view(rows[1]).properties) == (True, {"x": "y"})


def test_a_queue_gets_all_rows_whatever_their_topic() -> None:
    place = Place(Target("#P2P/QUE/q", shown="queue 'q'"))
    assert [row[1] for row in rows_of(batch_of(topic=["a", None]), place)] == ["#P2P/QUE/q"] * 2


def test_direct_delivery_makes_direct_messages_of_persistent_ones() -> None:
    place = Place(Target(None, is_direct=True))
    rows = rows_of(batch_of(topic=["a"], delivery_mode=["persistent"], eliding=[True]), place)
    assert (view(rows[0]).mode, view(rows[0]).eliding) == (DeliveryMode.DIRECT, True)


def test_what_was_direct_in_a_queue_is_non_persistent() -> None:
    rows = rows_of(batch_of(topic=["a", "b"], delivery_mode=["direct", "persistent"]), BY_TOPIC)
    assert [view(row).mode for row in rows] == [DeliveryMode.NON_PERSISTENT, DeliveryMode.PERSISTENT]


def test_a_slice_of_a_batch_has_its_own_values() -> None:
    whole = batch_of(topic=["a", "b", "c"], user_properties=[[("n", str(n))] for n in range(3)])
    rows = rows_of(whole.slice(1, 1), BY_TOPIC)
    assert [(row[1], view(row).properties) for row in rows] == [("b", {"n": "1"})]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_other_layouts_of_texts_are_read(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_pydict({"topic": pa.array(["a"], kind)})
    assert rows_of(batch, BY_TOPIC)[0][1] == "a"


def test_a_null_topic_names_its_row() -> None:
    error = refused(batch_of(topic=["a", None]), Place(Target(None), 11, 3))
    assert error.code == errors.INVALID_TOPIC
    assert error.detail == "row 12 of task 3: its topic is NULL"


def test_a_long_topic_names_its_row_and_itself() -> None:
    error = refused(batch_of(topic=["a", "b" * 251]))
    assert error.code == errors.INVALID_TOPIC
    assert error.detail.startswith("row 2 of task 3 (topic 'bbb")


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"priority": [None, 256]}, "column priority is 256, from 0 to 255 is possible"),
        ({"class_of_service": [1, 4]}, "column class_of_service is 4, from 1 to 3"),
        ({"ttl_ms": [0, -1]}, "column ttl_ms is -1"),
        ({"sequence_number": [0, -5]}, "column sequence_number is -5"),
        ({"sender_timestamp": [0, -5_000_000]}, "column sender_timestamp is -5000"),
        (
            {"delivery_mode": ["persistent", "fast"]},
            "column delivery_mode is 'fast', possible are direct, persistent",
        ),
        ({"reply_to": ["a", "x" * 300]}, "column reply_to: "),
        (
            {"user_properties": [[], [("n", "x")]], "user_property_types": [[], [("n", "int")]]},
            "property 'n' is said to be int, which 'x' is not",
        ),
        (
            {"user_properties": [[], [("n", "9" * 30)]], "user_property_types": [[], [("n", "int")]]},
            "a property cannot be packed",
        ),
    ],
)
def test_a_value_that_is_not_possible_names_row_and_column(columns: dict[str, list[Any]], part: str) -> None:
    error = refused(batch_of(topic=["a", "b"], **columns))
    assert error.detail.startswith("row 2 of task 3 (topic 'b'): ")
    assert part in error.detail


def test_text_that_is_no_utf8_is_an_error_and_not_a_crash() -> None:
    broken = pa.array([b"\xff"], pa.binary()).view(pa.string())
    assert "column topic" in refused(pa.RecordBatch.from_pydict({"topic": broken})).detail


def test_the_row_over_the_limit_is_named() -> None:
    rows = rows_of(batch_of(topic=["a", "b"], payload=[b"1", b"22"], correlation_id=["x", "y"]), BY_TOPIC)
    check_sizes(rows, 10, BY_TOPIC)
    with pytest.raises(
        errors.InvalidRequestError, match=r"row 2 of task 3 \(topic 'b'\): 6 bytes, the limit is 5"
    ):
        check_sizes(rows, 5, BY_TOPIC)


def test_a_partition_key_counts_against_the_limit() -> None:
    rows = rows_of(batch_of(topic=["a"], partition_key=["k" * 9]), BY_TOPIC)
    with pytest.raises(errors.InvalidRequestError, match="9 bytes, the limit is 8"):
        check_sizes(rows, 8, BY_TOPIC)
