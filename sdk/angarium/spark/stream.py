"""Queues as streams: `spark.readStream.format("angarium")`.

Spark makes three kinds of readers of one query: one in a process of the driver, which lives as long as the query and is
asked for offsets; one at the start, which is pickled; and copies of that in every task. Nothing is connected before it
is needed, and what is connected is not pickled. The driver's decisions are in `angarium.spark.planning`.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from angarium import errors
from angarium.spark import offsets, options
from angarium.spark.arrow import Builder
from angarium.spark.connecting import blaming, open_client, queues_of
from angarium.spark.planning import FIRST_LEASE_S, Limit, Planner, Wishes
from angarium.spark.schema import check_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from angarium import blocking
    from angarium.blocking.reader_group import ReaderGroup
    from angarium.client.protocol.messages import GuaranteedBatch
    from angarium.spark.options import Settings


#: Leases are used so often while a batch is under way: a third of the shortest that there is.
_RENEWALS_PER_LEASE: Final = 3

_logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads: a range of a lane that belongs to a reader group."""

    def __init__(self, group: str, part: offsets.Range) -> None:
        self.group = group
        self.part = part


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as a stream."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check everything that can be checked without the node.

        Raises:
            InvalidRequestError: an option or a column is not possible (INVALID_ARGUMENT); the text names it.
        """
        self._settings = options.settings(options.STREAM, given)
        self._queues = queues_of(self._settings)
        check_types(schema)
        self._schema = schema
        self._is_bounded = False
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Give the offset that says nothing; see `angarium.spark.offsets`."""
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Give the limit that the options name; the other one, if both are given, is kept to as well."""
        messages, size = self._settings["maxMessagesPerTrigger"], self._settings["maxBytesPerTrigger"]
        if messages is not None:
            return ReadMaxRows(messages)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there now, and no more."""
        self._is_bounded = True
        if self._driver is not None:
            self._driver.planner.bound()

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:  # noqa: N802 - Spark's name
        """Plan the next batch and give its end.

        Raises:
            AngariumError: the checkpoint is of something else, messages are lost, or what the node says.
        """
        with blaming(self._settings):
            return self._driving().planner.latest(start, self._limit(limit))

    def reportLatestOffset(self) -> Any:  # noqa: N802 - Spark's name
        """Give the offset of the newest messages: its distance to the end of a batch is the lag."""
        return None if self._driver is None else self._driver.planner.newest()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Give what the tasks of a batch read.

        Raises:
            AngariumError: messages of the batch are lost, or what the node says.
        """
        with blaming(self._settings):
            found = self._driving().planner.tasks(start, end)
        group = str(end.get("group", ""))
        return [RangePartition(group, one) for one in found]

    def commit(self, end: Any) -> None:
        """Delete the messages of a batch that Spark has completed.

        Raises:
            AngariumError: what the node says.
        """
        with blaming(self._settings):
            self._driving().planner.commit(end)

    def stop(self) -> None:
        """Disconnect; the leases stay, for the next run of the query."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages of a range.

        Raises:
            AngariumError: messages are lost, or what the node says.
        """
        assert isinstance(partition, RangePartition)
        return read_range(self._settings, self._schema, partition)

    def _driving(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._settings, self._queues)
            if self._is_bounded:
                self._driver.planner.bound()
        return self._driver

    def _limit(self, limit: ReadLimit) -> Limit:
        """Give the limit that Spark asks for, with the one that it does not know of."""
        messages, size = self._settings["maxMessagesPerTrigger"], self._settings["maxBytesPerTrigger"]
        if isinstance(limit, ReadMaxRows):
            return Limit(limit.max_rows, size)
        if isinstance(limit, ReadMaxBytes):
            return Limit(messages, limit.max_bytes)
        return Limit()


class _Driver:
    """A client and the planner that it serves; the planner's node."""

    def __init__(self, settings: Settings, queues: Sequence[str]) -> None:
        self._settings = settings
        self._queues = queues
        self._client = open_client(settings)
        self.name = self._client.node
        self.vpn: str = settings["vpn"]
        wishes = Wishes(
            queues,
            settings["group"],
            settings["leaseSeconds"],
            settings["startingPosition"],
            settings["failOnDataLoss"],
            settings["maxMessagesPerPartition"],
            settings["minPartitions"],
        )
        self.planner = Planner(wishes, self)
        self._is_over = threading.Event()
        self._renewal_s = min(settings["leaseSeconds"], FIRST_LEASE_S) / _RENEWALS_PER_LEASE
        try:
            self._make_queue()
            threading.Thread(target=self._renew, name="angarium-leases", daemon=True).start()
        except BaseException:
            self._client.close()
            raise

    def open(self, queue: str, group: str, lease_s: float) -> ReaderGroup:
        """Open or go on with the lease of a queue."""
        with blaming(self._settings, queue):
            retry_s = self._settings["retrySeconds"]
            return self._client.reader_group(queue, group, lease_s=lease_s, timeout_s=retry_s)

    def close(self) -> None:
        """Disconnect."""
        self._is_over.set()
        try:
            self.planner.close()
        finally:
            self._client.close()

    def _renew(self) -> None:
        """Keep the leases; what is wrong with them the next call of Spark's finds out, too."""
        while not self._is_over.wait(self._renewal_s):
            try:
                self.planner.renew()
            except errors.AngariumError as error:
                _logger.warning("a lease was not renewed: %s", error)

    def _make_queue(self) -> None:
        """Make the queue for topic filters, if there are any and it is not there."""
        if self._settings["topics"]:
            with blaming(self._settings):
                self._client.create_queue(
                    self._queues[0], ignore_exists=True, subscriptions=self._settings["topics"]
                )


def read_range(settings: Settings, schema: StructType, wanted: RangePartition) -> Iterator[pa.RecordBatch]:
    """Connect, and give the messages of a range as record batches.

    Raises:
        AngariumError: messages are lost, or what the node says.
    """
    part = wanted.part
    client = open_client(settings)
    try:
        with blaming(settings, part.lane.queue):
            found = _Counted(_batches(client, settings, wanted))
            yield from Builder(schema, part.lane.queue).record_batches(found)
    finally:
        client.close()
    _check_whole(part, found.messages, settings)


def _check_whole(part: offsets.Range, messages: int, settings: Settings) -> None:
    """Compare what came with what was planned; -1 is not known."""
    where = f"queue {part.lane.queue!r}, partition {part.lane.partition}, positions {part.first} to {part.end - 1}"
    if 0 <= part.messages < messages:
        raise errors.error_for(errors.INTERNAL, f"{where}: {messages} messages, planned were {part.messages}")
    if messages < part.messages and settings["failOnDataLoss"]:
        detail = f"{part.messages - messages} messages of {where} went while they were read"
        raise errors.error_for(errors.MESSAGES_LOST, detail)


def _batches(
    client: blocking.Client, settings: Settings, wanted: RangePartition
) -> Iterator[GuaranteedBatch]:
    queue, partition = wanted.part.lane
    return client.read_range(
        queue,
        wanted.group,
        partition,
        wanted.part.first,
        wanted.part.end,
        timeout_s=settings["retrySeconds"],
    )


class _Counted:
    """Passes batches on and counts their messages."""

    def __init__(self, batches: Iterator[GuaranteedBatch]) -> None:
        self._batches = batches
        self.messages = 0

    def __iter__(self) -> Iterator[GuaranteedBatch]:
        for batch in self._batches:
            self.messages += len(batch)
            yield batch
