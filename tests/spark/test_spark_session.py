"""Spark runs here, and its Python workers have the code under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requirement("R221"), pytest.mark.slow]


def test_python_workers_have_the_code_under_test(spark: SparkSession) -> None:
    import angarium

    def where(_: int) -> str:
        import angarium as there

        return there.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [angarium.__file__]


def test_the_format_is_found_by_itself_and_can_be_registered(spark: SparkSession) -> None:
    import angarium.spark

    for _ in range(2):
        frame = spark.read.format("angarium").options(queue="q", columns="topic,position").load()
        assert frame.columns == ["topic", "position"]
        angarium.spark.register(spark)
