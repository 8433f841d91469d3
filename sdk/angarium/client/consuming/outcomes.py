"""What an application said of the messages of a flow, until the node was told.

Accepted messages are told in ranges when a threshold is together or a short time after the first of them, failed
and rejected ones at the end of the step. What is said of messages of an earlier bind is
counted and goes nowhere: they are the node's again. `angarium.client.consuming.flow` owns one of these.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from angarium import wire
from angarium.client.consuming.pace import RANGES_PER_FRAME
from angarium.client.protocol.messages import Range, Settlement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.client.connection.connection import Connection
    from angarium.client.consuming.pace import Pace
    from angarium.client.protocol.flow_window import FlowWindow

_COUNTERS: Final = {
    wire.OUTCOME_ACCEPTED: "accepted_messages",
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
