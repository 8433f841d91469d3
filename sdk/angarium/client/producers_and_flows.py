"""The producers and flows of a client, and what happens to them: connections, events, the end.

`ProducersAndFlows` knows all of them; each acts for itself. `angarium.client.client` owns the one `ProducersAndFlows`
of a client and gives it the events of its sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.client.connection.operations import Operations
from angarium.client.consuming.binding import Binding
from angarium.client.consuming.browser import Browser
from angarium.client.consuming.outcomes import Pace
from angarium.client.consuming.range_reader import RangeReader
from angarium.client.consuming.reader_group import EndpointPositions, ReaderGroup, endpoint_positions
from angarium.client.protocol.answers import PRODUCER_WINDOW_MAX
from angarium.client.protocol.events import Acknowledged, Arrived, Indicated, Replied
from angarium.client.publishing.producer import Producer, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.connection.connection import Connection
    from angarium.client.consuming.binding import Emit
    from angarium.client.consuming.flow_options import FlowOptions
    from angarium.client.protocol.events import Event, Welcome
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.send_window import SendWindow
    from angarium.client.publishing.producer import AckCallback

#: Flows that are over are forgotten so many at a time.
FORGOTTEN_TOGETHER: Final = 100

#: Counters of a flow, and how the client calls their sums.
_PRODUCER_FIGURES: Final = ("acknowledged_messages", "nacked_messages", "unroutable_messages")
_FLOW_FIGURES: Final = {
    "received_messages": "consumed_messages",
    "redelivered_messages": "redelivered_messages",
    "accepted_messages": "accepted_messages",
    "failed_messages": "failed_messages",
    "rejected_messages": "rejected_messages",
    "late_settles": "late_settles",
    "refused_settles": "refused_settles",
    "dropped_messages": "dropped_messages",
    "callback_errors": "flow_callback_errors",
}


class ProducersAndFlows:
    """Who publishes and consumes guaranteed messages through one client."""

    def __init__(self, connection: Connection, emit: Emit, check_open: Callable[[], None]) -> None:
        """Know nobody; `emit` takes events (kind, code, detail), `check_open` raises if the client is closed."""
        self._connection = connection
        self._emit = emit
        self.check_open = check_open
        self.operations = Operations(connection.transmit)
        self._pace = Pace()
        self._producers: dict[SendWindow, Producer] = {}
        self._flows: dict[FlowWindow, Binding] = {}
        #: All flows in use; `_flows` has those that tried to bind, by the window of the newest try.
        self._in_use: dict[Binding, None] = {}
        #: Flows that got something since `wake`.
        self.awake: dict[Binding, None] = {}
        self._welcome: Welcome | None = None
        #: The producer of `Client.publish`; None before the first guaranteed message.
        self._default: Producer | None = None
        self._opening_default = asyncio.Lock()
        #: The figures of those that are over.
        self._ended = dict.fromkeys((*_PRODUCER_FIGURES, *_FLOW_FIGURES.values()), 0)

    # For the client's calls.

    async def producer(
        self, name: str, window: int, on_ack: AckCallback | None, timeout_s: float
    ) -> Producer:
        """Open a producer."""
        self.check_open()
        producer = Producer(self._connection, self.operations, name, window, on_ack, self._forget_producer)
        await self._open(producer, timeout_s)
        return producer

    async def stage(self, window: int, timeout_s: float) -> Stage:
        """Open a stage."""
        self.check_open()
        stage = Stage(self._connection, self.operations, window, self._forget_producer)
        await self._open(stage, timeout_s)
        return stage

    async def _open(self, producer: Producer, timeout_s: float) -> None:
        if self._welcome is not None:
            producer._connected(self._welcome)
        self._producers[producer._rows] = producer
        try:
            await producer._open_first(timeout_s)
        except BaseException:
            producer._end(errors.error_for(errors.CLIENT_CLOSED, f"{producer} was not opened"))
            raise

    async def default_producer(self, timeout_s: float) -> Producer:
        """Give the producer of those who do not name one."""
        default = self._default
        if default is not None and not default.closed:
            return default
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            # Others wait for the same, each as long as it wants: not one after the other.
            async with asyncio.timeout_at(deadline):
                await self._opening_default.acquire()
        except TimeoutError:
            raise self.operations.too_late(timeout_s) from None
        try:
            if self._default is None or self._default.closed:
                left_s = max(deadline - loop.time(), 0)
                self._default = await self.producer("", PRODUCER_WINDOW_MAX, None, left_s)
            return self._default
        finally:
            self._opening_default.release()

    async def reader_group(self, queue: str, name: str, lease_s: float, timeout_s: float) -> ReaderGroup:
        """Open a reader group."""
        self.check_open()
        group = ReaderGroup(self.operations, queue, name, timeout_s)
        await group._open(lease_s)
        return group

    async def positions(self, name: str, kind: str, timeout_s: float) -> EndpointPositions:
        """Ask which positions an endpoint has."""
        self.check_open()
        return await endpoint_positions(self.operations, name, kind, timeout_s)

    async def range_reader(self, options: FlowOptions) -> RangeReader:
        """Begin to read a range of a reader group."""
        self.check_open()
        reader = RangeReader(self._connection, self.operations, options, self._flows, self._pace, self._emit)
        self._use(reader)
        await reader.open()
        return reader

    async def bind(self, options: FlowOptions) -> Binding:
        """Bind a flow."""
        self.check_open()
        kind = Browser if options.browse else Binding
        flow = kind(self._connection, self.operations, options, self._flows, self._pace, self._emit)
        self._use(flow)
        await flow.open()
        return flow

    def _use(self, flow: Binding) -> None:
        """Take note of a flow, and forget those that are over when they are most of all."""
        if len(self._in_use) > 2 * len(self._flows) + FORGOTTEN_TOGETHER:
            self._used()
        self._in_use[flow] = None

    # What happens.

    def connected(self, welcome: Welcome) -> None:
        """Open everything again on a new session."""
        session = self._connection.session
        assert session is not None
        self._welcome = welcome
        self.operations.go_online(session)
        for producer in list(self._producers.values()):
            producer._connected(welcome)
        for flow in self._used():
            flow.connected()

    def set_table(self, welcome: Welcome) -> None:
        """Cut rounds by a new table."""
        if self._welcome is not None:
            self._welcome = welcome
        for producer in self._producers.values():
            producer._set_table(welcome.epoch, welcome.slots)

    def go_on(self) -> None:
        """Use the ingress credit that is there."""
        for producer in list(self._producers.values()):
            producer._go_on()

    def take(self, event: Event) -> None:
        """Act on an event of the session."""
        if type(event) is Acknowledged:
            producer = self._producers.get(event.rows)
            if producer is not None:
                producer._acknowledged(event)
        elif type(event) is Arrived:
            flow = self._flows.get(event.window)
            if flow is not None:
                flow.arrived(event.deliveries)
                self.awake[flow] = None
        elif type(event) is Replied:
            self.operations.replied(event)
        else:
            assert type(event) is Indicated, f"an event that nobody knows: {event!r}"
            flow = self._flows.get(event.window)
            if flow is not None:
                flow.indicated(event)

    def wake(self) -> None:
        """Let readers have what came."""
        if self.awake:
            awake, self.awake = self.awake, {}
            for flow in awake:
                flow.wake()

    def lost(self) -> None:
        """Take note that the connection is gone."""
        self.operations.go_offline()
        for flow in self._used():
            flow.lost()

    async def drain(self) -> None:
        """Wait until every producer is settled, and tell what consumers said."""
        for producer in list(self._producers.values()):
            with contextlib.suppress(errors.AngariumError):  # Its senders have been told.
                # The node need not keep a name that it made up and nobody can ask for.
                await (producer.close() if producer._is_nameless else producer._settled())
        for flow in self._used():
            flow.accept_handed()
            flow.leave_soon()

    def close(self, error: errors.AngariumError, reason: errors.AngariumError | None) -> None:
        """End everything: producers with the error, flows with the reason."""
        self.operations.close(error)
        for producer in list(self._producers.values()):
            producer._end(error)
        for flow in self._used():
            flow.end(reason)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Give the tasks that await async callbacks."""
        return [task for flow in self._in_use for task in flow.tasks]

    @property
    def stats(self) -> dict[str, int]:
        """Counters over all producers and flows, those that are over included; safe to be read from any thread."""
        flows = list(self._in_use)
        producers = list(self._producers.values())
        totals = dict(self._ended)
        for producer in producers:
            _add(totals, _producer_stats(producer))
        for flow in flows:
            _add(totals, _flow_stats(flow))
        return {
            "producers": len(producers),
            "flows": sum(not flow.closed for flow in flows),
            "paced_flows": self._pace.waits,
            "unacknowledged_messages": sum(producer.unacknowledged for producer in producers),
            **totals,
        }

    def _used(self) -> list[Binding]:
        """Give the flows that are not over, and forget the others."""
        for flow in [flow for flow in self._in_use if flow.closed]:
            if all(task.done() for task in flow.tasks):
                del self._in_use[flow]
                _add(self._ended, _flow_stats(flow))
        return [flow for flow in self._in_use if not flow.closed]

    def _forget_producer(self, producer: Producer) -> None:
        if self._producers.pop(producer._rows, None) is not None:
            _add(self._ended, _producer_stats(producer))
            error = producer.error
            if error is not None and error.code != errors.CLIENT_CLOSED:
                self._emit("producer_failed", error.code, f"{producer}: {error.detail}")

    def validate(self) -> None:
        """Check the parts."""
        self.operations.validate()
        self._pace.validate()
        for rows, producer in self._producers.items():
            assert producer._rows is rows
            producer._validate()
        for flow in self._in_use:
            flow.validate()


def _flow_stats(flow: Binding) -> dict[str, int]:
    stats = flow.stats
    return {name: stats[counter] for counter, name in _FLOW_FIGURES.items()}


def _producer_stats(producer: Producer) -> dict[str, int]:
    return {
        "acknowledged_messages": producer.stats["acknowledged_messages"],
        "nacked_messages": producer.stats["refused_messages"],
        "unroutable_messages": producer.stats["unroutable_messages"],
    }


def _add(totals: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        totals[name] += value
