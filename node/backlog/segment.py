"""A segment: a run of consecutive positions of one lane whose rows lie in one block of the spool.

The index of spooled messages lives in memory for all of them, so it is made of arrays: a message costs at
most 64 bytes, about 10 in a plain queue. Bodies are never here. A row of a segment is
named by its number `i` in it, from 0; its position in the lane is `segment.first + i`, and it is row
`segment.row_in_block(i)` of block `segment.block`.

Two durable records belong to a segment, both with the key `Segment.key()`: what never changes (`pack`), and
what happened to its messages since (`pack_state`; without it all rows are there and were never tried). Both
are MessagePack arrays; numbers in arrays are little-endian wherever they are written.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgpack

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.trail import Route
    from node.backlog.time_index import Schedule

#: Finally removed.
GONE: Final = 0
#: May be handed out.
READY: Final = 1
#: Delivered to a flow, and not settled.
OUT: Final = 2
#: Waits: for the selector of a topic endpoint, for its delivery delay or for its redelivery delay.
HELD: Final = 3
#: Dead or taken by an operator: the home moves or deletes it.
MOVING: Final = 4
STATES: Final = (GONE, READY, OUT, HELD, MOVING)

#: Why a message is dead, by the code in `Segment.dead`.
REASONS: Final = ("", "expired", "redeliveries", "rejected")
EXPIRED: Final = 1
REDELIVERIES: Final = 2
REJECTED: Final = 3

#: Priority of a message without one; higher than 9 counts as 9.
PRIORITY_UNSET: Final = 4
PRIORITY_MAX: Final = 9
#: No wall time of ours is later; a message with a longer life never expires.
TIME_MAX_MS: Final = (1 << 63) - 1
#: No position is higher.
POSITION_MAX: Final = (1 << 63) - 1
#: Ages of the rows of a segment fit into 32 bits.
AGES_MAX_MS: Final = (1 << 32) - 1
#: Row numbers of a block fit into 16 bits.
BLOCK_ROWS_MAX: Final = 1 << 16

#: Format 1 had no publisher; it is read, never written.
_FORMAT: Final = 3
_FORMATS: Final = {1: 13, 2: 14, 3: 15}
_KEY_BYTES: Final = 16
_STATE_FIELDS: Final = 3
#: Flags of a row -> 1 if it has low priority: class of service 1 or 2 (R176).
_LOW_PRIORITY: Final = bytes(int((flags & wire.FLAG_COS) >> wire.COS_SHIFT < 2) for flags in range(256))
#: Flags of a row -> digit of its bit in a bitmap: may it move to a dead message queue.
_ELIGIBLE_DIGIT: Final = bytes(b"01"[bool(flags & wire.FLAG_DMQ_ELIGIBLE)] for flags in range(256))
#: State -> digit of the bit of a gone row.
_GONE_DIGIT: Final = bytes(b"01"[state == GONE] for state in range(256))

#: Origin of a message that was moved: kind and name of the endpoint, and why.
Origin = tuple[str, str, str]
#: What a message had behind it: delivery attempts, and wall ms at which it was spooled, at which its own time to live
#: ends and before which it may not be delivered (0: never, at once).
Past = tuple[int, int, int, int]


class Row(Protocol):
    """What is looked at in a row of a block; `node.matching.batch.Row` is one."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def flags(self) -> int:
        """Mode, class of service and the flags of `angarium.wire`."""

    @property
    def meta(self) -> tuple[int, int, int | None, Route] | None:
        """Time to live and delay in ms, priority, partition key."""

    @property
    def properties(self) -> bytes | None:
        """Packed properties."""

    @property
    def payload(self) -> bytes:
        """The payload."""


