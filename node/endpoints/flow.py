"""A flow: one consumer or browser bound to a lane, its credit, what it has not settled, and what settling does.

A failed message is sent again, after the redelivery delay, unless it has expired, was tried too often, or the
endpoint sends nothing twice; then it is dead. A message whose flow ended without a word counts as tried too, but
is not delayed: the consumer failed, not the message. One that a flow releases, because its application has not seen
it, counts as if it had never been sent. Order of the questions: replaced by a newer one, expired,
sent too often.

No I/O, no clock; `node.endpoints.lane` has these.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium_server.frames.homes import FlowEvent
from node.backlog.backlog import PositionSet, runs_of
from node.backlog.segment import EXPIRED, HELD, OUT, READY, REDELIVERIES, REJECTED, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from angarium_server.frames.settings import FlowOptions
    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.backlog.segment import Segment
    from node.endpoints.effort import Payer
    from node.endpoints.reader import Reader

#: Segments in which one `settle` looks for messages that an earlier incarnation delivered.
RESUMED_SEGMENTS_MAX: Final = 10_000
_OUTCOMES: Final = (
    wire.OUTCOME_ACCEPTED,
    wire.OUTCOME_RELEASED,
    wire.OUTCOME_FAILED,
    wire.OUTCOME_REJECTED,
)
#: Verdicts on a message that comes back, besides EXPIRED and REDELIVERIES.
_AGAIN: Final = 0


class Flow:
    """One consumer or browser of a lane. Credits are totals since the bind."""

    __slots__ = (
        "active",
        "bytes_granted",
        "bytes_sent",
        "closing_at",
        "cursor",
        "end",
        "id",
        "is_browser",
        "is_willing",
        "matches",
        "messages_granted",
        "messages_sent",
        "options",
        "out",
        "payer",
        "reader",
        "selector",
        "unacked_max",
    )

    def __init__(
        self,
        flow_id: int,
        *,
        is_browser: bool,
        selector: str | None,
        matches: Callable[[Segment, int], bool] | None,
        options: FlowOptions,
        payer: Payer | None = None,
    ) -> None:
        self.id = flow_id
        self.is_browser = is_browser
        #: Text of the selector; None for all messages.
        self.selector = selector
        #: Tells whether a message is for this flow; None: every one is.
        self.matches = matches
        self.options = options
        #: Who pays for what its selector examines; None: it has none.
        self.payer = payer
        #: It never gets more messages than granted.
        self.messages_granted = 0
        self.messages_sent = 0
        #: It gets more bytes than granted by one message at most.
        self.bytes_granted = 0
        self.bytes_sent = 0
        #: Delivered messages that are not settled; at most `unacked_max`, none of a browser.
        self.out = PositionSet()
        #: At so many delivery stops (R192).
        self.unacked_max = 0
        #: Whether it is its turn; of an exclusive lane only one consumer is active.
        self.active = False
        #: Set while it is handed off: it gets nothing more, and is over at this monotonic time at the latest.
        self.closing_at: float | None = None
        #: Of an active consumer.
        self.reader: Reader[Flow] | None = None
        #: Whether it is in `reader.willing`; every active consumer with room is.
        self.is_willing = False
        #: Of a browser: everything below it was shown.
        self.cursor = 0
        #: Of a browser that reads a range: it is over when everything below this position was shown.
        self.end: int | None = None

    def grant(self, messages: int, bytes_: int) -> None:
        """Raise the credit to new totals; they never fall."""
        self.messages_granted = max(self.messages_granted, messages)
        self.bytes_granted = max(self.bytes_granted, bytes_)

    def room(self) -> int:
        """Give how many messages it may get now."""
        if self.bytes_sent >= self.bytes_granted or self.closing_at is not None:
            return 0
        granted = self.messages_granted - self.messages_sent
        return granted if self.is_browser else max(min(granted, self.unacked_max - self.out.count), 0)

    def room_bytes(self) -> int:
        """Give how many bytes it may get now; the last message may be larger than the rest of them."""
        return self.bytes_granted - self.bytes_sent

    def sent(self, messages: int, size: int) -> None:
        """Take note of what was handed out."""
        self.messages_sent += messages
        self.bytes_sent += size

    def limit_unacked(self, endpoint_max: int) -> None:
        """Apply the limit of the endpoint."""
        own = self.options.max_unacked
        self.unacked_max = endpoint_max if own is None or own < 1 else min(endpoint_max, own)

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        self.out.validate()
        assert 0 <= self.messages_sent <= self.messages_granted or not self.messages_sent
        assert not (self.is_browser and self.out.count)
        assert (self.reader is not None) == (self.active and not self.is_browser)
        if self.reader is not None:
            assert self.is_willing == (self in self.reader.willing)
            assert self.is_willing or not self.room()


class Settling:
    """Settles what the flows of a lane have out."""

    __slots__ = (
        "_backlog",
        "_lifetimes",
        "_outcomes",
        "_wake",
        "recovered_upto",
    )

    def __init__(
        self,
        backlog: Backlog,
        lifetimes: Lifetimes,
        outcomes: Outcomes,
        wake: Callable[[Flow], None],
        recovered_upto: int,
    ) -> None:
        """Make it; `wake` is told of a flow that may have room again."""
        self._backlog = backlog
        self._lifetimes = lifetimes
        self._outcomes = outcomes
        self._wake = wake
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
        *,
        is_leased: bool,
    ) -> list[FlowEvent]:
        """Settle ranges (first, last); gives what is refused, see `Lane.settle`.

        `is_leased`: what consumers had is a reader group's now.
        """
        if flow is None and outcome == wire.OUTCOME_RELEASED:
            return []  # It was given back with the flow.
        if flow is None or outcome not in _OUTCOMES:
            lost = flow is None and self._backlog.settings.partitions
            code = errors.PARTITION_LOST if lost else errors.NOT_DELIVERED
            self._backlog.statistics["settles_refused"] += 1
            return [
                FlowEvent(flow_id, wire.FLOW_SETTLE_REFUSED, code, f"outcome {outcome} on flow {flow_id}")
            ]
        refused: list[tuple[int, int]] = []
        budget = RESUMED_SEGMENTS_MAX
        resumes = flow.options.resume and not is_leased
        for first, last in ranges:
            missing = last - first + 1
            for run_first, run_last in flow.out.remove(first, last):
                missing -= run_last - run_first + 1
                self._settle_run(outcome, run_first, run_last, now, wall_ms)
            if missing and resumes:
                settled, budget = self._settle_recovered(outcome, first, last, budget)
                missing -= settled
            if missing and outcome != wire.OUTCOME_RELEASED:  # Nothing is lost by one that comes too late.
                refused.append((first, last))
        self._wake(flow)
        return self._refusal(flow, refused, is_leased=is_leased)

    def _settle_run(self, outcome: int, first: int, last: int, now: float, wall_ms: int) -> None:
        """Settle messages that are OUT."""
        for segment, i, j in self._backlog.segments.slices(first, last):
            if outcome == wire.OUTCOME_ACCEPTED:
                self._outcomes.accept(segment, i, j, OUT)
            elif outcome == wire.OUTCOME_FAILED:
                self._outcomes.fail(segment, i, j, round(now * 1000), wall_ms)
            elif outcome == wire.OUTCOME_RELEASED:
                self._outcomes.release_run(segment, i, j, wall_ms)
            else:
                self._outcomes.reject(segment, i, j, OUT)

    def _settle_recovered(self, outcome: int, first: int, last: int, budget: int) -> tuple[int, int]:
        """Settle what the flow may have got before its home was restarted and what is not out again.

        Gives how many messages, and what is left of the segments that may be looked at. A message that failed, or was
        released, is ready anyway.
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
                if outcome not in (wire.OUTCOME_FAILED, wire.OUTCOME_RELEASED):
                    self._lifetimes.forget_delay(segment, i, j)
                    accepted = outcome == wire.OUTCOME_ACCEPTED
                    settle = self._outcomes.accept if accepted else self._outcomes.reject
                    settle(segment, i, j, state)
        return settled, budget

    def _refusal(self, flow: Flow, refused: list[tuple[int, int]], *, is_leased: bool) -> list[FlowEvent]:
        if not refused:
            return []
        self._backlog.statistics["settles_refused"] += len(refused)
        first, last = refused[0]
        code, detail = (
            errors.NOT_DELIVERED,
            f"positions {first} to {last}, and {len(refused) - 1} more ranges",
        )
        if is_leased:
            code, detail = errors.PARTITION_LOST, f"a reader group has leased it: {detail}"
        return [FlowEvent(flow.id, wire.FLOW_SETTLE_REFUSED, code, detail)]


