"""Rows of batches, for the few times that the router must open one.

A batch is opened to judge its rows one by one, to split them by partition, or to leave some out. What comes here was
checked by a worker, or made by a home.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from angarium import wire
from angarium.trail import Route, key_of

if TYPE_CHECKING:
    from router.sessions.round import EndpointResult


class Row(msgspec.Struct, array_like=True, gc=False, eq=False):
    """One message."""

    index: int
    topic: str
    flags: int
    #: Time to live in ms, delay in ms, priority, partition key or trail.
    meta: tuple[int, int, int | None, Route] | None
    properties: bytes | None
    payload: bytes

    @property
    def message_bytes(self) -> int:
        """Give what counts towards the largest message of an endpoint."""
        return len(self.payload) + len(self.properties or b"")

    @property
    def is_low_priority(self) -> bool:
        """Tell whether it is of class of service 1 or 2 (R176)."""
        return (self.flags & wire.FLAG_COS) >> wire.COS_SHIFT < 2


class _Index(msgspec.Struct, array_like=True, gc=False, eq=False):
    """The first field of a row; the others are skipped, which takes half the time."""

    index: int


decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
encode_rows = msgspec.msgpack.Encoder().encode
_decode_indices = msgspec.msgpack.Decoder(list[_Index]).decode


def indices(batch: bytes) -> list[int]:
    """Give the indices of a batch, which rise."""
    return [row.index for row in _decode_indices(batch)]


def index_span(batches: list[bytes]) -> tuple[int, int]:
    """Give the first and the last index of batches that hold a round together, none of them empty."""
    opened = [_decode_indices(batch) for batch in batches]
    return min(rows[0].index for rows in opened), max(rows[-1].index for rows in opened)


def are_distinct(batches: list[bytes]) -> bool:
    """Tell whether no index comes twice; inside one batch that was checked by its worker."""
    if len(batches) == 1:
        return True
    indices = [row.index for batch in batches for row in _decode_indices(batch)]
    return len(dict.fromkeys(indices)) == len(indices)


def spool_bytes(rows: list[Row]) -> int:
    """Give what rows cost in the account of the quotas."""
    return sum([row.message_bytes for row in rows]) + wire.SPOOL_OVERHEAD_BYTES * len(rows)


def result_with(result: EndpointResult, rows: list[Row]) -> EndpointResult:
    """Give what endpoints take with some of its rows only, at least one."""
    return replace(
        result,
        rows=len(rows),
        spool_bytes=spool_bytes(rows),
        largest=max(row.message_bytes for row in rows),
        low_priority=sum(row.is_low_priority for row in rows),
        batch=encode_rows(rows),
    )


def partition_hash(row: Row, salt: int) -> int:
    """Give the number whose remainder is the partition of a row: that of its key, or of its producer and sequence.

    A row that is sent again so finds the partition that it went to before. `salt` is any number that stands for
    producer and sequence, see `salt_of`.
    """
    key = key_of(row.meta[3]) if row.meta is not None else None
    return zlib.crc32(salt.to_bytes(16, "big") if key is None else key.encode())


def salt_of(producer_id: int, sequence: int) -> int:
    """Give the number that stands for one message of one producer, at most 128 bits."""
    return producer_id << 63 | sequence
