"""Who owns a topic: the table from slots to workers, and how a batch is cut along it.

A topic hashes to one of 1,024 slots (`angarium.topic.slot_of`), the table gives each slot an owner. The
router makes the table and cuts the batches of clients that did not; the SDK gets the table in WELCOME and
TABLE and cuts its own. `RowGatherer` is where the rows of a round come together on the publisher's side. No
I/O, no clock.

The table is made by rendezvous hashing: every slot goes to the worker with the highest weight for it, so
adding a worker moves only the slots that it wins, about 1/N of them, and nothing moves between the others. A
ring with virtual nodes was rejected: it needs hundreds of points per worker to be as even, and has one more
number to choose. See https://en.wikipedia.org/wiki/Rendezvous_hashing.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from angarium import errors, wire
from angarium.message import Message, Row, check_payload, pack_rows, row_size
from angarium.topic import SLOTS, check_topic, slot_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator, Sequence

#: A slot's owner is one byte in the table.
MAX_WORKERS: Final = 256
#: Topics whose owner is remembered: 65,536 entries are about 10 MB at most, and cover the hot topics of one
#: client.
MAX_KNOWN_TOPICS: Final = 65_536
#: A full round has so many rows for each worker. Measured in turn on one machine, 128 bytes, one worker:
#: 384 rows carry 1.5 times as many messages as 128 do, and 1,000 rows another 1.15 times, at twice the
#: latency under load.
ROWS_PER_WORKER: Final = 512
#: Rows in a round, however many workers there are.
ROUND_ROWS_MAX: Final = 2_048
#: Bytes in a round, unless one message alone is larger: at 1 GB/s a round blocks others for half a millisecond,
#: and the credit of 4 MiB is several rounds.
ROUND_BYTES_MAX: Final = 512 * 1024
#: What a row takes at most beyond payload, properties and partition key: topic, numbers and heads.
ROW_OVERHEAD_BYTES: Final = 320
#: Until the router says its limit.
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024

#: What is published in bulk: a message, or a topic and a payload.
Publishable: TypeAlias = Message | tuple[str, bytes]


@lru_cache(maxsize=16)
def slot_table(workers: int) -> bytes:
    """Give the owner of each slot, one byte per slot, the same in every process that asks.

    Raises:
        InvalidRequestError: the number of workers is not in 1..256 (INVALID_ARGUMENT).
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise errors.invalid(f"{workers} workers, from 1 to {MAX_WORKERS} are possible")
    return bytes(_owner(slot, workers) for slot in range(SLOTS))


def _owner(slot: int, workers: int) -> int:
    return max(range(workers), key=lambda worker: hashlib.blake2b(b"%d/%d" % (slot, worker)).digest())


def check_table(table: object) -> bytes:
    """Give the table back if a peer's value is one.

    Raises:
        InvalidRequestError: it is not 1,024 bytes (MALFORMED_FRAME).
    """
    if not isinstance(table, bytes) or len(table) != SLOTS:
        raise errors.error_for(errors.MALFORMED_FRAME, f"a slot table has {SLOTS} bytes")
    return table


def partition(rows: Iterable[Sequence[Any]], table: bytes) -> dict[int, list[Sequence[Any]]]:
    """Cut rows by the worker that owns their topic, in the order in which they come.

    The result has an entry for each worker that gets a row, in the order of their first rows. Topics are not
    checked beyond being text: whether a topic is legal is the owner's to say.

    Raises:
        InvalidRequestError: a row has no topic, or one that is not text (MALFORMED_FRAME).
    """
    owner_of: dict[str, int] = {}
    parts: dict[int, list[Sequence[Any]]] = {}
    try:
        for row in rows:
            topic = row[wire.ROW_TOPIC]
            owner = owner_of.get(topic)
            if owner is None:
                owner = owner_of[topic] = table[slot_of(topic)]
            part = parts.get(owner)
            if part is None:
                parts[owner] = [row]
            else:
                part.append(row)
    except (AttributeError, IndexError, KeyError, TypeError, UnicodeError):
        raise errors.error_for(errors.MALFORMED_FRAME, "a row without a topic") from None
    return parts


@lru_cache(maxsize=16)
def _owners_in(table: bytes) -> frozenset[int]:
    """Give the workers in a table; it is remembered, because all clients of a node have the same one."""
    return frozenset(table)


