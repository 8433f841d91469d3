"""Asking all homes for what they know of one producer (GATHER), and having it forgotten.

A home answers when every STORE that came before is on disk. One that is down is asked when it is back, behind what is
sent to it again; the question waits for it, since a record that is missing would let a message be stored twice. Of many
that wait some are asked in a step; one whose producer is gone meanwhile is dropped.

A lane that gets another home meanwhile may be in no answer: the new home has answered before it was told of the lane,
and the old one answers when it has parted with it. So who got lanes since it was asked is asked again, when all have
answered; it answers when the lanes are there with their records.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium_server.frames.homes import GatherFrame
from router.sessions.producer import merge_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.frames.homes import LaneRecord, RecordsFrame
    from router.admission.streams import Streams
    from router.matching.shards import Shard, Shards
    from router.sessions.producer import Record


#: Questions that a home which is back is asked in one step: 1 ms.
STEP_MAX: Final = 100


class Question:
    """One question to all homes."""

    __slots__ = ("again", "answers", "done", "forget", "missing", "producer_id", "reference")

    def __init__(
        self, producer_id: int, done: Callable[[dict[int, Record], float], None], *, forget: bool
    ) -> None:
        #: Its number; another one whenever it begins anew.
        self.reference = 0
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
        self._questions: dict[int, Question] = {}
        #: (reference, home that is back), of which some may be over.
        self._in_line: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._questions)

    def ask(
        self, producer_id: int, done: Callable[[dict[int, Record], float], None], *, forget: bool = False
    ) -> Question:
        """Ask every home; `done` gets lane id -> record when all have answered. With `forget` they delete theirs."""
        question = Question(producer_id, done, forget=forget)
        self._begin(question)
        return question

    def drop(self, question: Question) -> None:
        """Nobody waits for an answer any more."""
        self._questions.pop(question.reference, None)

    def _begin(self, question: Question) -> None:
        self._reference += 1
        question.reference = self._reference
        self._questions[self._reference] = question
        question.answers, question.again = [], {}
        question.missing = {shard.index: None for shard in self._shards.shards}
        for index in question.missing:
            self._send(self._reference, index)

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
        """A home is back: ask it again what it did not answer, some at a time."""
        # Who is in line was not asked; but it would be asked twice, and the second answer taken for one of `again`.
        self._in_line = deque(one for one in self._in_line if one[1] != index)
        self._in_line.extend(
            (reference, index) for reference, question in self._questions.items() if index in question.missing
        )
        self._step()

    def tick(self, now: float) -> float:
        """Ask some more; gives when to call again, infinite if nobody is left to be asked."""
        self._step()
        return now if self._in_line else math.inf

    def _step(self) -> None:
        for _ in range(min(STEP_MAX, len(self._in_line))):
            reference, index = self._in_line.popleft()
            if reference in self._questions:
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
                self._begin(question)

    def validate(self) -> None:
        """Check that every question waits for somebody."""
        assert all(question.missing for question in self._questions.values())
