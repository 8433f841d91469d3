"""Browsing over connections: each message is handed out once.

A browser settles nothing, so what was handed out does not become the node's again when the connection, or the home of
the endpoint, is lost. The next bind begins with the oldest message again, and what was handed out before is left out.
`Client.browse` makes browsers; one that has a range is `angarium.client.consuming.range_reader`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from angarium.client.consuming.binding import Binding
from angarium.client.protocol.flow_window import UNLIMITED, spool_size
from angarium.client.protocol.messages import GuaranteedDelivery

if TYPE_CHECKING:
    from typing import Any

    from angarium.client.protocol.answers import FlowBound


class Browser(Binding):
    """A binding that looks at messages, the oldest first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Of what was seen: another queue of the same name has another one.
        self._endpoint_id = 0
        #: Partition -> the newest position that came and was not thrown away.
        self._seen: dict[int, int] = {}
        #: Messages of these.
        self._came = 0
        #: Held while something is handed out to another thread, or thrown away.
        self._lock: Final = threading.Lock()

    def take_delivery(self) -> GuaranteedDelivery | None:
        """Hand the oldest delivery out, to be released by the caller; safe from any thread."""
        with self._lock:
            return super().take_delivery()

    def is_over(self, delivery: GuaranteedDelivery) -> bool:  # noqa: ARG002 - what holds for all deliveries
        """Tell whether nobody reads it any more."""
        return self.closed

    def lost(self) -> None:
        """Take note that the bind is over; what was not handed out is thrown away, and comes again."""
        with self._lock:
            for partition, position in self._buffer.unread():
                self._seen[partition] = min(self._seen[partition], position - 1)
            self._came -= self.buffered
            super().lost()

    def arrived(self, deliveries: list[GuaranteedDelivery]) -> None:
        """Buffer what came and was not seen before."""
        super().arrived([new for one in deliveries if (new := self._unseen(one)) is not None])

    def _unseen(self, delivery: GuaranteedDelivery) -> GuaranteedDelivery | None:
        seen = self._seen.get(delivery.partition, 0)
        positions, count = delivery.positions, len(delivery.rows)
        self._seen[delivery.partition] = max(seen, positions[-1])
        start = bisect_right(positions, seen) if positions[0] <= seen else 0
        wanted = self.options.max_messages
        stop = count if wanted is None else min(count, start + wanted - self._came)
        if start >= stop:
            self.release(delivery.window, count, delivery.size_bytes)
            return None
        self._came += stop - start
        if stop - start == count:
            return delivery
        left_out = [*delivery.rows[:start], *delivery.rows[stop:]]
        self.release(delivery.window, len(left_out), spool_size(left_out))
        return _part(delivery, start, stop)

    def _limit(self) -> int:
        """Give all that is wanted, with what was seen: the node counts from the oldest again."""
        return UNLIMITED if self.options.max_messages is None else self.options.max_messages

    def _bound(self, bound: FlowBound) -> None:
        if bound.endpoint_id != self._endpoint_id:
            self._endpoint_id = bound.endpoint_id
            self._seen.clear()
        super()._bound(bound)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self.window.validate()
        assert self.options.max_messages is None or self._came <= self.options.max_messages
        assert not self.closed or not self.buffered


def _part(delivery: GuaranteedDelivery, start: int, stop: int) -> GuaranteedDelivery:
    """Give some rows of a delivery."""
    rows, counts, origins = delivery.rows[start:stop], delivery.counts, delivery.origins
    return GuaranteedDelivery(
        delivery.window,
        delivery.partition,
        rows,
        [(first, last - first + 1) for _, first, last in delivery.ranges(start, stop)],
        None if counts is None else counts[start:stop],
        delivery.all_stored_ms(start, stop),
        None if origins is None else origins[start:stop],
        spool_size(rows),
    )
