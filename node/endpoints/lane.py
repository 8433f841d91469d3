"""A lane: one partition of an endpoint at its home, as a state machine.

It holds the index of the messages, knows who consumes them, and decides who gets which message when. It reads no
disk and has no clock: the home gives it the time, stores what it says has changed (`take_changed`), sends what
it hands out (`hand_out`), moves what is dead (`take_dead`), and calls `tick` when `next_due` says so.

`consumers` says who gets what, `reader` finds it, `outcomes` says what becomes of it, `lifetimes` when.

Nothing here trusts a client: a call looks at a bounded number of messages and says with `more`, or with a
`next_due` that is over, that it is not done; a range that a client settles costs what it settles, not its width.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium_server.frames.homes import FlowEvent
from node.backlog.backlog import Backlog
from node.backlog.lifetimes import Lifetimes
from node.backlog.segment import (
    GONE,
    HELD,
    MOVING,
    OUT,
    POSITION_MAX,
    READY,
    REDELIVERIES,
    Segment,
)
from node.endpoints.consumers import Consumers, Handout, Sources
from node.endpoints.flow import Flow, Outcomes, Settling
from node.endpoints.holdings import Holdings
from node.endpoints.leasing import Leasing
from node.endpoints.reader import Work
from node.endpoints.resting import FIRST_START, LaneStart, RestingLane
from node.endpoints.retained import Retained
from node.endpoints.topic_selector import TopicSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from angarium_server.frames.settings import FlowOptions, LaneSettings
    from node.endpoints.lease import Lease

__all__ = ["FIRST_START", "Flow", "Handout", "Lane", "LaneStart", "Sources"]

#: Messages that one `hand_out` gives to consumers, if its caller sets no lower limit.
HAND_OUT_MAX: Final = 10_000
#: Rows in one `take_dead`.
DEAD_MAX: Final = 10_000

_STATE_NAMES: Final = {GONE: "gone", READY: "ready", OUT: "unacked", HELD: "delayed", MOVING: "moving"}


class Lane:
    """The messages and flows of one partition of an endpoint."""

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_closing",
        "_consumers",
        "_is_short",
        "_lifetimes",
        "_now",
        "_outcomes",
        "_resume_at",
        "_settling",
        "_sources",
        "_topic_selector",
        "_tried_upto",
        "_wall_ms",
        "barred",
        "generation",
        "holdings",
        "lane_id",
        "leasing",
        "more",
        "next_position",
        "retained",
    )

    def __init__(
        self,
        lane_id: int,
        generation: int,
        settings: LaneSettings,
        sources: Sources,
        start: LaneStart = FIRST_START,
        backlog: Backlog | None = None,
    ) -> None:
        """Make a lane without messages, or that of one that rested with some.

        Args:
            lane_id: endpoint id << 10 | partition.
            generation: of the endpoint.
            settings: of the endpoint.
            sources: for looking into messages.
            start: what earlier processes did with its positions.
            backlog: what is in it; None: nothing.

        Raises:
            InvalidRequestError: the selector of a topic endpoint is invalid (40601).
        """
        self.lane_id = lane_id
        #: Of the endpoint; the home sets it after `purge` when the endpoint was created again.
        self.generation = generation
        #: Above all positions ever used; none is used twice, whatever happened to its message.
        self.next_position = start.next_position
        #: After `hand_out`: whether it left something that could go at once; whether it did for want of effort; whether
        #: there is something above the last position that it was given.
        self.more = self._is_short = self.barred = False
        self._sources = sources
        self._backlog = backlog or Backlog(settings)
        self._backlog.discards = sources.discards
        self._consumers = Consumers(self._backlog, self._sources)
        self._consumers.delivered_upto = start.delivered_upto
        recovered_upto = start.delivered_upto if start.recovered_upto is None else start.recovered_upto
        readied = self._consumers.readied
        self._lifetimes = Lifetimes(self._backlog, readied, sources.effort)
        self._outcomes = Outcomes(self._backlog, self._lifetimes, readied)
        #: Flows that are handed off, in the order of their unbinds.
        self._closing: dict[int, Flow] = {}
        parts = self._backlog, self._consumers, self._lifetimes, self._outcomes
        self._settling = Settling(
            self._backlog, self._lifetimes, self._outcomes, self._consumers.wake, recovered_upto
        )
        #: What a reader group has of it.
        self.leasing = Leasing(*parts)
        #: What consumers have of it beyond their flows.
        self.holdings = Holdings(self._backlog, self._consumers, self._outcomes)
        self._tried_upto = start.tried_upto
        self._topic_selector = TopicSelector(self._backlog, self._lifetimes, readied, self._sources)
        #: The times of the last call: monotonic s, wall ms.
        self._now, self._wall_ms = 0.0, 0
        #: When flows whose accounts are empty may go on.
        self._resume_at: float | None = None
        #: What it retains by topic; None: it is a queue like others.
        self.retained = self._make_retained(settings)
        # What is loaded was examined by an earlier incarnation, but how far is not stored.
        self._use_selector(settings.selector, 0)

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def settings(self) -> LaneSettings:
        """The settings in force."""
        return self._backlog.settings

    @property
    def flows(self) -> dict[int, Flow]:
        """Flow number -> flow, in the order of their binds; to look at."""
        return self._consumers.bound.flows

    @property
    def delivered_upto(self) -> int:
        """The highest position that a consumer ever got."""
        return self._consumers.delivered_upto

    @property
    def messages(self) -> int:
        """Messages that are not gone."""
        return self._backlog.messages

    @property
    def bytes(self) -> int:
        """Spool size of these messages."""
        return self._backlog.bytes

    @property
    def unacked(self) -> int:
        """Messages that were delivered and are not settled, those of a reader group among them."""
        return self._backlog.counts[OUT]

    @property
    def at_consumers(self) -> int:
        """Messages that flows have and have not settled."""
        lease = self.lease
        return self._backlog.counts[OUT] - self.holdings.count - (0 if lease is None else lease.out.count)

    @property
    def lease(self) -> Lease | None:
        """The lease of a reader group that is in force; `leasing` begins and ends it."""
        return self._consumers.lease

    @property
    def has_lease_news(self) -> bool:
        """Whether something of its lease is to be written, or told."""
        return self.leasing.is_changed or self.leasing.timed_out is not None

    @property
    def has_dead(self) -> bool:
        """Whether `take_dead` would give something."""
        return self._backlog.has_dead()

    @property
    def oldest_stored_ms(self) -> int:
        """Wall ms when the oldest message was spooled, 0 if there is none."""
        return self._backlog.oldest_stored_ms

    @property
    def segments(self) -> Iterator[Segment]:
        """The segments with messages in them, by position."""
        return iter(self._backlog.segments)

    def segments_from(self, position: int) -> Iterator[Segment]:
        """Give the segments with messages at or above a position, in order; what changes meanwhile is no harm."""
        return self._backlog.segments_from(position)

    def find(self, position: int) -> tuple[Segment, int] | None:
        """Give the segment and row of a message, None if it is gone or never was."""
        return self._backlog.find(position)

    def state_of(self, segment: Segment, i: int) -> str:
        """Say where a message is: ready, unacked, delayed, filtering (its selector), moving or gone."""
        if segment.state[i] == HELD and segment.first + i > self._lifetimes.filtered_upto:
            return "filtering"
        return _STATE_NAMES[segment.state[i]]

    def expires_at_ms(self, segment: Segment, i: int) -> int:
        """Give the wall ms at which a message expires, 0 for never."""
        return self._lifetimes.expires_ms(segment, i)

    def stats(self) -> dict[str, int]:
        """Give counts since it was made (`backlog.COUNTERS`), and what there is now."""
        consumers = sum(not flow.is_browser for flow in self.flows.values())
        return {
            **self._backlog.stats(),
            "next_position": self.next_position,
            "delivered_upto": self.delivered_upto,
            "consumers": consumers,
            "browsers": len(self.flows) - consumers,
        }

    # --- rest -------------------------------------------------------------------------------------------

    @property
    def may_rest(self) -> bool:
        """Whether nobody has a part in it, messages wait for nothing but a consumer, and nothing is to be written."""
        if self.flows or self.lease is not None or self.has_lease_news or self.holdings.is_used:
            return False
        backlog = self._backlog
        if (
            backlog.changed
            or self._is_timed
            or self._lifetimes.is_behind
            or backlog.counts[READY] != backlog.messages
        ):
            return False
        return not (self.settings.selector or self.settings.retains)

    def rest(self, rouse: Callable[[RestingLane], Lane]) -> RestingLane:
        """Give what is to be kept of it if it `may_rest`; a lane that starts with that goes on as this one would."""
        assert self.may_rest
        delivered, recovered = self.delivered_upto, self._settling.recovered_upto
        start = LaneStart(
            self.next_position, delivered, self._tried_upto, None if recovered == delivered else recovered
        )
        backlog = self._backlog if self._backlog.segments.count or self._backlog.statistics else None
        return RestingLane(self.lane_id, self.generation, self.settings, start, rouse, backlog)

    # --- messages and settings come ---------------------------------------------------------------------

    def append(self, segment: Segment, now: float, wall_ms: int) -> None:
        """Take new messages, after the commit that holds them (relaxed: before)."""
        assert segment.first >= self.next_position
        self._backlog.statistics["spooled"] += segment.count
        self._backlog.statistics["spooled_bytes"] += segment.live_bytes
        self.next_position = segment.first + segment.count
        if segment.first > self._settling.recovered_upto:
            self._add(segment, now, wall_ms)
            if self.retained is not None:
                self.retained.run(self.next_position)
            return
        # What comes again because it was not on disk may have been sent, however the last process stopped.
        self._tried_upto = self._settling.recovered_upto
        self.load(segment, now, wall_ms)

    def load(self, segment: Segment, now: float, wall_ms: int) -> None:
        """Take messages that were there before a restart, in the order of their positions."""
        if segment.note_unsure(self._tried_upto):
            # The next stop may be an orderly one, after which nobody would know.
            self._backlog.changed[segment] = None
        self.next_position = max(self.next_position, segment.first + segment.count)
        self._add(segment, now, wall_ms)
        self.holdings.claim(segment)
        if segment.tries is not None and not self.settings.redelivery_enabled:
            self._kill_tried(segment)

    def note_delivered(self, upto: int) -> None:
        """Take note that another home may have delivered messages up to a position."""
        self._settling.recovered_upto = self._consumers.delivered_upto = upto

    def _add(self, segment: Segment, now: float, wall_ms: int) -> None:
        assert segment.lane_id == self.lane_id
        self._now, self._wall_ms = now, wall_ms
        self._backlog.add(segment)
        if self.lease is not None:
            self.leasing.claim(segment)
        if self.retained is not None:
            self.retained.came(segment.first)
        filtered = self._topic_selector.selector is not None
        if filtered:
            self._topic_selector.hold(segment)
        if self._backlog.is_timed(segment):
            self._lifetimes.admit(segment, wall_ms)
        if self.settings.last_value and not filtered:
            self._backlog.replace_older(segment.last)

    def _kill_tried(self, segment: Segment) -> None:
        """Let die what may have been sent before, because this endpoint sends nothing twice."""
        assert segment.tries is not None
        for i, tries in enumerate(bytes(segment.tries)):
            if tries and segment.state[i] in (READY, HELD):
                self._backlog.kill(segment, i, i + 1, segment.state[i], REDELIVERIES)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one segment in the place of neighbours; it has the same messages in the same states.

        For the merging of small segments and the repacking of blocks; flows notice nothing.
        """
        self._backlog.replace(list(old), new)
        if self._backlog.is_timed(new):
            self._lifetimes.watch(new)

    def configure(self, settings: LaneSettings, now: float, wall_ms: int) -> list[FlowEvent]:
        """Use other settings from now on, also for the messages that are there.

        If the selector of a topic endpoint changes, it must have been purged before (R149).

        Raises:
            InvalidRequestError: the selector is invalid (40601); nothing changed.
        """
        self._now, self._wall_ms = now, wall_ms
        before = self.settings
        if settings.selector != before.selector:
            assert not self.messages
            self._use_selector(settings.selector, self.next_position - 1)
        if settings.retains != before.retains:
            self.retained = self._make_retained(settings)
        self._backlog.settings = settings
        if settings.last_value and not before.last_value:
            self._backlog.newest = min(self.next_position - 1, self._lifetimes.filtered_upto)
        self._lifetimes.apply_settings(before, wall_ms)
        return [*self._consumers.apply_settings(), *self.leasing.follow_consumers(wall_ms)]

    def _make_retained(self, settings: LaneSettings) -> Retained | None:
        if not settings.retains:
            return None
        return Retained(self._backlog, self._lifetimes, self._remove_replaced, self._sources)

    def _use_selector(self, text: str | None, upto: int) -> None:
        selector = self._sources.compile_selector(text) if text else None
        self._topic_selector.use(selector, upto)

    # --- flows ------------------------------------------------------------------------------------------

    def bind(
        self,
        flow_id: int,
        *,
        browse: bool,
        selector: str | None,
        messages: int,
        bytes_: int,
        options: FlowOptions,
        now: float,
    ) -> list[FlowEvent]:
        """Add a flow with its first credit; tells whether it is active, or that it is closed and why.

        A flow that is bound already keeps what it has.
        """
        self._now = max(self._now, now)
        events = self._consumers.bind(flow_id, selector, options, is_browser=browse)
        events += self.leasing.follow_consumers(self._wall_ms)
        self.credit(flow_id, messages, bytes_)
        if options.holder and flow_id in self.flows:
            self.holdings.bound(self.flows[flow_id])
        return events

    def credit(self, flow_id: int, messages: int, bytes_: int) -> None:
        """Raise the credit of a flow to new totals since its bind (bytes: spool size of the messages)."""
        flow = self.flows.get(flow_id)
        if flow is not None:
            flow.grant(messages, bytes_)
            self._consumers.wake(flow)

    def unbind(self, flow_id: int, hand_off_ms: int | None, now: float, wall_ms: int) -> list[FlowEvent]:
        """Remove a flow; what it has out is ready again, and counts as tried.

        With `hand_off_ms` it gets nothing more, and goes when it has settled everything (CLOSED with code 0)
        or when the time is over (CLOSED with 40025); until then no other takes its turn. Tells who is active
        now.
        """
        self._now, self._wall_ms = now, wall_ms
        flow = self.flows.get(flow_id)
        if flow is None:
            return []
        if hand_off_ms is None:
            return self._end(flow)
        if not flow.out.count:
            return [_closed(flow, 0), *self._end(flow)]
        self._consumers.hand_off(flow, now + hand_off_ms / 1000)
        self._closing[flow_id] = flow
        return []

    def release(self, flow_id: int, ranges: Iterable[Sequence[int]], now: float, wall_ms: int) -> None:
        """Take back what a flow has out that goes now, and its application has not seen: it does not count as tried."""
        self._now, self._wall_ms = now, wall_ms
        flow = self.flows.get(flow_id)
        if flow is not None:
            self._outcomes.release(flow.out, ranges, wall_ms)

    def pause(self, flow_id: int) -> None:
        """Have a flow get nothing more, although its `unbind` comes later."""
        flow = self.flows.get(flow_id)
        if flow is not None:
            self._consumers.hand_off(flow, inf)

    def take_back(self, flow_id: int, runs_max: int, wall_ms: int) -> int:
        """Make some runs ready again that a flow has out which is paused, before its `unbind`; gives how many."""
        flow = self.flows.get(flow_id)
        return 0 if flow is None else self._outcomes.take_back_some(flow.out, runs_max, wall_ms)

    def _end(self, flow: Flow) -> list[FlowEvent]:
        """Remove a flow, with what it has out ready again; tells who is active now."""
        self._outcomes.take_back(flow.out, self._wall_ms)
        self._closing.pop(flow.id, None)
        if flow.options.holder:
            self.holdings.unbound(flow)
        return [*self._consumers.drop(flow), *self.leasing.follow_consumers(self._wall_ms)]

    def end_flows(self, now: float, wall_ms: int) -> None:
        """Remove all flows: the router, or this home, stops."""
        self._now, self._wall_ms = now, wall_ms
        # From the last to the first, so that none becomes active on the way.
        for flow in list(self.flows.values())[::-1]:
            self._end(flow)

    def settle(
        self, flow_id: int, outcome: int, ranges: Iterable[Sequence[int]], now: float, wall_ms: int
    ) -> list[FlowEvent]:
        """Settle what a flow has out in ranges (first, last) of positions, in any order.

        What of a range the flow does not have out is refused, once for the call (40024, or 40025 if the flow
        is not here any more and this is a partition, or if the lane is leased); the rest is settled all the same.
        """
        self._now, self._wall_ms = now, wall_ms
        flow = self.flows.get(flow_id)
        events = self._settling.settle(
            flow_id, flow, outcome, ranges, now, wall_ms, is_leased=self.lease is not None
        )
        if flow is not None and flow.closing_at is not None and not flow.out.count:
            events += [_closed(flow, 0), *self._end(flow)]
        return events

    # --- messages go ------------------------------------------------------------------------------------

    def hand_out(
        self, now: float, wall_ms: int, limit: int = HAND_OUT_MAX, upto: int = POSITION_MAX
    ) -> list[Handout]:
        """Hand out what may go now: at most `limit` messages to consumers, and some to browsers; none above `upto`.

        `more` tells whether something was left that could go at once, `barred` if only `upto` was in its way.
        """
        self._now, self._wall_ms = now, wall_ms
        self.more = self.barred = self._is_short = False
        self._resume_at = None
        if not self.flows or not self.settings.egress_enabled or self._lifetimes.is_behind:
            return []
        # Nothing that has expired may go out, so expiry comes first, in steps.
        if self._is_timed and self._may_expire and self._lifetimes.run(round(now * 1000), wall_ms):
            self.more = True
            return []
        effort = self._sources.effort
        work, browsing = Work(effort, upto), Work(effort, min(upto, self._lifetimes.filtered_upto))
        if self.lease is None:
            handouts = self._consumers.hand_out_held(work) if self._consumers.resuming else []
            handouts += self._consumers.hand_out(min(limit, HAND_OUT_MAX), work)
        else:
            # What is planned is known on disk, so it needs no reservation.
            handouts = self._consumers.read_ranges(work)
            self.leasing.note_use(now)
        handouts += self._consumers.browse(browsing)
        handouts += self._consumers.browse_ranges(browsing)
        self.more = work.more or browsing.more
        self.barred = work.barred or browsing.barred
        self._is_short = work.is_short or browsing.is_short
        self._resume_at = work.resume_at
        if browsing.resume_at is not None:
            self._resume_at = min(work.resume_at or browsing.resume_at, browsing.resume_at)
        return handouts

    def tick(self, now: float, wall_ms: int) -> list[FlowEvent]:
        """Do what is due: expiry, delays, the selector of a topic endpoint, hand-offs whose time is over."""
        self._now, self._wall_ms = now, wall_ms
        if self.retained is not None:
            self.retained.run(self.next_position)
        if self._lifetimes.is_behind:
            self._lifetimes.follow(wall_ms)
        if self._is_timed and self._may_expire:
            self._lifetimes.run(round(now * 1000), wall_ms)
        if self.settings.egress_enabled:
            self._topic_selector.run(self.next_position, wall_ms)
        events = [*self._consumers.take_complete(), *self.leasing.tick(now, wall_ms)]
        for flow in list(self._closing.values()):
            if not flow.out.count:
                events += [_closed(flow, 0), *self._end(flow)]
            elif flow.closing_at is not None and flow.closing_at <= now:
                events += [_closed(flow, errors.PARTITION_LOST), *self._end(flow)]
        return events

    @property
    def _is_timed(self) -> bool:
        """Whether messages wait for a time: they expire, or may be delivered then."""
        return bool(self._backlog.timers.count or self._lifetimes.delays.count)

    @property
    def _may_expire(self) -> bool:
        """Whether what a message replaced is known: if that goes first, the older one is the newest of its topic."""
        return self.retained is None or self.retained.is_complete(self.next_position)

    @property
    def wants_effort(self) -> bool:
        """Whether `tick` or `hand_out` would go on where they stopped if there is effort again."""
        times = self._lifetimes
        is_filtering = times.filtered_upto < self.next_position - 1
        is_free = self.settings.egress_enabled and self._topic_selector.resume_at is None
        is_late = times.is_behind or (times.is_short and self._is_timed and self._may_expire)
        if self._is_short or is_late or (is_filtering and is_free):
            return True
        return self.retained is not None and self.retained.is_behind(self.next_position)

    def next_due(self) -> float | None:
        """Give when `tick` has something to do, in monotonic s; a time that is over: at once; None: never.

        What wants nothing but effort is not due.
        """
        # A purge may have settled the last message of a flow that is handed off.
        times = [flow.closing_at or 0.0 for flow in self._closing.values()]
        if any(not flow.out.count for flow in self._closing.values()) or self._consumers.has_complete:
            times.append(self._now)
        if self.lease is not None:
            times.append(self.leasing.next_due())
        if self._resume_at is not None:
            times.append(self._resume_at)
        if self._topic_selector.resume_at is not None and self.settings.egress_enabled:
            times.append(self._topic_selector.resume_at)
        if self._is_timed and not (self._lifetimes.is_behind or self._lifetimes.is_short):
            wall_ms, now_ms = self._backlog.timers.next_ms(), self._lifetimes.delays.next_ms()
            if wall_ms is not None:
                times.append(self._now + (wall_ms - self._wall_ms) / 1000)
            if now_ms is not None:
                times.append(now_ms / 1000)
        return min(times) if times else None

    # --- what the home does with messages ---------------------------------------------------------------

    def take_changed(self) -> list[Segment]:
        """Give each segment whose durable state changed since the last call; without live rows it is gone."""
        if self.retained is not None:
            self.retained.follow_losses()
        changed = list(self._backlog.changed)
        self._backlog.changed.clear()
        return changed

    def take_dead(self, limit: int = DEAD_MAX) -> list[tuple[Segment, int, str]]:
        """Give dead messages to move, each once: row and reason (expired, redeliveries, rejected).

        They are MOVING until the home calls `gone`.
        """
        return self._backlog.take_dead(limit)

    def take(self, segment: Segment, i: int) -> bool:
        """Take a message that is ready or held, to move it (MOVING); False if it is not there."""
        found = self.find(segment.first + i)
        if found is None or found[0].state[found[1]] not in (READY, HELD):
            return False
        segment, i = found
        if segment.state[i] == HELD and segment.first + i > self._lifetimes.filtered_upto:
            return False
        self._lifetimes.forget_delay(segment, i, i + 1)
        self._backlog.change(segment, i, i + 1, segment.state[i], MOVING)
        return True

    def withdraw(self, segment: Segment, i: int) -> None:
        """Take a message that cannot be read, wherever it is, out of everybody's way (MOVING).

        Nothing durable changes: it stays until `gone` or `kept`, and is there again after a restart.
        """
        found = self.find(segment.first + i)
        if found is None or found[0].state[found[1]] == MOVING:
            return
        segment, i = found
        self._free(segment, i)
        self._backlog.change(segment, i, i + 1, segment.state[i], MOVING)

    def _free(self, segment: Segment, i: int) -> None:
        """Take a message from its flow and from the delays."""
        if segment.state[i] == OUT:
            self._consumers.forget(segment.first + i)
            self.leasing.forget(segment.first + i)
            self.holdings.forget(segment.first + i)
        self._lifetimes.forget_delay(segment, i, i + 1)

    def kept(self, segment: Segment, i: int, now: float, wall_ms: int) -> None:
        """Give a message back that was MOVING and that stays after all."""
        self._now, self._wall_ms = now, wall_ms
        found = self.find(segment.first + i)
        if found is None or found[0].state[found[1]] != MOVING:
            return
        segment, i = found
        if self.settings.last_value and segment.first + i < self._backlog.newest:
            self._backlog.statistics["replaced"] += 1
            self._backlog.remove(segment, i, i + 1, MOVING)
            return
        self._backlog.revive(segment, i)
        # Its times may have passed while nobody looked at it.
        if self._backlog.is_timed(segment):
            self._lifetimes.watch(segment)
        self._topic_selector.readmit(segment, i, wall_ms)

    def gone(self, segment: Segment, i: int) -> None:
        """Remove a message for good, wherever it is: moved, or deleted by an operator."""
        found = self.find(segment.first + i)
        if found is None:
            return
        segment, i = found
        state = segment.state[i]
        self._free(segment, i)
        self._backlog.statistics["deleted"] += state != MOVING
        self._backlog.remove(segment, i, i + 1, state)

    def finish(self, position: int) -> None:
        """Remove a message that its consumer has, whichever flow brought it."""
        found = self.find(position)
        if found is not None:
            segment, i = found
            was = segment.state[i]
            self._free(segment, i)
            self._outcomes.accept(segment, i, i + 1, was)

    def _remove_replaced(self, segment: Segment, i: int) -> None:
        """Remove a message that a newer one replaced, wherever it is."""
        self._free(segment, i)
        self._backlog.statistics["replaced"] += 1
        self._backlog.remove(segment, i, i + 1, segment.state[i])

    def purge(self) -> int:
        """Remove everything, also what is out; gives how many messages. Positions go on as before."""
        self._consumers.purge()
        self.leasing.purge()
        self.holdings.purge()
        self._lifetimes.clear()
        if self._topic_selector.selector is not None:
            self._lifetimes.filtered_upto = self.next_position - 1
        if self.retained is not None:
            self.retained.clear(self.next_position)
        return self._backlog.purge()

    def validate(self) -> None:
        """Check what the comments on the attributes of its parts say."""
        self._backlog.validate()
        self._lifetimes.validate()
        self._consumers.validate(self.next_position, self.holdings.count)
        self.holdings.validate()
        self.leasing.validate()
        if self.retained is not None:
            self.retained.validate(self.next_position)
        assert all(segment.last < self.next_position for segment in self.segments)
        assert all(self.flows[flow_id] is flow for flow_id, flow in self._closing.items())
        for segment in self.segments:
            for i, state in enumerate(segment.state):
                unfiltered = segment.first + i > self._lifetimes.filtered_upto
                assert not unfiltered or state not in (READY, OUT)


def _closed(flow: Flow, code: int) -> FlowEvent:
    return FlowEvent(flow.id, wire.FLOW_CLOSED, code, "")
