"""Consuming guaranteed messages: a flow, bound to one queue or topic endpoint.

    async with client.consume("orders") as flow:
        async for message in flow:
            ...                      # accepted when the loop asks for the next one

A `Flow` is what the application holds of an `angarium.client.consuming.binding.Binding`, which does the work. When
the application drops it without closing it, its finalizer closes the binding, so that the queue is not held.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import TYPE_CHECKING, Final

from angarium import errors, tracing, wire
from angarium.client.connection.opening import Closing
from angarium.client.protocol.messages import GuaranteedBatch, GuaranteedMessage, settle_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from angarium.client.consuming.binding import Binding
    from angarium.client.protocol.messages import Settleable

#: Messages in one batch of `Flow.batches` unless asked otherwise.
BATCH_MESSAGES: Final = 10_000


class FlowView:
    """What everybody may look at of a flow, and what is said of its messages; in any thread."""

    _binding: Binding

    @property
    def _read_ahead(self) -> int:
        """Messages that a reader took from the binding and did not hand out."""
        return 0

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self._binding.name

    @property
    def topic(self) -> str:
        """The topic by which a queue is published to; what `reply_to` says if replies are to come here."""
        return wire.QUEUE_TOPIC_PREFIX + self.name

    @property
    def active(self) -> bool:
        """Whether messages come: an exclusive endpoint has one active flow, the others stand by (event `standby`)."""
        return self._binding.active

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of a partitioned queue that this flow has now."""
        return self._binding.partitions

    @property
    def access_type(self) -> str:
        """`exclusive` or `non-exclusive`."""
        return self._binding.access_type

    @property
    def closed(self) -> bool:
        """Whether the flow is over."""
        return self._binding.closed

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out."""
        return self._binding.buffered + self._read_ahead

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, or settled and not reported, is of this moment."""
        return {**self._binding.stats, "buffered_messages": self.buffered}

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

    def __str__(self) -> str:
        return str(self._binding)

    def __repr__(self) -> str:
        return repr(self._binding)


class Flow(FlowView, Closing):
    """Messages of one endpoint; `Client.consume` and `Client.browse` bind it.

    Read it with one of: `async for message in flow`, `async for batch in flow.batches()`, `receive`, or give a
    callback to `Client.consume`. It is an async context manager, which closes it.

    Close every flow: its queue keeps for it what it has not settled, and an exclusive queue keeps out the others. A
    flow without a callback that is not referenced any more (a loop `async for message in await client.consume(..)` was
    left by an exception) is closed by Python's garbage collection, with a `ResourceWarning` and a warning in the log.
    """

    def __init__(self, binding: Binding) -> None:
        """Read a binding; applications call `Client.consume`."""
        self._binding = binding

    # Reading.

    async def __aiter__(self) -> AsyncIterator[GuaranteedMessage]:
        """Give messages until the flow is closed, or `max_messages` were given.

        With `ack="auto"` a message is accepted when the next one is asked for, unless it was settled. A loop
        that is left by `break` or an exception does not accept the message that it had.

        Raises:
            AngariumError: why the flow ended, if it was not closed here.
        """
        binding = self._binding
        reader, is_auto = binding.reader, binding.is_auto
        while await binding.ready():
            tracer = tracing.active
            while reader.advance():
                delivery, at = reader.take()
                message = GuaranteedMessage(delivery, at)
                if tracer is not None and tracer.is_on:
                    tracer.receive((message,), binding.place)
                yield message
                if is_auto and not delivery.settled[at]:
                    binding.settle(delivery, at, at + 1, wire.OUTCOME_ACCEPTED)

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[GuaranteedBatch]:
        """Give messages as they came, together; the fastest way to read.

        With `ack="auto"` those of a batch that are not settled are accepted when the next one is asked for.

        Raises:
            InvalidRequestError: `max_messages` is below 1 (INVALID_ARGUMENT).
            AngariumError: why the flow ended, if it was not closed here.
        """
        if max_messages < 1:
            raise errors.invalid(f"max_messages is {max_messages}")
        binding = self._binding
        while await binding.ready():
            while binding.reader.advance():
                batch = binding.reader.take_batch(max_messages)
                if tracing.active is not None:
                    tracing.active.receive(batch, binding.place)
                yield batch
                if binding.is_auto:
                    batch.accept()

    async def receive(self, timeout_s: float | None = None) -> GuaranteedMessage:
        """Give the next message, waiting so many seconds for it, or for ever.

        With `ack="auto"` a message is accepted by the next call, or when the flow is closed; not when it is closed
        while an exception is handled: then the message comes again. `async with message:` says it message by message.

        Raises:
            TimeoutExpiredError: none came in time, or `max_messages` were given (TIMEOUT).
            AngariumError: the flow has ended: why, or CLIENT_CLOSED.
        """
        binding = self._binding
        handed, binding.handed = binding.handed, None
        if handed is not None and binding.is_auto and not handed.settled:
            handed.accept()
        asked_ns = 0 if tracing.active is None else time.time_ns()
        try:
            async with asyncio.timeout(timeout_s):
                is_ready = await binding.ready()
        except errors.AngariumError:
            raise
        except TimeoutError:
            raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s") from None
        if not is_ready:
            raise binding.nothing_left()
        message = binding.handed = GuaranteedMessage(*binding.reader.take())
        if tracing.active is not None:
            tracing.active.receive((message,), binding.place, asked_ns)
        return message

    # The end.

    async def close(self, timeout_s: float | None = None) -> None:
        """Report the outcomes that are known, end the flow, and wait until the node took note.

        What is not settled is delivered again, to this client or another. With `ack="auto"` the last message of
        `receive` is accepted first, unless an exception is being handled. Nothing happens the second time.
        """
        self._binding.accept_handed()
        await self._binding.close(timeout_s)

    def __del__(self) -> None:
        binding = self._binding
        if not binding.closed and binding.options.callback is None and binding.abandon_soon():
            warnings.warn(f"{self} was not closed", ResourceWarning, stacklevel=2, source=self)
