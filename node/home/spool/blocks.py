"""The blocks of a home: packed batches of messages on disk, who has messages in them, and a cache of bodies.

A block is what one STORE stored, once, however many lanes have its rows; or rows of several blocks packed
again. It lives until no segment with live rows lies in it. Its batch is readable from the moment of arrival:
what is not on disk yet is held here, what was read or written lately is in a cache of bounded bytes.

A block is in one *spool file* (R181 and R182). No file of the disk is meant; LMDB has one. A spool file is a number
for about 8 MB of messages, and the number of files is limited. The router alone gives numbers, to what is new: a STORE
names the file of its rows. From then on they keep it, whatever happens to them: packed again in the background they
stay in the file of the oldest of them, and so they do in another endpoint, at another home and after a restart,
because segments name their file. So files never become more by anything but new messages, and admission, which sees
these, keeps the limit.

The spool is read here and in the recovery only, one value at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from angarium import errors, wire
from node.home.spool import layout
from node.matching.batch import Row
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from node.backlog.segment import Segment
    from node.endpoints.effort import Effort
    from storage.spool import Spool

_T = TypeVar("_T")
#: A block with at most so many rows and bytes is small: some dozens of them fit into one.
SMALL_ROWS: Final = 32
SMALL_BYTES: Final = 16 << 10
#: Opened rows take a multiple of the packed ones, so they get this part of the cache, counted in packed bytes.
OPENED_SHARE: Final = 8
#: Bytes of a head that tells how long any array is.
_LONGEST_HEAD: Final = 5
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode
#: Numbers that follow each other: the first, and how many.
Runs = list[tuple[int, int]]


class Block:
    """What the home knows of a block."""

    __slots__ = ("file", "id", "is_counted", "is_written", "rows", "segments", "size")

    def __init__(self, block_id: int, rows: int, file: int) -> None:
        #: Never given twice; newer blocks have higher ones.
        self.id = block_id
        #: Rows of the batch; 0 if it was not read since the start.
        self.rows = rows
        #: Spool bytes of its messages, each once, when it was made or found.
        self.size = 0
        #: The segments with live rows in it; the block goes with the last.
        self.segments: list[Segment] = []
        #: The spool file of its messages.
        self.file = file
        #: Whether that counts it: from when it was accepted.
        self.is_counted = False
        #: Whether it is on disk, or in the write that is out.
        self.is_written = False


class Blocks:
    """All blocks of a home."""

    def __init__(self, spool: Spool, cache_bytes_max: int) -> None:
        self._spool = spool
        self.files = SpoolFiles()
        #: No block has this id or a higher one.
        self.next_id = 1
        self._blocks: dict[int, Block] = {}
        #: Small ones by when they were accepted, the oldest first; some are gone by now.
        self.small: dict[int, float] = {}
        #: Segments that belong to a stage and to no lane yet -> their key in STAGED.
        self.staged: dict[Segment, bytes] = {}
        #: Blocks that went and may come back after an unclean stop -> their spool file.
        self._leaving: dict[int, int] = {}
        #: Batches of blocks that are not on disk for sure; the write path bounds them.
        self.fresh: dict[int, bytes] = {}
        self._batches: _Cache[bytes] = _Cache(cache_bytes_max)
        self._rows: _Cache[list[Row]] = _Cache(cache_bytes_max // OPENED_SHARE)
        self._raws: _Cache[list[msgspec.Raw]] = _Cache(cache_bytes_max // OPENED_SHARE)
        self._counts = dict.fromkeys(("blocks_read", "block_bytes_read", "blocks_made"), 0)

    def __len__(self) -> int:
        """Give the number of blocks."""
        return len(self._blocks)

    def get(self, block_id: int) -> Block | None:
        """Give a block that is there."""
        return self._blocks.get(block_id)

    def in_order(self) -> list[Block]:
        """Give all blocks, the oldest first."""
        return [self._blocks[block_id] for block_id in sorted(self._blocks)]

    # -- blocks come -----------------------------------------------------------------------------------------

    def create(self, batch: bytes, rows: int, file: int) -> Block:
        """Give a new block in a spool file, with a batch that is on disk later."""
        block_id = self.new_id()
        block = self._blocks[block_id] = Block(block_id, rows, file)
        self.fresh[block_id] = batch
        self._counts["blocks_made"] += 1
        return block

    def new_id(self) -> int:
        """Give an id that no block ever had."""
        self.next_id += 1
        return self.next_id - 1

    def find(self, block_id: int, file: int) -> Block:
        """Give the block of a segment that is on disk, or will be; noted now if it is the first."""
        block = self._blocks.get(block_id)
        if block is None:
            block = self._blocks[block_id] = Block(block_id, 0, file)
            block.is_written = True
        return block

    def count(self, block: Block) -> None:
        """Count a block in its spool file, when it is accepted."""
        if not block.is_counted:
            block.is_counted = True
            self.files.join(block.file)

    def note_new(self, block: Block, now: float) -> None:
        """Take note of a block whose messages lanes have got; small ones are packed together later."""
        if block.rows <= SMALL_ROWS and block.size <= SMALL_BYTES:
            self.small[block.id] = now

    def value(self, block: Block, stored_ms: int) -> bytes:
        """Give what to write for a block that is not on disk."""
        return layout.pack_block(stored_ms, block.rows, self.fresh[block.id])

    def written(self, block: Block) -> None:
        """Note that a block is on disk: its batch may leave the memory."""
        batch = self.fresh.pop(block.id, None)
        if batch is not None:
            self._batches.put(block.id, batch, len(batch))

    def is_on_disk(self, block: Block) -> bool:
        """Tell whether a block is on disk for sure, and not in a write that is out."""
        return block.is_written and block.id not in self.fresh

    # -- blocks go -------------------------------------------------------------------------------------------

    def release(self, block: Block, segment: Segment) -> bool:
        """Note that all rows of a segment are gone, or lie in another block now; True if the block goes too.

        Its value is then to be deleted from the disk together with the record of this segment, not later:
        nothing else on disk leads to it.
        """
        block.segments.remove(segment)
        self.staged.pop(segment, None)
        if block.segments:
            return False
        self._forget(block)
        return True

    def _forget(self, block: Block) -> None:
        del self._blocks[block.id]
        self.fresh.pop(block.id, None)
        self._batches.drop(block.id)
        self._rows.drop(block.id)
        self._raws.drop(block.id)
        if block.is_counted:
            # After an unclean stop it may be back, from the disk or from the router, so it leaves its spool file when
            # it is off the disk, or its STORE is done with.
            self._leaving[block.id] = block.file

    def freed(self, block_id: int) -> None:
        """Note that a block that went does not come back."""
        file = self._leaving.pop(block_id, None)
        if file is not None:
            self.files.leave(file)

    def newest_file_bytes(self) -> int:
        """Give the spool bytes in the newest file."""
        newest = self.files.newest
        return sum(block.size for block in self._blocks.values() if block.is_counted and block.file == newest)

    # -- bodies ----------------------------------------------------------------------------------------------

    def batch(self, block: Block) -> bytes:
        """Give the packed rows of a block, from memory or from the disk.

        Raises:
            UnavailableError: the disk does not have it, or not as it was written (50322).
        """
        batch = self.fresh.get(block.id)
        if batch is None:
            batch = self._batches.get(block.id)
        return self._read(block) if batch is None else batch

    def _read(self, block: Block) -> bytes:
        value = self._spool.get(Table.BLOCKS, layout.number_key(block.id))
        batch = layout.open_block(value, block.rows, f"block {block.id}")
        self._counts["blocks_read"] += 1
        self._counts["block_bytes_read"] += len(batch)
        block.rows = wire.array_length(batch[:_LONGEST_HEAD])
        self._batches.put(block.id, batch, len(batch))
        return batch

    def rows(self, block: Block) -> list[Row]:
        """Give the opened rows of a block.

        Raises:
            UnavailableError: as `batch` (50322).
        """
        rows = self._rows.get(block.id)
        if rows is None:
            batch = self.batch(block)
            rows = _open(block, _decode_rows, batch)
            self._rows.put(block.id, rows, len(batch))
        return rows

    def row(self, segment: Segment, i: int, effort: Effort) -> Row:
        """Give a row that somebody wants to look into; opening its block costs effort.

        Raises:
            UnavailableError: as `batch`, or there is no such block (50322).
        """
        rows = self._rows.get(segment.block)
        if rows is None:
            block = self._blocks.get(segment.block)
            if block is None:
                raise layout.damaged(f"block {segment.block} is not here")
            rows = self.rows(block)
            effort.left -= len(self.batch(block))
        return rows[segment.row_in_block(i)]

    def select(self, block: Block, numbers: Sequence[int]) -> bytes:
        """Give some rows of a block as a batch; they are not opened for that.

        Raises:
            UnavailableError: as `batch` (50322).
        """
        raws = self._raws.get(block.id)
        if raws is None:
            raws = self._open_raws(block)
        return _encode([raws[number] for number in numbers])

    def _open_raws(self, block: Block) -> list[msgspec.Raw]:
        batch = self.batch(block)
        raws: list[msgspec.Raw] = _open(block, _decode_raws, batch)
        self._raws.put(block.id, raws, len(batch))
        return raws

    def packed_row(self, segment: Segment, i: int, effort: Effort) -> msgspec.Raw:
        """Give a row as it lies in its block; opening that costs effort.

        Raises:
            UnavailableError: as `row`.
        """
        raws = self._raws.get(segment.block)
        if raws is None:
            block = self._blocks.get(segment.block)
            if block is None:
                raise layout.damaged(f"block {segment.block} is not here")
            raws = self._open_raws(block)
            effort.left -= len(self.batch(block))
        return raws[segment.row_in_block(i)]

    def is_readable(self, block: Block) -> bool:
        """Tell whether the batch of a block can be read."""
        try:
            self.batch(block)
        except errors.UnavailableError:
            return False
        return True

    def pick(self, block: Block, numbers: Sequence[int]) -> list[msgspec.Raw]:
        """Give some rows of a block, each packed; nothing is kept for later.

        Raises:
            UnavailableError: as `batch` (50322).
        """
        raws = _open(block, _decode_raws, self.batch(block))
        return [raws[number] for number in numbers]

    @property
    def cached_bytes(self) -> int:
        """Give the bytes of what is kept of blocks on disk: batches, and opened rows in packed bytes."""
        return self._batches.bytes + self._rows.bytes + self._raws.bytes

    def replace(self, old: list[Block], raws: list[msgspec.Raw], size: int) -> Block:
        """Put a new block with some rows in the place of others; their segments are to be moved by the caller.

        The new one counts as written at once: the records of its segments on disk are deleted if they go.
        """
        new = self.create(_encode(raws), len(raws), min(block.file for block in old))
        new.size = size
        new.is_written = True
        self.count(new)
        for block in old:
            self._forget(block)
        return new

    def stats(self) -> dict[str, int]:
        """Give counters and sizes."""
        return {
            "blocks": len(self._blocks),
            "spool_files": self.files.count,
            "cache_bytes": self._batches.bytes,
            "unwritten_blocks": len(self.fresh),
            **self._counts,
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self.files.validate()
        for block_id, block in self._blocks.items():
            assert block_id == block.id < self.next_id
            assert block.is_written or block_id in self.fresh
            assert all(segment.block == block_id for segment in block.segments)
        assert all(block_id in self._blocks for block_id in self.fresh)
        for cache in (self._batches, self._rows, self._raws):
            cache.validate()


def _open(block: Block, decode: Any, batch: bytes) -> Any:
    try:
        return decode(batch)
    except (ValueError, RecursionError) as error:
        # Its checksum is right, so it was written like this: a fault of ours, which costs this block only.
        raise layout.damaged(f"block {block.id} is no batch of rows: {error}") from None


class _Cache(Generic[_T]):
    """What was used lately, up to a number of bytes; the least recently used goes first."""

    __slots__ = ("_bytes_max", "_entries", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Block -> value and its size, the least recently used first.
        self._entries: OrderedDict[int, tuple[_T, int]] = OrderedDict()
        #: Sum of the sizes; above the limit only while one entry alone is larger.
        self.bytes = 0

    def get(self, block_id: int) -> _T | None:
        entry = self._entries.get(block_id)
        if entry is None:
            return None
        self._entries.move_to_end(block_id)
        return entry[0]

    def put(self, block_id: int, value: _T, size: int) -> None:
        self.drop(block_id)
        self._entries[block_id] = (value, size)
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._entries) > 1:
            self.bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, block_id: int) -> None:
        entry = self._entries.pop(block_id, None)
        if entry is not None:
            self.bytes -= entry[1]

    def validate(self) -> None:
        assert self.bytes == sum(size for _, size in self._entries.values())
        assert self.bytes <= self._bytes_max or len(self._entries) == 1


class SpoolFiles:
    """The files that one home uses.

    A file is used while a block is in it, until that is off the disk, or while a lane with messages in it is being
    taken over. The router is told what changed.
    """

    def __init__(self) -> None:
        #: File -> blocks in it and lanes that come with messages in it; exactly the files that are used.
        self._users: dict[int, int] = {}
        #: Files that came or went since the router was told.
        self._changed: dict[int, None] = {}

    @property
    def count(self) -> int:
        """Files that hold messages."""
        return len(self._users)

    def __iter__(self) -> Iterator[int]:
        return iter(self._users)

    @property
    def newest(self) -> int:
        """The highest number in use, 0 if none is."""
        return max(self._users, default=0)

    @property
    def has_changed(self) -> bool:
        """Whether the router has to be told something."""
        return bool(self._changed)

    def join(self, file: int) -> None:
        """Count one more user of a file."""
        users = self._users.get(file, 0)
        self._users[file] = users + 1
        if not users:
            self._changed[file] = None

    def leave(self, file: int) -> None:
        """Count one user less."""
        users = self._users[file] - 1
        if users:
            self._users[file] = users
        else:
            del self._users[file]
            self._changed[file] = None

    def used(self) -> Runs:
        """Give all files in use; the router knows everything then."""
        self._changed.clear()
        return runs_of(self._users)

    def take_changes(self) -> tuple[Runs, Runs]:
        """Give the files that are in use now and those that are not, of those that changed."""
        if not self._changed:
            return [], []
        changed = list(self._changed)
        self._changed.clear()
        used = [file for file in changed if file in self._users]
        return runs_of(used), runs_of(file for file in changed if file not in self._users)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(users > 0 for users in self._users.values())


def runs_of(files: Iterable[int]) -> Runs:
    """Give numbers as runs. Example: 7, 3, 4 are (3, 2), (7, 1)."""
    runs: Runs = []
    for file in sorted(files):
        if runs and sum(runs[-1]) == file:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((file, 1))
    return runs