class Columns(NamedTuple):
    """What a segment is made of: its rows, one column per attribute."""

    #: The block in which the rows lie, and the spool file in which that counts.
    block: int
    file: int
    #: Wall ms when they were spooled.
    stored_ms: int
    #: Spool size of each row in bytes: payload, properties and the overhead.
    sizes: array[int]
    #: Row i of the segment -> row of the block; None: they are the same.
    rows: array[int] | None = None
    #: Ms after `stored_ms` when each row was spooled, in any order; None: all at `stored_ms`.
    ages: array[int] | None = None
    #: Wall ms at which each message's own time to live ends, 0 for never; None: it has none anywhere.
    expires: array[int] | None = None
    #: Wall ms before which each message may not be delivered, 0 for at once; None: no delay anywhere.
    due: array[int] | None = None
    #: Priority 0..9 of each row; None: all have `PRIORITY_UNSET`.
    priorities: bytes | None = None
    #: Bitmap of the rows that may move to a dead message queue (row i: bit i % 8 of byte i // 8); None: no row.
    dmq: bytes | None = None
    #: Where each message was before it was moved here; None: none was.
    origins: list[Origin | None] | None = None
    #: Rows with low priority as the publisher sent them.
    low_priority: int = 0
    #: Number of the client that published all rows, or of each row (`StoreHeader.publisher`); 0: nobody knows.
    publishers: int | array[int] = 0


