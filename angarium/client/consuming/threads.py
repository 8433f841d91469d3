"""Flows for threads: deliveries cross from the client's thread whole, outcomes cross back together.

Readers take deliveries of an `angarium.client.consuming.flow.Flow` and hand their rows out. What they say of
messages, and the credit of what was handed out, is queued, and the client's thread takes everything that is
queued at once. `angarium.blocking` makes these flows.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from angarium import errors, wire
from angarium.client.consuming.flow import BATCH_MESSAGES
from angarium.client.consuming.flow_buffer import FlowReader
from angarium.client.consuming.messages import GuaranteedBatch, GuaranteedDelivery, GuaranteedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType

    from angarium.client.consuming import flow as asynchronous
    from angarium.client.consuming.flow_window import FlowWindow
    from angarium.client.consuming.messages import Settleable

#: Called with each message, in a thread of the flow's own.
MessageCallback: TypeAlias = "Callable[[GuaranteedMessage], None]"

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """What a flow needs of its client."""

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the client's thread and wait for it."""

    def post(self, work: Callable[[], None]) -> None:
        """Run something in the client's thread soon."""

    def forget_flow(self, flow: Flow) -> None:
        """Take note that a flow has ended."""


class Flow:
    """Messages of one endpoint; read by any number of threads, each message by one of them.

    Read it with one of: `for message in flow`, `for batch in flow.batches()`, `receive`, or give a callback to
    `Client.consume`. It is a context manager, which closes it.
    """

    def __init__(
        self, client: Owner, inner: asynchronous.Flow, callback: MessageCallback | None, *, is_auto: bool
    ) -> None:
        """Belong to a client; only `Client.consume` and `Client.browse` make flows."""
        self._client = client
        self._inner = inner
        self._is_auto = is_auto
        #: Held while rows are handed out or settled.
        self._lock = threading.Lock()
        #: Set when there may be something to read.
        self._signal = threading.Event()
        self._reader = FlowReader(inner.options.window, self._take_delivery, self._release)
        #: What the client's thread is to do: record outcomes, give credit back.
        self._queue: deque[Callable[[], None]] = deque()
        #: Whether the client's thread will look into the queue.
        self._is_told = False
        self._handed: GuaranteedMessage | None = None
        #: What callbacks raised, counted.
        self.callback_errors = 0
        self._thread: threading.Thread | None = None
        inner.on_ready = self._signal.set
        if callback is not None:
            self._thread = threading.Thread(
                target=self._serve, args=(callback,), daemon=True, name="angarium callback"
            )
            self._thread.start()

    # What everybody may look at; see `angarium.client.consuming.flow.Flow`.

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self._inner.name

    @property
    def topic(self) -> str:
        """The topic by which a queue is published to; what `reply_to` says if replies are to come here."""
        return self._inner.topic

    @property
    def active(self) -> bool:
        """Whether messages come: an exclusive endpoint has one active flow, the others stand by."""
        return self._inner.active

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of a partitioned queue that this flow has now."""
        return self._inner.partitions

    @property
    def access_type(self) -> str:
        """`exclusive` or `non-exclusive`."""
        return self._inner.access_type

    @property
    def closed(self) -> bool:
        """Whether the flow is over."""
        return self._inner.closed

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out."""
        return self._reader.left + self._inner.buffered

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, or settled and not told, is of this moment."""
        return {
            **self._inner.stats,
            "callback_errors": self.callback_errors,
            "buffered_messages": self.buffered,
        }

    # Reading.

    def __iter__(self) -> Iterator[GuaranteedMessage]:
        """Give messages until the flow is closed.

        With `ack="auto"` a message is accepted when the next one is asked for, unless it was settled.

        Raises:
            AngariumError: why the flow ended, if it was not closed here.
        """
        while (message := self._next(None)) is not None:
            yield message
            if self._is_auto and not message.settled:
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
        while self._ready(None):
            with self._lock:
                batch = self._reader.take_batch(max_messages) if self._reader.advance() else None
            if batch is not None:
                yield batch
                if self._is_auto:
                    batch.accept()

    def receive(self, timeout_s: float | None = None) -> GuaranteedMessage:
        """Give the next message, waiting so many seconds for it, or for ever.

        With `ack="auto"` a message is accepted by the next call, unless it was settled.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            AngariumError: the flow has ended: why, or CLIENT_CLOSED.
        """
        handed, self._handed = self._handed, None
        if handed is not None and self._is_auto and not handed.settled:
            handed.accept()
        message = self._handed = self._next(timeout_s)
        if message is None:
            raise errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed")
        return message

    def _next(self, timeout_s: float | None) -> GuaranteedMessage | None:
        while self._ready(timeout_s):
            with self._lock:
                if self._reader.advance():
                    return GuaranteedMessage(*self._reader.take())
        return None

    def _ready(self, timeout_s: float | None) -> bool:
        """Wait until there may be a row; give False at the end.

        Raises:
            TimeoutExpiredError: there is none in time.
        """
        while not self._look():
            is_ended, error = self._inner.outcome
            if is_ended:
                self._signal.set()
                if error is not None:
                    raise error
                return False
            if not self._signal.wait(timeout_s):
                raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s")
        return True

    def _look(self) -> bool:
        """Tell whether there is a row, without those of a bind that is over."""
        with self._lock:
            self._signal.clear()
            opened = self._reader.opened
            if opened is not None and opened.window is not self._inner.window:
                self._reader.skip()
            if not self._reader.advance():
                return False
            # Other readers may be waiting, and there may be more.
            self._signal.set()
            return True

    def _take_delivery(self) -> GuaranteedDelivery | None:
        while (delivery := self._inner.take_delivery()) is not None:
            if delivery.window is self._inner.window:
                delivery.settler = self
                return delivery
        return None

    # Settling.

    def accept(self, messages: Settleable) -> None:
        """Accept a message, a batch, or any messages: they were processed, and the node deletes them."""
        self._settle_all(messages, wire.OUTCOME_ACCEPTED)

    def fail(self, messages: Settleable) -> None:
        """Fail a message, a batch, or any messages: they come again, within the endpoint's limits."""
        self._settle_all(messages, wire.OUTCOME_FAILED)

    def reject(self, messages: Settleable) -> None:
        """Reject a message, a batch, or any messages: they go to the dead message queue, or are deleted."""
        self._settle_all(messages, wire.OUTCOME_REJECTED)

    def _settle_all(self, messages: Settleable, outcome: int) -> None:
        if isinstance(messages, (GuaranteedBatch, GuaranteedMessage)):
            messages.settle(outcome)
        else:
            for message in messages:
                message.settle(outcome)

    def settle(self, delivery: GuaranteedDelivery, start: int, stop: int, outcome: int) -> None:
        """Take the outcome of rows, see `angarium.client.consuming.messages.Settler`.

        Raises:
            InvalidRequestError: this is a browser, which settles nothing (INVALID_ARGUMENT).
        """
        self._inner.check_settling()
        with self._lock:
            fresh = delivery.mark(start, stop)
        ranges = tuple(one for first, last in fresh for one in delivery.ranges(first, last))
        if ranges:
            self._tell(partial(self._inner.record, delivery.window, outcome, ranges))

    def _release(self, window: FlowWindow, messages: int, size_bytes: int) -> None:
        self._tell(partial(self._inner.release, window, messages, size_bytes))

    def _tell(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self._is_told:
            self._is_told = True
            self._client.post(self._carry_out)

    def _carry_out(self) -> None:
        """Tell the flow everything that is queued; runs in the client's thread."""
        self._is_told = False
        while self._queue:
            self._queue.popleft()()

    # The end.

    def close(self, timeout_s: float | None = None) -> None:
        """Tell the outcomes that are known, end the flow, and wait until the node took note.

        What is not settled is delivered again, to this client or another. Nothing happens the second time.
        """
        try:
            self._client.call(self._close(timeout_s))
        finally:
            with self._lock:
                self._reader.skip()
            self._signal.set()
            self._client.forget_flow(self)

    async def _close(self, timeout_s: float | None) -> None:
        self._carry_out()
        await self._inner.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)

    def join(self, timeout_s: float) -> None:
        """Wait for the callback that is running; the flow has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _serve(self, callback: MessageCallback) -> None:
        try:
            while (message := self._next(None)) is not None:
                try:
                    callback(message)
                except Exception:
                    self.callback_errors += 1
                    _logger.exception("the callback of %s raised", self)
                    if self._is_auto and not message.settled:
                        message.fail()
                else:
                    if self._is_auto and not message.settled:
                        message.accept()
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self, error)
