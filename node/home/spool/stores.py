"""STOREs of the router: what they become, what of them is accepted, what is stored, and what is written when.

A STORE becomes one block, and a segment for each lane that gets rows of it. Its batches are merged by the index of
their rows, so that the positions of every lane follow the publisher's order. Bodies are not packed again if the STORE
has one batch, or if its batches follow each other.

Numbers start at 1 for each router and rise by 1. A STORE is *accepted* when all before it are and it is on
disk, or at once if it is relaxed; then its lanes get it and the router may acknowledge it. It is *stored*
when a write that has it is durable. Accepting in order keeps the totals exact: they cover the accepted
STOREs, no more and no less. `stored` never runs ahead of the disk.

A relaxed STORE waits for its write up to `write_delay`, and what all its lanes have lost by then is never
written (R170); that it is done is written all the same. A write takes along the relaxed STOREs that
share a lane with what comes after them, so that a lane is never on disk with a hole. Others stay behind: the
row "stored" of META lists their numbers, and a STORE that comes again is taken only if it is not stored.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors, wire
from node.backlog.segment import (
    BLOCK_ROWS_MAX,
    Segment,
    give_past,
    make_segment,
    make_twin,
)
from node.home.spool.layout import StoredRow
from node.matching.batch import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from angarium_server.frames.homes import Origin, StoreFrame
    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.records import Records

#: Relaxed STOREs that wait for their write; with more they are written at once. It bounds the row "stored".
RELAXED_MAX: Final = 2_000


class Store:
    """A STORE on its way to disk."""

    __slots__ = (
        "block",
        "bytes",
        "due",
        "is_relaxed",
        "number",
        "router",
        "segments",
        "serial",
        "stage",
        "wall_ms",
    )

    def __init__(self, header: StoreFrame) -> None:
        self.router = header.router
        self.number = header.number
        #: Rises with every STORE of this process.
        self.serial = 0
        #: Accepted before it is written; its write may wait, and what is acknowledged by then is not written.
        self.is_relaxed = header.relaxed
        self.wall_ms = header.wall_ms
        #: The stage of its rows, 0 for none: lanes do not get them.
        self.stage = header.stage
        #: What it stores; None if no lane here takes a row.
        self.block: Block | None = None
        #: What each lane gets, or is staged for it.
        self.segments: list[tuple[HeldLane, Segment]] = []
        #: Bytes that it holds in memory until it is written.
        self.bytes = 0
        #: When it is to be written at the latest.
        self.due = 0.0


_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_encode = msgspec.msgpack.Encoder().encode


class _Body(NamedTuple):
    """The rows of a STORE that some lane takes."""

    batch: bytes
    #: By rising index.
    rows: list[Row]
    #: Lanes of each group.
    lanes: list[list[HeldLane]]
    #: The group of each row; None if there is one group.
    owners: list[int] | None
    #: Where rows were moved from; None: none was.
    origins: list[Origin | None] | None


class StoreMaker:
    """Makes STOREs into blocks and segments."""

    def __init__(self, lanes: HeldLanes, blocks: Blocks, records: Records) -> None:
        self._lanes = lanes
        self._blocks = blocks
        self._records = records
        #: Rows that no lane of this home takes any more.
        self.rows_dropped = 0

    def make(self, header: StoreFrame, batches: Sequence[bytes]) -> Store:
        """Give a STORE its block, positions and segments, and note what its producer stored.

        Raises:
            InvalidRequestError: the batches are not what the header says (40001); nothing has changed then.
        """
        store = Store(header)
        body = self._open(header, batches)
        if body is not None:
            self._fill(store, header, body)
        if header.producer is not None:
            for one in header.refused:
                if self._lanes.get(one.lane) is not None:
                    self._records.refuse(one.lane, header.producer.id, one.refusals, stage=header.stage)
        return store

    def _open(self, header: StoreFrame, batches: Sequence[bytes]) -> _Body | None:
        """Merge the groups that somebody here takes; None if there is none."""
        if len(batches) != len(header.groups):
            raise _malformed(f"{len(batches)} batches for {len(header.groups)} groups")
        groups: list[tuple[list[HeldLane], list[Row], bytes, list[Origin | None] | None]] = []
        for group, batch in zip(header.groups, batches, strict=True):
            held = [lane for lane in map(self._lanes.get, group.lanes) if lane is not None]
            count, origins = group.rows, group.origins
            if not held:
                self.rows_dropped += count
            elif count:
                groups.append((held, _rows_of(batch, count, origins), batch, origins))
        if not groups:
            return None
        lanes = [held for held, _, _, _ in groups]
        if len(groups) == 1:
            _, rows, batch, origins = groups[0]
            return _Body(batch, rows, lanes, None, origins)
        return _merge(lanes, [(rows, batch, origins) for _, rows, batch, origins in groups])

    def _fill(self, store: Store, header: StoreFrame, body: _Body) -> None:
        rows = body.rows
        store.bytes = len(body.batch)
        block = store.block = self._blocks.create(body.batch, len(rows), header.file)
        # Lanes that get the same rows share what never changes.
        made: dict[tuple[int, ...], Segment] = {}
        watch = None if store.stage else self._lanes.watch
        # All lanes of a STORE are of one Message VPN.
        sampled = {} if watch is None else watch.sampled(rows, body.lanes[0][0].lane.settings.vpn)
        counts = {one.lane: one.partitions for one in header.counts}
        for held, (groups, indices) in _rows_by_lane(body).items():
            first = 0 if store.stage else held.tail + 1
            twin = made.get(groups)
            if twin is None:
                segment = made[groups] = _segment(held, first, block, body, indices, header)
            else:
                segment = make_twin(twin, held.lane_id, first)
            store.segments.append((held, segment))
            block.segments.append(segment)
            if not store.stage:
                held.tail += segment.count
            if watch is not None and sampled:
                at = range(len(rows)) if indices is None else indices
                found = [(place, rows[i], sampled[i]) for place, i in enumerate(at) if i in sampled]
                watch.arrived(held.lane, first, found)
            if header.producer is not None:
                producer, count = header.producer, counts.get(held.lane_id, 1)
                self._records.store(
                    held.lane_id, producer.id, count, producer.first, rows, indices, stage=header.stage
                )
        whole = next((one for one in made.values() if one.count == len(rows)), None)
        block.size = sum(map(spool_size, rows)) if whole is None else whole.live_bytes


def spool_size(row: Row) -> int:
    """Give what a row counts in quotas and spool files."""
    return len(row.payload) + len(row.properties or b"") + wire.SPOOL_OVERHEAD_BYTES


def _segment(
    held: HeldLane, first: int, block: Block, body: _Body, indices: list[int] | None, header: StoreFrame
) -> Segment:
    origins = body.origins
    if origins is not None and indices is not None:
        origins = [origins[i] for i in indices]
    segment = make_segment(
        held.lane_id,
        first,
        block.id,
        body.rows,
        indices,
        header.wall_ms,
        origins=origins,
        publishers=_publishers(header.publisher, body.rows, indices),
        file=block.file,
    )
    if header.pasts:
        chosen = body.rows if indices is None else [body.rows[i] for i in indices]
        give_past(segment, [header.pasts.get(row.index) for row in chosen])
    return segment


def _publishers(
    publisher: int | dict[int, int], rows: list[Row], indices: list[int] | None
) -> int | array[int]:
    """Give the publishers of the rows of a segment."""
    if isinstance(publisher, int):
        return publisher
    chosen = rows if indices is None else [rows[i] for i in indices]
    return array("Q", [publisher.get(row.index, 0) for row in chosen])


def _rows_by_lane(body: _Body) -> dict[HeldLane, tuple[tuple[int, ...], list[int] | None]]:
    """Give each lane its groups, and the numbers of the rows that it gets; None for all of them."""
    groups: dict[HeldLane, list[int]] = {}
    for group, lanes in enumerate(body.lanes):
        for held in lanes:
            groups.setdefault(held, []).append(group)
    chosen: dict[HeldLane, tuple[tuple[int, ...], list[int] | None]] = {}
    for held, mine in groups.items():
        if body.owners is None or len(mine) == len(body.lanes):
            chosen[held] = tuple(mine), None
        else:
            chosen[held] = tuple(mine), [i for i, group in enumerate(body.owners) if group in mine]
    return chosen


def _rows_of(batch: bytes, count: int, origins: list[Any] | None) -> list[Row]:
    try:
        rows = _decode_rows(batch)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"no batch of rows: {error}") from None
    if len(rows) != count or not batch.startswith(wire.array_head(count)):
        raise _malformed(f"a batch of {len(rows)} rows, its head says {count}, or its own is not canonical")
    if count > BLOCK_ROWS_MAX or (origins is not None and len(origins) != count):
        raise _malformed(f"{count} rows, or their origins do not fit")
    return rows


def _merge(lanes: list[list[HeldLane]], groups: list[tuple[list[Row], bytes, list[Any] | None]]) -> _Body:
    """Merge groups by index: joined as they are if they follow each other, else packed again."""
    total = sum(len(rows) for rows, _, _ in groups)
    if total > BLOCK_ROWS_MAX:
        raise _malformed(f"{total} rows in one STORE")
    tagged = [
        (row.index, group, i, row) for group, (rows, _, _) in enumerate(groups) for i, row in enumerate(rows)
    ]
    in_order = all(a[0][-1].index < b[0][0].index for a, b in itertools.pairwise(groups))
    if not in_order:
        tagged.sort(key=_by_index)
    merged = [row for _, _, _, row in tagged]
    if in_order:
        batch = wire.join_batches([(len(rows), batch) for rows, batch, _ in groups])
    else:
        batch = _encode(merged)
    origins: list[Origin | None] | None = None
    if any(given is not None for _, _, given in groups):
        origins = []
        for _, group, i, _ in tagged:
            given = groups[group][2]
            origins.append(None if given is None else given[i])
    return _Body(batch, merged, lanes, [group for _, group, _, _ in tagged], origins)


def _by_index(tagged: tuple[int, int, int, Row]) -> tuple[int, int, int]:
    return tagged[:3]


def _malformed(detail: str) -> errors.AngariumError:
    return errors.error_for(errors.MALFORMED_FRAME, detail)


class PendingStores:
    """The numbers of one router at a time, and the STOREs that are not stored."""

    def __init__(self, write_delay_s: float) -> None:
        self._write_delay_s = write_delay_s
        #: The router whose numbers these are; 0 before the first.
        self.router = 0
        #: The highest number that was taken.
        self.received = 0
        #: Numbers below `received` that an earlier process took and did not store, rising.
        self._missing: dict[int, None] = {}
        #: Not accepted, in order; the first of them is not relaxed.
        self._waiting: deque[Store] = deque()
        #: Not stored, by serial, in order.
        self._unstored: dict[int, Store] = {}
        #: Rises with every STORE, over routers.
        self.serial = 0
        #: Bytes of everything that is not stored.
        self.bytes = 0
        #: STOREs up to this serial are to be written now, relaxed or not.
        self._flush_upto = 0
        #: STOREs that are not stored and not relaxed.
        self._synced = 0

    # -- numbers ---------------------------------------------------------------------------------------------

    def start(self, router: int) -> None:
        """Begin with the numbers of another router; what the one before sent is written without a number."""
        self.router = router
        self.received = 0
        self._missing = {}

    def resume(self, row: StoredRow) -> None:
        """Go on where an earlier process stopped."""
        self.router = row.router
        self.received = row.number
        self._missing = dict.fromkeys(row.missing)

    def expects(self, number: int) -> bool:
        """Tell whether a STORE is the next, or one that is missing."""
        return number == self.received + 1 or number in self._missing

    @property
    def accepted(self) -> int:
        """The number up to which everything is accepted."""
        return self._number_before(self._waiting)

    @property
    def stored(self) -> int:
        """The number up to which everything is stored."""
        return self._number_before(self._unstored.values())

    def _number_before(self, stores: Iterable[Store]) -> int:
        """Give the number before the first of some STOREs and of those that are missing."""
        first = self.received + 1
        for store in stores:
            if store.router == self.router:
                first = store.number
                break
        return min(first, next(iter(self._missing), first)) - 1

    def is_stored_upto(self, serial: int) -> bool:
        """Tell whether every STORE up to a serial is stored."""
        return next(iter(self._unstored), self.serial + 1) > serial

    def is_accepted_upto(self, serial: int) -> bool:
        """Tell whether every STORE up to a serial is accepted."""
        return not self._waiting or self._waiting[0].serial > serial

    # -- in --------------------------------------------------------------------------------------------------

    def take(self, store: Store, now: float) -> None:
        """Take a STORE that is expected."""
        self.received = max(self.received, store.number)
        self._missing.pop(store.number, None)
        self.serial += 1
        store.serial = self.serial
        store.due = now + self._write_delay_s
        self._unstored[store.serial] = store
        self._waiting.append(store)
        self._synced += not store.is_relaxed
        self.bytes += store.bytes

    def take_accepted(self) -> list[Store]:
        """Give the STOREs that are accepted now, in order."""
        taken = []
        waiting = self._waiting
        while waiting and (waiting[0].is_relaxed or waiting[0].serial not in self._unstored):
            taken.append(waiting.popleft())
        return taken

    # -- out -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Have everything that is here written with the next write."""
        self._flush_upto = self.serial

    def wants_write(self, now: float) -> bool:
        """Tell whether a STORE is to be written now."""
        if self._synced or not self._unstored:
            return self._synced > 0
        first, store = next(iter(self._unstored.items()))
        return first <= self._flush_upto or store.due <= now or len(self._unstored) > RELAXED_MAX

    @property
    def next_due(self) -> float | None:
        """When the oldest relaxed STORE is to be written; None without one."""
        store = next(iter(self._unstored.values()), None)
        return None if store is None else store.due

    def segments(self) -> Iterator[tuple[HeldLane, Segment]]:
        """Give what lanes get of everything that is not stored, in order; they do not get what is staged."""
        for store in self._unstored.values():
            if not store.stage:
                yield from store.segments

    def pick(self, now: float) -> list[Store]:
        """Give what the next write takes, in order.

        A STORE of which no lane gets anything goes with it: what was dropped must not come again, behind others.
        """
        if len(self._unstored) > RELAXED_MAX:
            return list(self._unstored.values())
        picked = []
        lanes: dict[int, None] = {}
        for store in reversed(self._unstored.values()):
            if (
                not store.is_relaxed
                or not store.segments
                or store.due <= now
                or store.serial <= self._flush_upto
                or any(held.lane_id in lanes for held, _ in store.segments)
            ):
                picked.append(store)
                lanes.update((held.lane_id, None) for held, _ in store.segments)
        picked.reverse()
        return picked

    def row_with(self, picked: Iterable[Store], next_block: int) -> StoredRow:
        """Give the row "stored" as it is when these STOREs are on disk."""
        on_disk = {store.number for store in picked if store.router == self.router}
        mine = [store.number for store in self._unstored.values() if store.router == self.router]
        left = sorted([*self._missing, *(number for number in mine if number not in on_disk)])
        # The highest one on disk: what is left at the end was not there yet.
        highest = self.received
        while left and left[-1] == highest:
            left.pop()
            highest -= 1
        return StoredRow(self.router, highest, tuple(left), next_block)

    def note_stored(self, stores: Iterable[Store]) -> None:
        """Note that a write with these STOREs is durable."""
        for store in stores:
            del self._unstored[store.serial]
            self._synced -= not store.is_relaxed
            self.bytes -= store.bytes

    def stats(self) -> dict[str, int]:
        """Give the numbers and sizes."""
        return {
            "received": self.received,
            "accepted": self.accepted,
            "stored": self.stored,
            "unstored": len(self._unstored),
            "unstored_bytes": self.bytes,
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.stored <= self.accepted <= self.received
        assert list(self._unstored) == sorted(self._unstored)
        assert all(serial == store.serial for serial, store in self._unstored.items())
        assert self.bytes == sum(store.bytes for store in self._unstored.values())
        assert self._synced == sum(not store.is_relaxed for store in self._unstored.values())
        assert not self._waiting or not self._waiting[0].is_relaxed
        assert all(number <= self.received for number in self._missing)
