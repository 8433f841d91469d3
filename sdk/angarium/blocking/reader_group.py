"""Reader groups for threads: the names of `angarium.client.consuming.reader_group`, without `await`."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from angarium.client.protocol.messages import GuaranteedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from types import TracebackType

    from angarium.client.consuming import reader_group as asynchronous
    from angarium.client.consuming.range_reader import RangeReader
    from angarium.client.consuming.reader_group import Planned, ReaderPosition
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedDelivery

_T = TypeVar("_T")

#: Credit is given back when so much of a window was handed out, or when there is nothing to hand out.
RELEASES_PER_WINDOW: Final = 8


class Caller(Protocol):
    """What a reader group needs of its client."""

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the client's thread and wait for it."""

    def _check_process(self) -> None:
        """Return unless this is a child of the process that connected."""

    def _post(self, work: Callable[[], None]) -> None:
        """Run something in the client's thread soon."""


class RangeBatches:
    """The batches of a range, taken where they are read: deliveries cross the threads as they came."""

    def __init__(self, client: Caller, inner: RangeReader) -> None:
        """Belong to a client; only `Client.read_range` reads ranges."""
        self._client = client
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
            self._client._check_process()
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
            self._client._post(partial(self._inner.release, self._owed, self._messages, self._bytes))
        self._messages = self._bytes = 0


class ReaderGroup:
    """A reader group that has leased a queue; see `angarium.client.consuming.reader_group.ReaderGroup`."""

    def __init__(self, client: Caller, inner: asynchronous.ReaderGroup) -> None:
        """Belong to a client; only `Client.reader_group` opens groups."""
        self._client = client
        self._inner = inner

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._inner.queue

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._inner.name

    @property
    def endpoint_id(self) -> int:
        """Of the queue: another queue of the same name has another one."""
        return self._inner.endpoint_id

    @property
    def partitions(self) -> list[int]:
        """The partitions of the queue when it was opened."""
        return self._inner.partitions

    @property
    def continued(self) -> bool:
        """Whether the group had the lease of every partition already when it was opened here."""
        return self._inner.continued

    def positions(self, *, timeout_s: float | None = None) -> dict[int, ReaderPosition]:
        """Give what there is, by partition.

        Raises:
            AngariumError: as for the group of `angarium.client.Client`; so do the others.
        """
        return self._client._call(self._inner.positions(timeout_s=timeout_s))

    def count(self, starts: Mapping[int, int], *, timeout_s: float | None = None) -> dict[int, int]:
        """Give how many messages there are at these positions and above them, by partition."""
        return self._client._call(self._inner.count(starts, timeout_s=timeout_s))

    def find_time(self, times_ms: Mapping[int, int], *, timeout_s: float | None = None) -> dict[int, int]:
        """Give the first position that was spooled at a time (ms since 1970) or later, by partition."""
        return self._client._call(self._inner.find_time(times_ms, timeout_s=timeout_s))

    def plan(
        self,
        starts: Mapping[int, int],
        messages: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the name of the limit everywhere
        *,
        ends: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, Planned]:
        """Make what comes next the group's own; gives the range of each partition."""
        return self._client._call(self._inner.plan(starts, messages, bytes, ends=ends, timeout_s=timeout_s))

    def acknowledge(self, ends: Mapping[int, int], *, timeout_s: float | None = None) -> None:
        """Delete what is planned below these positions; it is gone for good when this returns."""
        self._client._call(self._inner.acknowledge(ends, timeout_s=timeout_s))

    def release(self, *, timeout_s: float | None = None) -> None:
        """End the lease: consumers get what is not acknowledged."""
        self._client._call(self._inner.release(timeout_s=timeout_s))

    def close(self) -> None:
        """Close this object; the lease stays, and continues when the group is opened again."""
        self._client._call(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)
