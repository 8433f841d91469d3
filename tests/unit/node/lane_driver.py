"""A lane as its home drives it, for tests: blocks in memory, a clock that stands still, durable records."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import msgspec

from angarium import errors, wire
from angarium_server.frames.settings import FlowOptions, LaneSettings
from node.backlog.segment import GONE, Segment, make_segment
from node.endpoints.effort import Effort
from node.endpoints.lane import Lane, LaneStart, Sources
from node.matching.batch import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.frames.homes import FlowEvent
    from node.endpoints.lane import Handout

LANE_ID = 7 << wire.LANE_BITS
#: Credit that no test uses up.
PLENTY = 1 << 40
ACCEPTED, FAILED, REJECTED = wire.OUTCOME_ACCEPTED, wire.OUTCOME_FAILED, wire.OUTCOME_REJECTED
RELEASED = wire.OUTCOME_RELEASED
ACTIVE, INACTIVE, CLOSED = wire.FLOW_ACTIVE, wire.FLOW_INACTIVE, wire.FLOW_CLOSED
REFUSED = wire.FLOW_SETTLE_REFUSED

#: Settings that make lanes differ most.
KINDS: list[dict[str, Any]] = [
    {},
    {"partitions": 3, "access_type": "non-exclusive"},
    {"access_type": "non-exclusive"},
    {"access_type": "non-exclusive", "max_unacked": 3, "max_redeliveries": 1, "dead_message_queue": "dmq"},
    {"max_redeliveries": 2, "dead_message_queue": "dmq", "redelivery_delay": (100, 300, 200), "max_ttl_s": 1},
    {"respect_priority": True},
    {"access_type": "non-exclusive", "respect_priority": True, "delivery_delay_ms": 200},
    {"redelivery_enabled": False, "dead_message_queue": "dmq", "respect_dmq_eligible": True},
    {"last_value": True, "access_type": "non-exclusive", "redelivery_delay": (100, 100, 100)},
    {"kind": "topic-endpoint", "selector": "a"},
    {"kind": "topic-endpoint", "selector": "a", "max_ttl_s": 1, "delivery_delay_ms": 100, "last_value": True},
    {"respect_ttl": False, "max_ttl_s": 1},
]


def row(
    index: int = 0,
    *,
    payload: bytes = b"",
    tag: str | None = None,
    ttl: int = 0,
    delay: int = 0,
    priority: int | None = None,
    flags: int = wire.MODE_PERSISTENT,
    topic: str = "topic",
) -> Row:
    """Make a row; `tag` is what the selectors of these tests look at."""
    meta = (ttl, delay, priority, None) if ttl or delay or priority is not None else None
    return Row(index, topic, flags, meta, None if tag is None else tag.encode(), payload)


class TagSelector:
    """Selects the rows with a tag; "!x" is invalid."""

    def __init__(self, text: str) -> None:
        if text.startswith("!"):
            raise errors.error_for(errors.INVALID_SELECTOR, text)
        self.tag = text.encode()
        self.examined = 0
        self.steps = 0

    def matches(self, row: Any) -> bool:
        self.examined += 1
        return bool(row.properties == self.tag)


class Driver:
    """A lane with its blocks and its durable records."""

    def __init__(self, *, next_position: int = 1, delivered_upto: int = 0, **settings: Any) -> None:
        self.blocks: dict[int, list[Row]] = {}
        self.now = 100.0
        self.wall_ms = 1_700_000_000_000
        #: Key -> the records of a segment, as `store` wrote them.
        self.records: dict[bytes, tuple[bytes, bytes | None]] = {}
        self.selectors: list[TagSelector] = []
        #: Blocks that cannot be read.
        self.damaged: list[int] = []
        self.lane = self.make_lane(LaneSettings(**settings), next_position, delivered_upto)

    def make_lane(
        self, settings: LaneSettings, next_position: int, delivered_upto: int, tried_upto: int | None = None
    ) -> Lane:
        self.effort = Effort()
        sources = Sources(self.read_row, self.effort, self.compile)
        tried_upto = delivered_upto if tried_upto is None else tried_upto
        return Lane(LANE_ID, 1, settings, sources, LaneStart(next_position, delivered_upto, tried_upto))

    def read_row(self, segment: Segment, i: int) -> Row:
        if segment.block in self.damaged:
            raise errors.error_for(errors.SPOOL_DAMAGED, f"block {segment.block}")
        return self.blocks[segment.block][segment.row_in_block(i)]

    def compile(self, text: str) -> TagSelector:
        selector = TagSelector(text)
        self.selectors.append(selector)
        return selector

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.now = round(self.now + ms / 1000, 3)

    def put(self, *rows: Row, publisher: int = 0) -> Segment:
        """Append rows as one segment, stored at once."""
        block = len(self.blocks) + 1
        self.blocks[block] = list(rows)
        segment = make_segment(
            LANE_ID, self.lane.next_position, block, rows, None, self.wall_ms, publishers=publisher
        )
        self.records[segment.key()] = (segment.pack(), None)
        self.lane.append(segment, self.now, self.wall_ms)
        return segment

    def fill(self, count: int, **fields: Any) -> Segment:
        return self.put(*[row(i, **fields) for i in range(count)])

    def bind(
        self,
        flow: int,
        *,
        browse: bool = False,
        selector: str | None = None,
        messages: int = PLENTY,
        bytes_: int = PLENTY,
        **options: Any,
    ) -> list[FlowEvent]:
        return self.lane.bind(
            flow,
            browse=browse,
            selector=selector,
            messages=messages,
            bytes_=bytes_,
            options=FlowOptions(**options),
            now=self.now,
        )

    def unbind(self, flow: int, hand_off_ms: int | None = None) -> list[FlowEvent]:
        return self.lane.unbind(flow, hand_off_ms, self.now, self.wall_ms)

    def release(self, flow: int, *ranges: tuple[int, int]) -> None:
        self.lane.release(flow, ranges, self.now, self.wall_ms)

    def handouts(self, limit: int = 10_000) -> list[Handout]:
        return self.lane.hand_out(self.now, self.wall_ms, limit)

    def deliver(self, limit: int = 10_000) -> dict[int, list[int]]:
        """Hand out; gives flow -> positions in the order in which it gets them."""
        got: dict[int, list[int]] = {}
        for handout in self.handouts(limit):
            first = handout.segment.first
            got.setdefault(handout.flow, []).extend(first + i for i in handout.indices)
        return got

    def deliver_counts(self) -> dict[int, int]:
        """Hand out; gives position -> count of earlier attempts."""
        counts: dict[int, int] = {}
        for handout in self.handouts():
            told = handout.counts or [0] * len(handout.indices)
            for i, count in zip(handout.indices, told, strict=True):
                counts[handout.segment.first + i] = count
        return counts

    def settle(self, flow: int, outcome: int, *ranges: tuple[int, int]) -> list[FlowEvent]:
        return self.lane.settle(flow, outcome, ranges, self.now, self.wall_ms)

    def tick(self) -> list[FlowEvent]:
        return self.lane.tick(self.now, self.wall_ms)

    def dead(self) -> list[tuple[int, str]]:
        return [(segment.first + i, reason) for segment, i, reason in self.lane.take_dead()]

    def gone(self, position: int) -> None:
        found = self.lane.find(position)
        assert found is not None
        self.lane.gone(*found)

    def positions(self) -> list[int]:
        """Give the positions of all messages that are there."""
        return [
            segment.first + i
            for segment in self.lane.segments
            for i in range(segment.count)
            if segment.state[i]
        ]

    def states(self) -> dict[int, str]:
        found = {position: self.lane.find(position) for position in self.positions()}
        return {position: self.lane.state_of(*at) for position, at in found.items() if at is not None}

    def store(self) -> None:
        """Do what a commit does with what changed."""
        for segment in self.lane.take_changed():
            if segment.live:
                self.records[segment.key()] = (segment.pack(), segment.pack_state())
            else:
                self.records.pop(segment.key(), None)

    def restart(self, *, clean: bool) -> None:
        """Make the lane again from its records; what was not stored is lost."""
        if clean:
            self.lane.end_flows(self.now, self.wall_ms)
            self.store()
        old = self.lane
        tried_upto = 0 if clean else None
        self.lane = self.make_lane(old.settings, old.next_position, old.delivered_upto, tried_upto=tried_upto)
        self.load()

    def load(self) -> None:
        """Give a new lane what is durable."""
        for key in sorted(self.records):
            value, state = self.records[key]
            self.lane.load(Segment.unpack(key, value, state), self.now, self.wall_ms)

    def configure(self, **changes: Any) -> list[FlowEvent]:
        settings = msgspec.structs.replace(self.lane.settings, **changes)
        return self.lane.configure(settings, self.now, self.wall_ms)


def checked_drivers() -> Iterator[type[Driver]]:
    """Give a class of drivers whose lanes are checked in the end; for fixtures."""
    made: list[Driver] = []

    class Checked(Driver):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            made.append(self)

    yield Checked
    for driver in made:
        driver.lane.validate()


def all_of(got: dict[int, list[int]]) -> list[int]:
    """Give all positions that `deliver` gave to any flow."""
    return [position for positions in got.values() for position in positions]


def merged(driver: Driver, old: list[Segment]) -> Segment:
    """Put the live rows of neighbours into one block, as the home does in the background."""
    block = len(driver.blocks) + 1
    driver.blocks[block] = [
        driver.blocks[one.block][one.row_in_block(i)] for one in old for i in range(one.count)
    ]
    new = make_segment(LANE_ID, old[0].first, block, driver.blocks[block], None, old[0].stored_ms)
    new.ages = array("I", [one.stored_at_ms(i) - new.stored_ms for one in old for i in range(one.count)])
    new.state = bytearray(b"".join(bytes(one.state) for one in old))
    new.tries = bytearray(b"".join(bytes(one.tries or bytes(one.count)) for one in old))
    new.dead = bytearray(b"".join(bytes(one.dead or bytes(one.count)) for one in old))
    for name in ("expires", "due"):
        if any(getattr(one, name) for one in old):
            times = [t for one in old for t in (getattr(one, name) or [0] * one.count)]
            setattr(new, name, array("Q", times))
    new.live = new.count - new.state.count(GONE)
    new.live_bytes = sum(size for size, state in zip(new.sizes, new.state, strict=True) if state != GONE)
    return new
