"""Placing: what a lane got while it was taken over gets its true positions.

No I/O, no clock; `node.home.lanes.adoption` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from node.backlog.segment import Segment, segment_key
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL
from storage.spool import Table

if TYPE_CHECKING:
    from node.home.spool.held_lanes import HeldLane
    from node.home.spool.writing import Writing
    from storage.spool import Change

_TABLES: Final = (Table.SEGMENTS, Table.STATES)


class Placing:
    """One lane on its way from provisional to true positions.

    Positions of a lane are dense, and stay when the lane moves to another home. The old home may assign more of them
    until it has ended, so what arrives here meanwhile has provisional positions, above all final ones. These messages
    move down behind the last position assigned there, in one transaction with the mark of the import. On disk a
    position is only part of the key of a segment, so no segment is packed again.

    The disk comes first: the changes are computed from what is on disk, or in the same write, and memory follows when
    they are durable. A failed write changes nothing. Messages that arrive during the write get provisional positions
    and are moved in memory. Segments that were emptied or deleted during the write have their new key by then, and are
    deleted under that one.
    """

    def __init__(self, held: HeldLane, writing: Writing, old: layout.Positions, last: int) -> None:
        """Plan it.

        Args:
            held: the lane, with provisional positions.
            writing: of the home.
            old: what the old home noted of its positions.
            last: the last position that is in use there, or below which everything was purged.
        """
        self._held = held
        self._writing = writing
        self._old = old
        self._tail = max(old.given, last)
        #: What consumers may have seen, and the old home did not store before it ended, is lost.
        self._lost = max(old.delivered - self._tail, 0)
        self._tail += self._lost
        #: Key on disk -> the one that takes its place.
        self._keys: dict[bytes, bytes] = {}

    def changes(self) -> list[Change]:
        """Give the changes as things are when they are written."""
        held = self._held
        if held.is_gone:
            return []
        written = [one for one in self._segments() if self._writing.is_written(one)]
        self._keys = {one.key(): segment_key(one.lane_id, self._placed(one.first)) for one in written}
        changes: list[Change] = [(table, key, None) for key in self._keys for table in _TABLES]
        for segment, key in zip(written, self._keys.values(), strict=True):
            changes.append((Table.SEGMENTS, key, segment.pack()))
            if segment.has_state:
                changes.append((Table.STATES, key, segment.pack_state()))
        changes.append(held.row_change(importing=self._tail + 1, floor=self._floor()))
        row = layout.pack_positions(self._positions())
        changes.append((Table.LANES, layout.positions_key(held.lane_id), row))
        return changes

    def done(self) -> None:
        """Take note that the changes are durable."""
        held = self._held
        self._writing.rename(self._keys)
        if held.is_gone:
            return
        held.floor = self._floor()
        for segment in self._segments():
            segment.first = self._placed(segment.first)
        held.tail, held.stored = self._placed(held.tail), self._placed(held.stored)
        held.accepted = self._placed(held.accepted)
        if held.lane.retained is not None:
            held.lane.retained.stored_upto = held.stored
        held.importing = self._tail + 1
        row = self._positions()
        held.note_positions(row)
        held.gaps = row.gaps
        held.lane.note_delivered(row.delivered)

    def _segments(self) -> list[Segment]:
        """Give everything that the lane has here, accepted or not."""
        return list(dict.fromkeys([*self._held.waiting, *self._writing.unstored(self._held)]))

    def _placed(self, position: int) -> int:
        return position - PROVISIONAL + self._tail

    def _floor(self) -> int:
        floor = self._held.floor
        return self._placed(floor) if floor > PROVISIONAL else floor

    def _positions(self) -> layout.Positions:
        gaps = self._old.gaps
        if self._lost:
            gaps = (*gaps, (self._tail - self._lost + 1, self._tail))
        return layout.Positions(self._tail, self._old.delivered, gaps)
