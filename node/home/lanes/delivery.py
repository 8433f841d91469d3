"""Delivery: lanes are asked what they hand out, and that becomes FLOW_MESSAGES for the router.

Something happens in a lane when it gets messages, when a consumer binds, grants or settles, or when a time has
come. Then it is *touched*, and asked once in the next tick, whatever happened how often. A tick has a budget;
lanes that have more to give wait for the next one, behind the others.

What a consumer may have seen must be known after an unclean stop. So a lane hands nothing out above its durable
reservation; mostly the write that stored a message raised it, else one is written for that.

The hot path is a handout that is a whole block: its batch travels as it was stored, nobody opens it. Other
rows are cut out of their block without being opened either.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors, wire
from angarium_server.black_box import DELIVER
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import FlowMessagesFrame, FlowPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.black_box import BlackBox
    from node.backlog.segment import Segment
    from node.endpoints.lane import Handout
    from node.home.lanes.leases import Leases
    from node.home.lanes.moves import Moves
    from node.home.lanes.outbox import Outbox
    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing

#: A frame takes no further part when it is so large: the router must get to other frames in between.
FRAME_BYTES: Final = 1 << 20
FRAME_PARTS: Final = 128
#: Messages handed out in one tick, and lanes that are served: frames of the router must get their turn.
ROWS_PER_TICK: Final = 20_000
LANES_PER_TICK: Final = 1_000


class Parcel(NamedTuple):
    """Rows of one block for one flow, ready to be sent."""

    flow: int
    part: FlowPart
    batch: bytes
    #: What they cost of the flow's credit in bytes.
    bytes: int


class _Frame:
    """A FLOW_MESSAGES that is being filled."""

    __slots__ = ("batches", "bytes", "flow", "parts", "size")

    def __init__(self, flow: int) -> None:
        self.flow = flow
        self.parts: list[FlowPart] = []
        self.batches: list[bytes] = []
        #: Spool bytes, and bytes of the batches.
        self.bytes = 0
        self.size = 0


class Damage(NamedTuple):
    """Rows that cannot be delivered, because their block cannot be read."""

    segment: Segment
    indices: Sequence[int]
    detail: str


class Delivery:
    """Makes handouts into frames."""

    def __init__(self, blocks: Blocks, incarnation: int) -> None:
        self._blocks = blocks
        self._incarnation = incarnation
        #: Flow -> the frame that takes its next part.
        self._open: dict[int, _Frame] = {}
        #: Frames in the order in which they were begun.
        self._frames: list[_Frame] = []
        self._counts = dict.fromkeys(("handouts", "whole_blocks", "rows_sent", "bytes_sent"), 0)

    def add(self, held: HeldLane, handouts: Sequence[Handout]) -> list[Damage]:
        """Take what a lane hands out; give what of it cannot be read."""
        damages = []
        for handout in handouts:
            try:
                self._put(self._pack(held, handout))
            except errors.UnavailableError as error:
                damages.append(Damage(handout.segment, handout.indices, error.detail))
        return damages

    def take_frames(self) -> list[list[bytes]]:
        """Give the frames for the router, in order."""
        if not self._frames:
            return []
        frames = []
        for frame in self._frames:
            head = FlowMessagesFrame(self._incarnation, frame.flow, frame.parts, frame.bytes)
            frames.append([wire.FLOW_MESSAGES, encode(head), *frame.batches])
        self._frames = []
        self._open = {}
        return frames

    def _pack(self, held: HeldLane, handout: Handout) -> Parcel:
        flow, segment, indices, counts = handout
        rows = len(indices)
        is_all = rows == segment.count and (type(indices) is range or indices == list(range(rows)))
        block = self._blocks.get(segment.block)
        assert block is not None, "a handout names live rows"
        batch, is_whole = self._batch(block, segment, indices, is_all=is_all)
        self._counts["handouts"] += 1
        self._counts["whole_blocks"] += is_whole
        if is_all:
            runs, size = [(segment.first, rows)], sum(segment.sizes)
        else:
            runs = runs_of(segment.first, indices)
            sizes = segment.sizes
            size = sum([sizes[i] for i in indices])
        ages, origins = segment.ages, segment.origins
        part = FlowPart(
            held.partition,
            rows,
            runs,
            counts,
            segment.stored_ms if ages is None else [segment.stored_ms + ages[i] for i in indices],
            None if origins is None else [origins[i] for i in indices],
        )
        return Parcel(flow, part, batch, size)

    def _batch(
        self, block: Block, segment: Segment, indices: Sequence[int], *, is_all: bool
    ) -> tuple[bytes, bool]:
        """Give the rows packed, and whether they are the whole block as it is."""
        if is_all and segment.rows is None:
            batch = self._blocks.batch(block)
            if block.rows == segment.count:
                return batch, True
        if segment.rows is None:
            return self._blocks.select(block, indices), False
        rows = segment.rows
        return self._blocks.select(block, [rows[i] for i in indices]), False

    def _put(self, parcel: Parcel) -> None:
        frame = self._open.get(parcel.flow)
        if frame is None or frame.size >= FRAME_BYTES or len(frame.parts) >= FRAME_PARTS:
            frame = self._open[parcel.flow] = _Frame(parcel.flow)
            self._frames.append(frame)
        frame.parts.append(parcel.part)
        frame.batches.append(parcel.batch)
        frame.bytes += parcel.bytes
        frame.size += len(parcel.batch)
        self._counts["rows_sent"] += parcel.part.rows
        self._counts["bytes_sent"] += parcel.bytes

    def stats(self) -> dict[str, int]:
        """Give what was sent since the process started."""
        return dict(self._counts)


def runs_of(first: int, indices: Sequence[int]) -> list[tuple[int, int]]:
    """Give the positions of some rows of a segment as runs [position, n], in the order of the rows.

    `first` is the position of row 0. Example: rows 0, 1, 4 of a segment that starts at 10: (10, 2), (14, 1).
    """
    if isinstance(indices, range) and indices.step == 1:
        return [(first + indices.start, len(indices))]
    runs = []
    start = last = indices[0]
    for i in indices[1:]:
        if i != last + 1:
            runs.append((first + start, last + 1 - start))
            start = i
        last = i
    runs.append((first + start, last + 1 - start))
    return runs


class Serving:
    """Asks touched lanes what there is to do."""

    def __init__(
        self,
        lanes: HeldLanes,
        writing: Writing,
        delivery: Delivery,
        moves: Moves,
        leases: Leases,
        outbox: Outbox,
        box: BlackBox,
    ) -> None:
        """Make it of the parts of a home; `box` takes which lane is served."""
        self._lanes = lanes
        self._writing = writing
        self._delivery = delivery
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
        self._now = 0.0
        #: Rows that could not be read.
        self.unreadable = 0

    def forget(self, held: HeldLane) -> None:
        """Forget a lane that is deleted."""
        self._starved.pop(held, None)

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

    def serve(self, now: float, wall_ms: int) -> None:
        """Serve the lanes in which something happened, as far as the budget goes."""
        lanes = self._lanes
        self._now = now
        share = self._share_among_starved() if self._starved else self.allowance
        left = ROWS_PER_TICK
        again: list[HeldLane] = []
        for held in list(lanes.touched)[:LANES_PER_TICK]:
            if left <= 0:
                break
            del lanes.touched[held]
            rows, has_more = self._serve_lane(held, min(left, share), wall_ms)
            left -= rows
            if has_more:
                again.append(held)
        lanes.touched.update(dict.fromkeys(again))

    def serve_short(self, held: HeldLane, now: float, wall_ms: int) -> None:
        """Serve a lane that waited for effort; while others wait for allowance it takes none of that."""
        self._now = now
        _, has_more = self._serve_lane(held, 0 if self._starved else ROWS_PER_TICK, wall_ms)
        if has_more:
            self._lanes.touched[held] = None

    def _serve_lane(self, held: HeldLane, rows_max: int, wall_ms: int) -> tuple[int, bool]:
        """Serve a lane; gives how many rows it handed out, and whether it could go on at once."""
        room = max(self.allowance - self._lanes.unacked, 0)
        self._box.begin(DELIVER, held.lane_id)
        handouts = held.lane.hand_out(self._now, wall_ms, min(room, rows_max), held.shown)
        rows = 0
        if handouts:
            rows = sum([len(handout.indices) for handout in handouts])
            damages = self._delivery.add(held, handouts)
            if damages:
                self._withdraw(held, damages)
        # One that waits for room is to be ready when its turn comes.
        is_waiting = held.lane.barred or (held.lane.more and not room)
        if is_waiting and held.delivered < held.accepted:
            self._reserve(held)
        self.collect(held)
        self._box.end()
        # A reader group takes no part in the limit of what consumers have.
        if held.lane.more and (room or held.lane.leasing.lease is not None):
            return rows, True
        if held.lane.more:
            self._starved[held] = None
        return rows, False

    def _share_among_starved(self) -> int:
        """Give what each lane may hand out of what was settled: who waited longest comes first, and none takes all.

        Else a consumer that settles much at once would have it again, each time, and the others never.
        """
        lanes = self._lanes
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
        self._moves.take_dead(held)
        self._leases.look(held)
        self._writing.collect(held, self._now)

    def _withdraw(self, held: HeldLane, damages: list[Damage]) -> None:
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