class TopicOwners(dict[str, int]):
    """A bounded memory of who owns a topic; a known topic costs one dict access and no Python call.

    Only legal topics get in, so a topic that is found needs no check. When the memory is full it starts over:
    the hot topics are back after one use each, and no bookkeeping is paid per hit.
    """

    def __init__(self, table: bytes) -> None:
        super().__init__()
        #: 1,024 owners; a new table is a new object of this class.
        self.table: Final = check_table(table)

    def __missing__(self, topic: str) -> int:
        """Check a new topic and remember its owner.

        Raises:
            InvalidRequestError: the topic is illegal (INVALID_TOPIC) or no text (INVALID_ARGUMENT).
        """
        if not isinstance(topic, str):
            raise errors.invalid(f"a topic is text, not {type(topic).__name__}")
        check_topic(topic)
        if len(self) >= MAX_KNOWN_TOPICS:
            self.clear()
        owner = self[topic] = self.table[slot_of(topic)]
        return owner

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self) <= MAX_KNOWN_TOPICS
        assert all(self.table[slot_of(topic)] == owner for topic, owner in self.items())


class Round(msgspec.Struct, frozen=True):
    """Rows that leave together."""

    #: Of the table by which they are cut; 0 if they are not, then there is one part.
    epoch: int
    #: Worker and number of rows of each part.
    parts: list[tuple[int, int]]
    #: One canonical batch per part.
    batches: list[bytes]
    rows: int
    size_bytes: int


#: Carries nothing but the wish to be told when all before it has retired.
EMPTY_ROUND: Final = Round(epoch=0, parts=[], batches=[], rows=0, size_bytes=0)