class Segment:
    """The index of a run of messages. Only its lane changes it after it was appended or loaded."""

    __slots__ = (
        *Columns._fields,
        "count",
        "dead",
        "delay",
        "expiry",
        "first",
        "lane_id",
        "levels",
        "live",
        "live_bytes",
        "state",
        "timer",
        "tries",
    )

    #: As in `Columns`; flat, because every message is looked up in them.
    block: int
    file: int
    stored_ms: int
    sizes: array[int]
    rows: array[int] | None
    ages: array[int] | None
    expires: array[int] | None
    due: array[int] | None
    priorities: bytes | None
    dmq: bytes | None
    origins: list[Origin | None] | None
    low_priority: int
    publishers: int | array[int]

    def __init__(self, lane_id: int, first: int, columns: Columns) -> None:
        """Make the segment of a lane whose row 0 has the position `first`; all rows are ready."""
        (
            self.block,
            self.file,
            self.stored_ms,
            self.sizes,
            self.rows,
            self.ages,
            self.expires,
            self.due,
            self.priorities,
            self.dmq,
            self.origins,
            self.low_priority,
            self.publishers,
        ) = columns
        #: Whose it is.
        self.lane_id = lane_id
        #: Position of row 0, and number of rows.
        self.first, self.count = first, len(self.sizes)
        #: Bit p is set if a row has priority p.
        self.levels = _levels(self.priorities)
        #: State of each row.
        self.state = bytearray(b"\x01") * self.count
        #: Delivery attempts of each row that ended without acceptance, at most 255; None: no row has one.
        self.tries: bytearray | None = None
        #: Why each MOVING row is dead (index of `REASONS`); None: no row is dead.
        self.dead: bytearray | None = None
        #: Rows that are not GONE, and the sum of their `sizes`.
        self.live = self.count
        self.live_bytes = sum(self.sizes)
        #: Of the lane: when the time index has this segment, or 0; rows by their ends and by their delays.
        self.timer = 0
        self.expiry: Schedule | None = None
        self.delay: Schedule | None = None

    @property
    def last(self) -> int:
        """The position of the last row."""
        return self.first + self.count - 1

    @property
    def oldest_position(self) -> int:
        """The position of the first of its messages that is not gone."""
        return self.first + len(self.state) - len(self.state.lstrip(bytes((GONE,))))

    @property
    def has_state(self) -> bool:
        """Whether anything happened to it that a restart must know."""
        return self.live < self.count or self.tries is not None or self.dead is not None

    def note_unsure(self, upto: int) -> bool:
        """Count an attempt for each message up to a position that may have been sent without one (R190).

        What is dead was recorded with its attempts when it died. Tells whether there was any.
        """
        known = self.tries or bytes(self.count)
        rows = range(min(upto - self.first + 1, self.count))
        unsure = [i for i in rows if self.state[i] == READY and not known[i]]
        if unsure:
            self.tries = bytearray(known)
            for i in unsure:
                self.tries[i] = 1
        return bool(unsure)

    def key(self) -> bytes:
        """Give the key of both records of this segment; keys sort by lane, then position."""
        return segment_key(self.lane_id, self.first)

    def row_in_block(self, i: int) -> int:
        """Give which row of the block row `i` is."""
        return i if self.rows is None else self.rows[i]

    def stored_at_ms(self, i: int) -> int:
        """Give the wall ms when row `i` was spooled."""
        return self.stored_ms if self.ages is None else self.stored_ms + self.ages[i]

    def priority(self, i: int) -> int:
        """Give the priority 0..9 of row `i`."""
        return PRIORITY_UNSET if self.priorities is None else self.priorities[i]

    def publisher(self, i: int) -> int:
        """Give the number of the client that published row `i`, 0 if nobody knows it."""
        return self.publishers if isinstance(self.publishers, int) else self.publishers[i]

    def dmq_eligible(self, i: int) -> bool:
        """Tell whether the publisher allowed row `i` to move to a dead message queue."""
        return self.dmq is not None and bool(self.dmq[i >> 3] >> (i & 7) & 1)

    def size_of(self, i: int, j: int) -> int:
        """Give the spool size in bytes of the rows from `i` to before `j`."""
        return sum(self.sizes[i:j])

    def pack(self) -> bytes:
        """Pack what never changes, for the table SEGMENTS."""
        packed: bytes = msgpack.packb(
            [
                _FORMAT,
                self.block,
                self.count,
                self.stored_ms,
                _array_bytes(self.rows),
                _array_bytes(self.sizes),
                _array_bytes(self.ages),
                _array_bytes(self.expires),
                _array_bytes(self.due),
                self.priorities,
                self.dmq,
                self.origins,
                self.low_priority,
                self.publishers if isinstance(self.publishers, int) else _array_bytes(self.publishers),
                self.file,
            ]
        )
        return packed

    def pack_state(self) -> bytes:
        """Pack what happened to the messages, for the table STATES: gone bitmap, tries, why they are dead.

        That a message is out, held or moved by an operator is not stored: after a restart it is ready, and
        a dead one is dead again.
        """
        packed: bytes = msgpack.packb(
            [
                _bitmap(self.state.translate(_GONE_DIGIT)),
                None if self.tries is None else bytes(self.tries),
                None if self.dead is None else bytes(self.dead),
            ]
        )
        return packed

    @classmethod
    def unpack(cls, key: bytes, value: bytes, state: bytes | None) -> Segment:
        """Give the segment of its records; all of its messages are ready, dead (MOVING) or gone.

        Raises:
            UnavailableError: a record is damaged or of another format (50322).
        """
        try:
            segment = _unpack_segment(key, msgpack.unpackb(value, strict_map_key=False))
            if state is not None:
                _unpack_state(segment, msgpack.unpackb(state))
        except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
            detail = f"the segment with the key {key.hex()}: {error}"
            raise errors.error_for(errors.SPOOL_DAMAGED, detail) from None
        return segment

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert self.first >= 1
        assert 1 <= self.count == len(self.sizes) == len(self.state)
        for column in (self.rows, self.ages, self.expires, self.due, self.priorities, self.origins):
            assert column is None or len(column) == self.count
        assert isinstance(self.publishers, int) or len(self.publishers) == self.count
        for changing in (self.tries, self.dead):
            assert changing is None or len(changing) == self.count
        assert self.dmq is None or len(self.dmq) == (self.count + 7) // 8
        assert self.levels == _levels(self.priorities)
        assert max(self.state) <= MOVING
        alive = [i for i in range(self.count) if self.state[i] != GONE]
        assert self.live == len(alive)
        assert self.live_bytes == sum(self.sizes[i] for i in alive)
        if self.dead is not None:
            assert all(self.dead[i] == 0 or self.state[i] in (MOVING, GONE) for i in range(self.count))


def segment_key(lane_id: int, first: int) -> bytes:
    """Give the key of the records of the segment of a lane that starts at a position."""
    return lane_id.to_bytes(8, "big") + first.to_bytes(8, "big")


