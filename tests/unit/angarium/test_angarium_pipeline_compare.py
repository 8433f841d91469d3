"""Which columns of two schemas can be compared. No session of Spark is needed for that."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from angarium import errors
from angarium.pipeline.compare import Comparison, check_ignored, match_columns

pytestmark = pytest.mark.requirement("R221")


def columns(**types: type) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in types.items()])


def test_missing_and_retyped_columns_are_told_and_the_rest_is_compared() -> None:
    left = columns(topic=StringType, priority=IntegerType, queue=StringType, only=StringType)
    right = columns(priority=LongType, topic=StringType, extra=StringType)
    found = match_columns(left, right, {"queue", "unheard"})
    assert found.compared == ("topic",)
    assert found.ignored == ("queue",)
    assert (found.only_left, found.only_right) == (("only",), ("extra",))
    assert found.retyped == (("priority", "int", "bigint"),)
    assert found.differ
    assert not Comparison(found, 1, 1).equal


def test_nullability_is_no_difference() -> None:
    left = StructType([StructField("topic", StringType(), nullable=False)])
    assert not match_columns(left, columns(topic=StringType), ()).differ


def test_nothing_to_compare_is_an_error_that_names_the_columns() -> None:
    with pytest.raises(errors.InvalidRequestError, match="left has a, right b, left out are none"):
        match_columns(columns(a=StringType), columns(b=StringType), ())


def test_leaving_out_a_column_that_is_nowhere_is_an_error() -> None:
    check_ignored(["a", "b"], columns(a=StringType), columns(b=StringType))
    with pytest.raises(errors.InvalidRequestError, match="no column c to leave out; there are a, b"):
        check_ignored(["c"], columns(a=StringType), columns(b=StringType))
