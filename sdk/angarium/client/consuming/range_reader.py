"""Reading a planned range of a reader group: in order, to its end, over connections.

A `RangeReader` is a browser that ends by itself. When the connection or the home is lost it goes on behind what it has
handed out. `Client.read_range` reads with one; so does the blocking client, from other threads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.client.consuming.binding import Binding

if TYPE_CHECKING:
    from angarium.client.connection.connection import Connection
    from angarium.client.connection.operations import Operations
    from angarium.client.consuming.binding import Emit
    from angarium.client.consuming.flow_options import FlowOptions
    from angarium.client.consuming.outcomes import Pace
    from angarium.client.protocol.events import Indicated
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedBatch, GuaranteedDelivery

#: What the node may send ahead of a reader: more than a node promises at once, so that neither waits for the other.
RANGE_WINDOW: Final = 200_000
RANGE_WINDOW_BYTES: Final = 32 << 20
#: Messages in one batch.
BATCH_MESSAGES: Final = 65_536


class RangeReader(Binding):
    """A binding that has one range; `read` until it gives nothing."""

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        options: FlowOptions,
        registry: dict[FlowWindow, Binding],
        pace: Pace,
        emit: Emit,
    ) -> None:
        super().__init__(connection, operations, options, registry, pace, emit)
        assert options.range is not None
        #: Everything below it was handed out.
        self._next = options.range.first
        self._end: Final = options.range.end
        #: Held while something is handed out to another thread, or thrown away.
        self._lock: Final = threading.Lock()

    async def read(self) -> list[GuaranteedBatch]:
        """Give what has come, at least one batch; nothing at the end of the range.

        Raises:
            AngariumError: why it ended before that.
        """
        if not await self.ready():
            _, error = self.outcome
            if error is not None:
                raise error
            self.end(None)
            return []
        batches = []
        while self.reader.advance():
            batches.append(self.reader.take_batch(BATCH_MESSAGES))
        self._next = batches[-1].positions[-1] + 1
        return batches

    @property
    def outcome(self) -> tuple[bool, errors.AngariumError | None]:
        """Whether it has ended, and why; a range has when all of it was handed out, and only then without an error."""
        is_ended, error = super().outcome
        if self._has_all:
            return is_ended or not self.buffered, error
        if is_ended and error is None:
            error = errors.error_for(errors.CLIENT_CLOSED, f"{self} was closed in the middle of a range")
        return is_ended, error

    def end(self, error: errors.AngariumError | None) -> None:
        """Let nothing more come; who has not been handed out all of the range is told."""
        if self.buffered:
            self._has_all = False
        super().end(error)

    def take_delivery(self) -> GuaranteedDelivery | None:
        """Hand the oldest delivery out, to be released by the caller; safe from any thread."""
        with self._lock:
            delivery = super().take_delivery()
            if delivery is not None:
                self._next = delivery.positions[-1] + 1
            return delivery

    def indicated(self, event: Indicated) -> None:
        """Act on what the node says: the end of the range is no loss."""
        if event.event == wire.FLOW_CLOSED and event.code == 0:
            self._has_all = True
            self.wake()
        else:
            super().indicated(event)

    def lost(self) -> None:
        """Take note that the bind is over, unless there is nothing more to come."""
        if not self._has_all or self.closed:
            with self._lock:
                super().lost()

    def connected(self) -> None:
        """Go on behind what was handed out, on a new connection."""
        if not self._has_all:
            super().connected()

    async def _bind(self) -> None:
        wanted = self.options.range
        assert wanted is not None
        self.options = replace(self.options, range=wanted._replace(first=self._next))
        try:
            await super()._bind()
        except errors.AngariumError:
            if not self._was_bound or self._next < self._end:
                raise
            # All was handed out, and perhaps acknowledged meanwhile.
            self._has_all = True
            self.wake()
