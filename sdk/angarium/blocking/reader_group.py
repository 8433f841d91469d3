"""Reader groups for threads: the names of `angarium.client.consuming.reader_group`, without `await`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from angarium.blocking.portal import Closing, Facade, Mirrored, waits
from angarium.client.consuming import reader_group as asynchronous
from angarium.client.protocol.messages import GuaranteedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.blocking.portal import Portal
    from angarium.client.consuming.range_reader import RangeReader
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedDelivery

#: Credit is given back when so much of a window was handed out, or when there is nothing to hand out.
RELEASES_PER_WINDOW: Final = 8


class RangeBatches:
    """The batches of a range, taken where they are read: deliveries cross the threads as they came."""

    def __init__(self, portal: Portal, inner: RangeReader) -> None:
        """Read in the thread of a portal; only `Client.read_range` reads ranges."""
        self._portal = portal
        self._inner = inner
        #: Set when there may be something to read.
        self._signal = threading.Event()
        #: What was handed out and not given back: of which bind, messages and bytes.
        self._owed: FlowWindow | None = None
        self._messages = self._bytes = 0
        inner.on_ready = self._signal.set

    def __iter__(self) -> Iterator[GuaranteedBatch]:
        """Give batches to the end of the range.

        Raises:
            AngariumError: why it ended before that.
        """
        while True:
            self._portal.check_process()
            self._signal.clear()
            delivery = self._inner.take_delivery()
            if delivery is not None:
                self._owe(delivery)
                yield GuaranteedBatch(delivery, 0, len(delivery.rows))
                continue
            # What came since then has set the signal.
            is_ended, error = self._inner.outcome
            if error is not None:
                raise error
            if is_ended:
                return
            self._give_back()
            self._signal.wait()

    def _owe(self, delivery: GuaranteedDelivery) -> None:
        if delivery.window is not self._owed:
            self._give_back()
            self._owed = delivery.window
        self._messages += len(delivery.rows)
        self._bytes += delivery.size_bytes
        options = self._inner.options
        share = RELEASES_PER_WINDOW
        if self._messages * share >= options.window or self._bytes * share >= options.window_bytes:
            self._give_back()

    def _give_back(self) -> None:
        if self._owed is not None and self._messages:
            self._portal.post(self._inner.release, self._owed, self._messages, self._bytes)
        self._messages = self._bytes = 0


class ReaderGroup(Facade, Closing):
    """A reader group that has leased a queue; see `angarium.client.consuming.reader_group.ReaderGroup`."""

    queue = Mirrored[str]()
    """The name of the queue."""
    name = Mirrored[str]()
    """The name of the group."""
    endpoint_id = Mirrored[int]()
    """Of the queue: another queue of the same name has another one."""
    node_id = Mirrored[str]()
    """Of the node: one that was made anew, or restored, has another one, and gives positions again."""
    partitions = Mirrored[list[int]]()
    """The partitions of the queue when it was opened."""
    continued = Mirrored[bool]()
    """Whether the group had the lease of every partition already when it was opened here."""

    positions = waits(asynchronous.ReaderGroup.positions)
    """Give what there is, by partition."""
    count = waits(asynchronous.ReaderGroup.count)
    """Give how many messages there are at these positions and above them, by partition."""
    find_time = waits(asynchronous.ReaderGroup.find_time)
    """Give the first position that was spooled at a time (ms since 1970) or later, by partition."""
    plan = waits(asynchronous.ReaderGroup.plan)
    """Make what comes next the group's own; gives the range of each partition."""
    acknowledge = waits(asynchronous.ReaderGroup.acknowledge)
    """Delete what is planned below these positions; it is gone for good when this returns."""
    release = waits(asynchronous.ReaderGroup.release)
    """End the lease: consumers get what is not acknowledged."""
    close = waits(asynchronous.ReaderGroup.close)
    """Close this object; the lease stays, and continues when the group is opened again."""
