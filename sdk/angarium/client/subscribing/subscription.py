"""Subscriptions of an application: its messages one by one, in batches, or by callback.

A `Subscription` reads an `angarium.client.subscribing.mailbox.Mailbox`, which `angarium.client.subscribing.dispatch`
fills. `angarium.blocking.subscription` is the same for threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from angarium import errors, tracing
from angarium.client.connection.faults import FAULTS, raise_if_cancelled
from angarium.client.connection.opening import Closing
from angarium.client.subscribing.callbacks import check_concurrency, is_async
from angarium.message import Message, MessageBatch, ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from angarium.client.subscribing.mailbox import Chunk, Mailbox
    from angarium.message import Row

#: Called with each message; an `async def` is awaited.
MessageCallback: TypeAlias = "Callable[[Message], None] | Callable[[Message], Awaitable[None]]"

#: Calls of callbacks before the loop gets its turn; at a microsecond each a millisecond.
CALLBACKS_PER_STEP: Final = 1_000
#: Messages in one batch of `Subscription.batches` unless asked otherwise.
BATCH_MESSAGES: Final = 10_000

_logger = logging.getLogger(__name__)


class SubscriptionView:
    """What everybody may look at of a subscription, in any thread."""

    _mailbox: Mailbox

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as they were given."""
        return self._mailbox.texts

    @property
    def deliver_always(self) -> bool:
        """Whether deliver-to-one messages come here whatever others subscribe to."""
        return self._mailbox.terms.deliver_always

    @property
    def local_only(self) -> bool:
        """Whether the router does not know it: it gets what comes to this client anyway."""
        return self._mailbox.terms.local_only

    @property
    def buffered(self) -> int:
        """Messages that wait to be read, without those of the chunk that is being read."""
        return self._mailbox.messages

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start, `dropped_messages` among them; what is buffered is of this moment."""
        return self._mailbox.stats

    def __str__(self) -> str:
        return str(self._mailbox)

    def __repr__(self) -> str:
        return repr(self._mailbox)


class Subscription(SubscriptionView, Closing):
    """Messages of one or more filters, in the order of their publishers.

    Read it with one of: `async for message in subscription`, `async for batch in subscription.batches()`,
    `receive`, or give a callback to `Client.subscribe`. It is an async context manager, which closes it.

    Messages that are not read wait here, up to a bound. When it is reached the oldest are dropped: `stats` counts
    them, the next message has its `discard_indication`, and `on_event` gets `slow`. `Client.subscribe` says how to
    choose the bound, or to stop the router instead.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        close: Callable[[Mailbox], Awaitable[None]],
        callback: MessageCallback | None = None,
        concurrency: int = 1,
    ) -> None:
        """Read a mailbox; only `Client.subscribe` makes subscriptions."""
        check_concurrency(callback, concurrency)
        self._mailbox = mailbox
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        #: The chunk whose rows are handed out; `_rows` iterates over them.
        self._open: Chunk | None = None
        self._rows: Iterator[Row] = iter(())
        #: Readers that wait for a chunk or the end.
        self._waiters: list[asyncio.Future[None]] = []
        if callback is not None and is_async(callback):
            mailbox.tasks += [self._loop.create_task(self._await_callback()) for _ in range(concurrency)]
        is_plain = callback is not None and not mailbox.tasks
        mailbox.on_ready = self._wake_callback if is_plain else self._wake_readers

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Give messages until the subscription ends.

        Raises:
            AngariumError: why it ended, if it was not closed here.
        """
        mailbox = self._mailbox
        while await self._ready():
            assert self._open is not None
            delivery, tracer = self._open.delivery, tracing.active
            for row in self._rows:
                message = ReceivedMessage(row, delivery)
                if tracer is not None and tracer.is_on:
                    tracer.receive((message,), mailbox.place)
                yield message
                if mailbox.is_discarded:
                    return

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[MessageBatch]:
        """Give messages as they came, together; the fastest way to read.

        A batch counts as consumed when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the subscription ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.invalid(f"max_messages is {max_messages}, from 1 on is possible")
        while await self._ready():
            assert self._open is not None
            left, delivery = self._rows, self._open.delivery
            while rows := list(islice(left, max_messages)):
                batch = MessageBatch(rows, delivery)
                if tracing.active is not None:
                    tracing.active.receive(batch, self._mailbox.place)
                yield batch
                if self._mailbox.is_discarded:
                    return

    async def receive(self, timeout_s: float | None = None) -> Message:
        """Give the next message, waiting so many seconds for it, or for ever.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            ConnectionLostError: the subscription has ended (CLIENT_CLOSED), or the connection for good.
        """
        asked_ns = 0 if tracing.active is None else time.time_ns()
        while True:
            for row in self._rows:
                assert self._open is not None
                if not length_hint(self._rows):
                    self._open.release()
                message = ReceivedMessage(row, self._open.delivery)
                if tracing.active is not None:
                    tracing.active.receive((message,), self._mailbox.place, asked_ns)
                return message
            try:
                async with asyncio.timeout(timeout_s):
                    is_ready = await self._ready()
            except errors.AngariumError:
                raise
            except TimeoutError:
                raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s") from None
            if not is_ready:
                raise errors.error_for(errors.CLIENT_CLOSED, f"the subscription {self} has ended")

    async def close(self) -> None:
        """End the subscription; what is buffered and unread is thrown away. Nothing happens the second time.

        Raises:
            AngariumError: the router's answer, for example that an ACL denies it. It has ended here all the
                same.
        """
        if self._open is not None:
            self._open.release()
            self._rows = iter(())
        await self._close(self._mailbox)

    # Reading.

    def _wake_readers(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake_callback(self) -> None:
        if not self._mailbox.is_calling:
            self._run_callback()

    def _advance(self) -> bool:
        """Release the chunk that was handed out and open the next one, if there is one."""
        if self._open is not None:
            self._open.release()
        self._open = self._mailbox.take()
        if self._open is None:
            self._rows = iter(())
            return False
        self._rows = iter(self._open.rows)
        return True

    async def _ready(self) -> bool:
        """Wait for rows; give False at the end.

        A chunk wakes every reader: the first one opens it, the others share its rows.
        """
        while not length_hint(self._rows) and not self._advance():
            is_ended, error = self._mailbox.outcome
            if is_ended:
                if error is not None:
                    raise error
                return False
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True

    # Callbacks.

    def _run_callback(self) -> None:
        """Call a plain callback for what is buffered, a bounded number of times per step of the loop."""
        callback: Any = self._callback
        mailbox = self._mailbox
        mailbox.is_calling = True
        budget = CALLBACKS_PER_STEP
        while budget > 0 and self._advance():
            assert self._open is not None
            delivery, tracer = self._open.delivery, tracing.active
            for row in self._rows:
                try:
                    if tracer is None:
                        callback(ReceivedMessage(row, delivery))
                    else:
                        message = ReceivedMessage(row, delivery)
                        with tracer.process(message, mailbox.place):
                            callback(message)
                except FAULTS:
                    self._raised()
                if mailbox.is_discarded:
                    break
            budget -= len(self._open.rows)
            self._open.release()
        mailbox.is_calling = bool(mailbox.messages)
        if mailbox.is_calling:
            self._loop.call_soon(self._run_callback)

    async def _await_callback(self) -> None:
        """Await an async callback for one message after the other; several of these share the messages."""
        callback: Any = self._callback
        mailbox = self._mailbox
        try:
            while await self._ready():
                assert self._open is not None
                delivery = self._open.delivery
                for row in self._rows:
                    message = ReceivedMessage(row, delivery)
                    try:
                        if tracing.active is None:
                            await callback(message)
                        else:
                            with tracing.active.process(message, mailbox.place):
                                await callback(message)
                    except FAULTS as fault:
                        raise_if_cancelled(fault)
                        self._raised()
                    if mailbox.is_discarded:
                        return
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self, error)

    def _raised(self) -> None:
        self._mailbox.callback_errors += 1
        _logger.exception("the callback of %s raised", self)
