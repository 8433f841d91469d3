"""Questions of the router to the homes of lanes (LEASE), and their answers (LEASED).

A question waits for its home: for one that starts, that died in the middle, or that is about to have the lane. All
verbs may be asked twice, so a question goes again to the next incarnation of a home. After `ANSWER_TIMEOUT_S` it is
refused with 50320.

One request may ask a thousand lanes, and a home that is back is asked all that waited for it: a few questions leave at
once, more in steps, endpoints in turns. No I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.frames.homes import LeaseFrame
from router.matching.shards import ShardState

if TYPE_CHECKING:
    from angarium_server.frames.homes import LeasedFrame, LeaseVerb
    from router.guaranteed.endpoints import Endpoint, LaneUsage
    from router.guaranteed.lanes import Lanes
    from router.matching.shards import Shard, Shards

#: How long a question waits for its home: a worker that died is back within a few seconds.
ANSWER_TIMEOUT_S: Final = 10.0
#: Questions that leave in one step: 1 ms with what the answers cost.
STEP_MAX: Final = 64
#: So many of one endpoint leave before another one has its turn.
PIECE: Final = 16

#: Takes the value, with the batch as a pair if one comes with it, or the error if there is none, and the time.
Answered = Callable[[Any, "AngariumError | None", float], None]


class _Question:
    """A question without an answer."""

    __slots__ = ("done", "endpoint", "home", "is_in_line", "lane", "until", "verb")

    def __init__(
        self,
        endpoint: Endpoint,
        lane: LaneUsage,
        verb: LeaseVerb,
        done: Answered,
        until: float,
    ) -> None:
        self.endpoint = endpoint
        self.lane = lane
        self.verb = verb
        self.done = done
        self.until = until
        #: The worker that has it; None: it waits for one.
        self.home: int | None = None
        #: True while it waits for the turn of its endpoint.
        self.is_in_line = False


class LaneQuestions:
    """All questions that are under way; a listener of `Shards` and of `Endpoints`."""

    def __init__(self, shards: Shards, lanes: Lanes) -> None:
        self._shards = shards
        self._lanes = lanes
        self._reference = 0
        #: Reference -> question, those that wait longest first.
        self._questions: dict[int, _Question] = {}
        #: Those that are to leave when it is their turn, some of which may be over by then. Who had a turn is last.
        self._in_line: OrderedDict[Endpoint, deque[int]] = OrderedDict()
        #: So many more may leave in this step.
        self._left = STEP_MAX

    def __len__(self) -> int:
        return len(self._questions)

    def ask(self, endpoint: Endpoint, lane: LaneUsage, verb: LeaseVerb, done: Answered, now: float) -> None:
        """Ask the home of a lane; `done` is called once, perhaps much later."""
        self._reference += 1
        question = _Question(endpoint, lane, verb, done, now + ANSWER_TIMEOUT_S)
        self._questions[self._reference] = question
        self._send(self._reference, question)

    def _send(self, reference: int, question: _Question) -> None:
        """Ask a home if it is there: at once, or in a later step."""
        if question.is_in_line or not self._is_ready(question.lane):
            return
        if self._left > 0 and question.endpoint not in self._in_line:
            self._send_now(reference, question)
            return
        question.is_in_line = True
        self._in_line.setdefault(question.endpoint, deque()).append(reference)

    def _is_ready(self, lane: LaneUsage) -> bool:
        return self._lanes.is_ready(lane.lane_id, lane.home)

    def _send_now(self, reference: int, question: _Question) -> None:
        self._left -= 1
        lane = question.lane
        question.home = lane.home
        frame = LeaseFrame(self._shards.incarnation, reference, lane.lane_id, question.verb)
        self._shards.send(self._shards.shards[lane.home], frame.frames())

    @property
    def is_busy(self) -> bool:
        """Whether some wait for their turn."""
        return bool(self._in_line)

    def step(self) -> None:
        """Begin a step, in which some of those leave that wait for their turn."""
        self._left = STEP_MAX
        while self._in_line and self._left > 0:
            endpoint, references = self._in_line.popitem(last=False)
            for _ in range(min(PIECE, self._left, len(references))):
                question = self._questions.get(reference := references.popleft())
                if question is not None:
                    question.is_in_line = False
                    if self._is_ready(question.lane):
                        self._send_now(reference, question)
            if references:
                self._in_line[endpoint] = references

    def home_ready(self, index: int) -> None:
        """A home came, or has a lane that it took over: ask what waits for it."""
        for reference, question in self._questions.items():
            # A worker that left, and had it, will not answer.
            if question.lane.home == index and question.home != index:
                self._send(reference, question)

    def answered(self, answer: LeasedFrame, shard: Shard, batches: list[bytes], now: float) -> None:
        """Take LEASED."""
        reference, code, value = answer.reference, answer.code, answer.value
        question = self._questions.get(reference)
        if question is None or question.home != shard.index:
            return
        if code == errors.UNKNOWN_ENDPOINT and not question.endpoint.is_gone:
            question.home = None  # the lane has another home, or is about to be there
            if question.lane.home != shard.index:
                self._send(reference, question)
            return
        del self._questions[reference]
        error = error_for(code, str(value or "")) if code else None
        question.done((value, batches[0]) if batches else value, error, now)

    def shard_lost(self, shard: Shard) -> None:
        """A worker died: its successor is asked again."""
        for question in self._questions.values():
            if question.home == shard.index:
                question.home = None

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """An endpoint was deleted: nobody will answer."""
        for reference in [at for at, one in self._questions.items() if one.endpoint is endpoint]:
            question = self._questions.pop(reference)
            error = error_for(errors.UNKNOWN_ENDPOINT, f"{endpoint.kind} {endpoint.name} was deleted")
            question.done(None, error, 0.0)

    def tick(self, now: float) -> float:
        """Begin a step, and give up what waits for too long; gives when to call again, infinite if nothing waits."""
        self.step()
        while self._questions:
            reference, question = next(iter(self._questions.items()))
            if question.until > now:
                return now if self._in_line else question.until
            del self._questions[reference]
            endpoint = question.endpoint
            detail = f"the home of {endpoint.kind} {endpoint.name} does not answer"
            question.done(None, error_for(errors.HOME_NOT_READY, detail), now)
        return float("inf")

    def validate(self) -> None:
        """Check that every question that was sent is at a worker that runs."""
        in_line = {reference for references in self._in_line.values() for reference in references}
        assert all(self._in_line.values())
        for reference, question in self._questions.items():
            assert question.is_in_line == (reference in in_line)
            if question.home is not None and question.home < len(self._shards.shards):
                assert self._shards.shards[question.home].state is not ShardState.DOWN
