"""Rows of messages as Arrow record batches: every column, and only those that are asked for."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema

from angarium.client.protocol.messages import GuaranteedBatch, GuaranteedDelivery
from angarium.message import MAX_TTL_MS, Message, pack_rows, unpack_properties, unpack_rows
from angarium.spark import arrow
from angarium.spark.arrow import Builder
from angarium.spark.rows import Place, Target, rows_of
from angarium.spark.schema import NAMES, schema
from node.matching.batch import ClientRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.requirement("R221")

STORED_MS = 1_767_225_600_000


def batch(
    messages: Sequence[Message],
    first: int = 1,
    partition: int = 0,
    counts: list[int] | None = None,
    origins: list[tuple[str, str, str] | None] | None = None,
    stored_ms: int | list[int] = STORED_MS,
) -> GuaranteedBatch:
    rows = unpack_rows(pack_rows([message.row for message in messages]))
    runs = [(first, len(rows))]
    size = sum(len(row[5]) for row in rows)
    delivery = GuaranteedDelivery(None, partition, rows, runs, counts, stored_ms, origins, size)  # type: ignore[arg-type]
    return GuaranteedBatch(delivery, 0, len(rows))


def table(*batches: GuaranteedBatch, names: Sequence[str] = NAMES, queue: str = "q") -> list[dict[str, Any]]:
    found = Builder(schema(names), queue).record_batch(batches)
    assert found.schema.equals(to_arrow_schema(schema(names), timezone="UTC"))
    rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return rows


def test_a_message_that_says_nothing_has_nulls() -> None:
    (row,) = table(batch([Message("a/b", b"x", mode="persistent")]))
    stated = {name: value for name, value in row.items() if value is not None}
    assert stated == {
        "topic": "a/b",
        "queue": "q",
        "partition": 0,
        "position": 1,
        "payload": b"x",
        "spooled_timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "delivery_mode": "persistent",
        "class_of_service": 1,
        "dmq_eligible": False,
        "eliding": False,
        "deliver_to_one": False,
        "is_reply": False,
        "redelivered": False,
        "delivery_count": 1,
    }


def test_a_message_that_says_everything_has_everything() -> None:
    message = Message(
        "a",
        mode="non-persistent",
        cos=3,
        dto=True,
        eliding=True,
        dmq_eligible=True,
        is_reply=True,
        priority=9,
        ttl_ms=5000,
        delay_ms=7,
        partition_key="k",
        properties={"region": "eu", "amount": 5},
        correlation_id="c",
        reply_to="r/t",
        sender_id="s",
        sender_timestamp_ms=STORED_MS - 1,
        sequence_number=77,
        application_message_id="i",
        application_message_type="t",
        content_type="text/plain",
        content_encoding="gzip",
    )
    origin = "queue", "orders", "rejected"
    (row,) = table(batch([message], 12, 3, [2], [origin]))
    assert row == {
        "topic": "a",
        "queue": "q",
        "partition": 3,
        "position": 12,
        "payload": b"",
        "sender_timestamp": datetime(2025, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        "spooled_timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "delivery_mode": "non-persistent",
        "priority": 9,
        "class_of_service": 3,
        "ttl_ms": 5000,
        "delay_ms": 7,
        "correlation_id": "c",
        "reply_to": "r/t",
        "application_message_id": "i",
        "application_message_type": "t",
        "sender_id": "s",
        "sequence_number": 77,
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "partition_key": "k",
        "user_properties": {"region": "eu", "amount": "5"},
        "user_property_types": {"amount": "int"},
        "dmq_eligible": True,
        "eliding": True,
        "deliver_to_one": True,
        "is_reply": True,
        "redelivered": True,
        "delivery_count": 3,
        "origin_kind": "queue",
        "origin_endpoint": "orders",
        "origin_reason": "rejected",
    }


def test_only_columns_that_are_asked_for_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(packed: bytes | None) -> dict[Any, Any]:
        pytest.fail("properties were unpacked")

    monkeypatch.setattr(arrow, "unpack_properties", never)
    (row,) = table(batch([Message("a", b"x", correlation_id="c")]), names=["payload", "topic"])
    assert row == {"payload": b"x", "topic": "a"}


def test_batches_are_put_together_in_their_order() -> None:
    first = batch([Message("a", correlation_id="1"), Message("b")], 5, counts=[0, 1])
    second = batch([Message("c")], 9, origins=[("queue", "x", "moved")], stored_ms=[STORED_MS + 1000])
    third = batch([Message("d"), Message("e", properties={"n": None})], 10)
    rows = table(first, second, third)
    assert [row["topic"] for row in rows] == ["a", "b", "c", "d", "e"]
    assert [row["position"] for row in rows] == [5, 6, 9, 10, 11]
    assert [row["delivery_count"] for row in rows] == [1, 2, 1, 1, 1]
    assert [row["origin_reason"] for row in rows] == [None, None, "moved", None, None]
    assert [row["spooled_timestamp"].second for row in rows] == [0, 0, 1, 0, 0]
    assert [row["correlation_id"] for row in rows] == ["1", None, None, None, None]
    assert [row["user_properties"] for row in rows] == [None, None, None, None, {"n": None}]


def test_what_fails_behind_a_record_batch_is_raised_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_MESSAGES", 1)

    def broken() -> Iterator[GuaranteedBatch]:
        yield batch([Message("t")])
        raise RuntimeError("the node is gone")

    found = Builder(schema(["topic"]), "q").record_batches(broken())
    assert next(found).num_rows == 1
    with pytest.raises(RuntimeError, match="the node is gone"):
        next(found)


def test_who_takes_no_more_record_batches_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_MESSAGES", 1)
    before = threading.active_count()
    found = Builder(schema(["topic"]), "q").record_batches(batch([Message("t")]) for _ in range(5))
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_record_batches_are_neither_small_nor_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_MESSAGES", 4)
    monkeypatch.setattr(arrow, "BATCH_BYTES", 100)
    batches = [batch([Message("a", bytes(size)) for size in sizes]) for sizes in ([1, 1], [1, 1], [150], [1])]
    found = Builder(schema(["payload"]), "q").record_batches(batches)
    assert [one.num_rows for one in found] == [4, 1, 1]


@pytest.mark.parametrize(
    ("key", "value", "column"),
    [
        (1, 5, "correlation_id"),
        (4, "now", "sender_timestamp"),
        (4, 1 << 62, "sender_timestamp"),
        (4, -(1 << 60), "sender_timestamp"),
        (4, -1, "sender_timestamp"),
        (5, (1 << 64) - 1, "sequence_number"),
        (5, -1, "sequence_number"),
        (2, "", "reply_to"),
        (2, "a/" + 250 * "b", "reply_to"),
        (5, True, "sequence_number"),
        (5, 5.0, "sequence_number"),
        (10, ["no map"], "user_properties"),
        (10, {}, "user_properties"),
    ],
)
def test_what_another_publisher_packed_strangely_is_null(key: int, value: Any, column: str) -> None:
    row = (0, "a", 1, None, msgspec.msgpack.encode({key: value}), b"")
    delivery = GuaranteedDelivery(None, 0, [row], [(1, 1)], None, 1, None, 0)  # type: ignore[arg-type]
    assert table(GuaranteedBatch(delivery, 0, 1), names=[column]) == [{column: None}]


def test_properties_that_cannot_be_read_are_null() -> None:
    row = (0, "a", 1, None, b"\xc1", b"x")
    delivery = GuaranteedDelivery(None, 0, [row], [(1, 1)], None, 1, None, 0)  # type: ignore[arg-type]
    (found,) = table(GuaranteedBatch(delivery, 0, 1), names=["payload", "sender_id", "user_properties"])
    assert found == {"payload": b"x", "sender_id": None, "user_properties": None}


def test_what_another_publisher_said_strangely_is_read_and_written_again() -> None:
    """A node takes any times that are no less than 0, and looks into no packed properties."""
    spans, packed = (1 << 64) - 1, {2: "", 4: -1, 5: -1, 10: {"n": (1 << 64) - 1, 5: 6}}
    row = pack_rows([(0, "a", 1, (spans, spans, 255, ""), msgspec.msgpack.encode(packed), b"x")])
    assert msgspec.msgpack.decode(row, type=list[ClientRow])[0].meta is not None, "the check of a worker"
    delivery = GuaranteedDelivery(None, 0, unpack_rows(row), [(1, 1)], None, 1, None, 0)  # type: ignore[arg-type]
    found = Builder(schema(NAMES), "q").record_batch([GuaranteedBatch(delivery, 0, 1)])
    ((_, topic, _, meta, properties, payload),) = rows_of(found, Place(Target(None)))
    assert (topic, meta, payload) == ("a", (MAX_TTL_MS, MAX_TTL_MS, 255, ""), b"x")
    assert unpack_properties(properties) == {10: {"n": (1 << 64) - 1}}
