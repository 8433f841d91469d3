"""Queues as tables: `spark.read.format("angarium")`, by browsing. Nothing is removed, nobody is kept from consuming.

A snapshot has the messages that were there when the query was planned; those that others consume before a task comes
to them are not in it. Each partition of a queue is a Spark partition, or several: ranges of positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from angarium.spark import options
from angarium.spark.arrow import Builder
from angarium.spark.connecting import blaming, open_client
from angarium.spark.filters import Wanted, take
from angarium.spark.offsets import Lane, Range, split
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from angarium import blocking

#: What is not known of a range before it is read.
_UNKNOWN: Final = -1


class BrowsedPartition(InputPartition):
    """What one task reads: a range of positions of a lane; None is nothing."""

    def __init__(self, part: Range | None) -> None:
        """Read a range."""
        self.part = part


class SnapshotReader(DataSourceReader):
    """Reads queues, topic endpoints and dead message queues as they are now."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check everything that can be checked without the node.

        Raises:
            InvalidRequestError: an option or a column is not possible (INVALID_ARGUMENT); the text names it.
        """
        self._settings = options.settings(options.BATCH, given)
        if not self._settings["queue"]:
            raise options.invalid("queue", "it is missing; name one queue or several")
        check_types(schema)
        self._schema = schema
        self._wanted = Wanted(self._settings["selector"])

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """Take filters over; see `_Willing`."""
        return _Willing(lambda filters: take(self._wanted, filters))

    def partitions(self) -> list[InputPartition]:
        """Give what the tasks read: what is in the queues now, as far as filters on places let it be seen.

        Raises:
            AngariumError: what the node says.
        """
        client = open_client(self._settings)
        try:
            found = [part for queue in self._settings["queue"] for part in self._ranges(client, queue)]
        finally:
            client.close()
        parts = split(found, self._settings["maxMessagesPerPartition"], self._settings["minPartitions"])
        return [BrowsedPartition(part) for part in parts] or [BrowsedPartition(None)]

    def _ranges(self, client: blocking.Client, queue: str) -> Iterator[Range]:
        if not self._wanted.has_queue(queue):
            return
        with blaming(self._settings, queue):
            lanes = client.positions(queue, kind=self._settings["kind"]).lanes
        for partition, one in lanes.items():
            first, end = self._wanted.clip(one.oldest, one.next)
            if self._wanted.has_partition(partition) and first < end:
                yield Range(Lane(queue, partition), first, end, _UNKNOWN)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages of a range that are there.

        Raises:
            AngariumError: what the node says.
        """
        assert isinstance(partition, BrowsedPartition)
        part = partition.part
        if part is None:
            return
        client = open_client(self._settings)
        try:
            with blaming(self._settings, part.lane.queue):
                batches = client.browse_range(
                    part.lane.queue,
                    part.lane.partition,
                    part.first,
                    part.end,
                    selector=self._wanted.selector,
                    kind=self._settings["kind"],
                    timeout_s=self._settings["retrySeconds"],
                )
                yield from Builder(self._schema, part.lane.queue).record_batches(batches)
        finally:
            client.close()


class _Willing:
    """A `pushFilters` that may be used or not.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, as it is
    by default, so that no source fails to see filters that it must apply. This one applies what it is given and needs
    none, so it looks like the method of the base class.
    """

    def __init__(self, push: Any) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Give the filters that Spark has to apply."""
        left: Iterable[Filter] = self._push(filters)
        return left
