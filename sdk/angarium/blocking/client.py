"""The client for programs without asyncio: the same names, no `await`.

    from angarium import blocking

    with blocking.connect("tcp://127.0.0.1:55555") as client:
        with client.subscribe("orders/>") as subscription:
            client.publish("orders/17", b"paid")
            for message in subscription:
                print(message.topic, message.payload)

Each client has one background thread, in which an `angarium.client.Client` runs. Calls that wait for the
router run there and are waited for. `publish` does not wait for a direct message: it queues for the thread, which
takes many at a time. Subscriptions and flows are read where the application reads them: chunks of messages
cross the threads, never single ones. Every method may be called from any thread but the client's own, in which
only `on_event`, `on_ack` and `on_active` are called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from angarium import errors
from angarium.blocking.guaranteed_messaging import GuaranteedMessaging
from angarium.blocking.subscription import MessageCallback, Subscription
from angarium.client import client as asynchronous
from angarium.client import connecting
from angarium.client.requests import answer
from angarium.client.subscribing.callbacks import check_threads
from angarium.client.subscribing.mailbox import BUFFER_BYTES, BUFFER_MESSAGES, Terms
from angarium.client.transport.address import DEFAULT_URL
from angarium.message import DeliveryMode, Message, MessageOptions
from angarium.slots import Publishable, TopicOwners, row_size
from angarium.topic import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from types import TracebackType

    from angarium.blocking.flow import Desk
    from angarium.client.subscribing.mailbox import Chunk, Mailbox, OnFull

_T = TypeVar("_T")

#: Messages that may be queued for the thread before `publish` waits for it, and their bytes if all are of one size.
QUEUED_MAX: Final = 4_000
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
#: Messages that cross to the thread together.
PORTION_MESSAGES: Final = 2_000
#: How often a caller that waits looks whether the thread is still there.
LOOK_INTERVAL_S: Final = 1.0
#: How long the thread may take to end; only an `on_event` that does not return makes it late.
STOP_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class _Portion:
    """Messages that cross together, and who waits for them."""

    __slots__ = ("done", "messages", "timeout_s")

    def __init__(self, messages: list[Publishable], timeout_s: float | None) -> None:
        self.messages = messages
        #: How long they wait for a connection.
        self.timeout_s = timeout_s
        self.done: Future[None] = Future()


class Client(GuaranteedMessaging):
    """A connected client; made by `connect`, closed by `close` or as a context manager."""

    def __init__(self, options: connecting.Connecting) -> None:
        """Connect; applications call `connect`.

        Raises:
            AngariumError: the router refuses, or nobody answers (CONNECT_FAILED).
        """
        # The default loop of Windows cannot watch sockets.
        self._loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="angarium client")
        #: What `publish` queued and the thread has not taken, in order.
        self._queue: deque[Publishable | _Portion] = deque()
        #: True from when the thread is told of the queue until it has found the queue empty.
        self._is_told = False
        self._task: asyncio.Task[None] | None = None
        #: What went wrong behind the back of a `publish` that had returned; the next call raises it.
        self._fault: errors.AngariumError | None = None
        #: Knows which topics are legal; whom they belong to is the thread's business.
        self._topics = TopicOwners(bytes(SLOTS))
        self._subscriptions: dict[Subscription, None] = {}
        self._flows: dict[Desk, None] = {}
        self._is_closing = False
        #: Nothing that waits for the thread will be answered any more.
        self._is_stopped = False
        self._pid = os.getpid()
        self._timeout_s = options.timeout_s
        self._thread.start()
        try:
            self._inner: asynchronous.Client = self._call(_open(options))
        except BaseException:
            self._stop()
            raise

    # What everybody may look at; see `angarium.client.Client`.

    @property
    def name(self) -> str:
        """The client's name at the router, its own or the one that the router made."""
        return self._inner.name

    @property
    def inbox(self) -> str:
        """The topic to which replies to this client go; another one after each reconnect."""
        return self._inner.inbox

    @property
    def node(self) -> str:
        """The name of the node that it is connected to."""
        return self._inner.node

    @property
    def max_message_bytes(self) -> int:
        """What payload and properties of a message may have together."""
        return self._inner.max_message_bytes

    @property
    def url(self) -> str:
        """The address in use, or the one that is tried."""
        return self._inner.url

    @property
    def connected(self) -> bool:
        """Whether a session is open now."""
        return self._inner.connected

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or lost for good; it does not come back."""
        return self._inner.closed

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, gathered or subscribed to is of this moment."""
        return self._inner.stats

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
            self._call(_publish(self._inner, topic, payload, queue, options))
            return
        if options or type(payload) is not bytes:
            whole = Message(topic, payload, **options)
            message: Publishable = whole
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
            self._empty_queue()
        self._queue.append(message)
        if not self._is_told:
            self._tell()

    def _empty_queue(self) -> None:
        """Wait until the thread has taken what is queued.

        Raises:
            TimeoutExpiredError: there was no connection all the time (TIMEOUT).
        """
        while True:
            try:
                self._cross([], wait_s=self._timeout_s)
            except errors.TimeoutExpiredError:
                if not self._inner.connected:
                    detail = f"{len(self._queue)} messages wait for a connection; this one was not queued"
                    raise errors.error_for(errors.TIMEOUT, detail) from None
            else:
                return

    def publish_many(self, messages: Iterable[Publishable], *, timeout_s: float | None = None) -> None:
        """Publish messages, or pairs of topic and payload, as fast as the router takes them.

        The messages are taken from the iterable in the calling thread.

        Args:
            messages: what to publish.
            timeout_s: how long to wait for a connection while there is none, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: a message is illegal; those before it are published, the others are not.
            TimeoutExpiredError: there was no connection in time (TIMEOUT); those before are published.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        iterator = iter(messages)
        while some := list(islice(iterator, PORTION_MESSAGES)):
            self._cross(some, timeout_s=timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published so far has been matched and handed on by the router.

        Raises:
            TimeoutExpiredError: not within the time, by default the `timeout_s` of `connect` (TIMEOUT).
            ConnectionLostError: since the last flush messages were in flight when the connection was lost
                (NOT_CONNECTED).
        """
        started = time.monotonic()
        self._cross([], wait_s=timeout_s)
        self._raise_fault()
        left_s = None if timeout_s is None else max(timeout_s - (time.monotonic() - started), 0)
        self._call(self._inner.flush(left_s))

    def _cross(
        self, messages: list[Publishable], *, timeout_s: float | None = None, wait_s: float | None = None
    ) -> None:
        """Let the thread publish a portion after all that is queued, and wait for it."""
        self._check_thread()
        self._raise_fault()
        portion = _Portion(messages, timeout_s)
        self._queue.append(portion)
        if not self._is_told:
            self._tell()
        self._wait(portion.done, wait_s)

    def _raise_fault(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        self._inner._check_open()

    def _tell(self) -> None:
        self._is_told = True
        try:
            self._loop.call_soon_threadsafe(self._start_sending)
        except RuntimeError:
            raise errors.error_for(errors.CLIENT_CLOSED) from None

    def _start_sending(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send_queue())

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
        """Publish a message, and those right behind it."""
        queue = self._queue
        some = [first]
        while queue and len(some) < PORTION_MESSAGES and not isinstance(queue[0], _Portion):
            some.append(queue.popleft())  # type: ignore[arg-type]
        try:
            await self._inner.publish_many(some, timeout_s=math.inf)
        except errors.AngariumError as error:
            self._fault = error

    async def _send_portion(self, portion: _Portion) -> None:
        try:
            if portion.messages:
                await self._inner.publish_many(portion.messages, timeout_s=portion.timeout_s)
        except Exception as error:  # noqa: BLE001 - it is the caller's who waits, whatever it is
            if portion.done.set_running_or_notify_cancel():
                portion.done.set_exception(error)
        else:
            # The caller may give up in any moment; after this it cannot.
            if portion.done.set_running_or_notify_cancel():
                portion.done.set_result(None)

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
        timeout_s: float | None = None,
    ) -> Subscription:
        """Subscribe to one filter or several; give the subscription when it is in force.

        A callback is called in threads of the subscription's own, as many as `concurrency` says: each message by one
        of them. The other arguments are those of `angarium.Client.subscribe`.

        Raises:
            AngariumError: as for `angarium.client.Client.subscribe`.
        """
        check_threads(callback, concurrency)
        terms = Terms(deliver_always, local_only, on_full, buffer_messages, buffer_bytes)
        mailbox = self._inner._make_mailbox(filters, terms)
        subscription = Subscription(self, mailbox, callback, concurrency)
        try:
            self._call(self._inner._open_mailbox(mailbox, timeout_s))
        except BaseException as error:
            mailbox.end(error if isinstance(error, errors.AngariumError) else None)
            raise
        self._subscriptions[subscription] = None
        return subscription

    def _close_mailbox(self, mailbox: Mailbox) -> Coroutine[Any, Any, None]:
        return self._inner._close_mailbox(mailbox)

    def subscribe_for(self, client_name: str, filter_text: str, *, deliver_always: bool = False) -> None:
        """Subscribe for another client, as a subscription manager; it ends when that client goes.

        Raises:
            AngariumError: as for `angarium.client.Client.subscribe_for`.
        """
        self._call(self._inner.subscribe_for(client_name, filter_text, deliver_always=deliver_always))

    def unsubscribe_for(self, client_name: str, filter_text: str, *, deliver_always: bool = False) -> None:
        """Take a subscription from another client, as a subscription manager.

        Raises:
            AngariumError: as for `angarium.client.Client.unsubscribe_for`.
        """
        self._call(self._inner.unsubscribe_for(client_name, filter_text, deliver_always=deliver_always))

    def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        timeout_s: float = asynchronous.REQUEST_TIMEOUT_S,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Publish a request and give the reply. A correlation id of your own comes back in it.

        Raises:
            AngariumError: as for `angarium.client.Client.request`.
        """
        return self._call(self._inner.request(topic, payload, timeout_s=timeout_s, **options))

    def reply(self, message: Message, payload: bytes = b"", **options: Unpack[MessageOptions]) -> None:
        """Publish the reply to a request, with its correlation id; does not wait.

        Raises:
            InvalidRequestError: the message is no request: it has no `reply_to` (INVALID_ARGUMENT).
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        self.publish(answer(message, options), payload, **options)

    # The thread, and the end.

    def close(self, timeout_s: float = asynchronous.CLOSE_TIMEOUT_S) -> None:
        """Send what is queued, say BYE, and end the thread; callbacks are called for what came before.

        Subscriptions end; what they have buffered can still be read.
        """
        if self._is_closing or os.getpid() != self._pid:
            return
        self._is_closing = True
        for desk in list(self._flows):
            desk.accept_handed()
        try:
            if not self.closed:
                self._cross([], wait_s=timeout_s)
        except errors.AngariumError as error:
            _logger.warning("%s closed with messages unsent: %s", self.name, error)
        try:
            self._call(self._inner.close(timeout_s))
        finally:
            for subscription in list(self._subscriptions):
                subscription._join(timeout_s)
            for flow in list(self._flows):
                flow.join(timeout_s)
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the client's thread and wait for it.

        Raises:
            InvalidRequestError: this is the client's thread, which cannot wait for itself (INVALID_ARGUMENT).
            ConnectionLostError: the client is closed (CLIENT_CLOSED).
        """
        try:
            self._check_thread()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except errors.AngariumError:
            work.close()
            raise
        except RuntimeError:
            work.close()
            raise errors.error_for(errors.CLIENT_CLOSED) from None
        return self._wait(future)

    def _check_process(self) -> None:
        """Return unless this is a child of the process that connected.

        Raises:
            ConnectionLostError: it is (FORKED).
        """
        if os.getpid() != self._pid:
            raise errors.error_for(errors.FORKED, f"{self} was connected by process {self._pid}")

    def _check_thread(self) -> None:
        self._check_process()
        if threading.current_thread() is self._thread:
            raise errors.error_for(errors.INVALID_ARGUMENT, "on_event cannot wait for its own client")

    def _release(self, chunks: list[Chunk]) -> None:
        """Give chunks that were read back to the thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, and credit of no use any more.
            self._loop.call_soon_threadsafe(_release, chunks)

    def _forget(self, subscription: Subscription) -> None:
        """Take note that a subscription has ended."""
        self._subscriptions.pop(subscription, None)

    def _post(self, work: Callable[[], None]) -> None:
        """Run something in the client's thread soon; nothing happens if it has ended."""
        self._check_process()
        with contextlib.suppress(RuntimeError):  # The loop is closed, and nobody can be told any more.
            self._loop.call_soon_threadsafe(work)

    def _wait(self, future: Future[_T], timeout_s: float | None = None) -> _T:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                left_s = LOOK_INTERVAL_S if deadline is None else deadline - time.monotonic()
                try:
                    return future.result(min(max(left_s, 0), LOOK_INTERVAL_S))
                except TimeoutError:
                    if future.done():  # an error of the call itself, or an answer in this very moment
                        return future.result()
                    if self._is_stopped:
                        raise errors.error_for(errors.CLIENT_CLOSED) from None
                    if deadline is not None and time.monotonic() >= deadline:
                        raise errors.error_for(errors.TIMEOUT, f"after {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._is_stopped = True

    def _stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # It was stopped before.
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)


def _release(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.release()


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
