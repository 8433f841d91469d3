"""Lanes that are in the spool and that no object of the config store claims: kept, not served, never purged.

A lane is deleted only if its deletion was decided: the router names such endpoints in the complete LANES. What else
the router does not name may belong to a config store that is lost, older, or of another data directory. Such a lane
stays on disk as it is, with messages, records and moves. Nobody is served from it, nothing in it expires, and its
blocks are not packed again. LANES that names it makes it a lane like any other again; an operator may also read it, or
delete it.

No I/O of its own, no clock; `node.home.lanes.lane_changes` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from node.backlog.settings import settings_map
from node.home.spool import layout
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from node.backlog.segment import Segment
    from node.home.lanes.moves import Moves
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.records import Records
    from node.home.spool.staging import Staging
    from storage.spool import Spool


class _Aside(NamedTuple):
    """A lane and what is staged for it, by its key on disk."""

    held: HeldLane
    staged: list[tuple[bytes, Segment]]


class KeptAside:
    """The lanes of a home that nobody claims."""

    def __init__(
        self, spool: Spool, lanes: HeldLanes, records: Records, moves: Moves, staging: Staging
    ) -> None:
        self._spool = spool
        self._lanes = lanes
        self._records = records
        self._moves = moves
        self._staging = staging
        #: None of them is in `HeldLanes`, which knows their ids.
        self._aside: dict[int, _Aside] = {}

    def __len__(self) -> int:
        """Give how many there are."""
        return len(self._aside)

    def __iter__(self) -> Iterator[HeldLane]:
        """Give them in the order in which they were put here."""
        return (aside.held for aside in self._aside.values())

    @property
    def messages(self) -> int:
        """Give how many messages they have."""
        return sum(held.lane.messages for held in self)

    def get(self, lane_id: int) -> HeldLane | None:
        """Give a lane that is kept aside."""
        aside = self._aside.get(lane_id)
        return None if aside is None else aside.held

    def put(self, held: HeldLane) -> None:
        """Keep a lane aside; its flows have ended, and what changed in it is noted."""
        staged = self._staging.put_aside(held)
        self._records.drop_lane(held.lane_id)
        self._moves.drop(held)
        self._lanes.put_aside(held)
        self._aside[held.lane_id] = _Aside(held, staged)

    def take_back(self, lane_id: int) -> HeldLane | None:
        """Make a lane one like any other again; None if it is not kept aside.

        Raises:
            UnavailableError: what the spool has of it is damaged (50322).
        """
        aside = self._aside.pop(lane_id, None)
        if aside is None:
            return None
        held = aside.held
        self._lanes.take_back(held)
        for key, segment in aside.staged:
            self._staging.load(held, key, layout.unpack_staged_key(key), segment)
        start, end = layout.number_key(lane_id), layout.lane_end(lane_id)
        for key, value in self._spool.scan(Table.RECORDS, start, end):
            self._records.load(key, value)
        moves = self._spool.get(Table.MOVES, start)
        if moves is not None:
            self._moves.load(lane_id, moves)
        self._lanes.refresh(held)
        return held

    def describe(self) -> list[dict[str, Any]]:
        """Give a row for each, as operators see it."""
        return [
            {
                "lane_id": held.lane_id,
                "kind": held.lane.settings.kind,
                "vpn": held.lane.settings.vpn,
                "name": held.lane.settings.name,
                "partition": held.partition,
                "generation": held.lane.generation,
                "messages": held.lane.messages,
                "bytes": held.lane.bytes,
                "oldest_stored_ms": held.lane.oldest_stored_ms,
                "settings": settings_map(held.lane.settings),
            }
            for held in self
        ]

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for lane_id, aside in self._aside.items():
            assert aside.held.lane_id == lane_id
            assert not aside.held.is_gone
            assert self._lanes.get(lane_id) is None
            assert self._lanes.is_aside(lane_id)
