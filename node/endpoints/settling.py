"""Settling: what flows say of messages, judged and carried out, and what becomes of those whose flow is gone.

A failed message is sent again, after the redelivery delay, unless it has expired, was tried too often, or the
endpoint sends nothing twice; then it is dead. A message whose flow ended without a word counts as tried too, but
is not delayed: the consumer failed, not the message. Order of the questions: replaced by a newer one, expired,
sent too often.

No I/O, no clock; `node.endpoints.lane` has one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from node.backlog.backlog import runs_of
from node.backlog.segment import EXPIRED, HELD, OUT, READY, REDELIVERIES, REJECTED, Segment
from node.endpoints.flow import Flow, FlowEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.backlog.positions import PositionSet
    from node.endpoints.consumers import Consumers

#: Segments in which one `settle` looks for messages that an earlier incarnation delivered.
RESUMED_SEGMENTS_MAX: Final = 10_000
_OUTCOMES: Final = (wire.OUTCOME_ACCEPTED, wire.OUTCOME_FAILED, wire.OUTCOME_REJECTED)
#: Verdicts on a message that comes back, besides EXPIRED and REDELIVERIES.
_AGAIN: Final = 0


class Settling:
    """Settles what the flows of a lane have out."""

    def __init__(
        self,
        backlog: Backlog,
        consumers: Consumers,
        lifetimes: Lifetimes,
        outcomes: Outcomes,
        recovered_upto: int,
    ) -> None:
        self._backlog = backlog
        self._consumers = consumers
        self._lifetimes = lifetimes
        self._outcomes = outcomes
        #: Up to here earlier homes of the lane may have delivered.
        self.recovered_upto = recovered_upto

    def settle(
        self,
        flow_id: int,
        flow: Flow | None,
        outcome: int,
        ranges: Iterable[Sequence[int]],
        now: float,
        wall_ms: int,
    ) -> list[FlowEvent]:
        """Settle ranges (first, last); gives what is refused, see `Lane.settle`."""
        if flow is None or outcome not in _OUTCOMES:
            lost = flow is None and self._backlog.settings.partitions
            code = errors.PARTITION_LOST if lost else errors.NOT_DELIVERED
            self._backlog.statistics["settles_refused"] += 1
            return [
                FlowEvent(flow_id, wire.FLOW_SETTLE_REFUSED, code, f"outcome {outcome} on flow {flow_id}")
            ]
        refused: list[tuple[int, int]] = []
        budget = RESUMED_SEGMENTS_MAX
        # What a consumer had before is the reader group's now.
        resumes = flow.options.resume and self._consumers.lease is None
        for first, last in ranges:
            missing = last - first + 1
            for run_first, run_last in flow.out.remove(first, last):
                missing -= run_last - run_first + 1
                self._settle_run(outcome, run_first, run_last, now, wall_ms)
            if missing and resumes:
                settled, budget = self._settle_recovered(outcome, first, last, budget)
                missing -= settled
            if missing:
                refused.append((first, last))
        self._consumers.wake(flow)
        return self._refusal(flow, refused)

    def _settle_run(self, outcome: int, first: int, last: int, now: float, wall_ms: int) -> None:
        """Settle messages that are OUT."""
        for segment, i, j in self._backlog.segments.slices(first, last):
            if outcome == wire.OUTCOME_ACCEPTED:
                self._outcomes.accept(segment, i, j, OUT)
            elif outcome == wire.OUTCOME_FAILED:
                self._outcomes.fail(segment, i, j, round(now * 1000), wall_ms)
            else:
                self._outcomes.reject(segment, i, j, OUT)

    def _settle_recovered(self, outcome: int, first: int, last: int, budget: int) -> tuple[int, int]:
        """Settle what the flow may have got before its home was restarted and what is not out again.

        Gives how many messages, and what is left of the segments that may be looked at. A failed message is
        ready anyway.
        """
        settled = 0
        segments = self._backlog.segments
        at = segments.next_from(segments.index(first))
        last = min(last, self.recovered_upto)
        while at is not None and at[1].first <= last and budget > 0:
            budget -= 1
            index, segment = at
            at = segments.next_from(index + 1)
            start, stop = max(first - segment.first, 0), min(last - segment.first + 1, segment.count)
            for i, j, state in list(runs_of(segment.state, start, stop)):
                if state not in (READY, HELD):
                    continue
                settled += j - i
                if outcome != wire.OUTCOME_FAILED:
                    self._lifetimes.forget_delay(segment, i, j)
                    accepted = outcome == wire.OUTCOME_ACCEPTED
                    settle = self._outcomes.accept if accepted else self._outcomes.reject
                    settle(segment, i, j, state)
        return settled, budget

    def _refusal(self, flow: Flow, refused: list[tuple[int, int]]) -> list[FlowEvent]:
        if not refused:
            return []
        self._backlog.statistics["settles_refused"] += len(refused)
        first, last = refused[0]
        code, detail = (
            errors.NOT_DELIVERED,
            f"positions {first} to {last}, and {len(refused) - 1} more ranges",
        )
        if self._consumers.lease is not None:
            code, detail = errors.PARTITION_LOST, f"a reader group has leased it: {detail}"
        return [FlowEvent(flow.id, wire.FLOW_SETTLE_REFUSED, code, detail)]


class Outcomes:
    """Settles runs of messages. `was` is their state: OUT, or READY and HELD when a flow was resumed."""

    def __init__(
        self, backlog: Backlog, lifetimes: Lifetimes, on_ready: Callable[[Segment, int, int], None]
    ) -> None:
        """Make the outcomes of a backlog; `on_ready` is told each run that became ready again."""
        self._backlog = backlog
        self._lifetimes = lifetimes
        self._on_ready = on_ready

    def accept(self, segment: Segment, i: int, j: int, was: int) -> None:
        """Remove messages that were consumed (R165)."""
        self._backlog.statistics["accepted"] += j - i
        self._backlog.remove(segment, i, j, was)

    def reject(self, segment: Segment, i: int, j: int, was: int) -> None:
        """Never send messages again: they are dead."""
        self._backlog.add_tries(segment, i, j)
        self._backlog.kill(segment, i, j, was, REJECTED)

    def fail(self, segment: Segment, i: int, j: int, now_ms: int, wall_ms: int) -> None:
        """Take back messages that are OUT and that a consumer could not use."""
        self._backlog.statistics["failed"] += j - i
        for start, end in self._take_back(segment, i, j, wall_ms):
            if self._backlog.settings.redelivery_delay is None:
                self._ready(segment, start, end)
            else:
                self._delay(segment, start, end, now_ms)

    def lose(self, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        """Take back messages that are OUT and whose flow is gone (R190)."""
        for start, end in self._take_back(segment, i, j, wall_ms):
            self._ready(segment, start, end)

    def take_back(self, out: PositionSet, wall_ms: int) -> None:
        """Take back all that somebody has out who is gone."""
        runs = list(out.runs())
        out.clear()
        for first, last in runs:
            for segment, i, j in self._backlog.segments.slices(first, last):
                self.lose(segment, i, j, wall_ms)

    def _ready(self, segment: Segment, i: int, j: int) -> None:
        self._backlog.change(segment, i, j, OUT, READY)
        self._on_ready(segment, i, j)

    def _delay(self, segment: Segment, i: int, j: int, now_ms: int) -> None:
        assert segment.tries is not None
        for start, end, tries in list(runs_of(segment.tries, i, j)):
            delay_ms = self._backlog.settings.redelivery_delay_ms(tries)
            self._backlog.change(segment, start, end, OUT, HELD)
            self._lifetimes.delay(segment, start, end, now_ms + delay_ms)

    def _take_back(self, segment: Segment, i: int, j: int, wall_ms: int) -> list[tuple[int, int]]:
        """Count the attempts, let die what is dead, and give the runs, still OUT, that are sent again."""
        backlog = self._backlog
        superseded = min(max(backlog.newest - segment.first, i), j) if backlog.settings.last_value else i
        if superseded > i:
            backlog.statistics["replaced"] += superseded - i
            backlog.remove(segment, i, superseded, OUT)
            i = superseded
        if i == j:
            return []
        verdicts = self._verdicts(segment, i, j, wall_ms)
        backlog.add_tries(segment, i, j)
        if verdicts is None:
            return [(i, j)]
        again: list[tuple[int, int]] = []
        for start, end, verdict in runs_of(verdicts, 0, j - i):
            if verdict == _AGAIN:
                again.append((i + start, i + end))
            else:
                backlog.kill(segment, i + start, i + end, OUT, verdict)
        return again

    def _verdicts(self, segment: Segment, i: int, j: int, wall_ms: int) -> bytearray | None:
        """Give why each message dies or _AGAIN, None if all are sent again; attempts are not counted yet."""
        settings = self._backlog.settings
        limit, tries = settings.max_redeliveries, segment.tries
        verdicts: bytearray | None = None
        if not settings.redelivery_enabled:
            verdicts = bytearray((REDELIVERIES,)) * (j - i)
        elif limit and tries is not None and max(tries[i:j]) >= limit:
            verdicts = bytearray(REDELIVERIES if done >= limit else _AGAIN for done in tries[i:j])
        expired = self._lifetimes.expired(segment, i, j, wall_ms)
        if expired is None:
            return verdicts
        others = verdicts or bytearray(j - i)
        return bytearray(EXPIRED if over else other for over, other in zip(expired, others, strict=True))
