"""What an application said of the messages of a flow, until the node was told.

Accepted messages are told in ranges when a threshold is together or a short time after the first of them, failed
and rejected ones at the end of the step. What is said of messages of an earlier bind is
counted and goes nowhere: they are the node's again. `angarium.client.consuming.flow` owns one of these.

A node ends a session that says too much. It takes 10,000 frames other than PUBLISH per second from one session on
average (42902 beyond), where 64 ranges of a SETTLE count as one more. Flows with small windows could say more: each
message of a window of one costs a SETTLE and a FLOW_CREDIT. So the flows of a client share one `Pace`; who may not
speak now is called a moment later and says in one frame what it would have said in several. Nothing is lost by it but a
few milliseconds, and only at rates where that is how batches come about.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from angarium import wire
from angarium.client.protocol.messages import Range, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium.client.connection.connection import Connection
    from angarium.client.protocol.flow_window import FlowWindow

#: Frames per second; the rest of the node's limit is for everything else that a client says.
FRAMES_PER_SECOND: Final = 8_000
#: Frames that may be said at once after a silence; a node takes twice its rate.
FRAMES_BURST: Final = 4_000
#: So many ranges of a SETTLE count as one more frame.
RANGES_PER_FRAME: Final = 64
#: How long who may not speak waits.
WAIT_S: Final = 0.002


class Pace:
    """A bucket of frames, and who waits for it to fill."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Never above FRAMES_BURST; below 0 by the frames that could not be split.
        self._frames = float(FRAMES_BURST)
        self._filled_at = self._loop.time()
        #: Who waits to speak, the first first. Each once, so at most one per flow.
        self._waiting: dict[Callable[[], None], None] = {}
        #: How often somebody had to wait.
        self.waits = 0

    def take(self, frames: int = 1) -> bool:
        """Take so many frames if there is one at all; tell whether they may be said now."""
        now = self._loop.time()
        self._frames = min(self._frames + (now - self._filled_at) * FRAMES_PER_SECOND, FRAMES_BURST)
        self._filled_at = now
        if self._frames < 1:
            return False
        self._frames -= frames
        return True

    def wait(self, speak: Callable[[], None]) -> None:
        """Have somebody called soon who may not speak now; nothing happens if it waits already."""
        if speak in self._waiting:
            return
        self.waits += 1
        if not self._waiting:
            self._loop.call_later(WAIT_S, self._go_on)
        self._waiting[speak] = None

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for speak in waiting:
            speak()

    def validate(self) -> None:
        """Check the sentences above."""
        assert self._frames <= FRAMES_BURST


_COUNTERS: Final = {
    wire.OUTCOME_ACCEPTED: "accepted_messages",
    wire.OUTCOME_RELEASED: "released_messages",
    wire.OUTCOME_FAILED: "failed_messages",
    wire.OUTCOME_REJECTED: "rejected_messages",
}


class Outcomes:
    """Outcomes that the node was not told."""

    def __init__(self, connection: Connection, pace: Pace, window: FlowWindow, delay_s: float) -> None:
        """Know none; an accepted message waits for `delay_s` at most."""
        self._connection = connection
        self._pace = pace
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        #: Of the bind that there is, or is tried: only its messages can be settled.
        self.window = window
        #: Accepted messages that are told at once.
        self.threshold = 1
        self._settlements: Final = {outcome: Settlement() for outcome in _COUNTERS}
        #: Set while an accepted message waits.
        self._timer: asyncio.TimerHandle | None = None
        #: Whether `_tell_soon` will run at the end of this step.
        self._is_scheduled = False
        #: Messages by outcome, and those of earlier binds.
        self.counters: Final = dict.fromkeys((*_COUNTERS.values(), "late_settles"), 0)

    @property
    def untold(self) -> int:
        """Messages that the node was not told of."""
        return sum(one.messages for one in self._settlements.values())

    def record(self, window: FlowWindow, outcome: int, ranges: Iterable[Range]) -> None:
        """Tell the node the outcome of positions soon."""
        if window is not self.window or not window.flow:
            self.counters["late_settles"] += sum(last - first + 1 for _, first, last in ranges)
            return
        settlement = self._settlements[outcome]
        before = settlement.messages
        for partition, first, last in ranges:
            settlement.add(partition, first, last)
        self.counters[_COUNTERS[outcome]] += settlement.messages - before
        if outcome != wire.OUTCOME_ACCEPTED:
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._tell_soon)
        elif settlement.messages >= self.threshold:
            self._tell_soon()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._tell_soon)

    def _tell_soon(self) -> None:
        """Tell everything, now if the pace allows it."""
        self._is_scheduled = False
        if not self.untold:
            return
        if self._pace.take(1 + sum(one.ranges for one in self._settlements.values()) // RANGES_PER_FRAME):
            self.tell()
        else:
            self._pace.wait(self._tell_soon)

    def tell(self) -> None:
        """Tell the node everything; what it cannot be told any more is counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        session, flow = self._connection.session, self.window.flow
        has_told = False
        for outcome, settlement in self._settlements.items():
            count = settlement.messages
            ranges = settlement.take()
            if ranges and session is not None and session.is_open and flow:
                session.guaranteed.settle(flow, outcome, ranges)
                has_told = True
            else:
                self.counters["late_settles"] += count
        if has_told:
            self._connection.transmit()

    def validate(self) -> None:
        """Check the parts."""
        for settlement in self._settlements.values():
            settlement.validate()
