"""The spools of the other workers, as a home needs them to take lanes over.

A worker that has left (the router has fewer) does not write its spool any more: whoever takes its lanes over opens
it for writing, under its lock. A worker that stays keeps its spool open; others only read it, and only lanes that
it has parted with: nothing changes in these any more. So nobody keeps a worker that was killed from starting again.

Several spools may have a lane. Each hand-over adds one to the number in its row, and a row is deleted only when the
lane is complete in a spool with a higher one. So the row with the highest number says where the lane was last, and the
mark of its import whether that spool has all of it:

    no mark, PARTED     it has; what others have is of no use to anybody
    COPIED              it has; the spool with the number below may still have the lane, and is to be rid of it
    a position          it has what came to it (`node.home.lanes.adoption`); all else is in the spool with the number
                        below, whose row says the same of itself

The rows from the latest down to one that has all, each with the number below the one before, are the *trail* of a lane.

No clock; the spools are reached through the port `Neighbours`. `node.home.lanes.adoption` and `early_copies` use
this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from angarium import errors
from node.home.spool import layout
from storage.spool import SpoolFullError, Table

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from contextlib import AbstractContextManager

    from node.home.lanes.outbox import Outbox
    from storage.spool import Spool


class Neighbours(Protocol):
    """The spools of the other workers of the node."""

    def names(self) -> list[str]:
        """Give the names of the other spools."""

    def view(self, name: str) -> AbstractContextManager[Spool]:
        """Give a spool to look at, whether its worker runs or not.

        Raises:
            UnavailableError: it is damaged (50322).
        """

    def read(self, name: str) -> Spool:
        """Give a spool to read, whether its worker runs or not; it stays open until `stop_reading`, or `open`.

        Raises:
            UnavailableError: it is damaged (50322), or not there.
        """

    def stop_reading(self, name: str) -> None:
        """Close a spool that may be open for reading."""

    def open(self, name: str) -> Spool | None:
        """Open a spool for writing; None while its worker runs. One at a time, until `close`.

        Raises:
            UnavailableError: it is damaged (50322).
        """

    def close(self) -> None:
        """Close the spool that is open for writing."""

    def remove(self, name: str) -> None:
        """Delete a spool that has no lanes any more."""

    def is_running(self, name: str) -> bool:
        """Tell whether some process has a spool open for writing; ours does not count."""

    def claim(self, name: str, lane_id: int) -> None:
        """Mark a lane so that any process that opens the spool keeps it."""

    def unclaim(self, name: str, lane_id: int) -> None:
        """Take a claim back."""

    def is_claimed(self, lane_id: int) -> bool:
        """Tell whether another worker claims a lane of our own spool."""

    def tell_taken(self, name: str, lane_id: int, handovers: int) -> None:
        """Let the worker of a spool know that a lane is elsewhere with all it has, on disk.

        Args:
            name: of the spool.
            lane_id: of the lane.
            handovers: how often the lane that may be deleted there had been handed over.
        """

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        """Tell whether that was said of a lane of our own spool."""

    def forget_taken(self, lane_id: int) -> None:
        """Forget all that was said of a lane of our own spool, also who claims it."""


class Old(NamedTuple):
    """A lane in another spool."""

    name: str
    row: layout.LaneRow
    #: Its lease, packed; None: it is not leased.
    lease: bytes | None


#: A lane in other spools, the latest first.
Trail = list[Old]


class Others:
    """What is open of the other spools, and who has left."""

    def __init__(self, neighbours: Neighbours | None, outbox: Outbox) -> None:
        """Know nothing yet; without neighbours there are no others."""
        self._neighbours = neighbours
        self._outbox = outbox
        #: How many workers the router has; None: it has not said. Those from there on have left, or are about to.
        self.workers: int | None = None
        #: The spool that is open for writing; there is one at a time.
        self._opened: Spool | None = None
        self._opened_name = ""
        #: Those that are open for reading.
        self._read: dict[str, None] = {}
        #: Spools that cannot be read, as operators were told.
        self._unreadable: dict[str, None] = {}

    def search(self, lane_ids: Iterable[int]) -> dict[int, Trail]:
        """Give the trails of the lanes that other spools have."""
        return self._trails(dict.fromkeys(lane_ids))

    def trails_below(self, handovers: Mapping[int, int]) -> dict[int, Trail]:
        """Give where lanes came from that are here: the trail of each below its number of hand-overs."""
        return self._trails(handovers)

    def _trails(self, below: Mapping[int, int | None]) -> dict[int, Trail]:
        rows: dict[int, Trail] = {}
        if self._neighbours is None or not below:
            return rows
        for name in self._neighbours.names():
            try:
                with self._neighbours.view(name) as spool:
                    for lane_id in below:
                        old = look(spool, name, lane_id)
                        if old is not None:
                            rows.setdefault(lane_id, []).append(old)
            except errors.UnavailableError as error:
                self._cannot_read(name, error)
        trails = {lane_id: _trail(found, below[lane_id]) for lane_id, found in rows.items()}
        return {lane_id: trail for lane_id, trail in trails.items() if trail}

    def _cannot_read(self, name: str, error: errors.AngariumError) -> None:
        if name not in self._unreadable:
            self._unreadable[name] = None
            self._outbox.event(
                "error", "spool_unreadable", f"spool {name}, where lanes may have been: {error}"
            )

    def read(self, name: str) -> Spool | None:
        """Give a spool to read; None if it cannot be read now."""
        assert self._neighbours is not None
        if self._opened is not None and self._opened_name == name:
            return self._opened
        try:
            spool = self._neighbours.read(name)
        except errors.UnavailableError as error:
            self._cannot_read(name, error)
            return None
        self._read[name] = None
        return spool

    def sources(self, names: list[str], lane_id: int) -> list[Spool]:
        """Give the spools to copy a lane from, which does not change there any more; none: not yet.

        Of several each is read: only one can be open for writing.
        """
        if len(names) == 1:
            source = self._at_rest(names[0], lane_id) or self.open(names[0])
            return [] if source is None else [source]
        assert self._neighbours is not None
        there = self._neighbours.names()
        if not all(name in there for name in names):
            return []
        found = [self._at_rest(name, lane_id, may_have_left=True) for name in names]
        sources = [spool for spool in found if spool is not None]
        return sources if len(sources) == len(names) else []

    def _at_rest(self, name: str, lane_id: int, *, may_have_left: bool = False) -> Spool | None:
        """Give a spool to read in which nothing of a lane changes: it was parted with, or the worker has left."""
        if self._opened is not None and self._opened_name == name:
            return self._opened
        found = None if (spool := self.read(name)) is None else look(spool, name, lane_id)
        if found is None:
            return None
        assert self._neighbours is not None
        has_left = may_have_left and self.has_left(name) and not self._neighbours.is_running(name)
        return spool if has_left or found.row.importing == layout.PARTED else None

    def open(self, name: str) -> Spool | None:
        """Open the spool of a worker that has left for writing; None while it runs, or if it may come back."""
        assert self._neighbours is not None
        if self._opened is not None and self._opened_name == name:
            return self._opened
        if not self.has_left(name) or self._neighbours.is_running(name):
            return None
        self.close()
        self.stop_reading(name)
        try:
            self._opened = self._neighbours.open(name)
        except errors.UnavailableError as error:
            self._cannot_read(name, error)
        self._opened_name = name
        return self._opened

    def has_left(self, name: str) -> bool:
        """Tell whether the worker of a spool is none any more."""
        return self.workers is not None and int(name) >= self.workers

    def delete(self, name: str, lane_id: int, handovers: int) -> bool:
        """Have a lane deleted that is here with all it has; False: not yet.

        A worker that has left does not do it any more; one that runs is told, and does it.
        """
        assert self._neighbours is not None
        if name not in self._neighbours.names():
            return True  # its worker deleted the lane before it left, and who deleted the last one the spool
        source = self.open(name)
        if source is not None:
            if not _try_to_delete(source, lane_id):
                return False
        else:
            spool = self.read(name)
            if spool is None or spool.get(Table.LANES, layout.number_key(lane_id)) is not None:
                self._neighbours.tell_taken(name, lane_id, handovers)
                return False
        self._neighbours.unclaim(name, lane_id)
        if source is not None and not source.count(Table.LANES):
            self.close()
            self._neighbours.remove(name)
        return True

    def claim(self, name: str, lane_id: int) -> None:
        """See `Neighbours.claim`."""
        assert self._neighbours is not None
        self._neighbours.claim(name, lane_id)

    def unclaim(self, name: str, lane_id: int) -> None:
        """See `Neighbours.unclaim`."""
        assert self._neighbours is not None
        self._neighbours.unclaim(name, lane_id)

    def is_claimed(self, lane_id: int) -> bool:
        """Tell whether another worker waits for a lane that we do not serve any more."""
        return self._neighbours is not None and self._neighbours.is_claimed(lane_id)

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        """Tell whether a lane that we do not serve any more is elsewhere with all it has."""
        return self._neighbours is not None and self._neighbours.is_taken(lane_id, handovers)

    def forget_taken(self, lane_id: int) -> None:
        """See `Neighbours.forget_taken`."""
        if self._neighbours is not None:
            self._neighbours.forget_taken(lane_id)

    def close(self) -> None:
        """Close the spool that is open for writing."""
        if self._opened is not None and self._neighbours is not None:
            self._neighbours.close()
        self._opened, self._opened_name = None, ""

    def stop_reading(self, name: str) -> None:
        """Close a spool that is open for reading."""
        if name in self._read and self._neighbours is not None:
            del self._read[name]
            self._neighbours.stop_reading(name)

    def keep_only(self, needed: Container[str]) -> None:
        """Close all spools but those that something is still to be done in: their workers may start again."""
        if self._opened is not None and self._opened_name not in needed:
            self.close()
        for name in [name for name in self._read if name not in needed]:
            self.stop_reading(name)


def _trail(rows: Trail, below: int | None) -> Trail:
    """Give the trail among the rows of a lane: from the latest, or from the one with the number below this one."""
    trail: Trail = []
    number = max(old.row.handovers for old in rows) if below is None else below - 1
    while old := next((old for old in rows if old.row.handovers == number), None):
        trail.append(old)
        if old.row.importing in (0, layout.PARTED):
            break
        number -= 1
    return trail


def look(spool: Spool, name: str, lane_id: int) -> Old | None:
    """Look for a lane in a spool."""
    value = spool.get(Table.LANES, layout.number_key(lane_id))
    if value is None:
        return None
    return Old(name, layout.unpack_lane(value), spool.get(Table.LANES, layout.lease_key(lane_id)))


def _try_to_delete(spool: Spool, lane_id: int) -> bool:
    """Delete a lane in a spool; False if there is no room for that."""
    try:
        spool.commit([(Table.LANES, key, None) for key in layout.keys_of_lane(lane_id)])
    except SpoolFullError:
        return False
    return True
