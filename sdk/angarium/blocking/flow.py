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
import time
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium import errors, tracing
from angarium.blocking.portal import CallbackThreads, Closing, await_signal
from angarium.client.connection.faults import FAULTS
from angarium.client.consuming.flow import BATCH_MESSAGES, FlowView
from angarium.client.consuming.flow_buffer import FlowReader
from angarium.client.protocol.messages import (
    GuaranteedBatch,
    GuaranteedDelivery,
    GuaranteedMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.blocking.portal import Portal
    from angarium.client.consuming.binding import Binding
    from angarium.client.protocol.flow_window import FlowWindow

#: Called with each message, in a thread of the flow's own.
MessageCallback: TypeAlias = "Callable[[GuaranteedMessage], None]"

_logger = logging.getLogger(__name__)


class SharedReader:
    """Hands the messages of a binding out to threads, and takes what they say of them.

    It knows nothing of the `Flow` that the application holds, which may be dropped.
    """

    def __init__(
        self,
        portal: Portal,
        binding: Binding,
        registry: dict[SharedReader, None],
        callback: MessageCallback | None,
        concurrency: int,
    ) -> None:
        """Read a binding of the portal's thread; it is in the registry while it is in use."""
        self.binding: Final = binding
        self.is_auto: Final = binding.is_auto
        #: Whether the application need not hold the flow: its callback is called in any case.
        self.has_callback: Final = callback is not None
        self._portal = portal
        self._registry = registry
        registry[self] = None
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
        binding.readers.append(self._reader)
        binding.guard = self._lock
        self.threads: Final = CallbackThreads(self._serve, callback, concurrency)

    @property
    def left(self) -> int:
        """Messages that were taken from the binding and not handed out."""
        return self._reader.left

    # Reading.

    def next(self, timeout_s: float | None) -> GuaranteedMessage | None:
        """Wait for a message and give it, or None at the end.

        Raises:
            TimeoutExpiredError: there is none in time.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self.ready(timeout_s, until):
            with self._lock:
                if self._reader.advance():
                    return GuaranteedMessage(*self._reader.take())
        return None

    def ready(self, timeout_s: float | None = None, until: float | None = None) -> bool:
        """Wait until there may be a row, as `await_signal`; give False at the end.

        Raises:
            TimeoutExpiredError: there is none in time.
        """
        self._portal.check_process()
        while not self._look():
            is_ended, error = self.binding.outcome
            if is_ended or self.binding.is_served:
                self._signal.set()
                if error is not None:
                    raise error
                return False
            self._tell_queue()
            await_signal(self._signal, timeout_s, until)
        return True

    def next_batch(self, max_messages: int) -> GuaranteedBatch | None:
        """Wait for messages and give those that came together, or None at the end."""
        while self.ready():
            with self._lock:
                if self._reader.advance():
                    return self._reader.take_batch(max_messages)
        return None

    def _look(self) -> bool:
        """Tell whether there is a row, without those that are the node's again."""
        with self._lock:
            self._signal.clear()
            opened = self._reader.opened
            if opened is not None and self.binding.is_over(opened):
                self._reader.give_back()
                self._reader.drop()
            if not self._reader.advance():
                return False
            # Other readers may be waiting, and there may be more.
            self._signal.set()
            return True

    def _take_delivery(self) -> GuaranteedDelivery | None:
        while (delivery := self.binding.take_delivery()) is not None:
            if delivery.window is self.binding.window or self.binding.options.browse:
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
        if tracing.active is not None:
            self.binding.trace_settled(delivery, fresh, outcome)
        ranges = tuple(one for first, last in fresh for one in delivery.ranges(first, last))
        if ranges:
            self._tell(partial(self.binding.record, delivery.window, outcome, ranges))

    def _release(self, window: FlowWindow, messages: int, size_bytes: int) -> None:
        self._tell(partial(self.binding.release, window, messages, size_bytes))

    def _tell(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self._is_told:
            self._tell_queue()

    def _tell_queue(self) -> None:
        """Have the client's thread look into the queue, if there is anything in it and nobody has."""
        if self._queue and not self._is_told:
            self._is_told = True
            try:
                self._portal.post(self._carry_out)
            except BaseException:  # Ctrl+C, too: who settles or waits next tells of all that is queued.
                self._is_told = False
                raise

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
            self._portal.call(self._close(timeout_s))
        finally:
            with self._lock:
                self._reader.drop()
            self._signal.set()
            self._registry.pop(self, None)

    async def _close(self, timeout_s: float | None) -> None:
        self._carry_out()
        await self.binding.close(timeout_s)

    def abandon_soon(self) -> None:
        """Close a flow that the application dropped; may be called in any thread, from a finalizer."""
        with contextlib.suppress(
            errors.ConnectionLostError
        ):  # The child of a fork, whose flow is the parent's.
            self._portal.post(self._abandon)

    def _abandon(self) -> None:
        self._carry_out()
        self.binding.abandon()
        self._registry.pop(self, None)

    def _serve(self, callback: MessageCallback) -> None:
        try:
            while (message := self.next(None)) is not None:
                try:
                    if tracing.active is None:
                        callback(message)
                    else:
                        with tracing.active.process(message, self.binding.place):
                            callback(message)
                except FAULTS:
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


class Flow(FlowView, Closing):
    """Messages of one endpoint; read by any number of threads, each message by one of them.

    Read it with one of: `for message in flow`, `for batch in flow.batches()`, `receive`, or give a callback to
    `Client.consume`. It is a context manager, which closes it. A flow without a callback that is not referenced any
    more is closed by Python's garbage collection, with a `ResourceWarning` and a warning in the log.
    """

    def __init__(self, shared: SharedReader) -> None:
        """Read with others; only `Client.consume` and `Client.browse` make flows."""
        self._shared = shared
        self._binding = shared.binding

    @property
    def _read_ahead(self) -> int:
        return self._shared.left

    # Reading.

    def __iter__(self) -> Iterator[GuaranteedMessage]:
        """Give messages until the flow is closed, or `max_messages` were given.

        With `ack="auto"` a message is accepted when the next one is asked for, unless it was settled.

        Raises:
            AngariumError: why the flow ended, if it was not closed here.
        """
        shared = self._shared
        while (message := shared.next(None)) is not None:
            if tracing.active is not None:
                tracing.active.receive((message,), self._binding.place)
            yield message
            if shared.is_auto and not message.settled:
                message.accept()

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[GuaranteedBatch]:
        """Give messages as they came, together; the fastest way to read.

        With `ack="auto"` those of a batch that are not settled are accepted when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the flow ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.invalid(f"max_messages is {max_messages}")
        while (batch := self._shared.next_batch(max_messages)) is not None:
            if tracing.active is not None:
                tracing.active.receive(batch, self._binding.place)
            yield batch
            if self._shared.is_auto:
                batch.accept()

    def receive(self, timeout_s: float | None = None) -> GuaranteedMessage:
        """Give the next message, waiting so many seconds for it, or for ever.

        With `ack="auto"` a message is accepted by the next call of the same thread, or when this thread closes the
        flow; not when it is closed while an exception is handled: then the message comes again. `with message:` says
        it message by message.

        Raises:
            TimeoutExpiredError: none came in time, or `max_messages` were given (TIMEOUT).
            AngariumError: the flow has ended: why, or CLIENT_CLOSED.
        """
        asked_ns = 0 if tracing.active is None else time.time_ns()
        message = self._shared.receive(timeout_s)
        if message is None:
            raise self._binding.nothing_left()
        if tracing.active is not None:
            tracing.active.receive((message,), self._binding.place, asked_ns)
        return message

    # The end.

    def close(self, timeout_s: float | None = None) -> None:
        """Report the outcomes that are known, end the flow, and wait until the node took note.

        What is not settled is delivered again, to this client or another. With `ack="auto"` the last message of
        `receive` in this thread is accepted first, unless an exception is being handled. Nothing happens the second
        time.
        """
        self._shared.close(timeout_s)

    def __del__(self) -> None:
        shared = self._shared
        if not shared.binding.closed and not shared.has_callback:
            shared.abandon_soon()
            warnings.warn(f"{self} was not closed", ResourceWarning, stacklevel=2, source=self)
