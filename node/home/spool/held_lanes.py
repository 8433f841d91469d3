"""The lanes of a home with what the home keeps beside each, and which of them need attention.

A lane decides what is delivered to whom; what is on disk of it, which of its positions are reserved there,
and what the router was told last is the home's affair and stands in `HeldLane`.

No I/O, no clock; `node.home.home` and its parts use this.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium_server.frames.homes import LaneTotals
from angarium_server.frames.settings import settings_map
from angarium_server.memory.memory import give_up_room
from node.home.spool import layout
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from node.backlog.segment import Segment
    from node.endpoints.effort import Effort
    from node.endpoints.lane import Lane
    from node.endpoints.resting import RestingLane
    from node.tracing.watch import Watch
    from storage.spool import Change

#: Positions that are reserved ahead in a lane whose messages are delivered before they are written: one write for so
#: many of them. As many as wait for the disk, within these bounds: if router and home die together, they are a gap.
RESERVED_LEAST: Final = 64
RESERVED_MOST: Final = 4_096
#: Gaps that a lane remembers; of more it forgets the oldest.
GAPS_MAX: Final = 64
#: While it is not known which positions a lane gave at the home before, its messages have positions above this one.
PROVISIONAL: Final = 1 << 48
#: Lanes that wait for effort and are asked in one tick: some need less of it than it takes to ask them.
SHORT_PER_TICK: Final = 100
#: Lanes in which nobody has a part rest about so long after the last one left, and so many of them in one tick.
REST_AFTER_S: Final = 0.5
RESTS_PER_TICK: Final = 50
#: Of every lane that has none, as most: they stay empty.
_NO_COUNTS: Final[Mapping[str, int]] = {}
_NO_LOSSES: Final[list[tuple[int, int, int]]] = []
NO_SEGMENTS: Final[list[Segment]] = []
_PARTITION_MASK: Final = (1 << wire.LANE_BITS) - 1


class HeldLane:
    """One lane and what the home keeps beside it."""

    __slots__ = (
        "accepted",
        "added",
        "brought",
        "bytes",
        "counts",
        "delivered",
        "due",
        "floor",
        "gaps",
        "given",
        "handovers",
        "importing",
        "is_doubled",
        "is_gone",
        "is_parted",
        "is_parting",
        "is_retiring",
        "lane",
        "lane_id",
        "left",
        "limit",
        "losses",
        "lost",
        "messages",
        "moving",
        "note",
        "noted_gaps",
        "peak_bytes",
        "peak_messages",
        "staged",
        "stored",
        "tail",
        "unacked",
        "unsure",
        "waiting",
        "want_delivered",
        "want_given",
    )

    def __init__(self, lane: Lane | RestingLane, tail: int, floor: int = 1) -> None:
        self.lane = lane
        self.lane_id = lane.lane_id
        #: The last position that a message got, in memory.
        self.tail = tail
        #: The last position that was accepted: the lane has got it.
        self.accepted = tail
        #: The last position whose message was on disk for a moment at least, or did not need to be.
        self.stored = tail
        #: What is durable: no position up to it is given again; up to this one consumers may see messages.
        self.given = 0
        self.delivered = 0
        #: What the next write makes of the two; never less.
        self.want_given = 0
        self.want_delivered = 0
        #: Up to here consumers may see messages while something must be on disk before; None: nothing must.
        self.limit: int | None = None
        #: Of the process before consumers may have seen messages up to here. Those above the tail were not on disk; the
        #: router sends them again in the same order, so each has its position again; another router cannot.
        self.unsure = 0
        #: Positions [first, last] that nobody gives again and whose messages are lost, and those that are on disk.
        self.gaps: tuple[tuple[int, int], ...] = ()
        self.noted_gaps: tuple[tuple[int, int], ...] = ()
        #: What its consumer keeps here; None: nothing.
        self.note: bytes | None = None
        #: Segments that start below this position are purged.
        self.floor = floor
        #: How often the lane went from one home to another.
        self.handovers = 0
        #: While the lane is taken over from another spool: new messages have positions above this one, and wait.
        self.importing = 0
        self.waiting = NO_SEGMENTS
        #: Whether all of it is here and the spool that it came from still has it, or had it when the process started.
        self.is_doubled = False
        #: Messages and spool bytes of it in that spool; None until they were counted, and if it is not taken over.
        self.left: tuple[int, int] | None = None
        #: What is on its way to another endpoint and still in the figures: the first sequence of the MOVE, messages
        #: and spool bytes; None: nothing is.
        self.moving: tuple[int, int, int] | None = None
        #: Whether the lane was deleted (what still waits for it is dropped), another worker takes it over (nothing
        #: happens in it here), its row says so (all of it is durable), or the endpoint has the partition no more.
        self.is_gone = self.is_parting = self.is_parted = self.is_retiring = False
        #: When the lane wants a tick, as it stands in the heap; None: it does not.
        self.due: float | None = None
        #: Of the lane when it was last looked at; `unacked`, what consumers have, is part of the sum of the home.
        self.messages = self.bytes = self.unacked = 0
        #: Messages and spool bytes that are staged for the lane: it does not have them, and they count.
        self.staged = (0, 0)
        #: Messages and spool bytes that ever came here, staged or not, and how many of them are gone for sure: what
        #: consumers settled may come back after an unclean stop, so the router is told of it when it is durable.
        #: `brought`: what of them came from other spools, and was counted as traffic there.
        self.added = self.lost = self.brought = (0, 0)
        #: (number of the loss, messages and bytes gone with it) that are not durable, oldest first.
        self.losses = _NO_LOSSES
        #: High-water marks since the process started.
        self.peak_messages = 0
        self.peak_bytes = 0
        #: What happened since the process started, by the names of docs/metrics.md.
        self.counts: Mapping[str, int] = _NO_COUNTS

    @property
    def partition(self) -> int:
        """Which partition of its endpoint it is; 0 for an endpoint without."""
        return self.lane_id & _PARTITION_MASK

    def count(self, name: str, number: int = 1) -> None:
        """Count something that happened."""
        self.counts = {**self.counts, name: self.counts.get(name, 0) + number}

    def add(self, messages: int, size: int) -> None:
        """Count messages that the lane got."""
        self.added = (self.added[0] + messages, self.added[1] + size)

    def bring(self, before: tuple[int, int]) -> None:
        """Take note that what was added since then came from another spool."""
        brought, added = self.brought, self.added
        self.brought = (brought[0] + added[0] - before[0], brought[1] + added[1] - before[1])

    def wait(self, segment: Segment) -> None:
        """Keep a segment that came while the lane is taken over."""
        if not self.waiting:
            self.waiting = []
        self.waiting.append(segment)

    def stage(self, messages: int, size: int) -> None:
        """Count messages that are staged for the lane, or not any more."""
        self.staged = (self.staged[0] + messages, self.staged[1] + size)

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def is_provisional(self) -> bool:
        """Whether its messages get other positions when it is known which the home before gave."""
        return self.importing == PROVISIONAL + 1

    @property
    def shown(self) -> int:
        """Up to which position consumers may see messages now."""
        return self.delivered if self.limit is None else min(self.delivered, self.limit)

    def reserve(self, position: int) -> None:
        """Have the next write note that messages up to a position may have been seen."""
        self.want_delivered = max(self.want_delivered, position)

    def reserve_ahead(self) -> bool:
        """Reserve positions for what comes next, if few are left; its messages are seen before they are on disk."""
        ahead = min(max(self.accepted - self.stored, RESERVED_LEAST), RESERVED_MOST)
        if self.delivered >= self.accepted + ahead // 2:
            return False
        self.reserve(self.accepted + ahead)
        return True

    def keep(self, position: int) -> bool:
        """Have the next write note that a position was given; False if it is known without that."""
        if position <= max(self.given, self.want_given):
            return False
        self.want_given = position
        return True

    def give_up_unsure(self) -> int:
        """Leave a gap for what consumers may have seen and nobody sends again; gives how many positions."""
        lost = self.unsure - self.tail
        if lost <= 0:
            return 0
        self.note_gap(self.tail + 1, self.unsure)
        self.tail = self.unsure
        self.keep(self.unsure)
        return lost

    def note_gap(self, first: int, last: int) -> None:
        """Note that the messages of some positions are lost."""
        self.gaps = (*self.gaps, (first, last))[-GAPS_MAX:]

    def lost_between(self, first: int, last: int) -> int:
        """Count the positions of a range whose messages are lost, as far as the lane remembers."""
        return sum(max(min(last, end) - max(first, start) + 1, 0) for start, end in self.gaps)

    def positions_row(self, given: int = 0, delivered: int = 0) -> layout.Positions:
        """Give the row of the positions with what a write adds to it."""
        return layout.Positions(
            max(given, self.want_given, self.given),
            max(delivered, self.want_delivered, self.delivered),
            self.gaps,
        )

    def note_positions(self, row: layout.Positions) -> None:
        """Take note that a row of the positions is durable."""
        self.given, self.delivered, self.noted_gaps = row

    def row_change(self, *, importing: int | None = None, floor: int | None = None) -> Change:
        """Give the change that stores the row of the lane, as it is or with these."""
        if importing is None:
            importing = layout.COPIED if self.is_doubled else self.importing
            if self.is_parted:
                importing = layout.PARTED
        row = layout.LaneRow(
            self.lane.generation,
            self.floor if floor is None else floor,
            self.handovers,
            importing,
            settings_map(self.lane.settings),
        )
        return Table.LANES, layout.number_key(self.lane_id), layout.pack_lane(row)

    def lease_change(self) -> Change:
        """Give the change that makes the lease, or that there is none, durable."""
        lease = self.lane.lease
        return (
            Table.LANES,
            layout.lease_key(self.lane_id),
            None if lease is None else layout.pack_lease(lease.row()),
        )

    def note_change(self) -> Change:
        """Give the change that makes the note, or what is held, or that there is nothing, durable."""
        rows = self.lane.holdings.rows()
        value = layout.pack_holdings(rows) if rows else self.note
        return Table.LANES, layout.note_key(self.lane_id), value

    def take_note(self, value: bytes | None) -> None:
        """Go on with what `note_change` made durable."""
        if value is not None and self.lane.settings.name.startswith(wire.SHARED_QUEUE_PREFIX):
            self.lane.holdings.load(layout.unpack_holdings(value))
        else:
            self.note = value

    # -- figures ---------------------------------------------------------------------------------------------

    def totals(self) -> LaneTotals:
        """Give what the router is told of the lane."""
        lane = self.lane
        messages, size = self.added[0] - self.lost[0], self.added[1] - self.lost[1]
        for segment in self.waiting:
            messages += segment.live
            size += segment.live_bytes
        if self.left is not None:
            messages += self.left[0]
            size += self.left[1]
        is_complete = not self.importing or self.left is not None
        lease = lane.lease
        group = "" if lease is None else lease.group
        figures = (messages, size, lane.oldest_stored_ms, lane.unacked)
        came = (self.added[0] - self.brought[0], self.added[1] - self.brought[1])
        return LaneTotals(self.lane_id, *figures, is_complete, self.moving, group, (*came, *self.lost))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.accepted <= self.tail
        assert self.want_given >= 0
        assert self.lane.unacked >= 0
        assert 1 <= self.floor <= self.tail + 1
        assert self.importing or (not self.waiting and self.left is None)
        assert not (self.importing and self.is_doubled)
        assert self.added[0] - self.lost[0] >= self.lane.messages + self.staged[0]
        assert self.added[1] - self.lost[1] >= self.lane.bytes + self.staged[1]
        assert min(self.staged) >= 0
        assert self.losses == sorted(self.losses)
        assert not any((_NO_COUNTS, _NO_LOSSES, NO_SEGMENTS))


class HeldLanes:
    """All lanes of a home."""

    def __init__(self) -> None:
        self._lanes: dict[int, HeldLane] = {}
        #: Lanes that are kept aside (`kept_aside`); they are on disk, and nowhere else in here.
        self._aside: dict[int, HeldLane] = {}
        #: How many of them no object claims: another worker takes the rest over.
        self.aside_count = 0
        #: Flow -> its lane; exactly the flows that lanes have.
        self.flows: dict[int, HeldLane] = {}
        #: Lanes in which something may have happened, longest untouched first.
        self.touched: dict[HeldLane, None] = {}
        #: Lanes that go on when there is effort for it, longest waiting first.
        self.short: dict[HeldLane, None] = {}
        #: Lanes whose totals the router does not know yet, and whether it is to be told with the next frames.
        self.changed: dict[HeldLane, None] = {}
        self.is_urgent = False
        #: Lanes whose row in the spool is to be written.
        self.rows: dict[HeldLane, None] = {}
        #: Lanes with losses that are not durable.
        self.lossy: dict[HeldLane, None] = {}
        #: Lanes that want their positions written, those that cannot go on before among them.
        self.reserving: dict[HeldLane, None] = {}
        #: (when, lane) for every lane that wants a tick; may hold outdated ones.
        self._due: list[tuple[float, int]] = []
        #: Delivered to consumers and not settled in all lanes; a reader group has as much as it likes.
        self.unacked = 0
        #: Makes spans of sampled messages; None: nobody wants them.
        self.watch: Watch | None = None
        #: Lanes without flows when they were looked at last; those of them whose time to rest has come; and when to let
        #: some rest, None: there were none.
        self.quiet: dict[HeldLane, None] = {}
        self._resting: dict[HeldLane, None] = {}
        self.rest_at: float | None = None

    def __len__(self) -> int:
        """Give the number of lanes."""
        return len(self._lanes)

    def __iter__(self) -> Any:
        """Give every lane, in the order in which they came."""
        return iter(self._lanes.values())

    def get(self, lane_id: int) -> HeldLane | None:
        """Give a lane that is here."""
        return self._lanes.get(lane_id)

    def add(self, held: HeldLane) -> None:
        """Take a lane in."""
        assert held.lane_id not in self._lanes
        self._lanes[held.lane_id] = held
        self.touched[held] = None
        self.changed[held] = None

    def drop(self, held: HeldLane) -> None:
        """Forget a lane that is deleted."""
        held.is_gone = True
        self._take_out(held)

    def put_aside(self, held: HeldLane) -> None:
        """Know only that a lane is there; nothing happens in it."""
        self._take_out(held)
        self._aside[held.lane_id] = held
        self.aside_count += not held.is_parting

    def take_back(self, held: HeldLane) -> None:
        """Take in a lane that was kept aside; nothing of it that is not durable was lost."""
        del self._aside[held.lane_id]
        self.aside_count -= not held.is_parting
        held.is_parting = held.is_parted = False
        held.added, held.lost = (held.lane.messages, held.lane.bytes), (0, 0)
        held.brought = (0, 0)
        held.losses = _NO_LOSSES
        held.due, held.unacked = None, 0
        self.add(held)
        self.rows[held] = None
        self.reserving[held] = None

    def is_aside(self, lane_id: int) -> bool:
        """Tell whether a lane is kept aside."""
        return lane_id in self._aside

    def _take_out(self, held: HeldLane) -> None:
        del self._lanes[held.lane_id]
        self.unacked -= held.unacked
        for table in (self.touched, self.short, self.changed, self.rows, self.reserving, self.lossy):
            table.pop(held, None)
        for table in (self.quiet, self._resting):
            table.pop(held, None)
        give_up_room(self._lanes)
        give_up_room(self.flows)

    def refresh(self, held: HeldLane) -> None:
        """Bring what is known of a lane up to date after something happened in it."""
        lane = held.lane
        unacked = lane.at_consumers
        if unacked != held.unacked:
            self.changed[held] = None
        self.unacked += unacked - held.unacked
        messages, size = lane.messages, lane.bytes
        held.messages, held.bytes, held.unacked = messages, size, unacked
        held.peak_messages = max(held.peak_messages, messages)
        held.peak_bytes = max(held.peak_bytes, size)
        if not lane.flows:
            self.quiet[held] = None
        if lane.wants_effort:
            self.short[held] = None
        due = lane.next_due()
        if due != held.due:
            held.due = due
            if due is not None:
                heapq.heappush(self._due, (due, held.lane_id))

    # -- rest ------------------------------------------------------------------------------------------------

    def rest(self, now: float, rouse: Callable[[RestingLane], Lane]) -> None:
        """Let some of the lanes rest that may; `rouse` gives the lane of one, in its place, when it is needed."""
        if self.rest_at is None:
            self.rest_at = now + REST_AFTER_S
        if now < self.rest_at:
            return
        if not self._resting:
            self._resting.update(self.quiet)
            self.quiet.clear()
        for held in list(islice(self._resting, RESTS_PER_TICK)):
            del self._resting[held]
            if held.lane.may_rest:
                held.lane = held.lane.rest(rouse)
        self.rest_at = now if self._resting else now + REST_AFTER_S if self.quiet else None

    def roused(self, lane: Lane) -> None:
        """Put a lane that was roused in its place, unless it is gone."""
        held = self._lanes.get(lane.lane_id) or self._aside.get(lane.lane_id)
        if held is not None:
            held.lane = lane
            self.quiet[held] = None

    # -- what is told and what is due ------------------------------------------------------------------------

    def note_losses(self, held: HeldLane, number: int, durable: int) -> None:
        """Note what a lane has lost by now; it is durable when every loss up to a number is.

        Args:
            held: the lane.
            number: of the newest loss, of any lane.
            durable: every loss up to this number is durable already.
        """
        messages, size = held.staged
        lost = held.added[0] - held.lane.messages - messages, held.added[1] - held.lane.bytes - size
        if lost == (held.losses[-1][1:] if held.losses else held.lost):
            return
        if number <= durable:
            # Nothing of it was ever on disk.
            held.lost = lost
            self.changed[held] = None
        else:
            if not held.losses:
                held.losses = []
            held.losses.append((number, *lost))
            self.lossy[held] = None

    def losses_durable(self, number: int) -> None:
        """Take note that every loss up to a number is durable."""
        for held in list(self.lossy):
            durable = bisect_right(held.losses, number, key=itemgetter(0))
            if durable:
                held.lost = held.losses[durable - 1][1:]
                del held.losses[:durable]
                self.changed[held] = None
            if not held.losses:
                held.losses = _NO_LOSSES
                del self.lossy[held]

    def take_due(self, now: float, limit: int) -> list[HeldLane]:
        """Give lanes whose time has come, so many at most: the others are due still."""
        taken: list[HeldLane] = []
        while self._due and self._due[0][0] <= now and len(taken) < limit:
            due, lane_id = heapq.heappop(self._due)
            held = self._lanes.get(lane_id)
            if held is not None and held.due == due:
                held.due = None
                taken.append(held)
        return taken

    def take_short(self, effort: Effort) -> Iterator[HeldLane]:
        """Give the lanes that wait for effort, each once, as long as those before have left some."""
        for held in list(self.short)[:SHORT_PER_TICK]:
            if effort.left <= 0:
                return
            del self.short[held]
            yield held

    @property
    def next_due(self) -> float | None:
        """When the next lane wants a tick; perhaps it does not any more."""
        return self._due[0][0] if self._due else None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.unacked == sum(held.unacked for held in self._lanes.values())
        for lane_id, held in self._lanes.items():
            assert held.lane_id == lane_id
            assert not held.is_gone
            held.validate()
        assert self.aside_count == sum(not held.is_parting for held in self._aside.values())
        for table in (self.touched, self.short, self.changed, self.rows, self.reserving, self.lossy):
            assert all(not held.is_gone for held in table)
        for flow_id, held in self.flows.items():
            assert flow_id in held.lane.flows
