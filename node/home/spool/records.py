"""Producer records: what is known of a producer at a lane, so that a resend keeps its verdict.

A record is per (lane, producer): the last sequence that was stored, and the sequences that were refused and
that the producer may still ask about. A sequence up to the last that is not among the refused is stored. The
router gathers the records before the first row of a producer and judges; the home only keeps them, writes
them in the transaction of the rows, and deletes them with the lane.

How many partitions its endpoint has decides which lane a row belongs to. So a record has a last sequence for each
such number under which it stored something: what was sent before the number changed is looked for where it belonged
then. After a change of the number, or of the home of a lane, the router sends nothing before everything of before is on
disk, so no sequence is missing below one that was stored.

A producer has at most `REFUSED_MAX` messages without a verdict, one of a stage `STAGE_REFUSED_MAX`. So a refusal is
forgotten when so many rows of its producer were stored at the lane after it, and a record never has more of them:
by then the verdict is known. Distance in sequences says nothing, because applications choose their own sequences, with
gaps.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from angarium import wire
from angarium_server.frames.homes import LaneRecord
from node.home.spool import layout
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from node.matching.batch import Row
    from storage.spool import Change

#: The largest window of a producer, in messages.
REFUSED_MAX: Final = wire.PRODUCER_WINDOW_MAX
#: The same of a stage.
STAGE_REFUSED_MAX: Final = wire.STAGE_WINDOW_MAX
#: Numbers of partitions that a record knows; the one that was left longest ago is forgotten first. A producer has a
#: window of messages that it may send again, and they were published under few of them.
COUNTS_MAX: Final = 16

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Record:
    """What one lane knows of one producer."""

    __slots__ = ("count", "last", "older", "refused", "rows")

    def __init__(
        self,
        last: int = 0,
        rows: int = 0,
        refused: list[tuple[int, int, int]] | None = None,
        count: int = 1,
        older: dict[int, int] | None = None,
    ) -> None:
        #: How many partitions the endpoint had when a row was stored last.
        self.count = count
        #: The highest sequence that was stored under that number, 0 for none.
        self.last = last
        #: Other numbers of partitions -> the highest sequence stored under them, longest left first.
        self.older: dict[int, int] = older if older is not None else {}
        #: Rows stored so far.
        self.rows = rows
        #: (sequence, code, `rows` at that time), by rising sequence; at most `STAGE_REFUSED_MAX`, none of them stored.
        self.refused: list[tuple[int, int, int]] = refused if refused is not None else []

    def store(
        self,
        count: int,
        base: int,
        rows: Sequence[Row],
        chosen: Sequence[int] | None,
        window: int = REFUSED_MAX,
    ) -> None:
        """Note rows that are stored: those with the chosen numbers (rising; None: all), sequence = base + index."""
        if count != self.count:
            self._turn(count)
        self.last = max(self.last, base + rows[-1 if chosen is None else chosen[-1]].index)
        self.rows += len(rows) if chosen is None else len(chosen)
        if self.refused:
            stored = {base + row.index for row in (rows if chosen is None else [rows[i] for i in chosen])}
            oldest = self.rows - window
            self.refused = [one for one in self.refused if one[0] not in stored and one[2] > oldest]

    def _turn(self, count: int) -> None:
        """Go on under another number of partitions."""
        if self.last:
            self.older[self.count] = self.last
        self.count, self.last = count, self.older.pop(count, 0)
        while len(self.older) >= COUNTS_MAX:
            del self.older[next(iter(self.older))]

    @property
    def lasts(self) -> list[tuple[int, int]]:
        """Give (number of partitions, last sequence stored under it) of each, the newest at the end."""
        return [*self.older.items(), (self.count, self.last)] if self.last else [*self.older.items()]

    def refuse(self, verdicts: Iterable[tuple[int, int]], window: int = REFUSED_MAX) -> None:
        """Note rows that are refused, as (sequence, code)."""
        known = {one[0]: one for one in self.refused}
        known.update({sequence: (sequence, code, self.rows) for sequence, code in verdicts})
        self.refused = [known[sequence] for sequence in sorted(known)][-window:]

    def precede(self, older: Record) -> None:
        """Put what was known before in front of it."""
        later = [(sequence, code, rows + older.rows) for sequence, code, rows in self.refused]
        self.refused = sorted({one[0]: one for one in [*older.refused, *later]}.values())[-STAGE_REFUSED_MAX:]
        newest = self.count if self.last else older.count
        known = dict(older.lasts)
        for count, last in self.lasts:
            known[count] = max(last, known.pop(count, 0))
        self.rows += older.rows
        self.count, self.last = newest, known.pop(newest, 0)
        self.older = dict(list(known.items())[-COUNTS_MAX + 1 :])

    def pack(self) -> bytes:
        """Pack the record for the table RECORDS."""
        fields: list[Any] = [self.last, self.rows, self.refused]
        if self.count > 1 or self.older:
            fields += [self.count, list(self.older.items())]
        packed: bytes = _pack(fields)
        return packed

    @classmethod
    def unpack(cls, value: bytes, producer: int) -> Record:
        """Undo `pack`.

        Raises:
            UnavailableError: it is damaged (50322).
        """
        last, rows, refused, *more = layout.unpack(value, (3, 5), f"a record of producer {producer}")
        count, older = more or (1, ())
        return cls(last, rows, [(sequence, code, at) for sequence, code, at in refused], count, dict(older))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.last >= 0
        assert self.count >= 1
        assert self.count not in self.older
        assert len(self.older) < COUNTS_MAX
        assert all(self.older.values())
        assert len(self.refused) <= STAGE_REFUSED_MAX
        sequences = [one[0] for one in self.refused]
        assert sequences == sorted(set(sequences))
        assert all(one[2] <= self.rows for one in self.refused)


class Records:
    """The records of all lanes of a home, and which of them are to be written."""

    def __init__(self) -> None:
        #: Producer -> lane -> record; no producer without a lane.
        self._records: dict[int, dict[int, Record]] = {}
        #: What differs from the spool; None: it is to be deleted there.
        self._changed: dict[tuple[int, int], Record | None] = {}
        self._count = 0

    def __len__(self) -> int:
        """Give the number of records."""
        return self._count

    def load(self, key: bytes, value: bytes) -> None:
        """Take a record from the spool.

        Raises:
            UnavailableError: it is damaged (50322).
        """
        lane_id, producer = layout.key_numbers(key)
        self._put(lane_id, producer, Record.unpack(value, producer))

    def adopt(self, key: bytes, value: bytes) -> None:
        """Take a record over from another spool; what was stored here meanwhile came after it.

        Raises:
            UnavailableError: it is damaged (50322).
        """
        lane_id, producer = layout.key_numbers(key)
        self._touch(lane_id, producer).precede(Record.unpack(value, producer))

    def store(
        self,
        lane_id: int,
        producer: int,
        count: int,
        base: int,
        rows: Sequence[Row],
        chosen: Sequence[int] | None,
        *,
        stage: int = 0,
    ) -> None:
        """Note rows of a producer that a lane stores, as `Record.store` takes them; `stage` is 0 if it is none."""
        self._touch(lane_id, producer).store(count, base, rows, chosen, _window(stage))

    def refuse(
        self, lane_id: int, producer: int, verdicts: Iterable[tuple[int, int]], *, stage: int = 0
    ) -> None:
        """Note rows of a producer that were refused, as (sequence, code)."""
        self._touch(lane_id, producer).refuse(verdicts, _window(stage))

    def gather(self, producer: int) -> list[LaneRecord]:
        """Give what all lanes know of a producer."""
        return [
            LaneRecord(lane_id, record.lasts, [(sequence, code) for sequence, code, _ in record.refused])
            for lane_id, record in self._records.get(producer, {}).items()
        ]

    def forget(self, producer: int) -> None:
        """Drop the records of a producer whose name is given up."""
        for lane_id in self._records.pop(producer, {}):
            self._changed[lane_id, producer] = None
            self._count -= 1

    def drop_lane(self, lane_id: int) -> None:
        """Forget the records of a lane that is gone; what the spool has of them is purged with the lane."""
        for producer in list(self._records):
            lanes = self._records[producer]
            if lanes.pop(lane_id, None) is not None:
                self._changed.pop((lane_id, producer), None)
                self._count -= 1
                if not lanes:
                    del self._records[producer]

    def take_changes(self) -> list[Change]:
        """Give what is to be written now."""
        changes: list[Change] = [
            (Table.RECORDS, layout.pair_key(lane_id, producer), None if record is None else record.pack())
            for (lane_id, producer), record in self._changed.items()
        ]
        self._changed.clear()
        return changes

    def restore(self, key: bytes) -> None:
        """Have a record written again whose write failed."""
        lane_id, producer = layout.key_numbers(key)
        self._changed[lane_id, producer] = self._records.get(producer, {}).get(lane_id)

    def _touch(self, lane_id: int, producer: int) -> Record:
        lanes = self._records.get(producer)
        record = None if lanes is None else lanes.get(lane_id)
        if record is None:
            record = Record()
            self._put(lane_id, producer, record)
        self._changed[lane_id, producer] = record
        return record

    def _put(self, lane_id: int, producer: int, record: Record) -> None:
        lanes = self._records.setdefault(producer, {})
        self._count += lane_id not in lanes
        lanes[lane_id] = record

    def stats(self) -> dict[str, Any]:
        """Give the number of records and of producers."""
        return {"records": self._count, "record_producers": len(self._records)}

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._count == sum(len(lanes) for lanes in self._records.values())
        for lanes in self._records.values():
            assert lanes
            for record in lanes.values():
                record.validate()
        for (lane_id, producer), changed in self._changed.items():
            assert changed is self._records.get(producer, {}).get(lane_id)


def _window(stage: int) -> int:
    return STAGE_REFUSED_MAX if stage else REFUSED_MAX
