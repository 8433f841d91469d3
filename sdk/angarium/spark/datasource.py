"""What Spark calls "angarium": a data source whose readers and writers are made here and live elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from angarium.spark import schema as columns
from angarium.spark.options import columns_of
from angarium.spark.sink import StreamWriter, Writer
from angarium.spark.snapshot import SnapshotReader
from angarium.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
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

    def reader(self, schema: StructType) -> DataSourceReader:
        """Give what reads queues as they are now."""
        return SnapshotReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Give what reads queues as a stream."""
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Give what publishes a data frame."""
        return Writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - as above
        """Give what publishes the batches of a query."""
        return StreamWriter(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("angarium")` known to a session that did not find it."""
    spark.dataSource.register(AngariumDataSource)
