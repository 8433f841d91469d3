"""A disk in memory that a simulation can fill, break and pull the plug of; it is a `storage.spool.Spool`.

`commit` is durable at once, as the contract says. A simulation that wants time between takes the two halves:
`begin` hands the changes to the disk, `finish` makes them durable; a `crash` between the two keeps or loses
the whole group, as a disk does whose last write was or was not complete.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from storage.spool import SpoolFailedError, SpoolFullError, Table

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from storage.spool import Change


class SimulatedDisk:
    """The spool of one worker; it outlives the process that uses it."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        #: Table -> its keys in order, or None if they have to be sorted anew.
        self._sorted: dict[Table, list[bytes] | None] = dict.fromkeys(Table)
        self._begun: list[Change] | None = None
        #: Every commit fails for want of room.
        self.is_full = False
        #: The next commit fails, as a disk does whose sync fails.
        self.is_failing = False
        self.commits = 0

    # -- the port --------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change]) -> None:
        """See `Spool.commit`."""
        self.begin(changes)
        self.finish()

    def get(self, table: Table, key: bytes) -> bytes | None:
        """See `Spool.get`."""
        return self._tables[table].get(key)

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """See `Spool.scan`."""
        keys = self._keys(table)
        first = bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        if limit is not None:
            last = min(last, first + limit)
        rows = self._tables[table]
        return [(key, rows[key]) for key in keys[first:last]]

    def count(self, table: Table) -> int:
        """See `Spool.count`."""
        return len(self._tables[table])

    def size_bytes(self) -> int:
        """See `Spool.size_bytes`."""
        return sum(len(key) + len(value) for rows in self._tables.values() for key, value in rows.items())

    def close(self) -> None:
        """See `Spool.close`; what is on the disk stays."""

    # -- time and faults -------------------------------------------------------------------------------------

    def begin(self, changes: Sequence[Change]) -> None:
        """Hand a group over; it is not durable before `finish`."""
        assert self._begun is None, "one group at a time"
        if self.is_full:
            raise SpoolFullError("the simulated disk is full")
        self._begun = list(changes)

    def finish(self) -> None:
        """Make the group durable; which of a failed one is on disk nobody knows, so ask `crash` then."""
        assert self._begun is not None, "nothing was begun"
        if self.is_failing:
            raise SpoolFailedError("the sync of the simulated disk failed")
        changes, self._begun = self._begun, None
        for table, key, value in changes:
            rows = self._tables[table]
            if value is None:
                if rows.pop(key, None) is not None:
                    self._sorted[table] = None
            else:
                if key not in rows:
                    self._sorted[table] = None
                rows[key] = value
        self.commits += 1

    def crash(self, rng: random.Random) -> bool:
        """The process died: the group under way is there or not, as a whole; true if it is lost."""
        self.is_failing = False
        if self._begun is None:
            return False
        if rng.random() < 0.5:
            self.finish()
            return False
        self._begun = None
        return True

    def _keys(self, table: Table) -> list[bytes]:
        keys = self._sorted[table]
        if keys is None:
            keys = self._sorted[table] = sorted(self._tables[table])
        return keys
