"""A flow as the client sees it: kept bound to one endpoint, over connections; what comes is buffered for its readers.

Two things are reported to the node, apart from each other: *credit*, how much may come, renewed as the application
takes messages, and the *outcome* of each message, which the application says, or the reader with `ack="auto"`.
Outcomes are gathered: accepted messages are reported in ranges when 60 % of a window is together or after a few
milliseconds, failed and rejected ones at the end of the step.

When the connection is lost, or the endpoint's home is away, a binding binds again by itself. What came through an
earlier bind is the node's again and comes again, flagged as redelivered: unread messages of it are thrown away
here, and settling one that the application still holds does nothing (`late_settles` counts it).

`angarium.client.producers_and_flows` owns the bindings of a client and reports to them what happens.
`angarium.client.consuming.flow` and, for threads, `angarium.blocking.flow` read them. A binding knows
nothing of its readers, so a flow that the application dropped can be noticed and closed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium import errors, tracing, wire
from angarium.client.connection.operations import Opener
from angarium.client.consuming.flow_buffer import Callbacks, FlowBuffer
from angarium.client.consuming.outcomes import Outcomes
from angarium.client.protocol.flow_window import UNLIMITED, FlowWindow, is_passing
from angarium.client.protocol.messages import Settlement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium.client.connection.connection import Connection
    from angarium.client.connection.operations import Operations
    from angarium.client.consuming.flow_buffer import FlowReader, Unread
    from angarium.client.consuming.flow_options import FlowOptions
    from angarium.client.consuming.outcomes import Pace
    from angarium.client.protocol.answers import FlowBound
    from angarium.client.protocol.events import Indicated
    from angarium.client.protocol.messages import GuaranteedDelivery, GuaranteedMessage, Range, Settler

#: Called with an event of the flow: kind, code, detail.
Emit: TypeAlias = Callable[[str, int, str], None]

#: For whom a flow was dropped.
ADVICE: Final = (
    "what it had not accepted comes again; 'async with client.consume(..) as flow' closes it in time"
)

_logger = logging.getLogger(__name__)


class Binding:
    """Keeps one flow bound, buffers what came, and reports outcomes."""

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        options: FlowOptions,
        registry: dict[FlowWindow, Binding],
        pace: Pace,
        emit: Emit,
    ) -> None:
        self._connection = connection
        self._operations = operations
        self.options = options
        #: Whether messages are accepted when the next one is asked for.
        self.is_auto: Final = options.is_auto
        #: The flows of the client by their windows; this one is in it while it is in use.
        self._registry = registry
        self._pace = pace
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self.name = options.name
        self.active = False
        self.partitions: tuple[int, ...] = ()
        self.access_type = ""
        #: Of the bind that there is, or is tried.
        self.window = FlowWindow(options.window, options.window_bytes)
        self._was_bound = False
        self._opener = Opener(operations, self._bind, is_passing, self.fail_for_good)
        #: What is unread; all of it came through `_window`.
        self._buffer = FlowBuffer(options.window, self.release)
        self.reader = self._buffer.reader
        self._outcomes = Outcomes(connection, pace, self.window, options.ack_delay_s)
        self._outcomes.threshold = options.threshold(None)
        #: Message of `Flow.receive` that is accepted when the next one is asked for.
        self.handed: GuaranteedMessage | None = None
        #: Who takes the outcome of messages; the blocking client puts itself here.
        self.settler: Settler = self
        #: Who takes deliveries and hands their rows out, and what keeps all of them from it for a moment; the blocking
        #: client adds its reader and brings a lock.
        self.readers: list[FlowReader] = []
        self.guard: AbstractContextManager[object] = nullcontext()
        #: Called instead of waking readers; the blocking client's door.
        self.on_ready: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.closed = False
        #: Whether nothing more will come: all of a range is here.
        self._has_all = False
        self._error: errors.AngariumError | None = None
        self._counters = dict.fromkeys(_COUNTERS, 0)
        #: Whether the application was told that this flow stands by, and not yet that it is active.
        self._is_standby_told = False
        #: Calls of callbacks that raised in threads of the blocking client.
        self.callback_errors = 0
        self._callbacks = None
        if options.callback:
            self._callbacks = Callbacks(options, self.reader, self.ready, lambda: self.place)

    # What everybody may look at; `FlowView` shows it to applications.

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
            "callback_errors": self._callbacks.errors if self._callbacks else self.callback_errors,
            "buffered_messages": self.buffered,
            "untold_messages": self._outcomes.untold,
        }

    # Settling.

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
                if tracing.active is not None and tracing.active.is_on:
                    self.trace_settled(delivery, [(start, stop)], outcome)
                self.record(delivery.window, outcome, ((delivery.partition, position, position),))
            return
        fresh = delivery.mark(start, stop)
        if tracing.active is not None:
            self.trace_settled(delivery, fresh, outcome)
        for first, last in fresh:
            self.record(delivery.window, outcome, delivery.ranges(first, last))

    def trace_settled(self, delivery: GuaranteedDelivery, fresh: list[tuple[int, int]], outcome: int) -> None:
        """Tell a tracer of the outcome of rows, given as (start, stop)."""
        rows = [row for start, stop in fresh for row in delivery.rows[start:stop]]
        if tracing.active is not None and rows:
            tracing.active.settle(rows, delivery.partition, outcome, self.place)

    @property
    def place(self) -> tracing.Place:
        """Where its messages come from, for a tracer."""
        return tracing.place_of(self._connection, self.name, is_endpoint=True)

    def check_settling(self) -> None:
        """Return if messages can be settled.

        Raises:
            InvalidRequestError: this is a browser, which settles nothing (INVALID_ARGUMENT).
        """
        if self.options.browse:
            raise errors.invalid("a browser settles nothing; consume instead")

    def accept_handed(self) -> None:
        """Accept the last message of `receive`, unless an exception is being handled: it may be about the message."""
        handed, self.handed = self.handed, None
        if handed is not None and self.is_auto and sys.exc_info()[0] is None and not handed.settled:
            handed.accept()

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
        if self.closed:
            return
        flow, unseen = self._leave()
        if not flow:
            return
        try:
            async with asyncio.timeout(self.options.timeout_s if timeout_s is None else timeout_s):
                await self._operations.finish(lambda session: session.guaranteed.unbind(flow, unseen))
        except (TimeoutError, errors.AngariumError) as error:
            _logger.debug("%s ended without an answer: %s", self, error)

    def __str__(self) -> str:
        return f"Flow({self.name!r})"

    def __repr__(self) -> str:
        bound = "active" if self.active else "standing by" if self.window.flow else "not bound"
        state = "closed" if self.closed else bound
        return f"<Flow of {self.options.kind} {self.name!r}, {state}, {self.buffered} buffered>"

    # What the client calls.

    async def open(self) -> None:
        """Bind for the first time.

        Raises:
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses.
        """
        try:
            await self._opener.open(self.options.timeout_s)
        except BaseException:
            flow = self.window.flow
            self.end(None)
            self._let_go(flow)
            raise
        self._was_bound = True
        if not self.window.flow and not self._has_all:
            self._opener.start()

    def connected(self) -> None:
        """Bind again on a new connection."""
        if self._was_bound and not self.closed:
            self._opener.start()

    def lost(self) -> None:
        """Take note that the bind is over: what came through it is the node's again."""
        self._counters["dropped_messages"] += self._buffer.clear()
        self.partitions = ()
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
        elif event.event == wire.FLOW_LEAVING:
            for one in self._give_up(event.partitions.__contains__):
                self.record(self.window, wire.OUTCOME_RELEASED, one.ranges)
        elif event.event == wire.FLOW_SETTLE_REFUSED:
            self._counters["refused_settles"] += 1
            self._emit("settle_refused", event.code, f"{self}: {event.detail}")
        elif event.event == wire.FLOW_CLOSED:
            self.lost()
            if is_passing(event.code):
                self._emit("flow_lost", event.code, f"{self}: {event.detail}")
                self._opener.start()
            else:
                self.fail_for_good(errors.error_for(event.code, event.detail))
        else:
            self._set_active(active=event.event == wire.FLOW_ACTIVE)
            if event.event != wire.FLOW_ACTIVE:
                self._tell_standby()

    def wake(self) -> None:
        """Wake the reader: there is something to read, or nothing any more."""
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
        if not self.closed:
            self._emit("flow_failed", error.code, f"{self}: {error.detail}")
            flow = self.window.flow
            self.end(error)
            self._let_go(flow)

    def abandon(self) -> None:
        """Close a flow that the application dropped without closing it."""
        if not self.closed:
            _logger.warning("%s was dropped without being closed; it is closed now, and %s", self, ADVICE)
            self._let_go(*self._leave())

    def leave_soon(self) -> None:
        """End the flow, and give back what the application has not seen, for a client that says BYE next."""
        if not self.closed and not self.options.browse and self.window.flow:
            self._let_go(*self._leave())

    def _leave(self) -> tuple[int, list[Range]]:
        """End the flow here; give its number, and the positions of what the application has not seen."""
        self.tell()
        unseen = Settlement()
        if not self.options.browse:
            with self.guard:
                rests = self._take_unread(lambda one: one.window is self.window)
            for one in (one for rest in rests for one in rest.ranges):
                unseen.add(*one)
        self._counters["dropped_messages"] += unseen.messages
        flow = self.window.flow
        self.end(None)
        return flow, unseen.take()

    def abandon_soon(self) -> bool:
        """Do that in the loop, in any thread, for a finalizer; give False if the loop is closed, and all with it."""
        try:
            self._loop.call_soon_threadsafe(self.abandon)
        except RuntimeError:
            return False
        return True

    def end(self, error: errors.AngariumError | None) -> None:
        """Let nothing more come; what is buffered is thrown away."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        self._opener.stop()
        self._registry.pop(self.window, None)
        self.lost()
        self.wake()

    @property
    def outcome(self) -> tuple[bool, errors.AngariumError | None]:
        """Whether it has ended, and why."""
        return self.closed, self._error

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What awaits an async callback."""
        return self._callbacks.tasks if self._callbacks else []

    # What the blocking client calls besides.

    def is_over(self, delivery: GuaranteedDelivery) -> bool:
        """Tell whether what is unread of a delivery is of an earlier bind; safe from any thread."""
        return delivery.window is not self.window or not self.window.flow

    def take_delivery(self) -> GuaranteedDelivery | None:
        """Give the oldest delivery to be read elsewhere; safe from any thread."""
        return self._buffer.take_delivery()

    def release(self, window: FlowWindow, messages: int, size_bytes: int) -> None:
        """Let the node send again what was taken of a bind."""
        window.take(messages, size_bytes)
        self._renew()
        if self.is_served:
            self.wake()

    def _take_unread(self, leaves: Callable[[GuaranteedDelivery], bool]) -> list[Unread]:
        """Take what leaves and nobody has seen from all who read; they are kept from it by the caller."""
        elsewhere = [one for reader in self.readers for one in reader.take_out(leaves)]
        return elsewhere + self._buffer.take_out(leaves)

    def _give_up(self, is_lost: Callable[[int], bool]) -> list[Unread]:
        """Take what nobody has seen of some partitions: others come for it, and it counts for no `max_messages`."""
        window = self.window
        with self.guard:
            for reader in (*self.readers, self.reader):
                reader.give_back()
            found = self._take_unread(lambda one: one.window is window and is_lost(one.partition))
        messages = sum(one.messages for one in found)
        window.limit = min(window.limit + messages, UNLIMITED)
        self.release(window, messages, sum(one.size_bytes for one in found))
        return found

    def _renew(self) -> None:
        """Ask for more if there is room for it, now if the pace allows it."""
        session = self._connection.session
        if self.closed or session is None or not session.is_open or not self.window.can_renew():
            return  # A flow that ends asks for nothing more.
        if not self._pace.take():
            self._pace.wait(self._renew)
        elif session.guaranteed.renew(self.window):
            self._connection.transmit()

    # Binding.

    async def _bind(self) -> None:
        """Bind on the session that there is.

        Raises:
            AngariumError: the node refuses.
        """
        options = self.options
        self._registry.pop(self.window, None)
        with self.guard:
            window = FlowWindow(options.window, options.window_bytes, self._limit())
            self.window = self._outcomes.window = window
        self._registry[window] = self
        arguments = options.arguments(self.name)
        await self._operations.ask(
            lambda session: session.guaranteed.bind(window, arguments, self._bound), self._unbind_late
        )

    def _limit(self) -> int:
        """Give how many messages may come through the next bind; what is left of earlier ones is the node's again."""
        for reader in self.readers:
            reader.drop()
        if self.options.max_messages is None:
            return UNLIMITED
        handed = sum(reader.handed for reader in (*self.readers, self.reader))
        return max(self.options.max_messages - handed, 0)

    def _bound(self, bound: FlowBound) -> None:
        """Take over what the node says of the flow; it comes before anything that happens to it."""
        self.name = bound.name
        self.partitions = tuple(bound.partitions)
        self.access_type = bound.access_type
        self._outcomes.threshold = self.options.threshold(bound.max_unacked)
        self._set_active(active=bound.active)
        if not bound.active:
            self._tell_standby()

    def _unbind_late(self, bound: FlowBound) -> None:
        """Unbind what was bound for a caller that did not wait."""
        self._let_go(bound.flow)

    def _let_go(self, flow: int, unseen: Sequence[Range] = ()) -> None:
        """Unbind without waiting, if there is something bound."""
        if flow:
            self._operations.tell(lambda session: session.guaranteed.unbind(flow, unseen))

    def _set_active(self, *, active: bool) -> None:
        if active and self._is_standby_told:
            self._is_standby_told = False
            _logger.info("%s is active now", self)
        if active != self.active:
            self.active = active
            if self.options.on_active is not None:
                try:
                    self.options.on_active(active)
                except Exception:
                    _logger.exception("on_active of %s raised", self)

    def _tell_standby(self) -> None:
        """Say that no messages come, once: nothing else tells a waiting consumer from an empty queue."""
        if self._is_standby_told:
            return
        self._is_standby_told = True
        if self.access_type == "exclusive":
            why = f"another consumer of {self.name!r} is active, and the queue is exclusive; consumers share the "
            why += "messages of one with access_type=non-exclusive ('angarium queue update NAME --set ...')"
        else:
            why = f"others have all partitions of {self.name!r}, or a reader group has leased it"
        detail = f"{self} stands by and gets no messages: {why}"
        _logger.warning("%s", detail)
        self._emit("standby", 0, detail)

    def _set_partitions(self, partitions: list[int]) -> None:
        """Throw away what is unread of partitions that another flow has now."""
        if self.partitions and not partitions:
            self._tell_standby()
        self.partitions = tuple(partitions)
        self._is_standby_told = self._is_standby_told and not partitions
        lost = self._give_up(lambda partition: partition not in partitions)
        self._counters["dropped_messages"] += sum(one.messages for one in lost)

    @property
    def is_served(self) -> bool:
        """Whether all of `max_messages` were handed out, so that no more will come; safe from any thread."""
        return self.options.max_messages is not None and self.window.taken_messages >= self.window.limit

    def nothing_left(self) -> errors.AngariumError:
        """Give what `receive` raises at the end."""
        if self.is_served and not self.closed:
            return errors.error_for(
                errors.TIMEOUT, f"{self} has given all {self.options.max_messages} messages"
            )
        return errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed")

    async def ready(self) -> bool:
        """Wait for rows; give False at the end."""
        while not self.reader.advance():
            if self.closed or self._has_all or self.is_served:
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
        self.window.validate()
        self._outcomes.validate()
        self._buffer.validate(self.window)
        assert not self.closed or not self.buffered
        assert (self._registry.get(self.window) is self) == (not self.closed) or not self._was_bound


_COUNTERS: Final = ("received_messages", "redelivered_messages", "refused_settles", "dropped_messages")
