"""What is known of the sequences of one producer: which were stored or refused before, and where.

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

That is right because the number changes only when everything before is on disk (`repartitioning`): no sequence that
is missing somewhere lies below one that was stored under another number.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium_server.frames.homes import LaneRecord


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


class Memory:
    """The sequences of one producer, from one opening to the next."""

    __slots__ = ("_lasts", "_nacks", "_refused", "_rows", "_told", "_window", "highest", "id")

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