def make_segment(
    lane_id: int,
    first: int,
    block: int,
    rows: Sequence[Row],
    indices: Sequence[int] | None,
    stored_ms: int,
    *,
    origins: list[Origin | None] | None = None,
    publishers: int | array[int] = 0,
    file: int = 0,
) -> Segment:
    """Give the segment of new messages.

    Args:
        lane_id: whose it is.
        first: position of its first message.
        block: id of the block in which the rows lie.
        rows: all rows of the block.
        indices: which of them the segment has, rising; None for all.
        stored_ms: wall ms, from which times to live and delays of the messages count.
        origins: for each row of the segment where it was moved from; None: none was.
        publishers: number of the client that published them, or one for each; 0: nobody knows.
        file: the spool file in which the block counts.
    """
    chosen = rows if indices is None else [rows[i] for i in indices]
    # One comprehension per column: this is work per row on the path of every guaranteed message.
    overhead = wire.SPOOL_OVERHEAD_BYTES
    sizes = array("I", [len(row.payload) + len(row.properties or b"") + overhead for row in chosen])
    try:
        flags = bytes([row.flags for row in chosen])
    except ValueError:  # a row with `wire.FLAG_RETAIN`; what follows asks for none of the flags above a byte
        flags = bytes([row.flags & 0xFF for row in chosen])
    metas = [row.meta for row in chosen]
    with_meta = any(metas)
    columns = Columns(
        block=block,
        file=file,
        stored_ms=stored_ms,
        sizes=sizes,
        rows=None if indices is None or _counts_from_0(indices) else array("H", indices),
        expires=_times(stored_ms, [meta[0] if meta else 0 for meta in metas]) if with_meta else None,
        due=_times(stored_ms, [meta[1] if meta else 0 for meta in metas]) if with_meta else None,
        priorities=_priorities(metas) if with_meta else None,
        dmq=_bitmap(flags.translate(_ELIGIBLE_DIGIT)) if b"1" in flags.translate(_ELIGIBLE_DIGIT) else None,
        origins=origins if origins is not None and any(origins) else None,
        low_priority=flags.translate(_LOW_PRIORITY).count(1),
        publishers=publishers,
    )
    return Segment(lane_id, first, columns)


def give_past(segment: Segment, pasts: Sequence[Past | None]) -> None:
    """Give new rows what they had behind them in another partition of their endpoint; None: nothing."""
    expires = segment.expires or array("Q", bytes(8 * segment.count))
    due = segment.due or array("Q", bytes(8 * segment.count))
    known = [
        (0, segment.stored_ms, expires[i], due[i]) if past is None else past for i, past in enumerate(pasts)
    ]
    tries, stored, expires_ms, due_ms = zip(*known, strict=True)
    segment.tries = bytearray(tries) if any(tries) else None
    segment.expires = array("Q", expires_ms) if any(expires_ms) else None
    segment.due = array("Q", due_ms) if any(due_ms) else None
    # Who is much older than the others loses some of its age.
    segment.stored_ms = max(min(stored), max(stored) - AGES_MAX_MS)
    ages = array("I", [max(at - segment.stored_ms, 0) for at in stored])
    segment.ages = ages if any(ages) else None


def make_twin(segment: Segment, lane_id: int, first: int) -> Segment:
    """Give the segment of the same new rows in another lane; it shares the columns that never change."""
    twin = Segment(lane_id, first, Columns(*[getattr(segment, name) for name in Columns._fields]))
    if segment.tries is not None:
        twin.tries = segment.tries[:]
    return twin


def _counts_from_0(indices: Sequence[int]) -> bool:
    return not indices or (indices[0] == 0 and indices[-1] == len(indices) - 1)


def _times(stored_ms: int, spans_ms: list[int]) -> array[int] | None:
    """Give wall times of spans, 0 for none; a publisher may ask for a span that no clock can hold."""
    if not any(spans_ms):
        return None
    return array("Q", [min(stored_ms + span, TIME_MAX_MS) if span else 0 for span in spans_ms])


def _priorities(metas: list[tuple[int, int, int | None, Route] | None]) -> bytes | None:
    given = [PRIORITY_UNSET if not meta or meta[2] is None else min(meta[2], PRIORITY_MAX) for meta in metas]
    return None if given.count(PRIORITY_UNSET) == len(given) else bytes(given)


