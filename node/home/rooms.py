"""The rooms of a home and how they hang together: who may call whom stands here and nowhere else.

No I/O, no clock; `node.home.home` makes one and drives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from node.endpoints.effort import RATE_DEFAULT_MS, STEPS_PER_MS, Effort
from node.home.lanes.adoption import Adoptions
from node.home.lanes.delivery import Delivery
from node.home.lanes.jobs import MoveJobs
from node.home.lanes.lane_changes import LaneChanges
from node.home.lanes.leases import Leases
from node.home.lanes.moves import Moves
from node.home.lanes.serving import Serving
from node.home.spool.blocks import Blocks
from node.home.spool.held_lanes import HeldLanes
from node.home.spool.records import Records
from node.home.spool.repacking import Repacking
from node.home.spool.staging import Staging
from node.home.spool.stores import Stores
from node.home.spool.stream import Stream
from node.home.spool.writing import Writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.home.lanes.adoption import Neighbours
    from node.home.spool.recovery import MakeLane
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


class Rooms:
    """Everything that a home consists of."""

    def __init__(
        self,
        spool: Spool,
        incarnation: int,
        limits: HomeLimits,
        neighbours: Neighbours | None,
        make_lane: MakeLane,
        tell: Callable[[str, str, str], None],
    ) -> None:
        """Make the rooms of a home that knows nothing yet.

        Args:
            spool: of the home.
            incarnation: of the worker.
            limits: what the home may use.
            neighbours: the spools of the other workers; without them no lane is taken over.
            make_lane: makes a lane.
            tell: takes the severity, name and text of an event.
        """
        self.spool = spool
        #: What clients may spend on looking into messages, and operators: neither takes the turn of the other.
        self.effort = Effort(limits.selector_ms_per_s)
        self.operators_effort = Effort()
        self._tell = tell
        self._selector_ms_per_s = limits.selector_ms_per_s
        self.lanes = HeldLanes()
        self.blocks = Blocks(spool, limits.cache_bytes_max)
        self.records = Records()
        self.stream = Stream(limits.write_delay_ms / 1000)
        ack_delay_s = limits.ack_delay_ms / 1000
        self.writing = Writing(self.blocks, self.stream, self.lanes, self.records, ack_delay_s)
        self.staging = Staging(self.lanes, self.blocks, self.records, self.writing)
        self.delivery = Delivery(self.blocks, incarnation)
        self.serving = Serving(self.lanes, self.writing, self.delivery, tell)
        #: Takes up what a lane lost, wherever it lost it.
        self.collect = self.serving.collect
        self.leases = Leases(self.lanes, self.stream, self.writing, self.collect, tell)
        self.serving.leases = self.leases
        self.jobs = MoveJobs(self.blocks, incarnation, self.operators_effort)
        self.moves = Moves(self.lanes, self.blocks, self.writing, self.jobs, incarnation, self.collect)
        self.serving.moves = self.moves
        self.repacking = Repacking(self.lanes, self.blocks, self.writing, self.collect)
        self.adoptions = Adoptions(
            neighbours, self.lanes, self.blocks, self.records, self.writing, self.moves, self.staging, tell
        )
        self.changes = LaneChanges(
            spool, self.lanes, self.records, self.writing, self.moves, self.adoptions, self.staging, make_lane
        )
        self.stores = Stores(self.lanes, self.blocks, self.records, self.staging.add)

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
            self._tell("warning", "SYSTEM_AD_SELECTORS_SLOWED", text)
        self.effort.told = []

    def stats(self) -> dict[str, int]:
        """Give the counters and sizes of all rooms."""
        return {
            "selector_ms": self.effort.spent // STEPS_PER_MS,
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
            **self.stream.stats(),
            **self.writing.stats(),
            **self.blocks.stats(),
            **self.records.stats(),
            **self.delivery.stats(),
            **self.staging.stats(),
            **self.moves.stats(),
            **self.jobs.stats(),
            **self.repacking.stats(),
            **self.changes.stats(),
            **self.adoptions.stats(),
            **self.leases.stats(),
        }

    def validate(self) -> None:
        """Check what the rooms promise, each and together."""
        for room in (
            self.lanes,
            self.blocks,
            self.records,
            self.stream,
            self.writing,
            self.staging,
            self.moves,
            self.adoptions,
            self.changes.aside,
        ):
            room.validate()
        for held in self.lanes:
            held.lane.validate()
            for segment in held.lane.segments:
                block = self.blocks.get(segment.block)
                assert block is not None
                assert segment in block.segments
