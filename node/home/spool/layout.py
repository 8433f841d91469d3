"""What the home writes into the tables of the spool: keys, values and their checks.

    META      "stored"              [router incarnation, number, [numbers below it that are not stored], next block id]
              "clean"               there after an orderly stop; the next start removes it
    LANES     lane                  [format, generation, floor, handovers, importing, settings]
              lane 0x01             numbers given up to, delivered up to, and first and last of each gap (8 bytes each)
              lane 0x02             [format, group, epoch, lease ms, acknowledged, lost, [[first, end], ...]]
                                    while a reader group has leased the lane
              lane 0x03             the note of its consumer, while there is one; of a queue that is shared
                                    [[holder, note, [position, ...]], ...]
    SEGMENTS  lane first            `Segment.pack`
    STATES    lane first            `Segment.pack_state`
    BLOCKS    block                 CRC-32 of the rest (4 bytes), stored wall ms (8), rows (4), batch
    RECORDS   lane producer         [last sequence, rows, [[sequence, code, rows before], ...]]; of several
                                    partitions also their number, [[other number, last sequence], ...]
    MOVES     lane                  what `node.home.lanes.moves` says
    STAGED    lane stage place      generation (8 bytes), `Segment.pack`

What is staged has no position yet, so it has a place: in the order in which it came, over all homes of its lane.

Numbers in keys have 8 bytes and are big-endian, so that keys sort by lane and then by position. A row of
LANES makes a lane exist: segments, states, records, moves and stages of a lane without one are what a purge has left
over, and are deleted.

No I/O. The home and those that check or copy a spool use this.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from angarium import errors, wire
from node.endpoints.holdings import HoldingRow
from node.endpoints.lease import LeaseRow

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Keys of META.
KEY_STORED: Final = b"stored"
KEY_CLEAN: Final = b"clean"

_LANE_FORMAT: Final = 1
#: The mark of an import that is complete, until the lane is deleted in the spool that it came from.
COPIED: Final = -1
#: The mark of a lane that another worker takes over: nothing of it changes here any more, until it is deleted.
PARTED: Final = -2
_BLOCK_HEAD: Final = struct.Struct(">QI")
_CRC_BYTES: Final = 4
#: Bytes of a block before its batch.
BLOCK_HEAD_BYTES: Final = _CRC_BYTES + _BLOCK_HEAD.size
_POSITIONS: Final = struct.Struct(">QQ")
_POSITIONS_MARK: Final = b"\x01"
_LEASE_MARK: Final = b"\x02"
_LEASE_FORMAT: Final = 1
_NOTE_MARK: Final = b"\x03"

#: A place is the number of hand-overs of the lane, and in so many bits a number that rises at its home.
_PLACE_BITS: Final = 40

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class StoredRow(NamedTuple):
    """The row "stored" of META."""

    #: The router whose numbers these are; 0 before the first.
    router: int
    #: The highest number that is stored.
    number: int
    #: Numbers below it that are not: relaxed STOREs that wait for their write.
    missing: tuple[int, ...]
    #: No block has this id or a higher one.
    next_block: int


class LaneRow(NamedTuple):
    """The row of a lane in LANES."""

    generation: int
    #: Segments that start below this position are purged.
    floor: int
    #: How often the lane went from one home to another.
    handovers: int
    #: Segments below this position are an import that is not complete; 0: there is none; COPIED: all of it is here;
    #: PARTED: another worker takes it over.
    importing: int
    settings: dict[str, Any]

    @property
    def is_unfinished(self) -> bool:
        """Whether the rest of the lane is in the spool that it was being taken over from."""
        return self.importing > 0


class Positions(NamedTuple):
    """The second row of a lane in LANES."""

    #: No message gets a position up to this one any more.
    given: int
    #: Messages up to this position may have been seen by a consumer.
    delivered: int
    #: Positions [first, last], rising, whose messages were lost with a process that had shown them to consumers.
    gaps: tuple[tuple[int, int], ...] = ()


def number_key(number: int) -> bytes:
    """Give the key of a lane or a block."""
    return number.to_bytes(8, "big")


def pair_key(lane_id: int, number: int) -> bytes:
    """Give the key of something that a lane has many of."""
    return lane_id.to_bytes(8, "big") + number.to_bytes(8, "big")


def key_numbers(key: bytes) -> tuple[int, int]:
    """Undo `pair_key`.

    Raises:
        UnavailableError: it is no such key (50322).
    """
    if len(key) != 16:
        raise damaged(f"a key of {len(key)} bytes, 16 are right")
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


class StagedKey(NamedTuple):
    """Where rows of a stage lie."""

    lane_id: int
    stage: int
    #: How often the lane had been handed over when they came.
    handovers: int
    #: Rises among those of one home.
    number: int

    def pack(self) -> bytes:
        """Give the key in STAGED."""
        place = self.handovers << _PLACE_BITS | self.number
        return b"".join(part.to_bytes(8, "big") for part in (self.lane_id, self.stage, place))


def unpack_staged_key(key: bytes) -> StagedKey:
    """Undo `StagedKey.pack`.

    Raises:
        UnavailableError: it is no such key (50322).
    """
    if len(key) != 24:
        raise damaged(f"a key of {len(key)} bytes, 24 are right")
    lane_id, stage, place = (int.from_bytes(key[at : at + 8], "big") for at in (0, 8, 16))
    return StagedKey(lane_id, stage, place >> _PLACE_BITS, place & (1 << _PLACE_BITS) - 1)


def pack_staged(generation: int, segment: bytes) -> bytes:
    """Give the value of staged rows."""
    return generation.to_bytes(8, "big") + segment


def unpack_staged(value: bytes) -> tuple[int, bytes]:
    """Undo `pack_staged`: the generation of the endpoint that the rows matched, and their segment.

    Raises:
        UnavailableError: it is damaged (50322).
    """
    if len(value) <= 8:
        raise damaged(f"staged rows of {len(value)} bytes")
    return int.from_bytes(value[:8], "big"), value[8:]


def lane_end(lane_id: int) -> bytes:
    """Give the first key behind everything of a lane."""
    return (lane_id + 1).to_bytes(8, "big")


def positions_key(lane_id: int) -> bytes:
    """Give the key of the second row of a lane."""
    return number_key(lane_id) + _POSITIONS_MARK


def lease_key(lane_id: int) -> bytes:
    """Give the key of the lease of a lane."""
    return number_key(lane_id) + _LEASE_MARK


def is_lease_key(key: bytes) -> bool:
    """Tell whether a key of LANES is that of a lease."""
    return key[8:] == _LEASE_MARK


def note_key(lane_id: int) -> bytes:
    """Give the key of the note of a lane."""
    return number_key(lane_id) + _NOTE_MARK


def pack_holdings(rows: Iterable[HoldingRow]) -> bytes:
    """Pack what consumers of a queue hold that is shared."""
    packed: bytes = _pack(list(rows))
    return packed


def unpack_holdings(value: bytes) -> list[HoldingRow]:
    """Undo `pack_holdings`."""
    return [HoldingRow(*row) for row in msgpack.unpackb(value)]


def is_note_key(key: bytes) -> bool:
    """Tell whether a key of LANES is that of a note."""
    return key[8:] == _NOTE_MARK


def keys_of_lane(lane_id: int) -> tuple[bytes, ...]:
    """Give the keys of all rows that a lane may have in LANES."""
    return number_key(lane_id), positions_key(lane_id), lease_key(lane_id), note_key(lane_id)


def pack_stored(row: StoredRow) -> bytes:
    """Pack the row "stored"."""
    packed: bytes = _pack([row.router, row.number, row.missing, row.next_block])
    return packed


def unpack_stored(value: bytes | None) -> StoredRow:
    """Undo `pack_stored`; a new spool has no such row.

    Raises:
        UnavailableError: it is damaged (50322).
    """
    if value is None:
        return StoredRow(0, 0, (), 1)
    router, number, missing, next_block = unpack(value, 4, "META stored")
    return StoredRow(router, number, tuple(missing), next_block)


def pack_lane(row: LaneRow) -> bytes:
    """Pack the row of a lane."""
    packed: bytes = _pack([_LANE_FORMAT, *row])
    return packed


def unpack_lane(value: bytes) -> LaneRow:
    """Undo `pack_lane`.

    Raises:
        UnavailableError: it is damaged, or of another format (50322).
    """
    version, generation, floor, handovers, importing, settings = unpack(value, 6, "a lane")
    if version != _LANE_FORMAT:
        raise damaged(f"a lane of format {version}, this program reads {_LANE_FORMAT}")
    return LaneRow(generation, floor, handovers, importing, settings)


def pack_positions(row: Positions) -> bytes:
    """Pack the second row of a lane."""
    return b"".join(_POSITIONS.pack(*pair) for pair in ((row.given, row.delivered), *row.gaps))


def unpack_positions(value: bytes) -> Positions:
    """Undo `pack_positions`.

    Raises:
        UnavailableError: it is damaged (50322).
    """
    if not value or len(value) % _POSITIONS.size:
        raise damaged(f"positions of {len(value)} bytes")
    (given, delivered), *gaps = _POSITIONS.iter_unpack(value)
    return Positions(given, delivered, tuple(gaps))


def pack_lease(row: LeaseRow) -> bytes:
    """Pack the lease of a lane."""
    packed: bytes = _pack([_LEASE_FORMAT, *row])
    return packed


def unpack_lease(value: bytes) -> LeaseRow:
    """Undo `pack_lease`.

    Raises:
        UnavailableError: it is damaged, or of another format (50322).
    """
    version, group, epoch, lease_ms, acknowledged, lost, ranges = unpack(value, 7, "a lease")
    if version != _LEASE_FORMAT:
        raise damaged(f"a lease of format {version}, this program reads {_LEASE_FORMAT}")
    return LeaseRow(group, epoch, lease_ms, acknowledged, lost, [(first, end) for first, end in ranges])


def pack_block(stored_ms: int, rows: int, batch: bytes) -> bytes:
    """Give the value of a block."""
    head = _BLOCK_HEAD.pack(stored_ms, rows)
    crc = zlib.crc32(batch, zlib.crc32(head))
    return b"".join((crc.to_bytes(_CRC_BYTES, "big"), head, batch))


def open_block(value: bytes | None, rows: int, name: str) -> bytes:
    """Give the batch of a block, checked.

    Args:
        value: as it was read; None: it is not there.
        rows: how many it must have; 0 if that is not known.
        name: what to call it when it is damaged.

    Raises:
        UnavailableError: it is missing or damaged (50322).
    """
    if value is None:
        raise damaged(f"{name} is missing")
    if len(value) <= BLOCK_HEAD_BYTES or zlib.crc32(memoryview(value)[_CRC_BYTES:]) != int.from_bytes(
        value[:_CRC_BYTES], "big"
    ):
        raise damaged(f"{name} does not have its checksum")
    _, stored_rows = _BLOCK_HEAD.unpack_from(value, _CRC_BYTES)
    batch_rows = wire.array_length(value[BLOCK_HEAD_BYTES : BLOCK_HEAD_BYTES + 5])
    if batch_rows != stored_rows or (rows and stored_rows != rows):
        raise damaged(
            f"{name} has {batch_rows} rows, its head says {stored_rows}, {rows or 'any number'} are right"
        )
    return value[BLOCK_HEAD_BYTES:]


def unpack(value: bytes, fields: int | tuple[int, ...], name: str) -> list[Any]:
    """Unpack a row that is an array of so many fields, or of one of these numbers.

    Raises:
        UnavailableError: it is not (50322).
    """
    try:
        row = msgpack.unpackb(value, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise damaged(f"the row of {name}: {error}") from None
    known = (fields,) if isinstance(fields, int) else fields
    if not isinstance(row, list) or len(row) not in known:
        raise damaged(f"the row of {name} does not have {fields} fields")
    return row


def damaged(detail: str) -> errors.AngariumError:
    """Give the error of a spool that is not as it was written (50322)."""
    return errors.error_for(errors.SPOOL_DAMAGED, detail)
