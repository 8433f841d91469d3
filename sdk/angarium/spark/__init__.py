"""Angarium for PySpark: queues as tables and streams, and rows published as messages.

    spark.read.format("angarium").option("queue", "orders").load()
    spark.readStream.format("angarium").option("queue", "orders").load()

Spark finds the format by itself where the package is installed; `register(spark)` does it where it is not, as when it
came with `--py-files`. The columns are in `angarium.spark.schema`, the options in `angarium.spark.options`.
"""

from __future__ import annotations

from angarium.spark.datasource import AngariumDataSource, register

__all__ = ["AngariumDataSource", "register"]
