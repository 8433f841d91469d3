"""What of Spark's filters goes to the node, and that it means the same there."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from angarium.message import Message
from angarium.spark.snapshot import SELECTOR_BYTES_MAX, Wanted, take
from node.selectors.compiler import compile_selector

pytestmark = pytest.mark.requirement("R221")


def taken(*filters: Filter) -> tuple[Wanted, list[Filter]]:
    wanted = Wanted()
    return wanted, take(wanted, filters)


@pytest.mark.parametrize(
    ("one", "selector"),
    [
        (EqualTo(("correlation_id",), "it's"), "JMSCorrelationID IN ('it''s')"),
        (EqualNullSafe(("sender_id",), "a"), "SenderId IN ('a')"),
        (In(("application_message_type",), ("a", None, "b")), "JMSType IN ('a', 'b')"),
        (EqualTo(("application_message_id",), ""), "JMSMessageID IN ('')"),
        (EqualTo(("partition_key",), "k"), "JMSXGroupID IN ('k')"),
        (EqualTo(("delivery_mode",), "non-persistent"), "JMSDeliveryMode IN ('NON_PERSISTENT')"),
        (EqualTo(("priority",), 8), "JMSPriority = 8"),
    ],
)
def test_what_means_the_same_is_the_nodes(one: Filter, selector: str) -> None:
    wanted, left = taken(one)
    assert wanted.selector == selector
    assert left == []


@pytest.mark.parametrize(
    "one",
    [
        # A text of more than 2,000 bytes is NULL to a selector.
        StringStartsWith(("correlation_id",), "a"),
        Not(EqualTo(("correlation_id",), "a")),
        IsNull(("correlation_id",)),
        IsNotNull(("correlation_id",)),
        GreaterThan(("correlation_id",), "a"),
        # A selector sees 4 if there is none, and 9 for all above.
        EqualTo(("priority",), 4),
        EqualTo(("priority",), 9),
        GreaterThan(("priority",), 5),
        EqualTo(("delivery_mode",), "direct"),
        EqualNullSafe(("correlation_id",), None),
        In(("correlation_id",), (None,)),
        EqualTo(("topic",), "orders/1"),
        EqualTo(("payload",), b"x"),
        EqualTo(("user_properties", "region"), "eu"),
        EqualTo(("correlation_id",), "x" * SELECTOR_BYTES_MAX),
    ],
)
def test_what_may_differ_is_sparks(one: Filter) -> None:
    wanted, left = taken(one)
    assert left == [one]
    assert wanted == Wanted()


def test_what_equals_something_needs_no_further_look_whether_it_is_null() -> None:
    """Spark adds that question to every comparison."""
    not_null = [IsNotNull((column,)) for column in ("correlation_id", "position", "sender_id")]
    _, left = taken(*not_null, EqualTo(("correlation_id",), "a"))
    assert left == not_null[2:]


def test_numbers_are_compared_at_the_node_and_again_by_spark() -> None:
    filters = GreaterThan(("sequence_number",), 5), LessThanOrEqual(("sequence_number",), -7)
    wanted, left = taken(*filters)
    assert wanted.selector == "SequenceNumber > 5 AND SequenceNumber <= -7"
    assert left == list(filters)


def test_places_and_positions_choose_what_is_read() -> None:
    wanted, left = taken(
        In(("queue",), ("a", "b")),
        GreaterThanOrEqual(("partition",), 2),
        LessThan(("partition",), 4),
        GreaterThan(("position",), 10),
        LessThanOrEqual(("position",), 20),
    )
    assert left == []
    assert [queue for queue in "abc" if wanted.has_queue(queue)] == ["a", "b"]
    assert [partition for partition in range(6) if wanted.has_partition(partition)] == [2, 3]
    assert wanted.clip(1, 100) == (11, 21)
    assert wanted.clip(15, 17) == (15, 17)
    assert pickle.loads(pickle.dumps(wanted)) == wanted


def test_a_position_that_is_equal_is_one() -> None:
    wanted, left = taken(EqualTo(("position",), 7))
    assert (left, wanted.clip(1, 100)) == ([], (7, 8))


def test_a_selector_of_the_user_is_kept_beside_what_is_pushed() -> None:
    wanted = Wanted("a = 1 OR b = 2")
    assert wanted.selector == "a = 1 OR b = 2"
    assert take(wanted, [EqualTo(("sender_id",), "s")]) == []
    assert wanted.selector == "(a = 1 OR b = 2) AND SenderId IN ('s')"


def test_a_selector_that_would_be_too_long_stops_where_it_fits() -> None:
    filters = [EqualTo(("correlation_id",), str(number) * 900) for number in range(3)]
    wanted, left = taken(*filters)
    assert left == filters[2:]
    assert wanted.selector is not None
    compile_selector(wanted.selector)


def matches(selector: str, message: Message) -> bool:
    row = message.row

    class Stored:
        flags, meta, properties = row[2], row[3], row[4]

    return compile_selector(selector).matches(Stored())


def sparks(kind: type[Any], value: Any, wanted: Any) -> bool:
    """What Spark would say of a value, NULL being no."""
    if value is None:
        return False
    said: dict[type[Any], bool] = {
        EqualTo: value == wanted,
        GreaterThan: value > wanted,
        GreaterThanOrEqual: value >= wanted,
        LessThan: value < wanted,
        LessThanOrEqual: value <= wanted,
    }
    return said[kind]


_KINDS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@pytest.mark.parametrize("kind", _KINDS)
def test_times_between_milliseconds_are_rounded_as_the_comparison_needs(kind: type[Any]) -> None:
    """Messages have ms, Spark's literals µs: around a whole ms both sides must agree."""
    base = datetime(2026, 3, 1, tzinfo=UTC)
    base_ms = int(base.timestamp() * 1000)
    for micros, offset in itertools.product((-1001, -1000, -999, -1, 0, 1, 999, 1000), (-2, -1, 0, 1, None)):
        wanted = base + timedelta(microseconds=micros)
        sent = None if offset is None else base_ms + offset
        column = None if offset is None else base + timedelta(milliseconds=offset)
        state, left = taken(kind(("sender_timestamp",), wanted))
        assert left
        if state.selector is None:
            assert kind is EqualTo
            continue
        found = matches(state.selector, Message("a", sender_timestamp_ms=sent))
        assert found == sparks(kind, column, wanted), (micros, offset)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("number", [None, 0, 1, 5, 2**63 - 1])
def test_sequences_compare_as_spark_compares_them(kind: type[Any], number: int | None) -> None:
    for wanted in (-(2**63) + 1, -1, 0, 4, 5, 6, 2**63 - 1):
        state, _ = taken(kind(("sequence_number",), wanted))
        assert state.selector is not None
        found = matches(state.selector, Message("a", sequence_number=number))
        assert found == sparks(kind, number, wanted)


@pytest.mark.parametrize("value", [None, "", "a", "A", "a ", "b", "ü", "x" * 3000])
def test_texts_are_equal_where_spark_finds_them_equal(value: str | None) -> None:
    for wanted in ("", "a", "a'", "ü"):
        state, left = taken(EqualTo(("correlation_id",), wanted))
        assert not left
        assert state.selector is not None
        assert matches(state.selector, Message("a", correlation_id=value)) == (value == wanted)