class RowGatherer:
    """The rows that will leave in the next round, cut by owner while they come.

    It outlives connections: what was gathered while there was none is cut again when the next one tells its
    table.
    """

    __slots__ = (
        "_batch_bytes_max",
        "_batch_rows_max",
        "_message_bytes_max",
        "_owners",
        "_parts",
        "_rows_max",
        "epoch",
        "rows",
        "size_bytes",
    )

    def __init__(self) -> None:
        #: Of the table in use; 0 before the first connection.
        self.epoch = 0
        #: Where the next row goes.
        self._owners = TopicOwners(bytes(SLOTS))
        #: Rows by owner; the indices of all together are 0..rows-1, rising in each part.
        self._parts: list[list[Row]] = [[]]
        #: Rows in all parts, at most `_rows_max` after the first round by the table in use.
        self.rows = 0
        #: At least what the batches will take; at most `_batch_bytes_max` unless one row alone is larger.
        self.size_bytes = 0
        self._batch_rows_max = ROUND_ROWS_MAX
        #: Rows in a full round: enough for each worker that a batch stays worth its frames when it is cut.
        self._rows_max = ROWS_PER_WORKER
        self._batch_bytes_max = ROUND_BYTES_MAX
        self._message_bytes_max = MESSAGE_BYTES_MAX

    def set_limits(self, message_bytes: int, batch_rows: int, batch_bytes: int) -> None:
        """Take over what the router accepts; rows that are gathered already are not judged again."""
        self._batch_rows_max = batch_rows
        self._limit_rows()
        self._message_bytes_max = min(message_bytes, batch_bytes - ROW_OVERHEAD_BYTES)
        self._batch_bytes_max = min(ROUND_BYTES_MAX, batch_bytes)

    def set_table(self, epoch: int, table: bytes) -> None:
        """Cut by a new table from now on, what is gathered too.

        Raises:
            InvalidRequestError: it is no table (MALFORMED_FRAME).
        """
        owners = TopicOwners(table)
        rows = sorted(row for part in self._parts for row in part)
        self.epoch = epoch
        self._owners = owners
        self._parts = [[] for _ in range(max(_owners_in(table)) + 1)]
        for row in rows:
            self._parts[owners[row[1]]].append(row)
        self._limit_rows()

    def _limit_rows(self) -> None:
        workers = len(_owners_in(self._owners.table))
        self._rows_max = min(ROWS_PER_WORKER * workers, ROUND_ROWS_MAX, self._batch_rows_max)

    def has_room(self, size_bytes: int = 0) -> bool:
        """Tell whether one more row of so many bytes fits; an empty round takes every row."""
        total = self.size_bytes + size_bytes + ROW_OVERHEAD_BYTES
        return not self.rows or (self.rows < self._rows_max and total <= self._batch_bytes_max)

    def add(self, topic: str, payload: bytes) -> None:
        """Add a plain direct message; the caller has seen that there is room.

        Raises:
            InvalidRequestError: the topic is illegal, or the message too large.
        """
        size = len(payload)
        if size > self._message_bytes_max:
            raise _too_large(size, self._message_bytes_max)
        self._parts[self._owners[topic]].append((self.rows, topic, 0, None, None, payload))
        self.rows += 1
        self.size_bytes += size + ROW_OVERHEAD_BYTES

    def add_row(self, row: Row) -> None:
        """Add the row of a message; the caller has seen that there is room.

        Raises:
            InvalidRequestError: the message is too large (MESSAGE_TOO_LARGE) or not direct
                (INVALID_ARGUMENT).
        """
        _, topic, flags, meta, packed, payload = row
        size = direct_size(row)
        if size > self._message_bytes_max:
            raise _too_large(size, self._message_bytes_max)
        self._parts[self._owners[topic]].append((self.rows, topic, flags, meta, packed, payload))
        self.rows += 1
        self.size_bytes += size + ROW_OVERHEAD_BYTES

    def fill(self, messages: Iterator[Publishable]) -> Publishable | None:
        """Add direct messages until there is no room; give the one that did not fit, or None if they ran out.

        A guaranteed message never fits: it goes through a producer.

        Raises:
            InvalidRequestError: a message is illegal; those before it are gathered.
        """
        parts, owners, rows, size = self._parts, self._owners, self.rows, self.size_bytes
        rows_max, size_max = self._rows_max, self._batch_bytes_max
        try:
            for message in messages:
                if type(message) is tuple and len(message) == 2:
                    topic, payload = message
                    if type(payload) is not bytes:
                        payload = check_payload(payload)
                    more = len(payload) + ROW_OVERHEAD_BYTES
                    row: Row = (rows, topic, 0, None, None, payload)
                elif isinstance(message, Message):
                    row = (rows, *message.row[1:])
                    topic = row[1]
                    if row[2] & wire.FLAG_MODE:
                        return message
                    more = row_size(row) + ROW_OVERHEAD_BYTES
                else:
                    detail = f"neither a message nor a pair of topic and payload: {message!r:.80}"
                    raise errors.invalid(detail)
                if rows and (rows >= rows_max or size + more > size_max):
                    return message
                if more - ROW_OVERHEAD_BYTES > self._message_bytes_max:
                    raise _too_large(more - ROW_OVERHEAD_BYTES, self._message_bytes_max)
                parts[owners[topic]].append(row)
                rows += 1
                size += more
        finally:
            self.rows, self.size_bytes = rows, size
        return None

    def fill_rows(self, waiting: deque[Row]) -> None:
        """Add rows from the left of a queue until there is no room; the caller knows that each would be taken."""
        parts, owners, rows, size = self._parts, self._owners, self.rows, self.size_bytes
        rows_max, size_max = self._rows_max, self._batch_bytes_max
        while waiting:
            row = waiting[0]
            size_of_row = len(row[5]) + len(row[4] or b"") if row[3] is None else row_size(row)
            more = size_of_row + ROW_OVERHEAD_BYTES
            if rows and (rows >= rows_max or size + more > size_max):
                break
            topic = row[1]
            parts[owners[topic]].append((rows, topic, row[2], row[3], row[4], row[5]))
            rows += 1
            size += more
            waiting.popleft()
        self.rows, self.size_bytes = rows, size

    def remove(self, indices: set[int]) -> None:
        """Forget rows by their places among those that are gathered; the others stay, in their order."""
        kept = sorted(row for part in self._parts for row in part if row[0] not in indices)
        for part in self._parts:
            part.clear()
        self.rows = self.size_bytes = 0
        for row in kept:
            self._parts[self._owners[row[1]]].append((self.rows, *row[1:]))
            self.rows += 1
            self.size_bytes += row_size(row) + ROW_OVERHEAD_BYTES

    def take(self) -> Round:
        """Give what is gathered as a round, and start over."""
        parts = self._parts
        heads: list[tuple[int, int]] = []
        batches: list[bytes] = []
        for worker, rows in enumerate(parts):
            if rows:
                heads.append((worker, len(rows)))
                batches.append(pack_rows(rows))
                parts[worker] = []
        done = Round(self.epoch, heads, batches, self.rows, sum(map(len, batches)))
        self.rows = 0
        self.size_bytes = 0
        return done

    def validate(self) -> None:
        """Check the sentences above."""
        indices = [row[0] for part in self._parts for row in part]
        assert sorted(indices) == list(range(self.rows))
        assert all(part == sorted(part, key=lambda row: row[0]) for part in self._parts)
        assert self.rows <= ROUND_ROWS_MAX
        assert self.rows <= 1 or self.size_bytes <= self._batch_bytes_max
        assert self.epoch or len(self._parts) == 1
        for owner, part in enumerate(self._parts):
            assert all(self._owners[row[1]] == owner for row in part)
        self._owners.validate()


def direct_size(row: Row) -> int:
    """Give the size of a row that can be published without a producer.

    Raises:
        InvalidRequestError: it is of a guaranteed message (INVALID_ARGUMENT).
    """
    if row[2] & wire.FLAG_MODE:
        raise errors.invalid("only direct messages can be published without a producer")
    return row_size(row)


def _too_large(size: int, limit: int) -> errors.AngariumError:
    return errors.error_for(errors.MESSAGE_TOO_LARGE, f"{size} bytes, the limit is {limit}")
