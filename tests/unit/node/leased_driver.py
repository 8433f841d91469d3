"""A lane with a lease in tests: what its home makes durable, and a reader that looks at ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.node.lane_driver import CLOSED, PLENTY, Driver

if TYPE_CHECKING:
    from angarium_server.frames.homes import FlowEvent
    from node.endpoints.lease import LeaseRow
    from node.endpoints.leasing import Planned

GROUP = "archive"
HOUR_MS = 3_600_000


class LeasedDriver(Driver):
    """A lane that reader groups use; what it answers is durable, like a home's."""

    def __init__(self, **settings: Any) -> None:
        self.lease_row: LeaseRow | None = None
        self.readers = 1_000
        super().__init__(**settings)

    @property
    def leasing(self) -> Any:
        return self.lane.leasing

    def keep(self) -> None:
        """Write the lease, with everything that the lane lost."""
        self.store()
        lease = self.leasing.lease
        self.lease_row = None if lease is None else lease.row()

    def take(self, group: str = GROUP, lease_ms: int = HOUR_MS) -> tuple[bool, list[FlowEvent]]:
        taken: tuple[bool, list[FlowEvent]] = self.leasing.take(group, lease_ms, self.now, self.wall_ms)
        self.keep()
        return taken

    def plan(self, start: int, *, end: int = 0, messages: int = PLENTY, size: int = PLENTY) -> Planned:
        upto = min(end or PLENTY, self.lane.next_position)
        self.leasing.demand(GROUP, 0, self.now)
        for _ in range(100):
            planned: Planned | None = self.leasing.plan(
                start, upto, messages, size, round(self.now * 1000), self.wall_ms
            )
            if planned is not None:
                self.keep()
                return planned
        raise AssertionError("messages expire and expire")

    def acknowledge(self, end: int) -> int:
        self.leasing.demand(GROUP, 0, self.now)
        count: int = self.leasing.acknowledge(end)
        self.keep()
        return count

    def end(self) -> list[FlowEvent]:
        events: list[FlowEvent] = self.leasing.end(self.wall_ms)
        self.keep()
        return events

    def read(self, start: int, end: int, *, messages: int = PLENTY, group: str = GROUP) -> list[int]:
        """Read a range to its end, some messages at a time; gives the positions."""
        self.readers += 1
        flow = self.readers
        events = self.bind(flow, browse=True, messages=messages, group=group, first=start, end=end)
        assert [event.event for event in events] != [CLOSED], events
        got: list[int] = []
        granted = messages
        for _ in range(10_000):
            mine = self.deliver().get(flow, [])
            assert len(mine) <= messages
            got += mine
            due = self.lane.next_due()
            closed = (
                [event for event in self.tick() if event.flow == flow]
                if due is not None and due <= self.now
                else []
            )
            if closed:
                assert closed[0][1:3] == (CLOSED, 0)
                return got
            granted += len(mine)
            self.lane.credit(flow, granted, PLENTY)
        raise AssertionError(f"the range did not end, {len(got)} messages came")

    def restart(self, *, clean: bool) -> None:
        """Make the lane again from what is durable; the lease is there before the messages."""
        if clean:
            self.lane.end_flows(self.now, self.wall_ms)
            self.keep()
        old, row = self.lane, self.lease_row
        tried_upto = 0 if clean else None
        self.lane = self.make_lane(old.settings, old.next_position, old.delivered_upto, tried_upto=tried_upto)
        if row is not None:
            self.lane.leasing.load(row, self.now)
        self.load()
