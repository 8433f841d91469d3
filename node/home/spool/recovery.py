"""What a home reads at its start: the index of everything, and no body.

The lanes are there with their messages before the router says anything, so the home can report totals at
once; settings that changed meanwhile come with LANES. What a purge or a deletion left over is noticed here and
deleted later, in the background.

The spool is read in steps, with a word on progress after each, because the supervisor takes a start without
news for hung.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium_server.frames.settings import LaneSettings, settings_from
from node.backlog.segment import GONE, Segment, segment_key
from node.endpoints.resting import LaneStart
from node.home.spool import layout
from node.home.spool.held_lanes import HeldLane
from node.home.spool.writing import Dead
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from node.endpoints.lane import Lane
    from node.endpoints.lease import LeaseRow
    from node.endpoints.resting import RestingLane
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLanes
    from node.home.spool.records import Records
    from node.home.spool.staging import Staging
    from storage.spool import Spool

    #: Makes a lane: id, generation, settings, where it goes on.
    MakeLane = Callable[[int, int, LaneSettings, LaneStart], Lane | RestingLane]

#: Rows that are read at a time, in well under a tenth of a second.
ROWS_PER_STEP: Final = 2_000


class Recovery:
    """Reads a spool into the parts of a home, once."""

    def __init__(
        self,
        spool: Spool,
        lanes: HeldLanes,
        blocks: Blocks,
        records: Records,
        staging: Staging,
        make_lane: MakeLane,
    ) -> None:
        self._spool = spool
        self._lanes = lanes
        self._blocks = blocks
        self._records = records
        self._staging = staging
        self._make_lane = make_lane
        #: Whether the process before stopped in order.
        self.was_clean = False
        #: What META says of the STOREs.
        self.stored = layout.StoredRow(0, 0, (), 1)
        #: Segments on disk that belong to no lane; the last of each block has the block.
        self.left_over: list[Dead] = []
        #: Lanes that do not exist and have records or moves.
        self.lost_lanes: dict[int, None] = {}
        #: Lane -> row of MOVES.
        self.moves: dict[int, bytes] = {}
        #: Messages that were found.
        self.messages = 0

    def run(self, now: float, wall_ms: int) -> Iterator[str]:
        """Read everything; gives what it is at."""
        self.was_clean = self._spool.get(Table.META, layout.KEY_CLEAN) is not None
        self.stored = layout.unpack_stored(self._spool.get(Table.META, layout.KEY_STORED))
        self._blocks.next_id = self.stored.next_block
        yield "reading lanes"
        self._read_lanes(now)
        yield from self._read_segments(now, wall_ms)
        yield from self._count_blocks()
        yield from self._read_records()
        for key, value in self._spool.scan(Table.MOVES):
            lane_id = int.from_bytes(key, "big")
            if self._lanes.get(lane_id) is None:
                self.lost_lanes[lane_id] = None
            else:
                self.moves[lane_id] = value
        yield f"read {self.messages:,} messages"

    def _read_lanes(self, now: float) -> None:
        positions: dict[int, layout.Positions] = {}
        leases: dict[int, LeaseRow] = {}
        notes: dict[int, bytes] = {}
        rows: dict[int, layout.LaneRow] = {}
        for key, value in self._spool.scan(Table.LANES):
            lane_id = int.from_bytes(key[:8], "big")
            if len(key) == 8:
                rows[lane_id] = layout.unpack_lane(value)
            elif layout.is_lease_key(key):
                leases[lane_id] = layout.unpack_lease(value)
            elif layout.is_note_key(key):
                notes[lane_id] = value
            else:
                positions[lane_id] = layout.unpack_positions(value)
        told: dict[str, Any] | None = None
        settings = LaneSettings()
        for lane_id, row in rows.items():
            if row.settings != told:  # else it is the next lane of the same endpoint
                told, settings = row.settings, settings_from(row.settings)
            known = positions.get(lane_id, layout.Positions(0, 0))
            # Nothing below the floor is here any more, and no position of it is given again.
            tail = max(known.given, row.floor - 1)
            tried = 0 if self.was_clean else known.delivered
            is_doubled = row.importing == layout.COPIED
            importing = max(row.importing, 0)
            # What is taken over comes below what is here.
            first = known.given + 1 if importing else tail + 1
            start = LaneStart(first, known.delivered, tried)
            lane = self._make_lane(lane_id, row.generation, settings, start)
            held = HeldLane(lane, max(tail, importing - 1), row.floor)
            held.handovers, held.importing, held.is_doubled = row.handovers, importing, is_doubled
            held.is_parting = held.is_parted = row.importing == layout.PARTED
            held.note_positions(known)
            held.gaps, held.unsure = known.gaps, known.delivered
            self._lanes.add(held)
            held.take_note(notes.get(lane_id))
            if lane_id in leases:
                held.lane.leasing.load(leases[lane_id], now)

    def _read_segments(self, now: float, wall_ms: int) -> Iterator[str]:
        """Read segments and their states side by side, in the order of lanes and positions."""
        total = self._spool.count(Table.SEGMENTS)
        left_over: list[Dead] = []
        start, done = b"", 0
        while True:
            found = self._spool.scan(Table.SEGMENTS, start, None, ROWS_PER_STEP)
            if not found:
                break
            start = found[-1][0] + b"\x00"
            states = dict(self._spool.scan(Table.STATES, found[0][0], start))
            for key, value in found:
                segment = Segment.unpack(key, value, states.get(key))
                held = self._lanes.get(segment.lane_id)
                if held is None or segment.first < max(held.floor, held.importing) or not segment.live:
                    left_over.append(Dead(key, segment.block))
                else:
                    self._load(held, segment, now, wall_ms)
                self._blocks.next_id = max(self._blocks.next_id, segment.block + 1)
            done += len(found)
            yield f"reading the index: {done:,} of {total:,} segments, {self.messages:,} messages"
        yield from self._read_staged(left_over)
        self._note_left_over(left_over)

    def _read_staged(self, left_over: list[Dead]) -> Iterator[str]:
        """Read what is staged; what nobody takes joins what is left over."""
        start = b""
        while found := self._spool.scan(Table.STAGED, start, None, ROWS_PER_STEP):
            start = found[-1][0] + b"\x00"
            for key, value in found:
                place = layout.unpack_staged_key(key)
                generation, packed = layout.unpack_staged(value)
                segment = Segment.unpack(segment_key(place.lane_id, 0), packed, None)
                self._blocks.next_id = max(self._blocks.next_id, segment.block + 1)
                held = self._lanes.get(place.lane_id)
                is_ours = held is not None and (not held.importing or place.handovers == held.handovers)
                if held is not None and is_ours and generation == held.lane.generation:
                    self._blocks.find(segment.block, segment.file).segments.append(segment)
                    self._staging.load(held, key, place, segment)
                    self.messages += segment.live
                else:
                    left_over.append(Dead(segment.key(), segment.block, staged=key))
            yield f"reading stages: {self.messages:,} messages"

    def _load(self, held: HeldLane, segment: Segment, now: float, wall_ms: int) -> None:
        if held.importing:
            held.wait(segment)
        else:
            held.add(segment.live, segment.live_bytes)
            held.lane.load(segment, now, wall_ms)
        held.tail = held.accepted = held.stored = max(held.tail, segment.last)
        self._blocks.find(segment.block, segment.file).segments.append(segment)
        self.messages += segment.live

    def _note_left_over(self, left_over: list[Dead]) -> None:
        """Name each block that nobody needs any more with the last of its segments."""
        last = {dead.block_id: dead for dead in left_over if self._blocks.get(dead.block_id) is None}
        for dead in left_over:
            self.left_over.append(dead if last.get(dead.block_id) is dead else dead._replace(block_id=0))

    def _count_blocks(self) -> Iterator[str]:
        """Give the blocks that were found their sizes, and count them in their spool files."""
        for number, block in enumerate(self._blocks.in_order(), 1):
            if number % ROWS_PER_STEP == 0:
                yield f"counting spool files: {number:,} blocks"
            block.size = found_size(block.segments)
            self._blocks.count(block)

    def _read_records(self) -> Iterator[str]:
        start = b""
        while found := self._spool.scan(Table.RECORDS, start, None, ROWS_PER_STEP):
            start = found[-1][0] + b"\x00"
            for key, value in found:
                lane_id, _ = layout.key_numbers(key)
                if self._lanes.get(lane_id) is None:
                    self.lost_lanes[lane_id] = None
                else:
                    self._records.load(key, value)
            yield f"read {len(self._records):,} records of producers"


def found_size(segments: Sequence[Segment]) -> int:
    """Give the spool bytes of the messages of a block, each once; those that are gone count if they are known."""
    if len(segments) == 1 and segments[0].rows is None:
        return sum(segments[0].sizes)
    live: dict[int, int] = {}
    gone: dict[int, int] = {}
    for segment in segments:
        rows = range(segment.count) if segment.rows is None else segment.rows
        for row, state, size in zip(rows, segment.state, segment.sizes, strict=True):
            # Rows that were gone when the block was packed again have no row of their own in it.
            (gone if state == GONE else live)[row] = size
    return sum({**gone, **live}.values())
