"""The parts of a home and how they hang together: who may call whom stands here and nowhere else.

No I/O, no clock; `node.home.home` makes one and drives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from node.endpoints.effort import RATE_DEFAULT_MS, STEPS_PER_MS, Effort
from node.endpoints.lane import Lane
from node.endpoints.lane import Sources as LaneSources
from node.endpoints.resting import RestingLane
from node.home.lanes.adoption import Adoptions, Sources
from node.home.lanes.copies import Copies, EarlyCopies
from node.home.lanes.jobs import MoveJobs
from node.home.lanes.lane_changes import LaneChanges
from node.home.lanes.leases import Leases
from node.home.lanes.moves import Moves
from node.home.lanes.others import Others
from node.home.lanes.outbox import Outbox
from node.home.lanes.parting import Parting
from node.home.lanes.retained_reads import RetainedReads
from node.home.lanes.serving import FlowVerbs, Serving
from node.home.spool.blocks import Blocks
from node.home.spool.held_lanes import HeldLanes
from node.home.spool.records import Records
from node.home.spool.repacking import Repacking
from node.home.spool.staging import Staging
from node.home.spool.stores import PendingStores, StoreMaker
from node.home.spool.writing import Writing

if TYPE_CHECKING:
    from angarium_server.black_box import BlackBox
    from angarium_server.frames.settings import LaneSettings
    from node.backlog.segment import Row, Segment
    from node.endpoints.resting import LaneStart
    from node.home.lanes.others import Neighbours
    from storage.spool import Spool


class HomeLimits(NamedTuple):
    """What a home is told of its limits and delays."""

    ack_delay_ms: int = 20
    write_delay_ms: int = 50
    #: Bodies kept in memory that are on disk too.
    cache_bytes_max: int = 64 << 20
    #: Milliseconds that selectors of one client username may take in a second; 0: there is no limit.
    selector_ms_per_s: int = RATE_DEFAULT_MS
    #: Bytes that wait for their write at which promoted copies of direct messages are dropped.
    unwritten_bytes_max: int = 64 << 20


class HomeParts:
    """Everything that a home consists of."""

    def __init__(
        self,
        spool: Spool,
        incarnation: int,
        limits: HomeLimits,
        neighbours: Neighbours | None,
        box: BlackBox,
    ) -> None:
        """Make the parts of a home that knows nothing yet; without neighbours no lane is taken over."""
        self.spool = spool
        #: What clients may spend on looking into messages, and operators: neither takes the turn of the other.
        self.effort = Effort(limits.selector_ms_per_s)
        self.operators_effort = Effort()
        self._selector_ms_per_s = limits.selector_ms_per_s
        lanes = self.lanes = HeldLanes()
        blocks = self.blocks = Blocks(spool, limits.cache_bytes_max)
        outbox = self.outbox = Outbox(incarnation, blocks)
        records = self.records = Records()
        pending = self.pending = PendingStores(limits.write_delay_ms / 1000)
        writing = self.writing = Writing(blocks, pending, lanes, records, limits.ack_delay_ms / 1000)
        staging = self.staging = Staging(lanes, blocks, records, writing)
        self.stores = StoreMaker(lanes, blocks, records)
        self.repacking = Repacking(lanes, blocks, writing)
        self.jobs = MoveJobs(blocks, incarnation, self.operators_effort)
        moves = self.moves = Moves(lanes, blocks, writing, self.jobs, outbox)
        self.flows = FlowVerbs(lanes, outbox, box)
        self.leases = Leases(lanes, pending, writing, self.flows.tell, outbox)
        self.serving = Serving(lanes, writing, moves, self.leases, outbox, box)
        self.retained_reads = RetainedReads(
            lanes, blocks, pending, self.effort, self.serving.withdraw, outbox
        )
        others = self.others = Others(neighbours, outbox)
        copies = Copies(blocks)
        self.early = EarlyCopies(others, lanes, copies, writing, is_alone=neighbours is None)
        sources = Sources(others, copies, self.early)
        self.adoptions = Adoptions(sources, lanes, blocks, records, writing, moves, staging, outbox)
        self.changes = LaneChanges(
            spool, lanes, records, writing, moves, self.adoptions, staging, self.make_lane
        )
        self.parting = Parting(spool, others, lanes, writing, moves, self.serving, self.changes)
        #: Gives the lane of one that rests, and puts it in its place; each of these has it.
        self.rouse = self._rouse
        #: How lanes look into messages.
        self._sources = LaneSources(self._read_row, self.effort, discards=moves.discards)

    def _read_row(self, segment: Segment, i: int) -> Row:
        return self.blocks.row(segment, i, self.effort)

    def make_lane(
        self, lane_id: int, generation: int, settings: LaneSettings, start: LaneStart
    ) -> Lane | RestingLane:
        """Make a lane of this home, without messages; it rests if it has nothing to do.

        Raises:
            InvalidRequestError: the selector of a topic endpoint is invalid (40601).
        """
        if settings.selector or settings.retains:
            return Lane(lane_id, generation, settings, self._sources, start)
        return RestingLane(lane_id, generation, settings, start, self.rouse)

    def _rouse(self, resting: RestingLane) -> Lane:
        mine = resting.lane_id, resting.generation, resting.settings
        lane = Lane(*mine, self._sources, resting.start, resting.backlog)
        self.lanes.roused(lane)
        return lane

    def renew_efforts(self) -> None:
        """Begin a turn of the loop; tells operators whose selectors have to wait."""
        self.effort.renew()
        self.operators_effort.renew()
        if self.effort.told:
            self._tell_slowed()

    def _tell_slowed(self) -> None:
        for payer in self.effort.told:
            text = (
                f"selectors of client username {payer.username!r} in Message VPN {payer.vpn!r} have used their"
                f" {self._selector_ms_per_s} ms in a second: its flows and topic endpoints with selectors wait"
            )
            self.outbox.event("warning", "SYSTEM_AD_SELECTORS_SLOWED", text)
        self.effort.told = []

    def stats(self) -> dict[str, int]:
        """Give the counters and sizes of all parts."""
        return {
            "selector_ms": (self.effort.spent - self.effort.toiled) // STEPS_PER_MS,
            "selector_waits": self.effort.waits,
            "lanes_waiting_for_effort": len(self.lanes.short),
            "lanes": len(self.lanes),
            "flows": len(self.lanes.flows),
            "messages_spooled": sum(held.lane.messages for held in self.lanes),
            "bytes_spooled": sum(held.lane.bytes for held in self.lanes),
            "delivered_unacked": self.lanes.unacked,
            "delivered_unacked_allowance": self.serving.allowance,
            "messages_unreadable": self.serving.unreadable,
            "rows_dropped": self.stores.rows_dropped,
            **self.pending.stats(),
            **self.writing.stats(),
            **self.blocks.stats(),
            **self.records.stats(),
            **self.outbox.delivery.stats(),
            **self.staging.stats(),
            **self.moves.stats(),
            **self.jobs.stats(),
            **self.repacking.stats(),
            **self.changes.stats(),
            **self.adoptions.stats(),
            **self.early.stats(),
            **self.parting.stats(),
            **self.leases.stats(),
            **self.retained_reads.stats(),
        }

    def validate(self) -> None:
        """Check what the parts promise, each and together."""
        for part in (
            self.lanes,
            self.blocks,
            self.records,
            self.pending,
            self.writing,
            self.staging,
            self.moves,
            self.adoptions,
            self.early,
            self.parting,
            self.changes.aside,
        ):
            part.validate()
        in_line = {held.lane_id for held in self.serving.in_line}
        assert all(segment.lane_id in in_line for segment in self.writing.lost_since)
        for held in self.lanes:
            held.lane.validate()
            for segment in held.lane.segments:
                block = self.blocks.get(segment.block)
                assert block is not None
                assert segment in block.segments
