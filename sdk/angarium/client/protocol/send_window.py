"""Rows of one producer, from the application's hand until the node has settled them.

A message gets its sequence here and is kept until an ACKED covers it, so that it can be sent again with the
same sequence after a reconnect: that is what makes publishing exactly-once. Messages
held, sent or not, are at most one window, so the window bounds the memory too.

    add ──► unsent rounds ──take──► sent rounds ──acknowledge──► claims are told
                 ▲                       │
                 └──────── reopen ───────┘          same rows, same sequences

Rows are gathered into rounds of up to half a window, so that two are on their way at a time: while the node writes
one of them it takes the next. Two halves must fit into the window, or each would wait for the one before; smaller
parts cost more for each message than they save. A round leaves whole. Who waits for a message is its *claim*
(`angarium.client.publishing.receipts`). No I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from angarium import errors, wire
from angarium.message import Message, Row, check_payload, pack_rows, row_size
from angarium.slots import ROUND_BYTES_MAX, ROW_OVERHEAD_BYTES, Round, TopicOwners
from angarium.topic import SLOTS
from angarium.wire import malformed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from angarium.slots import Publishable

#: Sequences have 62 bits, so that sums of them never leave what every language can hold.
SEQUENCE_MAX: Final = (1 << 62) - 1
#: Indices of one round span so much at most; a larger gap between sequences starts another round.
INDEX_MAX: Final = (1 << 32) - 1


class Claim(Protocol):
    """Who wants to know what became of messages."""

    def settle(self, messages: int) -> None:
        """So many more of its messages are stored."""

    def miss(self, messages: int) -> None:
        """So many of its messages are settled next, and no endpoint took them."""

    def refuse(self, sequence: int, error: errors.AngariumError) -> None:
        """One of its messages went to no endpoint."""

    def fail(self, messages: int, error: errors.AngariumError) -> None:
        """What became of so many of its messages is unknown."""


class Departure(NamedTuple):
    """A round that leaves: row index `i` has the sequence `first + i`."""

    first: int
    round: Round


class _Batch:
    """Rows that leave together, in the order of their sequences."""

    __slots__ = ("batch_bytes", "claims", "first", "rows", "size_bytes")

    def __init__(self, first: int) -> None:
        #: The sequence of index 0.
        self.first: Final = first
        #: By rising index.
        self.rows: list[Row] = []
        #: Who wants to know, one per row; None once a refusal was told.
        self.claims: list[Claim | None] = []
        #: What the rows take at most.
        self.size_bytes = 0
        #: What they took on the wire; 0 before they were sent.
        self.batch_bytes = 0

    @property
    def last(self) -> int:
        """The newest sequence."""
        return self.first + self.rows[-1][0]

    def position(self, sequence: int) -> int:
        """Give the place of the first row with this sequence or a higher one; a prefix of a row sorts before it."""
        return bisect_left(self.rows, (sequence - self.first,))


class SendWindow:
    """The rows of one producer that are not settled."""

    __slots__ = (
        "_acknowledged",
        "_batch_bytes_max",
        "_bytes_max",
        "_epoch",
        "_handed",
        "_known",
        "_message_bytes_max",
        "_owners",
        "_sent",
        "_sent_bytes",
        "_sent_last",
        "_unsent",
        "foreign_sequence",
        "handle",
        "held_bytes",
        "held_messages",
        "sent_messages",
        "stored_messages",
        "unroutable_messages",
        "window",
    )

    def __init__(self, window: int) -> None:
        """Hold nothing; `opened` follows."""
        #: Messages that may be held; the node may grant less than was asked for.
        self.window = window
        #: The producer's number in the session; 0 while it is not open.
        self.handle = 0
        #: The newest sequence given to a message here, 0 for none.
        self._handed = 0
        #: The newest sequence that the node knew at the last open.
        self._known = 0
        #: What the node knew at a later open, if that was not from here: somebody else used the name; else 0.
        self.foreign_sequence = 0
        #: What the node said of this open: everything up to it is settled. Never falls, never above `_sent_last`.
        self._acknowledged = 0
        #: The newest sequence that was sent since the producer was opened.
        self._sent_last = 0
        #: To be sent, the oldest first; the last one may still get rows.
        self._unsent: deque[_Batch] = deque()
        #: Sent and not settled, the oldest first; never an empty one.
        self._sent: deque[_Batch] = deque()
        #: Rows in both; at most `window` unless that became smaller.
        self.held_messages = 0
        #: What they take at most, with their heads.
        self.held_bytes = 0
        #: Rows of `_sent`, refused ones that no `upto` covered included; never above `window`.
        self.sent_messages = 0
        #: Messages that the node acknowledged, over all connections.
        self.stored_messages = 0
        #: Those of them that no endpoint took.
        self.unroutable_messages = 0
        #: Bytes of the batches of `_sent`; may exceed `_bytes_max` by one round.
        self._sent_bytes = 0
        self._epoch = 0
        self._owners = TopicOwners(bytes(SLOTS))
        self._bytes_max = self._batch_bytes_max = ROUND_BYTES_MAX
        self._message_bytes_max = ROUND_BYTES_MAX

    # Limits and places.

    def set_table(self, epoch: int, table: bytes) -> None:
        """Cut rounds by a new table from now on."""
        self._epoch = epoch
        self._owners = TopicOwners(table)

    def set_limits(self, message_bytes: int, batch_bytes: int, window_bytes: int) -> None:
        """Take over what the node accepts; rows that are held already are not judged again."""
        self._message_bytes_max = min(message_bytes, batch_bytes - ROW_OVERHEAD_BYTES)
        self._batch_bytes_max = min(ROUND_BYTES_MAX, batch_bytes)
        self._bytes_max = window_bytes

    @property
    def last_sequence(self) -> int:
        """The newest sequence, of the node's memory or handed out here; the next message gets one more."""
        return max(self._known, self._handed)

    @property
    def half(self) -> int:
        """Rows of a full round; two of them are never more than a window, unless it is one message."""
        return max(self.window // 2, 1)

    def oldest_sequence(self) -> int:
        """Give the sequence of the oldest message held, 0 if there is none."""
        batches = self._sent or self._unsent
        return batches[0].first + batches[0].rows[0][0] if batches else 0

    def room(self) -> int:
        """Give how many messages may be added now."""
        return max(self.window - self.held_messages, 0) if self.held_bytes < self._bytes_max else 0

    # In.

    def add(self, row: Row, claim: Claim, sequence: int | None = None) -> int:
        """Add the row of a guaranteed message, whatever its index, and give its sequence.

        The caller has seen that there is room.

        Raises:
            InvalidRequestError: the message is too large (MESSAGE_TOO_LARGE), its topic illegal (INVALID_TOPIC),
                or the sequence does not rise (INVALID_SEQUENCE).
        """
        size = row_size(row)
        if size > self._message_bytes_max:
            raise _too_large(size, self._message_bytes_max)
        _, topic, flags, meta, packed, payload = row
        self._owners[topic]  # Raises for what is no topic.
        sequence = self.last_sequence + 1 if sequence is None else self._checked(sequence)
        batch = self._open(size + ROW_OVERHEAD_BYTES, sequence)
        batch.rows.append((sequence - batch.first, topic, flags, meta, packed, payload))
        batch.claims.append(claim)
        batch.size_bytes += size + ROW_OVERHEAD_BYTES
        self._handed = sequence
        self.held_messages += 1
        self.held_bytes += size + ROW_OVERHEAD_BYTES
        return sequence

    def fill(self, messages: Iterator[Publishable], claim: Claim) -> int:
        """Add messages until a round is full, there is no room, or they run out; give how many.

        Raises:
            InvalidRequestError: a message is illegal, or direct (INVALID_ARGUMENT); those before it are added.
        """
        owners, size_max, round_max = self._owners, self._message_bytes_max, self._batch_bytes_max
        first = sequence = self.last_sequence + 1
        batch = self._unsent[-1] if self._unsent else None
        if batch is not None and (len(batch.rows) >= self.half or sequence - batch.first > INDEX_MAX):
            batch = None
        most = self.half if batch is None else self.half - len(batch.rows)
        held_bytes, held_max = self.held_bytes, self._bytes_max
        try:
            for message in islice(messages, min(self.room(), most)):
                if type(message) is tuple and len(message) == 2:
                    topic, payload = message
                    if type(payload) is not bytes:
                        payload = check_payload(payload)
                    size = len(payload)
                    flags, meta, packed = wire.MODE_PERSISTENT, None, None
                else:
                    _, topic, flags, meta, packed, payload = row = guaranteed_row(message)
                    size = row_size(row)
                if size > size_max:
                    raise _too_large(size, size_max)
                owners[topic]
                size += ROW_OVERHEAD_BYTES
                if batch is None or batch.size_bytes + size > round_max:
                    batch = self._begin(sequence)
                batch.rows.append((sequence - batch.first, topic, flags, meta, packed, payload))
                batch.claims.append(claim)
                batch.size_bytes += size
                held_bytes += size
                sequence += 1
                if held_bytes >= held_max:
                    break
        finally:
            self.held_bytes = held_bytes
            self.held_messages += sequence - first
            if sequence > first:
                self._handed = sequence - 1
        return sequence - first

    def _checked(self, sequence: int) -> int:
        if type(sequence) is not int or not self._handed < sequence <= SEQUENCE_MAX:
            detail = f"sequence {sequence!r}, the last one was {self._handed}"
            raise errors.error_for(errors.INVALID_SEQUENCE, detail)
        return sequence

    def _open(self, size_bytes: int, sequence: int) -> _Batch:
        """Give the round that gets the next row."""
        if self._unsent:
            last = self._unsent[-1]
            fits = last.size_bytes + size_bytes <= self._batch_bytes_max
            if fits and len(last.rows) < self.half and sequence - last.first <= INDEX_MAX:
                return last
        return self._begin(sequence)

    def _begin(self, sequence: int) -> _Batch:
        batch = _Batch(sequence)
        self._unsent.append(batch)
        return batch

    # Out.

    def has_full_round(self) -> bool:
        """Tell whether nothing more goes into the oldest unsent round."""
        if len(self._unsent) > 1:
            return True
        return bool(self._unsent) and (
            len(self._unsent[0].rows) >= self.half or self._unsent[0].size_bytes >= self._batch_bytes_max
        )

    def take(self) -> Departure | None:
        """Give the oldest unsent round if the window allows it."""
        if not self.handle or not self._unsent or self.foreign_sequence:
            return None
        batch = self._unsent[0]
        if self.sent_messages + len(batch.rows) > self.window or self._sent_bytes >= self._bytes_max:
            return None
        self._unsent.popleft()
        departing = self._cut(batch.rows)
        batch.batch_bytes = departing.size_bytes
        self._sent.append(batch)
        self._sent_last = max(self._sent_last, batch.last)
        self._sent_bytes += batch.batch_bytes
        self.sent_messages += len(batch.rows)
        return Departure(batch.first, departing)

    def _cut(self, rows: list[Row]) -> Round:
        owners = self._owners
        parts: dict[int, list[Row]] = {}
        for row in rows:
            owner = owners[row[1]]
            part = parts.get(owner)
            if part is None:
                parts[owner] = [row]
            else:
                part.append(row)
        workers = sorted(parts)
        batches = [pack_rows(parts[worker]) for worker in workers]
        heads = [(worker, len(parts[worker])) for worker in workers]
        return Round(self._epoch, heads, batches, len(rows), sum(map(len, batches)))

    # What the node says.

    def opened(self, handle: int, window: int, last_sequence: int) -> None:
        """Go on, or begin, on a session: everything that is not settled is to be sent, as it was."""
        if self._handed and last_sequence > self.last_sequence:
            self.foreign_sequence = last_sequence
        self.handle = handle
        self.window = window
        self._known = last_sequence
        self._sent_last = self._acknowledged = 0
        batches = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self.sent_messages = self._sent_bytes = 0
        self.held_messages = self.held_bytes = 0
        for batch in batches:
            for row, claim in zip(batch.rows, batch.claims, strict=True):
                if claim is not None:
                    self._put_back(batch.first + row[0], row, claim)

    def _put_back(self, sequence: int, row: Row, claim: Claim) -> None:
        size = row_size(row) + ROW_OVERHEAD_BYTES
        batch = self._open(size, sequence)
        batch.rows.append((sequence - batch.first, *row[1:]))
        batch.claims.append(claim)
        batch.size_bytes += size
        self.held_messages += 1
        self.held_bytes += size

    def lose(self) -> None:
        """Take note that the producer is not open any more; what is held stays."""
        self.handle = 0

    def acknowledge(
        self, upto: int, nacks: list[tuple[int, int, str]], unroutable: Sequence[range] = ()
    ) -> list[tuple[int, errors.AngariumError]]:
        """Settle everything up to a sequence, refuse single messages, and give those.

        Args:
            upto: the sequence.
            nacks: sequence, code and detail of what is refused.
            unroutable: sequences among those settled that no endpoint took.

        Raises:
            InvalidRequestError: the node speaks of what was never sent or was settled before (40001).
        """
        if not self._acknowledged <= upto <= max(self._sent_last, self._acknowledged):
            detail = (
                f"sequence {upto} acknowledged, between {self._acknowledged} and {self._sent_last} could be"
            )
            raise malformed(detail)
        refused = [(sequence, self._refuse(sequence, code, detail)) for sequence, code, detail in nacks]
        for sequences in unroutable:
            self._miss(sequences, upto)
        self._acknowledged = upto
        sent = self._sent
        while sent and sent[0].last <= upto:
            batch = sent.popleft()
            self._sent_bytes -= batch.batch_bytes
            self.held_bytes -= batch.size_bytes
            self._settle(batch.claims)
        if sent and (count := sent[0].position(upto + 1)):
            self._settle_front(sent[0], count)
        return refused

    def _refuse(self, sequence: int, code: int, detail: str) -> errors.AngariumError:
        for batch in self._sent:
            if sequence <= batch.last:
                at = batch.position(sequence)
                claim = batch.claims[at] if batch.first + batch.rows[at][0] == sequence else None
                if claim is None:
                    break
                error = errors.error_for(code, detail)
                claim.refuse(sequence, error)
                batch.claims[at] = None
                return error
        raise malformed(f"sequence {sequence} refused, which is not under way")

    def _miss(self, sequences: range, upto: int) -> None:
        if not self._acknowledged < sequences.start <= sequences[-1] <= upto:
            raise malformed(f"no endpoint took {sequences}, settled is {self._acknowledged} to {upto}")
        for batch in self._sent:
            if batch.last >= sequences.start:
                for claim in batch.claims[batch.position(sequences.start) : batch.position(sequences.stop)]:
                    if claim is not None:
                        self.unroutable_messages += 1
                        claim.miss(1)

    def _settle_front(self, batch: _Batch, count: int) -> None:
        """Settle the first rows of a round; its bytes stay charged until the last one is."""
        size = sum([row_size(row) for row in batch.rows[:count]]) + count * ROW_OVERHEAD_BYTES
        self.held_bytes -= size
        batch.size_bytes -= size
        self._settle(batch.claims[:count])
        del batch.rows[:count], batch.claims[:count]

    def _settle(self, claims: list[Claim | None]) -> None:
        self.sent_messages -= len(claims)
        self.held_messages -= len(claims)
        first = claims[0]
        if first is not None and claims.count(first) == len(claims):
            self.stored_messages += len(claims)
            first.settle(len(claims))
            return
        for claim in claims:
            if claim is not None:
                self.stored_messages += 1
                claim.settle(1)

    def fail(self, error: errors.AngariumError) -> None:
        """Give everything up: what became of it is unknown."""
        for batch in (*self._sent, *self._unsent):
            for claim in batch.claims:
                if claim is not None:
                    claim.fail(1, error)
        self._sent.clear()
        self._unsent.clear()
        self.handle = self.held_messages = self.held_bytes = self.sent_messages = self._sent_bytes = 0

    def validate(self) -> None:
        """Check the sentences above."""
        batches = [*self._sent, *self._unsent]
        sequences = [batch.first + row[0] for batch in batches for row in batch.rows]
        assert sequences == sorted(dict.fromkeys(sequences))
        assert all(batch.rows and len(batch.rows) == len(batch.claims) for batch in batches)
        assert self.held_messages == len(sequences)
        assert self.held_bytes == sum(batch.size_bytes for batch in batches)
        assert self.sent_messages == sum(len(batch.rows) for batch in self._sent) <= self.window
        assert self._sent_bytes == sum(batch.batch_bytes for batch in self._sent)
        assert not sequences or self._acknowledged < sequences[0]
        assert not sequences or sequences[-1] <= self._handed


def guaranteed_row(message: object) -> Row:
    """Give the row of a guaranteed message.

    Raises:
        InvalidRequestError: it is direct, or no message at all (INVALID_ARGUMENT).
    """
    if not isinstance(message, Message):
        raise errors.invalid(f"neither a message nor a pair of topic and payload: {message!r:.80}")
    if not message.row[2] & wire.FLAG_MODE:
        raise errors.invalid("a producer sends persistent and non-persistent messages, this one is direct")
    return message.row


def _too_large(size: int, limit: int) -> errors.AngariumError:
    return errors.error_for(errors.MESSAGE_TOO_LARGE, f"{size} bytes, the limit is {limit}")
