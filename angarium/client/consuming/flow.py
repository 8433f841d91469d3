"""Consuming guaranteed messages: a flow, bound to one queue or topic endpoint.

    flow = await client.consume("orders")
    async for message in flow:
        ...                          # accepted when the loop asks for the next one

Two things are told to the node, apart from each other (facts section 10): *credit*, how much may come, renewed
as the application takes messages, and the *outcome* of each message, which the application says, or the flow
with `ack="auto"`. Outcomes are gathered: accepted messages are told in ranges when 60 % of a window is together
or after a few milliseconds, failed and rejected ones at the end of the step.

When the connection is lost, or the endpoint's home is away, the flow binds again by itself. What came through an
earlier bind is the node's again and comes again, flagged as redelivered: unread messages of it are thrown away
here, and settling one that the application still holds does nothing (`late_settles` counts it).

`angarium.client.guaranteed.calls` owns the flows of a client and tells them what happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from angarium import errors, wire
from angarium.client.consuming.flow_buffer import Callbacks, FlowBuffer
from angarium.client.consuming.flow_window import UNLIMITED, FlowWindow
from angarium.client.consuming.messages import (
    GuaranteedBatch,
    GuaranteedDelivery,
    GuaranteedMessage,
    Range,
    Settleable,
    Settler,
)
from angarium.client.consuming.outcomes import Outcomes
from angarium.client.guaranteed.operations import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from angarium.client.connection import Connection
    from angarium.client.consuming.flow_options import FlowOptions
    from angarium.client.consuming.pace import Pace
    from angarium.client.events import Indicated
    from angarium.client.guaranteed.answers import FlowBound
    from angarium.client.guaranteed.operations import Operations

#: Called with an event of the flow: kind, code, detail.
Emit: TypeAlias = Callable[[str, int, str], None]

#: Messages in one batch of `Flow.batches` unless asked otherwise.
BATCH_MESSAGES: Final = 10_000
#: Ends of a flow, and refusals to bind again, that pass: the endpoint is switched off (an operator will switch
#: it on), an old bind of ours may still count, the home or the controller is being replaced. All others are for
#: good: the endpoint is gone, this client may not use it, selector or topic do not fit.
_PASSING: Final = frozenset(
    {
        0,
        errors.ALREADY_BOUND,
        errors.TIMEOUT,
        errors.INTERNAL,
        errors.SHUTTING_DOWN,
        errors.SHARD_UNAVAILABLE,
        errors.ENDPOINT_SHUTDOWN,
        errors.MAX_BIND_COUNT_EXCEEDED,
        errors.TOO_MANY_FLOWS,
        errors.HOME_NOT_READY,
        errors.CONTROLLER_UNAVAILABLE,
    }
)

_logger = logging.getLogger(__name__)


def is_passing(code: int) -> bool:
    """Tell whether a flow that was ended or refused with this code is worth another try."""
    return code in _PASSING


class Flow:
    """Messages of one endpoint; `Client.consume` and `Client.browse` bind it.

    Read it with one of: `async for message in flow`, `async for batch in flow.batches()`, `receive`, or give a
    callback to `Client.consume`. It is an async context manager, which closes it.
    """

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        options: FlowOptions,
        registry: dict[FlowWindow, Flow],
        pace: Pace,
        emit: Emit,
    ) -> None:
        """Be ready to bind; applications call `Client.consume`."""
        self._connection = connection
        self._operations = operations
        self._options = options
        #: The flows of the client by their windows; this one is in it while it is in use.
        self._registry = registry
        self._pace = pace
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._name = options.name
        self._is_active = False
        self._partitions: tuple[int, ...] = ()
        self._access_type = ""
        #: Of the bind that there is, or is tried.
        self._window = FlowWindow(options.window, options.window_bytes)
        #: Messages that were taken through earlier binds.
        self._taken_before = 0
        self._was_bound = False
        self._keeper = Keeper(operations, self._bind, is_passing, self.fail_for_good)
        #: What is unread; all of it came through `_window`.
        self._buffer = FlowBuffer(options.window, self.release)
        self._reader = self._buffer.reader
        #: Message of `receive` that the next call accepts.
        self._handed: GuaranteedMessage | None = None
        self._outcomes = Outcomes(connection, pace, self._window, options.ack_delay_s)
        self._outcomes.threshold = options.threshold(None)
        #: Who takes the outcome of messages; the blocking client puts itself here.
        self.settler: Settler = self
        #: Called instead of waking readers; the blocking client's door.
        self.on_ready: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._is_ended = False
        #: Whether nothing more will come: all of a range is here.
        self._has_all = False
        self._error: errors.AngariumError | None = None
        self._counters = dict.fromkeys(_COUNTERS, 0)
        callback, is_auto = options.callback, options.is_auto
        self._callbacks = callback and Callbacks(callback, self._reader, self._ready, is_auto=is_auto)

    # What everybody may look at.

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self._name

    @property
    def topic(self) -> str:
        """The topic by which a queue is published to; what `reply_to` says if replies are to come here."""
        return wire.QUEUE_TOPIC_PREFIX + self._name

    @property
    def active(self) -> bool:
        """Whether messages come: an exclusive endpoint has one active flow, the others stand by."""
        return self._is_active

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of a partitioned queue that this flow has now."""
        return self._partitions

    @property
    def access_type(self) -> str:
        """`exclusive` or `non-exclusive`."""
        return self._access_type

    @property
    def closed(self) -> bool:
        """Whether the flow is over."""
        return self._is_ended

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out."""
        return len(self._buffer)

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, or settled and not told, is of this moment."""
        return {
            **self._counters,
            **self._outcomes.counters,
            "callback_errors": self._callbacks.errors if self._callbacks else 0,
            "buffered_messages": self.buffered,
            "untold_messages": self._outcomes.untold,
        }

    # Reading.

    async def __aiter__(self) -> AsyncIterator[GuaranteedMessage]:
        """Give messages until the flow is closed.

        With `ack="auto"` a message is accepted when the next one is asked for, unless it was settled. A loop
        that is left by `break` or an exception does not accept the message that it had.

        Raises:
            AngariumError: why the flow ended, if it was not closed here.
        """
        while await self._ready():
            while self._reader.advance():
                delivery, at = self._reader.take()
                yield GuaranteedMessage(delivery, at)
                if self._options.is_auto and not delivery.settled[at]:
                    self.settle(delivery, at, at + 1, wire.OUTCOME_ACCEPTED)

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[GuaranteedBatch]:
        """Give messages as they came, together; the fastest way to read.

        With `ack="auto"` those of a batch that are not settled are accepted when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the flow ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"max_messages is {max_messages}")
        while await self._ready():
            while self._reader.advance():
                batch = self._reader.take_batch(max_messages)
                yield batch
                if self._options.is_auto:
                    batch.accept()

    async def receive(self, timeout_s: float | None = None) -> GuaranteedMessage:
        """Give the next message, waiting so many seconds for it, or for ever.

        With `ack="auto"` a message is accepted by the next call, unless it was settled.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            AngariumError: the flow has ended: why, or CLIENT_CLOSED.
        """
        handed, self._handed = self._handed, None
        if handed is not None and self._options.is_auto and not handed.settled:
            handed.accept()
        try:
            async with asyncio.timeout(timeout_s):
                is_ready = await self._ready()
        except TimeoutError:
            raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s") from None
        if not is_ready:
            raise errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed")
        self._handed = GuaranteedMessage(*self._reader.take())
        return self._handed

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
        """Take the outcome of rows, see `Settler`.

        Raises:
            InvalidRequestError: this is a browser, which settles nothing (INVALID_ARGUMENT).
        """
        self.check_settling()
        if stop - start == 1:
            if not delivery.settled[start]:
                delivery.settled[start] = 1
                position = delivery.positions[start]
                self.record(delivery.window, outcome, ((delivery.partition, position, position),))
            return
        for first, last in delivery.mark(start, stop):
            self.record(delivery.window, outcome, delivery.ranges(first, last))

    def check_settling(self) -> None:
        """Return if messages can be settled.

        Raises:
            InvalidRequestError: this is a browser, which settles nothing (INVALID_ARGUMENT).
        """
        if self._options.browse:
            raise errors.error_for(errors.INVALID_ARGUMENT, "a browser settles nothing; consume instead")

    def record(self, window: FlowWindow, outcome: int, ranges: Iterable[Range]) -> None:
        """Tell the node the outcome of positions soon; those of an earlier bind are only counted."""
        self._outcomes.record(window, outcome, ranges)

    def tell(self) -> None:
        """Tell the node every outcome that it was not told."""
        self._outcomes.tell()

    # The end.

    async def close(self, timeout_s: float | None = None) -> None:
        """Tell the outcomes that are known, end the flow, and wait until the node took note.

        What is not settled is delivered again, to this client or another. Nothing happens the second time.
        """
        if self._is_ended:
            return
        self.tell()
        flow = self._window.flow
        self.end(None)
        if not flow:
            return
        try:
            async with asyncio.timeout(self._options.timeout_s if timeout_s is None else timeout_s):
                await self._operations.ask(lambda session: session.guaranteed.unbind(flow))
        except (TimeoutError, errors.AngariumError) as error:
            _logger.debug("%s ended without an answer: %s", self, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Flow({self._name!r})"

    # What the client calls.

    async def open(self) -> None:
        """Bind for the first time.

        Raises:
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses.
        """
        try:
            await self._keeper.open(self._options.timeout_s)
        except BaseException:
            flow = self._window.flow
            self.end(None)
            self._let_go(flow)
            raise
        self._was_bound = True
        if not self._window.flow and not self._has_all:
            self._keeper.start()

    def connected(self) -> None:
        """Bind again on a new connection."""
        if self._was_bound and not self._is_ended:
            self._keeper.start()

    def lost(self) -> None:
        """Take note that the bind is over: what came through it is the node's again."""
        self._counters["dropped_messages"] += self._buffer.clear()
        self._partitions = ()
        self._outcomes.tell()
        self._set_active(active=False)

    def arrived(self, deliveries: list[GuaranteedDelivery]) -> None:
        """Buffer what came; `wake` follows when the loop is done with what came."""
        for delivery in deliveries:
            delivery.settler = self.settler
            self._counters["received_messages"] += len(delivery.rows)
            if delivery.counts is not None:
                self._counters["redelivered_messages"] += len(delivery.rows) - delivery.counts.count(0)
        self._buffer.push(deliveries)

    def indicated(self, event: Indicated) -> None:
        """Act on what the node says of the flow."""
        if event.event == wire.FLOW_PARTITIONS:
            self._set_partitions(event.partitions)
        elif event.event == wire.FLOW_SETTLE_REFUSED:
            self._counters["refused_settles"] += 1
            self._emit("settle_refused", event.code, f"{self}: {event.detail}")
        elif event.event == wire.FLOW_CLOSED:
            self.lost()
            if is_passing(event.code):
                self._emit("flow_lost", event.code, f"{self}: {event.detail}")
                self._keeper.start()
            else:
                self.fail_for_good(errors.error_for(event.code, event.detail))
        else:
            self._set_active(active=event.event == wire.FLOW_ACTIVE)

    def wake(self) -> None:
        """Tell whoever reads that there is something to read, or nothing any more."""
        if self.on_ready is not None:
            self.on_ready()
        else:
            if self._callbacks is not None:
                self._callbacks.wake()
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def fail_for_good(self, error: errors.AngariumError) -> None:
        """The node does not let this flow go on: let its readers know."""
        if not self._is_ended:
            self._emit("flow_failed", error.code, f"{self}: {error.detail}")
            flow = self._window.flow
            self.end(error)
            self._let_go(flow)

    def end(self, error: errors.AngariumError | None) -> None:
        """Let nothing more come; what is buffered is thrown away."""
        if self._is_ended:
            return
        self._is_ended = True
        self._error = error
        self._keeper.stop()
        self._registry.pop(self._window, None)
        self.lost()
        self.wake()

    @property
    def outcome(self) -> tuple[bool, errors.AngariumError | None]:
        """Whether it has ended, and why."""
        return self._is_ended, self._error

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that awaits an async callback."""
        return self._callbacks.task if self._callbacks else None

    @property
    def options(self) -> FlowOptions:
        """What was asked for."""
        return self._options

    # What the blocking client calls besides.

    @property
    def window(self) -> FlowWindow:
        """The window of the bind that there is, or is tried."""
        return self._window

    def take_delivery(self) -> GuaranteedDelivery | None:
        """Give the oldest delivery to be read elsewhere; safe from any thread."""
        return self._buffer.take_delivery()

    def release(self, window: FlowWindow, messages: int, size_bytes: int) -> None:
        """Let the node send again what was taken of a bind."""
        window.take(messages, size_bytes)
        self._renew()

    def _renew(self) -> None:
        """Ask for more if there is room for it, now if the pace allows it."""
        session = self._connection.session
        if self._is_ended or session is None or not session.is_open or not self._window.can_renew():
            return  # A flow that ends asks for nothing more.
        if not self._pace.take():
            self._pace.wait(self._renew)
        elif session.guaranteed.renew(self._window):
            self._connection.transmit()

    # Binding.

    async def _bind(self) -> None:
        """Bind on the session that there is.

        Raises:
            AngariumError: the node refuses.
        """
        options = self._options
        self._registry.pop(self._window, None)
        self._taken_before += self._window.taken_messages
        limit = UNLIMITED
        if options.max_messages is not None:
            limit = max(options.max_messages - self._taken_before, 0)
        window = self._window = self._outcomes.window = FlowWindow(
            options.window, options.window_bytes, limit
        )
        self._registry[window] = self
        arguments = options.arguments(self._name)
        await self._operations.ask(
            lambda session: session.guaranteed.bind(window, arguments, self._bound), self._unbind_late
        )

    def _bound(self, bound: FlowBound) -> None:
        """Take over what the node says of the flow; it comes before anything that happens to it."""
        self._name = bound.name
        self._partitions = tuple(bound.partitions)
        self._access_type = bound.access_type
        self._outcomes.threshold = self._options.threshold(bound.max_unacked)
        self._set_active(active=bound.active)

    def _unbind_late(self, bound: FlowBound) -> None:
        """Unbind what was bound for a caller that did not wait."""
        self._let_go(bound.flow)

    def _let_go(self, flow: int) -> None:
        """Unbind without waiting, if there is something bound."""
        session = self._connection.session
        if flow and session is not None and session.can_ask():
            session.guaranteed.unbind(flow)
            self._connection.transmit()

    def _set_active(self, *, active: bool) -> None:
        if active != self._is_active:
            self._is_active = active
            if self._options.on_active is not None:
                try:
                    self._options.on_active(active)
                except Exception:
                    _logger.exception("on_active of %s raised", self)

    def _set_partitions(self, partitions: list[int]) -> None:
        """Throw away what is unread of partitions that another flow has now."""
        self._partitions = tuple(partitions)
        dropped = self._buffer.keep_only(self._partitions)
        self._counters["dropped_messages"] += dropped
        self._window.limit = min(self._window.limit + dropped, UNLIMITED)
        self.release(self._window, 0, 0)

    async def _ready(self) -> bool:
        """Wait for rows; give False at the end."""
        while not self._reader.advance():
            if self._is_ended or self._has_all:
                if self._error is not None:
                    raise self._error
                return False
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._window.validate()
        self._outcomes.validate()
        self._buffer.validate(self._window)
        assert not self._is_ended or not self.buffered
        assert (self._registry.get(self._window) is self) == (not self._is_ended) or not self._was_bound


_COUNTERS: Final = ("received_messages", "redelivered_messages", "refused_settles", "dropped_messages")
