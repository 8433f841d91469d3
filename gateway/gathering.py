"""What clients have published and what has not left yet: the next round, and rows behind it.

`angarium.slots.RowGatherer` cuts the next round by worker. Rows that do not fit into it wait here in the order in which
they came, and readers are held up once there is much of that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from angarium.message import row_size
from angarium.slots import ROW_OVERHEAD_BYTES, RowGatherer

if TYPE_CHECKING:
    from angarium.client.protocol.events import Welcome
    from angarium.message import Row
    from angarium.slots import Round

#: From so much on no more is taken: a few rounds, so that the router never waits for one.
GATHERED_BYTES_MAX: Final = 4 << 20


class Gathering:
    """Rows on their way to the router, of many clients."""

    __slots__ = ("_next", "_waiting", "_waiting_bytes", "message_bytes_max")

    def __init__(self) -> None:
        """Start empty."""
        self._next = RowGatherer()
        #: Rows that do not fit into the next round, the oldest first.
        self._waiting: deque[Row] = deque()
        #: What they take, with overhead.
        self._waiting_bytes = 0
        #: How large a message may be; none before it is open.
        self.message_bytes_max = 0

    @property
    def rows(self) -> int:
        """Give the number of rows that have not left."""
        return self._next.rows + len(self._waiting)

    def has_room(self) -> bool:
        """Tell whether another row is taken, however large it is."""
        return self._next.size_bytes + self._waiting_bytes < GATHERED_BYTES_MAX

    def open(self, welcome: Welcome) -> None:
        """Take over what the router says of rounds."""
        self.message_bytes_max = min(welcome.max_message_bytes, welcome.max_batch_bytes - ROW_OVERHEAD_BYTES)
        self._next.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)
        self.cut_by(welcome.epoch, welcome.slots)

    def cut_by(self, epoch: int, table: bytes) -> None:
        """Cut by a new table from now on."""
        self._next.set_table(epoch, table)

    def add(self, row: Row) -> None:
        """Add a direct row that the router would take: its topic is legal, and it is not too large."""
        gatherer = self._next
        if self._waiting or not gatherer.has_room(row_size(row)):
            self._waiting.append(row)
            self._waiting_bytes += row_size(row) + ROW_OVERHEAD_BYTES
        else:
            gatherer.add_row(row)

    def take(self) -> Round:
        """Give the next round, and begin another one with what waits."""
        gatherer, waiting = self._next, self._waiting
        taken = gatherer.take()
        while waiting and gatherer.has_room(size := row_size(waiting[0])):
            gatherer.add_row(waiting.popleft())
            self._waiting_bytes -= size + ROW_OVERHEAD_BYTES
        return taken

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._next.validate()
        assert self._waiting_bytes == sum(row_size(row) + ROW_OVERHEAD_BYTES for row in self._waiting)
        assert self._next.rows or not self._waiting
