"""Serving consumers: what the router says about their flows is carried out, and lanes are asked what they hand out.

Something happens in a lane when it gets messages, when a consumer binds, grants or settles, or when a time has
come. Then it is *touched*, and asked once in the next tick, whatever happened how often. A tick has a budget;
lanes that have more to give wait for the next one, behind the others. If more are touched than a tick has time for they
wait in line, endpoints in turn: else a queue of a thousand partitions would come a thousand times before the next one.

What a consumer may have seen must be known after an unclean stop. So a lane hands nothing out above its durable
reservation; mostly the write that stored a message raised it, else one is written for that.

Flows have numbers of the router, never used twice. A lane that closes a flow says so with an event; from then
on nothing comes for it any more.

A consumer of a queue of a thousand partitions comes with as many binds, and goes with as many unbinds. So those of
partitions are carried out some at a time, in their order; what is said of other flows, and what is to be stored, does
not wait for them. Nobody gets anything before who had the partition has left it, since that was said sooner. So is the
unbind of a flow that has many messages, which are ready again some at a time: a client may have settled every second
one of a million. If the lane is exclusive nobody gets any of them before all of them are.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from angarium import errors, wire
from angarium_server.black_box import DELIVER
from angarium_server.frames.homes import Bind, Credit, FlowEvent, Settle, Unbind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from angarium_server.black_box import BlackBox
    from angarium_server.frames.homes import FlowFrame, FlowVerb
    from node.home.lanes.leases import Leases
    from node.home.lanes.moves import Moves
    from node.home.lanes.outbox import Damage, Outbox
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing

#: What a message costs that is handed out without its neighbours, or a few together: as much as so many of a block.
ALONE_ROWS: Final = 100
#: Messages handed out in one tick, 1 ms, and lanes that are served, half of that: frames of the router must get their
#: turn. Of a tick in which lanes came or went, or consumers, these are among the lanes, but some are always served.
ROWS_PER_TICK: Final = 20_000
LANES_PER_TICK: Final = 32
LANES_PER_TICK_MIN: Final = 8
#: Binds and unbinds of partitions in one tick, about half a ms: a guaranteed message waits for several ticks.
BINDS_PER_TICK: Final = 12
#: Runs of messages that are ready again for the time of one of them; and messages with which a flow is unbound at once.
RUNS_PER_BIND: Final = 5
RETURNED_AT_ONCE: Final = 64


class FlowVerbs:
    """Carries out bind, unbind, credit and settle."""

    def __init__(self, lanes: HeldLanes, outbox: Outbox, box: BlackBox) -> None:
        """Make it; `box` takes which lane a selector is bound to."""
        self._lanes = lanes
        self._outbox = outbox
        self._box = box
        #: Flow -> what the router says of it and is not carried out, longest waiting first.
        self.waiting: dict[int, list[FlowVerb]] = {}
        #: How much of that may be carried out until the next tick ends, which renews it.
        self.left = BINDS_PER_TICK
        self._verbs: dict[type[FlowVerb], Callable[[int, Any, float, int], None]] = {
            Bind: self._bind,
            Unbind: self._unbind,
            Credit: self._credit,
            Settle: self._settle,
        }

    def take(self, header: FlowFrame, now: float, wall_ms: int) -> None:
        """Do what a FLOW says, or have it done by `work`: what comes behind it is read before that."""
        waiting = self.waiting
        for order in header.orders:
            flow, verb = order.flow, order.verb
            if flow in waiting and not (isinstance(verb, Settle) and isinstance(waiting[flow][0], Unbind)):
                _put_behind(waiting[flow], verb)
            elif isinstance(verb, Bind) and _is_partition(self._lanes.get(verb.lane)):
                waiting[flow] = [verb]
            elif isinstance(verb, Unbind) and _takes_turns(held := self._lanes.flows.get(flow), flow):
                held.lane.pause(flow)
                self._release(held, flow, verb, now, wall_ms)
                waiting[flow] = [verb]
            else:
                self._verbs[type(verb)](flow, verb, now, wall_ms)

    def work(self, now: float, wall_ms: int) -> None:
        """Carry out some of what waits."""
        while self.waiting and self.left > 0:
            flow = next(iter(self.waiting))
            if isinstance(self.waiting[flow][0], Unbind) and not self._take_back(flow, wall_ms):
                break
            for verb in self.waiting.pop(flow):
                self.left -= 1
                self._verbs[type(verb)](flow, verb, now, wall_ms)

    def _bind(self, flow: int, bind: Bind, now: float, _wall_ms: int) -> None:
        held = self._lanes.get(bind.lane)
        if held is None or held.is_parting:  # the bind may have waited since before that was so
            detail = f"lane {bind.lane} is not here"
            self.tell([FlowEvent(flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT, detail)])
            return
        if held.importing and bind.options.has_range:
            # What is not here yet would be missing in the range.
            detail = f"lane {bind.lane} is being taken over"
            self.tell([FlowEvent(flow, wire.FLOW_CLOSED, errors.HOME_NOT_READY, detail)])
            return
        self._box.begin(DELIVER, bind.lane, 0)
        events = held.lane.bind(
            flow,
            browse=bind.browse,
            selector=bind.selector,
            messages=bind.messages,
            bytes_=bind.bytes,
            options=bind.options,
            now=now,
        )
        self._box.end()
        if flow in held.lane.flows:
            self._lanes.flows[flow] = held
        self._touch(held, events)

    def _unbind(self, flow: int, unbind: Unbind, now: float, wall_ms: int) -> None:
        held = self._lanes.flows.get(flow)
        if held is None:
            return
        self._release(held, flow, unbind, now, wall_ms)
        self._touch(held, held.lane.unbind(flow, unbind.hand_off_ms, now, wall_ms))
        if flow not in held.lane.flows:
            self._lanes.flows.pop(flow, None)

    def _release(self, held: HeldLane, flow: int, unbind: Unbind, now: float, wall_ms: int) -> None:
        """Take back what the application of a flow that goes has not seen, if it has not been taken back before."""
        if unbind.released and flow in held.lane.flows:
            if self._lanes.watch is not None and held.lane_id in self._lanes.watch.lanes:
                self._lanes.watch.settled(held.lane, flow, wire.OUTCOME_RELEASED, unbind.released)
            held.lane.release(flow, unbind.released, now, wall_ms)

    def _take_back(self, flow: int, wall_ms: int) -> bool:
        """Have a flow that goes give back some of what it has; tells whether that is all, or it is to be handed off."""
        held, unbind = self._lanes.flows.get(flow), self.waiting[flow][0]
        if held is None or not isinstance(unbind, Unbind) or unbind.hand_off_ms is not None:
            return True
        runs = held.lane.take_back(flow, self.left * RUNS_PER_BIND, wall_ms)
        self.left -= runs // RUNS_PER_BIND
        self._lanes.touched[held] = None
        return not held.lane.flows[flow].out.count

    def _credit(self, flow: int, credit: Credit, _now: float, _wall_ms: int) -> None:
        held = self._lanes.flows.get(flow)
        if held is not None:
            held.lane.credit(flow, credit.messages, credit.bytes)
            self._lanes.touched[held] = None

    def _settle(self, flow: int, settle: Settle, now: float, wall_ms: int) -> None:
        held = self._lanes.flows.get(flow)
        if held is None:
            if settle.outcome == wire.OUTCOME_RELEASED:
                return  # It was given back with the flow.
            detail = f"flow {flow} is not here"
            self.tell([FlowEvent(flow, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED, detail)])
            return
        if self._lanes.watch is not None and held.lane_id in self._lanes.watch.lanes:
            self._lanes.watch.settled(held.lane, flow, settle.outcome, settle.ranges)
        self._touch(held, held.lane.settle(flow, settle.outcome, settle.ranges, now, wall_ms))

    def _touch(self, held: HeldLane, events: list[FlowEvent]) -> None:
        self._lanes.touched[held] = None
        if events:
            self.tell(events)

    def tell(self, events: Iterable[FlowEvent]) -> None:
        """Tell the router what a lane says of its flows, and forget those that are closed."""
        for event in events:
            if event.event == wire.FLOW_CLOSED:
                self._lanes.flows.pop(event.flow, None)
            self._outbox.tell(event)

    def end_all(self, now: float, wall_ms: int) -> None:
        """End all flows without a word: their router is gone, or this home stops."""
        self._lanes.flows.clear()
        self.waiting.clear()
        for held in self._lanes:
            if held.lane.flows:
                held.lane.end_flows(now, wall_ms)
                self._lanes.touched[held] = None


class _Line:
    """Lanes that wait to be served, endpoints in turn."""

    def __init__(self) -> None:
        #: Endpoint id -> its lanes, longest waiting first; so are the endpoints.
        self._waiting: dict[int, dict[HeldLane, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[HeldLane]:
        return chain.from_iterable(self._waiting.values())

    def add(self, lanes: Iterable[HeldLane]) -> None:
        """Put lanes behind the others of their endpoints; those that wait already keep their places."""
        for held in lanes:
            self._waiting.setdefault(held.lane_id >> wire.LANE_BITS, {})[held] = None

    def take(self, count: int) -> list[HeldLane]:
        """Give the next ones, so many at most."""
        taken: list[HeldLane] = []
        while self._waiting and len(taken) < count:
            endpoint_id = next(iter(self._waiting))
            lanes = self._waiting.pop(endpoint_id)
            held = next(iter(lanes))
            del lanes[held]
            if lanes:
                self._waiting[endpoint_id] = lanes
            taken.append(held)
        return taken

    def forget(self, held: HeldLane) -> None:
        """Leave a lane out that is deleted."""
        endpoint_id = held.lane_id >> wire.LANE_BITS
        lanes = self._waiting.get(endpoint_id, {})
        lanes.pop(held, None)
        if not lanes:
            self._waiting.pop(endpoint_id, None)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()


class Serving:
    """Asks touched lanes what there is to do."""

    def __init__(
        self,
        lanes: HeldLanes,
        writing: Writing,
        moves: Moves,
        leases: Leases,
        outbox: Outbox,
        box: BlackBox,
    ) -> None:
        """Make it of the parts of a home; `box` takes which lane is served."""
        self._lanes = lanes
        self._writing = writing
        self._delivery = outbox.delivery
        #: Takes up what died.
        self._moves = moves
        #: Writes what changed of leases.
        self._leases = leases
        self._outbox = outbox
        self._box = box
        #: Delivered and not settled messages of all lanes, at which delivery stops: our part of the limit of the node,
        #: which the router gives and changes (R195).
        self.allowance = 0
        #: Lanes that have something to deliver when consumers settle something, anywhere (R196).
        self._starved: dict[HeldLane, None] = {}
        #: Touched lanes for which there was no time.
        self._line = _Line()
        self._now = 0.0
        #: Rows that could not be read.
        self.unreadable = 0

    def forget(self, held: HeldLane) -> None:
        """Forget a lane that is deleted."""
        self._starved.pop(held, None)
        self._line.forget(held)
        if self._lanes.watch is not None:
            self._lanes.watch.forget(held.lane_id)

    @property
    def in_line(self) -> Iterator[HeldLane]:
        """Give the lanes in which something happened, and which have not been asked since."""
        return chain(self._lanes.touched, self._lanes.short, self._line)

    @property
    def has_more(self) -> bool:
        """Whether lanes wait that could be served at once."""
        return bool(self._lanes.touched or self._line)

    @property
    def lacks_allowance(self) -> bool:
        """Whether something would be delivered if we might."""
        return any(held.lane.more for held in self._starved)

    @property
    def wanted(self) -> int:
        """Messages that would be delivered and not settled if we might; 0 if the allowance is enough.

        Flows may want less than their lanes have. Then what is too much is of no use here, and goes to homes that lack
        something.
        """
        waiting = [held.messages - held.unacked for held in self._starved if held.lane.more]
        return self._lanes.unacked + sum(waiting) if waiting else 0

    def serve(self, now: float, wall_ms: int, spent: int = 0) -> None:
        """Serve the lanes in which something happened, as far as the budget goes, of which so many lanes are spent."""
        lanes = self._lanes
        self._now = now
        is_shared = bool(self._starved)
        share = self._share_among_starved() if is_shared else self.allowance
        served = self._next(max(LANES_PER_TICK - spent, LANES_PER_TICK_MIN))
        left, again = self._serve_lanes(served, share, ROWS_PER_TICK, wall_ms)
        if is_shared or lanes.unacked >= self.allowance:
            # First what others left of their shares, then who lacks more waits, behind those who got nothing. All of it
            # in this turn: a report before the next one would say that nobody lacks anything.
            for _ in range(2):
                left, again = self._serve_lanes(again, self.allowance, left, wall_ms)
        lanes.touched.update(dict.fromkeys(again))

    def _serve_lanes(
        self, served: list[HeldLane], share: int, left: int, wall_ms: int
    ) -> tuple[int, list[HeldLane]]:
        """Serve lanes, each with its share at most; give the rows left for this turn, and who could go on at once."""
        late: list[HeldLane] = []
        again: list[HeldLane] = []
        for held in served:
            if left <= 0:
                late.append(held)
                continue
            rows, has_more = self._serve_lane(held, min(left, share), wall_ms)
            left -= rows
            if has_more:
                again.append(held)
        return left, late + again

    def _next(self, count: int) -> list[HeldLane]:
        """Take the lanes that are served now, so many at most."""
        touched = self._lanes.touched
        if not self._line and len(touched) <= count:
            found = list(touched)
        else:
            self._line.add(touched)
            found = self._line.take(count)
        touched.clear()
        return found

    def serve_short(self, held: HeldLane, now: float, wall_ms: int) -> None:
        """Serve a lane that waited for effort; while others wait for allowance it takes none of that."""
        self._now = now
        _, has_more = self._serve_lane(held, 0 if self._starved else ROWS_PER_TICK, wall_ms)
        if has_more:
            self._lanes.touched[held] = None

    def _serve_lane(self, held: HeldLane, rows_max: int, wall_ms: int) -> tuple[int, bool]:
        """Serve a lane; gives what it handed out cost, in rows, and whether it could go on at once."""
        room = max(self.allowance - self._lanes.unacked, 0)
        self._box.begin(DELIVER, held.lane_id, 0)
        handouts = held.lane.hand_out(self._now, wall_ms, min(room, rows_max), held.shown)
        rows = 0
        if handouts:
            costs = [len(one.indices) * (ALONE_ROWS if type(one.indices) is list else 1) for one in handouts]
            rows = sum([max(cost, ALONE_ROWS) for cost in costs])
            if self._lanes.watch is not None and held.lane_id in self._lanes.watch.lanes:
                self._lanes.watch.handed_out(held.lane, handouts)
            damages = self._delivery.add(held, handouts)
            if damages:
                self.withdraw(held, damages)
        # One that waits for room is to be ready when its turn comes.
        is_waiting = held.lane.barred or (held.lane.more and not room)
        if is_waiting and held.delivered < held.accepted:
            self._reserve(held)
        self.collect(held)
        if self._lanes.watch is not None and held.lane_id in self._lanes.watch.lanes:
            self._lanes.watch.look(held.lane, wall_ms)
        self._box.end()
        # A reader group takes no part in the limit of what consumers have.
        if held.lane.more and (room or held.lane.lease is not None):
            return rows, True
        if held.lane.more:
            self._starved[held] = None
        return rows, False

    def _share_among_starved(self) -> int:
        """Give what each lane may hand out of what was settled: who waited longest comes first, and none takes all.

        Else a consumer that settles much at once would have it again, each time, and the others never.
        """
        lanes = self._lanes
        lanes.touched.update(dict.fromkeys(self._line))
        self._line.clear()
        for held in lanes.touched:  # what was settled counts at once: nothing else may happen for long
            lanes.refresh(held)
        room = self.allowance - lanes.unacked
        if room <= 0:
            return 0
        lanes.touched = {**self._starved, **lanes.touched}
        self._starved = {}
        return max(room // len(lanes.touched), 1)

    def _reserve(self, held: HeldLane) -> None:
        """Have it written at once up to where consumers may see messages; then the lane is touched again."""
        held.reserve(held.accepted)
        self._lanes.reserving[held] = None
        self._writing.is_urgent = True

    def collect(self, held: HeldLane) -> None:
        """Take up what a lane lost, tried or let die, and what changed of its lease and its figures."""
        lane = held.lane
        if lane.has_dead or held.is_retiring:
            self._moves.take_dead(held)
        if lane.has_lease_news:
            self._leases.look(held)
        self._writing.collect(held, self._now)

    def withdraw(self, held: HeldLane, damages: list[Damage]) -> None:
        """Put messages aside whose block cannot be read, and say so: the others go on, and nothing is deleted."""
        for damage in damages:
            rows = len(damage.indices)
            for i in damage.indices:
                held.lane.withdraw(damage.segment, i)
            held.count("messages_unreadable", rows)
            self.unreadable += rows
            settings = held.lane.settings
            text = (
                f"{rows} messages of {settings.kind} {settings.name!r} cannot be delivered: {damage.detail}"
            )
            self._outbox.event("error", "SYSTEM_AD_MESSAGES_UNREADABLE", text)
        self._lanes.touched[held] = None


def _is_partition(held: HeldLane | None) -> TypeGuard[HeldLane]:
    """Tell whether a lane is here, and one of several."""
    return held is not None and bool(held.lane.settings.partitions)


def _takes_turns(held: HeldLane | None, flow: int) -> TypeGuard[HeldLane]:
    """Tell whether the unbind of a flow waits for its turn."""
    return held is not None and (_is_partition(held) or held.lane.flows[flow].out.count > RETURNED_AT_ONCE)


def _put_behind(verbs: list[FlowVerb], verb: FlowVerb) -> None:
    """Add what is said of a flow; of totals of its credit only the newest matter."""
    if type(verb) is type(verbs[-1]) is Credit:
        verbs.pop()
    verbs.append(verb)
