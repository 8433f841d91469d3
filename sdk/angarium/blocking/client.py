"""The client of the blocking API, and `connect`, which makes it.

What is hot is written by hand: `publish` queues for the client's thread, which takes what is queued, many messages at a
time. All else runs in the thread and is waited for, by `angarium.blocking.portal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Unpack

from angarium import errors, tracing
from angarium.blocking import leaving
from angarium.blocking.flow import Flow, SharedReader
from angarium.blocking.portal import Closing, Mirrored, Portal, opens, waits
from angarium.blocking.portions import portions
from angarium.blocking.producer import Producer, Stage
from angarium.blocking.reader_group import RangeBatches, ReaderGroup
from angarium.blocking.subscription import MessageCallback, Subscription
from angarium.client import client as asynchronous
from angarium.client import connecting
from angarium.client.consuming.flow_options import (
    FLOW_WINDOW,
    FLOW_WINDOW_BYTES,
    QUEUE,
    FlowOptions,
    consume_options,
)
from angarium.client.consuming.range_reader import RANGE_WINDOW, RANGE_WINDOW_BYTES, RangeReader
from angarium.client.requests import answer
from angarium.client.subscribing.callbacks import check_threads
from angarium.client.subscribing.mailbox import BUFFER_BYTES, BUFFER_MESSAGES, Terms
from angarium.client.transport.address import DEFAULT_URL
from angarium.message import DeliveryMode, Message, MessageBatch, MessageOptions, message_of, row_size
from angarium.slots import Publishable, TopicOwners
from angarium.topic import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from angarium.blocking import flow
    from angarium.client.consuming.attributes import EndpointKind
    from angarium.client.guaranteed_messaging import ConsumeArguments
    from angarium.client.protocol.messages import GuaranteedBatch
    from angarium.client.subscribing.mailbox import OnFull

#: Messages that may be queued for the thread before `publish` waits for it, and their bytes if all are of one size.
QUEUED_MAX: Final = 4_000
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
#: Messages that cross to the thread together.
PORTION_MESSAGES: Final = 2_000

_logger = logging.getLogger(__name__)


class _Portion:
    """Messages that cross together, and who waits for them."""

    __slots__ = ("done", "messages", "timeout_s")

    def __init__(self, messages: list[Publishable], timeout_s: float | None) -> None:
        self.messages = messages
        #: How long they wait for a connection.
        self.timeout_s = timeout_s
        #: Why a guaranteed one was refused, the first one; or None.
        self.done: Future[errors.AngariumError | None] = Future()


class Client(Closing):
    """A connected client; made by `connect`, closed by `close` or as a context manager."""

    def __init__(self, options: connecting.Connecting) -> None:
        """Connect; applications call `connect`.

        Raises:
            AngariumError: the router refuses, or nobody answers (CONNECT_FAILED).
        """
        self._portal = Portal()
        #: What `publish` queued and the thread has not taken, in order.
        self._queue: deque[Publishable | _Portion] = deque()
        #: True from when the thread is told of the queue until it has found the queue empty.
        self._is_told = False
        self._task: asyncio.Task[None] | None = None
        #: What went wrong first behind the back of a `publish` that had returned; the next call raises it.
        self._fault: errors.AngariumError | None = None
        #: Knows which topics are legal; whom they belong to is the thread's business.
        self._topics = TopicOwners(bytes(SLOTS))
        self._subscriptions: dict[Subscription, None] = {}
        self._flows: dict[SharedReader, None] = {}
        self._is_closing = False
        #: Set when all that was queued is sent, or given up.
        self._ended = threading.Event()
        self._timeout_s = options.timeout_s
        try:
            self._inner: asynchronous.Client = self._portal.call(_open(options))
        except BaseException:
            self._portal.stop()
            raise
        leaving.opened(self)

    name = Mirrored[str]()
    """The client's name at the router, its own or the one that the router made."""
    inbox = Mirrored[str]()
    """The topic to which replies to this client go; another one after each reconnect."""
    node = Mirrored[str]()
    """The name of the node that it is connected to."""
    max_message_bytes = Mirrored[int]()
    """What payload and properties of a message may have together."""
    url = Mirrored[str]()
    """The address in use, or the one that is tried."""
    connected = Mirrored[bool]()
    """Whether a session is open now."""
    closed = Mirrored[bool]()
    """Whether the client is closed, or lost for good; it does not come back."""
    stats = Mirrored[dict[str, int]]()
    """Counters since the start; what is buffered, gathered or subscribed to is of this moment."""

    # Publishing.

    def publish(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publish a message: a direct one is queued for the client's thread, which sends it at once.

        That waits only while much is queued (4,000 messages, or 16 MiB), which happens when there is no ingress credit
        or no connection: for credit as long as it takes, for a connection up to the `timeout_s` of `connect`. With
        the mode persistent or non-persistent, or to a queue, this waits until the message is stored.

        Raises:
            TimeoutExpiredError: the queue is full and there was no connection in time (TIMEOUT); the message was not
                queued. What was queued before leaves with the next connection.
            AngariumError: as for `angarium.client.Client.publish`.
        """
        if queue is not None or options.get("mode", DeliveryMode.DIRECT) != DeliveryMode.DIRECT:
            self._cross([])
            self._portal.call(_publish(self._inner, topic, payload, queue, options))
            return
        if tracing.active is not None and tracing.active.is_on:
            row = Message(topic, payload, **options).row
            sent = tracing.active.send(row, tracing.place_of(self._inner._connection))
            sent.end(None)
            message: Publishable = message_of(sent.row)
            size = row_size(sent.row)
        elif options or type(payload) is not bytes:
            whole = Message(topic, payload, **options)
            message = whole
            size = row_size(whole.row)
        else:
            self._topics[topic]  # Raises if it is no topic.
            message = (topic, payload)
            size = len(payload)
        if size > self._inner.max_message_bytes:
            raise errors.error_for(errors.MESSAGE_TOO_LARGE, f"{size} bytes")
        if self._fault is not None or self._inner.closed:
            self._raise_fault()
        queued = len(self._queue)
        if queued >= QUEUED_MAX or queued * size > QUEUED_BYTES_MAX:
            self._empty_queue(self._timeout_s)
        self._queue.append(message)
        if not self._is_told:
            self._tell()

    def _empty_queue(self, timeout_s: float) -> None:
        """Wait until the thread has taken what is queued, for a connection no longer than that.

        Raises:
            TimeoutExpiredError: there was no connection all the time (TIMEOUT).
        """
        while True:
            try:
                self._cross([], wait_s=timeout_s)
            except errors.TimeoutExpiredError:
                if not self._inner.connected:
                    detail = f"{len(self._queue)} messages wait for a connection; this one was not queued"
                    raise errors.error_for(errors.TIMEOUT, detail) from None
            else:
                return

    def publish_many(self, messages: Iterable[Publishable], *, timeout_s: float | None = None) -> None:
        """Publish messages, or pairs of topic and payload, as fast as the router takes them.

        The messages are taken from the iterable in the calling thread. What it gave leaves when it gives the next one
        0.1 s later; if it raises, what it gave before is published.

        Args:
            messages: what to publish.
            timeout_s: how long to wait for a connection while there is none, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: a message is illegal; those before it are published, the others are not.
            AngariumError: why a guaranteed message was refused, the first one; all others are published.
            TimeoutExpiredError: there was no connection in time (TIMEOUT); those before are published.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        if tracing.active is None:
            self._cross_many(iter(messages), timeout_s)
            return
        connection = self._inner._connection
        with tracing.sending_many(tracing.active, messages, connection, DeliveryMode.DIRECT) as traced:
            self._cross_many(traced, timeout_s)

    def _cross_many(self, messages: Iterator[Publishable], timeout_s: float | None) -> None:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        refused: errors.AngariumError | None = None
        for some in portions(messages, PORTION_MESSAGES):
            if self._queue:  # What was queued waits for a connection without a limit.
                self._empty_queue(limit_s)
            error = self._cross(some, timeout_s=limit_s)
            refused = refused or error
        if refused is not None:
            raise refused

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published so far has been matched and handed on by the router.

        Raises:
            TimeoutExpiredError: not within the time, by default the `timeout_s` of `connect` (TIMEOUT).
            ConnectionLostError: since the last flush messages were in flight when the connection was lost
                (NOT_CONNECTED).
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        self._cross([], wait_s=limit_s)
        self._raise_fault()
        self._portal.call(self._inner.flush(max(limit_s - (time.monotonic() - started), 0)))

    def _cross(
        self, messages: list[Publishable], *, timeout_s: float | None = None, wait_s: float | None = None
    ) -> errors.AngariumError | None:
        """Let the thread publish a portion after all that is queued, and wait for it; give what was refused first."""
        self._portal.check_thread()
        self._raise_fault()
        portion = _Portion(messages, timeout_s)
        self._queue.append(portion)
        if not self._is_told:
            self._tell()
        return self._portal.wait(portion.done, wait_s)

    def _raise_fault(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        self._inner._check_open()

    def _tell(self) -> None:
        self._is_told = True
        try:
            self._portal.start(self._start_sending)
        except BaseException:  # Ctrl+C, too: whoever goes on after it tells the thread of all that is queued.
            self._is_told = False
            raise

    def _start_sending(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_queue())

    async def _send_queue(self) -> None:
        """Publish what is queued until there is nothing left."""
        queue = self._queue
        while True:
            while queue:
                first = queue.popleft()
                if isinstance(first, _Portion):
                    await self._send_portion(first)
                else:
                    await self._send_singles(first)
            self._is_told = False
            if not queue:
                return
            self._is_told = True

    async def _send_singles(self, first: Publishable) -> None:
        """Publish a message, and those right behind it; one that is refused costs none of these."""
        queue = self._queue
        some = [first]
        while queue and len(some) < PORTION_MESSAGES and not isinstance(queue[0], _Portion):
            some.append(queue.popleft())  # type: ignore[arg-type]
        rest = iter(some)
        while left := length_hint(rest):
            try:
                await self._inner._publisher.publish_many(rest, math.inf)
            except errors.AngariumError as error:
                self._fault = self._fault or error
                if length_hint(rest) == left:  # nothing is published any more
                    return

    async def _send_portion(self, portion: _Portion) -> None:
        refused: errors.AngariumError | None = None
        try:
            if portion.messages:
                refused = await self._inner._publisher.publish_many(portion.messages, portion.timeout_s)
        except Exception as error:  # noqa: BLE001 - it is the caller's who waits, whatever it is
            if portion.done.set_running_or_notify_cancel():
                portion.done.set_exception(error)
        else:
            # The caller may give up in any moment; after this it cannot.
            if portion.done.set_running_or_notify_cancel():
                portion.done.set_result(refused)

    # Subscribing, request and reply; see `angarium.client.Client`.

    def subscribe(
        self,
        filters: str | Sequence[str],
        callback: MessageCallback | None = None,
        *,
        concurrency: int = 1,
        deliver_always: bool = False,
        local_only: bool = False,
        on_full: OnFull = "drop",
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
        retained: bool = False,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Subscribe to one filter or several; give the subscription when it is in force.

        A callback is called in threads of the subscription's own, as many as `concurrency` says: each message by one
        of them. The other arguments are those of `angarium.Client.subscribe`.

        Raises:
            AngariumError: as for `angarium.client.Client.subscribe`.
        """
        check_threads(callback, concurrency)
        terms = Terms(deliver_always, local_only, on_full, buffer_messages, buffer_bytes, retained)
        mailbox = self._inner._make_mailbox(filters, terms)
        subscription = Subscription(
            self._portal, mailbox, self._inner._close_mailbox, self._subscriptions, callback, concurrency
        )
        try:
            self._portal.call(self._inner._open_mailbox(mailbox, timeout_s))
        except BaseException as error:
            mailbox.end(error if isinstance(error, errors.AngariumError) else None)
            raise
        self._subscriptions[subscription] = None
        return subscription

    def retained(self, filter_text: str, *, timeout_s: float | None = None) -> Iterator[Message]:
        """Give what the node retains of a filter, by rising topics: the newest message of each topic.

        Raises:
            AngariumError: as for `angarium.client.Client.retained`.
        """
        for batch in self.retained_batches(filter_text, timeout_s=timeout_s):
            yield from batch

    def retained_batches(self, filter_text: str, *, timeout_s: float | None = None) -> Iterator[MessageBatch]:
        """Give the same in batches, which is faster to read.

        Raises:
            AngariumError: as for `angarium.client.Client.retained`.
        """
        batches = self._inner.retained_batches(filter_text, timeout_s=timeout_s)

        async def next_batch() -> MessageBatch | None:
            return await anext(batches, None)

        while (batch := self._portal.call(next_batch())) is not None:
            yield batch

    subscribe_for = waits(asynchronous.Client.subscribe_for)
    """Subscribe for another client, as a subscription manager; it ends when that client goes."""
    unsubscribe_for = waits(asynchronous.Client.unsubscribe_for)
    """Take a subscription from another client, as a subscription manager."""
    request = waits(asynchronous.Client.request)
    """Publish a request and give the reply. A correlation id of your own comes back in it."""

    def reply(self, message: Message, payload: bytes = b"", **options: Unpack[MessageOptions]) -> None:
        """Publish the reply to a request, with its correlation id; does not wait.

        Raises:
            InvalidRequestError: the message is no request: it has no `reply_to` (INVALID_ARGUMENT).
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        self.publish(answer(message, options), payload, **options)

    # Guaranteed messages and endpoints; see `angarium.client.Client`.

    producer = opens(asynchronous.Client.producer, Producer)
    """Open a producer of guaranteed messages; `on_ack` is called in the client's thread."""
    stage = opens(asynchronous.Client.stage, Stage)
    """Open a stage: messages that belong to nobody until somebody commits them."""
    commit_stages = waits(asynchronous.Client.commit_stages)
    """Publish what was staged; tell whether it was this commit."""
    abort_stages = waits(asynchronous.Client.abort_stages)
    """Drop what was staged."""
    create_queue = waits(asynchronous.Client.create_queue)
    """Create a queue, and let it attract what matches the subscriptions; tell whether it is new."""
    create_topic_endpoint = waits(asynchronous.Client.create_topic_endpoint)
    """Create a topic endpoint; tell whether it is new. It gets its topic when a consumer binds."""
    delete_queue = waits(asynchronous.Client.delete_queue)
    """Delete a queue with all its messages."""
    delete_topic_endpoint = waits(asynchronous.Client.delete_topic_endpoint)
    """Delete a topic endpoint with all its messages."""
    add_queue_subscription = waits(asynchronous.Client.add_queue_subscription)
    """Let a queue attract what matches filters; `!a/b` keeps out what it matches."""
    remove_queue_subscription = waits(asynchronous.Client.remove_queue_subscription)
    """Take subscriptions from a queue that clients gave it; what it holds stays."""
    show_queue = waits(asynchronous.Client.show_queue)
    """Give attributes and metrics of a queue, as far as this client may see them."""
    show_topic_endpoint = waits(asynchronous.Client.show_topic_endpoint)
    """Give attributes and metrics of a topic endpoint, as far as this client may see them."""
    positions = waits(asynchronous.Client.positions)
    """Give which positions a queue or topic endpoint has now; it needs no lease, and takes none."""
    reader_group = opens(asynchronous.Client.reader_group, ReaderGroup)
    """Lease all partitions of a durable queue for a reader group, or go on with its lease."""

    def consume(
        self,
        queue: str,
        callback: flow.MessageCallback | None = None,
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
        return self._bind(consume_options(queue, None, options), callback, concurrency)

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

    def _bind(self, options: FlowOptions, callback: flow.MessageCallback | None, concurrency: int) -> Flow:
        binding = self._portal.call(self._inner._guaranteed.bind(options))
        return Flow(SharedReader(self._portal, binding, self._flows, callback, concurrency))

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
        yield from self._read(self._portal.call(opening))

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
        yield from self._read(self._portal.call(opening))

    def _read(self, reader: RangeReader) -> Iterator[GuaranteedBatch]:
        try:
            yield from RangeBatches(self._portal, reader)
        finally:
            # Who leaves the loop half way may close the client before this.
            with contextlib.suppress(errors.ConnectionLostError):
                self._portal.call(reader.close())

    # The end.

    def close(self, timeout_s: float = asynchronous.CLOSE_TIMEOUT_S) -> None:
        """Send what is queued, say BYE, and end the thread; callbacks are called for what came before.

        Subscriptions end; what they have buffered can still be read. Who calls it again waits for the first call.

        Raises:
            InvalidRequestError: this is `on_event`, which cannot wait for its own client (INVALID_ARGUMENT).
        """
        if self._portal.is_foreign:
            return
        self._portal.check_thread()
        if self._is_closing:
            self._ended.wait(timeout_s)  # Not for callbacks: this may be one.
            return
        self._is_closing = True
        leaving.closed(self)
        for reader in list(self._flows):
            reader.accept_handed()
        try:
            self._portal.call(self._finish(timeout_s))
        finally:
            self._ended.set()
            for subscription in list(self._subscriptions):
                subscription._threads.join(timeout_s)
            for reader in list(self._flows):
                reader.threads.join(timeout_s)
            self._portal.stop()

    async def _finish(self, timeout_s: float) -> None:
        """Send what is queued, and let go of the connection."""
        if not self.closed:
            portion = _Portion([], None)
            self._queue.append(portion)
            self._start_sending()
            _, late = await asyncio.wait([asyncio.wrap_future(portion.done)], timeout=timeout_s)
            if late:
                _logger.warning("%s closes with messages unsent after %g s", self.name, timeout_s)
        fault, self._fault = self._fault, None
        if fault is not None:
            _logger.warning("%s closes; a message that it had queued was not sent: %s", self.name, fault)
        await self._inner.close(timeout_s)

    def _leave(self, timeout_s: float) -> Future[None] | None:
        """Begin to do so for a program that ends; give what is done when it has left, None if there is nothing to do.

        What it has in hand is not accepted, and nobody waits for callbacks.
        """
        if self._portal.is_foreign or self._is_closing:
            return None
        self._is_closing = True
        return self._portal.begin(self._finish(timeout_s))

    def __repr__(self) -> str:
        return repr(self._inner)


async def _publish(
    client: asynchronous.Client, topic: str, payload: Any, queue: str | None, options: MessageOptions
) -> None:
    await client.publish(topic, payload, queue=queue, **options)


async def _open(options: connecting.Connecting) -> asynchronous.Client:
    return await options


def connect(
    url: str | Sequence[str] = DEFAULT_URL, **arguments: Unpack[connecting.ConnectArguments]
) -> Client:
    """Connect and give the client; the arguments are those of `angarium.connect`.

    `on_event` is called in the client's thread.

    Raises:
        InvalidRequestError: an argument is illegal (INVALID_ARGUMENT).
        AngariumError: the router refuses, or nobody answers (CONNECT_FAILED).
    """
    return Client(connecting.connect(url, **arguments))
