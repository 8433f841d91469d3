"""The calls of the blocking client that are about guaranteed messages and endpoints.

They have the names of `angarium.client.guaranteed_messaging` and run in the client's thread, which they wait for.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from angarium import errors
from angarium.blocking.flow import Desk, Flow
from angarium.blocking.producer import Producer, Stage
from angarium.blocking.reader_group import RangeBatches, ReaderGroup
from angarium.client.consuming.flow_options import FLOW_WINDOW, FLOW_WINDOW_BYTES, QUEUE, FlowOptions
from angarium.client.consuming.range_reader import RANGE_WINDOW, RANGE_WINDOW_BYTES, RangeReader
from angarium.client.consuming.reader_group import LEASE_S
from angarium.client.protocol.answers import PRODUCER_WINDOW_MAX, STAGE_WINDOW_MAX
from angarium.client.subscribing.callbacks import check_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from angarium.blocking.flow import MessageCallback
    from angarium.client.client import Client
    from angarium.client.consuming.attributes import EndpointAttributes, EndpointKind, QueueAttributes
    from angarium.client.consuming.reader_group import EndpointPositions
    from angarium.client.guaranteed_messaging import ConsumeArguments
    from angarium.client.protocol.messages import GuaranteedBatch
    from angarium.client.publishing.producer import AckCallback

_T = TypeVar("_T")


class GuaranteedMessaging(ABC):
    """What a blocking client does with guaranteed messages and endpoints."""

    #: The client that lives in the thread.
    _inner: Client
    #: The flows that are in use.
    _flows: dict[Desk, None]

    @abstractmethod
    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the client's thread and wait for it."""

    @abstractmethod
    def _check_process(self) -> None:
        """Return unless this is a child of the process that connected."""

    @abstractmethod
    def _post(self, work: Callable[[], None]) -> None:
        """Run something in the client's thread soon."""

    def _forget_flow(self, flow: Desk) -> None:
        """Take note that a flow has ended."""
        self._flows.pop(flow, None)

    def producer(
        self,
        name: str = "",
        window: int = PRODUCER_WINDOW_MAX,
        on_ack: AckCallback | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Producer:
        """Open a producer of guaranteed messages; `on_ack` is called in the client's thread.

        Raises:
            AngariumError: as for `angarium.client.Client.producer`.
        """
        return Producer(self, self._call(self._inner.producer(name, window, on_ack, timeout_s=timeout_s)))

    def stage(self, *, window: int = STAGE_WINDOW_MAX, timeout_s: float | None = None) -> Stage:
        """Open a stage: messages that belong to nobody until somebody commits them.

        Raises:
            AngariumError: as for `angarium.client.Client.stage`.
        """
        return Stage(self, self._call(self._inner.stage(window=window, timeout_s=timeout_s)))

    def commit_stages(
        self,
        stages: Sequence[str],
        sink: str | None = None,
        batch: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Publish what was staged; tell whether it was this commit.

        Raises:
            AngariumError: as for `angarium.client.Client.commit_stages`.
        """
        return self._call(self._inner.commit_stages(stages, sink, batch, timeout_s=timeout_s))

    def abort_stages(self, stages: Sequence[str], *, timeout_s: float | None = None) -> None:
        """Drop what was staged.

        Raises:
            AngariumError: as for `angarium.client.Client.abort_stages`.
        """
        self._call(self._inner.abort_stages(stages, timeout_s=timeout_s))

    def consume(
        self,
        queue: str,
        callback: MessageCallback | None = None,
        **options: Unpack[ConsumeArguments],
    ) -> Flow:
        """Bind to a queue or topic endpoint; give the flow that its messages come through.

        A callback is called in threads of the flow's own, as many as `concurrency` says: each message by one of them.

        Args:
            queue: the name of the endpoint.
            callback: called with each message instead of reading the flow.
            **options: those of `angarium.client.Client.consume`.

        Raises:
            AngariumError: as for `angarium.client.Client.consume`.
        """
        concurrency = options.pop("concurrency", 1)
        check_threads(callback, concurrency)
        options.setdefault("timeout_s", self._inner._timeout_s)
        return self._bind(FlowOptions(name=queue, **options), callback, concurrency)

    def browse(
        self,
        queue: str,
        selector: str | None = None,
        *,
        kind: EndpointKind = QUEUE,
        window: int = FLOW_WINDOW,
        window_bytes: int = FLOW_WINDOW_BYTES,
        max_messages: int | None = None,
        timeout_s: float | None = None,
    ) -> Flow:
        """Look at the messages of a queue or topic endpoint, the oldest first; they stay where they are.

        Raises:
            AngariumError: as for `angarium.client.Client.browse`.
        """
        options = FlowOptions(
            name=queue,
            kind=kind,
            browse=True,
            selector=selector,
            window=window,
            window_bytes=window_bytes,
            max_messages=max_messages,
            timeout_s=self._inner._within(timeout_s),
        )
        return self._bind(options, None, 0)

    def _bind(self, options: FlowOptions, callback: MessageCallback | None, concurrency: int) -> Flow:
        binding = self._call(self._inner._guaranteed.bind(options))
        desk = Desk(self, binding, callback, concurrency, is_auto=options.is_auto)
        self._flows[desk] = None
        return Flow(desk)

    def positions(self, queue: str, *, kind: EndpointKind = QUEUE) -> EndpointPositions:
        """Give which positions a queue or topic endpoint has now; it needs no lease, and takes none.

        Raises:
            AngariumError: as for `angarium.client.Client.positions`.
        """
        return self._call(self._inner.positions(queue, kind=kind))

    def browse_range(
        self,
        queue: str,
        partition: int,
        start: int,
        end: int,
        *,
        selector: str | None = None,
        kind: EndpointKind = QUEUE,
        timeout_s: float | None = None,
    ) -> Iterator[GuaranteedBatch]:
        """Look at the messages from a position to before another one, in order and in batches; they stay.

        Raises:
            AngariumError: as for `angarium.client.Client.browse_range`.
        """
        opening = self._inner._range_reader(
            queue, "", partition, start, end, selector=selector, kind=kind, timeout_s=timeout_s
        )
        yield from self._read(self._call(opening))

    def reader_group(
        self, queue: str, group: str, *, lease_s: float = LEASE_S, timeout_s: float | None = None
    ) -> ReaderGroup:
        """Lease all partitions of a durable queue for a reader group, or go on with its lease.

        Raises:
            AngariumError: as for `angarium.client.Client.reader_group`.
        """
        opening = self._inner.reader_group(queue, group, lease_s=lease_s, timeout_s=timeout_s)
        return ReaderGroup(self, self._call(opening))

    def read_range(
        self,
        queue: str,
        group: str,
        partition: int,
        start: int,
        end: int,
        *,
        window: int = RANGE_WINDOW,
        window_bytes: int = RANGE_WINDOW_BYTES,
        timeout_s: float | None = None,
    ) -> Iterator[GuaranteedBatch]:
        """Give the messages of a planned range in order, in batches.

        Raises:
            AngariumError: as for `angarium.client.Client.read_range`.
        """
        opening = self._inner._range_reader(
            queue, group, partition, start, end, window=window, window_bytes=window_bytes, timeout_s=timeout_s
        )
        yield from self._read(self._call(opening))

    def _read(self, reader: RangeReader) -> Iterator[GuaranteedBatch]:
        try:
            yield from RangeBatches(self, reader)
        finally:
            # Who leaves the loop half way may close the client before this.
            with contextlib.suppress(errors.ConnectionLostError):
                self._call(reader.close())

    def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        ignore_exists: bool = False,
        subscriptions: Sequence[str] = (),
        **attributes: Unpack[QueueAttributes],
    ) -> bool:
        """Create a queue, and let it attract what matches the subscriptions; tell whether it is new.

        Raises:
            AngariumError: as for `angarium.client.Client.create_queue`.
        """
        return self._call(
            self._inner.create_queue(
                name, durable=durable, ignore_exists=ignore_exists, subscriptions=subscriptions, **attributes
            )
        )

    def create_topic_endpoint(
        self,
        name: str,
        *,
        durable: bool = True,
        ignore_exists: bool = False,
        **attributes: Unpack[EndpointAttributes],
    ) -> bool:
        """Create a topic endpoint; tell whether it is new. It gets its topic when a consumer binds.

        Raises:
            AngariumError: as for `angarium.client.Client.create_topic_endpoint`.
        """
        return self._call(
            self._inner.create_topic_endpoint(
                name, durable=durable, ignore_exists=ignore_exists, **attributes
            )
        )

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages.

        Raises:
            AngariumError: as for `angarium.client.Client.delete_queue`.
        """
        self._call(self._inner.delete_queue(name))

    def delete_topic_endpoint(self, name: str) -> None:
        """Delete a topic endpoint with all its messages.

        Raises:
            AngariumError: as for `angarium.client.Client.delete_topic_endpoint`.
        """
        self._call(self._inner.delete_topic_endpoint(name))

    def add_queue_subscription(self, queue: str, *filters: str) -> None:
        """Let a queue attract what matches filters; `!a/b` keeps out what it matches.

        Raises:
            AngariumError: as for `angarium.client.Client.add_queue_subscription`.
        """
        self._call(self._inner.add_queue_subscription(queue, *filters))

    def remove_queue_subscription(self, queue: str, *filters: str) -> None:
        """Take subscriptions from a queue that clients gave it; what it holds stays.

        Raises:
            AngariumError: as for `angarium.client.Client.remove_queue_subscription`.
        """
        self._call(self._inner.remove_queue_subscription(queue, *filters))

    def show_queue(self, name: str) -> dict[str, Any]:
        """Give attributes and figures of a queue, as far as this client may see them.

        Raises:
            AngariumError: as for `angarium.client.Client.show_queue`.
        """
        return self._call(self._inner.show_queue(name))

    def show_topic_endpoint(self, name: str) -> dict[str, Any]:
        """Give attributes and figures of a topic endpoint, as far as this client may see them.

        Raises:
            AngariumError: as for `angarium.client.Client.show_topic_endpoint`.
        """
        return self._call(self._inner.show_topic_endpoint(name))
