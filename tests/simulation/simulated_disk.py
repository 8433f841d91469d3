"""A disk in memory that a simulation can fill, break and pull the plug of; it is a `storage.spool.Spool`.

`commit` is durable at once, as the contract says. A simulation that wants time between takes the two halves:
`begin` hands the changes to the disk, `finish` makes them durable; a `crash` between the two keeps or loses
the whole group, as a disk does whose last write was or was not complete.

A disk that lies (`holds_syncs`) says that commits are durable and keeps them where a crash can take them: some
of the newest ones are lost then, whole commits from the end, and never one from the middle. A broker cannot
survive that without losses; who checks histories must notice.

What is random comes from the generator that the caller gives, so a seed tells what is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, TypeAlias

from storage.spool import SpoolFailedError, SpoolFullError, Table, nothing

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from storage.spool import Change

    #: What a key had before a commit; None: it was not there.
    Before: TypeAlias = tuple[Table, bytes, bytes | None]

#: As LMDB has it, so that a key that is too long for it is found here too.
KEY_BYTES_MAX: Final = 511


class SimulatedDisk:
    """The spool of one worker; it outlives the process that uses it."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        #: Table -> its keys in order, or None if they have to be sorted again.
        self._sorted: dict[Table, list[bytes] | None] = dict.fromkeys(Table)
        #: The group that was handed over and is not finished.
        self._begun: list[Change] | None = None
        #: What undoes each commit that was not synced, the oldest first.
        self._unsynced: list[list[Before]] = []
        self._size = 0
        #: Every commit fails for want of room.
        self.is_full = False
        #: A commit that adds blocks fails if the tables would take more; like LMDB it leaves room to delete.
        self.capacity_bytes: int | None = None
        #: What may be under way; 0: commits find room, and nothing new is to be admitted.
        self.room_bytes = 1 << 40
        #: The next commit fails, as a disk does whose sync fails.
        self.is_failing = False
        #: Commits are said to be durable and are not before `sync`.
        self.holds_syncs = False
        self.commits = 0

    # -- the port --------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        """See `Spool.commit`."""
        self.begin(changes)
        handed_over()
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
        return self._size

    def close(self) -> None:
        """See `Spool.close`; what is on the disk stays."""

    # -- time and faults -------------------------------------------------------------------------------------

    def begin(self, changes: Sequence[Change]) -> None:
        """Hand a group over; it is neither durable nor to be read before `finish`.

        Raises:
            SpoolFullError: there is no room.
        """
        assert self._begun is None, "one group at a time"
        assert all(0 < len(key) <= KEY_BYTES_MAX for _, key, _ in changes), "LMDB takes no such key"
        if self.is_full or not self._has_room(changes):
            raise SpoolFullError("the simulated disk is full")
        self._begun = list(changes)

    def finish(self) -> None:
        """Make the group durable.

        Raises:
            SpoolFailedError: whether it is on disk nobody knows; `crash` decides.
        """
        assert self._begun is not None, "nothing was begun"
        if self.is_failing:
            raise SpoolFailedError("the sync of the simulated disk failed")
        changes, self._begun = self._begun, None
        before = [self._apply(change) for change in changes]
        if self.holds_syncs:
            self._unsynced.append(before)
        self.commits += 1

    def sync(self) -> None:
        """Make durable what was held."""
        self._unsynced.clear()

    def crash(self, rng: random.Random) -> bool:
        """Let the process and the machine die; true if anything of what was handed over is lost.

        The group under way is there or not, as a whole; of commits that were not synced some of the newest go.
        """
        self.is_failing = False
        is_lost = False
        if self._begun is not None:
            is_lost = rng.random() < 0.5
            if not is_lost:
                self.finish()
            self._begun = None
        if self._unsynced:
            for _ in range(rng.randint(0, len(self._unsynced))):
                is_lost = True
                for change in reversed(self._unsynced.pop()):
                    self._apply(change)
        self.sync()
        return is_lost

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        rows = [row for table in self._tables.values() for row in table.items()]
        assert self._size == sum(len(key) + len(value) for key, value in rows)
        for table, keys in self._sorted.items():
            assert keys is None or keys == sorted(self._tables[table])

    def _has_room(self, changes: Sequence[Change]) -> bool:
        if self.capacity_bytes is None or all(
            table is not Table.BLOCKS or value is None for table, _, value in changes
        ):
            return True
        added = sum(len(key) + len(value) for _, key, value in changes if value is not None)
        return self._size + added <= self.capacity_bytes

    def _apply(self, change: Change) -> Before:
        """Carry a change out; gives the change that undoes it."""
        table, key, value = change
        rows = self._tables[table]
        before = rows.pop(key, None) if value is None else rows.get(key)
        if value is not None:
            rows[key] = value
        if before is not None:
            self._size -= len(key) + len(before)
        if value is not None:
            self._size += len(key) + len(value)
        if (before is None) != (value is None):
            self._sorted[table] = None
        return table, key, before

    def _keys(self, table: Table) -> list[bytes]:
        keys = self._sorted[table]
        if keys is None:
            keys = self._sorted[table] = sorted(self._tables[table])
        return keys
