"""What happens to sampled messages in the lanes of a home, told as spans; all other messages cost it nothing.

Which messages are sampled stands in their properties, which are searched and never unpacked. A message has a span for
each stretch of its way, one behind the other, each ended when it is over:

    published ─enqueue─► on disk ─deliver─► at a consumer ─accept─► gone
                            ▲                  │ fail, lose      └─reject─► moves ─move─► in the dead message queue
                            └──────────────────┘                 expire, delete, from anywhere

`enqueue` is a child of the span that published it, `deliver`, `expire` and `delete` of that, and what a consumer says a
child of `deliver`. In the dead message queue the message is enqueued anew, in the same trace.

The messages that are taken in a second, and those that are watched, are bounded, and Message VPNs share them; what
exceeds that is counted. It is all in memory: a worker that is started again makes no spans of messages that it finds.

In each second a Message VPN has what it asked for in the second before, or an equal part of what those leave who asked
for less:

    100 a second, asked for in the last one: a 500, b 30, c 10       now: a 60, b 30 or more, c 10 or more
                                             a 500                        a 100
                                             a 500, b 500                 each 50

Whoever asks for the first time has the largest part, as long as not all is taken; a second later it has its own.

No I/O. The wall clock and chance are given; `node.home` says what happens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from typing import TYPE_CHECKING, Final

from angarium import wire
from angarium.trace_context import sampled_in
from node.backlog.segment import MOVING, OUT, REASONS
from node.tracing.spans import CONSUMER, INTERNAL, PRODUCER, Span

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from angarium.trace_context import TraceContext
    from node.backlog.segment import Row, Segment
    from node.endpoints.lane import Handout, Lane
    from node.endpoints.resting import RestingLane
    from node.tracing.config import TracingConfig
    from node.tracing.spans import Value

    AnyLane = Lane | RestingLane

_SECOND_NS: Final = 1_000_000_000


class Shares:
    """What is taken of so many messages per second."""

    def __init__(self, per_s: int, now_ns: int) -> None:
        self._per_s = per_s
        self._began_ns = now_ns
        #: Message VPN -> how much it asked for, and got, in the second that began then.
        self._asked: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        #: Nobody gets more than so much of it.
        self._level = per_s

    def take(self, vpn: str, now_ns: int) -> bool:
        """Tell whether one more message of a Message VPN may be traced, and count it if so."""
        passed_ns = now_ns - self._began_ns
        if not 0 <= passed_ns < _SECOND_NS:
            # A wall clock may be set: then a second begins as well.
            is_next = 0 <= passed_ns < 2 * _SECOND_NS
            self._level = level_of(self._asked.values(), self._per_s) if is_next else self._per_s
            self._began_ns = now_ns
            self._asked.clear()
            self._taken.clear()
        self._asked[vpn] += 1
        if self._taken[vpn] >= self._level or self._taken.total() >= self._per_s:
            return False
        self._taken[vpn] += 1
        return True

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._taken.total() <= self._per_s
        assert all(taken <= min(self._asked[vpn], self._level) for vpn, taken in self._taken.items())


def level_of(asked: Iterable[int], whole: int) -> int:
    """Give the most that one may have if all have at most that and together the whole; 1 at least.

    Example:
        >>> level_of([500, 30, 10], 100)
        60
    """
    left, some = whole, sorted(asked)
    for at, one in enumerate(some):
        part = left // (len(some) - at)
        if one > part:
            return max(part, 1)
        left -= one
    return whole


#: Messages that are watched at a time, about 500 bytes each; of more the oldest of the Message VPN with most of them is
#: given up.
WATCHED_MAX: Final = 4_000
#: Messages of a lane that are looked at in one turn, for what nobody says: that they expired, or were purged.
LOOKS: Final = 50
#: Spans that wait to be taken; more are dropped.
SPANS_MAX: Final = 4_000
#: Outcome -> the name of its span.
OUTCOMES: Final = {
    wire.OUTCOME_ACCEPTED: "accept",
    wire.OUTCOME_RELEASED: "release",
    wire.OUTCOME_FAILED: "fail",
    wire.OUTCOME_REJECTED: "reject",
}
#: The share of all trace ids below this is what a ratio takes: the lowest 56 bits of an id are random.
_RANDOM_BITS: Final = 56
_TYPES: Final = {
    "enqueue": "receive",
    "deliver": "send",
    "accept": "settle",
    "release": "settle",
    "fail": "settle",
    "reject": "settle",
}
_KINDS: Final = {"enqueue": CONSUMER, "deliver": PRODUCER}


class Watched:
    """A sampled message."""

    __slots__ = (
        "enqueue_id",
        "expires_ms",
        "flow",
        "is_stored",
        "parent_id",
        "position",
        "reason",
        "since_ns",
        "size",
        "topic",
        "trace_id",
    )

    def __init__(self, position: int, row: Row, context: TraceContext, enqueue_id: str, now_ns: int) -> None:
        self.position = position
        self.topic, self.size = row.topic, len(row.payload)
        self.trace_id = context.trace_id
        #: Of what it is in now: the publisher's span, then enqueue, while it is at a consumer deliver.
        self.parent_id = context.span_id
        self.enqueue_id = enqueue_id
        #: When that began.
        self.since_ns = now_ns
        self.is_stored = False
        #: Who has it; 0: nobody.
        self.flow = 0
        #: When its life ends, wall ms; 0: never.
        self.expires_ms = 0
        #: Why it is dead; empty: it is not.
        self.reason = ""


class _WatchedLane:
    """The watched messages of a lane."""

    __slots__ = ("by_position", "looked", "positions", "vpn")

    def __init__(self, vpn: str) -> None:
        self.vpn = vpn
        self.by_position: dict[int, Watched] = {}
        #: The same, rising.
        self.positions: list[int] = []
        #: Where the next turn goes on to look.
        self.looked = 0

    def between(self, first: int, last: int) -> list[Watched]:
        """Give those in a range of positions."""
        positions = self.positions
        some = positions[bisect_left(positions, first) : bisect_right(positions, last)]
        return [self.by_position[one] for one in some]

    def add(self, one: Watched) -> None:
        self.by_position[one.position] = one
        insort(self.positions, one.position)

    def remove(self, position: int) -> None:
        del self.by_position[position]
        del self.positions[bisect_left(self.positions, position)]

    def next_looks(self) -> list[Watched]:
        """Give those that it is time to look at."""
        start = self.looked if self.looked < len(self.positions) else 0
        some = self.positions[start : start + LOOKS]
        self.looked = start + len(some)
        return [self.by_position[one] for one in some]


class Watch:
    """The sampled messages of a home."""

    def __init__(self, config: TracingConfig, clock: Callable[[], int], chance: random.Random) -> None:
        """Watch nothing yet; `clock` gives ns since 1970."""
        self._clock = clock
        self._chance = chance
        self._ids_below = round(config.sample_ratio * (1 << _RANDOM_BITS))
        self._shares = Shares(config.messages_per_second, clock())
        #: Lane id -> what is watched there, never nothing.
        self.lanes: dict[int, _WatchedLane] = {}
        #: Message VPN -> all of it, the oldest first, never nothing; and how much that is.
        self._all: dict[str, dict[tuple[int, int], None]] = {}
        self.watched = 0
        self._spans: list[Span] = []
        #: Since the start.
        self.counts = dict.fromkeys(
            ("spans_made", "spans_dropped", "messages_watched", "messages_passed_over"), 0
        )

    # What happens, in this order.

    def sampled(self, rows: Sequence[Row], vpn: str) -> dict[int, TraceContext]:
        """Give the rows of a STORE of a Message VPN that are to be watched, with their contexts: mostly none."""
        found: dict[int, TraceContext] = {}
        for at, row in enumerate(rows):
            if row.properties is None or (context := sampled_in(row.properties)) is None:
                continue
            if int(context.trace_id[-14:], 16) >= self._ids_below:
                continue
            if self._shares.take(vpn, self._clock()):
                found[at] = context
            else:
                self.counts["messages_passed_over"] += 1
        return found

    def arrived(self, lane: AnyLane, first: int, rows: Iterable[tuple[int, Row, TraceContext]]) -> None:
        """Watch messages of a lane from now on: their places behind position `first`, rows and contexts."""
        if lane.settings.retains:
            return
        now_ns, vpn = self._clock(), lane.settings.vpn
        for place, row, context in rows:
            one = Watched(first + place, row, context, self._id(), now_ns)
            self.lanes.setdefault(lane.lane_id, _WatchedLane(vpn)).add(one)
            self._all.setdefault(vpn, {})[lane.lane_id, one.position] = None
            self.watched += 1
            self.counts["messages_watched"] += 1
        while self.watched > WATCHED_MAX:
            most = max(self._all.values(), key=len)
            self._forget(*next(iter(most)))
            self.counts["messages_passed_over"] += 1

    def stored(self, lane: AnyLane, segment: Segment) -> None:
        """Messages of a segment are the lane's."""
        for one in self._between(lane.lane_id, segment.first, segment.last):
            if not one.is_stored:
                one.is_stored = True
                one.expires_ms = lane.expires_at_ms(segment, one.position - segment.first)
                self._end("enqueue", one, lane, span_id=one.enqueue_id, is_remote=True)
                one.parent_id = one.enqueue_id

    def handed_out(self, lane: AnyLane, handouts: Sequence[Handout]) -> None:
        """Messages go to consumers; what browsers see goes nowhere."""
        for flow_id, segment, indices, counts in handouts:
            flow = lane.flows.get(flow_id)
            if flow is None or flow.is_browser:
                continue
            for one in self._between(lane.lane_id, segment.first, segment.last):
                at = _find(indices, one.position - segment.first)
                if at is None or not one.is_stored:
                    continue
                told: dict[str, Value] = {"messaging.client.id": flow.options.client}
                told["angarium.delivery_count"] = 1 if counts is None else counts[at] + 1
                one.parent_id = self._end("deliver", one, lane, told)
                one.flow = flow_id

    def settled(self, lane: AnyLane, flow: int, outcome: int, ranges: Iterable[Sequence[int]]) -> None:
        """A flow says what becomes of messages; what it does not have is none of its business."""
        for first, last in ranges:
            for one in self._between(lane.lane_id, first, last):
                if one.flow == flow:
                    self._settle(lane, one, OUTCOMES.get(outcome, ""))

    def finished(self, lane: AnyLane, position: int) -> None:
        """A message was processed by who has it, whatever flow that had it from."""
        for one in self._between(lane.lane_id, position, position):
            self._settle(lane, one, "accept")

    def _settle(self, lane: AnyLane, one: Watched, name: str) -> None:
        if not name:
            return
        self._end(name, one, lane)
        one.flow, one.parent_id = 0, one.enqueue_id
        if name == "accept":
            self._forget(lane.lane_id, one.position)

    def look(self, lane: AnyLane, wall_ms: int) -> None:
        """Look for what was not said: messages that are gone, dead, or came back from a consumer that left."""
        watched = self.lanes.get(lane.lane_id)
        if watched is not None:
            for one in watched.next_looks():
                if one.is_stored:
                    self._look_at(lane, one, wall_ms)

    def _look_at(self, lane: AnyLane, one: Watched, wall_ms: int) -> None:
        found = lane.find(one.position)
        if found is None:
            self._gone(lane, one, wall_ms)
            return
        segment, i = found
        if one.flow and segment.state[i] != OUT and lane.lease is None:
            self._end("lose", one, lane, error="the consumer is gone")
            one.flow, one.parent_id = 0, one.enqueue_id
        if segment.state[i] == MOVING and not one.reason and segment.dead is not None:
            one.reason = REASONS[segment.dead[i]]

    def _gone(self, lane: AnyLane, one: Watched, wall_ms: int) -> None:
        told: dict[str, Value] = {}
        if one.reason:
            told["angarium.reason"] = one.reason
            told["angarium.dead_message_queue"] = lane.settings.dead_message_queue
            name = "move"
        elif lane.lease is not None:
            name = "accept"
        else:
            name = "expire" if 0 < one.expires_ms <= wall_ms else "delete"
        self._end(name, one, lane, told)
        self._forget(lane.lane_id, one.position)

    def forget(self, lane_id: int) -> None:
        """A lane is no more."""
        watched = self.lanes.get(lane_id)
        for position in list(watched.positions) if watched is not None else ():
            self._forget(lane_id, position)

    # Spans.

    def take_spans(self) -> list[Span]:
        """Give what was made since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def _end(
        self,
        name: str,
        one: Watched,
        lane: AnyLane,
        more: dict[str, Value] | None = None,
        *,
        span_id: str = "",
        error: str = "",
        is_remote: bool = False,
    ) -> str:
        """End what a message was in, and give the id of its span; the next one begins now."""
        now_ns = max(self._clock(), one.since_ns)
        settings = lane.settings
        told = {**_attributes(name, one, lane), **(more or {})}
        span_id = span_id or self._id()
        self.counts["spans_made"] += 1
        if len(self._spans) < SPANS_MAX:
            kind = _KINDS.get(name, INTERNAL)
            begin, title = one.since_ns, f"{name} {_shown(settings.name)}"
            self._spans.append(
                Span(title, kind, one.trace_id, span_id, one.parent_id, begin, now_ns, told, error, is_remote)
            )
        else:
            self.counts["spans_dropped"] += 1
        one.since_ns = now_ns
        return span_id

    def _id(self) -> str:
        return f"{self._chance.getrandbits(64) or 1:016x}"

    def _between(self, lane_id: int, first: int, last: int) -> list[Watched]:
        watched = self.lanes.get(lane_id)
        return [] if watched is None else watched.between(first, last)

    def _forget(self, lane_id: int, position: int) -> None:
        watched = self.lanes[lane_id]
        own = self._all[watched.vpn]
        del own[lane_id, position]
        if not own:
            del self._all[watched.vpn]
        self.watched -= 1
        watched.remove(position)
        if not watched.positions:
            del self.lanes[lane_id]

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._shares.validate()
        assert self.watched <= WATCHED_MAX
        for vpn, own in self._all.items():
            assert own
            assert all(self.lanes[lane_id].vpn == vpn for lane_id, _ in own)
        everything = [one for own in self._all.values() for one in own]
        assert len(everything) == self.watched
        assert {(lane_id, one) for lane_id, lane in self.lanes.items() for one in lane.positions} == {
            *everything
        }
        for lane in self.lanes.values():
            assert lane.positions
            assert lane.positions == sorted(lane.by_position)


def _find(indices: Sequence[int], row: int) -> int | None:
    """Give where a row is among rising ones; None if it is not."""
    if isinstance(indices, range):
        return indices.index(row) if row in indices else None
    at = bisect_left(indices, row)
    return at if at < len(indices) and indices[at] == row else None


def _shown(queue: str) -> str:
    """Give what the name of a span says of a queue: names group spans, and each session of MQTT has its own queue."""
    if queue.startswith(wire.SHARED_QUEUE_PREFIX):
        return wire.SHARED_QUEUE_PREFIX + "*"
    return wire.SESSION_QUEUE_PREFIX + "*" if queue.startswith(wire.SESSION_QUEUE_PREFIX) else queue


def _attributes(name: str, one: Watched, lane: AnyLane) -> dict[str, Value]:
    """Say what is done with which message, by the semantic conventions for messaging as far as they go."""
    settings = lane.settings
    told: dict[str, Value] = {
        "messaging.system": "angarium",
        "messaging.operation.name": name,
        "messaging.destination.name": settings.name,
        "messaging.message.body.size": one.size,
        "angarium.vpn": settings.vpn,
        "angarium.position": one.position,
    }
    if name in _TYPES:
        told["messaging.operation.type"] = _TYPES[name]
    if settings.partitions:
        told["messaging.destination.partition.id"] = str(lane.lane_id & ((1 << wire.LANE_BITS) - 1))
    if not one.topic.startswith(wire.QUEUE_TOPIC_PREFIX):
        told["messaging.destination_publish.name"] = one.topic
    return told