class Outcomes:
    """Settles runs of messages. `was` is their state: OUT, or READY and HELD when a flow was resumed."""

    __slots__ = (
        "_backlog",
        "_lifetimes",
        "_on_ready",
    )

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
        self._lose_all(runs, wall_ms)

    def take_back_some(self, out: PositionSet, runs_max: int, wall_ms: int) -> int:
        """Take back some of what somebody has out who goes; gives how many runs, those in each segment of their own."""
        taken = 0
        for first, last in list(islice(out.runs(), runs_max)):
            if taken >= runs_max:
                break
            out.remove(first, last)
            taken += self._lose_run(first, last, wall_ms)
        return taken

    def release(self, out: PositionSet, ranges: Iterable[Sequence[int]], wall_ms: int) -> None:
        """Take back what somebody has out and nobody has seen: it was not tried."""
        for first, last in ranges:
            for run_first, run_last in out.remove(first, last):
                for segment, i, j in self._backlog.segments.slices(run_first, run_last):
                    self.release_run(segment, i, j, wall_ms)

    def release_run(self, segment: Segment, i: int, j: int, wall_ms: int) -> None:
        """Take back messages that are OUT and that nobody has seen."""
        i = self._remove_superseded(segment, i, j)
        if i < j:
            for start, end in self._bury(segment, i, j, self._expired(segment, i, j, wall_ms)):
                self._ready(segment, start, end)

    def _lose_all(self, runs: list[tuple[int, int]], wall_ms: int) -> None:
        for first, last in runs:
            self._lose_run(first, last, wall_ms)

    def _lose_run(self, first: int, last: int, wall_ms: int) -> int:
        slices = self._backlog.segments.slices(first, last)
        for segment, i, j in slices:
            self.lose(segment, i, j, wall_ms)
        return len(slices)

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
        i = self._remove_superseded(segment, i, j)
        if i == j:
            return []
        verdicts = self._verdicts(segment, i, j, wall_ms)
        self._backlog.add_tries(segment, i, j)
        return self._bury(segment, i, j, verdicts)

    def _remove_superseded(self, segment: Segment, i: int, j: int) -> int:
        """Remove what newer messages have replaced; gives where the others begin."""
        backlog = self._backlog
        superseded = min(max(backlog.newest - segment.first, i), j) if backlog.settings.last_value else i
        if superseded > i:
            backlog.statistics["replaced"] += superseded - i
            backlog.remove(segment, i, superseded, OUT)
        return superseded

    def _bury(self, segment: Segment, i: int, j: int, verdicts: bytearray | None) -> list[tuple[int, int]]:
        """Let die what is dead, and give the runs, still OUT, that are sent again."""
        if verdicts is None:
            return [(i, j)]
        again: list[tuple[int, int]] = []
        for start, end, verdict in runs_of(verdicts, 0, j - i):
            if verdict == _AGAIN:
                again.append((i + start, i + end))
            else:
                self._backlog.kill(segment, i + start, i + end, OUT, verdict)
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
        expired = self._expired(segment, i, j, wall_ms)
        if verdicts is None or expired is None:
            return verdicts or expired
        return bytearray(over or other for over, other in zip(expired, verdicts, strict=True))

    def _expired(self, segment: Segment, i: int, j: int, wall_ms: int) -> bytearray | None:
        """Give EXPIRED for each message whose time is over, and else _AGAIN; None if there is none."""
        expired = self._lifetimes.expired(segment, i, j, wall_ms)
        return None if expired is None else bytearray(EXPIRED if over else _AGAIN for over in expired)
