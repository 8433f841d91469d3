"""Asking all homes for what they know of one producer (GATHER), and having it forgotten.

A home answers when every STORE that came before is on disk. One that is down is asked when it is back, behind what is
sent to it again; the question waits for it, since a record that is missing would let a message be stored twice.

A lane that gets another home meanwhile may be in no answer: the new home has answered before it was told of the lane,
and the old one answers when it has parted with it. So who got lanes since it was asked is asked again, when all have
answered; it answers when the lanes are there with their records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium_server.frames.homes import GatherFrame
from router.sessions.producer import merge_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.frames.homes import LaneRecord, RecordsFrame
    from router.admission.streams import Streams
    from router.matching.shards import Shard, Shards
    from router.sessions.producer import Record


class _Question:
    """One question to all homes."""

    __slots__ = ("again", "answers", "done", "forget", "missing", "producer_id")

    def __init__(
        self, producer_id: int, done: Callable[[dict[int, Record], float], None], *, forget: bool
    ) -> None:
        self.producer_id = producer_id
        self.forget = forget
        self.done = done
        #: Homes that did not answer, in the order of their numbers.
        self.missing: dict[int, None] = {}
        self.answers: list[Sequence[LaneRecord]] = []
        #: Homes that got lanes of others since they were asked.
        self.again: dict[int, None] = {}


class Gathering:
    """All questions that are under way."""

    def __init__(self, shards: Shards, streams: Streams) -> None:
        self._shards = shards
        self._streams = streams
        self._reference = 0
        #: Reference -> question, oldest first: one for each producer that is being opened or forgotten, and for each
        #: lane that moves.
        self._questions: dict[int, _Question] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def ask(
        self, producer_id: int, done: Callable[[dict[int, Record], float], None], *, forget: bool = False
    ) -> None:
        """Ask every home; `done` gets lane id -> record when all have answered. With `forget` they delete theirs."""
        self._reference += 1
        question = self._questions[self._reference] = _Question(producer_id, done, forget=forget)
        for shard in self._shards.shards:
            question.missing[shard.index] = None
            self._send(self._reference, shard.index)

    def _send(self, reference: int, index: int) -> None:
        if self._streams.is_up(index):
            question = self._questions[reference]
            question.again.pop(index, None)
            frame = GatherFrame(self._shards.incarnation, reference, question.producer_id, question.forget)
            self._streams.send(index, frame.frames())

    def handed_over(self, index: int) -> None:
        """A home was told of lanes that another one had."""
        for question in self._questions.values():
            question.again[index] = None

    def home_ready(self, index: int) -> None:
        """A home is back: ask it again what it did not answer."""
        for reference, question in self._questions.items():
            if index in question.missing:
                self._send(reference, index)

    def answered(self, answer: RecordsFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        """A home answered."""
        question = self._questions.get(answer.reference)
        if question is None or shard.index not in question.missing:
            return
        del question.missing[shard.index]
        question.answers.append(answer.records)
        self._finish(answer.reference, now)

    def _finish(self, reference: int, now: float) -> None:
        question = self._questions[reference]
        for shard in self._shards.shards if not question.missing else ():
            if shard.index in question.again:
                question.missing[shard.index] = None
                self._send(reference, shard.index)
        if not question.missing:
            del self._questions[reference]
            question.done(merge_records(question.answers), now)

    def left(self, count: int) -> None:
        """There are so many homes now: what those that left did not tell is with others, who are asked (again).

        They may have answered before they knew that they have more lanes; from then on they answer when all is there.
        """
        for reference in list(self._questions):
            question = self._questions[reference]
            if any(index >= count for index in question.missing):
                del self._questions[reference]
                self.ask(question.producer_id, question.done, forget=question.forget)

    def validate(self) -> None:
        """Check that every question waits for somebody."""
        assert all(question.missing for question in self._questions.values())
