"""Stages at a home: rows that are stored and belong to nobody until their stage is released, or dropped.

What a producer of a stage sends becomes blocks and segments like anything else, counts in the figures of its lanes,
and has no position: it lies in the table STAGED, and no flow, browser, timer or move knows of it. A STORE that
releases a stage gives its segments positions at the tails of their lanes, lane by lane in the order in which they came,
in one write, and from then on they are what they would have been, published at that moment. One that drops a stage
deletes them. Both do nothing to a stage that is not here, so they may come again.

A lane that is being taken over from another home keeps what it has: the router starts over when it is here
(`router.publishers.settling`).

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from node.backlog.segment import TIME_MAX_MS
from node.home.spool.layout import StagedKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from angarium_server.frames.homes import StoreFrame
    from node.backlog.segment import Segment
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.records import Records
    from node.home.spool.stores import Store
    from node.home.spool.writing import Writing


class Staging:
    """All stages of a home."""

    def __init__(self, lanes: HeldLanes, blocks: Blocks, records: Records, writing: Writing) -> None:
        self._lanes = lanes
        self._blocks = blocks
        self._records = records
        self._writing = writing
        #: Stage -> lane -> its segments, which are in `Blocks.staged`; nothing in it is empty.
        self._stages: dict[int, dict[HeldLane, list[Segment]]] = {}
        #: Segments that count in `HeldLane.staged`: from when they are accepted until their lane has them.
        self._counted: dict[Segment, None] = {}
        #: Messages and spool bytes of these.
        self.totals = (0, 0)
        #: No place has this number or a higher one.
        self._next_number = 1
        self._counts = dict.fromkeys(("messages_released", "messages_dropped"), 0)

    # -- rows come -------------------------------------------------------------------------------------------

    def add(self, store: Store) -> None:
        """Take the new segments of a STORE; they have no positions."""
        for held, segment in store.segments:
            key = StagedKey(held.lane_id, store.stage, held.handovers, self._next_number)
            self._next_number += 1
            self._put(held, store.stage, segment, key.pack())

    def load(self, held: HeldLane, key: bytes, place: StagedKey, segment: Segment) -> None:
        """Take a segment that is on disk; its block is there and counts."""
        if place.handovers == held.handovers:
            self._next_number = max(self._next_number, place.number + 1)
        self._put(held, place.stage, segment, key)
        self._count(held, segment)

    def _put(self, held: HeldLane, stage: int, segment: Segment, key: bytes) -> None:
        self._stages.setdefault(stage, {}).setdefault(held, []).append(segment)
        self._blocks.staged[segment] = key

    def _count(self, held: HeldLane, segment: Segment) -> None:
        self._counted[segment] = None
        held.add(segment.live, segment.live_bytes)
        self._sum(held, segment.live, segment.live_bytes)

    def _uncount(self, held: HeldLane, segment: Segment) -> None:
        if segment in self._counted:
            del self._counted[segment]
            self._sum(held, -segment.live, -segment.live_bytes)

    def _sum(self, held: HeldLane, messages: int, size: int) -> None:
        held.stage(messages, size)
        self.totals = (self.totals[0] + messages, self.totals[1] + size)

    def accept(self, store: Store) -> None:
        """Count the rows of a STORE that is accepted, as far as they were not dropped."""
        for held, segment in store.segments:
            if segment in self._blocks.staged:
                self._count(held, segment)
                self._lanes.changed[held] = None

    # -- stages end ------------------------------------------------------------------------------------------

    def decide(self, store: Store, header: StoreFrame, now: float) -> None:
        """Give the rows of stages positions, or let go of them; the STORE takes what it is to write."""
        for stage in header.release:
            self._release(store, stage, header.wall_ms)
        for stage in header.drop:
            self._drop(stage, now)

    def _release(self, store: Store, stage: int, wall_ms: int) -> None:
        lanes = self._stages.pop(stage, {})
        for held, segments in lanes.items():
            if held.importing:
                self._stages.setdefault(stage, {})[held] = segments
                continue
            for segment in sorted(segments, key=self._blocks.staged.__getitem__):
                segment.first = held.tail + 1
                held.tail = segment.last
                _publish_at(segment, wall_ms)
                store.segments.append((held, segment))
        self._records.forget(stage)

    def accept_released(self, held: HeldLane, segment: Segment, now: float) -> bool:
        """Give a lane what is durable at its tail; false if the lane was emptied, or deleted, meanwhile."""
        self._uncount(held, segment)
        if held.is_gone or segment.first < held.floor:
            self._writing.discard(segment, now)
            if not held.is_gone:
                self._lanes.note_losses(held, self._writing.noted, self._writing.durable)
            return False
        del self._blocks.staged[segment]
        self._counts["messages_released"] += segment.live
        return True

    def _drop(self, stage: int, now: float) -> None:
        for held, segments in self._stages.pop(stage, {}).items():
            self._discard(held, segments, now)
        self._records.forget(stage)

    def drop_lane(self, held: HeldLane, now: float) -> None:
        """Let go of everything that is staged for a lane: it is deleted, or emptied."""
        for stage in list(self._stages):
            lanes = self._stages[stage]
            self._discard(held, lanes.pop(held, ()), now)
            if not lanes:
                del self._stages[stage]

    def _discard(self, held: HeldLane, segments: Iterable[Segment], now: float) -> None:
        for segment in segments:
            self._uncount(held, segment)
            self._writing.discard(segment, now)
            self._counts["messages_dropped"] += segment.live
        self._lanes.note_losses(held, self._writing.noted, self._writing.durable)
        self._lanes.changed[held] = None

    def put_aside(self, held: HeldLane) -> list[tuple[bytes, Segment]]:
        """Give what is staged for a lane that is kept aside, by its key; it stays in its blocks and counts no more."""
        found = []
        for stage in list(self._stages):
            lanes = self._stages[stage]
            for segment in lanes.pop(held, ()):
                found.append((self._blocks.staged[segment], segment))
                self._uncount(held, segment)
            if not lanes:
                del self._stages[stage]
        return found

    def forget(self, held: HeldLane) -> None:
        """Know nothing of a lane any more; what is on disk is for the worker that claims it."""
        for stage in list(self._stages):
            lanes = self._stages[stage]
            for segment in lanes.pop(held, ()):
                del self._blocks.staged[segment]
                self._uncount(held, segment)
            if not lanes:
                del self._stages[stage]

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def stages(self) -> list[int]:
        """Give the stages that have rows here, by rising numbers."""
        return sorted(self._stages)

    def _segments(self) -> Iterator[tuple[HeldLane, Segment]]:
        for lanes in self._stages.values():
            for held, segments in lanes.items():
                yield from ((held, segment) for segment in segments)

    def stats(self) -> dict[str, int]:
        """Give counters, and what is staged."""
        messages, size = self.totals
        return {
            "stages": len(self._stages),
            "messages_staged": messages,
            "bytes_staged": size,
            **self._counts,
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        messages, size = self.totals
        assert messages == sum(one.live for one in self._counted)
        assert size == sum(one.live_bytes for one in self._counted)
        # A lane may be gone while what was staged for it is released, and counts until that is written.
        staged = [held.staged for held in self._lanes]
        assert messages >= sum(one[0] for one in staged)
        assert size >= sum(one[1] for one in staged)
        assert all(lanes and all(lanes.values()) for lanes in self._stages.values())
        for held, segment in self._segments():
            assert not held.is_gone
            key = self._blocks.staged[segment]
            assert key.startswith(held.lane_id.to_bytes(8, "big"))
            block = self._blocks.get(segment.block)
            assert block is not None
            assert segment in block.segments
        places = list(self._blocks.staged.values())
        assert len(places) == len(dict.fromkeys(places))


def _publish_at(segment: Segment, wall_ms: int) -> None:
    """Let the messages of a segment be published at a time: lives and delays count from then."""
    later = wall_ms - segment.stored_ms
    segment.stored_ms = wall_ms
    segment.ages = None
    segment.expires = _moved(segment.expires, later)
    segment.due = _moved(segment.due, later)


def _moved(times: array[int] | None, later: int) -> array[int] | None:
    if times is None:
        return None
    return array("Q", [at and min(max(at + later, 1), TIME_MAX_MS) for at in times])
