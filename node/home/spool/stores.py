"""A STORE of the router, made into one block and a segment for each lane that gets rows of it.

The batches of a STORE are merged by the index of their rows, so that the positions of every lane follow the
publisher's order. Bodies are not packed again if the STORE has one batch, or if its
batches follow each other.

No I/O, no clock; `node.home.spool.stream` uses this.
"""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from angarium import errors, wire
from node.backlog.segment import (
    BLOCK_ROWS_MAX,
    TIME_MAX_MS,
    TRIES_MAX,
    Segment,
    give_past,
    make_segment,
    make_twin,
)
from node.matching.batch import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.records import Records

_Natural = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
_Origin: TypeAlias = tuple[str, str, str]
_Group: TypeAlias = tuple[list[_Natural], _Natural, list[_Origin | None] | None]
_Refusals: TypeAlias = tuple[_Natural, list[tuple[int, int]]]
_Count: TypeAlias = tuple[_Natural, _Positive]
_Time: TypeAlias = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
_Past: TypeAlias = tuple[Annotated[int, Meta(ge=0, le=TRIES_MAX)], _Time, _Time, _Time]


class StoreHeader(NamedTuple):
    """The header of STORE."""

    router: int
    number: _Positive
    relaxed: bool
    #: Producer and the sequence of index 0; nil for direct messages that an endpoint wants.
    producer: tuple[_Positive, int] | None
    groups: list[_Group]
    refused: list[_Refusals]
    wall_ms: _Natural
    #: Number of the client that published the rows, or of moved rows index -> number; 0: nobody knows.
    publisher: _Natural | dict[int, _Natural] = 0
    #: How many partitions there were, of lanes of endpoints that had more than one.
    counts: tuple[_Count, ...] = ()
    #: Index -> what the row had behind it in another partition, `node.backlog.segment.Past`.
    pasts: dict[int, _Past] | None = None
    #: The spool file of the rows.
    file: _Natural = 0
    #: The stage that the rows belong to; 0: none.
    stage: _Natural = 0
    #: Stages whose rows their lanes get, and stages that nobody wants any more.
    release: tuple[_Positive, ...] = ()
    drop: tuple[_Positive, ...] = ()


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

    def __init__(self, header: StoreHeader) -> None:
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


decode_store = msgspec.msgpack.Decoder(StoreHeader).decode
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
    origins: list[_Origin | None] | None


class Stores:
    """Makes STOREs into blocks and segments."""

    def __init__(
        self,
        lanes: HeldLanes,
        blocks: Blocks,
        records: Records,
        stage: Callable[[HeldLane, int, Segment], None],
    ) -> None:
        """Begin; `stage` takes rows that belong to the stage with a number, and to no lane."""
        self._lanes = lanes
        self._blocks = blocks
        self._records = records
        self._stage = stage
        #: Rows that no lane of this home takes any more.
        self.rows_dropped = 0

    def make(self, header: StoreHeader, batches: Sequence[bytes]) -> Store:
        """Give a STORE its block, positions and segments, and note what its producer stored.

        Raises:
            InvalidRequestError: the batches are not what the header says (40001); nothing has changed then.
        """
        store = Store(header)
        body = self._open(header, batches)
        if body is not None:
            self._fill(store, header, body)
        if header.producer is not None:
            for lane_id, verdicts in header.refused:
                if self._lanes.get(lane_id) is not None:
                    self._records.refuse(lane_id, header.producer[0], verdicts, stage=header.stage)
        return store

    def _open(self, header: StoreHeader, batches: Sequence[bytes]) -> _Body | None:
        """Merge the groups that somebody here takes; None if there is none."""
        if len(batches) != len(header.groups):
            raise _malformed(f"{len(batches)} batches for {len(header.groups)} groups")
        groups: list[tuple[list[HeldLane], list[Row], bytes, list[_Origin | None] | None]] = []
        for (lane_ids, count, origins), batch in zip(header.groups, batches, strict=True):
            held = [lane for lane in map(self._lanes.get, lane_ids) if lane is not None]
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

    def _fill(self, store: Store, header: StoreHeader, body: _Body) -> None:
        rows = body.rows
        store.bytes = len(body.batch)
        block = store.block = self._blocks.create(body.batch, len(rows), header.file)
        # Lanes that get the same rows share what never changes.
        made: dict[tuple[int, ...], Segment] = {}
        counts = dict(header.counts)
        for held, (groups, indices) in _rows_by_lane(body).items():
            first = 0 if store.stage else held.tail + 1
            twin = made.get(groups)
            if twin is None:
                segment = made[groups] = _segment(held, first, block, body, indices, header)
            else:
                segment = make_twin(twin, held.lane_id, first)
            store.segments.append((held, segment))
            block.segments.append(segment)
            if store.stage:
                self._stage(held, store.stage, segment)
            else:
                held.tail += segment.count
            if header.producer is not None:
                producer, base = header.producer
                count = counts.get(held.lane_id, 1)
                self._records.store(held.lane_id, producer, count, base, rows, indices, stage=header.stage)
        whole = next((one for one in made.values() if one.count == len(rows)), None)
        block.size = sum(map(spool_size, rows)) if whole is None else whole.live_bytes


def spool_size(row: Row) -> int:
    """Give what a row counts in quotas and spool files."""
    return len(row.payload) + len(row.properties or b"") + wire.SPOOL_OVERHEAD_BYTES


def _segment(
    held: HeldLane, first: int, block: Block, body: _Body, indices: list[int] | None, header: StoreHeader
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
    origins: list[_Origin | None] | None = None
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
