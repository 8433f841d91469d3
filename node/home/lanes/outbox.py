"""What leaves a home: frames for the router, in order, and what operators should know.

The hot path is a handout that is a whole block: its batch travels as it was stored, nobody opens it. Other
rows are cut out of their block without being opened either.

No I/O, no clock; the parts of `node.home.parts` put in, `node.home.home` takes out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import FlowEventFrame, FlowMessagesFrame, FlowPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.frame import Frame
    from angarium_server.frames.homes import FlowEvent, MoveFrame
    from node.backlog.segment import Segment
    from node.endpoints.lane import Handout
    from node.home.spool.blocks import Block, Blocks
    from node.home.spool.held_lanes import HeldLane

#: Events that the shell has not taken; the oldest is lost first.
EVENTS_MAX: Final = 100
#: A frame takes no further part when it is so large: the router must get to other frames in between.
FRAME_BYTES: Final = 1 << 20
FRAME_PARTS: Final = 128


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
        self._frames.clear()
        self._open.clear()
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


class Outbox:
    """Frames and events that nobody has taken yet."""

    def __init__(self, incarnation: int, blocks: Blocks) -> None:
        #: Of the worker, which each frame names.
        self.incarnation = incarnation
        #: For the router, in order.
        self.frames: list[list[bytes]] = []
        #: What happened to flows, and the frames that are to tell it: those that follow each other share one.
        self._told: list[tuple[list[bytes], list[FlowEvent]]] = []
        #: They follow the totals of their turn, by which the router counts what is moved.
        self._moves: list[list[bytes]] = []
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        #: What lanes hand out; it comes last.
        self.delivery = Delivery(blocks, incarnation)

    def say(self, frame: Frame, *batches: bytes) -> None:
        """Send a frame, mostly without batches."""
        self.frames.append(frame.frames(*batches))

    def tell(self, event: FlowEvent) -> None:
        """Tell what happened to a flow."""
        if not self._told or self.frames[-1] is not self._told[-1][0]:
            self.frames.append([wire.FLOW_EVENT])
            self._told.append((self.frames[-1], []))
        self._told[-1][1].append(event)

    def move(self, frame: MoveFrame, batch: bytes) -> None:
        """Send rows that are moved, behind everything else of this turn but deliveries."""
        self._moves.append(frame.frames(batch))

    def event(self, severity: str, event: str, text: str, **more: Any) -> None:
        """Tell operators of something."""
        self._events.append({"severity": severity, "scope": "SYSTEM", "event": event, "text": text, **more})

    def clear(self) -> None:
        """Forget what is to be said: its router is gone."""
        self.frames.clear()
        self._told.clear()
        self._moves.clear()

    def take_frames(self) -> list[list[bytes]]:
        """Give the frames, in order."""
        for frame, events in self._told:
            frame.append(encode(FlowEventFrame(self.incarnation, events)))
        frames = self.frames + self._moves + self.delivery.take_frames()
        self._told.clear()
        self.frames.clear()
        self._moves.clear()
        return frames

    def take_events(self) -> list[dict[str, Any]]:
        """Give the events, the oldest first."""
        events = list(self._events)
        self._events.clear()
        return events