def _levels(priorities: bytes | None) -> int:
    if priorities is None:
        return 1 << PRIORITY_UNSET
    levels = 0
    for priority in range(PRIORITY_MAX + 1):
        if priority in priorities:
            levels |= 1 << priority
    return levels


def _bitmap(digits: bytes | bytearray) -> bytes:
    """Pack ASCII digits 0 and 1, one per row, into bits: row i is bit i % 8 of byte i // 8."""
    return int(digits[::-1], 2).to_bytes((len(digits) + 7) // 8, "little")


def _digits(bitmap: bytes, count: int) -> bytes:
    """Undo `_bitmap`."""
    number = int.from_bytes(bitmap, "little")
    if len(bitmap) != (count + 7) // 8 or number >> count:
        raise ValueError(f"a bitmap of {len(bitmap)} bytes for {count} rows")
    return format(number, f"0{count}b").encode()[::-1]


def _array_bytes(values: array[int] | None) -> bytes | None:
    if values is None:
        return None
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _array_of(kind: str, data: bytes | None, count: int) -> array[int] | None:
    if data is None:
        return None
    values = array(kind, data)
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} rows")
    return values


def _publishers_of(packed: int | bytes, count: int) -> int | array[int]:
    if isinstance(packed, int):
        return packed
    numbers = _array_of("Q", packed, count)
    if numbers is None:
        raise ValueError("no publishers")
    return numbers


def _unpack_segment(key: bytes, fields: Any) -> Segment:
    if len(key) != _KEY_BYTES or not isinstance(fields, list) or not fields:
        raise ValueError("no segment")
    if fields[0] not in _FORMATS:
        raise ValueError(f"format {fields[0]}, this program reads 1 to {_FORMAT}")
    if len(fields) != _FORMATS[fields[0]]:
        raise ValueError(f"{len(fields)} fields")
    _, block, count, stored_ms, rows, sizes, ages, expires, due, priorities, dmq, origins, low = fields[:13]
    sizes_array = _array_of("I", sizes, count)
    if sizes_array is None or not count:
        raise ValueError("no rows")
    if priorities is not None and (len(priorities) != count or max(priorities) > PRIORITY_MAX):
        raise ValueError("priorities do not fit")
    if dmq is not None:
        _digits(dmq, count)
    if origins is not None and len(origins) != count:
        raise ValueError("origins do not fit")
    columns = Columns(
        block=block,
        file=fields[14] if fields[0] > 2 else 0,
        stored_ms=stored_ms,
        sizes=sizes_array,
        rows=_array_of("H", rows, count),
        ages=_array_of("I", ages, count),
        expires=_array_of("Q", expires, count),
        due=_array_of("Q", due, count),
        priorities=priorities,
        dmq=dmq,
        origins=None if origins is None else [origin and tuple(origin) for origin in origins],
        low_priority=low,
        publishers=_publishers_of(fields[13], count) if fields[0] > 1 else 0,
    )
    return Segment(int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big"), columns)


def _unpack_state(segment: Segment, fields: Any) -> None:
    if not isinstance(fields, list) or len(fields) != _STATE_FIELDS:
        raise ValueError("no state of a segment")
    gone, tries, dead = fields
    count = segment.count
    if any(changing is not None and len(changing) != count for changing in (tries, dead)):
        raise ValueError("the state does not fit its segment")
    if dead is not None and max(dead) >= len(REASONS):
        raise ValueError("an unknown reason")
    # Digit 1 (gone) becomes GONE, digit 0 READY.
    segment.state[:] = _digits(gone, count).translate(_STATE_OF_DIGIT)
    segment.tries = None if tries is None else bytearray(tries)
    if dead is not None and any(dead):
        segment.dead = bytearray(dead)
        for i in range(count):
            if dead[i] and segment.state[i] != GONE:
                segment.state[i] = MOVING
    segment.live = count - segment.state.count(GONE)
    segment.live_bytes = sum(segment.sizes[i] for i in range(count) if segment.state[i] != GONE)


_STATE_OF_DIGIT: Final = bytes(READY if code == ord("0") else GONE for code in range(256))
