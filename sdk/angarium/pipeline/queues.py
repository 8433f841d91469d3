"""The queues that an archive is made of: the stream that reads them, and what the node is told besides.

The stream leases each queue for a reader group, and acknowledges a batch when Spark plans the next one. What it did not
come to is done here, from what its checkpoint says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from angarium.blocking.reader_group import ReaderGroup
    from angarium.spark.offsets import Offset, Range


class QueueSource:
    """The queues or topic filters of a job, read by one reader group."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read with the options of `format("angarium")`, `group` among them.

        Raises:
            InvalidRequestError: an option is not possible (INVALID_ARGUMENT); the text names it.
        """
        from angarium.spark import options

        self._given = dict(given)
        self._settings = options.settings(options.STREAM, given)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Give the stream."""
        from angarium.spark import register

        register(spark)
        return spark.readStream.format("angarium").options(**self._given).load()

    def acknowledge(self, start: str | None, end: str) -> None:
        """Say that all between two places of the checkpoint is in the archive.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        from angarium.spark import offsets
        from angarium.spark.connecting import blaming, open_client

        first = None if start is None else offsets.parse(json.loads(start))
        last = offsets.parse(json.loads(end))
        if last is None:
            return
        done = offsets.ranges(first, last)
        with blaming(self._settings), open_client(self._settings) as client:
            for queue in sorted({one.lane.queue for one in done}):
                lease_s = self._settings["leaseSeconds"]
                with client.reader_group(queue, last.group, lease_s=lease_s) as group:
                    _acknowledge(group, last, [one for one in done if one.lane.queue == queue])

    def release(self) -> None:
        """Give back the lease of the queues.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        from angarium.spark.connecting import blaming, open_client, queues_of

        with blaming(self._settings), open_client(self._settings) as client:
            for queue in queues_of(self._settings):
                client.reader_group(queue, self._settings["group"]).release()


def _acknowledge(group: ReaderGroup, last: Offset, done: list[Range]) -> None:
    """Acknowledge ranges of one queue; one that went back to it with an old lease is planned again before."""
    if group.endpoint_id != last.endpoints[group.queue]:
        return  # Another queue of that name: the stream will say so.
    ends = {one.lane.partition: one.end for one in done if one.lane.partition in group.partitions}
    if not ends:
        return
    starts = {one.lane.partition: one.first for one in done if one.lane.partition in ends}
    lost = {number: one.planned < ends[number] for number, one in group.positions().items() if number in ends}
    again = {number: starts[number] for number, is_lost in lost.items() if is_lost}
    if again:
        group.plan(again, ends={number: ends[number] for number in again})
    group.acknowledge(ends)
