"""Copies of blocks and segments of other spools, and what of a lane is copied before it is taken over.

A lane of a worker that runs is copied twice: first while that worker serves it (`EarlyCopies`), in bounded steps
and under a limit of bytes per second; then, when the worker has parted with it, what changed meanwhile. A segment
that is in the other spool as it was then needs no second copy of its block: only its state is read again. So
consumers wait for the rest only, however much a lane has.

Nothing on disk says that an early copy is there: its segments belong to no lane, and a process that starts deletes
them like anything that is left over. One that nobody asks about any more is given up.

No clock, no I/O of its own; `node.home.lanes.adoption` uses this, and the operations `lane.copy` and
`lane.copy_end`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from node.backlog.segment import Segment
from node.home.spool import layout
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from node.home.lanes.others import Others
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLanes
    from node.home.spool.writing import Writing
    from storage.spool import Change, Spool

#: Segments, and about so many bytes of blocks, that one step copies: consumers of this home wait behind it.
STEP_SEGMENTS: Final = 100
STEP_BYTES: Final = 1 << 20
#: When everything is copied, what is new is looked for so often.
LOOK_S: Final = 0.1
#: After this time without a question an early copy is given up.
FORGOTTEN_S: Final = 30.0
#: Lanes that a home copies at once.
LANES_MAX: Final = 16


class Copies:
    """The blocks of other spools that are here."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        #: Name of the spool -> block there -> block here, so that lanes go on sharing what they share.
        self._copied: dict[str, dict[int, int]] = {}

    def add(self, name: str, source: Spool, segment: Segment) -> list[Change] | None:
        """Let a segment lie in the copy of its block; gives what makes that, None if the block is not there."""
        known = self._copied.setdefault(name, {})
        block = self._blocks.get(known.get(segment.block, 0))
        changes: list[Change] = []
        is_there = True
        if block is None:
            value = source.get(Table.BLOCKS, layout.number_key(segment.block))
            block = self._blocks.find(self._blocks.new_id(), segment.file)
            known[segment.block] = block.id
            is_there = value is not None
            if value is not None:
                changes.append((Table.BLOCKS, layout.number_key(block.id), value))
        segment.block, segment.file = block.id, block.file
        block.segments.append(segment)
        return changes if is_there else None

    def take_out(self, segment: Segment) -> list[Change]:
        """Let a segment lie nowhere; gives what deletes its block if it was the last in it."""
        block = self._blocks.get(segment.block)
        if block is None or segment not in block.segments or not self._blocks.release(block, segment):
            return []
        self._blocks.freed(block.id)
        return [(Table.BLOCKS, layout.number_key(block.id), None)]

    def go_on(self, early: Segment, segment: Segment) -> None:
        """Let a segment take the place of its early copy."""
        block = self._blocks.get(early.block)
        assert block is not None
        segment.block, segment.file, segment.rows = early.block, early.file, early.rows
        block.segments[block.segments.index(early)] = segment

    def keep_only(self, names: dict[str, None]) -> None:
        """Forget what is where of all spools but these."""
        for name in [name for name in self._copied if name not in names]:
            del self._copied[name]


class EarlySegment(NamedTuple):
    """A segment that was copied early."""

    #: Its record in the other spool, when it was copied.
    there: bytes
    #: Its record here.
    here: bytes
    segment: Segment


class EarlyCopy:
    """What is here of a lane that another worker serves."""

    def __init__(self, lane_id: int, name: str, bytes_per_s: int, buried: int) -> None:
        self.lane_id = lane_id
        self.name = name
        #: At most so many bytes per second.
        self.bytes_per_s = bytes_per_s
        #: It begins when this many segments are deleted: some may have its keys.
        self.buried = buried
        #: Key of a segment -> its copy; none without messages.
        self.found: dict[bytes, EarlySegment] = {}
        #: Key behind the last segment that was looked at.
        self.next_key = layout.number_key(lane_id)
        self.messages = 0
        self.bytes = 0
        #: Whether the end was reached once.
        self.is_caught_up = False
        self.is_under_way = False
        self.next_try = 0.0
        self.asked_at = 0.0


class EarlyStepped(NamedTuple):
    """A step of an early copy is durable."""

    one: EarlyCopy


