"""What Spark calls "angarium": a data source whose readers and writers are made here and live elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from angarium.spark import schema as columns
from angarium.spark.options import columns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "angarium"


class AngariumDataSource(DataSource):
    """Reads queues, as a snapshot or as a stream, and publishes rows."""

    @classmethod
    def name(cls) -> str:
        """Give the name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """Give the columns that the option `columns` names, by default all."""
        return columns.schema(columns_of(self.options))


def register(spark: SparkSession) -> None:
    """Make `format("angarium")` known to a session that did not find it."""
    spark.dataSource.register(AngariumDataSource)
