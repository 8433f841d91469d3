"""The columns of messages in Spark, and user properties as readable texts."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from angarium.errors import InvalidRequestError
from angarium.spark.schema import ARRIVAL, NAMES, check_types, schema, texts_of, values_of

pytestmark = pytest.mark.requirement("R221")


def test_columns_come_in_the_order_asked_for_and_may_be_null() -> None:
    assert schema().fieldNames() == list(NAMES)
    some = schema(["payload", "topic"])
    assert some.simpleString() == "struct<payload:binary,topic:string>"
    assert all(field.nullable for field in some.fields)


def test_arrival_columns_are_those_that_differ_between_two_passages() -> None:
    assert {
        "queue",
        "partition",
        "position",
        "spooled_timestamp",
        "redelivered",
        "delivery_count",
        "origin_kind",
        "origin_endpoint",
        "origin_reason",
    } == ARRIVAL


def test_columns_that_are_not_known_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="unknown columns colour, size; there are topic"):
        schema(["topic", "size", "colour"])
    with pytest.raises(InvalidRequestError, match="named twice: topic"):
        schema(["topic", "topic"])


def test_a_column_of_another_type_is_named_with_its_own() -> None:
    check_types(StructType().add("position", LongType(), False).add("topic", StringType()))
    with pytest.raises(InvalidRequestError, match="column position is bigint, not int"):
        check_types(StructType().add("position", IntegerType()))


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        ("eu", "eu", None),
        ("", "", None),
        ("5", "5", None),
        (None, None, None),
        (5, "5", "int"),
        (-(1 << 63), "-9223372036854775808", "int"),
        ((1 << 64) - 1, "18446744073709551615", "int"),
        (True, "true", "bool"),
        (False, "false", "bool"),
        (0.5, "0.5", "float"),
        (5.0, "5.0", "float"),
        (-0.0, "-0.0", "float"),
        (math.inf, "inf", "float"),
        (b"\x00\xff", "AP8=", "bytes"),
        (["a", 1, None, 2.5, True], '["a",1,null,2.5,true]', "json"),
        ({"ü": {"b": []}}, '{"ü":{"b":[]}}', "json"),
        ([b"\x00"], "kcQBAA==", "msgpack"),
        ([math.inf], None, "msgpack"),
    ],
)
def test_a_property_is_readable_and_comes_back_equal(value: Any, text: str | None, kind: str | None) -> None:
    texts, types = texts_of({"name": value})
    assert types == ({} if kind is None else {"name": kind})
    if kind != "msgpack" or text is not None:
        assert texts == {"name": text}
    back = values_of(texts.items(), types)["name"]
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_a_number_that_is_none_comes_back_as_such() -> None:
    texts, types = texts_of({"name": math.nan})
    assert math.isnan(values_of(texts.items(), types)["name"])


def test_texts_without_types_are_texts() -> None:
    assert values_of([("a", "5"), ("b", None)], None) == {"a": "5", "b": None}
    assert values_of([("a", "5")], {"other": "int", "a": None}) == {"a": "5"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("five", "int"), ("yes", "bool"), ("?", "bytes"), ("{", "json"), ("kQ==", "msgpack"), ("x", "date")],
)
def test_a_type_that_its_text_does_not_have_names_the_property(text: str, kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="property 'amount'"):
        values_of([("amount", text)], {"amount": kind})


def test_the_sdk_does_without_spark() -> None:
    code = "import angarium, angarium.blocking, sys; sys.exit(any(one.startswith('pyspark') for one in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("depth", [17, 300, 900])
def test_a_value_that_is_nested_deeper_than_ours_keeps_no_queue_from_being_read(depth: int) -> None:
    """No client of ours sends it; another one can, and what it sent must not end every query."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    texts, types = texts_of({"deep": value, "other": 5})
    assert (texts["other"], types["other"]) == ("5", "int")
    assert types.get("deep") in ("msgpack", None)
