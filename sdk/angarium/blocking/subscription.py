"""Subscriptions for threads: chunks of messages cross from the client's thread, single ones never.

The client's thread pushes chunks to an `angarium.client.subscribing.mailbox.Mailbox`, which wakes the readers here;
they take chunks from it, and give them back together when they have read several or are about to wait.
`angarium.blocking` makes these subscriptions.
"""

from __future__ import annotations

import logging
import threading
import time
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from angarium import errors, tracing
from angarium.blocking.portal import CallbackThreads, Closing, await_signal
from angarium.client.connection.faults import FAULTS
from angarium.client.subscribing.subscription import BATCH_MESSAGES, SubscriptionView
from angarium.message import Delivery, Message, MessageBatch, ReceivedMessage, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from angarium.blocking.portal import Portal
    from angarium.client.subscribing.mailbox import Chunk, Mailbox

#: Called with each message, in a thread of the subscription's own.
MessageCallback: TypeAlias = "Callable[[Message], None]"

#: Chunks that were read and are given back together, unless the reader is about to wait.
RELEASED_TOGETHER: Final = 32

_logger = logging.getLogger(__name__)


class Subscription(SubscriptionView, Closing):
    """Messages of one or more filters; read by any number of threads, each message by one of them.

    Read it with one of: `for message in subscription`, `for batch in subscription.batches()`, `receive`, or give a
    callback to `Client.subscribe`. It is a context manager, which closes it. What is not read is bounded, as by
    `angarium.Subscription`.
    """

    def __init__(
        self,
        portal: Portal,
        mailbox: Mailbox,
        close: Callable[[Mailbox], Coroutine[Any, Any, None]],
        registry: dict[Subscription, None],
        callback: MessageCallback | None,
        concurrency: int,
    ) -> None:
        """Read a mailbox of the thread; only `Client.subscribe` makes them, `registry` holds those in use."""
        self._portal = portal
        self._mailbox = mailbox
        self._close = close
        self._registry = registry
        #: Held while the chunk that is read changes.
        self._lock = threading.Lock()
        #: Set when there may be something to read.
        self._signal = threading.Event()
        #: The chunk that is read.
        self._open: Chunk | None = None
        #: What is left of it. One tuple, so that a thread that looks sees rows and delivery that belong
        #: together.
        self._current: tuple[Iterator[Row], Delivery] = iter(()), Delivery([], None, 0)
        #: Chunks that were read and not given back yet, at most RELEASED_TOGETHER.
        self._read: list[Chunk] = []
        mailbox.on_ready = self._signal.set
        self._threads = CallbackThreads(self._serve, callback, concurrency)

    def __iter__(self) -> Iterator[Message]:
        """Give messages until the subscription ends.

        Raises:
            AngariumError: why it ended, if it was not closed here.
        """
        while self._ready():
            rows, delivery = self._current
            tracer = tracing.active
            for row in rows:
                message = ReceivedMessage(row, delivery)
                if tracer is not None and tracer.is_on:
                    tracer.receive((message,), self._mailbox.place)
                yield message
                if self._mailbox.is_discarded:
                    return

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[MessageBatch]:
        """Give messages as they came, together; the fastest way to read.

        A batch counts as consumed when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the subscription ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.invalid(f"max_messages is {max_messages}")
        while self._ready():
            rows, delivery = self._current
            while some := list(islice(rows, max_messages)):
                batch = MessageBatch(some, delivery)
                if tracing.active is not None:
                    tracing.active.receive(batch, self._mailbox.place)
                yield batch
                if self._mailbox.is_discarded:
                    return

    def receive(self, timeout_s: float | None = None) -> Message:
        """Give the next message, waiting so many seconds for it, or for ever.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            ConnectionLostError: the subscription has ended (CLIENT_CLOSED), or the connection for good.
        """
        asked_ns = 0 if tracing.active is None else time.time_ns()
        until: float | None = None
        while True:
            rows, delivery = self._current
            for row in rows:
                if not length_hint(rows):
                    self._finish()
                message = ReceivedMessage(row, delivery)
                if tracing.active is not None:
                    tracing.active.receive((message,), self._mailbox.place, asked_ns)
                return message
            if until is None and timeout_s is not None:
                until = time.monotonic() + timeout_s
            if not self._ready(timeout_s, until):
                raise errors.error_for(errors.CLIENT_CLOSED, f"the subscription {self} has ended")

    def close(self) -> None:
        """End the subscription; what is buffered and unread is thrown away. Nothing happens the second time.

        Raises:
            AngariumError: the router's answer, for example that an ACL denies it. It has ended here all the
                same.
        """
        try:
            self._portal.call(self._close(self._mailbox))
        finally:
            with self._lock:
                if self._open is not None:
                    self._read.append(self._open)
                self._open = None
                self._current = iter(()), self._current[1]
            self._give_back()
            self._registry.pop(self, None)

    def _ready(self, timeout_s: float | None = None, until: float | None = None) -> bool:
        """Wait until there are messages, as `await_signal`; give False at the end.

        Raises:
            TimeoutExpiredError: there are none in time.
        """
        self._portal.check_process()
        while not self._advance():
            self._give_back()
            is_ended, error = self._mailbox.outcome
            if is_ended and not self._mailbox.messages:
                self._signal.set()
                if error is not None:
                    raise error
                return False
            await_signal(self._signal, timeout_s, until)
        return True

    def _advance(self) -> bool:
        """Open the next chunk unless there is something left of the one that is open."""
        with self._lock:
            if length_hint(self._current[0]):
                return True
            if self._open is not None:
                self._read.append(self._open)
            self._signal.clear()
            chunk = self._open = self._mailbox.take()
            if chunk is None:
                return False
            self._current = iter(chunk.rows), chunk.delivery
            # Other readers may be waiting, and there may be more.
            self._signal.set()
            is_much = len(self._read) >= RELEASED_TOGETHER
        if is_much:
            self._give_back()
        return True

    def _finish(self) -> None:
        """Give a large chunk back with its last message, which may be the last one that is ever read."""
        with self._lock:
            chunk = self._open
            if chunk is None or length_hint(self._current[0]) or len(chunk.rows) < RELEASED_TOGETHER:
                return
            self._read.append(chunk)
            self._open = None
        self._give_back()

    def _give_back(self) -> None:
        """Let the router send again what was read."""
        with self._lock:
            read, self._read = self._read, []
        if read:
            self._portal.post(_release, read)

    def _serve(self, callback: MessageCallback) -> None:
        try:
            while self._ready():
                rows, delivery = self._current
                for row in rows:
                    if self._mailbox.is_discarded:
                        return
                    self._call(callback, ReceivedMessage(row, delivery))
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self, error)

    def _call(self, callback: MessageCallback, message: Message) -> None:
        try:
            if tracing.active is None:
                callback(message)
            else:
                with tracing.active.process(message, self._mailbox.place):
                    callback(message)
        except FAULTS:
            with self._lock:
                self._mailbox.callback_errors += 1
            _logger.exception("the callback of %s raised", self)


def _release(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.release()
