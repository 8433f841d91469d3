"""Flows for threads: deliveries cross from the client's thread whole, outcomes cross back together.

Readers take deliveries of an `angarium.client.consuming.flow.Flow` and hand their rows out. What they say of
messages, and the credit of what was handed out, is queued, and the client's thread takes everything that is
queued at once. `angarium.blocking` makes these flows.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from angarium import errors, wire
from angarium.client.consuming.flow import BATCH_MESSAGES
from angarium.client.consuming.flow_buffer import FlowReader
from angarium.client.protocol.messages import (
    GuaranteedBatch,
    GuaranteedDelivery,
    GuaranteedMessage,
    settle_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType

    from angarium.client.consuming.binding import Binding
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Settleable

#: Called with each message, in a thread of the flow's own.
MessageCallback: TypeAlias = "Callable[[GuaranteedMessage], None]"

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """What a flow needs of its client."""

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the client's thread and wait for it."""

    def _check_process(self) -> None:
        """Return unless this is a child of the process that connected."""

    def _post(self, work: Callable[[], None]) -> None:
        """Run something in the client's thread soon."""

    def _forget_flow(self, flow: Desk) -> None:
        """Take note that a flow has ended."""


class Desk:
    """Hands the messages of a binding out to threads, and takes what they say of them.

    It knows nothing of the `Flow` that the application holds, which may be dropped.
    """

    def __init__(
        self,
        client: Owner,
        binding: Binding,
        callback: MessageCallback | None,
        concurrency: int,
        *,
        is_auto: bool,
    ) -> None:
        """Belong to a client; only `Client.consume` and `Client.browse` bind flows."""
        self.binding: Final = binding
        self.is_auto: Final = is_auto
        #: Whether the application need not hold the flow: its callback is called in any case.
        self.has_callback: Final = callback is not None
        self._client = client
        #: Held while rows are handed out or settled.
        self._lock = threading.Lock()
        #: Set when there may be something to read.
        self._signal = threading.Event()
        self._reader = FlowReader(binding.options.window, self._take_delivery, self._release)
        #: What the client's thread is to do: record outcomes, give credit back.
        self._queue: deque[Callable[[], None]] = deque()
        #: Whether the client's thread will look into the queue.
        self._is_told = False
        #: `handed`: the message of `receive` that the next call of the same thread accepts.
        self._own = threading.local()
        binding.on_ready = self._signal.set
        self._threads = [
            threading.Thread(target=self._serve, args=(callback,), daemon=True, name="angarium callback")
            for _ in range(concurrency if callback is not None else 0)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out."""
        return self._reader.left + self.binding.buffered

    # Reading.

    def next(self, timeout_s: float | None) -> GuaranteedMessage | None:
        """Wait for a message and give it, or None at the end.

        Raises:
            TimeoutExpiredError: there is none in time.
        """
        while self.ready(timeout_s):
            with self._lock:
                if self._reader.advance():
                    return GuaranteedMessage(*self._reader.take())
        return None

    def ready(self, timeout_s: float | None) -> bool:
        """Wait until there may be a row; give False at the end.

        Raises:
            TimeoutExpiredError: there is none in time.
        """
        self._client._check_process()
        while not self._look():
            is_ended, error = self.binding.outcome
            if is_ended:
                self._signal.set()
                if error is not None:
                    raise error
                return False
            if not self._signal.wait(timeout_s):
                raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s")
        return True

    def next_batch(self, max_messages: int) -> GuaranteedBatch | None:
        """Wait for messages and give those that came together, or None at the end."""
        while self.ready(None):
            with self._lock:
                if self._reader.advance():
                    return self._reader.take_batch(max_messages)
        return None

    def _look(self) -> bool:
        """Tell whether there is a row, without those of a bind that is over."""
        with self._lock:
            self._signal.clear()
            opened = self._reader.opened
            if opened is not None and opened.window is not self.binding.window:
                self._reader.skip()
            if not self._reader.advance():
                return False
            # Other readers may be waiting, and there may be more.
            self._signal.set()
            return True

    def _take_delivery(self) -> GuaranteedDelivery | None:
        while (delivery := self.binding.take_delivery()) is not None:
            if delivery.window is self.binding.window:
                delivery.settler = self
                return delivery
        return None

    # Settling.

    def accept_handed(self, *, is_next: bool = False) -> None:
        """Accept the last message of `receive` in this thread; at the end not while an exception is handled."""
        handed = getattr(self._own, "handed", None)
        self._own.handed = None
        if (
            handed is not None
            and self.is_auto
            and not handed.settled
            and (is_next or sys.exc_info()[0] is None)
        ):
            handed.accept()

    def receive(self, timeout_s: float | None) -> GuaranteedMessage | None:
        """Accept the last message of this thread, and give the next one, or None at the end."""
        self.accept_handed(is_next=True)
        message = self._own.handed = self.next(timeout_s)
        return message

    def settle(self, delivery: GuaranteedDelivery, start: int, stop: int, outcome: int) -> None:
        """Take the outcome of rows, see `angarium.client.protocol.messages.Settler`.

        Raises:
            InvalidRequestError: this is a browser, which settles nothing (INVALID_ARGUMENT).
        """
        self.binding.check_settling()
        with self._lock:
            fresh = delivery.mark(start, stop)
        ranges = tuple(one for first, last in fresh for one in delivery.ranges(first, last))
        if ranges:
            self._tell(partial(self.binding.record, delivery.window, outcome, ranges))

    def _release(self, window: FlowWindow, messages: int, size_bytes: int) -> None:
        self._tell(partial(self.binding.release, window, messages, size_bytes))

    def _tell(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self._is_told:
            self._is_told = True
            self._client._post(self._carry_out)

    def _carry_out(self) -> None:
        """Tell the flow everything that is queued; runs in the client's thread."""
        self._is_told = False
        while self._queue:
            self._queue.popleft()()

    # The end.

    def close(self, timeout_s: float | None = None) -> None:
        """See `Flow.close`."""
        self.accept_handed()
        try:
            self._client._call(self._close(timeout_s))
        finally:
            with self._lock:
                self._reader.skip()
            self._signal.set()
            self._client._forget_flow(self)

    async def _close(self, timeout_s: float | None) -> None:
        self._carry_out()
        await self.binding.close(timeout_s)

    def abandon_soon(self) -> None:
        """Close a flow that the application dropped; may be called in any thread, from a finalizer."""
        with contextlib.suppress(
            errors.ConnectionLostError
        ):  # the child of a fork, whose flow is the parent's
            self._client._post(self._abandon)

    def _abandon(self) -> None:
        self._carry_out()
        self.binding.abandon()
        self._client._forget_flow(self)

    def join(self, timeout_s: float) -> None:
        """Wait for the callbacks that are running; the flow has ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _serve(self, callback: MessageCallback) -> None:
        try:
            while (message := self.next(None)) is not None:
                try:
                    callback(message)
                except Exception:
                    with self._lock:
                        self.binding.callback_errors += 1
                    _logger.exception("the callback of %s raised", self.binding)
                    if self.is_auto and not message.settled:
                        message.fail()
                else:
                    if self.is_auto and not message.settled:
                        message.accept()
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self.binding, error)


class Flow:
    """Messages of one endpoint; read by any number of threads, each message by one of them.

    Read it with one of: `for message in flow`, `for batch in flow.batches()`, `receive`, or give a callback to
    `Client.consume`. It is a context manager, which closes it. A flow without a callback that is not referenced any
    more is closed by Python's garbage collection, with a `ResourceWarning` and a warning in the log.
    """

    def __init__(self, desk: Desk) -> None:
        """Read at a desk; only `Client.consume` and `Client.browse` make flows."""
        self._desk = desk

    # What everybody may look at; see `angarium.client.consuming.flow.Flow`.

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self._desk.binding.name

    @property
    def topic(self) -> str:
        """The topic by which a queue is published to; what `reply_to` says if replies are to come here."""
        return self._desk.binding.topic

    @property
    def active(self) -> bool:
        """Whether messages come: an exclusive endpoint has one active flow, the others stand by."""
        return self._desk.binding.active

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of a partitioned queue that this flow has now."""
        return self._desk.binding.partitions

    @property
    def access_type(self) -> str:
        """`exclusive` or `non-exclusive`."""
        return self._desk.binding.access_type

    @property
    def closed(self) -> bool:
        """Whether the flow is over."""
        return self._desk.binding.closed

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out."""
        return self._desk.buffered

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, or settled and not told, is of this moment."""
        return {**self._desk.binding.stats, "buffered_messages": self.buffered}

    # Reading.

    def __iter__(self) -> Iterator[GuaranteedMessage]:
        """Give messages until the flow is closed.

        With `ack="auto"` a message is accepted when the next one is asked for, unless it was settled.

        Raises:
            AngariumError: why the flow ended, if it was not closed here.
        """
        desk = self._desk
        while (message := desk.next(None)) is not None:
            yield message
            if desk.is_auto and not message.settled:
                message.accept()

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[GuaranteedBatch]:
        """Give messages as they came, together; the fastest way to read.

        With `ack="auto"` those of a batch that are not settled are accepted when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the flow ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"max_messages is {max_messages}")
        while (batch := self._desk.next_batch(max_messages)) is not None:
            yield batch
            if self._desk.is_auto:
                batch.accept()

    def receive(self, timeout_s: float | None = None) -> GuaranteedMessage:
        """Give the next message, waiting so many seconds for it, or for ever.

        With `ack="auto"` a message is accepted by the next call of the same thread, or when this thread closes the
        flow; not when it is closed while an exception is handled: then the message comes again. `with message:` says
        it message by message.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            AngariumError: the flow has ended: why, or CLIENT_CLOSED.
        """
        message = self._desk.receive(timeout_s)
        if message is None:
            raise errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed")
        return message

    # Settling.

    def accept(self, messages: Settleable) -> None:
        """Accept a message, a batch, or any messages: they were processed, and the node deletes them."""
        settle_all(messages, wire.OUTCOME_ACCEPTED)

    def fail(self, messages: Settleable) -> None:
        """Fail a message, a batch, or any messages: they come again, within the endpoint's limits."""
        settle_all(messages, wire.OUTCOME_FAILED)

    def reject(self, messages: Settleable) -> None:
        """Reject a message, a batch, or any messages: they go to the dead message queue, or are deleted."""
        settle_all(messages, wire.OUTCOME_REJECTED)

    # The end.

    def close(self, timeout_s: float | None = None) -> None:
        """Report the outcomes that are known, end the flow, and wait until the node took note.

        What is not settled is delivered again, to this client or another. With `ack="auto"` the last message of
        `receive` in this thread is accepted first, unless an exception is being handled. Nothing happens the second
        time.
        """
        self._desk.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._desk.binding)

    def __repr__(self) -> str:
        return repr(self._desk.binding)

    def __del__(self) -> None:
        desk = self._desk
        if not desk.binding.closed and not desk.has_callback:
            desk.abandon_soon()
            warnings.warn(f"{self} was not closed", ResourceWarning, stacklevel=2, source=self)
