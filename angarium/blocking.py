"""The client for programs without asyncio: the same names, no `await`.

    from angarium import blocking

    with blocking.connect("tcp://127.0.0.1:55555") as client:
        subscription = client.subscribe("orders/>")
        client.publish("orders/17", b"paid")
        for message in subscription:
            print(message.topic, message.payload)

Each client has one background thread, in which an `angarium.client.Client` runs. Calls that wait for the router run
there and are waited for. `publish` does not wait: it queues for the thread, which takes many at a time. Subscriptions
are read where the application reads them: chunks of messages cross the threads, never single ones. Every method may
be called from any thread but the client's own, in which only `on_event` is called.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Future
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, Unpack

from angarium import client as asynchronous
from angarium import connecting, errors
from angarium.message import (
    Delivery,
    Message,
    MessageBatch,
    MessageOptions,
    ReceivedMessage,
    Row,
)
from angarium.requests import answer
from angarium.slots import Publishable, TopicOwners
from angarium.subscription import BATCH_MESSAGES, Chunk
from angarium.subscription import Subscription as AsyncSubscription
from angarium.topic import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from types import TracebackType

_T = TypeVar("_T")
#: Called with each message, in a thread of the subscription's own.
MessageCallback: TypeAlias = "Callable[[Message], None]"

#: Messages that may be queued for the thread before `publish` waits for it.
QUEUED_MAX: Final = 4_000
#: Messages of `publish_many` that cross to the thread together; two such portions are under way.
PORTION_MESSAGES: Final = 2_000
#: Chunks that were read and are given back together, unless the reader is about to wait.
RELEASED_TOGETHER: Final = 32
#: How long closing waits for callbacks that are running.
CALLBACK_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class _Portion:
    """Messages that cross together, and who waits for them."""

    __slots__ = ("done", "messages")

    def __init__(self, messages: list[Publishable]) -> None:
        self.messages = messages
        self.done: Future[None] = Future()


class Subscription:
    """Messages of one or more filters; read by any number of threads, each message by one of them."""

    def __init__(self, client: Client, inner: AsyncSubscription, callback: MessageCallback | None) -> None:
        """Belong to a client; only `Client.subscribe` makes subscriptions."""
        self._client = client
        self._inner = inner
        #: Held while the chunk that is read changes.
        self._lock = threading.Lock()
        #: Set when there may be something to read.
        self._signal = threading.Event()
        #: The chunk that is read.
        self._open: Chunk | None = None
        #: What is left of it. One tuple, so that a thread that looks sees rows and delivery that belong together.
        self._current: tuple[Iterator[Row], Delivery] = iter(()), Delivery([], None, 0)
        #: Chunks that were read and not given back yet, at most RELEASED_TOGETHER.
        self._read: list[Chunk] = []
        #: What callbacks raised, counted.
        self.callback_errors = 0
        self._thread: threading.Thread | None = None
        inner.on_ready = self._signal.set
        if callback is not None:
            self._thread = threading.Thread(
                target=self._serve, args=(callback,), daemon=True, name="angarium callback"
            )
            self._thread.start()

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as they were given."""
        return self._inner.filters

    @property
    def buffered(self) -> int:
        """Messages that wait to be read, without those of the chunk that is being read."""
        return self._inner.buffered

    def __iter__(self) -> Iterator[Message]:
        """Give messages until the subscription ends.

        Raises:
            AngariumError: why it ended, if it was neither unsubscribed nor closed.
        """
        while self._ready(None):
            rows, delivery = self._current
            for row in rows:
                yield ReceivedMessage(row, delivery)

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[MessageBatch]:
        """Give messages as they came, together; the fastest way to read.

        A batch counts as consumed when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the subscription ended, if it was neither unsubscribed nor closed.
        """
        if max_messages < 1:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"max_messages is {max_messages}")
        while self._ready(None):
            rows, delivery = self._current
            while some := list(islice(rows, max_messages)):
                yield MessageBatch(some, delivery)

    def receive(self, timeout_s: float | None = None) -> Message:
        """Give the next message, waiting so many seconds for it, or for ever.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            ConnectionLostError: the subscription has ended (CLIENT_CLOSED), or the connection for good.
        """
        while True:
            rows, delivery = self._current
            for row in rows:
                return ReceivedMessage(row, delivery)
            if not self._ready(timeout_s):
                raise errors.error_for(errors.CLIENT_CLOSED, f"the subscription {self} has ended")

    def unsubscribe(self) -> None:
        """End the subscription; what is buffered and unread is thrown away.

        Raises:
            AngariumError: the router's answer, for example that an ACL denies it. It has ended here all the same.
        """
        try:
            self._client.call(self._inner.unsubscribe())
        finally:
            with self._lock:
                if self._open is not None:
                    self._read.append(self._open)
                self._open = None
                self._current = iter(()), self._current[1]
            self._give_back()

    def __repr__(self) -> str:
        return repr(self._inner)

    def join(self, timeout_s: float) -> None:
        """Wait for the callback to be called for everything that came; the subscription has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _ready(self, timeout_s: float | None) -> bool:
        """Wait until there are messages; give False at the end.

        Raises:
            TimeoutExpiredError: there are none in time.
        """
        while not self._advance():
            self._give_back()
            is_ended, error = self._inner.outcome
            if is_ended and not self._inner.buffered:
                self._signal.set()
                if error is not None:
                    raise error
                return False
            if not self._signal.wait(timeout_s):
                raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s")
        return True

    def _advance(self) -> bool:
        """Open the next chunk unless there is something left of the one that is open."""
        with self._lock:
            if length_hint(self._current[0]):
                return True
            if self._open is not None:
                self._read.append(self._open)
            self._signal.clear()
            chunk = self._open = self._inner.take_chunk()
            if chunk is None:
                return False
            self._current = iter(chunk.rows), chunk.delivery
            # Other readers may be waiting, and there may be more.
            self._signal.set()
            is_much = len(self._read) >= RELEASED_TOGETHER
        if is_much:
            self._give_back()
        return True

    def _give_back(self) -> None:
        """Let the router send again what was read."""
        with self._lock:
            read, self._read = self._read, []
        if read:
            self._client.release(read)

    def _serve(self, callback: MessageCallback) -> None:
        try:
            for message in self:
                try:
                    callback(message)
                except Exception:
                    self.callback_errors += 1
                    _logger.exception("the callback of %s raised", self)
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self, error)


class Client:
    """A connected client; made by `connect`, closed by `close` or as a context manager."""

    def __init__(self, options: connecting.Connecting) -> None:
        """Connect; applications call `connect`.

        Raises:
            AngariumError: the router refuses, or nobody answers (CONNECT_FAILED).
        """
        self._loop = asyncio.new_event_loop()
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
        self._thread.start()
        try:
            self._inner: asynchronous.Client = self.call(_open(options))
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
        stats = self._inner.stats
        stats["callback_errors"] += sum(one.callback_errors for one in list(self._subscriptions))
        return stats

    # Publishing.

    def publish(
        self, topic: str, payload: bytes | bytearray | memoryview = b"", **options: Unpack[MessageOptions]
    ) -> None:
        """Publish a message: it is queued for the client's thread, which sends it at once.

        Waits only while much is queued, which happens when there is no ingress credit or no connection.

        Raises:
            InvalidRequestError: the topic, the payload or an option is illegal.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        if options or type(payload) is not bytes:
            message: Publishable = Message(topic, payload, **options)
            self._inner.check_message(message)
        else:
            self._inner.check_size(len(payload))
            self._topics[topic]
            message = (topic, payload)
        if self._fault is not None or self._inner.closed:
            self._raise_fault()
        self._queue.append(message)
        if not self._is_told:
            self._tell()
        elif len(self._queue) >= QUEUED_MAX:
            self._wait_for_queue()

    def publish_many(self, messages: Iterable[Publishable]) -> None:
        """Publish messages, or pairs of topic and payload, as fast as the router takes them.

        The messages are taken from the iterable in the calling thread, a portion ahead of the sending.

        Raises:
            InvalidRequestError: a message is illegal; those before it are published, the others are not.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        iterator = iter(messages)
        before: _Portion | None = None
        while some := list(islice(iterator, PORTION_MESSAGES)):
            portion = self._cross(some)
            if before is not None:
                before.done.result()
            before = portion
        if before is not None:
            before.done.result()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published so far has been matched and handed on by the router.

        Raises:
            TimeoutExpiredError: not within the time, by default the `timeout_s` of `connect` (TIMEOUT).
            ConnectionLostError: messages were in flight when the connection was lost (NOT_CONNECTED).
        """
        self._wait_for_queue(timeout_s)
        self.call(self._inner.flush(timeout_s))
