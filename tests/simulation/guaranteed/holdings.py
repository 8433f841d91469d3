"""What a node holds at a moment, wherever it is: what limits are judged by.

A home that runs has its messages in memory, also those that a relaxed endpoint has accepted and not written; of one
that does not run, and of lanes that it does not serve any more, the disk tells. A message that moves to another
endpoint counts where it goes to as soon as it is there: that it is deleted where it was is certain then.
Nor does a lane count where it was when its new home has all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from angarium import wire
from node.backlog.segment import GONE, Segment
from node.home.lanes.jobs import KIND_COPY
from node.home.spool import layout
from node.home.spool.records import Record
from storage.spool import Table
from tests.simulation.guaranteed.records import endpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode
    from tests.simulation.guaranteed.simulated_home import SimulatedHome
    from tests.simulation.simulated_disk import SimulatedDisk

#: Lane -> its segments at one worker.
Lanes = dict[int, list[Segment]]


def holdings(node: GuaranteedNode) -> tuple[dict[int, int], dict[int, None]]:
    """Give the spool bytes of every endpoint, and the spool files in use."""
    places: list[Lanes] = []
    files: dict[int, None] = {}
    for index, place in node.disks.items():
        home = node.homes.get(index)
        is_alive = home is not None and home.is_ready and node.supervisor.workers.get(index) is not None
        lanes = _on_disk(place.disk)
        if home is not None and is_alive:
            lanes |= _in_memory(home)
            files |= dict.fromkeys(home.home.parts.blocks.files)
        places.append(lanes)
        found = (segment for segments in lanes.values() for segment in segments if segment.live)
        files |= dict.fromkeys(segment.file for segment in found)
    moved = dict(_moved(node))
    held: dict[int, int] = {}
    for lanes, left in zip(places, _left(node), strict=True):
        for lane, segments in lanes.items():
            if lane in left:
                continue
            size = sum(_size(segment, moved.get(lane, {})) for segment in segments)
            held[endpoint_of(lane)] = held.get(endpoint_of(lane), 0) + size
    return held, files


def _size(segment: Segment, moved: dict[int, None]) -> int:
    """Give the bytes of the messages of a segment without those that are somewhere else by now."""
    return sum(
        segment.sizes[i]
        for i in range(segment.count)
        if segment.state[i] != GONE and segment.first + i not in moved
    )


def _in_memory(home: SimulatedHome) -> Lanes:
    return {held.lane_id: [*held.lane.segments, *held.waiting] for held in home.home.lanes}


def _rows(disk: SimulatedDisk) -> dict[int, layout.LaneRow]:
    rows = disk.scan(Table.LANES)
    return {int.from_bytes(key, "big"): layout.unpack_lane(value) for key, value in rows if len(key) == 8}


def _on_disk(disk: SimulatedDisk) -> Lanes:
    lanes: Lanes = {}
    for lane, row in _rows(disk).items():
        found = [
            Segment.unpack(at, packed, disk.get(Table.STATES, at))
            for at, packed in disk.scan(Table.SEGMENTS, layout.number_key(lane), layout.lane_end(lane))
        ]
        lanes[lane] = [one for one in found if one.first >= max(row.floor, row.importing)]
    return lanes


def _left(node: GuaranteedNode) -> list[list[int]]:
    """Give for each disk the lanes that are on another one by now, with all they have."""
    disks = [_rows(place.disk) for place in node.disks.values()]
    newest: dict[int, int] = {}
    for lane, row in (one for rows in disks for one in rows.items()):
        if row.importing in (0, layout.COPIED):
            newest[lane] = max(row.handovers, newest.get(lane, 0))
    return [[lane for lane, row in rows.items() if row.handovers < newest.get(lane, 0)] for rows in disks]


def _moved(node: GuaranteedNode) -> Iterator[tuple[int, dict[int, None]]]:
    """Give the lanes with a move under way, with the positions that the target has."""
    disks = [place.disk for place in node.disks.values()]
    for disk in disks:
        for key, value in disk.scan(Table.MOVES):
            intent = msgpack.unpackb(value)[2]
            if intent is None or intent[1] == KIND_COPY:
                continue
            first, positions = intent[0], intent[3]
            stored = dict.fromkeys(_stored(disks, wire.INTERNAL_PRODUCER | int.from_bytes(key, "big")))
            yield (
                int.from_bytes(key, "big"),
                {position: None for i, position in enumerate(positions) if first + i in stored},
            )


def _stored(disks: Iterable[SimulatedDisk], producer: int) -> Iterator[int]:
    """Give the newest sequences of a producer that some lane has stored, as far as a move can ask for them."""
    for disk in disks:
        for key, value in disk.scan(Table.RECORDS):
            if int.from_bytes(key[8:], "big") == producer:
                record = Record.unpack(value, producer)
                last, refused = max([record.last, *record.older.values()]), [one[0] for one in record.refused]
                yield from (at for at in range(max(1, last - 300), last + 1) if at not in refused)
