"""Settling: what flows say of messages, judged and carried out.

No I/O, no clock; `node.endpoints.lane` has one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from node.backlog.backlog import runs_of
from node.backlog.segment import HELD, OUT, READY
from node.endpoints.flow import Flow, FlowEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.backlog.outcomes import Outcomes
    from node.endpoints.consumers import Consumers

#: Segments in which one `settle` looks for messages that an earlier incarnation delivered.
RESUMED_SEGMENTS_MAX: Final = 10_000

_OUTCOMES: Final = (wire.OUTCOME_ACCEPTED, wire.OUTCOME_FAILED, wire.OUTCOME_REJECTED)


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
        #: What earlier incarnations of the home may have delivered.
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
