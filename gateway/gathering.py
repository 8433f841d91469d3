"""What clients have published and what has not left yet.

Rows wait in the order in which they came, and readers are held up once there are many. They are cut by worker when a
round leaves (`angarium.slots.RowGatherer`), by the table that counts then.
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

    __slots__ = ("_round", "_size_bytes", "message_bytes_max", "rows", "taken")

    def __init__(self) -> None:
        """Start empty."""
        #: Empty, but while a round is made.
        self._round = RowGatherer()
        #: Those that have not left, the oldest first.
        self.rows: deque[Row] = deque()
        #: How many have left, or were dropped.
        self.taken = 0
        #: What they take, with overhead.
        self._size_bytes = 0
        #: How large a message may be; none before it is open.
        self.message_bytes_max = 0

    @property
    def end(self) -> int:
        """Give what `taken` will be when all that is here now has left."""
        return self.taken + len(self.rows)

    def has_room(self) -> bool:
        """Tell whether another row is taken, however large it is."""
        return self._size_bytes < GATHERED_BYTES_MAX

    def open(self, welcome: Welcome) -> None:
        """Take over what the router says of rounds."""
        self.message_bytes_max = min(welcome.max_message_bytes, welcome.max_batch_bytes - ROW_OVERHEAD_BYTES)
        self._round.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)
        self.cut_by(welcome.epoch, welcome.slots)

    def cut_by(self, epoch: int, table: bytes) -> None:
        """Cut by a new table from now on."""
        self._round.set_table(epoch, table)

    def add(self, row: Row) -> None:
        """Add a row that the router would take: its topic is legal, and it is not too large."""
        self.rows.append(row)
        self._size_bytes += row_size(row) + ROW_OVERHEAD_BYTES

    def cut(self, rows: deque[Row]) -> Round:
        """Give a round of rows that do not wait here, as many of the first as it takes."""
        self._round.fill_rows(rows)
        return self._round.take()

    def take(self) -> Round:
        """Give the next round."""
        made = self._round
        made.fill_rows(self.rows)
        self._size_bytes -= made.size_bytes
        self.taken += made.rows
        return made.take()

    def clear(self) -> None:
        """Drop what has not left."""
        self.taken = self.end
        self.rows.clear()
        self._size_bytes = 0

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert not self._round.rows
        assert self._size_bytes == sum(row_size(row) + ROW_OVERHEAD_BYTES for row in self.rows)