class EarlyCopies:
    """The lanes that are copied while another worker serves them."""

    def __init__(
        self, others: Others, lanes: HeldLanes, copies: Copies, writing: Writing, *, is_alone: bool
    ) -> None:
        """Begin without any; a home that is alone has nobody to copy from."""
        self._others = others
        self._lanes = lanes
        self._copies = copies
        self._writing = writing
        self._is_alone = is_alone
        self.by_lane: dict[int, EarlyCopy] = {}
        #: Those that were given up in the middle of a step: what it writes is deleted when it is on disk.
        self.ending: dict[int, EarlyCopy] = {}
        self._now = 0.0
        self._counts = dict.fromkeys(("early_copies", "early_copy_bytes"), 0)

    def want(self, lane_id: int, name: str, bytes_per_s: int, now: float) -> dict[str, Any]:
        """Begin to copy a lane, or go on; gives how far that is.

        Raises:
            ConflictError: the lane is here already, or too many are copied (40902).
        """
        one = self.by_lane.get(lane_id)
        if one is None or one.name != name:
            is_here = self._lanes.get(lane_id) is not None or self._lanes.is_aside(lane_id)
            if self._is_alone or is_here or lane_id in self.ending:
                raise errors.error_for(
                    errors.OBJECT_IN_USE, f"lane {lane_id} cannot be copied to where it is"
                )
            if len(self.by_lane) >= LANES_MAX:
                raise errors.error_for(errors.OBJECT_IN_USE, f"{LANES_MAX} lanes are being copied already")
            self.give_up(lane_id, now)
            one = self.by_lane[lane_id] = EarlyCopy(lane_id, name, bytes_per_s, self._writing.buried)
            self._counts["early_copies"] += 1
        one.asked_at = now
        one.bytes_per_s = bytes_per_s
        return {"messages": one.messages, "bytes": one.bytes, "is_caught_up": one.is_caught_up}

    def give_up(self, lane_id: int, now: float) -> None:
        """Copy a lane no further, and delete what is here of it."""
        one = self.by_lane.pop(lane_id, None)
        if one is not None and one.is_under_way:
            self.ending[lane_id] = one
        elif one is not None:
            self._discard(one, now)

    def _discard(self, one: EarlyCopy, now: float) -> None:
        for early in one.found.values():
            self._writing.discard(early.segment, now)

    def take(self, lane_id: int, name: str, now: float) -> dict[bytes, EarlySegment]:
        """Give what is here of a lane that is taken over now."""
        one = self.by_lane.get(lane_id)
        if one is None or one.name != name:
            self.give_up(lane_id, now)
            return {}
        del self.by_lane[lane_id]
        return one.found

    def next_due(self) -> float | None:
        """Give when the next step is to be done; None while one is under way, or if there is nothing to copy."""
        if any(one.is_under_way for one in self.by_lane.values()):
            return None
        return min((one.next_try for one in self.by_lane.values()), default=None)

    def work(self, now: float) -> None:
        """Do the next step, of one lane after the other."""
        self._now = now
        if not self.by_lane or any(one.is_under_way for one in self.by_lane.values()):
            return
        for one in [one for one in self.by_lane.values() if now - one.asked_at > FORGOTTEN_S]:
            self.give_up(one.lane_id, now)
        if not self.by_lane:
            return
        one = min(self.by_lane.values(), key=lambda one: one.next_try)
        if one.next_try > now:
            return
        source = self._others.read(one.name) if self._writing.is_cleared(one.buried) else None
        if source is None:
            one.next_try = now + LOOK_S
        else:
            self._step(one, source, now)

    def _step(self, one: EarlyCopy, source: Spool, now: float) -> None:
        found = source.scan(Table.SEGMENTS, one.next_key, layout.lane_end(one.lane_id), STEP_SEGMENTS)
        changes: list[Change] = []
        size = 0
        for key, value in found:
            if size >= STEP_BYTES:
                break
            one.next_key = key + b"\x00"
            segment = Segment.unpack(key, value, source.get(Table.STATES, key))
            copied = self._copies.add(one.name, source, segment) if segment.live else None
            if copied is None:
                # What was consumed meanwhile, or packed again: the import finds it out.
                changes += self._copies.take_out(segment)
                continue
            size += segment.live_bytes
            one.messages += segment.live
            one.found[key] = EarlySegment(value, segment.pack(), segment)
            changes += copied
            changes.append((Table.SEGMENTS, key, one.found[key].here))
        one.is_caught_up |= not found
        one.next_try = now + (size / one.bytes_per_s if found else LOOK_S)
        one.bytes += size
        self._counts["early_copy_bytes"] += size
        if changes:
            one.is_under_way = True
            self._writing.add(Task(EarlyStepped(one), changes))

    def stepped(self, event: EarlyStepped) -> None:
        """Take note that a step is durable; the next one may begin."""
        one = event.one
        one.is_under_way = False
        if self.ending.get(one.lane_id) is one:
            del self.ending[one.lane_id]
            self._discard(one, self._now)

    def stats(self) -> dict[str, int]:
        """Give counters, and how many lanes are copied."""
        return {**self._counts, "lanes_copying": len(self.by_lane)}

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for lane_id, one in self.by_lane.items():
            assert lane_id == one.lane_id
            assert self._lanes.get(lane_id) is None
            assert all(early.segment.live for early in one.found.values())
