"""What is known of the sequences of one producer: which were stored or refused before, and where.

Exactly-once publish (design section 7, 5): each lane keeps, per producer, the last sequence that it stored and those
below that were refused. They are gathered when the producer is opened, and judge what it sends again:

    lane A: last 10, refused 5      a row with sequence 5, for any lane    refused again, with the same code
                                    a row for A, 7                         it is there: acknowledged, not stored again
                                    ... 11                                 new
    lane B: last 6                  a row for A and B, 7                   A has it, B gets it; no quota refuses it

A lane without a record has nothing of this producer. What was refused went nowhere, so one lane that knows of it is
enough, whichever lanes the message would go to now. What a publisher was told to be refused must be known wherever
a later sequence of it is stored, else 'at or below the last' would read as 'stored': so every nack of the newest window
goes into the records of every lane that the producer touches after it (`untold`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Record(NamedTuple):
    """What one lane knows of one producer."""

    last: int
    #: Sequence -> code of the refusal; may hold sequences above `last`.
    refused: dict[int, int]


def merge_records(answers: Iterable[list[list[object]]]) -> dict[int, Record]:
    """Give lane id -> record from what the homes answered: `[[lane_id, last, [[sequence, code], ...]], ...]` each."""
    records: dict[int, Record] = {}
    for answer in answers:
        for lane_id, last, refused in answer:
            assert isinstance(lane_id, int)
            assert isinstance(last, int)
            assert isinstance(refused, list)
            known = records.get(lane_id)
            codes = {int(sequence): int(code) for sequence, code in refused}
            if known is not None:  # two homes know a lane while it moves
                last, codes = max(last, known.last), {**known.refused, **codes}
            records[lane_id] = Record(last, codes)
    return records


class Memory:
    """The sequences of one producer, from one opening to the next."""

    __slots__ = ("_nacks", "_rows", "_told", "_window", "highest", "id", "records")

    def __init__(
        self, producer_id: int, window: int, records: dict[int, Record] | None = None, known: int = 0
    ) -> None:
        """Begin with what the homes know; `known` is the highest sequence that somebody else knows of."""
        self.id = producer_id
        #: Lane id -> what it knew when the producer was opened; empty once a sequence above `highest` came.
        self.records = records or {}
        #: No sequence above it was ever taken.
        self.highest = max(known, highest_of(self.records))
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
        for record in self.records.values():
            if sequence in record.refused:
                return record.refused[sequence]
        return 0

    def is_held(self, sequence: int, lane_id: int) -> bool:
        """Tell whether a lane has a row of this sequence that it did not refuse."""
        record = self.records.get(lane_id)
        return record is not None and sequence <= record.last

    def may_be_held(self, sequence: int) -> bool:
        """Tell whether some lane has stored this sequence or one above it, and none has refused it."""
        if not self.is_known(sequence) or self.refusal(sequence):
            return False
        return any(sequence <= record.last for record in self.records.values())

    def take(self, rows: int, last: int, nacks: Iterable[tuple[int, int]]) -> None:
        """Take note of a round that was judged: its rows, its last sequence, and its (sequence, code) nacks."""
        if last > self.highest:
            self.records = {}
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

    def untold(self, lane_id: int) -> list[list[int]]:
        """Give the nacks that go into the record of a lane now: `[[sequence, code], ...]`."""
        if not self._nacks:
            return []
        told = self._told.get(lane_id, -1)
        self._told[lane_id] = self._rows
        return [[sequence, code] for sequence, code, rows in self._nacks if rows >= told]

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self._nacks) <= self._window
        assert all(rows <= self._rows for _, _, rows in self._nacks)
        assert not self._told or self._nacks
        assert self.highest >= highest_of(self.records)


def highest_of(records: dict[int, Record]) -> int:
    """Give the highest sequence in records, 0 if there is none."""
    last = max((record.last for record in records.values()), default=0)
    refused = (sequence for record in records.values() for sequence in record.refused)
    return max(last, max(refused, default=0))
