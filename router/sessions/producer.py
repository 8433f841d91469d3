"""One opened producer: its window, the rounds of it that are not settled yet, and what is known of its sequences.

`producers` opens and closes them, `spooling` judges what they publish, `acks` tells what became of it. What a session
is does not matter here, so its type is a parameter.

Exactly-once publish (docs/guarantees.md): each lane keeps, per producer, the last sequence that it stored and those
below that were refused. They are gathered when the producer is opened, and judge what it sends again:

    lane A: last 10, refused 5      a row with sequence 5, for any lane    refused again, with the same code
                                    a row for A, 7                         it is there: acknowledged, not stored again
                                    ... 11                                 new
    lane B: last 6                  a row for A and B, 7                   A has it, B gets it; no quota refuses it

A lane without a record has nothing of this producer. What was refused went nowhere, so one lane that knows of it is
enough, whichever lanes the message would go to now. What a publisher was told to be refused must be known wherever
a later sequence of it is stored, else 'at or below the last' would read as 'stored': so every nack of the newest window
goes into the records of every lane that the producer touches after it (`untold`).

Which lane of a partitioned queue a row belongs to depends on the number of partitions, and that may change between a
message and its resend. So a record has one last sequence for each number under which something was stored, and an
endpoint holds a row if the lane to which it belonged under some number holds it:

    lane 0: last 7 under 2, 12 under 3    key k is for lane 1 under 2, and for lane 2 under 3
    lane 1: last 9 under 2                a row with k and sequence 8: lane 1 has it since there were 2
    lane 2: last 11 under 3               ... 10, 11: lane 2 has it        ... 12: new, for lane 2
    lane 3: last 10 under 4               closed now, and still asked

That is right because nothing is stored under another number, or at another home of a lane, before everything of before
is on disk (`rearranging`): no sequence that is missing somewhere lies below one that was stored.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from angarium import errors, wire
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from angarium_server.frames.homes import LaneRecord

S = TypeVar("S")

#: Sequences and their arithmetic stay far inside 64 bits.
SEQUENCE_MAX: Final = 1 << 62


#: Of sequences: the first, and how many follow each other.
Range = tuple[int, int]


class Nack(NamedTuple):
    """A message that was refused: it went to no endpoint."""

    sequence: int
    code: int
    detail: str


class Pending(Generic[S]):
    """A round that was judged, until its homes have what they were given."""

    __slots__ = ("bytes", "homes", "nacks", "producer", "rows", "unroutable", "upto")

    def __init__(
        self,
        producer: Producer[S],
        upto: int,
        rows: int,
        size: int,
        nacks: list[Nack],
        unroutable: list[Range],
    ) -> None:
        self.producer = producer
        #: Its last sequence.
        self.upto = upto
        self.rows = rows
        self.bytes = size
        #: By rising sequence.
        self.nacks = nacks
        #: What no endpoint took, rising.
        self.unroutable = unroutable
        #: STOREs of it that are not covered by what their home reported.
        self.homes = 0


class Producer(Generic[S]):
    """A named publisher of guaranteed messages in one session. Compares by identity."""

    __slots__ = (
        "acks",
        "closed_by",
        "handle",
        "id",
        "is_open",
        "is_over",
        "is_stage",
        "last",
        "memory",
        "nacks",
        "name",
        "repeated_upto",
        "session",
        "told",
        "unacked_bytes",
        "unacked_rows",
        "unsettled",
        "username",
        "vpn_name",
        "window",
    )

    def __init__(self, session: S, handle: int, vpn_name: str, username: str, name: str, window: int) -> None:
        self.session = session
        #: Unique in its session.
        self.handle = handle
        self.vpn_name = vpn_name
        self.username = username
        self.name = name
        #: Messages that may be unacknowledged.
        self.window = window
        #: The number of (Message VPN, username, name) in the registry; 0 until it is known.
        self.id = 0
        self.memory = Memory(0, window)
        #: Whether what it publishes waits for a commit; it is known to the registry of stages then.
        self.is_stage = False
        #: True from the answer to its opening on.
        self.is_open = False
        #: True once nothing more of it is taken, nor told: it was fenced, or broke a rule.
        self.is_over = False
        #: Called once everything that was accepted is settled; nothing more is accepted meanwhile.
        self.closed_by: Callable[[float], None] | None = None
        #: The last sequence that was judged; falls never.
        self.last = 0
        #: Up to here direct subscribers had their copies before this opening, in the life of this router.
        self.repeated_upto = 0
        #: Published, and neither acknowledged nor refused; bytes as packed.
        self.unacked_rows = self.unacked_bytes = 0
        #: Judged and not told, oldest first.
        self.unsettled: deque[Pending[S]] = deque()
        #: The sequence up to which it was told.
        self.told = 0
        #: Totals for the operators.
        self.acks = self.nacks = 0

    @property
    def takes_rounds(self) -> bool:
        """Tell whether what it publishes is taken; if not, its client may not have heard so yet, and it is dropped."""
        return self.is_open and not self.is_over and self.closed_by is None

    def charge(self, rows: int, size: int, first: int, bytes_max: int) -> None:
        """Count a round towards the window.

        Raises:
            InvalidRequestError: 40026 more than the window, 40027 a sequence below 1. Each ends the session.
        """
        if self.unacked_rows + rows > self.window:
            detail = f"{self.unacked_rows} and {rows} messages, the window is {self.window}"
            raise error_for(errors.PRODUCER_WINDOW_EXCEEDED, detail)
        if self.unacked_bytes >= bytes_max:
            detail = f"{self.unacked_bytes} bytes are not acknowledged, allowed are {bytes_max}"
            raise error_for(errors.PRODUCER_WINDOW_EXCEEDED, detail)
        if not 0 < first <= SEQUENCE_MAX:
            raise error_for(errors.INVALID_SEQUENCE, f"{first}, sequences start at 1")
        self.unacked_rows += rows
        self.unacked_bytes += size

    def release(self, rows: int, size: int) -> None:
        """Give window back."""
        self.unacked_rows -= rows
        self.unacked_bytes -= size

    def end(self) -> None:
        """Take nothing more, and tell nothing more."""
        self.is_over = True
        self.unsettled.clear()
        self.unacked_rows = self.unacked_bytes = 0

    def validate(self) -> None:
        """Check the sentences above."""
        assert 0 <= self.unacked_rows <= self.window
        assert sum(one.rows for one in self.unsettled) <= self.unacked_rows
        assert sum(one.bytes for one in self.unsettled) <= self.unacked_bytes
        assert self.told <= self.last
        uptos = [one.upto for one in self.unsettled]
        assert uptos == sorted(uptos)
        assert not uptos or self.told < uptos[0]
        self.memory.validate()


def join_ranges(known: list[Range], more: Iterable[Range]) -> list[Range]:
    """Add ranges to a list of lower ones; neighbours become one."""
    for first, count in more:
        if known and sum(known[-1]) == first:
            known[-1] = known[-1][0], known[-1][1] + count
        else:
            known.append((first, count))
    return known


def unregistered(session: S, vpn_name: str, username: str) -> Producer[S]:
    """Give a producer of one message that nobody sends again: no home remembers it."""
    producer = Producer(session, 1, vpn_name, username, "", 1)
    producer.is_open = True
    return producer


def over(session: S) -> Producer[S]:
    """Give a producer of whose rounds nothing is taken: one that was closed or fenced."""
    producer = Producer(session, 0, "", "", "", 1)
    producer.end()
    return producer


class Record(NamedTuple):
    """What one lane knows of one producer."""

    #: Number of partitions of its endpoint -> the last sequence that was stored under it.
    lasts: dict[int, int]
    #: Sequence -> code of the refusal; may hold sequences above the last ones.
    refused: dict[int, int]

    @property
    def last(self) -> int:
        """Give the last sequence that was stored, 0 for none."""
        return max(self.lasts.values(), default=0)


def merge_records(answers: Iterable[Sequence[LaneRecord]]) -> dict[int, Record]:
    """Give lane id -> record from what the homes answered."""
    records: dict[int, Record] = {}
    for answer in answers:
        for one in answer:
            record = records.setdefault(one.lane, Record({}, {}))  # two homes know a lane while it moves
            for count, last in one.lasts:
                record.lasts[count] = max(last, record.lasts.get(count, 0))
            record.refused.update(one.refused)
    return records


#: Lanes of which is always known what they were told of a producer's nacks.
TOLD_MIN: Final = 64


class Memory:
    """The sequences of one producer, from one opening to the next."""

    __slots__ = ("_lasts", "_nacks", "_refused", "_rows", "_told", "_told_max", "_window", "highest", "id")

    def __init__(
        self, producer_id: int, window: int, records: dict[int, Record] | None = None, known: int = 0
    ) -> None:
        """Begin with what the homes know; `known` is the highest sequence that somebody else knows of."""
        self.id = producer_id
        records = records or {}
        #: No sequence above it was ever taken.
        self.highest = max(known, highest_of(records))
        #: What lanes knew when the producer was opened; empty once a sequence above `highest` came.
        #: Sequence -> code: what is refused in one place went nowhere.
        self._refused: dict[int, int] = {}
        #: Endpoint id -> number of partitions -> partition -> the last sequence.
        self._lasts: dict[int, dict[int, dict[int, int]]] = {}
        for lane_id, record in records.items():
            self._refused.update(record.refused)
            endpoint_id, partition = lane_id >> wire.LANE_BITS, lane_id & (1 << wire.LANE_BITS) - 1
            for count, last in record.lasts.items():
                self._lasts.setdefault(endpoint_id, {}).setdefault(count, {})[partition] = last
        #: Messages that its client may not have heard the verdict of.
        self._window = window
        #: Rows taken so far.
        self._rows = 0
        #: The nacks of the newest window, oldest first: (sequence, code, rows taken before).
        self._nacks: deque[tuple[int, int, int]] = deque()
        #: Lane id -> rows taken when its record was told the nacks so far.
        self._told: dict[int, int] = {}
        #: With more of them, those are forgotten that say nothing.
        self._told_max = TOLD_MIN

    def is_known(self, sequence: int) -> bool:
        """Tell whether a row with this sequence may have been taken before."""
        return sequence <= self.highest

    def refusal(self, sequence: int) -> int:
        """Give the code with which a row was refused before, 0 if it was not."""
        return self._refused.get(sequence, 0)

    def is_held(self, sequence: int, endpoint_id: int, hashed: int) -> bool:
        """Tell whether an endpoint has a row of this sequence, which was not refused.

        `hashed` is the number whose remainder is the partition of the row.
        """
        found = self._lasts.get(endpoint_id, {})
        return any(sequence <= lasts.get(hashed % count, 0) for count, lasts in found.items())

    def may_be_held(self, sequence: int) -> bool:
        """Tell whether some lane has stored this sequence or one above it, and none has refused it."""
        if not self.is_known(sequence) or self.refusal(sequence):
            return False
        found = (lasts for counts in self._lasts.values() for lasts in counts.values())
        return any(sequence <= last for lasts in found for last in lasts.values())

    def take(self, rows: int, last: int, nacks: Iterable[tuple[int, int]]) -> None:
        """Take note of a round that was judged: its rows, its last sequence, and its (sequence, code) nacks."""
        if last > self.highest:
            self._refused, self._lasts = {}, {}
        for sequence, code in nacks:
            self._nacks.append((sequence, code, self._rows))
        self._rows += rows
        while self._nacks and self._rows - self._nacks[0][2] > 2 * self._window:
            self._nacks.popleft()
        while len(self._nacks) > self._window:
            self._nacks.popleft()
        if not self._nacks:
            self._told.clear()
        elif len(self._told) > self._told_max:
            oldest = self._nacks[0][2]
            self._told = {lane_id: told for lane_id, told in self._told.items() if told > oldest}
            self._told_max = 2 * len(self._told) + TOLD_MIN

    @property
    def has_nacks(self) -> bool:
        """Tell whether something was refused of late."""
        return bool(self._nacks)

    def untold(self, lane_id: int) -> list[tuple[int, int]]:
        """Give the nacks that go into the record of a lane now: sequences and codes."""
        if not self._nacks:
            return []
        told = self._told.get(lane_id, -1)
        self._told[lane_id] = self._rows
        return [(sequence, code) for sequence, code, rows in self._nacks if rows >= told]

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self._nacks) <= self._window
        assert all(rows <= self._rows for _, _, rows in self._nacks)
        assert not self._told or self._nacks
        lasts = (
            one for counts in self._lasts.values() for lasts in counts.values() for one in lasts.values()
        )
        assert self.highest >= max((*self._refused, *lasts), default=0)


def highest_of(records: dict[int, Record]) -> int:
    """Give the highest sequence in records, 0 if there is none."""
    last = max((record.last for record in records.values()), default=0)
    refused = (sequence for record in records.values() for sequence in record.refused)
    return max(last, max(refused, default=0))
